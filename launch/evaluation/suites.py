"""The tasks that `tasks=` may name: a run's held-out rows, tasks of the harness, Tulu 3's suite, the
demo's, or the user's own.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from launch.config.kinds import KINDS, DataFormat, Kind
from launch.data.sources import VALIDATION_FILE
from launch.demo import DEMO_KEY, rewards
from launch.demo.tasks import chat_rows, make_tasks, preference_rows, prompt_rows
from launch.errors import UserError, refusal
from launch.execution.record.run import Run, mapping
from launch.files import encode_json, write_file
from launch.planning.find_runs import run_name
from launch.worker.evaluating import TaskSpec
from launch.worker.held_out import ROWS
from launch.worker.held_out_reward import RewardSpec
from launch.worker.trl_options import is_own

# The names of the suites.
DEMO = "demo"
DEMO_RLVR = "demo_reward"
TULU3 = "tulu3"
_HELD_OUT = "held_out"
RESULTS = "evaluation"  # folder of the results in a run's folder
# the kinds whose runs are judged by held-out rows
_JUDGED = tuple(kind for kind, row in KINDS.items() if row.judged)
_MOST_ROWS = 200  # maximum number of held-out rows that are used
_LEAST_ROWS = 10  # minimum number of rows, of which a tenth is held out

# The tasks of Tulu 3's suite that the harness has. Shots, chain of thought and metric: the table of
# results in https://huggingface.co/allenai/Llama-3.1-Tulu-3-8B and section 7 of
# https://arxiv.org/abs/2411.15124; the names of its tasks in olmes: upstream
# scripts/eval/oe-eval.sh:175-187.
TULU3_SPECS = (
    TaskSpec(("mmlu_flan_cot_zeroshot",), num_fewshot=0, metric="exact_match"),  # 0 shots, CoT
    # 6 question-answer pairs, which the harness puts into each prompt
    TaskSpec(("truthfulqa_mc2",), metric="acc"),
    TaskSpec(
        ("bbh_cot_fewshot",),
        num_fewshot=3,
        multiturn=True,
        metric="exact_match",
        filter="get-answer",
    ),
    # 3 shots, without the chat template
    TaskSpec(("drop",), num_fewshot=3, chat=False, metric="f1"),
    TaskSpec(("hendrycks_math",), num_fewshot=4, multiturn=True, metric="exact_match"),  # 4 shots
    TaskSpec(
        ("gsm8k_cot",),
        num_fewshot=8,
        multiturn=True,
        metric="exact_match",
        filter="flexible-extract",
    ),
    TaskSpec(("ifeval",), num_fewshot=0, metric="prompt_level_loose_acc"),  # 0 shots, prompt loose
)


def digest_spec(spec: TaskSpec) -> str:
    """Identify the tasks by name and settings, tasks in a folder also by its files, and a user's
    verifier also by its file.
    """
    settings = {**asdict(spec), "folder": None}
    digest = hashlib.sha256(repr(sorted(settings.items())).encode())
    if spec.reward is not None:
        for name in json.loads(spec.reward.verifier)["verifiers"]:
            file = Path(name.rpartition(":")[0])
            if is_own(name) and file.is_file():
                digest.update(file.read_bytes())
    paths = sorted(spec.folder.rglob("*")) if spec.folder else []
    for path in paths:
        # The import of a task's functions writes into __pycache__.
        if path.is_file() and path.parent.name != "__pycache__":
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def default_tasks(run: Path | None, given: Sequence[str] = ()) -> str:
    """Return the tasks of a run: those `given`, or those that its stage names.

    The run's held-out rows replace the shipped suites.

    Raises UserError: no_held_out, if only the demo's questions are left and the data is not the
    demo's.
    """
    record = Run(run) if run else None
    settings = record.settings if record else {}
    stage = mapping(settings.get("stage"))
    data = mapping(settings.get("data"))
    tasks = [str(task) for task in given or stage.get("tasks") or [TULU3]]
    is_demo_data = bool(data.get("build")) and not data.get("mix")
    are_shipped = set(tasks) <= {DEMO, DEMO_RLVR, TULU3}
    if record is not None and are_shipped and not is_demo_data:
        if ensure_held_out(record):
            return _HELD_OUT
        if not {DEMO, DEMO_RLVR}.isdisjoint(tasks):
            raise _no_rows(record)
    return ",".join(tasks)


def ensure_held_out(run: Run) -> Path | None:
    """Return the folder with up to 200 of the rows that a run held out; None without any, or if they
    are plain text, which has no questions.

    The rows are copied once.
    """
    folder = run.folder / RESULTS / _HELD_OUT
    if _learns_text(run):
        return None
    if (folder / ROWS).is_file():
        return folder
    # The plan names the folder of each staged data set, whatever the trainer is.
    staged = re.findall(r'[^"\\]+/data/[0-9a-f]{16}', encode_json(run.plan))
    rows: list[bytes] = []
    for data_folder in dict.fromkeys(staged):
        file = Path(data_folder, VALIDATION_FILE)
        if file.is_file():
            rows += file.read_bytes().splitlines(keepends=True)
    if not rows or _kind_of(run) not in _JUDGED:
        return None
    step = math.ceil(len(rows) / _MOST_ROWS)
    write_file(folder / ROWS, b"".join(rows[::step]).decode())
    return folder


def _learns_text(run: Run) -> bool:
    return mapping(run.settings.get("data")).get("format") == DataFormat.text


def _kind_of(run: Run) -> object:
    return mapping(run.settings.get("stage")).get("kind")


def _describe_held_out(run: Run, folder: Path) -> TaskSpec:
    """Return the spec of a run's held-out rows.

    For RLVR it has the run's verifiers, and the lengths and the temperature of its sampling.
    """
    if _kind_of(run) != Kind.rlvr:
        return TaskSpec((), folder)
    options = [str(option) for option in run.plan.get("options") or ()]
    verifiers = [option for option in options if option.startswith("verifier=")]
    recipe = mapping(run.settings.get("recipe"))
    if not verifiers:
        raise _no_rows(run)
    reward = RewardSpec(
        verifiers[0].removeprefix("verifier="),
        int(recipe.get("response_length") or 0),
        float(recipe.get("temperature") or 1.0),
    )
    return TaskSpec((), folder, reward=reward)


def _no_rows(run: Run | None) -> UserError:
    """Return the refusal of tasks=held_out, with a cure for that run."""
    others = "name other tasks with tasks="
    if run is None:
        message = "tasks=held_out needs a run"
        return refusal("no_held_out", message, "tasks", f"name a run, or {others}")
    message = f"{run_name(run.folder)} held out no rows of its data"
    kind = _kind_of(run)
    entries = run.plan.get("data")
    local = [mapping(entry) for entry in entries] if isinstance(entries, list) else []
    rows = sum(int(entry.get("read") or 0) for entry in local)
    if _learns_text(run):
        message = f"{run_name(run.folder)} learnt plain text, which asks nothing"
        cure = f"its eval_loss is that of the held-out texts (data.validation); {others}"
    elif kind not in _JUDGED:
        names = [KINDS[judged].name for judged in _JUDGED]
        listed = f"{', '.join(names[:-1])} and {names[-1]}"
        cure = f"only {listed} are judged by held-out rows; {others}"
    elif not all(local) or rows < _LEAST_ROWS:
        cure = f"rows are held out of local data (data.mix) with {_LEAST_ROWS} or more; {others}"
    else:
        cure = (
            "train with data.validation=0.1 to judge the model by rows that it has not seen, "
            f"or {others}"
        )
    return refusal("no_held_out", message, "tasks", cure)


def find_specs(tasks: str, cache: Path, run: Path | None = None) -> tuple[TaskSpec, ...]:
    """Return the specs that a comma-separated list names; the demo's suite is made below `cache`.

    `run` is the folder of the run whose held-out rows `held_out` means.

    Raises UserError: no_held_out, no_task_files, bad_value; those of the demo's data.
    """
    specs: list[TaskSpec] = []
    for part in tasks.strip("[]").split(","):
        name = part.strip()
        if not name:
            continue
        if name in _OF_DEMO:
            specs.append(TaskSpec((), _OF_DEMO[name](cache)))
        elif name == _HELD_OUT:
            record = Run(run) if run else None
            folder = ensure_held_out(record) if record else None
            if record is None or folder is None:
                raise _no_rows(record)
            specs.append(_describe_held_out(record, folder))
        elif name == TULU3:
            specs += TULU3_SPECS
        elif "/" in name or Path(name).is_dir():
            specs.append(TaskSpec((), _check_folder(name)))
        else:
            specs.append(TaskSpec((name,)))
    if not specs:
        cure = "name held_out, tasks of the harness, tulu3, demo, or a folder of own tasks"
        raise refusal("bad_value", "tasks= names nothing", "override tasks", cure)
    return tuple(specs)


def _check_folder(name: str) -> Path:
    folder = Path(name).expanduser().absolute()
    if not any(folder.rglob("*.yaml")) and not (folder / ROWS).is_file():
        message = f"{folder} has no task file (.yaml)"
        cure = "a task is a .yaml with task, dataset_path, doc_to_text and doc_to_target"
        raise refusal("no_task_files", message, "override tasks", cure)
    return folder


# The demo's own tasks, of the questions that it holds out: `demo_all`, of all kinds, and one of
# each kind ask whether the model writes the right answer and nothing else; `demo_pairs`, whether
# the right answer is more likely than a wrong or a rambling one. `demo_reward` samples answers, and
# scores them with the verifier of `demo_rlvr`.
_VERSION = 5
_REWARD_TASK = """\
task: demo_reward
dataset_path: json
dataset_kwargs: {{ data_files: {{ test: {data} }} }}
test_split: test
output_type: generate_until
doc_to_text: "{{{{prompt[0].content}}}}"
doc_to_target: "{{{{ground_truth}}}}"
generation_kwargs: {{ until: [], max_gen_toks: 16, do_sample: true, temperature: 1.0 }}
process_results: !function reward.process_results
metric_list: [{{ metric: reward, aggregation: mean, higher_is_better: true }}]
num_fewshot: 0
"""
_REWARD = """

