"""Prefill with its tokens in parts on several processes of this machine, beside one process's."""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed

from attnres_cli.config.recipe import Recipe
from attnres_cli.errors import UsageError
from attnres_cli.lab.workers import pool
from attnres_cli.nn import measure, sharded
from attnres_cli.nn.cost import PrefillArm, PrefillBench
from attnres_cli.nn.model import Transformer, init_weights
from attnres_cli.nn.shape import Shape
from attnres_cli.nn.variant import parse

_BYTES = 8  # of a float64
_VOCABULARY = 256


@dataclass(frozen=True)
class _Job:
    variants: tuple[str, ...]
    shape: Shape
    tokens: Tensor
    ranks: int
    chunk: int
    folder: Path  # where ranks meet, and leave what they found


def prefill(
    recipe: Recipe, variants: Sequence[str], ranks: int, n_tokens: int | None, chunk: int | None
) -> PrefillBench:
    """So many random tokens (None: a sequence of the recipe's) through untrained models in float64,
    by one process and by so many ranks, whole and `chunk` tokens at a time (None: a quarter); the
    designs are moved off their start. Raises UsageError where the ranks do not divide what they
    share.
    """
    shape = recipe.model.shape(_VOCABULARY)
    n_tokens = shape.seq_len if n_tokens is None else n_tokens
    chunk = max(1, n_tokens // 4) if chunk is None else chunk
    shape = replace(shape, seq_len=n_tokens)
    _refuse(shape, n_tokens, ranks, chunk)
    for name in variants:
        with torch.device("meta"):
            design = parse(name).build(shape.d_model, shape.n_sublayers)
        if design.sees_values:
            raise UsageError(f"bench prefill: {name} changes values, which has no parts for ranks")
    drawn = torch.Generator().manual_seed(0)
    tokens = torch.randint(_VOCABULARY, (1, n_tokens), generator=drawn)
    with tempfile.TemporaryDirectory(prefix="attnres-") as name:
        job = _Job(tuple(variants), shape, tokens, ranks, chunk, Path(name))
        _on_ranks(job)
        found = [torch.load(job.folder / f"{rank}.pt") for rank in range(ranks)]
    arms = []
    for variant in variants:
        model = _model(variant, shape)
        watched = sharded.Held(model)
        with torch.inference_mode():
            want = model.hidden(tokens)
        mine = [each[variant] for each in found]
        held = (watched.peak, *(max(each["held"][way] for each in mine) for way in (0, 1)))
        outs = [_joined([each["out"][way] for each in mine]) for way in (0, 1)]
        off = tuple(float((out - want).abs().max()) for out in outs)
        sizes = (n_tokens, n_tokens // ranks, chunk // ranks)
        n = _n_sources(model)
        counted = tuple(n * size * shape.d_model * _BYTES for size in sizes) if n else ()
        arms.append(PrefillArm(variant, (off[0], off[1]), held, counted))
    sent = 2 * (ranks - 1) * (n_tokens // ranks) * shape.d_model * _BYTES
    return PrefillBench(recipe.name, n_tokens, shape.d_model, ranks, chunk, sent, tuple(arms))


def _refuse(shape: Shape, n_tokens: int, ranks: int, chunk: int) -> None:
    if kinds := sharded.whole(shape):
        raise UsageError(f"bench prefill has no parts of {kinds} for ranks: take another recipe")
    if uneven := sharded.indivisible(shape, ranks):
        raise UsageError(f"--ranks {ranks} does not divide {uneven}")
    if chunk % ranks or n_tokens % chunk:
        raise UsageError(
            f"--chunk {chunk} must be divided by --ranks {ranks} and divide the {n_tokens} tokens"
        )


def _n_sources(model: Transformer) -> int:
    """By the paper's design: the embedding, finished blocks and the one that grows. 0: none."""
    table = model.residual.table_one()
    if table is None or table.groups is None:
        return 0
    return 1 + (model.shape.n_sublayers if table.scheme == "Full" else table.groups[1])


def _model(variant: str, shape: Shape) -> Transformer:
    model = Transformer(shape, parse(variant).build(shape.d_model, shape.n_sublayers))
    init_weights(model, 0)
    measure.stir(model.residual)
    return model.double().eval()


def _joined(parts: Sequence[Sequence[Tensor]]) -> Tensor:
    """All tokens, from each rank's of each chunk."""
    return torch.cat([torch.cat(chunk, dim=1) for chunk in zip(*parts, strict=True)], dim=1)


def _on_ranks(job: _Job) -> None:
    """Start all ranks and wait for them. What one raises it shows; the others are ended then."""
    pool.prepare()
    context = multiprocessing.get_context("forkserver")
    processes = [
        context.Process(target=_rank, args=(dict(os.environ), rank, job), daemon=True)
        for rank in range(job.ranks)
    ]
    try:
        for process in processes:
            process.start()
        left = {process.sentinel: process for process in processes}
        while left:
            for sentinel in wait(list(left)):
                process = left.pop(sentinel)  # type: ignore[arg-type]
                process.join()
                if process.exitcode:
                    raise RuntimeError(f"a rank ended with exit code {process.exitcode}")
    finally:
        for process in processes:
            if process.is_alive():
                process.kill()


def _rank(environment: dict[str, str], rank: int, job: _Job) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command ends us
    os.environ.clear()
    os.environ.update(environment | {"GLOO_SOCKET_IFNAME": "lo"})
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{job.folder}/meeting", rank=rank, world_size=job.ranks
    )
    found: dict[str, Any] = {}
    for variant in job.variants:
        model = _model(variant, job.shape)
        sharded.shard(model, rank, job.ranks)
        ways = (job.tokens,), job.tokens.split(job.chunk, dim=1)
        both = [_through(model, chunks, rank, job.ranks) for chunks in ways]
        outs, held = zip(*both, strict=True)
        found[variant] = {"out": outs, "held": held}
    torch.save(found, job.folder / f"{rank}.pt")
    distributed.destroy_process_group()


def _through(
    model: Transformer, chunks: Sequence[Tensor], rank: int, ranks: int
) -> tuple[list[Tensor], int]:
    """What this rank has of each chunk (1, T, D), and the most bytes held."""
    length = sum(chunk.shape[1] for chunk in chunks)
    caches = model.caches(length) if len(chunks) > 1 else []
    held = sharded.Held(model)
    with torch.inference_mode():
        outs = [model.hidden(chunk.chunk(ranks, dim=1)[rank], caches) for chunk in chunks]
    return [out.clone() for out in outs], held.peak
