"""`launch new`: a stage file that plans, from what the data is."""

from __future__ import annotations

import re
import shutil
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from launch.api.plan_facts import plan_facts
from launch.commands.drafts import new
from launch.config.json_schema import stage_schema
from launch.errors import UserError
from launch.worker.json_codec import to_json
from tests.conftest import composed, fixed_machine, planned
from tests.data.files import CHAT, PAIR, chat, write_csv, write_lines
from tests.messages import values_of

STAGE_SCHEMA = cache(stage_schema)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's folder of configurations; there is no checkout of open-instruct.

    The JSON Schema that each draft writes beside it, which is always the same, is made once.
    """
    monkeypatch.setattr("launch.commands.drafts.stage_schema", STAGE_SCHEMA)
    monkeypatch.setenv("LAUNCH_CONFIG_DIR", str(tmp_path / "conf"))
    monkeypatch.setattr("launch.commands.drafts.find_checkout", lambda *arguments: None)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_chats_make_an_sft_stage_that_plans(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_lines(
        folder / "chats.jsonl", [CHAT, *(chat(f"{number}?", "Yes") for number in range(99))]
    )
    assert new(["mine", "--data", "chats.jsonl"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("chats.jsonl: 100 rows read: chat (messages)")
    assert printed[-1] == "next: launch preview stage=mine"
    plan = planned("stage=mine", "gpus=1", machine=fixed_machine(digest=str))
    assert (plan.trainer, plan.batch.global_, plan.config.recipe.epochs) == ("trl_sft", 4, 2)
    [entry] = plan.inputs.mixture
    assert str(folder / "chats.jsonl") in plan.config.data.mix[0].name
    assert entry.share == 1.0
    text = (folder / "conf" / "stage" / "mine.yaml").read_text(encoding="utf-8")
    assert (
        "# samples in an optimizer step, 23 steps an epoch; the stage sft has 128, too many" in text
    )
    assert "  # checkpoint_steps: 200 # " in text  # the value that is in effect without the line
    assert (
        "validation: 0.1 # of the rows, never trained on" in text
        and plan.config.data.validation == 0.1
    )
    assert "no open-instruct checkout" in text


def test_samples_are_no_longer_than_the_context_of_the_model(folder: Path) -> None:
    write_lines(folder / "chats.jsonl", [CHAT] * 100)
    for name, context in (("short", 512), ("long", 131072)):
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(f'{{"max_position_embeddings": {context}}}')
        assert new([f"of_{name}", "--data", "chats.jsonl", "--model", f"./{name}"]) == 0
        assert composed(f"stage=of_{name}", "gpus=1").config.recipe.max_seq_length == min(
            4096, context
        )


def test_pairs_make_a_dpo_stage_with_the_named_model(folder: Path) -> None:
    write_lines(folder / "pairs.jsonl", [PAIR] * 3000)
    assert new(["pairs", "--data", "pairs.jsonl", "--model", "qwen2_5_7b"]) == 0
    plan = planned("stage=pairs", "gpus=8", machine=fixed_machine(digest=str))
    assert (plan.trainer, plan.batch.global_) == ("trl_dpo", 128)
    assert "Qwen" in plan.inputs.model.reference or plan.config.model.base


def test_pairs_of_a_table_with_other_names_make_a_dpo_stage(folder: Path) -> None:
    write_csv(
        folder / "pairs.csv",
        [["Instruction", "Input", "Chosen", "Rejected"], *[["Hi", "", "Hello", "No"]] * 40],
    )
    assert new(["pairs", "--data", "pairs.csv", "--model", "demo"]) == 0
    assert planned("stage=pairs", "gpus=0", machine=fixed_machine(digest=str)).trainer == "trl_dpo"


@pytest.mark.parametrize(
    ("row", "options"),
    [
        ({"label": True}, ()),
        ({"kto_tag": 1}, ()),
        ({"feedback": True}, ("--model", "demo")),
        ({"thumb": "good"}, ("--columns", "label=thumb:good/bad")),
    ],
)
def test_labelled_answers_make_a_kto_stage_whose_labels_are_balanced(
    folder: Path, row: dict[str, Any], options: tuple[str, ...]
) -> None:
    [(column, good)] = row.items()
    bad = "bad" if good == "good" else False
    rows = [
        {"prompt": f"{number}?", "completion": "Yes", column: good if number % 4 else bad}
        for number in range(160)
    ]
    write_lines(folder / "rows.jsonl", rows)
    assert new(["thumbs", "--data", "rows.jsonl", *options]) == 0
    plan = planned("stage=thumbs", "gpus=1", machine=fixed_machine(folder, digest=str))
    assert plan.trainer == "trl_kto"
    assert plan.flags["undesirable_weight"].value == 2.6
    assert "label_weights" not in {warning.id for warning in plan.warnings}
    text = (folder / "conf" / "stage" / "thumbs.yaml").read_text(encoding="utf-8")
    assert "120 good answers, 40 bad" in text


@pytest.mark.parametrize(("rows", "every"), [(2, 2), (8, 2), (36, 6), (200, 2)])
@pytest.mark.parametrize("model", [(), ("--model", "demo")])
def test_few_labelled_answers_make_a_stage_that_plans(
    folder: Path, rows: int, every: int, model: tuple[str, ...]
) -> None:
    labelled = [
        {"prompt": f"{number}?", "completion": "Yes", "label": number % every > 0}
        for number in range(rows)
    ]
    write_lines(folder / "rows.jsonl", labelled)
    assert new(["thumbs", "--data", "rows.jsonl", *model]) == 0
    gpus = "gpus=0" if model else "gpus=1"
    plan = planned("stage=thumbs", gpus, machine=fixed_machine(folder, digest=str))
    assert plan.batch.per_device >= min(rows, 4)


def test_pairs_make_a_reward_model_if_that_is_the_kind(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_lines(folder / "pairs.jsonl", [PAIR] * 3000)
    assert new(["judge", "--data", "pairs.jsonl", "--kind", "rm"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "next: launch preview stage=judge"
    plan = planned("stage=judge", "gpus=8", machine=fixed_machine(digest=str))
    assert (plan.trainer, plan.batch.global_, plan.config.recipe.epochs) == (
        "reward_modeling",
        128,
        1,
    )
    assert plan.config.stage.description == "a reward model on pairs.jsonl"
    assert new(["small", "--data", "pairs.jsonl", "--kind", "rm", "--model", "demo"]) == 0
    assert (
        planned("stage=small", "gpus=0", machine=fixed_machine(digest=str)).inputs.model.build
        == "demo"
    )


@pytest.mark.parametrize(
    ("kind", "id"),
    [("rm", "data_columns"), ("dpo", "data_columns"), ("grpo", "bad_value"), ("", "bad_value")],
)
def test_a_kind_that_the_rows_cannot_be_is_refused(folder: Path, kind: str, id: str) -> None:
    write_lines(folder / "chats.jsonl", [CHAT] * 3)
    with pytest.raises(UserError) as refused:
        new(["mine", "--data", "chats.jsonl", "--kind", kind])
    assert refused.value.problems[0].id == id
    assert not (folder / "conf").exists()


def test_with_a_checkout_the_stage_keeps_its_trainer(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launch.commands.drafts.find_checkout", lambda *arguments: object())
    write_lines(folder / "chats.jsonl", [CHAT])
    assert new(["mine", "--data", "chats.jsonl", "--model", "allenai/x"]) == 0
    text = (folder / "conf" / "stage" / "mine.yaml").read_text(encoding="utf-8")
    stage = yaml.safe_load(text)
    assert stage["defaults"] == ["sft", "_self_"]
    assert stage["model"] == {"path": "allenai/x"}
    assert stage["recipe"]["global_batch_size"] == 1


@pytest.mark.parametrize(("model", "base"), [([], "sft"), (["--model", "demo"], "demo")])
def test_the_keys_in_comments_have_the_shipped_values(
    folder: Path, model: list[str], base: str
) -> None:
    write_lines(folder / "chats.jsonl", [CHAT] * 60)
    assert new(["mine", "--data", "chats.jsonl", *model]) == 0
    text = (folder / "conf" / "stage" / "mine.yaml").read_text(encoding="utf-8")
    recipe = composed(f"stage={base}").config.recipe
    for key in ("learning_rate", "max_seq_length"):
        [value] = re.findall(rf"^  # {key}: (\S+)", text, re.MULTILINE)
        assert float(value) == getattr(recipe, key)


@pytest.mark.parametrize(
    ("rows", "epochs", "steps"), [(16, 37, None), (60, 22, None), (20_000, 2, 300)]
)
def test_a_small_data_set_has_the_epochs_that_the_demos_model_needs(
    folder: Path, rows: int, epochs: int, steps: int | None
) -> None:
    write_lines(folder / "chats.jsonl", [CHAT] * rows)
    assert new(["mine", "--data", "chats.jsonl", "--model", "demo"]) == 0
    recipe = planned("stage=mine", "gpus=0", machine=fixed_machine(digest=str)).config.recipe
    assert (recipe.epochs, recipe.max_steps) == (epochs, steps)


def test_columns_in_another_language_are_named(folder: Path) -> None:
    write_csv(folder / "fragen.csv", [["frage", "antwort"], ["Was?", "Das."], ["Wer?", "Ich."]])
    with pytest.raises(UserError, match=r"--columns prompt=frage,completion=antwort \["):
        new(["mine", "--data", "fragen.csv"])
    assert (
        new(["mine", "--data", "fragen.csv", "--columns", "prompt=frage,completion=antwort"]) == 0
    )
    plan = planned("stage=mine", "gpus=0", machine=fixed_machine(digest=str))
    assert plan.config.data.columns == {"prompt": "frage", "completion": "antwort"}


def test_a_file_that_exists_is_never_overwritten(folder: Path) -> None:
    write_lines(folder / "chats.jsonl", [CHAT])
    path = folder / "conf" / "stage" / "mine.yaml"
    path.parent.mkdir(parents=True)
    path.write_text("mine", encoding="utf-8")
    with pytest.raises(UserError, match=r"mine\.yaml.*\[stage_exists\]"):
        new(["mine", "--data", "chats.jsonl"])
    with pytest.raises(UserError, match=r"\bsft\b.*\[stage_exists\]"):
        new(["sft", "--data", "chats.jsonl"])
    assert path.read_text(encoding="utf-8") == "mine"


@pytest.mark.parametrize("form", ["prompt_completion", "text"])
def test_the_format_is_named_where_the_columns_would_be_read_in_another_way(
    folder: Path, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    """A list of texts in every row is refused, unless the format of the rows is set."""
    rows = [{"prompt": f"Name {n}.", "completion": f'["a{n}", "b"]', "text": "x"} for n in range(2)]
    write_lines(folder / "lists.jsonl", rows)
    line = ["mine", "--data", "lists.jsonl", "--model", "demo", "--print"]
    with pytest.raises(UserError) as refused:
        new(line)
    assert "--format prompt_completion" in str(refused.value.problems[0].cure)
    assert new([*line, "--format", form]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["data"]["format"] == form


def test_print_writes_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_lines(folder / "chats.jsonl", [CHAT])
    assert new(["mine", "--data", "chats.jsonl", "--model", "demo", "--print"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["defaults"][0] == "demo"
    assert not (folder / "conf").exists()


@pytest.mark.parametrize(
    ("argv", "id"),
    [
        (["mine"], "usage"),
        (["a/b", "--data", "chats.jsonl"], "usage"),
        (["mine", "--data", "missing.jsonl"], "data_no_files"),
        (["mine", "--data", "empty.jsonl"], "data_empty"),
        (["mine", "--data", "chats.jsonl", "--model", "qwen2_5_8b"], "unknown_model"),
        (["mine", "--data", "chats.jsonl", "--columns", "frage"], "unreadable_columns"),
        (["mine", "--data", "latin\udce4.jsonl"], "not_utf8"),
        (["mine", "--data", "chats.jsonl", "--text", "--format", "chat"], "usage"),
        (["mine", "--data", "chats.jsonl", "--format", "text", "--kind", "dpo"], "usage"),
        (["mine", "--data", "chats.jsonl", "--format", "alpaca"], "data_columns"),
        (["mine", "--data", "chats.jsonl", "--format", "chats"], "bad_value"),
    ],
)
def test_what_can_not_work_writes_nothing(folder: Path, argv: list[str], id: str) -> None:
    write_lines(folder / "chats.jsonl", [CHAT])
    (folder / "empty.jsonl").touch()
    write_lines(folder / "latin\udce4.jsonl", [CHAT])
    with pytest.raises(UserError) as refused:
        new(argv)
    assert refused.value.problems[0].id == id
    assert not (folder / "conf").exists()


@pytest.mark.parametrize(
    "name",
    [
        "a\npython: .\\evil\n# b.jsonl",
        "a\r\npython: x\rb.jsonl",
        "a\u2028python: x\u2029b.jsonl",
        "a\x85python: x\x0bb\x0c.jsonl",
        "a # b: c.jsonl",
        "- a: [b, {c.jsonl",
        "'a' \"b\" \\ c.jsonl",
        "${oc.env:HOME}.jsonl",
        "a\\${python}\\\\${b}.jsonl",
        "!!python\ttag &a *a %b @c `d`.jsonl",
        "# @package python\n.jsonl",
        "\U0001f600 \x1b[31mé.jsonl",
    ],
)
def test_a_name_is_data_in_the_drafted_file(name: str, folder: Path) -> None:
    """A data file's name was written into a comment as it is: a line break in it began a key of the
    stage file. A path with one is refused by whatever reads the stage.
    """
    write_lines(folder / name, [CHAT, *(chat(f"{number}?", "Yes") for number in range(99))])
    model = folder / f"model {name}"
    model.mkdir()
    assert new(["mine", "--data", name, "--model", str(model)]) == 0
    text = (folder / "conf" / "stage" / "mine.yaml").read_text(encoding="utf-8")
    drafted = yaml.safe_load(text)
    assert set(drafted) == {"defaults", "stage", "device", "model", "recipe", "data"}
    if not name.isprintable():
        with pytest.raises(UserError) as refused:
            composed("stage=mine", "gpus=1")
        assert {problem.id for problem in refused.value.problems} == {"bad_path"}
        return
    config = composed("stage=mine", "gpus=1").config
    assert config.data.mix[0].name == str(folder / name)
    assert config.model.path == str(model)
    assert config.python == composed("stage=sft", "gpus=1").config.python
    assert config.stage.description.endswith(f"on {name}")


def test_a_data_set_of_the_hub_is_drafted_unread(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert new(["hub", "--data", "allenai/tulu-3-sft-mixture", "--print"]) == 0
    assert 'name: "allenai/tulu-3-sft-mixture"' in capsys.readouterr().out
    assert new(["prefs", "--data", "allenai/some-preferences", "--kind", "dpo"]) == 0
    printed = capsys.readouterr().out
    assert (
        "not read, the trainer reads it from the hub; it is taken for data of DPO (--kind)"
        in printed
    )
    plan = planned("stage=prefs", "gpus=8", machine=fixed_machine(digest=str))
    [entry] = plan.inputs.mixture
    assert (plan.trainer, entry.source.reference, entry.source.local) == (
        "trl_dpo",
        "allenai/some-preferences",
        None,
    )
    (folder / "chats").mkdir()
    for misspelt in ("chats/mine", "nowhere/chats.jsonl"):
        with pytest.raises(UserError) as refusal:
            new(["x", "--data", misspelt])
        assert refusal.value.problems[0].id == "data_no_files"


def test_a_stage_fits_the_machine_and_says_why(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_lines(folder / "chats.jsonl", [CHAT] * 40)

    def drafted(name: str, *more: str) -> str:
        assert new([name, "--data", "chats.jsonl", *more]) == 0
        return (folder / "conf" / "stage" / f"{name}.yaml").read_text(encoding="utf-8")

    assert (
        "\ndevice: cpu # there is no GPU here; gpus=N on the command line trains on GPUs"
        in drafted("a", "--model", "qwen2_5_7b")
    )
    assert planned("stage=a", machine=fixed_machine(digest=str)).parallel.width.device == "cpu"
    # the comment is true, and the plan names both
    on_gpus = planned("stage=a", "gpus=1", machine=fixed_machine(digest=str))
    [ranks] = [text for name, text in plan_facts(on_gpus, None, None) if name == "ranks"]
    assert ranks.startswith("1 GPU (gpus=1 takes precedence over device=cpu of ")
    assert "\ndevice:" not in drafted("b", "--model", "demo")  # its base sets it
    monkeypatch.setattr(
        "launch.commands.drafts.find_gpus", lambda environ: SimpleNamespace(seen=["H100"])
    )
    assert "\ndevice:" not in drafted("c", "--model", "qwen2_5_7b")
    run = folder / "runs" / "sft" / "mine"
    run.mkdir(parents=True)
    (run / "DONE").write_text("{}")
    (run / "plan.json").write_text("{}")
    for name, device in {"d": "device: cpu", "e": "gpus: 0", "f": "gpus: 8"}.items():
        (run / "config.yaml").write_text(f"{device}\nstage: {{kind: sft}}\n")
        for number, option in enumerate(("--model", "--after")):
            reason = "\ndevice: cpu # its base was trained on the CPU; gpus=N on the command line"
            assert (reason in drafted(f"{name}{number}", option, "sft/mine")) is (name != "f")


def test_a_file_with_bad_rows_is_drafted_with_their_number(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty, good = ({"prompt": "Hi", "completion": answer} for answer in ("", "Yes"))
    write_lines(folder / "chats.jsonl", [*[empty] * 5, *[good] * 40])
    assert new(["mine", "--data", "chats.jsonl"]) == 0
    printed = capsys.readouterr().out
    text = (folder / "conf" / "stage" / "mine.yaml").read_text(encoding="utf-8")
    machine = fixed_machine(folder, digest=lambda path: "aaaa")
    with pytest.raises(UserError, match=r"\b5\b.*\b45\b.*\[bad_rows\]"):
        planned("stage=mine", "gpus=0", machine=machine)
    plan = planned("stage=mine", "gpus=0", "data.bad_rows=skip", machine=machine)
    assert plan.data[0] is not None and plan.data[0].read == 40
    [counted] = to_json(plan)["data"][0]["notes"]
    assert (
        {"5", "45"} <= set(values_of(counted))
        and f"{folder / 'chats.jsonl'}:1" in counted
        and counted in printed
    )
    assert (
        counted.replace(" ", "") in text.replace("\n# ", "").replace(" ", "")
        and "  # bad_rows: skip" in text
    )


TINY = (
    '{"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 128, "intermediate_size": '
    '512, "vocab_size": 2048, '
)
TINY += '"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512}'


def write_run(
    folder: Path, *, stage: str = "demo", model: str = "{build: demo}", config: str | None = TINY
) -> Path:
    """A run's folder below runs/, finished where it has a model's `config`."""
    run = folder / "runs" / stage / "cpu1-0badcafe"
    run.mkdir(parents=True)
    (run / "plan.json").write_text("{}")
    (run / "config.yaml").write_text(f"device: cpu\nstage: {{kind: sft}}\nmodel: {model}\n")
    if config is not None:
        (run / "DONE").write_text("{}")
        (run / "model").mkdir()
        (run / "model" / "config.json").write_text(config)
    return run


@pytest.mark.parametrize(
    "given",
    [
        ["--after", "demo"],
        ["--after", "cpu1-0bad"],
        ["--model", "cpu1-0badcafe"],
        ["--model", "cpu1-0bad"],
        ["--model", "demo/cpu1-0badcafe"],
        ["--model", "runs/demo/cpu1-0badcafe"],
        ["--model", "{folder}/runs/demo/cpu1-0badcafe"],
        ["--model", "runs/demo/cpu1-0badcafe/model"],
        ["--model", "demo/cpu1-0badcafe/model"],
        ["--model", "copied"],
    ],
)
def test_a_model_takes_the_recipe_that_suits_it_however_it_is_named(
    folder: Path, given: list[str]
) -> None:
    run = write_run(folder)
    (folder / "conf").mkdir()  # a stage is composed
    (folder / "copied").mkdir()
    (folder / "copied" / "config.json").write_text(TINY)
    write_lines(folder / "pairs.jsonl", [PAIR] * 60)
    option, name = given
    assert new(["polite", "--data", "pairs.jsonl", option, name.format(folder=folder)]) == 0
    drafted = yaml.safe_load(
        (folder / "conf" / "stage" / "polite.yaml").read_text(encoding="utf-8")
    )
    assert drafted["defaults"][0] == "demo_dpo"
    recipe = composed("stage=polite").config.recipe
    shipped = composed("stage=demo_dpo").config.recipe
    # of a stage its own limit, of a model its context
    context = 1024 if given == ["--after", "demo"] else 512
    assert (recipe.learning_rate, recipe.max_seq_length) == (shipped.learning_rate, context)
    if name != "copied" and given != ["--after", "demo"]:
        assert Path(drafted["model"]["path"]).resolve() in (run, run / "model")


@pytest.mark.parametrize(
    ("others", "id"), [([], None), (["cpu1-1badcafe"], None), (["cpu2-0badcafe"], "ambiguous_run")]
)
def test_the_name_of_a_stage_stands_for_its_finished_run(
    folder: Path, others: list[str], id: str | None
) -> None:
    """An unfinished run has no model, and of two finished ones neither is chosen."""
    run = write_run(folder, stage="mine")
    for name in others:
        other = run.with_name(name)
        shutil.copytree(run, other)
        if id is None:
            (other / "DONE").unlink()
    write_lines(folder / "pairs.jsonl", [PAIR] * 60)
    line = ["polite", "--data", "pairs.jsonl", "--model", "mine"]
    if id is not None:
        with pytest.raises(UserError) as refused:
            new(line)
        assert refused.value.problems[0].id == id
        return
    assert new(line) == 0
    drafted = yaml.safe_load(
        (folder / "conf" / "stage" / "polite.yaml").read_text(encoding="utf-8")
    )
    assert Path(drafted["model"]["path"]) == run


@pytest.mark.parametrize("has_template", [True, False])
def test_a_model_of_another_tool_gets_a_chat_template_where_it_has_none(
    folder: Path, has_template: bool
) -> None:
    model = folder / "other"
    model.mkdir()
    (model / "config.json").write_text(TINY)
    (model / "tokenizer_config.json").write_text(
        '{"chat_template": "{{ messages }}"}' if has_template else "{}"
    )
    write_lines(folder / "pairs.jsonl", [PAIR] * 60)
    assert new(["polite", "--data", "pairs.jsonl", "--model", "other"]) == 0
    drafted = yaml.safe_load(
        (folder / "conf" / "stage" / "polite.yaml").read_text(encoding="utf-8")
    )
    assert drafted["recipe"].get("chat_template") == (None if has_template else "tulu")


@pytest.mark.parametrize(
    ("model", "config", "base", "limit"),
    [
        ("{build: demo}", None, "demo_dpo", 1024),  # a run that is not finished
        (
            "{build: demo, path: /models/8b}",
            TINY.replace('"hidden_size": 128', '"hidden_size": 4096'),
            "dpo",
            512,
        ),
        ("{build: null, path: runs/demo/other}", TINY, "demo_dpo", 512),
        (
            "{build: null, base: meta-llama/x}",
            TINY.replace(": 512}", ": 131072}").replace(": 2,", ": 32,", 1),
            "dpo",
            2048,
        ),
    ],
)
def test_the_model_of_a_run_decides_the_recipe_and_the_longest_sample(
    folder: Path, model: str, config: str | None, base: str, limit: int
) -> None:
    run = write_run(folder, model=model, config=config)
    write_lines(folder / "pairs.jsonl", [PAIR] * 60)
    for number, option in enumerate(("--model", "--after")):
        assert new([f"of{number}", "--data", "pairs.jsonl", option, str(run)]) == 0
        drafted = yaml.safe_load(
            (folder / "conf" / "stage" / f"of{number}.yaml").read_text(encoding="utf-8")
        )
        assert drafted["defaults"][0] == base
        assert composed(f"stage=of{number}").config.recipe.max_seq_length == limit


SHORT = "def short(completions, **columns):\n    return [1.0 for _ in completions]\n"
BARE = {"prompt": "What is 1 + 1?"}


@pytest.mark.parametrize(
    ("row", "options", "verifier"),
    [
        ({**BARE, "ground_truth": "2"}, [], "math"),
        ({**BARE, "ground_truth": "1,000.5"}, [], "math"),
        ({**BARE, "ground_truth": "two"}, [], "exact"),
        ({**BARE, "ground_truth": "2", "dataset": "GSM8K"}, [], "rows"),
        ({**BARE, "ground_truth": "2"}, ["--verifier", "exact"], "exact"),
        (
            {**BARE, "ground_truth": "2"},
            ["--verifier", "rules.py:short"],
            "{folder}/rules.py:short",
        ),
        (BARE, ["--kind", "rlvr", "--verifier", "rules.py:short"], "{folder}/rules.py:short"),
        (BARE, ["--columns", "prompt=prompt"], "{folder}/rewards.py:reward"),
        ({"Question": "1?", "a": "2"}, ["--columns", "prompt=Question,ground_truth=a"], "math"),
        ({"messages": [{"role": "user", "content": "1?"}], "ground_truth": "2"}, [], "math"),
        (
            {"prompt": "1?", "answer": "2"},
            ["--verifier", "rules.py:short"],
            "{folder}/rules.py:short",
        ),
    ],
)
def test_prompts_make_a_stage_of_rlvr_that_plans(
    folder: Path,
    row: dict[str, object],
    options: list[str],
    verifier: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The last case has answers, which an SFT stage would learn from: a verifier decides."""
    (folder / "rules.py").write_text(SHORT, encoding="utf-8")
    write_lines(folder / "prompts.jsonl", [row] * 300)
    expected = verifier.format(folder=folder)
    for name, model, prompts in (("tiny", ["--model", "demo"], 32), ("large", [], 48)):
        assert new([name, "--data", "prompts.jsonl", *model, *options]) == 0
        assert capsys.readouterr().out.splitlines()[-1] == f"next: launch check stage={name}"
        if expected.endswith("rewards.py:reward"):
            continue
        plan = planned(f"stage={name}", "gpus=8" if name == "large" else "gpus=0", machine=MACHINE)
        recipe = plan.config.recipe
        assert (plan.trainer, plan.inputs.verifiers) == ("trl_grpo", {expected: 1.0})
        assert (recipe.prompts_per_step, plan.config.data.validation) == (prompts, 0.1)
        assert plan.batch.global_ == prompts * (recipe.samples_per_prompt or 0)
        assert "eval_strategy" not in plan.flags


