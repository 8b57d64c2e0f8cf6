"""Defines the arguments and the help of the verbs that do not take runs.

The module imports little, because shell completion reads it. `check` and `preview` compose a stage:
Hydra takes the rest of their line.
"""

from __future__ import annotations

from launch.commands.arguments import VerbParser, number_between
from launch.config.kinds import KINDS, DataFormat

MAX_SAMPLES = 1000  # maximum number of samples of each data set in `preview`


_FROM_LOCK = "start no script, whatever the checkout: judge from the lock"


def build_new_parser() -> VerbParser:
    parser = VerbParser("""
launch new NAME --data FILE [--model|--after] [--kind K] [--verifier V]
[--columns C] [--text|--format] [--print]

examples:
  launch new mine --data my_chats.jsonl
  launch new mine --data 'chats/*.csv' --columns prompt=frage,completion=antwort
  launch new judge --data pairs.parquet --kind rm --model qwen2_5_7b
  launch new rl --data prompts.jsonl --model runs/sft/mine       prompts to answer: RLVR
  launch new rl --data prompts.jsonl --verifier rules.py:short   RLVR with a reward function of your own
  launch new hub --data allenai/tulu-3-sft-mixture               a data set of the hub, which is not read here
  launch new polite --data pairs.jsonl --after mine              DPO from the model of stage=mine, in a pipeline

Reads the data and writes a commented stage file, stage/NAME.yaml, into LAUNCH_CONFIG_DIR or else
~/.config/launch. Pairs (chosen and rejected) make a DPO stage, or with --kind rm a reward model;
prompts without an answer, alone or with a ground_truth, an RLVR stage; everything else an SFT
stage; --text continues the training on plain text. A file that exists is never overwritten. The
last line that it prints is the next command.

arguments:
exit codes: 0 written; 2 the data can't be used, or the file exists""")
    parser.add("name", metavar="NAME", help="the stage's name: stage=NAME")
    data = (
        "a file, a folder, a glob pattern (.jsonl, .json, .csv, .tsv, .parquet, compressed too) "
        "or a hub id"
    )
    parser.add("--data", metavar="FILE", required=True, help=data)
    model = (
        "a model group (demo, llama3_1_8b, ...), a run, a hub id or a folder; default: that of "
        "the Tulu 3 stage"
    )
    parser.add("--model", metavar="MODEL", help=model)
    after = "start from the model of this run; or of this stage, in a pipeline with it"
    parser.add("--after", metavar="RUN_OR_STAGE", help=after)
    kinds = "sft, dpo, kto, rlvr or rm, a reward model; default: by the rows"
    parser.add("--kind", metavar="KIND", choices=tuple(KINDS), help=kinds)
    verifier = (
        "what scores the answers of RLVR: your function as PATH.py:FUNCTION, or exact, math, "
        "ifeval, rows; default: by the rows"
    )
    parser.add("--verifier", metavar="VERIFIER", help=verifier)
    columns = (
        "names of your columns, where launch does not recognise them; or paths, such as "
        "completion=answers.0.text"
    )
    parser.add("--columns", metavar="KNOWN=YOURS,...", help=columns)
    form = "the format of the rows, one of those of data.format; default: by the columns"
    parser.add("--format", metavar="FORMAT", choices=tuple(DataFormat), help=form)
    text = "the rows are plain text (column `text`), every token of which is learnt"
    parser.add("--text", action="store_true", help=text)
    parser.add("--print", action="store_true", help="print the stage file, write nothing")
    return parser


def build_preview_parser() -> VerbParser:
    parser = VerbParser("""launch preview stage=NAME [n=3] [tokens=A,B] [key=value ...] [--json | --html]

examples:
  launch preview stage=demo trainer=trl_sft
  launch preview stage=sft 'data.mix=[{name: my_chats.jsonl}]' recipe.chat_template=tulu n=5
  launch preview stage=dpo --html > samples.html
  launch preview stage=sft 'data.mix=[{name: a.jsonl}, {name: b.jsonl}]' tokens=70,30

Shows the first samples of each data set as the trainer will see them: the rendered chat template,
the tokens, which of them carry loss, what is cut off at recipe.max_seq_length, how a micro batch is
padded or packed, and for pairs both sides. The trainer's own code tokenises, in the trainer's
Python, on the CPU; no weights are loaded. Of hub data only these samples are downloaded.

Warned of, by id: no_loss_tokens, loss_on_user, no_end_of_turn, learnt_answer_cut, double_bos,
pad_is_end, system_dropped, calls_dropped, answer_changed, fields_dropped, padded_tools.

arguments:
exit codes: 0 shown, with or without warnings; 2 the stage or the data cannot work""")
    parser.add_key(
        "n",
        "N",
        "samples of each data set (3)",
        type=number_between(int, 1, MAX_SAMPLES),
        default=3,
    )
    parser.add_key(
        "tokens",
        "A,B,...",
        "proportion of the learnt tokens of each data set, for which the shares of data.mix are shown",
        type=_read_proportion,
    )
    form = parser.arguments.add_mutually_exclusive_group()
    form.add_argument(
        "--json",
        action="store_true",
        help="every token with its id, its text and whether it has loss",
    )
    form.add_argument("--html", action="store_true", help="a page for a browser")
    return parser


