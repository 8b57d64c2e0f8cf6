"""What DONE guarantees, with real TRL runs of the demo: nothing learned, a failed last evaluation,
a replaced base.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.integration import warm
from tests.integration.conftest import launch_in, records
from tests.integration.tiny_stage import marked_template

pytestmark = pytest.mark.slow
SFT = ("stage=demo", "trainer=trl_sft", "report=false")


def write_chats(file: Path, texts: list[str]) -> str:
    turns = [
        [{"role": "user", "content": text}, {"role": "assistant", "content": "Yes."}]
        for text in texts
    ]
    file.write_text(
        "".join(json.dumps({"messages": messages}) + "\n" for messages in turns), encoding="utf-8"
    )
    return str(file)


def test_a_learning_rate_that_changes_nothing_stops_the_run_at_its_first_step(home: Path) -> None:
    done = launch_in(home, *SFT, "recipe.learning_rate=1e-30", "recipe.max_steps=8", "name=nothing")
    assert done.returncode == 3, done.stdout + done.stderr
    assert "of 21 tensors" in done.stdout and "[refuted_movable_weights]" in done.stdout
    assert not (home / "runs" / "demo" / "nothing" / "DONE").exists()


def read_items(run: Path) -> dict[str, dict[str, str]]:
    return {
        item["what"]: item
        for item in json.loads((run / "evidence.json").read_text(encoding="utf-8"))["items"]
    }


@pytest.mark.parametrize(
    ("words", "is_open"),
    [
        (("stage=demo", "trainer=trl_sft", "recipe.max_steps=1"), True),
        pytest.param(
            ("stage=demo_lora", "recipe.max_steps=1", "recipe.lr_scheduler=cosine"),
            True,
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            (
                "stage=demo_dpo",
                "trainer=trl_dpo",
                "recipe.max_steps=1",
                "recipe.lr_scheduler=constant",
            ),
            False,
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            ("stage=demo_dpo", "trainer=trl_dpo", "recipe.max_steps=2"),
            False,
            marks=pytest.mark.thorough,
        ),
    ],
)
def test_a_run_of_a_step_or_two_proves_what_it_can(
    home: Path, words: tuple[str, ...], is_open: bool
) -> None:
    name = f"short{len(list(home.glob('runs/*/short*')))}"
    done = launch_in(home, *words, "report=false", f"name={name}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "nothing can be learnt in " in done.stdout + done.stderr
    [run] = home.glob(f"runs/*/{name}")
    items = read_items(run)
    judged = {what: item["verdict"] for what, item in items.items() if item["verdict"]}
    unproven = {what for what, verdict in judged.items() if verdict != "proven"}
    assert unproven == ({"first_update", "saved_weights"} if is_open else set())
    if is_open:
        assert items["first_update"]["note"].startswith("1 step at a learning rate of 0: 0 of ")
        assert items["saved_weights"]["found"] == "the weights it began with"
    assert json.loads((run / "DONE").read_text(encoding="utf-8"))["model"]["files"]


@pytest.mark.thorough
def test_dpo_whose_first_updates_rounding_hides_trains(home: Path) -> None:
    """A warm-up from 1.7e-8, under which the norms of 1.0 do not move in fp32."""
    words = (
        "recipe.learning_rate=5e-7",
        "recipe.max_steps=40",
        "recipe.warmup_ratio=0.75",
        "recipe.weight_decay=0.1",
    )
    words += ("recipe.global_batch_size=8", "recipe.per_device_batch_size=8")
    done = launch_in(
        home, "stage=demo_dpo", "trainer=trl_dpo", *words, "report=false", "name=rising"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    items = read_items(home / "runs" / "demo_dpo" / "rising")
    assert {items[what]["verdict"] for what in ("first_update", "gradients", "saved_weights")} == {
        "proven"
    }


def write_pairs(file: Path, chosen: str, rejected: list[str]) -> str:
    """Write one preference pair for each rejected answer."""
    rows = []
    for number, answer in enumerate(rejected):
        start = [{"role": "user", "content": f"Is {number} a number?"}]
        sides = (("chosen", chosen), ("rejected", answer))
        rows.append(
            {side: [*start, {"role": "assistant", "content": text}] for side, text in sides}
        )
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(file)


@pytest.mark.thorough
def test_a_reward_model_is_proven_in_the_folder_that_its_script_adds(
    home: Path, open_instruct: Path
) -> None:
    file = home / "judged.jsonl"
    write_pairs(file, "Yes.", ["No."] * 16)
    [model] = (home / "runs" / ".cache" / "demo").glob("model-*")
    words = (
        f"model.path={model}",
        f"data.mix=[{{name: {file}}}]",
        "device=cpu",
        "recipe.max_seq_length=256",
    )
    done = launch_in(
        home, "stage=rm", *words, "recipe.global_batch_size=8", "report=false", "name=judge"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    run = home / "runs" / "rm" / "judge"
    items = read_items(run)
    assert {
        items[what]["verdict"]
        for what in ("first_update", "gradients", "last_update", "saved_weights")
    } == {"proven"}
    assert [*run.glob("model/reward_modeling__*/config.json")]
    steps = records(run / "metrics.jsonl")
    assert [step["step"] for step in steps] == [1, 2]
    reported = {"loss", "lr", "epoch", "episode"} | {
        f"rewards/{name}" for name in ("accuracy", "chosen", "rejected", "margin")
    }
    assert all(reported <= step.keys() and step["loss"] > 0 for step in steps)
    events = records(run / "events.jsonl")
    phases = [event["phase"] for event in events if event["kind"] == "phase"]
    assert phases == ["import", "tokenize", "load", "training", "save"]


LONG = "word " * 700  # more than recipe.max_seq_length


@pytest.mark.parametrize(
    ("rejected", "overrides", "found"),
    [
        pytest.param(
            None,
            ("flags.assistant_only_loss=false",),
            "loss_on_user",
            marks=pytest.mark.thorough,
        ),
        ([f"{LONG} no"] * 5 + ["No."] * 3, (), "equal_pairs"),  # after truncation
        pytest.param([f"{LONG} no"] * 3 + ["No."] * 5, (), None, marks=pytest.mark.thorough),
    ],
)
def test_data_that_are_mostly_wrong_stop_a_run_before_its_model_is_loaded(
    home: Path, rejected: list[str] | None, overrides: tuple[str, ...], found: str | None
) -> None:
    chosen = f"{LONG} yes" if rejected and LONG in rejected[0] else "Yes."
    file = home / "data" / f"{len(list(home.glob('data/*')))}.jsonl"
    file.parent.mkdir(exist_ok=True)
    if rejected is None:
        name, line = write_chats(file, [f"Is {number} a number?" for number in range(8)]), SFT
    else:
        [model] = (home / "runs" / ".cache" / "demo").glob("model-*")
        name = write_pairs(file, chosen, rejected)
        line = (
            "stage=demo_dpo",
            "trainer=trl_dpo",
            f"model.path={model}",
            "recipe.chat_template=null",
            "report=false",
        )
    data = (
        "data.build=null",
        f"data.mix=[{{name: {name}}}]",
        "recipe.global_batch_size=8",
        "recipe.max_steps=2",
    )
    data += ("recipe.per_device_batch_size=8",)
    ran = launch_in(home, *line, *data, *overrides, f"name={file.stem}")
    folder = home / "runs" / ("demo_dpo" if rejected else "demo") / file.stem
    if found is None:
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return
    assert ran.returncode == 2 and f"allow=[{found}] trains anyway" in ran.stderr, (
        ran.stdout + ran.stderr
    )
    assert not (folder / "events.jsonl").exists()
    if found == "loss_on_user":
        trained = launch_in(home, *line, *data, *overrides, f"name={file.stem}", f"allow=[{found}]")
        assert trained.returncode == 0 and (folder / "DONE").is_file(), (
            trained.stdout + trained.stderr
        )


CALL = {"type": "function", "function": {"name": "count", "arguments": {"to": 3}}}
USER, YES = {"role": "user", "content": "Is 3 a number?"}, {"role": "assistant", "content": "Yes."}
CALLS = [
    USER,
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "content": "3"},
    YES,
]
DROPPED = (
    "{% for m in messages %}<|{{ m.role }}|>{% if m.role == 'user' %}{{ m.content }}{% endif %}"
    "{% if m.role == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
TOO_LONG = [{**USER, "content": "word " * 700}, YES]  # cut off before the answer


@pytest.mark.parametrize(
    ("chat_template", "messages", "trainer", "found"),
    [
        (marked_template(), CALLS, "trl_sft", "calls_dropped"),
        pytest.param(None, TOO_LONG, "finetune", "no_loss_tokens", marks=pytest.mark.thorough),
        pytest.param(
            DROPPED, [USER, YES], "finetune", "answer_changed", marks=pytest.mark.thorough
        ),
    ],
)
def test_a_template_or_rows_that_train_something_else_stop_a_run(
    home: Path, chat_template: str | None, messages: list[object], trainer: str, found: str
) -> None:
    """test_preview.py has what is found in other templates and rows."""
    number = len(list(home.glob("rows*")))
    rows, file = home / f"rows{number}.jsonl", home / f"template{number}.jinja"
    rows.write_text(
        "".join(json.dumps({"messages": messages, "id": row}) + "\n" for row in range(8)),
        encoding="utf-8",
    )
    data = (
        "data.build=null",
        f"data.mix=[{{name: {rows}}}]",
        "recipe.global_batch_size=8",
        "recipe.max_steps=2",
    )
    data += ("recipe.per_device_batch_size=8",)
    line = ["stage=demo", f"trainer={trainer}", "report=false", *data, f"name={file.stem}"]
    if chat_template is not None:
        file.write_text(chat_template, encoding="utf-8")
        line.append(f"recipe.chat_template={file}")
    ran = launch_in(home, *line)
    assert ran.returncode == 2 and f"allow=[{found}] trains anyway" in ran.stderr, (
        ran.stdout + ran.stderr
    )
    assert not (home / "runs" / "demo" / file.stem / "events.jsonl").exists()


@pytest.mark.thorough
def test_a_last_evaluation_that_fails_leaves_the_finished_model(home: Path) -> None:
    """Validation rows that are all too long end TRL with a KeyError after the last step."""
    train = write_chats(home / "train.jsonl", [f"Is {number} a number?" for number in range(64)])
    held_out = write_chats(home / "long.jsonl", ["word " * 600, "words " * 600])
    data = ("data.build=null", f"data.mix=[{{name: {train}}}]", f"data.validation={held_out}")
    done = launch_in(home, *SFT, *data, "recipe.max_steps=2", "name=unmeasured")
    assert done.returncode == 0, done.stdout + done.stderr
    outcome = json.loads(
        (home / "runs" / "demo" / "unmeasured" / "DONE").read_text(encoding="utf-8")
    )
    assert (
        "eval_loss" in outcome["afterwards"]
        and "did not evaluate its last step, 2" in outcome["afterwards"]
    )
    assert "model.safetensors" in outcome["model"]["files"]


def test_an_adapter_goes_only_with_its_own_base(home: Path) -> None:
    from safetensors.torch import load_file, save_file

    [demo] = (home / "runs" / ".cache" / "demo").glob("model-*")
    base = home / "base"
    shutil.copytree(demo, base)
    lora = ("recipe.lora.rank=4", "recipe.max_steps=2", f"model.path={base}", "name=adapter")
    done = launch_in(home, *SFT, *lora)
    assert done.returncode == 0, done.stdout + done.stderr
    weights = load_file(base / "model.safetensors")
    name = next(name for name in weights if "q_proj" in name)
    save_file({**weights, name: weights[name] + 0.01}, base / "model.safetensors", {"format": "pt"})
    for verb in (("merge", "demo/adapter"), ("generate", "demo/adapter", "hi")):
        refused = launch_in(home, *verb)
        assert refused.returncode == 2 and "[base_changed]" in refused.stderr, (
            refused.stdout + refused.stderr
        )


@pytest.mark.thorough
def test_an_adapter_goes_only_with_the_commit_of_its_hub_base(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A branch that moves on the hub: the base is loaded at the commit that was trained on, or not
    at all.
    """
    from safetensors.torch import load_file, save_file

    repository = home / "hub" / "models--lab--tiny"
    monkeypatch.setenv("HF_HUB_CACHE", str(home / "hub"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    first, second = (repository / "snapshots" / (digit * 40) for digit in "ab")
    [demo] = (home / "runs" / ".cache" / "demo").glob("model-*")
    for snapshot in (first, second):
        shutil.copytree(demo, snapshot)
    weights = load_file(demo / "model.safetensors")
    save_file(
        {name: weight + 1 for name, weight in weights.items()},
        second / "model.safetensors",
        {"format": "pt"},
    )
    main = repository / "refs" / "main"
    main.parent.mkdir()
    main.write_text(first.name)
    # huggingface_hub reads its cache's place as it is imported
    python = f"python={warm.python_with_cold_ranks()}"
    lora = ("recipe.lora.rank=4", "recipe.max_steps=2", "model.path=lab/tiny", "name=hub", python)
    done = launch_in(home, *SFT, *lora)
    assert done.returncode == 0, done.stdout + done.stderr
    adapter = json.loads(
        (home / "runs" / "demo" / "hub" / "model" / "adapter_config.json").read_text()
    )
    assert (adapter["base_model_name_or_path"], adapter["revision"]) == ("lab/tiny", first.name)
    main.write_text(second.name)
    merged = launch_in(home, "merge", "demo/hub")
    assert merged.returncode == 0, merged.stdout + merged.stderr
    name = next(name for name in weights if "norm" in name)
    saved = load_file(home / "runs" / "demo" / "hub" / "merged" / "model.safetensors")
    assert saved[name].sub(weights[name]).abs().max() < 0.5
    shutil.rmtree(home / "runs" / "demo" / "hub" / "merged")
    shutil.rmtree(first)
    refused = launch_in(home, "merge", "demo/hub")
    assert refused.returncode == 2 and "into lab/tiny failed" in refused.stderr, (
        refused.stdout + refused.stderr
    )
