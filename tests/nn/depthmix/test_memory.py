"""Memory: backward keeps a vector per source and token, and numbers per pair; without gradients a
design holds only what a later site reads.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import pytest
import torch
from designs import build
from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
from mixes import DEVICE, GATHERED, NEEDS_TRITON
from torch import Tensor, fx
from torch._dynamo.backends.common import aot_autograd

from attnres_cli.nn.depthmix import few_tokens, grouped_reads
from attnres_cli.nn.depthmix.engines import use
from attnres_cli.nn.measure import vectors_held
from attnres_cli.nn.shape import Shape
from attnres_cli.nn.variant import parse

SHAPE = Shape(
    n_layers=4, d_model=64, n_heads=1, n_kv_heads=1, d_head=64, d_ff=64, vocab_size=11, seq_len=16
)
TOKENS = 16
VECTOR = 4 * TOKENS * SHAPE.d_model
"""Bytes of a tensor of full width."""
NAMES = ["attnres", "attnres:block_size=4", "attnres:rank=16"]
DEPTHS = (4, 8, 16)
SHALLOW = (2, 4, 8)
"""For compilers, which take seconds per layer."""


def tokens() -> Tensor:
    return torch.arange(TOKENS, device=DEVICE)[None] % SHAPE.vocab_size


def saved(engine: str, spec: str, n_layers: int) -> int:
    """Bytes of the storages that autograd keeps for backward, without parameters."""
    model = build(spec, dataclasses.replace(SHAPE, n_layers=n_layers)).to(DEVICE)
    known = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, Tensor] = {}

    def keep(x: Tensor) -> Tensor:
        kept[x.untyped_storage().data_ptr()] = x
        return x

    with use(engine), torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        logits = model(tokens())
    assert logits.grad_fn is not None
    return sum(x.untyped_storage().nbytes() for at, x in kept.items() if at not in known)


def compiled(engine: str, spec: str, n_layers: int) -> int:
    """Bytes of the storages that a compiled forward hands to its backward, without inputs."""
    torch.compiler.reset()
    model = build(spec, dataclasses.replace(SHAPE, n_layers=n_layers)).to(DEVICE)
    found: list[int] = []

    def count(graph: fx.GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
        outputs = graph.graph.output_node().args[0]
        inputs = {storage(node) for node in graph.graph.find_nodes(op="placeholder")}
        made = {storage(node): node for node in outputs if isinstance(node, fx.Node)}
        sizes = [
            node.meta["val"].untyped_storage().nbytes()
            for at, node in made.items()
            if at is not None and at not in inputs
        ]
        found.append(sum(sizes))
        return make_boxed_func(graph.forward)

    def storage(node: fx.Node) -> int | None:
        value = node.meta.get("val")
        return value.untyped_storage()._cdata if isinstance(value, Tensor) else None

    backend = aot_autograd(
        fw_compiler=count,
        bw_compiler=lambda graph, _: make_boxed_func(graph.forward),
        partition_fn=min_cut_rematerialization_partition,
    )
    with use(engine):
        torch.compile(model, backend=backend, fullgraph=True, dynamic=False)(tokens()).sum()
    assert len(found) == 1
    return found[0]


def check(
    bytes_of: Callable[[str, str, int], int], engine: str, spec: str, depths: Sequence[int] = DEPTHS
) -> None:
    beyond = [bytes_of(engine, spec, n) - bytes_of(engine, "standard", n) for n in depths]

    numbers = []
    for n_layers, found in zip(depths, beyond, strict=True):
        sublayers = 2 * n_layers
        # a score per site that may read a source, whether it does or not, and for each source its
        # reciprocal rms and the softmax's two constants; eager keeps the weight too; plain scores
        # are kept before and after their norm, with the weights; a compiler may keep a few steps
        # from score to weight, still an eighth of a vector of this width
        per_pair = 3 if "rank" in spec else 2 if engine == "eager" else 1
        per_pair = 8 if bytes_of is compiled and (engine == "compile" or per_pair > 1) else per_pair
        per_token = per_pair * (sublayers + 1) * (sublayers + 2) // 2 + 4 * (sublayers + 1)
        queries = 2 * (sublayers + 1) * SHAPE.d_model  # with the gain folded in, for all tokens
        allowed = VECTOR * (sublayers + 1) + 4 * TOKENS * per_token + 4 * queries
        assert 0 < found <= allowed
        numbers.append((found - 4 * TOKENS * per_token) / sublayers)
    # per sublayer no more at any depth, but for numbers per pair: what grows with the square of the
    # depth would double from one of these depths to the next
    assert max(numbers) - numbers[0] < VECTOR / 2


@GATHERED
@pytest.mark.parametrize("spec", NAMES)
def test_a_sublayer_keeps_one_vector_per_token_beyond_standard(engine: str, spec: str):
    check(saved, engine, spec)


@pytest.mark.parametrize(
    ("engine", "spec"),
    [
        pytest.param("compile", "attnres:block_size=4", marks=pytest.mark.slow),
        pytest.param("triton", "attnres", marks=[NEEDS_TRITON, pytest.mark.nightly]),
    ],
)
def test_a_compiled_sublayer_keeps_one_vector_per_token_beyond_standard(engine: str, spec: str):
    check(compiled, engine, spec, SHALLOW)


def test_this_would_catch_the_formula_written_plainly():
    with pytest.raises(AssertionError):
        check(saved, "reference", "attnres")


HELD = {
    "standard": (1,) * 9,
    "attnres": tuple(range(1, 10)),
    "attnres:block_size=4": (1, 2, 2, 2, 2, 3, 3, 3, 3),
    "attnres:block_size=4,rank=16": (1, 2, 2, 2, 2, 3, 3, 3, 3),
    "attnres:block_size=4,query=input": (1, 2, 2, 2, 2, 3, 3, 3, 3),
    "attnres:block_size=4,agg=rmssum": (1, 3, 3, 3, 2, 4, 4, 4, 3),
    "attnres:window=3": (1, 2, 3, 4, 4, 4, 4, 4, 4),
    "delta:block_size=4": (1, 3, 3, 3, 3, 4, 4, 4, 4),
    "denseformer": (1, 2, 3, 3, 4, 4, 5, 5, 6),
    "denseformer:period=2": (1, 2, 2, 3, 4, 4, 4, 5, 6),
    "unet": (1, 1, 1, 2, 2, 2, 1, 1, 1),
    "laurel:kind=rw+pa,rank=4": (1, 2, 3, 3, 3, 3, 3, 3, 3),
}
"""Vectors per token at each of eight sublayers and the output: Block's are the embedding, finished
blocks and the running sum; delta, denseformer and rmssum carry a stream or a sum beside them."""


@pytest.mark.parametrize(
    ("engine", "spec"),
    [
        *(("eager", spec) for spec in HELD),
        ("reference", "attnres:block_size=4,agg=rmssum"),
        ("compile", "attnres:block_size=4,agg=rmssum"),
        pytest.param("triton", "delta:block_size=4", marks=NEEDS_TRITON),
    ],
)
def test_without_gradients_a_design_holds_only_what_a_later_site_reads(engine: str, spec: str):
    residual = parse(spec).build(64, 8)

    with (
        use(engine),
        mock.patch.object(grouped_reads, "SUMS", 0),  # read in the way of many tokens
        mock.patch.object(few_tokens, "FEW", 0),
    ):
        found = vectors_held(residual.to(DEVICE), 1, 64, torch.device(DEVICE))

    assert found == HELD[spec]
