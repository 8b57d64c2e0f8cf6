"""The kinds of LoRA on real models: what shows each of them, and that the merged model has the logits
of the one that was trained.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the `train` dependencies are not installed")
transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")

from launch.worker import merging  # noqa: E402
from launch.worker.evidence import adapter_kind, start  # noqa: E402
from launch.worker.evidence.adapter_kind import check_adapter_kind  # noqa: E402
from launch.worker.evidence.saved_model import check_saved  # noqa: E402
from launch.worker.json_codec import encode  # noqa: E402
from launch.worker.model_loading import load_model  # noqa: E402
from tests.worker.evidence import models  # noqa: E402

ROWS = [[3, 7, 11, 2, 9], [5, 1, 60, 33]]
PARAMETERS = ["mlp.experts.gate_up_proj"]
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
# The settings of PEFT's adapter, and what is requested of it.
KINDS: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "lora": ({}, {}),
    "dora": ({"use_dora": True}, {"lora_dora": "true"}),
    "rslora": ({"use_rslora": True}, {"lora_rslora": "true"}),
    "pissa": ({"init_lora_weights": "pissa"}, {"lora_init": "pissa"}),
    "olora": ({"init_lora_weights": "olora"}, {"lora_init": "olora"}),
    "head": ({"modules_to_save": ["lm_head"]}, {"lora_modules": "lm_head"}),
    "embedding": ({"modules_to_save": ["embed_tokens"]}, {"lora_modules": "embed_tokens"}),
    "experts": ({"target_parameters": PARAMETERS}, {"lora_parameters": PARAMETERS[0]}),
}
# What another kind of adapter shows for each request.
REQUESTS = {name: value for _, requested in KINDS.values() for name, value in requested.items()}


def save_base(folder: Path, kind: str) -> None:
    experts = EXPERTS if kind == "experts" else {}
    model = models.model("qwen3_moe" if experts else "llama", **experts)
    model.save_pretrained(folder)
    words = {f"w{number}": number for number in range(64)}
    tokenizers = pytest.importorskip("tokenizers")
    words_of = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0"))
    transformers.PreTrainedTokenizerFast(tokenizer_object=words_of).save_pretrained(folder)


def new_adapter(base: Path, kind: str) -> Any:
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_pretrained(base)
    targets = ["q_proj"] if kind == "experts" else ["q_proj", "down_proj"]
    config = peft.LoraConfig(r=4, lora_alpha=8, target_modules=targets, **KINDS[kind][0])
    return peft.get_peft_model(model, config)


def verdicts(model: Any, requested: dict[str, str], step: int = 0) -> dict[str, Any]:
    found = check_adapter_kind(model, requested, step)
    return {item.what: item.verdict for item in found}


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_is_proven_saved_and_merged(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = tmp_path / "base"
    save_base(base, kind)
    model = new_adapter(base, kind)
    requested = KINDS[kind][1]
    assert verdicts(model, requested) == dict.fromkeys(requested, "proven")
    objects = models.objects(model.get_base_model())
    lora, _ = start.check_lora(objects, "4", requested.get(adapter_kind.MODULES))
    assert lora.verdict == "proven"

    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.05)
    model.eval()
    trained = merging.compute_logits(model, ROWS)
    folder = tmp_path / "run" / "model"
    model.save_pretrained(folder)
    saved = check_saved(folder, model, None)
    assert saved.verdict == "proven" and not saved.note.startswith("0 ")
    transformers.AutoTokenizer.from_pretrained(base).save_pretrained(folder)

    out = tmp_path / "merged"
    out.mkdir()
    request = merging.MergeRequest(folder, out, ROWS, "float32", False, ("tokenizer.json",))
    merging.main([encode(request)])
    capsys.readouterr()
    transformers.AutoTokenizer.from_pretrained(base).save_pretrained(out)
    merged, _ = load_model(out, dtype="float32")
    found = merging.compute_logits(merged, ROWS)
    assert merging.logit_difference(found, trained) < 1e-4
    untrained = merging.compute_logits(load_model(base, dtype="float32")[0], ROWS)
    assert merging.logit_difference(untrained, trained) > 1e-3


def test_another_kind_is_refuted(tmp_path: Path) -> None:
    save_base(tmp_path, "lora")
    plain = new_adapter(tmp_path, "lora")
    assert verdicts(plain, REQUESTS) == dict.fromkeys(REQUESTS, "refuted")
    for kind, other in (("pissa", "olora"), ("olora", "pissa")):
        assert verdicts(new_adapter(tmp_path, kind), {"lora_init": other}) == {
            "lora_init": "refuted"
        }
    some = new_adapter(tmp_path, "dora")
    for name, module in some.named_modules():
        if name.endswith("layers.0.self_attn.q_proj"):
            module.lora_magnitude_vector = torch.nn.ModuleDict()
    assert verdicts(some, {"lora_dora": "true"}) == {"lora_dora": "refuted"}


def test_a_resumed_adapter_shows_that_it_is_resumed(tmp_path: Path) -> None:
    save_base(tmp_path, "lora")
    assert verdicts(new_adapter(tmp_path, "lora"), {"lora_init": "pissa"}, step=3) == {
        "lora_init": "proven"
    }


def test_the_start_survives_bf16(tmp_path: Path) -> None:
    save_base(tmp_path, "lora")
    for kind in ("pissa", "olora"):
        model = new_adapter(tmp_path, kind).to(torch.bfloat16)
        assert verdicts(model, {"lora_init": kind}) == {"lora_init": "proven"}