def process_results(doc, results):
    return {"reward": is_right([results[0]], [doc["ground_truth"]])[0]}
"""


def ensure_reward_suite(cache: Path) -> Path:
    """Return the folder of `demo_reward`, which is made if it is missing."""
    folder = cache / "demo" / f"reward-{_VERSION}-{DEMO_KEY}"
    if not (folder / "reward.yaml").is_file():
        folder.mkdir(parents=True, exist_ok=True)
        data = folder / "prompts.jsonl"  # the name must differ from that of a run's held-out rows
        data.write_text(_encode_rows(prompt_rows(make_tasks()[1])), encoding="utf-8")
        verifier = Path(rewards.__file__).read_text(encoding="utf-8")
        (folder / "reward.py").write_text(verifier + _REWARD, encoding="utf-8")
        task = _REWARD_TASK.format(data=json.dumps(str(data)))
        (folder / "reward.yaml").write_text(task, encoding="utf-8")
    return folder


def ensure_demo_suite(cache: Path) -> Path:
    """Return the folder of the demo's tasks, as rows that name them; it is made if missing."""
    folder = cache / "demo" / f"tasks-{_VERSION}-{DEMO_KEY}"
    if not (folder / ROWS).is_file():
        _, held_out = make_tasks()
        chats = list(chat_rows(held_out))
        kinds = [f"demo_{task.kind}" for task in held_out]
        rows = [{"task": "demo_all", **row} for row in chats]
        rows += [{"task": kind, **row} for kind, row in zip(kinds, chats, strict=True)]
        rows += [{"task": "demo_pairs", **row} for row in preference_rows(held_out)]
        write_file(folder / ROWS, _encode_rows(rows))
    return folder


def _encode_rows(rows: Iterable[Mapping[str, Any]]) -> str:
    return "".join(f"{json.dumps(row)}\n" for row in rows)


_OF_DEMO = {DEMO: ensure_demo_suite, DEMO_RLVR: ensure_reward_suite}
