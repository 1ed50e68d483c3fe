"""Ranks that share one run: each trains on its part of every batch (DDP), and may keep but a part
of the weights (FSDP2); or each has some of the sublayers (a pipeline). All are torch's own.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping
from itertools import chain

import torch
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from attnres_cli.errors import VariantError
from attnres_cli.nn import variant
from attnres_cli.nn.depthmix import engines
from attnres_cli.nn.model import Transformer
from attnres_cli.records.run import Settings
from attnres_cli.train import group
from attnres_cli.train.keeper import restore, tensors_of
from attnres_cli.train.trainer import Forward, Kept, Trainer


class Ranks(Trainer):
    """One rank of several: what they tell each other, whatever way they share a run."""

    splits_batches = True

    def __post_init__(self) -> None:
        found = group.current()
        assert found is not None
        self._group, self.rank = found, found.rank
        self.ranks = found.ranks if self.splits_batches else 1
        super().__post_init__()

    def _empty(self) -> Transformer:
        """A model of the run, for whole weights."""
        shape = self.model.shape
        with torch.random.fork_rng(devices=[]):  # PyTorch draws first values, which are not kept
            design = variant.parse(self.spec.variant).build(shape.d_model, shape.n_sublayers)
            return Transformer(shape, design).to(self.device)

    def from_rank_0(self, found: Kept | None) -> Kept | None:
        """What rank 0 has found of a run that goes on."""
        state = self._group.tell(found and found[0])
        return None if state is None else (state, self._group.spread(found and found[1]))

    def largest_over_ranks(self, wish: int) -> int:
        """The largest of what the ranks wish."""
        return self._group.most(wish)

    def _summed(self, counts: Tensor) -> Tensor:
        return self._group.summed(counts)

    def _gathered(self, losses: Tensor) -> Tensor:
        return self._group.gathered(losses)


class Replicated(Ranks):
    """Every rank has the whole model, and all the same gradients: the mean of theirs."""

    def _forward(self) -> Forward:
        index = self.device.index
        with warnings.catch_warnings():  # broadcast_buffers has another name from torch 2.13 on
            warnings.simplefilter("ignore", FutureWarning)
            self._whole = DistributedDataParallel(
                self._compiled,
                device_ids=None if index is None else [index],
                broadcast_buffers=False,  # they are constants
                gradient_as_bucket_view=True,  # else gradients are there twice
            )
        return self._whole

    def _sends(self, *, is_last: bool) -> contextlib.AbstractContextManager[object]:
        return contextlib.nullcontext() if is_last else self._whole.no_sync()


class Sharded(Ranks):
    """Every rank has a part of each weight, of its gradient and of the optimiser's state; a
    sublayer's weights are brought together while it is computed, the others' for all of a step.
    """

    def _placed(self, model: Transformer) -> Transformer:
        model = super()._placed(model)
        check_sharded(self.spec.variant, model.residual)
        mesh = init_device_mesh(self.device.type, (self.ranks,))  # by default that of GPUs, if any
        for f in model.sublayers:
            fully_shard(f, mesh=mesh)
        fully_shard(model, mesh=mesh)
        return model

    def whole(self) -> Transformer:
        """A copy with all weights."""
        found = self._empty()
        mine = chain(self.here().named_parameters(), self.model.named_buffers())
        theirs = dict(chain(found.named_parameters(), found.named_buffers()))
        with torch.no_grad():
            for name, tensor in mine:
                theirs[name].copy_(_whole(tensor.detach()))
        return found

    def tensors(self) -> dict[str, Tensor]:
        """All that the run's continuation needs, whole, on the CPU."""
        return tensors_of(self.here(), self.optimizers, self.device, _whole)

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore the state saved in `tensors`."""
        restore(self._named(tensors), self.here(), self.optimizers, self.device, _part)

    def _joined(self, tensor: Tensor) -> Tensor:
        return _whole(tensor)

    def here(self) -> Transformer:
        """The model, with this rank's parts alone: after an evaluation some weights are whole."""
        assert isinstance(self.model, FSDPModule)
        self.model.reshard()
        return self.model


class Staged(Ranks):
    """Every rank has some sublayers, and sees all of every batch pass by, in as many micro-batches
    as there are ranks, or more. What the design learns is on all ranks.
    """

    splits_batches = False

    def _placed(self, model: Transformer) -> Transformer:
        from attnres_cli.nn.pipeline.run import Pipeline  # others need not wait for it

        model, cut = super()._placed(model), self.spec.recipe.train.pipeline
        self._names = {name for name, _ in chain(model.named_parameters(), model.named_buffers())}
        self._pipeline = Pipeline(model, cut.virtual, cut.named(), within=self._within)
        return model

    def _forward(self) -> Forward:
        self.rows = self.spec.recipe.train.of_rank(self._group.ranks).rows
        return super()._forward()

    @contextlib.contextmanager
    def _within(self) -> Iterator[None]:
        with engines.use(self.settings.engine), self._autocast():
            yield

    def _backward(self, windows: Tensor) -> Tensor:
        n = len(windows) // self.rows
        return self._pipeline.backward(windows[:, :-1], windows[:, 1:], n).float()

    def _clip(self, most: float) -> None:
        self._pipeline.clip(most)

    def _loss(self, forward: Forward, settings: Settings, windows: Tensor) -> Tensor:
        return self._pipeline.loss(windows[:, :-1], windows[:, 1:], 1)

    def _summed(self, counts: Tensor) -> Tensor:
        return counts

    def _gathered(self, losses: Tensor) -> Tensor:
        return losses

    @torch.no_grad()
    def whole(self) -> Transformer:
        """A copy with all weights."""
        found, mine = self._empty(), self.model.state_dict()
        for name, tensor in found.state_dict().items():
            if name in mine:
                tensor.copy_(mine[name])
            torch.distributed.broadcast(tensor, self._pipeline.owner(name))
        return found

    def tensors(self) -> dict[str, Tensor]:
        """All that the run's continuation needs, whole, on the CPU."""
        mine = tensors_of(self.model, self.optimizers, self.device)
        parts = self._group.answers(mine)
        found = {name: x for part in reversed(parts) for name, x in part.items()}
        names = {f"model.{name}" for name in self._names}
        return {n: x for n, x in found.items() if not n.startswith("model.") or n in names}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore the state saved in `tensors`."""
        mine = tensors_of(self.model, [], self.device)  # buffers may have other names here
        restore(mine | self._named(tensors), self.model, self.optimizers, self.device)


def check_sharded(spec: str, design: torch.nn.Module) -> None:
    """Raise VariantError for a design that learns a number without an axis, which has no parts."""
    if whole := [name for name, each in design.named_parameters() if not each.ndim]:
        raise VariantError(
            f"{spec}: train.parallel=fsdp cannot divide {' and '.join(whole)}, without an axis: "
            "let it begin as torch.full((1,), ...), or --set train.parallel=ddp"
        )


def _whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _part(tensor: Tensor, like: Tensor) -> Tensor:
    if not isinstance(like, DTensor) or tensor.shape != like.shape:
        return tensor
    return distribute_tensor(tensor.to(like.device), like.device_mesh, like.placements)


WAYS: dict[str, type[Ranks]] = {"ddp": Replicated, "fsdp": Sharded, "pipeline": Staged}
"""By train.parallel."""
