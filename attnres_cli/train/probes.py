"""What is measured inside a model at a few points of its training: for every design the same.

All of it is on the same few evaluation tokens for every arm and seed. v_0 is the embedding,
v_1..v_L are the outputs of the sublayers, h_l is what site l = 1..L+1 sees, the last site being the
output norm's. An rms is the root of the mean square over tokens and width.

| measure           | of       | definition                                                        |
|-------------------|----------|-------------------------------------------------------------------|
| output_rms        | output i | rms of v_i                                                        |
| gradient_rms      | output i | rms of d loss / d v_i, the loss being a sum over tokens, in nats  |
| input_rms         | site l   | rms of h_l                                                        |
| newest_source_rms | site l   | rms of the newest source, see below                               |
| newest_share      | site l   | p of the newest source                                            |
| embedding_share   | site l   | p of the source that holds the embedding                          |
| entropy           | site l   | -sum p log p over the sources, in nats                            |
| contribution      | output i | rms(M[L+1, i] v_i) / sum_j rms(M[L+1, j] v_j)                     |
| mixing            | l, i     | M[l, i], with h_l = sum_i M[l, i] v_i                             |
| mixing_k, _v      | l, i     | the same of keys and of values, where a design tells them apart   |
| imbalance         | output i | tokens of the expert that has most, as times the mean of them all |

A source is an output, or the sum of neighbouring outputs that a design reads with one weight
whatever its parameters are (nn/describe.py): all of them for `standard`, a block's for
`attnres:block_size=4`. Its weight is M's, and p is its share in a token's absolute weights, so that
p is the softmax's weight in Attention Residuals and is defined where weights are negative or sum to
anything. p, entropy and M are taken per token, and per head or channel where those have weights of
their own, then averaged. Where an attention's inputs are apart, h_l is what its queries see.

The paper (arXiv 2603.15031) plots magnitudes and gradients per layer (Fig. 5) without saying of
which tensor or in which norm; its series of magnitudes rises and falls as newest_source_rms does.
Its Fig. 8 is M. A contribution that shrinks with depth is what it calls PreNorm's dilution.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from attnres_cli.config.recipe import Recipe
from attnres_cli.data.tokens import Tokens, Windows
from attnres_cli.nn.depthmix.scoring import wide
from attnres_cli.nn.describe import joined
from attnres_cli.nn.generate import evaluating
from attnres_cli.nn.loss import next_token_loss
from attnres_cli.nn.model import Sublayer, Transformer
from attnres_cli.nn.proofs.model import UNKNOWN
from attnres_cli.nn.residual import Hidden, Inputs, Residual
from attnres_cli.nn.trunk.moe import MoE
from attnres_cli.nn.variant import Variant
from attnres_cli.records.run import Numbers, Probe

_PARTS = (0.0, 0.25, 0.5, 1.0)  # of a run's steps, after which it is probed
_SHORT = 200  # steps below which a run is probed at its end alone: a probe takes half a step
_SHARE = 0.004  # of a run's training tokens, how many go through probes in all
_MOST_TOKENS = 4096  # of one probe; averages over more would move by less than seeds do
_MOST_LOGITS = 2**26  # of one probe: a quarter of a gigabyte
_NUMBERS = 2**22  # of M at a time: 16 MB, so that a probe takes no more memory than a step
_OFF = 0.1  # how far M may be off what the output site saw; bfloat16 is off by a hundredth

_OTHERS = ("mixing_k", "mixing_v")
"""M of the keys and of the values, where a design tells an attention's inputs apart."""

_SHARES = ("newest_share", "embedding_share", "entropy")


def steps_of(recipe: Recipe) -> frozenset[int]:
    """The steps after which a run of this recipe is probed."""
    steps = recipe.steps
    return frozenset(round(steps * part) for part in (_PARTS if steps >= _SHORT else _PARTS[-1:]))


