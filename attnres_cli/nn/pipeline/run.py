"""A rank of a pipeline: torch's own stages and schedules around the chunks of a model."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import pipelining
from torch.distributed.pipelining import PipelineStage

from attnres_cli.nn.model import Transformer
from attnres_cli.nn.pipeline.cache import Cache
from attnres_cli.nn.pipeline.chunk import Chunk, Within, keep_share
from attnres_cli.nn.pipeline.cuts import States, states_of
from attnres_cli.nn.pipeline.plan import Plan, Way

SCHEDULES = {
    "gpipe": (pipelining.ScheduleGPipe, False),
    "1f1b": (pipelining.Schedule1F1B, False),
    "interleaved1f1b": (pipelining.ScheduleInterleaved1F1B, True),
    "loopedbfs": (pipelining.ScheduleLoopedBFS, True),
}
"""By name, and whether they take several chunks of a rank."""

_SPLITTING = ("interleavedzerobubble", "zbvzerobubble", "dualpipev")


class Stage(PipelineStage):
    """Torch's stage, which tells the rank's cache the micro-batch."""

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        """The same."""
        assert isinstance(self.submod, Chunk)
        self.submod.cache.micro_batch = fwd_chunk_id
        return super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)


class Pipeline:
    """The chunks that a rank has of a model, whose other weights are dropped. All ranks of the
    group call every method together.

    The gradients of what a design learns are summed over the ranks, each of which has all of it.
    Raises VariantError for a design that cannot be cut, ValueError for a pipeline that has no such
    schedule, or no room for so many chunks.
    """

    def __init__(
        self,
        model: Transformer,
        virtual: int = 1,
        schedule: str = "1f1b",
        *,
        way: Way = "cached",
        group: dist.ProcessGroup | None = None,
        within: Within = contextlib.nullcontext,
    ) -> None:
        self.schedule = schedule_of(schedule, virtual)
        self.model, self.group = model, group
        self.rank, stages = dist.get_rank(group), dist.get_world_size(group)
        self.device = model.embed.weight.device
        self.states = _states(model, within)
        self.plan = Plan(self.states.cuts, stages, virtual, way)
        self._names = [name for name, _ in model.named_parameters()]
        self._dtype = model.embed.weight.dtype
        keep_share(model, self.plan, self.rank)
        self.cache = Cache()
        parts = (model, self.states, self.plan)
        mine = range(self.rank, self.plan.n_chunks, stages)
        self.chunks = [Chunk(*parts, c, self.cache, within) for c in mine]
        self.within = within
        self._made: dict[tuple[int, int, int, bool], Any] = {}

    def owner(self, name: str) -> int:
        """The rank that has a parameter of the model, the first where all have it."""
        part, _, rest = name.partition(".")
        if part == "sublayers":
            l, chunks = int(rest.partition(".")[0]) + 1, range(self.plan.n_chunks)
            return next(c for c in chunks if l in self.plan.sublayers(c)) % self.plan.stages
        return 0 if part in ("embed", "residual") else self.plan.stages - 1

    @property
    def is_last(self) -> bool:
        """Whether this rank has the head."""
        return self.rank == self.plan.stages - 1

    def backward(self, tokens: Tensor, targets: Tensor, n_micro: int) -> Tensor:
        """Add the gradients of the mean loss of a batch (B, T), in micro-batches of B / n_micro
        rows; that loss, on every rank.
        """
        learned = list(self.model.residual.parameters())
        held = [parameter.grad for parameter in learned]  # of earlier calls: summed already
        for parameter in learned:
            parameter.grad = None
        loss = self._run(tokens, targets, n_micro, trains=True)
        for parameter, earlier in zip(learned, held, strict=True):
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad, group=self.group)
            if earlier is not None:
                parameter.grad = earlier.add_(parameter.grad)
        return loss

    @torch.no_grad()
    def loss(self, tokens: Tensor, targets: Tensor, n_micro: int) -> Tensor:
        """The mean loss of a batch (B, T), on every rank."""
        return self._run(tokens, targets, n_micro, trains=False)

    def clip(self, most: float) -> Tensor:
        """Scale all gradients so that their norm over all ranks is at most this; that norm. The
        tensors' own norms are added up in the order of one process, bit for bit.
        """
        mine = dict(self.model.named_parameters())
        norms = torch.zeros(len(self._names), dtype=self._dtype, device=self.device)
        for i, name in enumerate(self._names):
            if self.owner(name) == self.rank and mine[name].grad is not None:
                norms[i] = torch.linalg.vector_norm(mine[name].grad)
        dist.all_reduce(norms, group=self.group)
        total = torch.linalg.vector_norm(norms)
        torch.nn.utils.clip_grads_with_norm_(mine.values(), most, total)
        return total

    def _run(self, tokens: Tensor, targets: Tensor, n_micro: int, *, trains: bool) -> Tensor:
        schedule = self._schedule(tokens, n_micro, trains=trains)
        given = (tokens,) if self.rank == 0 else ()
        losses: list[Tensor] = []
        wanted = {"target": targets, "losses": losses} if self.is_last else {}
        (schedule.step if trains else schedule.eval)(*given, **wanted, return_outputs=False)
        loss = torch.zeros((), dtype=torch.float64, device=self.device)
        if self.is_last:
            loss += torch.stack([each.detach() for each in losses]).sum()
        dist.broadcast(loss, group=self.group, group_src=self.plan.stages - 1)
        return loss

    def _schedule(self, tokens: Tensor, n_micro: int, *, trains: bool) -> Any:
        """Torch's schedule of batches of this shape, made once. Forward alone, micro-batches may be
        fewer than a schedule of both ways needs.
        """
        rows, rest = divmod(len(tokens), n_micro)
        if rest:
            raise ValueError(f"{n_micro} micro-batches do not divide {len(tokens)} rows")
        key = rows, tokens.shape[1], n_micro, trains
        if key not in self._made:
            stages = [self._stage(chunk, rows, tokens.shape[1]) for chunk in self.chunks]
            kind, takes_several = SCHEDULES[self.schedule]
            if not trains:
                kind = SCHEDULES["loopedbfs" if takes_several else "gpipe"][0]

            def loss(hidden: Tensor, targets: Tensor) -> Tensor:
                with self.within():
                    return self.model.loss(hidden, targets) / n_micro

            self._made[key] = kind(
                stages if takes_several else stages[0], n_micro, loss_fn=loss, scale_grads=False
            )
        return self._made[key]

    def _stage(self, chunk: Chunk, rows: int, time: int) -> Stage:
        """A stage that knows the shapes of what it is sent, and sends."""

        def like(values: tuple[int, ...]) -> tuple[Tensor, ...]:
            return tuple(self.states.like(i, rows, time).requires_grad_() for i in values)

        plan, c = self.plan, chunk.c
        tokens = torch.empty(rows, time, dtype=torch.long, device="meta")
        hidden = self.states.like(0, rows, time)  # the embedding, whose shape all sublayers have
        arriving = like(plan.received(c)) if c else (tokens,)
        is_last = c == plan.n_chunks - 1
        leaving = (hidden,) if is_last else like(plan.received(c + 1))
        return Stage(
            chunk,
            c,
            plan.n_chunks,
            self.device,
            input_args=arriving,
            output_args=leaving,
            group=self.group,
        )


def schedule_of(name: str, virtual: int) -> str:
    """The name of a schedule in SCHEDULES that can be used. Raises ValueError with the reason."""
    known = name.lower()
    if known in _SPLITTING:
        raise ValueError(
            f"schedule {name} splits backward into one pass for inputs and one for weights: "
            "depth mixing and cached values gather their gradients in a single one. Use "
            f"{', '.join(SCHEDULES)}"
        )
    if known not in SCHEDULES:
        raise ValueError(f"no schedule {name}: {', '.join(SCHEDULES)}")
    if virtual > 1 and not SCHEDULES[known][1]:
        several = [each for each, (_, takes_several) in SCHEDULES.items() if takes_several]
        raise ValueError(
            f"schedule {name} has one chunk per rank: {virtual} virtual stages take "
            f"{' or '.join(several)}"
        )
    return known


def _states(model: Transformer, within: Within) -> States:
    """The states of a model's design, of the types that they have within autocast."""
    design, device = model.residual, model.embed.weight.device
    token = torch.zeros(1, 1, dtype=torch.long, device=device)
    with torch.no_grad(), within():
        x = model.embedded(token)
        v = model.sublayers[0](x, to_heads=True).v if design.sees_values else x
        return states_of(design, x, model.sublayers[0](x), v)
