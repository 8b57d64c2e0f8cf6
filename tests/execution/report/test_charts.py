"""Which charts a page has: an RLVR run's reward first, none at 0, losses of one kind together."""

from __future__ import annotations

import re
from pathlib import Path

from launch.execution.record.attempts import find_resumes
from launch.execution.record.events import Event
from launch.execution.record.evidence import read_steps_before
from launch.execution.record.run import Run
from launch.execution.record.steps import Curve, MetricCurves
from launch.execution.report.charts import Chart, build_charts
from launch.execution.report.page import render_document, render_runs
from launch.files import append_json
from launch.trials.view import build_document
from launch.worker.json_codec import to_json, versioned
from tests.execution.report.folders import write_run

# of a step of TRL's GRPOTrainer, as launch records it
RLVR = {
    "loss": -0.02,
    "lr": 1e-3,
    "tokens": 2337,
    "tokens_padded": 2624,
    "grad_norm": 0.45,
    "seconds": 8.2,
    "generation_seconds": 2.5,
    "completions/mean_length": 11.5,
    "completions/max_length": 16.0,
    "completions/clipped_ratio": 0.03,
    "completions/mean_terminated_length": 11.4,
    "rewards/right/mean": 0.32,
    "rewards/right/std": 0.44,
    "reward": 0.32,
    "reward_std": 0.44,
    "frac_reward_zero_std": 0.1,
    "verifier_failures": 0.0,
    "verifier_seconds": 2.8,
    "entropy": 0.33,
    "kl": 0.01,
    "clip_ratio/low_mean": 0.0,
    "clip_ratio/high_max": 0.0,
    "sampling/sampling_logp_difference/mean": 0.02,
    "sampling/importance_sampling_ratio/max": 1.2,
    "step_time": 8.0,
    "epoch": 0.1,
    "training_seconds": 2.7,
}


def curves(metrics: dict[str, float]) -> MetricCurves:
    made = {}
    for name, value in metrics.items():
        made[name] = Curve()
        for step in (3, 2, 1):
            made[name].add(step, value * step)
    return MetricCurves(made, 3, 3)


def test_the_charts_of_rlvr_are_named_in_words_and_begin_with_the_reward() -> None:
    charts = build_charts({"run": curves(RLVR)})
    titles = [chart.title for chart in charts]
    assert titles[0] == "Reward" and titles[-1] == "Loss"
    words = [*titles, *(line.label for chart in charts for line in chart.lines)]
    assert [text for text in words if re.search(r"[_/]", text)] == []
    assert {chart.title for chart in charts if chart.is_always_0} == {
        "Clipped probability ratios",
        "Answers on which a verifier fails",
    }


def test_a_chart_that_is_always_0_is_named_and_not_drawn(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "rl" / "x", [RLVR, RLVR])
    page = render_runs([Run(folder)])
    captions = re.findall(r"<figcaption><strong>(.*?)</strong>", page)
    assert captions[0] == "Reward" and "Clipped probability ratios" not in captions
    assert "0 at every step, and not drawn: Answers on which a verifier fails" in page
    first = re.search(r'<dl class="facts"><div><dt>(.*?)</dt>', page)
    assert first is not None and first[1] == "reward at step 2"


def shown_losses(charts: list[Chart]) -> dict[str, list[str]]:
    return {
        chart.title: [line.label for line in chart.lines]
        for chart in charts
        if chart.title.startswith("Loss")
    }


def test_losses_of_several_kinds_are_apart() -> None:
    """That of DPO begins at ln 2, whatever that of SFT is."""
    runs = {
        "sft": curves({"loss": 2.0}),
        "dpo": curves({"loss": 0.69}),
        "more": curves({"loss": 1.0}),
    }
    kinds = {"sft": "sft", "dpo": "dpo", "more": "sft"}
    apart = shown_losses(build_charts(runs, kinds))
    assert apart == {"Loss of SFT": ["sft", "more"], "Loss of DPO": ["dpo"]}
    together = shown_losses(build_charts(runs, dict.fromkeys(runs, "sft")))
    assert together == {"Loss": ["sft", "dpo", "more"]} == shown_losses(build_charts(runs))