def _read_proportion(text: str) -> tuple[float, ...]:
    """Return numbers above 0 that commas separate. Raises ArgumentTypeError."""
    return tuple(number_between(float, 1e-9, 1e9)(part) for part in text.split(","))


def build_check_parser() -> VerbParser:
    parser = VerbParser("""launch check stage=NAME [key=value ...] [--rows N] [--json]

examples:
  launch check stage=sft gpus=8
  launch check stage=sft gpus=8 --json | jq '.findings[] | select(.verdict == "fail")'

Plans the stage and checks this machine for it: GPUs, packages, disk, tokens, limits, port, a second
of all-reduce. Local data is tokenised by the trainer's own code: lengths, the share that is cut
off, samples without a token that carries loss, duplicates. Hub data is not read. Starts no
training. `allow=[ID]` turns a failed rule into a warning.

arguments:
exit codes: 0 the run could start; 2 a rule failed, or the plan cannot work""")
    parser.add(
        "--rows", metavar="N", type=number_between(int, 1), help="read at most N rows of local data"
    )
    parser.add("--json", action="store_true", help="print one object with a finding for each rule")
    return parser


def build_cluster_parser() -> VerbParser:
    parser = VerbParser("""launch cluster NAME [--partition P] [--print]

examples:
  launch cluster mine --print
  launch submit stage=demo trainer=trl_sft cluster=mine dry_run=true

Drafts the configuration of the Slurm cluster that this machine belongs to, from the output of
sinfo, scontrol and sacctmgr: partition, account, time limit, CPUs per GPU, how to request GPUs,
shared folders. It is written to cluster/NAME.yaml in LAUNCH_CONFIG_DIR, or else in
~/.config/launch; review it before you use it.""")
    parser.add("name", metavar="NAME", help="the name to select it by: cluster=NAME")
    partition = (
        "partition to describe (default: of those with GPUs that are up, the default one "
        "or the largest)"
    )
    parser.add("--partition", metavar="P", help=partition)
    parser.add("--print", action="store_true", help="print the draft, write no file")
    return parser


LINT_FORMATS = ("text", "json", "github", "sarif")


def build_lint_parser() -> VerbParser:
    parser = VerbParser(
        """launch lint [FILE...] [--trainer T] [--upstream DIR] [--from-lock] [--strict] \
[--json] [--format F] [-- COMMAND]

examples:
  launch lint scripts/train/*.sh docs/
  launch lint --json job.sbatch | jq '.verdicts[] | select(.ok == false)'
  launch lint --trainer finetune configs/sft.yaml
  launch lint --upstream ~/src/open-instruct train.sh
  launch lint -- accelerate launch open_instruct/finetune.py "${ARGS[@]}"

Finds the commands that start an open-instruct or TRL trainer in shell scripts, sbatch files,
Makefiles, Dockerfiles, Markdown, notebooks, job YAML and lists of commands, and the YAML files of
flags, and checks each flag as the trainer's own parser does. No command is run. A script of a
checkout that --upstream or OPEN_INSTRUCT_DIR names is started up to its parser where its files are
not the lock's. Folders are searched for such files. Behind `--` stands one command, which the shell
has expanded.

arguments:
output, one line per problem:
  train.sh:12: dataset_mixer: finetune.py has no flag ... [unknown_flag]
  train.sh:20: warning: use_slow_tokenizer: finetune accepts --use_slow_tokenizer and never reads it [ignored_flag]
A problem means that the trainer refuses the command, or that a flag is abbreviated or given twice.
A warning does not refuse a command. A shell variable is known if the file assigns it once, at the
top level, before its use; ${X:-1} and ${X:=1} count as 1 where the file sets no X. What may start a
trainer and can't be followed (eval of a variable, a stream into a shell, a nameref, a script whose
name is a variable) is undecided, and listed by its line [not_followed].

exit code: 2 if a command is refused or a file cannot be opened, with --strict also if anything is
undecided or was not read; otherwise 0"""
    )
    parser.add("files", nargs="*", metavar="FILE", help="file, or folder to search")
    trainer = (
        "trainer that YAML files of flags are for: finetune, dpo_tune_cache, dpo, trl_sft, ..."
    )
    parser.add("--trainer", metavar="NAME", help=trainer)
    parser.add(
        "--upstream",
        metavar="DIR",
        help="open-instruct checkout to check against (.git is not needed)",
    )
    parser.add("--from-lock", action="store_true", help=_FROM_LOCK)
    parser.add("--strict", action="store_true", help="exit with 2 if anything is undecided")
    parser.add(
        "--json",
        action="store_true",
        help="print one object: the versions, a verdict per command in file order, and notes on files",
    )
    formats = "text; json: as --json; github: annotations of a GitHub Action; sarif: SARIF 2.1.0"
    parser.add("--format", default="text", metavar="FORMAT", choices=LINT_FORMATS, help=formats)
    return parser


