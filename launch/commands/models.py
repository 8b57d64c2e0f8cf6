"""The verbs of a trained model: `generate` answers, `eval` scores it, `merge` merges an adapter."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

from launch.commands.run_parsers import build_eval_parser, build_generate_parser, build_merge_parser
from launch.errors import EXIT_DONE, EXIT_STOPPED, UserError, refusal
from launch.evaluation.evaluate import describe_scores, evaluate_model
from launch.evaluation.generation import (
    Answer,
    Messages,
    Sampling,
    as_conversation,
    open_responder,
    read_prompts,
)
from launch.evaluation.models import ModelSource, find_model
from launch.evaluation.suites import default_tasks, find_specs
from launch.execution.merge import Merged, merge_adapter, read_training, refuse_unfinished
from launch.execution.record.run import Run
from launch.execution.report.page import write_run_report
from launch.files import write_json_lines
from launch.planning.adapter import Adapter, read_adapter
from launch.planning.find_runs import resolve_newest, resolve_run
from launch.terminal import echo, notify, print_json
from launch.worker.finding import Fix
from launch.worker.json_codec import to_json, versioned


def generate(argv: list[str]) -> int:
    """Print or write the answers of the named models.

    Raises UserError: those of VerbParser.parse; bad_prompts, out_not_writable; those of find_model
    and open_responder; prompt_too_long, generation_failed.
    """
    parser = build_generate_parser()
    options = parser.parse(argv)
    names, conversations = _read_conversations(options, parser.usage)
    models = _find_models(names, options.runs)
    sampling = Sampling(
        seed=options.seed,
        temperature=options.temperature,
        top_p=options.top_p,
        max_tokens=options.max_tokens,
    )
    if options.chat:
        _chat(models, sampling, options.system)
        return EXIT_DONE
    out: Path | None = options.out
    if out is not None:
        _write(out)
    answers = _answer_all(models, conversations, sampling)
    rows = list(_as_rows(models, conversations, answers, sampling))
    if out is not None:
        _write(out, rows)
        echo(f"wrote {len(rows)} answers of {len(models)} models to {out}", file=sys.stderr)
    elif options.json:
        for row in rows:
            print_json(row, None)
    else:
        echo("\n".join(_describe(models, conversations, answers)))
    return EXIT_DONE


def _find_models(names: Sequence[str], runs: Path) -> list[ModelSource]:
    """Return the named models. Raises UserError: those of find_model.

    Of several names, one that is unknown may be a prompt without quotes.
    """
    try:
        return [find_newest(name, runs) for name in names]
    except UserError as error:
        problem = error.problems[0]
        if problem.id != "unknown_run" or len(names) < 2:
            raise
        cure = Fix(f"{problem.cure}; a prompt is put in quotes")
        raise UserError(replace(problem, cure=cure)) from None


def find_newest(name: str, runs: Path) -> ModelSource:
    """Return the model that a name means. If it matches several runs, print a note and return the
    model of the newest finished run.

    Raises UserError: those of find_model.
    """
    try:
        return find_model(name, runs)
    except UserError as error:
        if error.problems[0].id != "ambiguous_run":
            raise
        return find_model(str(resolve_newest(name, runs, notify, only_finished=True)), runs)


def _read_conversations(
    options: argparse.Namespace, usage: str | None
) -> tuple[list[str], list[Messages]]:
    """Return the names of the models, and a conversation per prompt; none for a chat.

    Raises UserError: usage.
    """
    names: list[str] = options.names
    takes_prompt = not (options.chat or options.prompts)
    lacks_prompt = takes_prompt and len(names) < 2
    if lacks_prompt or (options.chat and options.prompts):
        message = "'generate' takes models, followed by prompts"
        raise refusal("usage", message, "command line", usage)
    if options.chat:
        return names, []
    if options.prompts:
        return names, read_prompts(options.prompts, options.system)
    count = _count_models(names)
    prompts = names[count:]
    return names[:count], [as_conversation(prompt, options.system) for prompt in prompts]


def _count_models(arguments: Sequence[str]) -> int:
    """Return how many of the arguments are models; the others are prompts.

    The first is a model and the last a prompt. Between them, the prompts begin at the first argument
    with a blank that is not a folder.
    """
    last = len(arguments) - 1
    for index in range(1, last):
        if " " in arguments[index] and not Path(arguments[index]).is_dir():
            return index
    return last


def _answer_all(
    models: Sequence[ModelSource], conversations: Sequence[Messages], sampling: Sampling
) -> list[list[Answer]]:
    """Return the answers of each model to all conversations."""
    answers: list[list[Answer]] = []
    for model in models:
        notify(f"loading {model.label}")
        with open_responder(model) as responder:
            responder.refuse_long_prompts(conversations)
            model_answers = [responder.answer(prompt, sampling) for prompt in conversations]
            answers.append(model_answers)
    return answers


def _chat(models: Sequence[ModelSource], sampling: Sampling, system: str | None) -> None:
    """Hold a conversation with each model at once until stdin ends."""
    with ExitStack() as stack:
        notify(f"loading {', '.join(model.label for model in models)}")
        responders = [stack.enter_context(open_responder(model)) for model in models]
        conversations: list[Messages] = [as_conversation("", system)[:-1] for _ in models]
        for turn in _read_turns():
            chats = zip(models, responders, conversations, strict=True)
            for model, responder, conversation in chats:
                conversation.append({"role": "user", "content": turn})
                responder.refuse_long_prompts([conversation])
                answer = responder.answer(conversation, sampling)
                conversation.append({"role": "assistant", "content": answer.text})
                label = f"[{model.label}] " if len(models) > 1 else ""
                echo(f"{label}{answer.text}", flush=True)


def _read_turns() -> Iterator[str]:
    """Yield the lines of stdin that are not empty, with a prompt at a terminal."""
    with suppress(EOFError):
        while True:
            turn = input("> " if sys.stdin.isatty() else "").strip()
            if turn:
                yield turn


def _describe(
    models: Sequence[ModelSource],
    conversations: Sequence[Messages],
    answers: Sequence[Sequence[Answer]],
) -> Iterator[str]:
    """Yield the answers; with headings where there are several."""
    for number, conversation in enumerate(conversations):
        if len(conversations) > 1:
            yield f"# {conversation[-1]['content']}"
        for model, model_answers in zip(models, answers, strict=True):
            answer = model_answers[number]
            if len(models) > 1:
                yield f"== {model.label}"
            yield answer.text
            if not answer.finished:
                yield f"[cut off after {answer.tokens} tokens; max_tokens=N allows more]"


def _as_rows(
    models: Sequence[ModelSource],
    conversations: Sequence[Messages],
    answers: Sequence[Sequence[Answer]],
    sampling: Sampling,
) -> Iterator[dict[str, object]]:
    """Yield the JSON of each conversation, with the answers by model."""
    for number, conversation in enumerate(conversations):
        by_model = {}
        for model, model_answers in zip(models, answers, strict=True):
            by_model[model.label] = to_json(model_answers[number])
        yield versioned({"messages": conversation, "seed": sampling.seed, "answers": by_model})


def _write(path: Path, rows: Sequence[Mapping[str, object]] = ()) -> None:
    """Write the answers; without rows, only check that the file can be written.

    Raises UserError: out_not_writable.
    """
    try:
        if rows:
            write_json_lines(path, rows)
        else:
            # This name is as long as the temporary one under which the answers are written.
            temporary = path.with_name(f".{path.name}.{os.getpid()}")
            temporary.touch()
            temporary.unlink()
    except OSError as error:
        message = f"{path} cannot be written: {error.strerror}"
        raise refusal("out_not_writable", message, "override out", "set another file") from error


def eval(argv: list[str]) -> int:
    """Evaluate a run and print the scores.

    Raises UserError: those of VerbParser.parse, find_model, find_specs and evaluate_model.
    """
    options = build_eval_parser().parse(argv)
    model = find_newest(options.name, options.runs)
    cache = options.runs.absolute() / ".cache"
    specs = find_specs(options.tasks or default_tasks(model.run), cache, model.run)
    evaluation = evaluate_model(
        model, specs, cache=cache, limit=options.limit, batch_size=options.batch_size, notify=notify
    )
    if options.report and model.run is not None:
        write_run_report(Run(model.run), notify)
    if options.json:
        print_json(versioned(evaluation))
    else:
        echo("\n".join(describe_scores(evaluation)))
    return EXIT_STOPPED if evaluation.is_broken else EXIT_DONE


def merge(argv: list[str]) -> int:
    """Merge the adapter of a run, or in a folder.

    Raises UserError: usage, unknown_run, ambiguous_run, not_an_adapter, merge_unfinished,
    other_format, adapter_base, bad_adapter, merged_folder_taken, missing_packages, merge_failed,
    merge_differs.
    """
    options = build_merge_parser().parse(argv)
    adapter = _find_adapter(options.name, options.runs)
    echo(f"merging {adapter.folder} into {adapter.base}", flush=True)
    for line in describe_merged(merge_adapter(adapter, read_training(adapter))):
        echo(line)
    return EXIT_DONE


def _find_adapter(name: str, runs: Path) -> Adapter:
    """Return the adapter in a folder, or that of a finished run.

    Raises UserError: unknown_run, ambiguous_run, not_an_adapter, merge_unfinished, other_format.
    """
    folder = Path(name).expanduser().absolute()
    adapter = read_adapter(folder)
    if adapter is not None:
        if (folder.parent / "plan.json").is_file() and folder.name == "model":
            refuse_unfinished(folder.parent)
        return adapter
    run = resolve_run(name, runs)
    refuse_unfinished(run)
    adapter = read_adapter(run / "model")
    if adapter is None:
        message = f"{run / 'model'} is not an adapter: there is nothing to merge"
        raise refusal("not_an_adapter", message, None, "it already contains the full model")
    return adapter


def describe_merged(merged: Merged) -> list[str]:
    """Describe a merged model in lines: where it is, and how it compares with base + adapter."""
    existing = "" if merged.built else " (already there)"
    comparison = (
        f"its logits on {merged.tokens:,} tokens differ from base + adapter by {merged.error:.2g} "
        f"of their standard deviation (at most {merged.tolerance:g}); "
        f"the adapter changes them by {merged.adapter_effect:.2g}"
    )
    lines = [f"the merged model is in {merged.folder}{existing}", comparison]
    if merged.quantized_error is not None:
        trained = "the 4-bit base + adapter that was trained"
        lines.append(f"from {trained} they differ by {merged.quantized_error:.2g}")
    return lines
