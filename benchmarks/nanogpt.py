"""Tokens per second of `standard` over nanoGPT's, in whole training steps at equal shapes.

    python benchmarks/nanogpt.py --json nanogpt.json
    python benchmarks/nanogpt.py --model nanoGPT/model.py  # its own file, beside the stand-in

A step is forward, backward, clip, AdamW. All take turns in one process, one step each per round; a
ratio is that of the two times of a round. Equal are depth, width, heads, batch, length, vocabulary
and the MLP's hidden width (`swiglu`: its weights; that is our default MLP). Else each has what it
does by default: nanoGPT LayerNorm, learned positions, biases, a head tied to the embedding, and the
optimiser of its `configure_optimizers`; ours RMSNorm, rotary positions, no biases, a head of its
own and fused AdamW. The stand-in, `plain.GPT`, has the same operations in our own words. nanoGPT's
file is on github.com/karpathy/nanoGPT, and is not here.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parent))

import plain
from common import (
    Setting,
    Training,
    arguments,
    facts,
    finish,
    shape_of,
    spread_text,
    started,
    tokens,
)

from attnres_cli.nn import cost, measure
from attnres_cli.nn.shape import Shape

SETTINGS = {
    "narrow": (shape_of(6, 128, 128, 256), 16),
    "wide": (shape_of(4, 256, 256, 4096), 8),
}
TARGET = 0.97
LR, DECAY = 1e-4, 0.1


def main() -> None:
    """Measure every setting."""
    parser = arguments("tokens per second of `standard` over nanoGPT's", rounds=31)
    parser.set_defaults(threads=1)
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--model", type=Path, help="nanoGPT's model.py, to be measured too")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--compile", action="store_true", help="all of them")
    given = parser.parse_args()
    device = started(given.threads, "cpu")
    measure.allow_compiling()
    results: list[dict[str, Any]] = []
    for name in given.settings:
        shape, batch_size = SETTINGS[name]
        if given.quick:
            shape, batch_size = shape_of(2, 32, 16, 64, d_head=16), 2
        setting = Setting(name, shape, batch_size, given.precision, given.compile, ())
        print(name, flush=True)
        calls = steps(setting, given.model, device)
        measure.in_turn(calls, 2, device)  # warms up
        results += told(name, measure.in_turn(calls, given.rounds, device))
    document = {"benchmark": "nanogpt", "machine": facts(device, given.threads), "results": results}
    finish(document, given.json, [])


def steps(
    setting: Setting, file: Path | None, device: torch.device
) -> dict[str, Callable[[], object]]:
    """One training step of each, by its name."""
    shape = setting.shape
    gated = replace(setting, shape=replace(shape, mlp="swiglu", d_ff=8 * -(-shape.d_model // 3)))
    config = plain.Config(
        n_layers=shape.n_layers, d_model=shape.d_model, n_heads=shape.n_heads,
        seq_len=shape.seq_len, vocab_size=shape.vocab_size,
    )  # fmt: skip
    stand_in = plain.GPT(config)
    found = {
        "standard": Training("standard", "eager", setting, device).step,
        "swiglu": Training("standard", "eager", gated, device).step,
        "stand-in": step_of(stand_in, plain.adamw(stand_in, LR, DECAY), setting),
    }
    if file is not None:
        found["nanoGPT"] = step_of(*nanogpt(shape, file), setting)
    return found


def nanogpt(shape: Shape, file: Path) -> tuple[nn.Module, torch.optim.Optimizer]:
    """The model of nanoGPT's own file, and its own optimiser."""
    found = importlib.util.spec_from_file_location("nanogpt_model", file)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[found.name] = module  # its dataclass looks there
    found.loader.exec_module(module)
    config = module.GPTConfig(
        block_size=shape.seq_len, vocab_size=shape.vocab_size, n_layer=shape.n_layers,
        n_head=shape.n_heads, n_embd=shape.d_model,
    )  # fmt: skip
    with contextlib.redirect_stdout(sys.stderr):  # it prints what it counts
        model = module.GPT(config)
        return model, model.configure_optimizers(DECAY, LR, (0.9, 0.95), "cpu")


def step_of(
    model: nn.Module, optimizer: torch.optim.Optimizer, setting: Setting
) -> Callable[[], None]:
    """A step as nanoGPT's train.py makes it."""
    windows = tokens(setting.shape, setting.batch_size, torch.device("cpu"))
    inputs, targets = windows[:, :-1].contiguous(), windows[:, 1:].contiguous()
    bf16 = torch.autocast("cpu", torch.bfloat16) if setting.precision == "bf16" else None
    forward = torch.compile(model) if setting.compiled else model

    def step() -> None:
        with bf16 or contextlib.nullcontext():
            out = forward(inputs, targets)
        loss: Tensor = out[1] if isinstance(out, tuple) else out
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def told(name: str, times: dict[str, tuple[float, ...]]) -> Iterator[dict[str, Any]]:
    """A result for each of ours, printed: its tokens per second over theirs."""
    theirs = [arm for arm in times if arm not in ("standard", "swiglu")]
    for arm, seconds in times.items():
        ratios = {other: cost.ratio(times[other], seconds) for other in theirs}
        shown = "   ".join(
            f"of {other} {spread_text(r)}" for other, r in ratios.items() if other != arm
        )
        print(
            f"  {arm:10} {spread_text(cost.spread(seconds), 1000, 1):>24} ms   {shown}", flush=True
        )
        yield {
            "setting": name,
            "arm": arm,
            "step_s": cost.spread(seconds)._asdict(),
            "ratios": {other: r._asdict() for other, r in ratios.items()},
            "target": TARGET if arm == "standard" else None,
            "seconds": seconds,
        }


if __name__ == "__main__":
    main()
