"""Ranks that share one run: each trains on its part of every batch (DDP), and may keep but a part
of the weights (FSDP2). Both are torch's own.
"""

from __future__ import annotations

import contextlib
import warnings
from itertools import chain

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from attnres_cli.nn import variant
from attnres_cli.nn.model import Transformer
from attnres_cli.train import group
from attnres_cli.train.keeper import restore, tensors_of
from attnres_cli.train.trainer import Forward, Kept, Trainer


class Ranks(Trainer):
    """One rank of several: what they tell each other, whatever way they share a run."""

    def __post_init__(self) -> None:
        found = group.current()
        assert found is not None
        self._group, self.rank, self.ranks = found, found.rank, found.ranks
        super().__post_init__()

    def known(self, found: Kept | None) -> Kept | None:
        """What rank 0 has found of a run that goes on."""
        state = self._group.tell(found and found[0])
        return None if state is None else (state, self._group.spread(found and found[1]))

    def most(self, wish: int) -> int:
        """The largest of what the ranks wish."""
        return self._group.most(wish)

    def _gathered(self, losses: Tensor) -> Tensor:
        return self._group.gathered(losses)


class Replicated(Ranks):
    """Every rank has the whole model, and all the same gradients: the mean of theirs."""

    def _forward(self) -> Forward:
        index = self.device.index
        with warnings.catch_warnings():  # broadcast_buffers has another name from torch 2.13 on
            warnings.simplefilter("ignore", FutureWarning)
            self._whole = DistributedDataParallel(
                super()._forward(),
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
        for f in model.sublayers:
            fully_shard(f)
        fully_shard(model)
        return model

    def whole(self) -> Transformer:
        """A copy with all weights."""
        shape = self.model.shape
        with torch.random.fork_rng(devices=[]):  # PyTorch draws first values, which are not kept
            design = variant.parse(self.spec.variant).build(shape.d_model, shape.n_sublayers)
            found = Transformer(shape, design).to(self.device)
        mine = chain(self._here().named_parameters(), self.model.named_buffers())
        theirs = dict(chain(found.named_parameters(), found.named_buffers()))
        with torch.no_grad():
            for name, tensor in mine:
                theirs[name].copy_(_whole(tensor.detach()))
        return found

    def tensors(self) -> dict[str, Tensor]:
        """All that the run's continuation needs, whole, on the CPU."""
        return tensors_of(self._here(), self.optimizers, self.device, _whole)

    def restore(self, tensors: dict[str, Tensor]) -> None:  # type: ignore[override]
        """Undo what has happened since `tensors`."""
        restore(tensors, self._here(), self.optimizers, self.device, _part)

    def _here(self) -> Transformer:
        """The model, with this rank's parts alone: after an evaluation some weights are whole."""
        assert isinstance(self.model, FSDPModule)
        self.model.reshard()
        return self.model


def _whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _part(tensor: Tensor, like: Tensor) -> Tensor:
    if not isinstance(like, DTensor) or tensor.shape != like.shape:
        return tensor
    return distribute_tensor(tensor.to(like.device), like.device_mesh, like.placements)


WAYS: dict[str, type[Ranks]] = {"ddp": Replicated, "fsdp": Sharded}
"""By train.parallel."""
