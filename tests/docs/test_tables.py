"""The tables of docs/reference that are written by hand: exit codes, metrics and the run folder,
held to the code.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import launch.errors
from launch.config.recipe_keys import recipe_mapping
from launch.config.schema import TrainerConfig
from launch.execution.record.events import Event, Metrics
from launch.upstream.trainers import trainer_files
from tests.paths import ROOT

REFERENCE = ROOT / "docs" / "reference"
# patches, dpo.py and recipe.sample_every report them
_OF_SOME_RUNS = {
    "imbalance",
    "imbalance_upstream",
    "sequences",
    "mfu",
    "sample_tokens",
    "sample_ended",
    "sample_seconds",
    "reward",
    "frac_reward_zero_std",
    "kl_answer",
}
_OF_AN_EVALUATION = {
    *("eval_loss", "eval_...", "eval_runtime"),
    *("eval_loss/NAME", "eval_.../NAME"),
}


def first_column(page: str) -> list[str]:
    """Return what the first cells of the page's table name."""
    cells = re.findall(
        r"^\| (.+?) \|", (REFERENCE / page).read_text(encoding="utf-8"), re.MULTILINE
    )
    return [name for cell in cells[1:] for name in re.findall(r"`([^`]+)`", cell) or [cell]]


def run_folder_names() -> set[str]:
    """Return the files and folders of a run that the page names."""
    return {name.split("/")[0] for name in first_column("run-folder.md")}


def test_every_exit_code_is_explained_and_no_other() -> None:
    codes = {value for name, value in vars(launch.errors).items() if name.startswith("EXIT_")}
    assert {int(code) for code in first_column("exit-codes.md") if code.isdigit()} == codes


def test_every_key_of_metrics_is_explained_and_no_other() -> None:
    names = ("loss", "lr", "grad_norm", "memory_gib", "memory_reserved_gib")
    metrics = Metrics()
    metrics.training_began(0.0)
    sums = {"total_tokens": 90, "total_tokens_including_padding": 100}
    step = metrics.add(Event("step", 2.0, 0, {"step": 1, **dict.fromkeys(names, 1.0), **sums}))
    assert step is not None
    of_trl = {"anything else", "reward_std", *_OF_AN_EVALUATION}
    explained = set(first_column("metrics.md")) - of_trl
    assert explained == (step.keys() - {"schema_version"}) | _OF_SOME_RUNS
    source = "".join(
        path.read_text(encoding="utf-8") for path in (ROOT / "launch" / "worker").rglob("*.py")
    )
    assert [
        name for name in _OF_SOME_RUNS if f'"{name}"' not in source and f"{name}=" not in source
    ] == []


def test_every_name_of_the_run_folder_is_one_that_the_code_writes() -> None:
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "launch").rglob("*.py")]
    missing = [
        name for name in run_folder_names() if not any(f'"{name}' in source for source in sources)
    ]
    assert not missing


def unexplained(run: Path) -> set[str]:
    """Return the files of a run that the page does not name; hidden ones are the launcher's own."""
    return {
        path.name for path in run.iterdir() if not path.name.startswith(".")
    } - run_folder_names()


def trainers_table() -> list[str]:
    """Return a row for each trainer: what its YAML declares, and whether a record in benchmarks/ is
    of it.
    """
    records = "".join(
        path.read_text(encoding="utf-8") for path in (ROOT / "benchmarks").glob("*.json")
    )
    heads = (
        "trainer",
        "trains",
        "Llama",
        "OLMo",
        "Qwen3",
        "LoRA",
        "packing",
        "resume",
        "CPU",
        "GPU tried",
    )
    rows = []
    for name, trainer in trainer_files().items():
        names = {key: trainer[key] for key in ("name", "kind", "family", "launcher")}
        config = TrainerConfig(**names)
        packing = [kind for kind in recipe_mapping(config, "packing") or () if kind != "none"]
        is_tried = f'"trainer": "{name}"' in records or (
            trainer["kind"] == "rlvr" and "untested" not in trainer and "stage=rlvr" in records
        )
        facts = (
            *(
                family in trainer.get("model_presets", family)
                for family in ("Llama", "OLMo", "Qwen3")
            ),
            bool(recipe_mapping(config, "lora.rank")),
            " or ".join(packing) + (", always" if trainer.get("always_packs") else "")
            if packing
            else False,
            trainer.get("resumable", False),
            "cpu" in trainer.get("devices", ["cpu"]),
            is_tried,
        )
        cells = [fact if isinstance(fact, str) else "yes" if fact else "-" for fact in facts]
        rows.append((f"`{name}`", trainer["kind"].upper(), *cells))
    return [f"| {' | '.join(row)} |" for row in (heads, ("---",) * len(heads), *rows)]


def test_the_table_of_trainers_is_what_their_files_declare(request: pytest.FixtureRequest) -> None:
    page = ROOT / "docs" / "explanation" / "upstream.md"
    text = page.read_text(encoding="utf-8")
    table = "\n".join(trainers_table())
    now = re.sub(
        r"(<!-- trainers: .*? -->\n).*?(<!-- end -->)",
        lambda at: f"{at[1]}{table}\n{at[2]}",
        text,
        flags=re.DOTALL,
    )
    if request.config.getoption("--update-golden"):
        page.write_text(now, encoding="utf-8")
    assert page.read_text(encoding="utf-8") == now, (
        "scripts/test --update-golden tests/docs/test_tables.py"
    )
