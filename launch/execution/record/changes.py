"""Describe what a run changes in upstream's script: the patches, and launch's own options."""

from __future__ import annotations

from collections.abc import Sequence

from launch.errors import did_you_mean, refusal
from launch.planning.plan import Plan
from launch.worker.json_codec import versioned
from launch.worker.patches import PATCHES
from launch.worker.trl_options import OPTIONS


def describe_patches(plan: Plan) -> list[dict[str, object]]:
    """Return the content of patches.json: each patch, and each option of launch's entry over TRL.

    Raises UserError: unknown_patch.
    """
    changes = []
    for text in plan.patches:
        name = text.partition("=")[0]
        if name not in PATCHES:
            cure = did_you_mean(name, PATCHES)
            raise refusal("unknown_patch", f"launch has no patch '{name}'", "trainer.patches", cure)
        patch = PATCHES[name]
        changes.append(_describe_change(text, patch.reason, patch.upstream))
    for text in plan.options:
        name = text.partition("=")[0]
        changes.append(_describe_change(text, OPTIONS[name].meaning, ()))
    return changes


def _describe_change(text: str, reason: str, upstream: Sequence[str]) -> dict[str, object]:
    """Describe a patch or an option, which is given as `NAME` or `NAME=VALUE`."""
    name, _, value = text.partition("=")
    return versioned({"id": name, "value": value or None, "reason": reason, "upstream": upstream})
