"""How a run is computed: device, precision, compiler, engine. Decided once for all arms. And the
largest memory that it takes there: the device's on CUDA, else the process's (Linux keeps count).
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import resource
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch

from attnres_cli.config.recipe import Recipe
from attnres_cli.errors import DeviceError, UsageError, unknown
from attnres_cli.nn.depthmix.engines import NAMES, has_triton, interprets_triton
from attnres_cli.nn.measure import cpu_name
from attnres_cli.records import machine
from attnres_cli.records.assumed import Gpus, graphs_pay
from attnres_cli.records.run import EVALUATION, GRAPHS, Settings, way_of
from attnres_cli.train import group

# Compiling costs about a minute per arm and saves a sixth of an eager step on a CPU, about two
# fifths on a GPU. At some 5e10 and 5e13 FLOP/s it pays for runs longer than these (FLOPs).
_COMPILE_PAYS_FROM = {"cpu": 3e13, "cuda": 1e16}

GPU_NUMERICS = {"float32_matmul": "highest", "attention": "flash, efficient, math"}
"""What decides rounding on a GPU beside Settings, as a run's versions name it: float32 products are
no TF32, and kernels of attention are tried in this order. That is torch's own without cuDNN's,
which nothing has checked.
"""

_STATUS = Path("/proc/self/status")

COMPILER = {"cpu": "a C++ compiler (g++)", "cuda": "Triton"}
"""What torch.compile needs, by the device's kind."""


_assumed: Gpus | None = None


@contextlib.contextmanager
def assuming(gpus: Gpus | None) -> Iterator[None]:
    """Inside, plans are made for these GPUs as if they were here; None: for what is here."""
    global _assumed
    before, _assumed = _assumed, gpus
    try:
        yield
    finally:
        _assumed = before


def assumed() -> Gpus | None:
    """The GPUs that plans are made for though they are not here."""
    return _assumed


def devices(text: str) -> list[str]:
    """The devices that `auto`, `cpu`, `cuda` or `cuda:1` stand for, as torch names them.
    Where GPUs are assumed, these.
    """
    if _assumed is not None:
        return [f"cuda:{index}" for index in range(_assumed.n)]
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


def settings(
    recipe: Recipe, device: str, threads: int, run_flops: float, engine: str = "auto"
) -> Settings:
    """How runs of a recipe are computed on a device with so many CPU threads.

    `auto` depends on the device's kind and on `run_flops` (the trunk's, over the whole run) alone,
    so that all arms of a comparison are computed alike. Raises DeviceError where the engine cannot
    run here, UsageError where there is none of that name or it contradicts the recipe's `compile`.
    """
    kind, wish = torch.device(device).type, str(recipe.train.compile)
    _check_engine(engine, kind, wish)
    way = _way(recipe, kind)
    wish = _check_compiler(recipe, wish, kind, engine, way)
    precision = recipe.train.precision
    if precision == "auto":
        precision = "bf16" if kind == "cuda" and _has_bf16() else "fp32"
    if _assumed is not None:
        name = _assumed.name
    else:
        name = torch.cuda.get_device_name(device) if kind == "cuda" else cpu_name()
    if wish == "auto":
        pays = _paying(recipe, run_flops, name, precision, way) if kind == "cuda" else ""
        long = "on" if run_flops >= _COMPILE_PAYS_FROM[kind] else "off"
        wish = {"compile": "on", "eager": "off"}.get(engine, pays or long)
    compiled = wish != "off"
    if compiled and _assumed is None and not has_compiler(kind):
        text = f"training is not compiled: {COMPILER[kind]} is not installed"
        warnings.warn(text, stacklevel=2)
        compiled = False
    if engine == "auto":
        engine = "triton" if kind == "cuda" and has_triton() else "eager"
        engine = "compile" if compiled and engine == "eager" else engine
    if compiled:
        way = way_of(GRAPHS if wish == "graphs" else EVALUATION, way)
    return Settings(kind, name, precision, compiled, threads, engine, way)


def _has_bf16() -> bool:
    """Whether GPUs multiply bf16 by themselves: older ones emulate it, more slowly than fp32."""
    return _assumed is not None or torch.cuda.is_bf16_supported(including_emulation=False)


def _check_compiler(recipe: Recipe, wish: str, kind: str, engine: str, way: str) -> str:
    """What of train.compile is left to decide where ranks share a run in this way."""
    if wish == "graphs" and kind != "cuda":
        raise DeviceError(
            f"train.compile=graphs needs a CUDA device, and this run is on {kind}: "
            "--set train.compile=on, or auto"
        )
    if way.startswith(("fsdp", "pipeline")):
        if wish in ("on", "graphs") or engine == "compile":
            raise UsageError(
                f"train.parallel={recipe.train.parallel} is not compiled here: "
                "--set train.compile=off, or ddp"
            )
        return "off"
    if wish == "graphs" and way:
        raise UsageError(
            f"train.compile=graphs is for one device, and this run is {way}: "
            "--set train.compile=on, or type attnres instead of torchrun ..."
        )
    return wish


def _paying(recipe: Recipe, run_flops: float, name: str, precision: str, way: str) -> str:
    """`graphs` where they pay on a GPU of this name, else empty."""
    train, steps = recipe.train, recipe.steps
    parts, n = train.batch_size // train.rows, recipe.model.n_layers
    pays = not way and graphs_pay(n, parts, run_flops / steps, steps, name, precision)
    return "graphs" if pays else ""


