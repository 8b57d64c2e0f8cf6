"""Packing, dtypes, checkpointing, clipping, templates, resuming: findings on real objects."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the `train` dependencies are not installed")

from launch.worker.channel import EventWriter  # noqa: E402
from launch.worker.evidence import Evidence, batches, judge_all, precision, start  # noqa: E402  # noqa: E402
from launch.worker.evidence.collector import EvidenceCollector  # noqa: E402
from launch.worker.evidence.trainer_objects import unwrap  # noqa: E402
from launch.worker.expectations import UnmetExpectation  # noqa: E402
from launch.worker.patches import PatchContext  # noqa: E402
from launch.worker.trainer import TrainerProgram  # noqa: E402
from tests.trl_texts import read_texts  # noqa: E402
from tests.worker.evidence import models  # noqa: E402

ROWS = [{"input_ids": [1, 2, 3], "labels": [1, 2, 3]}, {"input_ids": [4, 5], "labels": [4, 5]}]


def collector_of(requested: dict[str, str]) -> EvidenceCollector:
    return EvidenceCollector(
        PatchContext(TrainerProgram(None, "m", ()), EventWriter(None, 0), requested=requested)
    )


def loader(collator: Any) -> Any:
    return torch.utils.data.DataLoader(ROWS, collate_fn=collator, batch_size=2)


def test_what_a_padded_batch_is() -> None:
    mask = torch.tensor([[1, 1, 1], [1, 1, 0]])
    seen = batches.describe_inputs({"input_ids": mask, "attention_mask": mask, "labels": None})
    assert seen == batches.ForwardInputs(frozenset({"input_ids", "attention_mask"}), 2, 6, 1, None)
    assert str(seen) == "2 rows of 3 tokens, 17% padding"
    assert batches.describe_inputs({"inputs_embeds": mask}) is None


def test_left_padding_is_no_document() -> None:
    """A prompt is padded at its start, where each position is 0."""
    ids = torch.tensor([[0, 0, 5, 6], [0, 7, 8, 9]])
    mask = (ids > 0).long()
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    inputs = {"input_ids": ids, "attention_mask": mask, "position_ids": positions}
    seen = batches.describe_inputs(inputs)
    assert seen is not None and (seen.rows, seen.documents, seen.padding) == (2, 2, 3)
    assert str(seen) == "2 rows of 4 tokens, 38% padding"


def test_the_evidence_is_of_the_pass_that_trains() -> None:
    """An earlier pass without gradients samples, or is a reference's."""
    model = torch.nn.Identity()
    model.forward = lambda *_, **__: None
    recorder = batches.PassRecorder()
    recorder.follow(model)
    with torch.no_grad():
        model(input_ids=torch.ones(1, 21), position_ids=torch.zeros(1, 21))
    model(input_ids=torch.ones(8, 37), attention_mask=torch.ones(8, 37))
    assert str(recorder.first_trained) == "8 rows of 37 tokens, 0% padding"
    assert recorder.first_trained is not None
    assert "position_ids" not in recorder.first_trained.names


def test_flattening_is_seen_in_the_collator_and_the_batch() -> None:
    from transformers import DataCollatorWithFlattening

    data = loader(DataCollatorWithFlattening())
    seen = batches.describe_inputs(next(iter(data)))
    finding = batches.check_packing(models.objects(models.model(), dataloader=data), seen).compare(
        "flatten"
    )
    assert (finding.value, finding.verdict) == ("flatten", "proven")
    assert finding.how == "collator DataCollatorWithFlattening"
    assert finding.note == "first micro batch: 1 row of 5 tokens with 2 documents"
    assert (
        batches.check_packing(models.objects(None, dataloader=data), seen).compare("none").verdict
        == "refuted"
    )


def test_a_flattening_whose_positions_never_reach_the_model_is_none() -> None:
    from transformers import DataCollatorWithFlattening

    this = models.objects(models.model(), dataloader=loader(DataCollatorWithFlattening()))
    seen = batches.ForwardInputs(frozenset({"input_ids"}), 1, 5, 0, None)
    finding = batches.check_packing(this, seen).compare("flatten")
    assert (finding.value, finding.verdict) == ("none", "refuted")


@pytest.mark.parametrize(
    ("columns", "value"), [(["input_ids", "seq_lengths"], "bins"), (["input_ids"], "wrapped")]
)
def test_trls_bins_know_where_documents_end(columns: list[str], value: str) -> None:
    data = SimpleNamespace(
        collate_fn=SimpleNamespace(padding_free=value == "bins"),
        dataset=SimpleNamespace(column_names=columns),
    )
    this = models.objects(
        models.model(), dataloader=data, trainer=SimpleNamespace(args=SimpleNamespace(packing=True))
    )
    finding = batches.check_packing(this, None).compare("bins")
    assert (finding.value, finding.verdict) == (value, "proven" if value == "bins" else "refuted")