def test_a_sweep_shows_its_values_and_one_number_once(tmp_path: Path) -> None:
    measured = {"best_validation_loss": 0.60182, "validation_loss": 0.60184, "loss": 0.5}
    rows = [
        {"label": f"learning_rate={rate}", "state": "done", "measured": measured, "message": ""}
        for rate in ("1e-5", "2e-5")
    ]
    record = {"verb": "sweep", "stage": "x", "state": "done", "runs": rows}
    record["summary"] = ["2 of 2 runs are done", "`launch compare a b` compares <them>"]
    page = render_document(build_document(record, tmp_path))
    assert "<code>launch compare a b</code> compares &lt;them&gt;" in page and "`" not in page
    assert "0.6018 to" not in page and page.count("0.6018") >= 2
    plots = re.findall(r'<figure class="spreads".*?</figure>', page, re.DOTALL)
    assert len(plots) == 2
    assert all("learning_rate=1e-5" in plot and "learning_rate=2e-5" in plot for plot in plots)


def test_one_verifier_has_one_chart_and_a_chart_is_named_by_what_it_holds() -> None:
    one = {"reward": 0.5, "reward_std": 0.1, "rewards/f/mean": 0.5, "rewards/f/std": 0.1}
    rewards, entropy = build_charts({"a": curves({**one, "entropy": 0.3})})
    assert (rewards.title, entropy.title) == ("Reward", "Entropy")
    assert len(rewards.lines) == 2
    two = {**one, "rewards/g/mean": 0.2, "kl": 0.1, "entropy": 0.3}
    titles = [chart.title for chart in build_charts({"a": curves(two)})]
    assert titles == [
        "Reward",
        "Reward by verifier",
        "Standard deviation of the reward",
        "KL divergence and entropy",
    ]


def test_stages_follow_each_other_on_one_axis() -> None:
    runs = {"sft": curves({"lr": 0.1}), "dpo": curves({"lr": 0.2})}
    [chart] = build_charts(runs, starts={"sft": 0, "dpo": 10})
    steps = [line.points[0][0] for line in chart.lines]
    assert steps[1] - steps[0] == 10 and chart.steps == (steps[0], chart.lines[1].points[-1][0])


def test_a_change_of_width_is_marked_on_every_curve(tmp_path: Path) -> None:
    step = {"loss": 2.0, "tokens": 100, "seconds": 1.0}
    folder = write_run(tmp_path / "demo" / "x", [step] * 30)
    attempts = [
        {"attempt": 1, "width": "gpu8", "mode": "zero3", "resumed_from": None},
        {"attempt": 2, "width": "gpu8", "mode": "zero3", "resumed_from": "step_10"},
        {"attempt": 3, "width": "gpu4", "mode": "zero3", "resumed_from": "step_20"},
        {"attempt": 4, "resumed_from": "step_20"},  # of a version that recorded no width
        {"attempt": 5, "width": "gpu4", "mode": "zero2", "resumed_from": "step_25"},
        {"attempt": 6, "width": "gpu2", "mode": "zero2", "resumed_from": "epoch_0"},
    ]
    append_json(folder / "attempts.jsonl", *attempts)
    reported = Event("evidence", 1.0, 0, {"what": "resumed_step", "value": 28}, attempt=6)
    append_json(folder / "events.jsonl", versioned(reported))
    changes = [(10, "resumed"), (20, "gpu8 to gpu4"), (25, "zero3 to zero2"), (28, "gpu4 to gpu2")]
    assert find_resumes(attempts, read_steps_before(Run(folder))) == changes
    page = render_runs([Run(folder)])
    marks = re.findall(r'<g class="marks".*?</g>', page)
    assert marks and len(marks) == page.count('<svg class="curves"')
    for mark in marks:
        assert "gpu8 to gpu4" in mark and 'x1="65.52%"' in mark  # step 20 of 1 to 30
    data = re.search(r"<script[^>]*type=\"application/json\"[^>]*>(.*?)</script>", page, re.DOTALL)
    assert data is not None and '[20, "gpu8 to gpu4"]' in data[1]
    assert "marks" not in str(to_json(build_charts({"run": curves({"loss": 2.0})})[0]))
