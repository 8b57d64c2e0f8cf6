"""Gates that check that the requested settings are in effect on every rank."""

from __future__ import annotations

from launch.config.schema import Device
from launch.trials.rollout.gates.gate import GateCase, GateResult, failed, gate, passed


@gate(
    "evidence_complete", "evidence.json: what the worker found in the trainer's objects at the first step", early=True
)
def evidence_complete(case: GateCase) -> GateResult | None:
    """Upstream falls back silently: Liger, packing, ZeRO or a rank may be missing and the loss still falls."""
    requested = [item for item in case.now.evidence if item.get("requested") is not None]
    refuted = [item for item in requested if item.get("verdict") == "refuted"]
    proven = sum(item.get("verdict") == "proven" for item in requested)
    numbers = {"asked": len(requested), "proven": proven}
    if refuted:
        parts = (f"{item['what']}={item['requested']} was requested, but is {item.get('found')}" for item in refuted)
        return failed("; ".join(parts), refuted=[item["what"] for item in refuted], **numbers)
    if requested and proven == len(requested):
        values = {item["what"]: item.get("found") for item in case.now.evidence}
        shown = [f"{name} {values[name]}" for name in ("liger", "packing", "attention", "dtype") if values.get(name)]
        return passed(f"all {len(requested)} proven; {', '.join(shown)}", **numbers)
    if not case.now.finished:
        return None  # the run ended before the inspection; another gate reports the cause
    names = ", ".join(f"{item['what']}={item['requested']}" for item in requested if item.get("verdict") != "proven")
    return failed(f"no proof of {names}" if requested else "the run proved no setting of its plan", **numbers)


@gate("all_ranks_step", "each rank reports its model at its first step; every step reduces gradients over all ranks")
def all_ranks_step(case: GateCase) -> GateResult | None:
    """A rank that trains alone, or not at all, changes the batch silently."""
    now = case.now
    size = now.plan.batch.width
    if size == 1:
        return None
    missing = sorted(set(range(size)) - now.inspected_ranks)
    if missing:
        names = ", ".join(str(rank) for rank in missing)
        return failed(f"no first step of rank {names} was reported", ranks=size, missing=missing)
    backend = next((str(item.get("found")) for item in now.evidence if item.get("what") == "backend"), None)
    if now.width.device == Device.cuda and backend is not None and "nccl" not in backend:
        return failed(f"the ranks communicate through {backend}, not NCCL", ranks=size, backend=backend)
    through = f"through {backend}" if backend else "through an unknown backend"
    return passed(f"all {size} ranks took their first step and continued together, {through}", ranks=size)