def build_flags_parser() -> VerbParser:
    from launch.upstream.trainers import ENTRIES

    parser = VerbParser("""launch flags TRAINER [PATTERN] [--upstream DIR] [--python PYTHON] [--from-lock] [--json]

examples:
  launch flags finetune
  launch flags dpo_tune_cache mixer
  launch flags trl_sft --json | jq '.flags.max_length.default'
  launch flags dpo --upstream ~/src/open-instruct

List a trainer's flags: type, default, choices, help, source line, and renamed or removed flags. The
help is read from the trainer's source, the checkout or the installed TRL: without that it is
unknown, and what brings it is printed.

arguments:
PATTERN is part of a name, or a glob: `launch flags finetune learning`, `launch flags dpo
'*_ratio'`. '*' before a name: the flag is required. 'not settable': the command line can't set
it.""")
    parser.add("trainer", metavar="TRAINER", help=", ".join(ENTRIES))
    parser.add(
        "pattern",
        metavar="PATTERN",
        nargs="?",
        help="list only flags whose name contains it, or matches it as *_ratio does",
    )
    parser.add(
        "--upstream",
        metavar="DIR",
        help="the open-instruct checkout to read (with or without .git)",
    )
    parser.add(
        "--python",
        metavar="PYTHON",
        help="the interpreter that has the trainer's packages (default: this one)",
    )
    content = "print one object: schema_version, trainer, source, flags, renames, unknown"
    parser.add("--from-lock", action="store_true", help=_FROM_LOCK)
    parser.add("--json", action="store_true", help=content)
    return parser


def build_upstream_parser() -> VerbParser:
    parser = VerbParser("""launch upstream [status] [--upstream DIR] [--json]

examples:
  launch upstream
  launch upstream --json | jq .checkout.differing

Show the pinned open-instruct commit, and whether the checkout and the gitlink match it. To compare
another commit with the pin, or to move the pin, run `python -m maintain` in a clone of the project:
its tools are not part of the installed package.""")
    parser.add(
        "action",
        metavar="ACTION",
        nargs="?",
        choices=("status",),
        default="status",
        help="status, which may be left out",
    )
    parser.add("--upstream", metavar="DIR", help="the checkout (default: the one that runs use)")
    parser.add("--json", action="store_true", help="print one object")
    return parser


def build_version_parser() -> VerbParser:
    parser = VerbParser("""launch version [--json]

examples:
  launch --version
  launch version --json | jq .packages.torch

Prints the version of launch, the pinned commit of open-instruct and the checkout that would be
used, and the packages of this interpreter. A run records those of the trainer's own interpreter in
versions.json.""")
    parser.add("--json", action="store_true", help="print one object")
    return parser


def build_schema_parser() -> VerbParser:
    parser = VerbParser("""launch schema [--json]

examples:
  launch schema > stage.schema.json
  launch schema | jq .properties.recipe.properties.packing

Prints the JSON Schema of a stage file: every key with its type, range, default and meaning. `launch
new` writes it beside the stages and names it in a stage's first line, so that editors complete keys
and underline mistakes.""")
    parser.add("--json", action="store_true", help="the same: the schema is JSON")
    return parser


def build_help_parser() -> VerbParser:
    parser = VerbParser("""launch help [VERB]

examples:
  launch help            every verb in one line
  launch help rollout    one verb: examples, options, exit codes
  launch help keys       the keys used most, and the stages, models, trainers and data sets there are
  launch help gpus       the GPUs whose memory and speed `plan` knows

Explain a verb, or list all of them.""")
    parser.add("topic", metavar="VERB", nargs="?", help="a verb, `keys` or `gpus`")
    return parser
