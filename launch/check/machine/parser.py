"""The trainer's own parser, asked with the very command line before anything is started."""

from __future__ import annotations

from pathlib import Path

from launch.check.machine.rule import Host, failed, passed, rule, skipped
from launch.check.machine.trainer import install_hint, interpreter_has_packages, run_environment
from launch.config.schema import Device, Family
from launch.planning.flags import values_of
from launch.planning.plan import Plan
from launch.upstream.capture.start import ask_parser
from launch.upstream.resolve import version_difference
from launch.upstream.rules.contradictions import find_contradictions
from launch.worker.finding import Finding
from launch.worker.patches import olmo_core


@rule("parser_refuses", "parser", slow=True, is_first=True)
def parser_accepts(plan: Plan, host: Host) -> Finding:
    """The trainer's own parser decides, in its interpreter and with the very command line,
    `__post_init__` included.
    """
    trainer, root = plan.config.trainer, plan.upstream.checkout
    if trainer.family == Family.open_instruct and root is None:
        return skipped("there is no checkout")
    if (
        trainer.family == Family.trl
        and plan.parallel.width.device == Device.cuda
        and not (host.gpus and host.gpus.seen)
    ):
        return skipped(f"{trainer.entry} checks the GPU, and this machine has none")
    python = plan.command[0]
    if interpreter_has_packages.inspect(plan, host).severity == "fail":
        return skipped("the trainer's packages are missing")
    verdict = ask_parser(
        trainer.entry,
        root if trainer.family == Family.open_instruct else None,
        python,
        plan.command[plan.command.index("--") + 1 :],
        key=plan.identity,
        environ=run_environment(plan, host),
        has_placeholders=olmo_core.UNUSED_IMPORTS.id in plan.patches,
    )
    if verdict.accepted is None:
        is_late = "did not end" in verdict.message
        cure = (
            "check whether the file system of its packages is slow"
            if is_late
            else install_hint(plan)
        )
        message = f"{trainer.entry} can't be brought to its parser: {verdict.message}"
        return Finding.error("import_fails", message, "python", cure)
    if not verdict.accepted:
        return failed(
            f"{trainer.entry}'s own parser refuses the command: {verdict.message}",
            _explain_refusal(plan),
        )
    asked = f", asked in {verdict.seconds:.1f} s" if verdict.seconds else " (asked before)"
    return passed(f"{Path(trainer.entry).name} accepts the command{asked}")


def _explain_refusal(plan: Plan) -> str:
    """Say why the plan accepted what the parser refuses."""
    values = values_of(plan.flags)
    found = find_contradictions(plan.machine.schemas[plan.trainer], values)
    about_machine = next(
        (contradiction.where for contradiction in found if contradiction.certain is False), None
    )
    if not plan.upstream.matches_pin:
        return f"the plan was made from the lock: {plan.upstream.description}"
    if difference := version_difference(plan.machine.packages):
        return f"the plan was made from the lock, and {difference}"
    if about_machine:
        return f"it may depend on this machine ({about_machine})"
    return (
        "the plan accepts it at the pin with the locked packages: this is a defect of launch, "
        "please open an issue "
        "with this message and the output of `launch version`"
    )
