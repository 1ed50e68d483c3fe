"""Where and how a run is computed: device, precision, compiler. Decided once for all arms."""

from __future__ import annotations

import importlib.util
import os
import shutil
import warnings
from pathlib import Path

import torch

from attnres_cli.errors import DeviceError
from attnres_cli.recipe import Recipe
from attnres_cli.run import Settings

# Compiling costs about a minute per arm and saves a sixth of an eager step on a CPU, about two
# fifths on a GPU. At some 5e10 and 5e13 FLOP/s it pays for runs longer than these (FLOPs).
_COMPILE_PAYS_FROM = {"cpu": 3e13, "cuda": 1e16}


def devices(text: str) -> list[str]:
    """The devices that `auto`, `cpu`, `cuda` or `cuda:1` stand for, as torch names them.

    Raises:
        DeviceError: no such device here.

    """
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    every = [f"cuda:{index}" for index in range(count)]
    if text == "auto":
        return every or ["cpu"]
    if text == "cpu":
        return ["cpu"]
    if text == "cuda" and every:
        return every
    if text in every:
        return [text]
    if text == "cuda" or text.startswith("cuda:"):
        has = f"{count} CUDA devices (from cuda:0)" if count else "no CUDA device"
        raise DeviceError(
            f"--device {text}: torch {torch.__version__} sees {has} here; "
            f"use --device {'cuda' if count else 'cpu'}, or install torch's CUDA build"
        )
    raise DeviceError(f"--device takes auto, cpu, cuda or cuda:N, got '{text}'")


def settings(recipe: Recipe, device: str, threads: int, run_flops: float) -> Settings:
    """How runs of a recipe are computed on a device.

    `auto` depends on the device's kind and on the trunk's FLOPs alone, so that all arms of a
    comparison are computed alike.

    Args:
        recipe: precision and compile are its fields.
        device: as `devices` names it.
        threads: CPU threads of the process.
        run_flops: training FLOPs of the trunk over the whole run.

    """
    kind = torch.device(device).type
    precision = recipe.train.precision
    if precision == "auto":
        precision = "bf16" if kind == "cuda" and torch.cuda.is_bf16_supported() else "fp32"
    compiled = recipe.train.compile == "on"
    if recipe.train.compile == "auto":
        compiled = run_flops >= _COMPILE_PAYS_FROM[kind]
    if compiled and not _has_compiler(kind):
        missing = "a C++ compiler (g++)" if kind == "cpu" else "Triton"
        warnings.warn(f"training is not compiled: {missing} is not installed", stacklevel=2)
        compiled = False
    name = torch.cuda.get_device_name(device) if kind == "cuda" else _cpu_name()
    return Settings(kind, name, precision, compiled, threads)


def cores() -> list[int]:
    """The CPU cores this process may use, by its affinity and its cgroup's quota."""
    allowed = sorted(os.sched_getaffinity(0))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        return allowed[: max(1, int(quota) // int(period))]
    except (OSError, ValueError):  # no cgroup v2, or its quota is "max"
        return allowed


def _has_compiler(kind: str) -> bool:
    if kind == "cuda":
        return importlib.util.find_spec("triton") is not None
    return shutil.which(os.environ.get("CXX", "g++")) is not None


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return "cpu"
    return next((line.partition(":")[2].strip() for line in lines if "model name" in line), "cpu")
