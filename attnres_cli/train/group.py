"""The group of ranks that torchrun starts for one command, and what they tell each other.

Rank 0 does all that the command does. The others train with it what it says (lab/workers/ranks.py).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous

from attnres_cli.errors import DeviceError

_STEP_S = 600.0  # that ranks wait for each other within a run: compiling and saving are within
_IDLE_S = 30 * 24 * 3600.0  # that they wait for rank 0 to have something to do


@dataclass(frozen=True)
class Group:
    """A process among `ranks`, of which `here` are on this machine. All ranks make the same
    calls in the same order. Tensors on the CPU go by gloo, on GPUs by NCCL.
    """

    rank: int
    ranks: int
    local_rank: int
    here: int
    board: Store  # what a rank writes there, the others can read when it is gone
    _waiting: dist.ProcessGroup

    def tell(self, order: object = None) -> Any:
        """What rank 0 says, however long it takes to have something to say."""
        said = [order]
        dist.broadcast_object_list(said, src=0, group=self._waiting)
        return said[0]

    def answers(self, own: object) -> list[Any]:
        """What each rank says, in their order; they may have had data to load."""
        found: list[Any] = [None] * self.ranks
        dist.all_gather_object(found, own, group=self._waiting)
        return found

    def most(self, number: int) -> int:
        """The largest number that a rank says: within a step, so as quick as can be."""
        said = torch.tensor(number)
        dist.all_reduce(said, op=dist.ReduceOp.MAX)
        return int(said)

    def summed(self, x: Tensor) -> Tensor:
        """The sum of every rank's x, in its place."""
        dist.all_reduce(x)
        return x

    def gathered(self, x: Tensor) -> Tensor:
        """(N,) of each rank, equally many, as (ranks N,) in their order."""
        parts = [torch.empty_like(x) for _ in range(self.ranks)]
        dist.all_gather(parts, x)
        return torch.cat(parts)

    def spread(self, tensors: Mapping[str, Tensor] | None) -> dict[str, Tensor]:
        """What rank 0 has, on the CPU, bit for bit."""
        about = [(n, x.shape, x.dtype) for n, x in tensors.items()] if tensors else []
        found = {}
        for name, shape, dtype in self.tell(about):
            mine = tensors[name] if tensors else torch.empty(shape, dtype=dtype)
            flat = mine.reshape(-1).view(torch.uint8)
            dist.broadcast(flat, src=0)
            found[name] = flat.view(dtype).reshape(shape)
        return found

    def device(self, kind: str) -> str:
        """Where this rank computes. Raises DeviceError for more ranks than GPUs here."""
        if kind == "cpu":
            return "cpu"
        if self.here > (n := torch.cuda.device_count()):
            raise DeviceError(
                f"torchrun started {self.here} ranks on a machine with {n} CUDA device"
                f"{'' if n == 1 else 's'}: --nproc-per-node {n}, or --device cpu"
            )
        return f"cuda:{self.local_rank}"


_current: Group | None = None


def current() -> Group | None:
    """The group that this process has joined; None where it is alone."""
    return _current


def join() -> Group:
    """Meet the other ranks, for as long as this process lives."""
    global _current
    on_gpus = torch.cuda.is_available() and dist.is_nccl_available()
    if on_gpus:  # the remainder: of more ranks than GPUs, which may be meant for the CPU
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    store, rank, ranks = next(iter(rendezvous("env://")))
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if on_gpus else "gloo",
        store=PrefixStore("group", store),
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=_STEP_S),
    )
    waiting = dist.new_group(backend="gloo", timeout=timedelta(seconds=_IDLE_S))
    local, here = (int(os.environ[name]) for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE"))
    board = PrefixStore("board", store)
    _current = Group(rank, ranks, local, here, board, waiting)
    return _current