def test_packing_that_can_not_be_seen_is_unproven() -> None:
    finding = batches.check_packing(models.objects(models.model()), None).compare("flatten")
    assert (finding.value, finding.verdict) == (None, "unproven")


@pytest.mark.parametrize(
    ("parameters", "mixed", "computed"),
    [
        ("bfloat16", "bf16", "bf16"),
        ("float32", "bf16", "bf16"),
        ("float32", "no", "fp32"),
        ("bfloat16", "no", "bf16"),
    ],
)
def test_types_of_the_products_the_parameters_and_the_optimizer(
    parameters: str, mixed: str, computed: str
) -> None:
    model = models.model().to(getattr(torch, parameters))
    optimizer = torch.optim.AdamW(model.parameters())
    this = models.objects(
        model, optimizer=optimizer, accelerator=SimpleNamespace(mixed_precision=mixed)
    )
    findings = {
        finding.what: finding
        for finding in judge_all(precision.check_dtypes(this), {"dtype": "bf16"})
    }
    short = {"bfloat16": "bf16", "float32": "fp32"}[parameters]
    assert {name: finding.value for name, finding in findings.items()} == {
        "dtype": computed,
        "parameter_dtype": short,
        "master_dtype": short,
    }
    assert findings["dtype"].verdict == ("proven" if computed == "bf16" else "refuted")


def test_an_adapter_in_another_type_does_not_count_as_the_models() -> None:
    from peft import LoraConfig, get_peft_model

    adapted = get_peft_model(
        models.model().to(torch.bfloat16), LoraConfig(r=2, target_modules=["q_proj", "v_proj"])
    )
    trained = [parameter for parameter in adapted.parameters() if parameter.requires_grad]
    this = models.objects(unwrap(adapted), optimizer=torch.optim.AdamW(trained))
    findings = {
        finding.what: finding
        for finding in judge_all(precision.check_dtypes(this), {"dtype": "bf16"})
    }
    assert (findings["dtype"].value, findings["dtype"].verdict) == ("bf16", "proven")
    assert findings["parameter_dtype"].value == "bf16,fp32"
    assert findings["master_dtype"].value == "fp32"


def test_packed_weights_say_nothing_about_the_products_whatever_they_are_stored_in() -> None:
    """Bitsandbytes keeps them in uint8, or with `bnb_4bit_quant_storage=bfloat16` in a
    floating-point dtype.
    """
    model = models.model().to(torch.bfloat16)
    weight = next(parameter for parameter in model.parameters() if parameter.dim() == 2)
    weight.quant_state = SimpleNamespace(quant_type="nf4", shape=torch.Size((10**6, 10**3)))
    found = precision.check_dtypes(models.objects(model))
    findings = {finding.what: finding for finding in judge_all(found, {"dtype": "bf16"})}
    assert (findings["dtype"].value, findings["dtype"].verdict) == ("bf16", "proven")
    assert findings["parameter_dtype"].value == "bf16"


@pytest.mark.parametrize("requested", ["true", "false"])
@pytest.mark.parametrize("on", [True, False])
def test_checkpointing_is_what_the_layers_do(on: bool, requested: str) -> None:
    model = models.model()
    if on:
        model.gradient_checkpointing_enable()
    finding = precision.check_checkpointing(models.objects(model)).compare(requested)
    assert finding.value == str(on).lower()
    assert finding.verdict == ("proven" if finding.value == requested else "refuted")


@pytest.mark.parametrize(
    ("seen", "requested", "value", "verdict"),
    [
        (1.0, "1.0", "1.0", "proven"),
        (None, "none", "none", "proven"),
        (None, "1.0", "none", "refuted"),
        (0.5, "1.0", "0.5", "refuted"),
        (1.0, "none", "1.0", "refuted"),
        (1.0, None, "1.0", None),
    ],
)
def test_the_clipping_in_force(
    seen: float | None, requested: str | None, value: str, verdict: str | None
) -> None:
    finding = precision.check_clipping(models.objects(models.model()), seen, requested)
    assert (finding.value, finding.verdict) == (value, verdict)


