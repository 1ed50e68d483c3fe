"""What the benchmarks share: arguments, models, one training step, output. Torch alone is needed.

A benchmark is run from anywhere as `python benchmarks/step.py`; nothing need be installed.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import pkgutil
import platform
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

try:
    import attnres_variants as designs
except ModuleNotFoundError:  # not installed: the folder of the repository, by the same name
    import variants as designs

    sys.modules["attnres_variants"] = designs

from attnres_cli.nn import measure, variant
from attnres_cli.nn.cost import Spread
from attnres_cli.nn.depthmix import engines
from attnres_cli.nn.model import Transformer, init_weights
from attnres_cli.nn.shape import Shape

for found in pkgutil.iter_modules(designs.__path__):  # where it is not installed, no entry point
    importlib.import_module(f"attnres_variants.{found.name}")  # does this


@dataclass(frozen=True)
class Setting:
    """What is held fixed between arms.

    Attributes:
        arms: (variant, engine) each.
        precision: `bf16` for autocast, else `fp32`.
    """

    name: str
    shape: Shape
    batch_size: int
    precision: str
    compiled: bool
    arms: tuple[tuple[str, str], ...]

    def described(self) -> dict[str, Any]:
        """For the results."""
        return asdict(self)


def shape_of(n_layers: int, d_model: int, seq_len: int, vocab_size: int, d_head: int = 64) -> Shape:
    """A trunk with a GELU MLP of four times the width."""
    heads = max(1, d_model // d_head)
    return Shape(
        n_layers=n_layers,
        d_model=d_model,
        n_heads=heads,
        n_kv_heads=heads,
        d_head=d_model // heads,
        d_ff=4 * d_model,
        vocab_size=vocab_size,
        seq_len=seq_len,
        mlp="gelu",
    )


class Training:
    """A model, its optimiser, and one step of training them on the same random tokens."""

    def __init__(self, spec: str, engine: str, setting: Setting, device: torch.device) -> None:
        self.setting, self.engine = setting, engine
        self.model = built(spec, setting.shape, device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.forward: Callable[[Tensor, Tensor], Tensor] = self.model
        if setting.compiled:
            self.forward = torch.compile(self.model, dynamic=False)
        self.windows = tokens(setting.shape, setting.batch_size, device)

    def loss(self) -> Tensor:
        """The loss of the batch, with its graph."""
        bf16 = torch.autocast(self.windows.device.type, torch.bfloat16)
        precision = bf16 if self.setting.precision == "bf16" else contextlib.nullcontext()
        with engines.use(self.engine), precision:
            return self.forward(self.windows[:, :-1], self.windows[:, 1:])

    def forward_backward(self) -> None:
        """Without clip and optimiser."""
        self.loss().backward()
        self.optimizer.zero_grad()

    def step(self) -> None:
        """One whole step: forward, backward, clip, optimiser."""
        self.loss().backward()
        self.update()

    def update(self) -> None:
        """Clip and optimiser."""
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()


def built(spec: str, shape: Shape, device: torch.device) -> Transformer:
    """A model with shared weights by seed 0, and a design moved off its start."""
    model = Transformer(shape, variant.parse(spec).build(shape.d_model, shape.n_sublayers))
    init_weights(model, seed=0)
    measure.stir(model.residual)
    return model.to(device)


def tokens(shape: Shape, batch_size: int, device: torch.device) -> Tensor:
    """(B, T + 1) random tokens, always the same."""
    generator = torch.Generator().manual_seed(0)
    size = (batch_size, shape.seq_len + 1)
    return torch.randint(shape.vocab_size, size, generator=generator).to(device)


def arguments(description: str, rounds: int) -> argparse.ArgumentParser:
    """What every benchmark takes."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", type=Path, help="where the results go, besides stdout")
    parser.add_argument("--rounds", type=int, default=rounds, help="in which the arms take turns")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: does it run at all?")
    return parser


def started(threads: int, kind: str) -> torch.device:
    """The device, with its number of threads set; ends the program where there is none."""
    torch.set_num_threads(threads)
    if kind == "cuda" and not torch.cuda.is_available():
        sys.exit("this setting needs a CUDA device, and torch sees none here")
    return torch.device(kind)


def facts(device: torch.device, threads: int) -> dict[str, Any]:
    """The machine, its versions, and how fast it copies (bytes per second, read and written)."""
    cuda = device.type == "cuda"
    found: dict[str, Any] = {
        "device": torch.cuda.get_device_name(device) if cuda else measure.cpu_name(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": platform.platform(),
    }
    if cuda:
        found["cuda"] = torch.version.cuda or ""
    if engines.has_triton():
        found["triton"] = importlib.import_module("triton").__version__
    return found | {"threads": threads, "copy_speed": measure.copy_speed(device)}


def finish(document: dict[str, Any], path: Path | None, wrong: list[str]) -> None:
    """Write the results; exit code 1 where an arm was wrong."""
    print(", ".join(f"{key} {value}" for key, value in document["machine"].items()))
    save(document, path)
    for line in wrong:
        print(f"wrong: {line}")
    sys.exit(1 if wrong else 0)


def save(document: dict[str, Any], path: Path | None) -> None:
    """Write the results so far, so that a run that is cut short leaves some."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def failure(error: Exception, device: torch.device) -> str:
    """An arm's error in a line; what memory it took is given back."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return " ".join(f"it cannot be run: {type(error).__name__}: {error}".split())[:300]


def spread_text(value: Spread, scale: float = 1.0, digits: int = 3) -> str:
    """`1.042 [1.031, 1.050]`."""
    median, low, high = (f"{scale * part:.{digits}f}" for part in value)
    return f"{median} [{low}, {high}]"
