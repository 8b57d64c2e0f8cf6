"""The rules of chat templates: there has to be one, with the marks that the trainer's masks need, and
preferences have the template of the run whose model they start from.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launch.config.kinds import DataFormat, Kind
from launch.files import load_json
from launch.planning.chat_template import (
    TEMPLATE_KEY,
    brings_template,
    find_template_name,
    find_text,
    other_template_problem,
    read_template,
)
from launch.planning.hub_cache import hub_snapshot
from launch.planning.plan import Plan
from launch.planning.rules.plan_rule import FlagsCase, plan_rule
from launch.rules.code import failed, warned
from launch.upstream.trl_templates import family_names, has_marks, load_templates
from launch.worker.finding import Finding, Fix


@dataclass(frozen=True)
class _Use:
    """The chat template that a run gets."""

    name: str | None  # None: the tokenizer's own
    tokenizer: Path | None  # the folder that has it; None if it is not on this machine

    def describe(self) -> str:
        if self.name is None:
            return f"the chat template of {self.tokenizer}"
        return f"recipe.chat_template={self.name}"


def _find_use(case: FlagsCase) -> _Use:
    model = case.inputs.model
    folder = model.adapter.folder if model.adapter else model.local
    tokenizer = folder or hub_snapshot(model.reference, case.machine.environ)
    given = case.values.get("tokenizer_name_or_path")
    if given:
        tokenizer = Path(str(given))
    return _Use(find_template_name(case.values, case.options), tokenizer)


@plan_rule("no_chat_template")
def there_is_a_template(case: FlagsCase) -> Iterator[Finding]:
    """Without a chat template no conversation becomes tokens."""
    use = _find_use(case)
    if case.config.data.format == DataFormat.text:
        return
    if use.name is not None or use.tokenizer is None or read_template(use.tokenizer) is not None:
        return
    if not (use.tokenizer / "tokenizer_config.json").is_file():
        return
    message = (
        f"the tokenizer in {use.tokenizer} has no chat template, and recipe.chat_template is not "
        "set"
    )
    cure = Fix.of(
        "set {0} or another template, or start from a chat model", "recipe.chat_template=tulu"
    )
    yield failed(message, cure, case.inputs.model.provenance.where)


@plan_rule("no_generation_marks")
def answers_are_marked(case: FlagsCase) -> Iterator[Finding]:
    """TRL trains on the answers alone where the template marks them, and fails without the marks."""
    use = _find_use(case)
    if case.values.get("assistant_only_loss") is not True or _marks_answers(case, use):
        return
    message = (
        f"{use.describe()} does not mark the answers ({{% generation %}}), which "
        f"{case.trainer.name}'s masks need"
    )
    sentence = (
        "set recipe.chat_template to one that does, {0}, which needs no marks, or {1}: "
        "a loss on all turns"
    )
    cure = Fix.of(sentence, "trainer=finetune", "flags.assistant_only_loss=false")
    yield failed(message, cure, case.origins.of(TEMPLATE_KEY).where)


def _marks_answers(case: FlagsCase, use: _Use) -> bool:
    """Return whether a template marks the answers; true for one that is not on this machine."""
    if use.name is not None:
        text, trl = find_text(use.name, case.finder)
        if trl is not None:
            return trl.marks_answers
    else:
        text = read_template(use.tokenizer) if use.tokenizer else None
    return text is None or has_marks(text) or case.finder.has_training_form(text)


@plan_rule("other_chat_template", allow=True)
def preferences_keep_the_template(case: FlagsCase) -> Iterator[Finding]:
    """A model that answers in one template does not know another one: its log-probabilities are those
    of texts that it never saw.
    """
    model = case.inputs.model
    folder = model.adapter.folder if model.adapter else model.local
    template = find_template_name(case.values, case.options)
    if case.config.stage.kind == Kind.sft or template is None or folder is None:
        return
    run = folder.parent
    try:
        plan: dict[str, Any] = load_json(run / "plan.json")
        recorded = {name: flag["value"] for name, flag in plan["flags"].items()}
        trained = find_template_name(recorded, [*plan["patches"], *plan.get("options", ())])
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return  # not the model of a run
    if brings_template(folder, template, case.finder):
        return
    trained = trained or "the tokenizer's own"
    problem = other_template_problem(template, trained, f"the run in {run}", case.origins)
    if problem is not None:
        yield problem


@plan_rule("first_of_family", severity="warning")
def family_has_later_templates(plan: Plan) -> Iterator[Finding]:
    """The first template of some families has the family's name, as gemma has, and later models have
    another one.
    """
    template = plan.template
    if template is None or template.trl is None:
        return
    pattern = rf"{re.escape(template.name)}\d\w*"
    others = [other for other in sorted(plan.finder.names()) if re.fullmatch(pattern, other)]
    later = [other for other in others if family_names(other)[0] == other]
    if later:
        message = f"recipe.chat_template={template.name} is the format of the family's first models"
        yield warned(message, f"later ones have {', '.join(later)}", TEMPLATE_KEY)


@plan_rule("other_template_text", severity="warning")
def template_is_the_locked_one(plan: Plan) -> Iterator[Finding]:
    """The installed TRL may have another text of a template than the locked version, and then trains
    on other tokens.
    """
    template = plan.template
    locked = load_templates()
    if template is None or template.trl is None or template.name not in locked.digests:
        return
    if template.trl.is_locked:
        return
    message = (
        f"the chat template {template.name} {template.trl.source} is another text than "
        f"TRL {locked.trl}'s"
    )
    cure = "it is used, and the run's identity follows it; name a .jinja file for another text"
    yield warned(message, cure, TEMPLATE_KEY)
