"""The trainer's own parser, asked with the very command line before anything is started."""

from __future__ import annotations

from pathlib import Path

from launch.check.machine.rule import Host, rule
from launch.check.machine.trainer import install_hint, interpreter_has_packages, run_environment
from launch.config.schema import Device, Family
from launch.planning.flags import values_of
from launch.planning.plan import Plan
from launch.rules.code import failed, passed, skipped
from launch.upstream.capture.start import ask_parser
from launch.upstream.resolve import version_difference
from launch.upstream.rules.contradictions import find_contradictions
from launch.worker.finding import Finding, Fix
from launch.worker.moves import follow_shim, path_at_pin
from launch.worker.patches import olmo_core


@rule("parser_refuses", "parser", slow=True, is_first=True)
def parser_accepts(plan: Plan, host: Host) -> Finding:
    """The trainer's own parser decides, in its interpreter and with the very command line,
    `__post_init__` included.
    """
    trainer = plan.config.trainer
    root = plan.upstream.checkout if trainer.family == Family.open_instruct else None
    if trainer.family == Family.open_instruct and root is None:
        return skipped("there is no checkout")
    needs_gpu = trainer.family == Family.trl and plan.parallel.width.device == Device.cuda
    has_gpu = host.gpus is not None and bool(host.gpus.seen)
    if needs_gpu and not has_gpu:
        return skipped(f"{trainer.entry} checks the GPU, and this machine has none")
    python = plan.command[0]
    if interpreter_has_packages.judge(plan, host).severity == "fail":
        return skipped("the trainer's packages are missing")
    entry = path_at_pin(trainer.entry)
    verdict = ask_parser(
        follow_shim(root, entry) if root else entry,
        root,
        python,
        plan.command[plan.command.index("--") + 1 :],
        key=plan.identity,
        environ=run_environment(plan, host),
        has_placeholders=olmo_core.UNUSED_IMPORTS.id in plan.patches,
    )
    if verdict.accepted is None:
        cure: Fix | str = install_hint(plan)
        if "did not end" in verdict.message:
            cure = "check whether the file system of its packages is slow"
        message = f"{trainer.entry} can't be brought to its parser: {verdict.message}"
        return Finding.error("import_fails", message, "python", cure)
    if not verdict.accepted:
        message = f"{trainer.entry}'s own parser refuses the command: {verdict.message}"
        return failed(message, _explain_refusal(plan))
    asked = f", asked in {verdict.seconds:.1f} s" if verdict.seconds else " (asked before)"
    return passed(f"{Path(trainer.entry).name} accepts the command{asked}")


def _explain_refusal(plan: Plan) -> str:
    """Explain why the plan accepted what the parser refuses."""
    if not plan.upstream.matches_pin:
        return f"the plan was made from the lock: {plan.upstream.description}"
    difference = version_difference(plan.machine.packages)
    if difference:
        return f"the plan was made from the lock, and {difference}"
    schema = plan.machine.schemas[plan.trainer]
    for contradiction in find_contradictions(schema, values_of(plan.flags)):
        if contradiction.certain is False and contradiction.where:
            return f"it may depend on this machine ({contradiction.where})"
    return (
        "the plan accepts it at the pin with the locked packages: this is a defect of launch, "
        "please open an issue with this message and the output of `launch version`"
    )
