from __future__ import annotations

import pytest

from launch.config.schema import Device
from launch.execution.record.outcome import Outcome
from launch.trials.measurement import compute_figures, padding_share, second_half_ratio
from tests.trials.rollout.cases import falling, gate_result, measured, verdict


def test_room_on_the_card() -> None:
    def room(peak: float, card: float | None = 100.0) -> str | None:
        return verdict("memory_room", measured(columns={"memory_gib": [1.0] * 9 + [peak]}, card_gib=card))

    assert room(94.9) == "pass"
    assert room(95.1) == "warn"
    assert room(50.0, card=None) == "warn"
    held = {"memory_gib": [1.0] * 10, "memory_reserved_gib": [96.0] * 10}  # the card has to have what torch holds
    assert verdict("memory_room", measured(columns=held, card_gib=100.0)) == "warn"
    assert verdict("memory_room", measured()) == "warn"
    assert verdict("memory_room", measured(device=Device.cpu)) == "pass"


@pytest.mark.parametrize("cause", ["out_of_memory", "host_memory"])
@pytest.mark.parametrize("device", list(Device))
def test_out_of_memory_fails_with_its_cure(cause: str, device: Device) -> None:
    dead = Outcome(1, 9.0, 2, 3.0, cause="rank 0: out of memory", cause_id=cause, cure="say less")
    result = gate_result("memory_room", measured(falling(2), outcome=dead, requested=10, device=device))
    assert result is not None and result.stops and "say less" in result.message


def rates(seconds: list[float], tokens: list[float] | None = None, **more: object) -> dict[str, object]:
    columns = {"seconds": seconds, "tokens": tokens or [1000.0] * len(seconds)}
    return {"losses": falling(len(seconds)), "columns": columns, **more}


def test_speed_leaves_the_first_steps_out_and_weighs_by_time() -> None:
    speed = compute_figures(measured(**rates([100.0, 50.0, 1.0, 3.0])), 2)  # type: ignore[arg-type]
    assert speed is not None
    assert (speed.per_second, speed.unit, speed.step_seconds, speed.counted_steps) == (500.0, "tokens", 2.0, 2)


def test_speed_of_a_short_run_takes_what_there_is() -> None:
    speed = compute_figures(measured(**rates([2.0])), 2)  # type: ignore[arg-type]
    assert speed is not None and speed.counted_steps == 1


def test_without_tokens_samples_are_counted() -> None:
    speed = compute_figures(measured(columns={"seconds": [2.0] * 10}), 2)
    assert speed is not None and (speed.per_second, speed.unit) == (8.0, "samples")
    assert compute_figures(measured(), 2) is None
    assert second_half_ratio(measured(), skip=2) is None


def steady(second_half: float) -> str | None:
    """Two steps that do not count, five fast ones, five slower ones."""
    seconds = [9.0, 9.0] + [1.0] * 5 + [1.0 / second_half] * 5
    return verdict("throughput_steady", measured(**rates(seconds)))  # type: ignore[arg-type]


def test_steadiness_at_its_borders() -> None:
    assert steady(0.71) == "pass"
    assert steady(0.69) == "warn"
    assert steady(0.26) == "warn"
    assert steady(0.24) == "fail"


def test_a_few_steps_are_not_judged_for_steadiness() -> None:
    seconds = [1.0] * 6 + [100.0] * 5
    result = gate_result("throughput_steady", measured(**rates(seconds)))  # type: ignore[arg-type]
    assert result is not None and result.level == "pass" and "too few" in result.message


def test_no_tokens_a_second_is_red_and_no_clock_a_warning() -> None:
    assert verdict("throughput_steady", measured(**rates([1.0] * 5, [0.0] * 5))) == "fail"  # type: ignore[arg-type]
    assert verdict("throughput_steady", measured()) == "warn"


def test_padding() -> None:
    def padding(tokens: float) -> str | None:
        columns = {"tokens": [tokens] * 10, "tokens_padded": [100.0] * 10}
        return verdict("padding", measured(columns=columns))

    assert padding(50.0) == "pass"
    assert padding(49.0) == "warn"
    assert padding(5.1) == "warn"
    assert padding(4.9) == "fail"
    assert verdict("padding", measured()) == "warn"
    assert padding_share(measured(columns={"tokens": [75.0] * 10, "tokens_padded": [100.0] * 10})) == 0.25
