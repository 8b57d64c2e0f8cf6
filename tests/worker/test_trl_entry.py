"""launch's entry over TRL: its options, the rows that it takes, and what it refuses."""

from __future__ import annotations

import ast
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launch.worker import trl_entry, trl_preview
from launch.worker.channel import EventWriter
from launch.worker.json_codec import to_json
from launch.worker.trainer import TrainerProgram
from launch.worker.trl_data import load, subset_rows, subset_size
from launch.worker.trl_entry import use_staged_form
from launch.worker.trl_options import OPTIONS, MixturePart
from launch.worker.trl_trainer import EntryError, entry_class
from tests.integration.tiny_stage import make_data
from tests.paths import ROOT
from tests.trl_texts import read_texts

SILENT = EventWriter(None, 0)


def test_the_ids_of_the_options_are_stable() -> None:
    # they stand in the records of runs
    assert list(OPTIONS) == [
        *(
            "learns",
            "validation",
            "subset",
            "mixture",
            "chat_template",
            "continue_adapter",
            "adapter_init",
            "early_stop",
            "samples",
            "verifier",
        ),
        *("lengths", "preview"),
    ]
    for option in OPTIONS.values():
        assert option.meaning and "\n" not in option.meaning


def test_another_version_of_trl_is_refused_with_both(monkeypatch: pytest.MonkeyPatch) -> None:
    trl = pytest.importorskip("trl", reason="the `train` dependencies are not installed")
    monkeypatch.setattr(trl, "__version__", "1.17.0")
    with pytest.raises(
        EntryError, match=r"is written for TRL 1\.16, and TRL 1\.17\.0 is installed"
    ):
        trl_entry.main(TrainerProgram(None, "trl.scripts.sft", ()), {}, EventWriter(None, 0))


def test_a_template_that_the_installed_trl_lacks_brings_its_own_form_with_marks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sft_trainer = pytest.importorskip(
        "trl.trainer.sft_trainer", reason="the `train` dependencies are not installed"
    )
    monkeypatch.setattr(
        sft_trainer, "get_training_chat_template", original := lambda tokenizer: "TRL's"
    )
    texts = {"qwen3": "{{ messages }}", "qwen3_training": "{% generation %}"}
    for name, text in texts.items():
        (tmp_path / f"{name}.jinja").write_text(text, encoding="utf-8")
    use_staged_form(tmp_path / "qwen3.jinja")
    choose = sft_trainer.get_training_chat_template
    assert choose(SimpleNamespace(chat_template=texts["qwen3"])) == texts["qwen3_training"]
    assert choose(SimpleNamespace(chat_template="{{ x }}")) == "TRL's"

    monkeypatch.setattr(sft_trainer, "get_training_chat_template", original)
    for name in texts:  # its own texts
        (tmp_path / f"{name}.jinja").write_bytes(read_texts()[name].encode())
    use_staged_form(tmp_path / "qwen3.jinja")
    use_staged_form(tmp_path / "alone.jinja")
    assert sft_trainer.get_training_chat_template is original


@pytest.mark.parametrize(
    "changed", [{"max_length": None}, {"dataset_kwargs": {"skip_prepare_dataset": True}}]
)
def test_flattened_samples_that_nothing_would_truncate_are_refused(changed: dict[str, Any]) -> None:
    args = {"padding_free": True, "packing": False, "max_length": 64, "dataset_kwargs": None}
    assert entry_class(object, SimpleNamespace(**args), SILENT).truncates
    assert not entry_class(object, SimpleNamespace(**{**args, "packing": True}), SILENT).truncates
    with pytest.raises(EntryError, match="needs a max_length, and data that the trainer prepares"):
        entry_class(object, SimpleNamespace(**{**args, **changed}), SILENT)


def test_a_resumed_run_whose_steps_are_done_trains_none() -> None:
    class Base:
        state = SimpleNamespace(global_step=2, max_steps=3)
        control = SimpleNamespace(should_training_stop=False)
        epochs = 0

        def _run_epoch(self) -> None:
            self.epochs += 1
            self.state.global_step = 3

    args = SimpleNamespace(padding_free=False, max_length=64)
    trainer = entry_class(Base, args, SILENT)()
    trainer._run_epoch()
    trainer._run_epoch()
    assert trainer.epochs == 1 and trainer.control.should_training_stop


