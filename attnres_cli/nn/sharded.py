"""Prefill with the tokens of every source in parts, one on each rank of torch.distributed.

Depth mixing is per token: no read crosses ranks, and a source is this rank's tokens. A sublayer is

    y = reduce_scatter(f_r(all_gather(N(h))))

over time: its norms see this rank's tokens, f_r has this rank's heads or channels, sees all tokens
and puts out a summand of each. Sent per rank and sublayer: 2 (P - 1) / P T D numbers, what an
all-reduce sends. Nothing is differentiated here.

Letters: B batch, T time of all ranks, t = T / P this rank's, D width, P ranks.
Source: Kimi Team 2026 (arXiv 2603.15031), section 4; the layout of sequence parallelism is that of
Korthikanti et al. 2022 (arXiv 2205.05198).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor, distributed, nn

from attnres_cli.nn.depthmix.history import History
from attnres_cli.nn.model import Sublayer, Transformer
from attnres_cli.nn.residual import Hidden, Inputs
from attnres_cli.nn.shape import Shape
from attnres_cli.nn.trunk.attention import Attention
from attnres_cli.nn.trunk.kda import KDA
from attnres_cli.nn.trunk.kind import Kind
from attnres_cli.nn.trunk.mlp import SwiGLU, Ungated

_ALL_GATHER, _REDUCE_SCATTER = (  # by the names that torch has had since 2.13, or before
    getattr(distributed, new, None) or getattr(distributed, old)
    for new, old in (
        ("all_gather_single", "all_gather_into_tensor"),
        ("reduce_scatter_single", "reduce_scatter_tensor"),
    )
)


_KINDS = {"softmax", "kda", "swiglu", "gelu", "relu2"}


def whole(shape: Shape) -> str:
    """The kinds of a trunk's sublayers that have no parts here, in words; empty if all have."""
    return ", ".join(dict.fromkeys(k for k in (*shape.attentions, *shape.mlps) if k not in _KINDS))


def indivisible(shape: Shape, ranks: int) -> str:
    """What of a trunk cannot be shared evenly by so many ranks, in words; empty if all can."""
    sizes = {"n_heads": shape.n_heads, "n_kv_heads": shape.n_kv_heads, "d_ff": shape.d_ff}
    return ", ".join(f"{name} {size}" for name, size in sizes.items() if size % ranks)


def shard(model: Transformer, rank: int, ranks: int) -> None:
    """Keep this rank's part of every sublayer: `hidden` then takes this rank's tokens (B, t), which
    follow those of the ranks before, and gives its (B, t, D). The default group must be there.

    Raises ValueError for kinds of sublayers that are `whole`, or where `indivisible`.
    """
    if kinds := whole(model.shape):
        raise ValueError(f"sublayers of {kinds} have no parts for ranks")
    if uneven := indivisible(model.shape, ranks):
        raise ValueError(f"{ranks} ranks do not divide {uneven}")
    if model.residual.sees_values:
        raise ValueError("a design that changes values has no parts for ranks")
    parts = [_Part(f, model.shape, rank, ranks) for f in model.sublayers]
    model.sublayers = nn.ModuleList(parts)


class _Part(Sublayer):
    """A sublayer from and to this rank's tokens; its cache has this rank's heads of all tokens."""

    def __init__(self, f: nn.Module, shape: Shape, rank: int, ranks: int) -> None:
        assert isinstance(f, Sublayer)
        super().__init__(
            *(_cut(part, shape, rank, ranks) if isinstance(part, Kind) else part for part in f)
        )

    def forward(
        self, h: Any, cache: object = None, *, to_heads: bool = False, mask: Tensor | None = None
    ) -> Hidden:
        """(B, t, D) -> (B, t, D)."""
        assert not to_heads
        assert mask is None
        for part in self:
            if not isinstance(part, Kind):
                h = Inputs(*map(part, h)) if isinstance(h, Inputs) else part(h)
                continue
            whole = Inputs(*map(gathered, h)) if isinstance(h, Inputs) else gathered(h)
            h = scattered(part(whole) if cache is None else part(whole, cache))
        return h


