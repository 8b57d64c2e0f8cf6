"""Renders the batch scripts in scripts/: those of `submit`, without paths of one machine, to sbatch by hand.

`python -m launch.slurm.wrappers --write` writes them; a test names those that are out of date.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from launch import resources
from launch.config.compose import compose_once
from launch.config.line import CommandLine
from launch.errors import EXIT_DONE, EXIT_REFUSED
from launch.files import write_file
from launch.planning.machine import this_machine
from launch.planning.plan import build_plan
from launch.slurm.jobs import JobFolder
from launch.slurm.planned_jobs import batch_script
from launch.slurm.script import render_sbatch
from launch.terminal import echo

FOLDER = resources.ROOT / "scripts"
PYTHON = ".venv/bin/python"
# explains itself when the job is submitted from another folder
GUARD = f"test -x {PYTHON} || {{ echo 'sbatch this from the clone, after ./scripts/setup' >&2; exit 2; }}"
WRITER = "python -m launch.slurm.wrappers --write"
_CPUS = "cluster.cpus_per_rank=4"  # every node with eight GPUs has 32 CPUs, and not every one has 64
# script -> the overrides of the `submit` that would render it
WRAPPERS: dict[str, tuple[str, ...]] = {
    "demo_2nodes": ("stage=demo", "trainer=trl_sft", "nodes=2", "recipe.max_steps=20", "name=2nodes", _CPUS),
    "sft_1node": ("stage=sft", "gpus=8", "name=1node", _CPUS),
    "sft_4nodes": ("stage=sft", "nodes=4", "gpus=8", "name=4nodes", _CPUS),
    "dpo_1node": ("stage=dpo", "gpus=8", "name=1node", _CPUS),
    "dpo_4nodes": ("stage=dpo", "nodes=4", "gpus=8", "name=4nodes", _CPUS),
    "dpo_after_sft": ("stage=dpo", "gpus=8", "model.path=runs/sft/4nodes/model", "name=after-sft-4nodes", _CPUS),
    "rm_1node": ("stage=rm", "gpus=8", "name=1node", _CPUS),
}


def render_wrapper(name: str) -> str:
    """Render scripts/NAME.sbatch."""
    composed = compose_once(CommandLine("submit", False, WRAPPERS[name]))
    plan = build_plan(composed, this_machine(composed))
    folder = JobFolder.of(Path(plan.config.runs), plan.stage, plan.name).path  # relative: to the clone
    script = batch_script(plan, folder, "%x-%j.log", exports={}, cwd="", python=PYTHON)
    cluster = replace(script.cluster, setup=[GUARD, *script.cluster.setup])
    return render_sbatch(replace(script, cluster=cluster, written_by=WRITER))


def wrapper_path(name: str) -> Path:
    return FOLDER / f"{name}.sbatch"


def main(argv: Sequence[str]) -> int:
    """Write the scripts anew."""
    if list(argv) != ["--write"]:
        echo(WRITER, file=sys.stderr)
        return EXIT_REFUSED
    for name in WRAPPERS:
        write_file(wrapper_path(name), render_wrapper(name), 0o755)
    return EXIT_DONE


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
