"""What devices compute and move at most, and which share of it a run used. No torch.

Only devices whose peak its maker states are known, by their whole name as torch gives it: a variant
of a card (a laptop's, a slice of it) has another peak. Where none is known there is no share; CPUs
have none, since clock and cores vary.
"""

from __future__ import annotations

_TERA = 10**12

# Dense, without sparsity, bf16 with float32 sums; fp32 outside of tensor cores, as torch computes
# it by default. NVIDIA's data sheets give bf16 of Hopper, Ada and Blackwell with sparsity: halved.
_PEAKS: dict[str, dict[str, float]] = {
    # HGX B200 data sheet: 36 PFLOP/s of 8 with sparsity, 600 TFLOP/s of 8
    "NVIDIA B200": {"bf16": 2250, "fp32": 75, "GB/s": 8000},
    # H200 data sheet
    "NVIDIA H200": {"bf16": 989.5, "fp32": 67, "GB/s": 4800},
    # H100 data sheet: SXM, NVL; its first edition: PCIe
    "NVIDIA H100 80GB HBM3": {"bf16": 989.5, "fp32": 67, "GB/s": 3350},
    "NVIDIA H100 NVL": {"bf16": 835.5, "fp32": 60, "GB/s": 3900},
    "NVIDIA H100 PCIe": {"bf16": 756.5, "fp32": 51.2, "GB/s": 2000},
    # A100 data sheet, the same for all forms
    "NVIDIA A100-SXM4-40GB": {"bf16": 312, "fp32": 19.5, "GB/s": 1555},
    "NVIDIA A100-SXM4-80GB": {"bf16": 312, "fp32": 19.5, "GB/s": 2039},
    "NVIDIA A100-PCIE-40GB": {"bf16": 312, "fp32": 19.5, "GB/s": 1555},
    "NVIDIA A100 80GB PCIe": {"bf16": 312, "fp32": 19.5, "GB/s": 1935},
    # their data sheets
    "NVIDIA L40S": {"bf16": 362.05, "fp32": 91.6, "GB/s": 864},
    "NVIDIA L4": {"bf16": 121, "fp32": 30.3, "GB/s": 300},
    "NVIDIA A10": {"bf16": 125, "fp32": 31.2, "GB/s": 600},
    # architecture white papers of Ada (appendix A) and of GA102 (appendix A)
    "NVIDIA GeForce RTX 4090": {"bf16": 165.2, "fp32": 82.6, "GB/s": 1008},
    "NVIDIA GeForce RTX 3090": {"bf16": 71, "fp32": 35.6, "GB/s": 936},
}


def mfu(
    tokens_per_second: float, flops_per_token: int, device_name: str, precision: str
) -> float | None:
    """Model FLOPs utilisation (Chowdhery et al. 2022, arXiv 2204.02311): the FLOPs that the model
    needs, recomputation not counted, as a share of the device's peak; None where it is not known.
    """
    peak = _PEAKS.get(device_name, {}).get(precision)
    return None if peak is None else tokens_per_second * flops_per_token / (peak * _TERA)


def least_s(device_name: str, precision: str, flops: float, n_bytes: float) -> float | None:
    """The least seconds that a device takes for so much, one after the other; None where its peaks
    are not known.
    """
    peaks = _PEAKS.get(device_name, {})
    if precision not in peaks:
        return None
    return flops / (peaks[precision] * _TERA) + n_bytes / (peaks["GB/s"] * 1e9)