def test_under_deepspeed_the_engines_clipping_counts() -> None:
    """Upstream's `gradient_clipping: auto` becomes 1.0 whatever the trainer asks for."""
    this = models.objects(models.model(), engine=SimpleNamespace(gradient_clipping=lambda: 1.0))
    finding = precision.check_clipping(this, 0.3, "0.3")
    assert (finding.value, finding.how, finding.verdict) == (
        "1.0",
        "DeepSpeedEngine.gradient_clipping()",
        "refuted",
    )


def test_zero_without_an_engine_is_refuted() -> None:
    [finding] = precision.check_zero(models.objects(models.model()), "3")
    assert (finding.value, finding.compare("3").verdict) == (0, "refuted")
    assert precision.check_zero(models.objects(models.model()), None) == []


def test_a_template_goes_by_its_content(tmp_path: Path) -> None:
    text = "{% for m in messages %}{{ m.content }}{% endfor %}"
    file = tmp_path / "tulu.jinja"
    file.write_text(text + "\n", encoding="utf-8")
    program = TrainerProgram(None, "trl.scripts.sft", ("--chat_template_path", str(file)))

    def look(has: str | None, requested: str | None) -> Any:
        return start.check_template(SimpleNamespace(chat_template=has), program, requested).compare(
            requested
        )

    assert (look(text, "tulu").value, look(text, "tulu").verdict) == ("tulu", "proven")
    assert look("{{ bos_token }}" + text, "tulu").verdict == "proven"
    other = look("{{ messages }}", "tulu")
    assert other.verdict == "refuted"
    assert other.value.startswith("sha256:")
    assert look("{{ messages }}", None).verdict is None
    assert look(None, "tulu").verdict == "unproven"


def test_a_template_of_a_run_goes_by_its_files_name_and_trls_by_the_locks_digests(
    tmp_path: Path,
) -> None:
    staged = tmp_path / "qwen3.jinja"
    staged.write_text("{{ messages }}", encoding="utf-8")
    program = TrainerProgram(None, "trl.scripts.dpo", (), str(staged))

    def look(has: str) -> Any:
        return start.check_template(SimpleNamespace(chat_template=has), program, "qwen3").compare(
            "qwen3"
        )

    assert (look("{{ messages }}").value, look("{{ messages }}").verdict) == ("qwen3", "proven")
    assert look("{{ message }}").verdict == "refuted"
    for name, text in read_texts().items():
        equal = {other for other, its in read_texts().items() if its.strip() == text.strip()}
        read = text.replace("\r\n", "\n")  # as Python reads the file
        for has in (read, read.strip(), "{{ bos_token }}" + read):
            assert look(has).value in equal, name


def test_what_is_neither_found_nor_requested_is_left_out() -> None:
    found = [Evidence("packing", None, "nowhere"), Evidence("dtype", "bf16", "here")]
    assert [item.verdict for item in judge_all(found, {"packing": "none"})] == ["unproven", None]
    assert judge_all(found, {}) == found[1:]


def test_without_a_model_nothing_of_it_is_proven() -> None:
    requested = {"world_size": "1", "liger": "rms_norm", "dtype": "bf16"}
    found = collector_of(requested).collect(models.objects(None))
    assert {(item.what, item.verdict, item.how) for item in found} == {
        (what, "unproven", "no model was prepared") for what in ("liger", "dtype")
    }


@pytest.mark.parametrize(
    ("step", "checkpoint", "requested", "verdict"),
    [
        (40, "out/step_40", "40", "proven"),
        (0, None, "40", "refuted"),
        (40, None, "40", "refuted"),
        (0, None, "0", "proven"),
    ],
)
def test_a_resume_has_done_its_steps_and_loaded_something(
    step: int, checkpoint: str | None, requested: str, verdict: str
) -> None:
    finding = start.check_step(
        models.objects(models.model(), step=step, checkpoint=checkpoint), requested
    )
    assert (finding.value, finding.verdict) == (step, verdict)


def test_wrappers_are_taken_off() -> None:
    from peft import LoraConfig, get_peft_model

    model = models.model()
    wrapped = torch.compile(
        get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj"]))
    )
    assert unwrap(wrapped) is model
    assert unwrap(SimpleNamespace(module=model)) is model


def test_a_look_is_cheap() -> None:
    """Less than 50 ms for a model of as many modules as an 8B one."""

    model = models.model(num_hidden_layers=32).train()
    this = models.objects(model, optimizer=torch.optim.AdamW(model.parameters()))
    watch = collector_of({})
    watch.collect(this)  # imports
    times = []
    for _ in range(5):
        began = time.perf_counter()
        watch.collect(this)
        times.append(time.perf_counter() - began)
    assert min(times) < 0.05


