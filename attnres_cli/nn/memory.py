"""Memory that code would hold, counted while it runs without numbers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import ref

import torch
from torch import Tensor

from attnres_cli.nn.private import TorchDispatchMode, fused_sdp_choice, tree_leaves

_FLASH = 1  # torch's number for attention that never has all of its scores in memory
_DEVICE = torch.ops.prim.device.default


@contextmanager
def counting() -> Iterator[Held]:
    """Inside, CPU tensors have sizes and no numbers, and the memory that they would be in is
    counted as it is taken and given back, by whichever code: designs declare nothing. It takes some
    60 us per operation, whatever the sizes. What looks at a number raises.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode  # takes a second to import

    with FakeTensorMode(allow_non_fake_inputs=True), Held() as held:
        yield held


class Held(TorchDispatchMode):
    """Follows storages from their first tensor to their release.

    Attributes:
        now: bytes that are held.
        peak: the most that were held at once; it may be set back.
        made: bytes that were taken, in all.
        n_operations: how many made or changed a tensor; a view is none.
        n_fused: how many of them were kernels of our own.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.peak = self.made = self.n_operations = self.n_fused = 0
        self._known: dict[int, ref[torch.UntypedStorage]] = {}
        self._few = self._many = 1

    def restart(self, rows: tuple[int, int] = (1, 1)) -> None:
        """Count peak, made and n_operations anew. Of rows (few, many) what then is a multiple of
        `few`, which should be a prime, counts as if it were of `many`.
        """
        self.peak, self.made, self.n_operations, self.n_fused = self.now, 0, 0, 0
        self._few, self._many = rows

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _DEVICE:
            return args[0].fake_device  # two of three calls, which need not go all the way
        if func is fused_sdp_choice:
            return _FLASH  # which a device chooses that computes
        out = func(*args, **(kwargs or {}))
        self.n_operations += not func.is_view
        self.n_fused += func.namespace == "attnres"
        for x in tree_leaves(out):
            if isinstance(x, Tensor):
                self._follow(x.untyped_storage())
        self.peak = max(self.peak, self.now)
        return out

    def _follow(self, storage: torch.UntypedStorage) -> None:
        place, size = storage._cdata, storage.nbytes()  # noqa: SLF001
        if size % self._few == 0:
            size = size // self._few * self._many

        def gone(_: object) -> None:
            del self._known[place]
            self.now -= size

        if place not in self._known:
            self._known[place] = ref(storage, gone)
            self.now += size
            self.made += size
