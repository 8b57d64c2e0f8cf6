"""`merge RUN`: make a whole model of a run's adapter, and prove that it computes the same."""

from __future__ import annotations

from pathlib import Path

from launch.commands.run_parsers import build_merge_parser
from launch.errors import EXIT_DONE, Problem, UserError
from launch.execution.merge import Merged, merge_adapter, read_training, refuse_unfinished
from launch.execution.record.reader import resolve_run
from launch.planning.lora import Adapter, read_adapter
from launch.terminal import echo


def merge(argv: list[str]) -> int:
    """Merge the adapter of a run, or in a folder.

    Raises UserError: usage, unknown_run, ambiguous_run, not_an_adapter, merge_unfinished, adapter_base, bad_adapter,
    merged_folder_taken, missing_packages, merge_failed, merge_differs.
    """
    options = build_merge_parser().parse(argv)
    adapter = _find_adapter(options.name, options.runs)
    echo(f"merging {adapter.folder} into {adapter.base}", flush=True)
    for line in describe(merge_adapter(adapter, read_training(adapter))):
        echo(line)
    return EXIT_DONE


def _find_adapter(name: str, runs: Path) -> Adapter:
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
        raise UserError(Problem("not_an_adapter", message, None, "it already contains the full model"))
    return adapter


def describe(merged: Merged) -> list[str]:
    """Describe a merged model in lines: where it is, and how it compares with base + adapter."""
    how = "" if merged.built else " (already there)"
    comparison = (
        f"its logits on {merged.tokens:,} tokens differ from base + adapter by {merged.error:.2g} of their standard "
        f"deviation (at most {merged.tolerance:g}); the adapter changes them by {merged.adapter_effect:.2g}"
    )
    lines = [f"the merged model is in {merged.folder}{how}", comparison]
    if merged.quantized_error is not None:
        lines.append(f"from the 4-bit base + adapter that was trained they differ by {merged.quantized_error:.2g}")
    return lines
