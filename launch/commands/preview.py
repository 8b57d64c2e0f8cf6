"""`launch preview`: show samples as the trainer will see them."""

from __future__ import annotations

import os
import sys

from launch.commands.tool_parsers import build_preview_parser
from launch.config.compose import Composed, compose
from launch.config.line import CommandLine
from launch.data.samples import find_sample_problems
from launch.errors import EXIT_DONE
from launch.execution.preview import describe_samples, legend, render_page, tokenize_samples
from launch.planning.machine import this_machine
from launch.planning.plan import build_plan
from launch.terminal import echo, notify, print_json
from launch.worker.json_codec import SCHEMA_VERSION


def preview(line: CommandLine) -> int:
    """Print samples of the composed stage. Raises UserError: those of VerbParser.pop; preview_failed."""
    options, rest = build_preview_parser().pop(line)

    def show(composed: Composed) -> int:
        # an epoch that is too small to train on can be looked at
        plan = build_plan(composed, this_machine(composed), reads_rows=False)
        notify(f"starting {plan.trainer} to tokenize the samples")
        data = tokenize_samples(plan, rows=options.n, detail=options.n)
        problems = find_sample_problems(data)
        recipe = plan.config.recipe
        template = recipe.chat_template or "the tokenizer's own"
        limit = f"at most {recipe.max_seq_length} tokens"
        notes = [f"{plan.trainer}, chat template {template}, {limit}, packing {recipe.packing}"]
        if data.batch is not None:
            notes.append(f"a micro batch of these samples: {data.batch.describe()}")
        if options.json:
            payload = {
                "schema_version": SCHEMA_VERSION,
                "stage": plan.stage,
                "trainer": plan.trainer,
                "samples": data.samples,
                "batch": data.batch,
                "warnings": problems,
            }
            print_json(payload)
            return EXIT_DONE
        if options.html:
            echo(render_page(f"{plan.stage}: samples", data, notes, problems), end="")
            return EXIT_DONE
        colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        for text in (*describe_samples(data, colour=colour), *notes, legend(data, colour=colour)):
            echo(text, coloured=True)
        for problem in problems:
            notify(f"warning: {problem}")
        return EXIT_DONE

    return compose(rest, show)
