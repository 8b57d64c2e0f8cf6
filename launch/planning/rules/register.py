"""The lists of planning's rules that need code, and how a plan is judged by them."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from launch.errors import UserError
from launch.planning.plan import Plan
from launch.planning.rules import (
    adapters,
    cards,
    data,
    flags,
    labels,
    learnt,
    rlvr,
    streaming,
    templates,
    tracking,
    validation,
    whole_plan,
)
from launch.planning.rules.plan_rule import Case, FlagsCase, PlanRule, SettingsCase
from launch.worker.finding import Finding

# Each list in the order in which its findings are reported.
SETTINGS_RULES: tuple[PlanRule[SettingsCase], ...] = (
    learnt.trainer_learns_what_is_requested,
    learnt.text_is_learnt_as_a_whole,
    learnt.text_is_packed,
    rlvr.batch_holds_whole_groups,
    rlvr.window_has_room_for_prompts,
    adapters.adapter_has_a_rank,
    adapters.adapted_layers_exist,
    adapters.names_beside_the_layers_are_lists,
    adapters.named_modules_and_parameters_exist,
    adapters.rank_fits,
    adapters.continued_adapter_keeps_its_settings,
    cards.named_card_is_known,
    data.cache_has_no_wildcards,
    validation.trainer_evaluates,
    validation.held_out_rows_are_found,
    validation.validation_files_are_not_trained_on,
    validation.evaluations_have_data,
    validation.evaluations_come_before_the_end,
    validation.best_checkpoint_is_saved,
    tracking.tensorboard_is_installed,
    tracking.wandb_has_an_entity,
    tracking.tracker_has_its_variable,
)
FLAGS_RULES: tuple[PlanRule[FlagsCase], ...] = (
    data.both_splits_have_rows,
    data.epoch_fills_a_batch,
    data.reference_pass_has_rows,
    flags.names_exist,
    flags.begin_token_fits_the_template,
    flags.rows_are_a_power_of_two,
    flags.model_has_a_preset,
    data.system_turns_are_of_staged_rows,
    flags.rings_have_their_package,
    data.evaluation_has_data,
    labels.both_labels_are_there,
    labels.most_steps_have_both_labels,
    labels.weights_balance_the_labels,
    streaming.data_set_is_streamed,
    streaming.streamed_data_is_bounded_by_steps,
    streaming.nothing_needs_the_rows_before_they_are_streamed,
    learnt.marked_rows_are_local,
    learnt.built_data_is_no_text,
    templates.there_is_a_template,
    templates.answers_are_marked,
    templates.preferences_keep_the_template,
    tracking.flags_follow_tracking_and_push,
    rlvr.learners_and_engines_take_all_gpus,
    rlvr.server_has_two_ports,
    rlvr.server_has_a_gpu,
    rlvr.server_is_on_the_only_machine,
    rlvr.server_shares_the_only_gpu,
    rlvr.sampling_sees_small_updates,
)
PLAN_RULES: tuple[PlanRule[Plan], ...] = (
    data.best_model_is_saved,
    data.steps_are_more_than_a_smoke_test,
    templates.family_has_later_templates,
    templates.template_is_the_locked_one,
    whole_plan.loss_is_independent_of_the_split,
    whole_plan.shape_has_its_parameters,
    whole_plan.flags_are_verified,
    whole_plan.visible_gpus_are_used,
    whole_plan.world_size_is_not_set,
    rlvr.slurm_has_cpus_for_ray,
    whole_plan.packed_rows_have_flash_attention,
    whole_plan.tuned_settings_were_measured_here,
    whole_plan.epochs_decide_the_end,
    whole_plan.fraction_is_a_share,
)
# All of them, as the page of rules and `allow` have them.
RULES: tuple[PlanRule[SettingsCase] | PlanRule[FlagsCase] | PlanRule[Plan], ...] = (
    *SETTINGS_RULES,
    *FLAGS_RULES,
    *PLAN_RULES,
)


def check_settings(case: SettingsCase, rows: Iterable[Finding]) -> list[Finding]:
    """Check the settings by the rules. `rows` is what the table's rows find of them.

    Returns what stops nothing. Raises UserError, with all problems.
    """
    return _split([*rows, *_find(SETTINGS_RULES, case, case.config.allow)])


def check_flags_together(case: FlagsCase) -> list[Finding]:
    """Check that flags go with each other, with the model and with the data.

    Returns what stops nothing. Raises UserError, with all problems.
    """
    return _split(_find(FLAGS_RULES, case, case.config.allow))


def find_plan_warnings(plan: Plan) -> list[Finding]:
    """Return the warnings about a finished plan."""
    return _find(PLAN_RULES, plan, plan.config.allow)


def _find(rules: Iterable[PlanRule[Case]], case: Case, allow: Collection[str]) -> list[Finding]:
    findings = []
    for rule in rules:
        findings += [rule.finish(finding, allow) for finding in rule.judge(case)]
    return findings


def _split(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings that stop nothing, as warnings. Raises UserError with the others."""
    problems: list[Finding] = []
    shown: list[Finding] = []
    for finding in findings:
        if finding.stops:
            problems.append(finding)
        else:
            shown.append(finding.as_warning())
    if problems:
        raise UserError(problems)
    return shown