MACHINE = fixed_machine(digest=str)


def test_a_function_that_is_to_be_written_is_shown(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is printed makes a file with which the stage plans."""
    write_lines(folder / "prompts.jsonl", [BARE] * 40)
    assert new(["rl", "--data", "prompts.jsonl", "--model", "demo"]) == 0
    printed = capsys.readouterr().out
    with pytest.raises(UserError) as refused:
        planned("stage=rl", "gpus=0", machine=MACHINE)
    assert refused.value.problems[0].id == "no_verifier_file"
    function = printed[printed.index("def reward") : printed.index("next:")]
    (folder / "rewards.py").write_text(function, encoding="utf-8")
    plan = planned("stage=rl", "gpus=0", machine=MACHINE)
    assert plan.inputs.verifiers == {f"{folder / 'rewards.py'}:reward": 1.0}
    space: dict[str, Any] = {}
    exec(function, space)
    assert space["reward"]([[{"role": "assistant", "content": "two"}]]) == [1.0]


@pytest.mark.parametrize(
    ("options", "id"),
    [
        (["--verifier", "missing.py:short"], "no_verifier_file"),
        (["--verifier", "rules.py:not a name"], "no_verifier_file"),
        (["--verifier", "maths"], "unknown_verifier"),
        (["--verifier", "math"], "no_ground_truth"),  # the prompts stand alone
        (["--verifier", "rules.py:short", "--kind", "sft"], "usage"),
    ],
)
def test_a_verifier_that_can_not_work_writes_nothing(
    folder: Path, options: list[str], id: str
) -> None:
    (folder / "rules.py").write_text(SHORT, encoding="utf-8")
    write_lines(folder / "prompts.jsonl", [BARE] * 3)
    with pytest.raises(UserError) as refused:
        new(["rl", "--data", "prompts.jsonl", *options])
    assert refused.value.problems[0].id == id
    assert not (folder / "conf").exists()
