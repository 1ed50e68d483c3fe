"""MFU is reported only where the peak of the device is known."""

from __future__ import annotations

import pytest

from attnres_cli.records.device_flops import mfu


def test_mfu_is_the_share_of_the_makers_peak_without_sparsity():
    for name, precision, peak in (
        ("NVIDIA H200", "bf16", 989.5e12),
        ("NVIDIA A100-SXM4-80GB", "bf16", 312e12),
        ("NVIDIA A100-SXM4-80GB", "fp32", 19.5e12),
    ):
        assert mfu(1.0, int(peak), name, precision) == 1
        assert mfu(1000.0, int(peak) // 2000, name, precision) == pytest.approx(0.5)


def test_a_device_of_another_name_has_no_peak():
    for name in ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "NVIDIA GeForce RTX 4090 Laptop GPU",
                 "NVIDIA A10G", "AMD EPYC", ""):  # fmt: skip
        assert mfu(1e6, 10**9, name, "bf16") is None
