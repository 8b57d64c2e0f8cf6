from __future__ import annotations

import pytest

from launch.config.cluster import ClusterConfig
from launch.errors import UserError
from launch.planning.estimate.cards import (
    card_memory,
    card_named,
    describe_unknown_card,
    list_cards,
    planned_card,
    slurm_type,
)
from launch.worker.finding import Fix
from tests.conftest import planned


@pytest.mark.parametrize(
    ("name", "card", "tflops"),
    [
        ("NVIDIA H200", "H200 SXM", 989),
        ("NVIDIA H200 NVL", "H200 NVL", 835),
        ("NVIDIA H100 80GB HBM3", "H100 SXM", 989),
        ("NVIDIA H100 PCIe", "H100 PCIe", 756),
        ("NVIDIA A100-SXM4-80GB", "A100 80GB", 312),
        ("NVIDIA A100 80GB PCIe", "A100 80GB", 312),
        ("NVIDIA A100-SXM4-40GB", "A100 40GB", 312),
        ("NVIDIA L40S", "L40S", 362),
        ("NVIDIA L4", "L4", 121),
        ("NVIDIA B200", "B200", 2250),
        ("NVIDIA GH200 480GB", "GH200", 989),
        ("NVIDIA GeForce RTX 4090", "RTX 4090", 165.2),
        ("NVIDIA RTX A6000", "RTX A6000", 154.8),
        # the names of Slurm's gres
        ("nvidia_a100-sxm4-80gb", "A100 80GB", 312),
        ("nvidia_h100_80gb_hbm3", "H100 SXM", 989),
        ("a100_80", "A100 80GB", 312),
        ("a6000", "RTX A6000", 154.8),
        ("rtx3090", "RTX 3090", 71),
        # what people type
        ("4090", "RTX 4090", 165.2),
        ("rtx 4090", "RTX 4090", 165.2),
        ("RTX-4090", "RTX 4090", 165.2),
        ("GeForce 3090", "RTX 3090", 71),
        ("4090-24gb", "RTX 4090", 165.2),
        ("5090", "RTX 5090", 209.5),
        ("l40s", "L40S", 362),
        ("H100", "H100 SXM", 989),
        ("h100-80gb", "H100 SXM", 989),
        ("h100 94GB", "H100 NVL", 835),
        ("h100 pcie 80gb", "H100 PCIe", 756),
        ("A100 80G", "A100 80GB", 312),
        ("a100-40g", "A100 40GB", 312),
        ("nvidia l4", "L4", 121),
    ],
)
def test_the_names_that_nvidia_smi_gives(name: str, card: str, tflops: float) -> None:
    listed = card_named(name)
    assert listed is not None and (listed.name, listed.tflops) == (card, tflops)
    assert listed.source and listed.memory_gb > 0


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA Q700",
        "Tesla V100",
        "NVIDIA A10G",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA H100 MIG 1g.10gb",
        "a100_3g.40gb",
        "nvidia_a100_1g.5gb",
        "4080",
        "14090",
        "RTX 4090 D",
        "RTX 3090 Ti",
        "RTX 6000 Ada",
        "h10",
        "80gb",
        "nvidia",
    ],
)
def test_a_card_that_is_not_known_is_not_taken_for_another(name: str) -> None:
    assert card_named(name) is None


@pytest.mark.parametrize(
    ("gpu_type", "cure"),
    [
        ("4080", "cluster.gpu_type=rtx_4090"),
        ("rtx4080", "cluster.gpu_type=rtx_4090"),
        ("h10", "cluster.gpu_type=h100"),
        ("RTX 4090 Laptop GPU", "cluster.gpu_memory=GIB"),
        ("frobnicator", "cluster.gpu_memory=GIB"),
        ("a100_3g.40gb", "cluster.gpu_memory=GIB"),
    ],
)
def test_a_line_that_names_an_unknown_card_is_refused(gpu_type: str, cure: str) -> None:
    line = ("stage=sft", "gpus=1", f"cluster.gpu_type='{gpu_type}'")
    with pytest.raises(UserError) as refused:
        planned(*line)
    [problem] = refused.value.problems
    assert problem.id == "unknown_gpu_type" and gpu_type in problem.message
    assert cure in str(problem.cure) and "cluster.gpu_memory=GIB" in str(problem.cure)
    assert isinstance(problem.cure, Fix)
    for action in problem.cure.actions:
        assert planned(*line[:2], *action.sets).config.cluster.gpu_type in list_cards()
    assert planned(*line, "cluster.gpu_memory=16").config.cluster.gpu_type == gpu_type
    assert planned("stage=sft", "device=cpu", line[2])


