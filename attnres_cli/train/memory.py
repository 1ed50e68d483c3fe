"""The largest memory a run took: the device's on CUDA, else the process's (Linux keeps count)."""

from __future__ import annotations

import contextlib
import resource
from pathlib import Path

import torch

_STATUS = Path("/proc/self/status")


def reset_peak(device: str) -> None:
    """Start counting anew, where the system allows it."""
    if torch.device(device).type == "cuda":
        torch.cuda.init()  # the first use in this process may be this one
        torch.cuda.reset_peak_memory_stats(device)
    else:
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def peak_bytes(device: str) -> int:
    """The peak since the last reset, in bytes."""
    if torch.device(device).type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if _STATUS.exists():
        for line in _STATUS.read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
