"""Defines the arguments and the help of the verbs that show, stop or use runs.

The module imports little, because shell completion reads it.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from launch.commands.arguments import VerbParser, number_between

_RUN = "STAGE/NAME, NAME, a prefix of either that only one run has, latest, or its folder"
_BASE = "or a base model: a folder, or a hub id that is in the cache"


def build_status_parser() -> VerbParser:
    parser = VerbParser("""launch status [RUN ...] [runs=DIR] [--json]

examples:
  launch status
  launch status sft_25pct/gpu8-8fa3c2d1 --json | jq '.[].step'

List runs and submitted jobs with their state, step, loss, tokens/s and time left; for a Slurm job
also its id, the reason why it waits, its nodes and what is left of its time limit.

arguments:
states: running, done, failed, stopped (by the user), unfinished (its launcher ended without
recording an outcome),
        unreadable; for a job also pending, held (until `scontrol release`), starting, suspended, requeued,
        lost (it runs, its first node's launcher no longer), submitted (Slurm was not queried or did not answer),
        ended (before the run began)""")
    parser.add("names", metavar="RUN", nargs="*", help=f"{_RUN}; default: all runs")
    return _with_runs(parser, json="print a list with one object per run")


def build_logs_parser() -> VerbParser:
    parser = VerbParser("""launch logs RUN [--follow] [--rank N | --job] [runs=DIR]

examples:
  launch logs gpu8-8fa3c2d1 --follow
  launch logs gpu8-8fa3c2d1 --rank 3 | less

Print what a run's display showed, from its record, and how the run ended.""")
    parser.add("name", metavar="RUN", help=f"{_RUN}; or the id of its Slurm job")
    follow = (
        "wait for a pending job and continue until the run ends, across requeues; Ctrl-C only "
        "stops following"
    )
    parser.add("-f", "--follow", action="store_true", help=follow)
    which = parser.arguments.add_mutually_exclusive_group()
    rank = "the whole log of one rank, on whichever node it ran"
    which.add_argument("--rank", metavar="N", type=number_between(int, 0), help=rank)
    which.add_argument("--job", action="store_true", help="the log of its Slurm job")
    return _with_runs(parser)


def build_report_parser() -> VerbParser:
    parser = VerbParser("""launch report RUN... [--output FILE] [runs=DIR]

examples:
  launch report gpu8-8fa3c2d1                             writes report.html in the run's folder
  launch report sft/first sft/second --output both.html   both runs' curves in the same charts, and a table
  launch report runs/sft/*                                every run of a stage, in ./report.html
  launch report sft/rollout-gpu1-2-8                      the widths of a rollout; a bench and a tune likewise

Write one HTML file that needs no network: how the run ended, its curves, phases, evidence, guards,
plan and versions. A run writes it by itself at its end (report=false leaves it out); the verb
renews it, also while the run is live.""")
    parser.add("names", metavar="RUN", nargs="+", help=f"{_RUN}; or one rollout, bench, tune")
    page = "the page; default: report.html in the run's folder, for several runs ./report.html"
    parser.add("-o", "--output", metavar="FILE", type=_path, help=page)
    return _with_runs(parser)


def build_stop_parser() -> VerbParser:
    parser = VerbParser("""launch stop RUN [runs=DIR]

examples:
  launch stop gpu8-8fa3c2d1

Stop a run from another terminal, as Ctrl-C does in its own: end all of its processes and wait until
they are gone. A Slurm job is cancelled. What was trained since the last checkpoint is lost; the
same command resumes the run from there.

arguments:
exit codes: 0 all of it has ended; 1 some of it is left after 30 s (90 s for a job); 2 it is not
running""")
    parser.add("name", metavar="RUN", help=f"{_RUN}; or the id of its Slurm job")
    return _with_runs(parser)


def build_eval_parser() -> VerbParser:
    parser = VerbParser("""launch eval RUN [tasks=NAME,...] [key=value ...] [--json]

examples:
  launch eval mine                                          the rows that the run held out of your data
  launch eval demo/cpu1-b1a81c05                            the demo's own tasks, offline, within a minute
  launch eval sft_25pct/gpu8-8fa3c2d1                       Tulu 3's tasks
  launch eval dpo/lower_lr tasks=gsm8k,ifeval limit=100     tasks of the harness
  launch eval sft/mine tasks=./my_tasks --json | jq '.tasks[].verdict'
  launch eval Qwen/Qwen2.5-0.5B-Instruct tasks=ifeval       a base model alone, without a verdict

Score the model of a run, the base, and each stage between them with lm-evaluation-harness: the same
questions in the run's chat template, with the run's Python. A task's verdict is better, worse or
same (no significant difference): whether the 95% interval of the mean difference from the base,
paired by question, excludes 0, or, of scores of which few differ, by an exact test. Results and
answers are cached in RUN/evaluation by content and never computed twice.

arguments:
exit codes: 0 evaluated; 2 it cannot work; 3 a task's evaluation is broken (all zero, identical, cut
off)""")
    parser.add("name", metavar="RUN", help=f"{_RUN}, or RUN/step_N; {_BASE}")
    tasks = (
        "held_out, the run's held-out rows; tasks or groups of the harness; tulu3, demo; or a "
        "folder of own tasks"
    )
    parser.add_key("tasks", "NAME,...", tasks)
    parser.add_key("limit", "N", "questions of each task (all)", type=number_between(int, 1))
    parser.add_key(
        "batch_size", "N", "questions at once (8)", type=number_between(int, 1), default=8
    )
    parser.add_key(
        "report", "BOOL", "false: leave the run's report.html as it is", type=_boolean, default=True
    )
    return _with_runs(parser, json="print one object; tasks[].verdict is better, worse or same")


def build_generate_parser() -> VerbParser:
    parser = VerbParser("""launch generate RUN [RUN ...] "PROMPT" [...] | prompts=FILE | --chat [key=value ...] [--json]

examples:
  launch generate demo/cpu1-b1a81c05 'What is "hmqx"[::-1]?'
  launch generate sft/a dpo/b "Write a haiku about GPUs." temperature=0.8 seed=1     side by side
  launch generate Qwen/Qwen2.5-0.5B sft/a "What is a deque?" "And a heap?"           the base, two prompts
  launch generate sft/a --chat                                                       a conversation
  launch generate sft/a dpo/b prompts=questions.txt out=answers.jsonl

Generate with the models of finished runs, whole or adapters, each in its own chat template and with
its own Python. The first argument is a model and the last one a prompt; between them the prompts
begin at the first with a space.

arguments:
exit codes: 0 answered; 2 a run has no model, or a prompt does not fit""")
    parser.add("names", metavar="RUN", nargs="+", help=f"{_RUN}; {_BASE}")
    parser.add_key(
        "prompts", "FILE", "one prompt a line, or .jsonl with `prompt` or `messages`", type=_path
    )
    parser.add_key("out", "FILE", "write the answers as JSON lines", type=_path)
    parser.add(
        "--chat",
        action="store_true",
        help="read the user's turns from the terminal until it ends (Ctrl-D)",
    )
    parser.add_key("system", "TEXT", "a system message ahead of each prompt")
    temperature = "0: the most likely token each time (default); above 0: sample"
    parser.add_key("temperature", "T", temperature, type=number_between(float, 0, 100), default=0.0)
    top_p = "sample from the most likely tokens with this total probability (1)"
    parser.add_key("top_p", "P", top_p, type=number_between(float, 0.001, 1), default=1.0)
    seed = "seed of the sampling, the same for every prompt and run (0)"
    parser.add_key("seed", "N", seed, type=number_between(int, 0, 2**32 - 1), default=0)
    tokens = "maximum length of an answer (256)"
    parser.add_key("max_tokens", "N", tokens, type=number_between(int, 1), default=256)
    return _with_runs(parser, json="print one object per prompt")


def build_compare_parser() -> VerbParser:
    parser = VerbParser("""launch compare RUN RUN [RUN ...] [runs=DIR] [--json]

examples:
  launch compare sft/gpu8-8fa3c2d1 sft/lower_lr
  launch compare dpo/a dpo/b dpo/c --json | jq '.runs[].loss_verdict'

Print what differs between runs (settings, data, versions, patches), their losses after the same
number of tokens, speed and peak memory. The first run is what the others are compared with;
differences within the noise that the stage's benches measured count as `same`.

arguments:
exit codes: 0 compared; 2 a run does not exist""")
    run = (
        f"{_RUN}, or RUN/step_N, the run until then; running and failed ones too; {_BASE}, of "
        "which the scores"
    )
    parser.add("names", metavar="RUN", nargs="+", help=run)
    return _with_runs(parser, json="print one object")


def build_merge_parser() -> VerbParser:
    parser = VerbParser("""launch merge RUN [runs=DIR]

examples:
  launch merge lora_sft/gpu1-8fa3c2d1

Merge a run's LoRA adapter into the model that it was trained on, write the result to RUN/merged,
and compare it with base + adapter on the run's first samples. RUN/model stays the adapter.
Tokenizer, chat template and generation config are kept. A 4-bit base is merged as its checkpoint
has it, not in 4 bit.

arguments:
exit codes: 0 the merged model is there; 2 it cannot be made, or computes something else""")
    parser.add("name", metavar="RUN", help=f"{_RUN}; or the folder of an adapter")
    return _with_runs(parser)


def build_clean_parser() -> VerbParser:
    parser = VerbParser("""launch clean [RUN] [runs=DIR] [--yes] [--json]

examples:
  launch clean                    the folders of all runs and of their shared caches; asks before it removes them
  launch clean sft/gpu8-8fa3c2d1  the folders of this run only
  launch clean --json | jq .bytes

Show the folders that can be removed, with their size: checkpoints that no run resumes from, merged
models, staged and tokenised data and reference log-probabilities, which a later run makes again.
Nothing is removed without a yes. The last checkpoint that a run resumes from is kept, and so is what
a stage, a run or a pipeline names, what a running or submitted run may use, each run's model, and
every folder that does not belong to a run.

arguments:
exit codes: 0 shown, or removed; 2 the run does not exist""")
    parser.add("name", metavar="RUN", nargs="?", help=f"{_RUN}; default: all runs and the caches")
    parser.add("--yes", action="store_true", help="remove what is listed without a question")
    help_text = "print one object; without --yes nothing is asked or removed"
    return _with_runs(parser, json=help_text)


def _with_runs(parser: VerbParser, json: str | None = None) -> VerbParser:
    """Add `runs=`, and `--json` with this help."""
    parser.add_key(
        "runs", "DIR", "the folder of the runs, if not ./runs", type=_path, default=Path("runs")
    )
    if json is not None:
        parser.add("--json", action="store_true", help=json)
    return parser


def _boolean(text: str) -> bool:
    if text not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"must be true or false, got '{text}'")
    return text == "true"


def _path(text: str) -> Path:
    """Return a path, which may be in quotes, as in the overrides of `run`."""
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        text = text[1:-1]
    return Path(text).expanduser()