def gathered(x: Tensor) -> Tensor:
    """(B, T, D), from this rank's (B, t, D) and the others'."""
    ranks = distributed.get_world_size()
    out = x.new_empty(ranks * len(x), *x.shape[1:])
    _ALL_GATHER(out, x.contiguous())
    return out.unflatten(0, (ranks, -1)).transpose(0, 1).flatten(1, 2)


def scattered(y: Tensor) -> Tensor:
    """(B, t, D), this rank's tokens of the sum over ranks of their (B, T, D)."""
    ranks = distributed.get_world_size()
    parts = y.unflatten(1, (ranks, -1)).transpose(0, 1).flatten(0, 1).contiguous()
    out = parts.new_empty(len(y), y.shape[1] // ranks, y.shape[2])
    _REDUCE_SCATTER(out, parts)
    return out


def _cut(part: Kind, shape: Shape, rank: int, ranks: int) -> nn.Module:
    """An attention with this rank's heads, or an MLP with its channels."""

    def mine(*stacked: Tensor) -> nn.Parameter:
        return nn.Parameter(torch.cat([w.chunk(ranks)[rank] for w in stacked]))

    small = replace(
        shape,
        n_heads=shape.n_heads // ranks,
        n_kv_heads=shape.n_kv_heads // ranks,
        d_ff=shape.d_ff // ranks,
    )
    cut: Attention | KDA | SwiGLU | Ungated
    with torch.device("meta"), torch.no_grad():
        if isinstance(part, Attention):
            cut = Attention(small, part.rotary)
            sizes = [n * part.d_head for n in (part.n_heads, part.n_kv_heads, part.n_kv_heads)]
            cut.qkv.weight = mine(*part.qkv.weight.split(sizes))
            cut.norms = part.norms  # one gain for all heads
        elif isinstance(part, KDA):
            cut = KDA(small)
            cut.qkv.weight = mine(*part.qkv.weight.chunk(3))
            cut.conv = mine(*part.conv.chunk(3))
            for name in ("beta", "decay.1", "gate.1"):
                cut.get_submodule(name).weight = mine(part.get_parameter(f"{name}.weight"))
            cut.A_log, cut.dt_bias = mine(part.A_log), mine(part.dt_bias)
            cut.decay[0], cut.gate[0] = part.decay[0], part.gate[0]  # all ranks need them whole
            cut.norm, cut.rule = part.norm, part.rule
        elif isinstance(part, SwiGLU):
            cut = SwiGLU(small)
            cut.gate_up.weight = mine(*part.gate_up.weight.chunk(2))
        else:
            assert isinstance(part, Ungated)
            cut = type(part)(small)
            cut.up.weight = mine(part.up.weight)
        cut.out.weight = nn.Parameter(part.out.weight.chunk(ranks, dim=1)[rank].contiguous())
    return cut


class Held:
    """What a model's design carries from depth to depth while `hidden` runs: `peak`, the most bytes
    of (B, t, D) tensors at once.
    """

    def __init__(self, model: Transformer) -> None:
        self.peak, design = 0, model.residual
        start, write = design.start, design.write

        def started(x: Hidden) -> Any:
            return self._look(start(x), x)

        def written(state: Any, l: int, y: Hidden) -> Any:
            return self._look(write(state, l, y), y)

        design.start, design.write = started, written  # type: ignore[method-assign]

    def _look(self, state: Any, like: Hidden) -> Any:
        found = {
            x.data_ptr(): x.nbytes
            for x in _tensors(state)
            if x.ndim >= 3 and x.shape[:2] == like.shape[:2] and x.shape[-1] == like.shape[-1]
        }
        self.peak = max(self.peak, sum(found.values()))
        return state


def _tensors(value: Any) -> Iterator[Tensor]:
    """Every tensor in a state, whatever it is made of."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, History):
        yield from value.sources.values()
    elif is_dataclass(value):
        for each in fields(value):
            yield from _tensors(getattr(value, each.name))
    elif isinstance(value, Mapping):
        yield from _tensors(list(value.values()))
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for each in value:
            yield from _tensors(each)
