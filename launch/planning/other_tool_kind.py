"""Finds what another tool's file or line trains, by a method's name, the settings or the rows."""

from __future__ import annotations

from launch.config.kinds import KINDS, Kind
from launch.config.other_tool_files import AXOLOTL, LINE, LLAMA_FACTORY, TRL_TOOL
from launch.planning.other_tool_values import Translation

# The kinds of data whose rows no other kind has, and what these are.
_OWN_FORM = {Kind.dpo: "pairs of answers", Kind.kto: "answers with a label"}
_OF_PAIRS = ("orpo", "cpo")  # methods without a stage that train on the pairs of DPO
# Settings of a line that say what is trained.
_OF_REWARDS = frozenset(
    ("reward", "rewards", "reward_funcs", "reward_function", "reward_fn", "num_generations")
)
_OF_PREFERENCES = frozenset(("beta", "dpo_beta", "rl_beta", "pref_beta", "loss_type", "pref_loss"))


def find_kind(t: Translation, method: str) -> str:
    """Return what is trained, one of `Kind`.

    A method that launch has no stage for is recorded as missing, and so are rows of another form
    than the stage needs. `method` is the one that a line names: a stage, or a method of another
    tool.
    """
    if t.tool == LINE and not method:
        method = _method_of_line(t)
    kind = _as_stage(t, method or _method_of_file(t))
    if kind in _OF_PAIRS:
        t.differences.append(
            f"{kind}: DPO is trained here, on the same pairs with a reference model"
        )
        kind = "dpo"
    if kind not in KINDS:
        t.missing.append(f"a stage that trains {kind}: there are {', '.join(KINDS)}")
        return "sft"
    if t.tool == LINE and t.rows is not None:
        due = KINDS[Kind(kind)].data
        given = t.rows.kind
        if (due in _OWN_FORM or given == Kind.dpo) and due != given:
            fitting = given if given in _OWN_FORM else Kind.sft
            needed = _OWN_FORM.get(due, "chats or answers, and not pairs")
            form = f"rows for stage={kind}: it needs {needed}; these are for stage={fitting}"
            t.missing.append(form)
    return kind


def _method_of_line(t: Translation) -> str:
    """Return the method that the settings of a line belong to, else that of its rows; "" if
    unknown.
    """
    if not _OF_REWARDS.isdisjoint(t.settings):
        return "rlvr"
    if t.rows is not None:
        return str(t.rows.kind)
    return "" if _OF_PREFERENCES.isdisjoint(t.settings) else "dpo"


def _method_of_file(t: Translation) -> str:
    """Return the method that a tool's file trains with; sft where it names none."""
    stage = str(t.take("stage") or "") if t.tool == LLAMA_FACTORY else ""
    reinforced = str(t.take("rl", "rl_type") or "").lower()
    if t.tool == AXOLOTL and t.take("reward_model"):
        return "rm"
    if t.tool != TRL_TOOL:
        return stage or reinforced or "sft"
    if {"reward_funcs", "num_generations"} & t.settings.keys():
        return "grpo"
    if reinforced:
        return reinforced
    loss = t.settings.get("loss_type")
    has_loss = loss is not None and str(loss) not in ("nll", "dft", "chunked_nll")
    is_dpo = has_loss or {"beta", "max_prompt_length", "loss_weights"} & t.settings.keys()
    return "dpo" if is_dpo else "sft"


def _as_stage(t: Translation, method: str) -> str:
    """Return the stage of a training method, or the most similar one."""
    if method in ("ppo", "gae", "rloo", "reinforce"):
        t.differences.append(f"{method}: RLVR trains with GRPO here, without a value model")
    if method in ("ppo", "gae", "rloo", "reinforce", "grpo"):
        return "rlvr"
    if method in ("ipo", "simpo"):
        t.settings.setdefault("loss_type", method)
        return "dpo"
    return "rm" if method.startswith("reward_model") else method