def windows_of(tokens: Tokens, recipe: Recipe) -> Windows:
    """(B, T + 1) evaluation tokens, the same for every step, arm and seed: a fixed share of the
    run's, but at least one window, and no more than a training step or an evaluation has.
    """
    seq_len, train = recipe.model.seq_len, recipe.train
    most = min(_MOST_TOKENS, _MOST_LOGITS // tokens.vocab_size)
    fair = min(train.tokens * _SHARE / len(_PARTS), most) // seq_len
    count = max(1, min(int(fair), train.rows, train.eval_tokens // seq_len))
    return next(iter(tokens.eval_batches(count * seq_len, count, seq_len)))


def measure(
    model: Transformer,
    design: Variant,
    inputs: Tensor,
    targets: Tensor,
    step: int,
    autocast: AbstractContextManager[object],
    documents: Tensor | None = None,
) -> Probe:
    """All of the above after `step` steps, by one forward and one backward pass, never compiled.
    Weights, gradients and torch's generators stay as they were. `targets` follow `inputs`, (B, T),
    whose `documents` (B, T) are isolated if given.
    """
    devices = [inputs.device] if inputs.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), torch.enable_grad(), evaluating(model):
        with autocast:
            values, inputs_of = model.trace(inputs, documents)
            seen = [h.q if isinstance(h, Inputs) else h for h in inputs_of]
            imbalance = _imbalances(model, seen)
            loss = next_token_loss(model.head(model.norm(seen[-1])), targets)
        total = loss * targets.numel()
        gradients = torch.autograd.grad(total, values, materialize_grads=True)
        with torch.no_grad():
            values, seen = ([_flat(x) for x in each] for each in (values, seen))
            try:
                mixed = _mixed(model, design, values, seen)
            except Exception as error:  # a diagnostic costs nobody a run; `attnres check` tells
                own = type(model.residual).depth_mixing is not Residual.depth_mixing
                raised = f"depth_mixing raised {type(error).__name__}: {error}"
                mixed = {"no_mixing": raised if own else UNKNOWN}
    return Probe(
        step, _rms_of(values), _rms_of(gradients), _rms_of(seen), imbalance=imbalance, **mixed
    )


@torch.no_grad()
def _imbalances(model: Transformer, seen: Sequence[Hidden]) -> Numbers | None:
    """By output; 0 where a token has no choice."""
    sublayers = [f for f in model.sublayers if isinstance(f, Sublayer)]
    if not any(isinstance(f.kind, MoE) for f in sublayers):
        return None
    found = [_imbalance(f, h) for f, h in zip(sublayers, seen, strict=False)]
    return _numbers(torch.stack([torch.zeros_like(found[-1]), *found]))


def _imbalance(f: Sublayer, h: Hidden) -> Tensor:
    if not isinstance(f.kind, MoE):
        return torch.zeros((), dtype=torch.float64, device=h.device)
    for part in f:
        if part is f.kind:
            break
        h = part(h)
    return f.kind.imbalance(h)


def _flat(x: Tensor) -> Tensor:
    """(1, N, D), in float32 at least: designs know no order among tokens."""
    return x.detach().flatten(0, 1).unsqueeze(0).to(wide(x))


def _rms(x: Tensor) -> Tensor:
    return x.to(wide(x)).square().mean().sqrt()


def _rms_of(vectors: Sequence[Tensor]) -> Numbers:
    return _numbers(torch.stack([_rms(x) for x in vectors]))


def _numbers(x: Tensor) -> Numbers:
    return tuple(x.tolist())


def _mixed(
    model: Transformer, design: Variant, values: Sequence[Tensor], seen: Sequence[Tensor]
) -> dict[str, Any]:
    """What comes of M, by name; or why there is no M."""
    residual = model.residual
    sums = None if residual.not_linear else joined(design, residual.n_sublayers)
    if sums is None:
        return {"no_mixing": residual.not_linear or "depth_mixing gives None"}
    begins = (~sums).to(values[0])
    _, n_tokens, slices = values[0].shape  # of the width: so many at most, until M is known
    total: dict[str, Tensor] = {}
    start = 0
    while start < n_tokens:
        end = min(n_tokens, start + max(1, _NUMBERS // (slices * len(values) ** 2)))
        v = torch.stack([value[0, start:end] for value in values])
        found = residual.depth_mixing(list(v.unsqueeze(1)))
        assert found is not None
        mixing, *others = found if isinstance(found, Inputs) else (found,)
        sums_of = _sums(mixing[0], begins, v, seen[-1][0, start:end])
        for name, other in zip(_OTHERS, others, strict=False):
            sums_of[name] = (end - start) * other[0].mean(dim=(0, 1))
        for name, x in sums_of.items():
            total[name] = total[name] + x if name in total else x
        start, slices = end, mixing.shape[2]
    off = (total["off"] / total["out"]).sqrt().item()
    if off > _OFF:
        return {"no_mixing": f"M is off what the output site saw by {off:.0%}"}
    sizes = total["energy"].sqrt()
    return {
        **{name: _numbers(total[name] / n_tokens) for name in _SHARES},
        "newest_source_rms": _newest_rms(values, sums),
        "contribution": _numbers(sizes / sizes.sum()),
        **{
            name: tuple(tuple(row) for row in (total[name] / n_tokens).tolist())
            for name in ("mixing", *_OTHERS)
            if name in total
        },
    }


def _sums(mixing: Tensor, begins: Tensor, v: Tensor, out: Tensor) -> dict[str, Tensor]:
    """Sums over N tokens of what comes of M: `mixing` (N or 1, H, L+1, L+1).

    `begins` (L+1, L+1) is 1 at each site where a source begins: the others are counted there. v is
    (L+1, N, D); `out` (N, D) is what the output site saw.
    """
    weights = mixing.abs()
    whole = (weights * begins).sum(dim=-1, keepdim=True)
    p = weights / whole.clamp_min(torch.finfo(whole.dtype).tiny)  # (N or 1, H, L+1, L+1)
    means = {
        "newest_share": p.diagonal(dim1=-2, dim2=-1),
        "embedding_share": p[..., 0],
        "entropy": torch.special.entr(p * begins).sum(dim=-1),
        "mixing": mixing,
    }
    at_output = mixing[..., -1, :].expand(len(out), -1, -1)  # (N, H, S)
    v = v.unflatten(-1, (at_output.shape[1], -1))  # (S, N, H, D/H)
    replayed = torch.einsum("nhs,snhd->nhd", at_output, v).flatten(-2)
    return {
        **{name: len(out) * x.mean(dim=(0, 1)) for name, x in means.items()},
        "energy": torch.einsum("nhs,snh->s", at_output.square(), v.square().sum(dim=-1)),
        "off": (replayed - out).square().sum(),
        "out": out.square().sum(),
    }


def _newest_rms(values: Sequence[Tensor], sums: Tensor) -> Numbers:
    """The rms of the newest source at every site: the sum of outputs that ends with the newest."""
    found, held, first = [], torch.zeros(()), -1
    for site, row in enumerate(sums.tolist()):
        start = site
        while row[start]:
            start -= 1
        same = start == first
        held = held + values[site] if same else torch.stack(list(values[start : site + 1])).sum(0)
        first = start
        found.append(_rms(held))
    return _numbers(torch.stack(found))