@pytest.mark.parametrize(
    ("gpu_type", "word"),
    [
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA GeForce RTX 4090", "rtx_4090"),
        ("NVIDIA A100-SXM4-80GB", "a100_80gb"),
        ("H100 PCIe", "h100_pcie"),
        ("h100", "h100"),
        ("nvidia_h100_80gb_hbm3", "nvidia_h100_80gb_hbm3"),  # as a cluster calls it
        ("frobnicator", "frobnicator"),
        ("two words", "two words"),
    ],
)
def test_a_batch_script_has_one_word(gpu_type: str, word: str) -> None:
    assert slurm_type(gpu_type) == word


def test_each_listed_name_means_its_card_and_a_name_that_is_not_listed_is_named() -> None:
    cards = list_cards()
    assert {"h100", "a100", "a100_80gb", "rtx_4090"} <= set(cards)
    for name, card in cards.items():
        assert card_named(name) == card
    missing = describe_unknown_card(ClusterConfig())
    wrong = describe_unknown_card(ClusterConfig(gpu_type="frobnicator"))
    assert "cluster.gpu_type=h100" in missing and "is not a known GPU" not in missing
    assert wrong.startswith("cluster.gpu_type=frobnicator is not a known GPU")
    assert "launch help gpus" in missing and "cluster.gpu_memory=GIB" in missing
    for name in cards:
        assert name in wrong


@pytest.mark.parametrize(
    ("gpu_type", "memory", "card"),
    [
        ("a100", None, "A100 40GB"),
        ("a100", 80.0, "A100 80GB"),
        ("a100", 79.2, "A100 80GB"),
        ("a100", 39.4, "A100 40GB"),
        ("h100", 80.0, "H100 SXM"),
        ("h100", 94.0, "H100 NVL"),
        ("h200", 141.0, "H200 SXM"),
        ("l4", 48.0, "L4"),
        (None, 80.0, None),
        ("frobnicator", 80.0, None),
    ],
)
def test_the_memory_tells_cards_of_one_name_apart(
    gpu_type: str | None, memory: float | None, card: str | None
) -> None:
    found = planned_card(ClusterConfig(gpu_type=gpu_type, gpu_memory=memory), None)
    assert (found.name if found else None) == card


def test_the_smaller_card_of_a_name_is_taken_with_a_note() -> None:
    """Where `a100` is both, the plan names what it took and how to get the other one."""
    small = card_memory(ClusterConfig(gpu_type="a100"), {})
    assert small is not None and "cluster.gpu_memory=80" in small.source
    for gpu_type in ("a100_80gb", "a100_40gb", "h100", "l4"):
        plain = card_memory(ClusterConfig(gpu_type=gpu_type), {})
        assert plain is not None and "cluster.gpu_memory" not in plain.source


@pytest.mark.parametrize(
    ("gpu_type", "gib"),
    [
        ("h200", 140.4),
        ("h100", 79.65),
        ("a100_80gb", 80.0),
        ("a10", 22.5),  # of 24, with error correction
        ("rtx_4090", 24.0),
        ("gb200", 173.2),  # by the data sheet's 186 * 10^9 bytes
    ],
)
def test_the_memory_is_what_programs_see(gpu_type: str, gib: float) -> None:
    memory = card_memory(ClusterConfig(gpu_type=gpu_type), {})
    assert memory is not None and memory.gib == pytest.approx(gib, abs=0.05)
    assert "if it has" not in memory.source  # another GPU of the series is not of that name


def test_what_is_sold_and_what_is_seen_are_alike() -> None:
    for card in list_cards().values():
        assert 0.9 < card.memory_gib / card.memory_gb <= 1.02