def test_a_transformers_without_end_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trainer.end() is as new as transformers 5.18."""
    done: list[str] = []
    trainer = SimpleNamespace(
        train=lambda resume_from_checkpoint: done.append("trained"),
        save_after_training=lambda: done.append("saved"),
        accelerator=SimpleNamespace(print=print),
    )
    args = SimpleNamespace(resume_from_checkpoint=None, output_dir="out", push_to_hub=False)
    script = SimpleNamespace(dataset_streaming=False)
    monkeypatch.setattr(trl_entry, "parse", lambda *_: SimpleNamespace(args=args, script=script))
    monkeypatch.setattr(trl_entry, "_build", lambda _: trainer)
    trl_entry.main(TrainerProgram(None, "trl.scripts.sft", ()), {}, SILENT)
    trainer.end = lambda: done.append("ended")
    trl_entry.main(TrainerProgram(None, "trl.scripts.sft", ()), {}, SILENT)
    assert done == ["trained", "saved", "trained", "saved", "ended"]


OWN_CODE = """
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
class OwnConfig(LlamaConfig):
    model_type = "own"
class OwnModel(LlamaForCausalLM):
    config_class = OwnConfig
class OwnTokenizer(PreTrainedTokenizerFast):
    pass
"""


def test_a_model_with_code_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """trust_remote_code is passed on wherever its files are loaded: for the preview, and for an
    adapter's tokenizer.
    """
    pytest.importorskip("trl", reason="the `train` dependencies are not installed")
    from transformers import dynamic_module_utils

    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    model, adapter = tmp_path / "model", tmp_path / "adapter"
    for folder in (model, adapter):
        folder.mkdir()
        (folder / "own.py").write_text(OWN_CODE, encoding="utf-8")
    classes = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"}
    shape = {
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
    }
    write_json(
        model / "config.json", {"model_type": "own", "vocab_size": 8, "auto_map": classes, **shape}
    )
    write_json(
        adapter / "adapter_config.json",
        {"peft_type": "LORA", "base_model_name_or_path": str(model)},
    )
    fast = {
        "tokenizer_class": "OwnTokenizer",
        "auto_map": {"AutoTokenizer": [None, "own.OwnTokenizer"]},
    }
    write_json(adapter / "tokenizer_config.json", fast)
    words = {
        "version": "1.0",
        "added_tokens": [],
        "model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"},
    }
    write_json(adapter / "tokenizer.json", words)
    args = SimpleNamespace(model_init_kwargs={"revision": "main"}, trust_remote_code=True)
    job: Any = SimpleNamespace(
        model=SimpleNamespace(model_name_or_path=str(adapter)), args=args, options={}
    )
    assert type(trl_entry.load_tokenizer(job)).__name__ == "OwnTokenizer"
    assert type(trl_preview._create_empty_model(str(adapter), args)).__name__ == "OwnModel"
    args.trust_remote_code = False
    with pytest.raises(ValueError, match="trust_remote_code"):
        trl_preview._create_empty_model(str(model), args)
    with pytest.raises(ValueError, match="trust_remote_code"):
        trl_entry.load_tokenizer(job)


def write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")


# --- the data


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"validation": "0.001"}, "data.validation=0.001: 0.001 of 64 rows is less than one row"),
        ({"validation": "0.999"}, "leaves none to train on"),
        ({"subset": "0.001"}, "'0.001' of 64 rows selects no rows"),
        ({"subset": "0.5", "split": "test"}, "has no split 'test'; it has train"),
        ({"subset": "0.5", "name": ""}, "either `datasets` or `dataset_name` must be provided"),
        ({"subset": "0.5", "streaming": True}, "is streamed: its rows cannot be counted"),
    ],
)
def test_rows_that_are_not_there_are_refused(
    tmp_path: Path, asked: dict[str, Any], says: str
) -> None:
    pytest.importorskip("trl", reason="the `train` dependencies are not installed")
    chats, _ = make_data(tmp_path / "data")
    asked = {"name": str(chats.parent), "split": "train", "streaming": False, **asked}
    script = SimpleNamespace(
        dataset_name=asked.pop("name"),
        dataset_config=None,
        dataset_streaming=asked.pop("streaming"),
        dataset_train_split=asked.pop("split"),
    )
    with pytest.raises(ValueError, match=says.replace("(", r"\(")):
        load(script, SimpleNamespace(datasets=[]), asked)


@given(
    st.integers(1, 300),
    st.integers(1, 700) | st.floats(0.01, 2.5).map(lambda share: round(share, 3)),
)
def test_a_subset_has_the_size_asked_for(rows: int, amount: float) -> None:
    text = str(amount)
    if int(amount * rows if "." in text else amount) < 1:
        with pytest.raises(ValueError, match="selects no rows"):
            subset_size(text, rows)
        return
    pytest.importorskip("numpy")
    taken = subset_rows(text, rows)
    assert len(taken) == subset_size(text, rows)
    assert set(taken) <= set(range(rows))
    repeats = len(taken) // rows
    assert all(taken.count(row) in (repeats, repeats + 1) for row in range(rows))


def test_a_point_makes_it_a_fraction() -> None:
    assert subset_size("1", 200) == 1
    assert subset_size("1.0", 200) == 200
    assert subset_size("0.25", 202) == 50
    for wrong in ("0", "0.0", "-3", "all"):
        with pytest.raises(ValueError, match=r"selects no rows|invalid literal|could not convert"):
            subset_size(wrong, 200)


@pytest.mark.parametrize("size", [1, 16, 63, 64, 65, 150])
def test_the_rows_are_those_that_open_instruct_takes(size: int) -> None:
    checkout = Path(os.environ.get("OPEN_INSTRUCT_DIR") or ROOT / "external" / "open-instruct")
    if not (checkout / "open_instruct" / "finetune.py").is_file():
        pytest.skip("no open-instruct checkout: set OPEN_INSTRUCT_DIR or fetch the submodule")
    numpy = pytest.importorskip("numpy")
    tree = ast.parse(
        (checkout / "open_instruct" / "dataset_transformation.py").read_text(encoding="utf-8")
    )
    [config] = [
        node
        for node in tree.body
        if isinstance(node, ast.ClassDef) and node.name == "DatasetConfig"
    ]
    fixed = {"dataset_config_seed": 42}
    method = ast.Module(
        [
            node
            for node in config.body
            if isinstance(node, ast.FunctionDef) and node.name == "select_samples"
        ],
        [],
    )
    names: dict[str, Any] = {"np": numpy}
    exec(compile(method, "dataset_transformation.py", "exec"), names)
    [seed] = [
        node for node in config.body if ast.unparse(node).startswith("dataset_config_seed: int =")
    ]
    assert ast.unparse(seed) == f"dataset_config_seed: int = {fixed['dataset_config_seed']}"

    class Rows(list[int]):
        def select(self, taken: list[int]) -> list[int]:
            return taken

    this = SimpleNamespace(dataset=Rows(range(64)), dataset_name="rows", **fixed)
    assert names["select_samples"](this, size) == subset_rows(str(size), 64)


def test_data_sets_are_mixed_with_their_shares_and_their_held_out_rows(tmp_path: Path) -> None:
    pytest.importorskip("trl", reason="the `train` dependencies are not installed")

    def write(name: str, split: str, rows: list[dict[str, Any]]) -> str:
        (tmp_path / name).mkdir(exist_ok=True)
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / name / f"{split}.jsonl").write_text(text, encoding="utf-8")
        return str(tmp_path / name)

    def turns(word: str, number: int, *, flipped: bool = False) -> list[dict[str, str]]:
        turn = {"role": "user", "content": f"{word} {number}"}
        return [dict(reversed(turn.items())) if flipped else turn]

    staged = write("staged", "train", [{"messages": turns("a", number)} for number in range(8)])
    write("staged", "validation", [{"messages": turns("v", 0)}])
    loaded = write(
        "loaded", "train", [{"messages": turns("b", n, flipped=True), "id": n} for n in range(10)]
    )
    parts = [
        MixturePart(staged, "train", "0.5", "staged"),
        MixturePart(loaded, "train", "2.0", "split"),
    ]
    script = SimpleNamespace(dataset_train_split="train")
    options = {"mixture": json.dumps(to_json(parts)), "validation": "0.2"}
    data = load(script, SimpleNamespace(datasets=[]), options)
    assert data["train"].column_names == ["messages"]
    words = [row["messages"][0]["content"] for row in data["train"]]
    mine, theirs = words[:4], words[4:]
    assert mine == [f"a {number}" for number in subset_rows("0.5", 8)]
    held_out = [row["messages"][0]["content"] for row in data["validation"]]
    assert (
        held_out[0] == "v 0"
        and len(held_out) == 3
        and all(word.startswith("b ") for word in held_out[1:])
    )
    assert len(theirs) == 16 and len(set(theirs)) == 8 and not set(theirs) & set(held_out)
    texts = write("texts", "train", [{"messages": "a text"}])
    with pytest.raises(ValueError, match="the data sets do not fit together"):
        load(
            script,
            None,
            {
                "mixture": json.dumps(
                    to_json([parts[0], MixturePart(texts, "train", "1.0", "none")])
                )
            },
        )


def test_data_sets_with_and_without_tools_are_joined() -> None:
    """A staged file has its tools in JSON and each call as it is; a file of the hub pads both."""
    datasets = pytest.importorskip("datasets")
    from launch.worker.trl_data import join_rows

    asked = {"role": "user", "content": "Well?"}
    call = {"type": "function", "function": {"name": "f", "arguments": {"day": None}}}
    called = {"role": "assistant", "content": "", "tool_calls": [call]}
    plain = {"role": "assistant", "content": "So it is."}
    turns = datasets.List(datasets.features.Json())
    types = datasets.Features({"messages": turns, "tools": datasets.Value("string")})
    staged = [{"messages": [asked, called], "tools": '[{"name": "f"}]'}]
    hub = [
        {"messages": [asked, {**plain, "name": None}], "tools": [{"name": "g", "strict": None}]},
        {"messages": [asked, {**plain, "name": "x"}], "tools": [{"name": "g", "strict": True}]},
    ]
    sets = [datasets.Dataset.from_list(staged, features=types), datasets.Dataset.from_list(hub)]
    sets.append(datasets.Dataset.from_list([{"messages": [asked, plain]}]))
    rows = list(join_rows(sets))
    assert rows[0] == staged[0], "a null of a staged row is its own"
    assert rows[1] == {"messages": [asked, plain], "tools": '[{"name": "g"}]'}
    assert rows[2]["messages"][1]["name"] == "x" and '"strict": true' in rows[2]["tools"]
    assert rows[3] == {"messages": [asked, plain], "tools": None}


def test_files_of_the_hub_lose_the_keys_that_they_pad(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder in the current one is loaded by its name, as a data set of the hub is."""
    datasets = pytest.importorskip("datasets")
    pytest.importorskip("trl", reason="the `train` dependencies are not installed")

    def row(name: str, **arguments: object) -> dict[str, Any]:
        call = {"type": "function", "function": {"name": name, "arguments": arguments}}
        turns = [
            {"role": "user", "content": "Well?", "tool_calls": None},
            {"role": "assistant", "content": None, "tool_calls": [call]},
        ]
        tool = {"name": name, "parameters": {"properties": {key: {"x": "y"} for key in arguments}}}
        return {"messages": turns, "tools": [tool]}

    rows = [row("town", city="Ulm"), row("add", a=1, b=2)]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lab" / "padded").mkdir(parents=True)
    file = tmp_path / "lab" / "padded" / "train.parquet"
    datasets.Dataset.from_list(rows).to_parquet(str(file))
    padded = datasets.load_dataset("parquet", data_files=str(file))["train"][0]
    assert padded["messages"][1]["tool_calls"][0]["function"]["arguments"]["a"] is None

    script = SimpleNamespace(
        dataset_train_split="train", dataset_name="lab/padded", dataset_config=None
    )
    parts = [MixturePart("lab/padded", "train", "1.0", "none")] * 2
    for streams, options in (
        (False, {}),
        (True, {}),
        (False, {"mixture": json.dumps(to_json(parts))}),
    ):
        script.dataset_streaming = streams
        data = list(load(script, SimpleNamespace(datasets=[]), options)["train"])
        for read, written in zip(data, rows, strict=False):
            assert read["messages"][0] == {"role": "user", "content": "Well?"}
            assert read["messages"][1] == {**written["messages"][1], "content": ""}
            assert json.loads(read["tools"]) == written["tools"]
        assert "lab/padded: null keys" in capsys.readouterr().out
    staged = SimpleNamespace(**{**vars(script), "dataset_name": str(file.parent)})
    staged.dataset_streaming = False
    local = load(staged, SimpleNamespace(datasets=[]), {})["train"]
    assert isinstance(local[0]["tools"], list) and not capsys.readouterr().out
