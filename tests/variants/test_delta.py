"""Delta attention residuals against a slow loop written from the equation, and their identities."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from attnres_variants.delta import Delta
from designs import build, close, equals_slow_loop, perturbed, tokens_of
from torch import Tensor

from attnres_cli.nn import variant
from attnres_cli.nn.model import Transformer
from attnres_cli.nn.residual import Inputs
from attnres_cli.nn.shape import Shape


def slow_stream(model: Transformer, x: Tensor, spec: str) -> Tensor:
    """What the output norm sees, one token and one source at a time."""
    asked = dict(variant.parse(spec).options)
    size, partial = asked.get("block_size", 1), asked.get("partial", True)
    design = model.residual
    deltas, running, site = [x], [], 0
    for l, f in enumerate(model.sublayers, 1):
        h = x
        if l > 1:
            sources = deltas + ([sum(running)] if running and partial else [])
            if asked.get("null"):
                sources = [torch.zeros_like(x), *sources]
            apart = asked.get("ways") == "qkv" and l % 2
            read = [torch.zeros_like(x) for _ in range(3 if apart else 1)]
            for h in read:
                for b in range(x.shape[0]):
                    for t in range(x.shape[1]):
                        at = [d[b, t] for d in sources]
                        h[b, t] = x[b, t] + slow_mix(design, at, x[b, t], site, asked.get("gate"))
                site += 1
            h = Inputs(*read) if apart else read[0]
        y = f(h)
        x = x + y
        running.append(y)
        if len(running) == size:
            deltas, running = [*deltas, sum(running)], []
    return x


def slow_mix(design: Delta, at: list[Tensor], x: Tensor, site: int, gate: object) -> Tensor:
    exps = []
    for d in at:
        key = d / torch.sqrt((d * d).sum() / len(d) + 1e-6) * design.gain[site]
        exps.append(torch.exp((design.query[site] * key).sum()))
    mix = sum(e / sum(exps) * d for e, d in zip(exps, at, strict=True))
    if gate == "scalar":
        return mix / (1 + torch.exp(-design.bias[site, 0]))
    if gate == "vector":
        logits = [
            (row * x).sum() + b
            for row, b in zip(design.project[site], design.bias[site], strict=True)
        ]
        return mix / (1 + torch.exp(-torch.stack(logits)))
    return mix


@pytest.mark.parametrize(
    "spec",
    [
        "delta",
        "delta:block_size=2,gate=scalar",
        "delta:ways=qkv",
        "delta:block_size=2,gate=vector,null=on,ways=qkv",
        "delta:block_size=4,gate=vector,null=on",
        "delta:block_size=4,gate=scalar,partial=off",
        "delta:block_size=2,null=on,partial=off",
    ],
)
def test_values_and_gradients_equal_a_slow_loop_from_the_equation(spec: str, tiny_shape: Shape):
    slow = partial(slow_stream, spec=spec)
    equals_slow_loop(perturbed(spec, tiny_shape), tokens_of(1, 2), slow)


@pytest.mark.parametrize("spec", ["delta:gate=scalar", "delta:gate=vector,null=on"])
def test_a_closed_gate_leaves_standard_whatever_the_queries(spec: str, tiny_shape: Shape):
    model, standard = perturbed(spec, tiny_shape), build("standard", tiny_shape).double()
    torch.nn.init.constant_(model.residual.bias, -1e4)

    close(model(tokens_of()), standard(tokens_of()))


def test_gates_start_nearly_closed():
    for gate in ("scalar", "vector"):
        design = Delta(16, 6, gate=gate)
        x = torch.randn(1, 2, 16)
        opened = design._gate(x, 0)

        torch.testing.assert_close(opened, torch.full_like(opened, 0.1192), rtol=1e-3, atol=0)


def test_a_query_that_rejects_every_source_reads_the_null_source(tiny_shape: Shape):
    design = Delta(16, 4, null=True)
    x, y = torch.ones(1, 1, 16), torch.ones(1, 1, 16)
    torch.nn.init.constant_(design.query, -100.0)

    h, _ = design.read(design.write(design.start(x), 1, y), 2)

    torch.testing.assert_close(h, x + y)
