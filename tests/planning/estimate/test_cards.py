from __future__ import annotations

import pytest

from launch.planning.estimate.cards import card_named


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
    ],
)
def test_a_card_that_is_not_known_is_not_taken_for_another(name: str) -> None:
    assert card_named(name) is None
