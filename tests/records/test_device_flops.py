"""A share of a peak is only told where the peak is known."""

from __future__ import annotations

import pytest

from attnres_cli.records.device_flops import mfu


@pytest.mark.parametrize(
    ("name", "precision", "flops"),
    [
        ("NVIDIA H200", "bf16", 989.5e12),
        ("NVIDIA A100-SXM4-80GB", "bf16", 312e12),
        ("NVIDIA A100-SXM4-80GB", "fp32", 19.5e12),
    ],
)
def test_the_peak_is_the_makers_without_sparsity(name: str, precision: str, flops: float):
    assert mfu(1.0, int(flops), name, precision) == 1


@pytest.mark.parametrize(
    "name",
    ["NVIDIA H100 80GB HBM3 MIG 1g.10gb", "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA A10G",
     "AMD EPYC", ""],
)  # fmt: skip
def test_a_device_of_another_name_has_no_peak(name: str):
    assert mfu(1e6, 10**9, name, "bf16") is None


def test_mfu_is_the_share_of_the_peak_that_the_models_flops_are():
    assert mfu(1000.0, 312 * 10**9 // 2, "NVIDIA A100-SXM4-80GB", "bf16") == pytest.approx(0.5)