@pytest.mark.parametrize(
    ("rows", "passes", "refuted"), [(3, 4, True), (7, 4, True), (8, 4, False), (3, 1, False)]
)
def test_an_epoch_smaller_than_a_step_is_refuted(rows: int, passes: int, refuted: bool) -> None:
    """A real accelerator and its data loader: batches of 2, so that 8 samples make a step of 4
    passes.
    """
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=passes)
    data = accelerator.prepare(torch.utils.data.DataLoader(list(range(rows)), batch_size=2))
    this = models.objects(None, dataloader=data, accelerator=accelerator)
    findings = batches.check_epoch(this, "none")
    assert [(finding.what, finding.requested, finding.verdict) for finding in findings] == (
        [("global_batch", str(2 * passes), "refuted")] if refuted else []
    )
    assert batches.check_epoch(this, "bins") == []


def test_a_streamed_epoch_has_no_length_to_judge() -> None:
    """accelerate's loader raises an error where its length is asked for."""
    from accelerate import Accelerator

    class Stream(torch.utils.data.IterableDataset):  # type: ignore[misc]
        def __iter__(self) -> Any:
            return iter(range(3))

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
    data = accelerator.prepare(torch.utils.data.DataLoader(Stream(), batch_size=2))
    with pytest.raises(TypeError):
        _ = data.total_dataset_length
    this = models.objects(None, dataloader=data, accelerator=accelerator)
    assert batches.check_epoch(this, "none") == []


def passes(*shapes: tuple[int, int]) -> list[batches.ForwardInputs]:
    return [
        batches.ForwardInputs(frozenset({"input_ids"}), rows, rows, 0, documents)
        for rows, documents in shapes
    ]


Shapes = list[tuple[int, int]]


@pytest.mark.parametrize(
    ("shapes", "kind", "ranks", "requested", "found"),
    [
        ([(2, 0), (2, 0)], "none", 2, "8 samples", ("8 samples", "proven")),
        ([(1, 3), (1, 5)], "flatten", 1, "8 samples", ("8 samples", "proven")),
        ([(4, 0), (4, 0)], "none", 1, "4 pairs", ("4 pairs", "proven")),
        ([(2, 0)], "none", 2, "8 samples", ("4 samples", "refuted")),
        ([(8, 0)], "none", 2, "8 samples", ("16 samples", "refuted")),
        ([], "none", 2, "8 samples", (None, "unproven")),
        ([(2, 7)], "bins", 1, "8 samples", (None, "unproven")),
    ],
)
def test_the_samples_of_a_step_are_counted(
    shapes: Shapes, kind: str, ranks: int, requested: str, found: tuple[str | None, str]
) -> None:
    finding = batches.count_samples(passes(*shapes), kind, ranks, requested, resumed=False)
    assert (finding.what, (finding.value, finding.verdict)) == ("global_batch", found)


@pytest.mark.parametrize(("rows", "verdict"), [(2, None), (4, "proven"), (8, "refuted")])
def test_a_resumed_run_may_begin_with_the_rest_of_an_epoch(rows: int, verdict: str | None) -> None:
    assert (
        batches.count_samples(passes((rows, 0)), "none", 2, "8 samples", resumed=True).verdict
        == verdict
    )


def train(accelerator: Any, model: Any, collector: EvidenceCollector, sizes: list[int]) -> None:
    """Train one step of micro batches of these sizes as a trainer with accelerate does, with a
    reference pass each.
    """
    accelerator.prepare(model)
    for size in sizes:
        rows = {"input_ids": torch.ones(size, 4, dtype=torch.long)}
        with torch.no_grad():
            model(**rows)
        model(**rows)
        collector.backward_begins(accelerator)
    collector.step_begins()


@pytest.mark.parametrize(("sizes", "ends"), [([2, 2], False), ([2, 1], True), ([4, 4], True)])
def test_a_step_of_other_samples_than_requested_ends_the_rank(sizes: list[int], ends: bool) -> None:
    from accelerate import Accelerator

    requested = {"global_batch": "4 samples"}
    collector = collector_of(requested)
    accelerator, model = Accelerator(cpu=True, gradient_accumulation_steps=2), models.model()
    accelerator.prepare(torch.utils.data.DataLoader(list(range(32)), batch_size=2))
    collector.model_prepared(model)
    if ends:
        with pytest.raises(UnmetExpectation):
            train(accelerator, model, collector, sizes)
    else:
        train(accelerator, model, collector, sizes)
        collector.step_ended()
