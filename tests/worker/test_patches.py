"""The list of patches, what each relies on, and that none goes in where the code is no longer the
same.
"""

from __future__ import annotations

import ast
import importlib.metadata
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launch.worker.channel import EventWriter
from launch.worker.patches import PATCHES, PatchContext, PatchError, UpstreamSource, install
from launch.worker.patches.dpo import list_gpu, unlisted_gpu
from launch.worker.patches.shared import adapted_layers, skips_input_casts
from launch.worker.trainer import TrainerProgram
from tests.paths import ROOT
from tests.worker import ranks

SOURCES = [(patch.id, source) for patch in PATCHES.values() for source in patch.sources]
NAMES = [f"{patch}-{source.file}:{source.first}" for patch, source in SOURCES]


@pytest.fixture(scope="module")
def checkout() -> Path:
    folder = Path(os.environ.get("OPEN_INSTRUCT_DIR") or ROOT / "external" / "open-instruct")
    if not (folder / "open_instruct" / "finetune.py").is_file():
        pytest.skip("no open-instruct checkout: set OPEN_INSTRUCT_DIR or fetch the submodule")
    return folder


def write_source(folder: Path, source: UpstreamSource, text: str) -> Path:
    """A package below `folder` whose file holds `text` and nothing else."""
    path = folder / source.file
    path.parent.mkdir(parents=True, exist_ok=True)
    (folder / source.file.partition("/")[0] / "__init__.py").touch()
    path.write_text(text + "\n", encoding="utf-8")
    return path


def test_ids_are_stable() -> None:
    # a rename breaks `allow=[id]` in people's stage files and the records of old runs
    assert set(PATCHES) >= {
        "finetune_local_model",
        "cuda_memory_on_cpu",
        "dpo_single_process_group",
        "dpo_cpu_device",
        "dpo_unlisted_gpu",
        "dpo_steps",
        "finetune_steps",
        "dataset_cache",
        "saving",
        "reward_steps",
        "adapter_inputs",
        "evidence",
        "balanced_batches",
        "token_weighting",
        "lengths",
        "olmo_core_steps",
        "olmo_core_packed_data",
        "olmo_core_documents",
        "olmo_core_first_checkpoint",
        "olmo_core_single_step",
        "olmo_core_evidence",
        "olmo_core_on_cpu",
        "olmo_core_tokens",
        "olmo_core_whole_chats",
        "unused_imports",
        "dpo_packed_padding",
        "dpo_reference_cache",
        "exact_resume",
        "universal_checkpoint",
        "deepspeed_on_cpu",
        "registered_models",
        "preview",
    }
    assert all(PATCHES[name].id == name for name in PATCHES)
    # TRL is a library: launch/worker/trl_entry.py
    assert not [name for name in PATCHES if name.startswith("trl_")]


@pytest.mark.parametrize("name", PATCHES)
def test_a_patch_says_what_a_record_needs(name: str) -> None:
    patch = PATCHES[name]
    assert patch.reason
    assert "\n" not in patch.reason
    assert patch.upstream
    for place in patch.upstream:
        assert re.fullmatch(r"[a-z_]+/[a-z0-9_/]+\.py:\d+(-\d+)?( \([a-z_]+ [\d.]+\))?", place), (
            place
        )


@cache
def _distributions() -> Mapping[str, list[str]]:
    # reads the metadata of every package: a second
    return importlib.metadata.packages_distributions()