def _way(recipe: Recipe, kind: str) -> str:
    """How the ranks of this command share a run, empty where there is one. Raises UsageError, and
    DeviceError where there are more of them than GPUs.
    """
    train = recipe.train
    found, name = group.current(), train.parallel
    if found is None:
        if name in ("auto", "none"):
            return ""
        raise UsageError(
            f"train.parallel={name} is for several ranks, and this is one process: torchrun "
            "--nproc-per-node N -m attnres_cli ablate ..., or drop it"
        )
    if name == "none":
        raise UsageError(
            f"train.parallel=none is for one device, and torchrun has started {found.ranks} ranks: "
            "type attnres instead of torchrun ..., or --set train.parallel=ddp"
        )
    found.device(kind)
    if train.batch_size % found.ranks:
        n = found.ranks
        raise UsageError(
            f"train.batch_size {train.batch_size} cannot be split evenly over {n} ranks: "
            f"--set train.batch_size={-(-train.batch_size // n) * n}, or --nproc-per-node "
            f"{math.gcd(train.batch_size, n)}"
        )
    if name == "pipeline":
        return f"pipeline {_cut(recipe, found.ranks)} on {found.ranks} ranks"
    return f"{'ddp' if name == 'auto' else name} on {found.ranks} ranks"


def _cut(recipe: Recipe, ranks: int) -> str:
    """How a pipeline is cut and scheduled, in words. Raises UsageError where it cannot be."""
    from attnres_cli.nn.pipeline.run import schedule_of  # takes seconds to import

    asked, n = recipe.train.pipeline, recipe.model.n_layers * 2
    chunks = ranks * asked.virtual
    if asked.stages not in (None, ranks):
        raise UsageError(
            f"train.pipeline.stages={asked.stages}, and torchrun has started {ranks} ranks, which "
            f"are the stages: --nproc-per-node {asked.stages}"
        )
    if ranks < 2 or chunks > n:
        raise UsageError(
            f"a pipeline has two stages or more, and no more chunks than the {n} sublayers: got "
            f"{ranks} of {asked.virtual}"
        )
    if recipe.model.tie_embeddings:
        raise UsageError(
            "model.tie_embeddings: in a pipeline embedding and head are on two ranks; take ddp"
        )
    if recipe.data.documents == "isolated":
        raise UsageError(
            "data.documents isolated: later stages of a pipeline see no separators: --set "
            "train.parallel=ddp"
        )
    try:
        schedule_of(asked.named(), asked.virtual)
    except ValueError as error:
        raise UsageError(f"train.pipeline: {error}") from error
    return f"{ranks}x{asked.virtual} {asked.named()}"


def _check_engine(engine: str, kind: str, compile_wish: str) -> None:
    """Refuse what cannot be computed, or contradicts the recipe's train.compile."""
    if engine not in NAMES:
        raise UsageError(unknown("engine", engine, NAMES))
    if (engine, compile_wish) in (("compile", "off"), ("eager", "on"), ("eager", "graphs")):
        what, other = ("compiled", "on") if engine == "compile" else ("not compiled", "off")
        raise UsageError(
            f"--engine {engine} is for training that is {what}, and train.compile is "
            f"{compile_wish}: --set train.compile={other}, or drop --engine"
        )
    if engine == "compile" and not has_compiler(kind):
        raise DeviceError(
            f"--engine compile needs {COMPILER[kind]}, which is not installed: install it, "
            "or drop --engine"
        )
    if engine == "triton" and not has_triton():
        raise DeviceError("--engine triton needs Triton: pip install triton, or drop --engine")
    if engine == "triton" and kind != "cuda" and not interprets_triton():
        raise DeviceError(
            f"--engine triton needs a CUDA device, and this run is on {kind}: drop --engine, or "
            "set TRITON_INTERPRET=1 to interpret its kernels, slowly, as tests do"
        )


def has_compiler(kind: str) -> bool:
    """Whether torch.compile finds what it needs for a kind of device."""
    if kind == "cuda":
        return has_triton()
    return shutil.which(os.environ.get("CXX", "g++")) is not None


def fix_numerics(device: torch.device) -> None:
    """Let this process compute on a GPU as GPU_NUMERICS say. On a CPU nothing changes."""
    if device.type == "cuda":
        torch.set_float32_matmul_precision(GPU_NUMERICS["float32_matmul"])
        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cuda.enable_cudnn_sdp(False)


def memory_there(device: str) -> tuple[int | None, str]:
    """Bytes that all runs on a device have together, None where the system does not tell; in words
    whose they are: `this machine has 16.8 GB`. Of a GPU, what other processes leave of it.
    """
    if _assumed is not None:
        return _assumed.memory, f"an assumed {_assumed.name} has {_assumed.memory / 1e9:,.1f} GB"
    if torch.device(device).type == "cuda":
        free, whole = torch.cuda.mem_get_info(device)
        free += torch.cuda.memory_reserved(device)
        whose = f"{device} ({torch.cuda.get_device_name(device)})"
        return free, f"{whose} has {free / 1e9:,.1f} of {whole / 1e9:,.1f} GB free"
    there, whose = machine.memory()
    ranks = group.current()
    if there is not None and ranks is not None and ranks.here > 1:
        there, whose = there // ranks.here, f"a rank's share of {whose}"
    return there, "" if there is None else f"{whose} has {there / 1e9:,.1f} GB"


def ran_out_of_memory(error: Exception) -> bool:
    """Whether it is the memory of a device or of the machine that was not enough."""
    is_it = isinstance(error, torch.OutOfMemoryError | MemoryError)
    return is_it or "can't allocate memory" in str(error)


def reset_peak(device: str) -> None:
    """Start counting anew, where the system allows it."""
    if torch.device(device).type == "cuda":
        torch.cuda.init()  # the first use in this process may be this one
        torch.cuda.reset_peak_memory_stats(device)
    else:
        with contextlib.suppress(AttributeError):  # no glibc
            ctypes.CDLL(None).malloc_trim(0)  # of what earlier runs have left, see `lab/workers`
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
