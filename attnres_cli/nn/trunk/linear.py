"""Linear layers by the library that is faster on this processor."""

from __future__ import annotations

import contextlib
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_IMAGES = 16  # fewer, and one thread computes convolutions of 1 x 1 as MKL would
_FEWEST = 512  # rows from which it pays: a convolution is 20 us of calls
_LARGE = 2**20  # multiply-adds from which oneDNN's own product pays: it is 13 us of calls
_SHORTEST = 17  # sums that it is quicker at


def _mkl_is_slow() -> bool:
    """Whether MKL, by which torch multiplies matrices, uses half of each vector unit: on processors
    of AMD it takes AVX2's instructions where there are those of AVX-512.
    """
    if not (torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()):
        return False
    with contextlib.suppress(OSError):
        vendor = "AuthenticAMD" in Path("/proc/cpuinfo").read_text(encoding="utf-8")
        return vendor and torch.backends.cpu.get_cpu_capability() == "AVX512"
    return False


_BY_ONEDNN = _mkl_is_slow()


class Linear(nn.Linear):
    """`nn.Linear` without a bias. In eager float32 on AMD processors with AVX-512 it is computed as
    a convolution of 1 x 1, by oneDNN, at 230 GFLOP/s of a core instead of MKL's 107 (EPYC, Zen 5).
    """

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__(n_in, n_out, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(..., n_in) -> (..., n_out)."""
        return linear(x, self.weight)


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """(..., n_in) -> (..., n_out), by the rows of a weight (n_out, n_in)."""
    n = x.shape[:-1].numel()
    if not _BY_ONEDNN or n < _FEWEST or n % _IMAGES or not _is_eager_float32(x):
        return F.linear(x, weight)
    images = x.reshape(_IMAGES, 1, n // _IMAGES, -1).permute(0, 3, 1, 2)  # as they lie
    y = F.conv2d(images, weight[:, :, None, None])
    return y.permute(0, 2, 3, 1).reshape(*x.shape[:-1], -1)


def product(a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
    """(m, n), written to `out` where that is given: a (m, k) by b (k, n), for functions with
    gradients of their own: it may have none. On the same processors by oneDNN, where m need not be
    so many images: (24, 1024) by (1024, 256) in 73 us, by MKL in 152.
    """
    is_large = len(b) >= _SHORTEST and a.numel() * b.shape[1] >= _LARGE
    if not (_BY_ONEDNN and is_large and _is_eager_float32(a) and _is_dense(a) and _is_dense(b)):
        return torch.mm(a, b, out=out)
    y: Tensor = torch.ops.mkldnn._linear_pointwise(a, b.t(), None, "none", [], "")  # noqa: SLF001
    return y if out is None else out.copy_(y)


def _is_dense(x: Tensor) -> bool:
    """Whether a matrix lies as it is or turned: of a part of one oneDNN takes a thousand times as
    long.
    """
    return x.is_contiguous() or x.t().is_contiguous()


def _is_eager_float32(x: Tensor) -> bool:
    is_float32 = x.dtype is torch.float32 and not torch.is_autocast_enabled("cpu")
    return is_float32 and x.device.type == "cpu" and not torch.compiler.is_compiling()
