"""Whether this machine computes right: each way to train, on a small model beside the reference.

A way is a device, an engine, a precision and whether it is compiled. Each is tried in a process of
its own, since a kernel that fails on a GPU spoils the process. What is tried: loss and gradients of
`DESIGNS`, whose reads are all that engines compute, with parameters moved off their start.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from attnres_cli.config.recipe import Model, load
from attnres_cli.console import warn
from attnres_cli.data import spool
from attnres_cli.errors import DeviceError
from attnres_cli.nn import measure, variant
from attnres_cli.nn.code import of_design, of_parts
from attnres_cli.nn.depthmix.engines import has_triton
from attnres_cli.nn.model import Transformer, init_weights
from attnres_cli.records.run import EVALUATION, GRAPHS, Settings, way_of
from attnres_cli.records.ways import Tried, Way
from attnres_cli.train import device as computing

DESIGNS = ("attnres", "attnres:block_size=2", "denseformer", "mhc")
COMPILED = DESIGNS[1:2]  # a compiler takes half a minute for each
_MODEL = Model(n_layers=2, d_model=64, n_heads=2, seq_len=32)
_VOCAB, _ROWS = 64, 4
_LONGEST = 200  # characters of an error
_FULL = "OutOfMemoryError"  # which says nothing of a way
_KILLED = "its process was killed: a driver or a kernel failed, or memory ended"
REPLAYED_AFTER = 2  # passes: torch warms up, then records CUDA graphs
_VERSION = 2  # of what is tried
_DRIVER = Path("/proc/driver/nvidia/version")


def ways(device: str) -> list[Way]:
    """All that may be asked for on a device, what `auto` takes for long runs first."""
    kind, engines = torch.device(device).type, ["eager"]
    if kind == "cuda" and has_triton():
        engines.insert(0, "triton")
    found = [
        Way(device, engine, precision, compiled)
        for compiled in (True, False)
        for engine in engines
        for precision in ("bf16", "fp32")
    ]
    graphs = [replace(way, graphs=True) for way in found if way.compiled and kind == "cuda"]
    return [
        replace(way, engine="compile") if way.compiled and way.engine == "eager" else way
        for way in graphs + found
    ]


def examined(way: Way) -> Tried:
    """Try a way in this process."""
    worst_loss = worst_gradient = 0.0
    device = torch.device(way.device)
    computing.fix_numerics(device)
    shape, drawn = _MODEL.shape(_VOCAB), torch.Generator().manual_seed(0)
    windows = torch.randint(0, _VOCAB, (_ROWS, shape.seq_len + 1), generator=drawn)
    for spec in COMPILED if way.compiled else DESIGNS:
        try:
            model = Transformer(shape, variant.parse(spec).build(shape.d_model, shape.n_sublayers))
            init_weights(model, 0)
            measure.stir(model.residual)
            off = _off(model.to(device), windows.to(device), way)
        except Exception as error:  # a kernel may raise anything
            text = " ".join(f"{type(error).__name__}: {error}".split())
            return Tried(way, f"{spec} cannot be run: {text[:_LONGEST]}")
        worst_loss, worst_gradient = max(worst_loss, off.loss), max(worst_gradient, off.gradient)
        if wrong := off.complaint(way.precision):
            return Tried(way, f"{spec}: {wrong}", off.loss, off.gradient)
    return Tried(way, None, worst_loss, worst_gradient)


def _off(model: Transformer, windows: Tensor, way: Way) -> measure.Disagreement:
    """How far a way is from the reference: in training, and where it is compiled in evaluation,
    which is compiled apart. Graphs are judged by a replay, on other tokens than they recorded.
    """
    forward = measure.compiled(model, graphs=way.graphs) if way.compiled else model
    for shift in range(REPLAYED_AFTER if way.graphs else 0, 0, -1):
        measure.check(model, forward, (windows + shift) % _VOCAB, way.engine, way.precision)
    off, _ = measure.check(model, forward, windows, way.engine, way.precision)
    if not way.compiled:
        return off
    evaluated = measure.evaluation_off(
        model, forward, windows, way.engine, way.precision, 1 + REPLAYED_AFTER * way.graphs
    )
    return off._replace(loss=max(off.loss, evaluated, key=lambda x: (x != x, x)))


def examine(asked: Sequence[Way]) -> Iterator[Tried]:
    """Try ways, each in a process of its own."""
    context = multiprocessing.get_context("spawn")
    for way in asked:
        with ProcessPoolExecutor(1, mp_context=context) as pool:
            try:
                yield pool.submit(examined, way).result()
            except BrokenProcessPool:
                yield Tried(way, _KILLED)


def sound(settings: Settings, device: str) -> Settings:
    """These settings, or the next that compute right on a GPU, tried once for each GPU, versions
    and code. Raises DeviceError where none do.
    """
    tried: list[str] = []
    for each in _chain(settings):
        way = _way(device, each)
        wrong = _known(way, each.device_name)
        if wrong is None or _FULL in wrong:
            if tried:
                warn(
                    f"{tried[0]}. Runs are computed by {_named(each)} instead, which is slower; "
                    "attnres doctor says more"
                )
            return each
        tried.append(f"{_named(each)} on {each.device_name}: {wrong}")
    raise DeviceError(f"nothing computes right here, see attnres doctor: {tried[0]}")


def _chain(settings: Settings) -> list[Settings]:
    """What is tried one after the other: all that was chosen, then no graphs, then less of a
    compiler, then plain torch.
    """
    compiled = settings
    if settings.graphs:
        compiled = replace(settings, way=way_of(EVALUATION, settings.shared))
    plain = settings.uncompiled
    return list(dict.fromkeys([settings, compiled, plain, replace(plain, engine="eager")]))


def _named(settings: Settings) -> str:
    compiled = {"off": "not compiled", "on": "compiled", "graphs": GRAPHS}[settings.compiler]
    return f"engine {settings.engine}, {settings.precision}, {compiled}"


def _known(way: Way, device_name: str) -> str | None:
    """What is wrong with a way, from the file that remembers it, or tried now."""
    code, designs = of_parts(), [of_design(*variant.parse(spec).classes) for spec in DESIGNS]
    how = (way.engine, way.precision, way.compiled, way.graphs, device_name)
    stack = (str(torch.__version__), torch.version.cuda, _driver())
    by = (*stack, code["engine"], code["trunk"], *designs, _VERSION)
    name = hashlib.sha256(repr(how + by).encode()).hexdigest()[:32]
    path = spool.folder().parent / "checked" / f"{name}.json"
    try:
        held: str | None = json.loads(path.read_bytes())
        return held
    except (OSError, ValueError):
        (found,) = examine([way])
    if found.wrong is not None and found.loss is None:  # nothing was computed: perhaps next time
        return found.wrong
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
            json.dump(found.wrong, file)
        Path(file.name).replace(path)
    except OSError:  # it is tried again next time
        pass
    return found.wrong


def _driver() -> str:
    """What Linux says of NVIDIA's driver; empty where there is none, and under Windows."""
    try:
        return _DRIVER.read_text(encoding="utf-8")
    except OSError:
        return ""