def test_listing_the_patches_imports_no_trainer() -> None:
    code = "import sys\nfrom launch.worker.patches import PATCHES\nprint(*sys.modules)"
    root = str(ROOT)
    run = subprocess.run(
        [sys.executable, "-c", code],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    heavy = {"torch", "numpy", "transformers", "accelerate", "datasets", "fcntl", "ctypes"}
    assert heavy.isdisjoint(run.stdout.split())


@pytest.mark.parametrize(("patch", "source"), SOURCES, ids=NAMES)
def test_the_named_lines_hold_what_the_patch_relies_on(
    patch: str, source: UpstreamSource, request: pytest.FixtureRequest
) -> None:
    package = source.file.partition("/")[0]
    if source.version is None:
        path = request.getfixturevalue("checkout") / source.file
    else:
        pytest.importorskip(package)
        installed = importlib.metadata.version(_distributions()[package][0])
        if installed != source.version:
            pytest.skip(
                f"line numbers are those of {package} {source.version}, here is {installed}"
            )
        path = source.find(TrainerProgram(None, "none", ()))
        assert path is not None
    lines = path.read_text(encoding="utf-8").splitlines()
    assert source.matches("\n".join(lines[source.first - 1 : source.last])), f"{patch}: {source}"


@pytest.mark.parametrize(("patch", "source"), SOURCES, ids=NAMES)
def test_a_source_that_changed_stops_the_patch(
    patch: str, source: UpstreamSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = source.file.partition("/")[0]
    for other in PATCHES[patch].sources:
        text = "\n".join(each.text for each in PATCHES[patch].sources if each.file == other.file)
        write_source(tmp_path, other, text)
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    trainer = TrainerProgram(None, "none", ())
    PATCHES[patch].check(trainer)  # as written for

    path = tmp_path / source.file
    path.write_text(path.read_text(encoding="utf-8").replace(source.text, ""), encoding="utf-8")
    with pytest.raises(PatchError) as changed:
        PATCHES[patch].check(trainer)
    assert str(changed.value).startswith(
        f"patch {patch}: {source} has changed: `{source.text}` is no longer in {path}"
    )

    path.unlink()
    with pytest.raises(PatchError, match="was not found, so there is nothing to patch"):
        PATCHES[patch].check(trainer)


def test_a_patch_that_does_not_fit_ends_the_rank_before_the_trainer_starts(tmp_path: Path) -> None:
    source = PATCHES["evidence"].sources[0]
    write_source(tmp_path / "packages", source, "def prepare(self): ...")
    script = tmp_path / "trainer.py"
    script.write_text("print('started')", encoding="utf-8")
    environment = {"PYTHONPATH": str(tmp_path / "packages")}
    run = ranks.run(["--patch", "evidence", "--script", script], tmp_path, environment=environment)
    assert run.code == 1
    [error] = run.of_kind("error")
    assert error["type"] == "PatchError"
    assert error["patch"] == "evidence"
    assert error["message"].startswith(
        "patch evidence: accelerate/accelerator.py:1415 (accelerate 1.15.0) has changed"
    )
    assert run.output[0] == f"launch: {error['message']}\n"
    assert run.of_kind("patch") == []


def test_the_script_that_runs_is_the_one_that_is_checked(tmp_path: Path, checkout: Path) -> None:
    """A doctored copy of the real finetune.py, run by its path, with the untouched checkout on
    PYTHONPATH.
    """
    text = (checkout / "open_instruct" / "finetune.py").read_text(encoding="utf-8")
    script = tmp_path / "open_instruct" / "finetune.py"
    script.parent.mkdir()
    script.write_text(
        text.replace("snapshot_download(model_path, ", "fetch(model_path, "), encoding="utf-8"
    )
    run = ranks.run(
        ["--patch", "finetune_local_model", "--script", script],
        tmp_path,
        environment={"PYTHONPATH": str(checkout)},
    )
    assert run.code == 1
    assert (
        "finetune.py:527 has changed: `snapshot_download(model_path, "
        "revision=args.model_revision)` is no " in run.output[0]
    )
    assert str(script) in run.output[0]


def test_a_patch_that_is_not_needed_is_not_applied_but_listed(tmp_path: Path) -> None:
    script = tmp_path / "trainer.py"
    script.write_text("import sys\nassert 'accelerate' not in sys.modules", encoding="utf-8")
    run = ranks.run(["--patch", "deepspeed_on_cpu", "--script", script], tmp_path)
    assert run.code == 0, run.describe()
    [event] = run.of_kind("patch")
    assert event["id"] == "deepspeed_on_cpu"
    assert event["applied"] is False
    assert event["why"] == "accelerate is not configured to use DeepSpeed"
    assert event["upstream"] == list(PATCHES["deepspeed_on_cpu"].upstream)


def test_an_attribute_that_is_gone_is_a_patch_error_too() -> None:
    patch = PATCHES["lengths"]

    def apply(_: PatchContext) -> None:
        from launch.worker import channel

        channel.no_such_thing  # type: ignore[attr-defined]  # noqa: B018

    broken = type(patch)("broken", "why", {}, apply)
    with pytest.raises(
        PatchError,
        match=r"^patch broken: can't be applied: module .* has no attribute 'no_such_thing'",
    ):
        install(broken, PatchContext(TrainerProgram(None, "none", ()), EventWriter(None, 0)))


@pytest.mark.parametrize(
    ("flags", "value"),
    [
        ("--dataset_name a", "a"),
        ("--dataset-name=a", "a"),
        ("--dataset_name a --dataset_name=b=c", "b=c"),
        ("--other dataset_name", None),
        ("--dataset_name", None),
    ],
)
def test_a_flags_value_is_found_however_it_is_spelt(flags: str, value: str | None) -> None:
    assert TrainerProgram(None, "m", tuple(flags.split())).flag("dataset_name") == value


# --- dpo_unlisted_gpu, against upstream's own table and function


@pytest.fixture
def upstream_names(checkout: Path) -> dict[str, Any]:
    """Upstream's GPU_SPECS and get_device_name, taken out of its file without importing the
    rest.
    """
    tree = ast.parse((checkout / "open_instruct" / "utils.py").read_text(encoding="utf-8"))
    wanted = [
        node
        for node in tree.body
        if (isinstance(node, ast.FunctionDef) and node.name == "get_device_name")
        or (isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "GPU_SPECS")
    ]
    names: dict[str, Any] = {}
    exec(compile(ast.Module(wanted, []), "utils.py", "exec"), names)
    return names


@pytest.mark.parametrize(
    "device", ["NVIDIA L4", "NVIDIA A10G", "Tesla V100-SXM2-32GB", "NVIDIA GeForce RTX 3090"]
)
def test_an_unlisted_gpu_is_found_by_upstream_afterwards(
    upstream_names: dict[str, Any], device: str
) -> None:
    specs, find = upstream_names["GPU_SPECS"], upstream_names["get_device_name"]
    with pytest.raises(ValueError, match="Unknown device name"):
        find(device)
    list_gpu(
        specs,
        device,
        24 * 2**30,
        PatchContext(TrainerProgram(None, "none", ()), EventWriter(None, 0)),
    )
    assert specs[find(device)]["memory_size"] == 24 * 2**30
    assert 1e15 / specs[find(device)]["flops"] == 0  # a utilisation of 0, not an invented one


@pytest.mark.parametrize(
    "device", ["NVIDIA H100 80GB HBM3", "NVIDIA RTX PRO 6000 Blackwell Server Edition"]
)
def test_a_listed_gpu_is_left_alone(
    upstream_names: dict[str, Any], device: str, capsys: pytest.CaptureFixture[str]
) -> None:
    specs = upstream_names["GPU_SPECS"]
    before = dict(specs)
    assert unlisted_gpu(specs, device) is None
    list_gpu(specs, device, 1, PatchContext(TrainerProgram(None, "none", ()), EventWriter(None, 0)))
    assert specs == before
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("base", ["bf16", "fp32", "nf4"])
def test_inputs_that_are_not_cast_give_the_same_numbers(base: str) -> None:
    """Logits and gradients to the bit, for each type that a frozen base can have; the adapter is
    fp32, as PEFT's.
    """
    torch, transformers, peft = (
        pytest.importorskip(name) for name in ("torch", "transformers", "peft")
    )
    sizes = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=128, **sizes))
    model = model if base == "fp32" else model.to(torch.bfloat16)
    if base == "nf4":
        bnb = pytest.importorskip("bitsandbytes").nn
        for block in model.model.layers:
            for name, layer in list(block.mlp.named_children())[:3]:
                packed = bnb.Linear4bit(
                    *reversed(layer.weight.shape), False, torch.bfloat16, quant_type="nf4"
                )
                packed.load_state_dict(layer.state_dict())
                setattr(block.mlp, name, packed.to("cpu"))
    adapted = peft.get_peft_model(
        model, peft.LoraConfig(r=4, target_modules="all-linear", lora_dropout=0.0)
    )
    for name, weight in adapted.named_parameters():
        weight.data = (
            torch.randn_like(weight, dtype=torch.float32) / 8 if "lora_" in name else weight.data
        )
    assert skips_input_casts(
        adapted, SimpleNamespace(mixed_precision="bf16", distributed_type="NO")
    )
    ids, found = torch.arange(64).reshape(2, 32), []
    for cast in (True, False):
        for layer in adapted_layers(adapted):
            layer.cast_input_dtype_enabled = cast
        adapted.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            out = adapted(input_ids=ids, labels=ids)
        out.loss.backward()
        found.append(
            [
                out.logits,
                *(weight.grad for weight in adapted.parameters() if weight.grad is not None),
            ]
        )
    assert len(found[0]) == 1 + 2 * 14
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


@pytest.mark.parametrize(
    ("dropout", "precision", "distributed"),
    [(0.1, "bf16", "NO"), (0.0, "no", "NO"), (0.0, "bf16", "DEEPSPEED")],
)
def test_inputs_are_cast_where_the_numbers_could_differ(
    dropout: float, precision: str, distributed: str
) -> None:
    torch, transformers, peft = (
        pytest.importorskip(name) for name in ("torch", "transformers", "peft")
    )
    sizes = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=16, **sizes)).to(
        torch.bfloat16
    )
    adapted = peft.get_peft_model(
        model, peft.LoraConfig(r=2, target_modules="all-linear", lora_dropout=dropout)
    )
    assert not skips_input_casts(
        adapted, SimpleNamespace(mixed_precision=precision, distributed_type=distributed)
    )