def machine(device: str) -> dict[str, str]:
    """What the ways stand on: versions, the device, compiler, memory and folders."""
    kind = torch.device(device).type
    _, memory = computing.memory_there(device)
    name = torch.cuda.get_device_name(device) if kind == "cuda" else measure.cpu_name()
    facts = {
        "torch": f"{torch.__version__}, CUDA {torch.version.cuda or 'none'}",
        "device": f"{device}, {name}",
        "memory": memory,
    }
    if kind == "cuda":
        facts["capability"] = ".".join(map(str, torch.cuda.get_device_capability(device)))
        facts |= {name.replace("_", " "): text for name, text in computing.GPU_NUMERICS.items()}
    return facts


def chosen(device: str) -> dict[str, Way]:
    """What `auto` takes there, by what for: so long that they are compiled, or short, and where
    small models take another, these.
    """
    short, many = load("quick"), load("quick", ["train.tokens=100M"])
    asked = {
        "long runs": (short, 1e30), "short runs": (short, 0.0),
        "long runs of small models": (many, 0.0),
    }  # fmt: skip
    found = {
        what: _way(device, computing.settings(recipe, device, 1, flops))
        for what, (recipe, flops) in asked.items()
    }
    return {what: way for what, way in found.items() if what in list(asked)[:2] or way.graphs}


def _way(device: str, on: Settings) -> Way:
    return Way(device, on.engine, on.precision, on.compiled, on.graphs)


def problems(device: str) -> list[str]:
    """What is missing around the ways, and what to type."""
    kind, found = torch.device(device).type, []
    if kind == "cpu" and torch.version.cuda is not None:
        found.append(
            f"torch is built for CUDA {torch.version.cuda} and sees no GPU: nvidia-smi says "
            "whether the driver sees one, and up to which CUDA it serves"
        )
    if not computing.has_compiler(kind):
        found.append(f"nothing can be compiled: {computing.COMPILER[kind]} is not installed")
    try:
        with tempfile.TemporaryFile(dir=spool.folder()):
            pass
    except (OSError, RuntimeError) as error:
        found.append(f"tokens cannot be kept ({error}): set XDG_CACHE_HOME to a folder that can")
    return found
