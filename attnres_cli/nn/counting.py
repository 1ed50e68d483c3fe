"""What a design computes and moves for one token: counted while it runs, without numbers."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from attnres_cli.errors import VariantError
from attnres_cli.nn import design_page, plugins
from attnres_cli.nn.depthmix import engines
from attnres_cli.nn.private import TorchDispatchMode, tree_leaves

_PER_NUMBER = {  # of what is put out; every other pointwise operation is one
    "addcmul": 2,
    "_softmax": 4,
    "_log_softmax": 4,
    "_fused_rms_norm": 4,
    "clone": 0,
    "copy_": 0,
    "_to_copy": 0,
}


class Costs(NamedTuple):
    """Per token, beyond `standard`: FLOPs of the forward pass, and numbers read and written."""

    flops: int
    numbers: int


_KNOWN: WeakKeyDictionary[nn.Module, Costs] = WeakKeyDictionary()


def costs_of(design: nn.Module) -> Costs:
    """What a design (`Residual`) costs beyond `standard`, counted on one token. One on the device
    `meta` is counted without memory, whatever its sizes. Raises VariantError where that cannot be.

    FLOPs: a matrix product's, two per multiply-add, and one for each number that any other
    operation puts out or a sum takes in; what is done with weights alone is shared by all tokens.
    Numbers: each call of a method reads what it needs of earlier calls once, and writes once what
    a sublayer, the output norm or a later call reads: what no fusion of kernels can spare. Values
    are as wide as the model, as where there are as many heads for them as for queries.
    """
    if design not in _KNOWN:
        try:
            _KNOWN[design] = _counted(design)
        except Exception as error:  # a design may raise anything
            place = plugins.blamed(error, [design_page.file_of(type(design))])
            raise VariantError(
                f"{place} (while its costs were counted; where that cannot be, its "
                "extra_flops_per_token may state the FLOPs)"
            ) from error
    return _KNOWN[design]


@torch.no_grad()
def _counted(design: Any) -> Costs:
    design = _whole(design)
    device = next((p.device for p in design.parameters()), torch.device("meta"))

    def token() -> Tensor:
        return counter.follow(torch.zeros(1, 1, design.d_model, device=device))

    with engines.use("compile"), _Counter() as counter:
        state = counter.call(design.start, token())
        for l in range(1, design.n_sublayers + 1):
            h, state = counter.call(design.read, state, l)
            for each in _tensors(h):
                counter.write(each)
            if l % 2 and design.sees_values:
                v, state = counter.call(design.values, state, l, token().unsqueeze(2))
                counter.write(v)
            state = counter.call(design.write, state, l, token())
        counter.write(counter.call(design.finish, state))
    sublayers = design.n_sublayers * design.d_model
    after = sublayers if design.norms.name == "PRE_AND_POST" else 0  # the trunk's second norms
    flops = counter.flops + 4 * after - sublayers
    return Costs(flops, counter.numbers + 2 * after - 3 * sublayers)


def _whole(design: nn.Module) -> nn.Module:
    """The design, or where ranks share its parameters (FSDP) a copy without numbers."""
    if not any(hasattr(p, "placements") for p in design.parameters()):
        return design
    held = [*design.parameters(), *design.buffers()]
    bare = [torch.empty(each.shape, dtype=each.dtype, device="meta") for each in held]
    named = [
        nn.Parameter(x) if isinstance(each, nn.Parameter) else x
        for x, each in zip(bare, held, strict=True)
    ]
    return copy.deepcopy(design, dict(zip(map(id, held), named, strict=True)))


class _Counter(TorchDispatchMode):
    """Counts what is done with tensors that come of a token, by the storages that they are in."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops = self.numbers = self.n_calls = 0
        self.made: dict[int, int] = {}  # in which call; of every storage that comes of a token
        self.written: set[int] = set()
        self.views: dict[int, set[Any]] = {}  # that this call reads of earlier storages
        self.kept: list[Tensor] = []  # so that no storage takes the place of another

    def follow(self, x: Tensor) -> Tensor:
        """A tensor that comes of a token, as it is given to a method."""
        self._make(x)
        self.written.add(_place(x))
        return x

    def call(self, method: Callable[..., Any], *arguments: Any) -> Any:
        """What a method returns, with the reads and writes of this call counted."""
        self.n_calls += 1
        self.views = {}
        return method(*arguments)

    def write(self, x: Tensor) -> None:
        """Count a tensor as written, once."""
        if _place(x) in self.made and _place(x) not in self.written:
            self.written.add(_place(x))
            self.numbers += _size(x)

    def _make(self, x: Tensor) -> None:
        self.made.setdefault(_place(x), self.n_calls)
        self.kept.append(x)

    def _read(self, x: Tensor) -> None:
        """Count what is new to this call of a tensor from before it."""
        if self.made[_place(x)] == self.n_calls:
            return
        self.write(x)
        seen = self.views.setdefault(_place(x), set())
        before = min(sum(math.prod(shape) for _, shape, _ in seen), _size(x))
        seen.add((x.storage_offset(), x.shape, x.stride()))
        self.numbers += min(sum(math.prod(shape) for _, shape, _ in seen), _size(x)) - before

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        given = [x for x in _tensors((args, kwargs)) if _place(x) in self.made]
        if given and not func.is_view:
            self.flops += _flops(func, args, kwargs or {}, out, given)
            for x in given:
                self._read(x)
            for x in _tensors(out):
                self._make(x)
        return out


def _flops(func: Any, args: Any, kwargs: Any, out: Any, given: list[Tensor]) -> int:
    packet, n_out = func.overloadpacket, sum(x.numel() for x in _tensors(out))
    from torch.utils.flop_counter import flop_registry  # imports Triton where it is installed

    if packet in flop_registry:
        return int(flop_registry[packet](*args, **kwargs, out_val=out))
    name = str(packet).rpartition(".")[2]
    if name in _PER_NUMBER or torch.Tag.pointwise in func.tags:
        return _PER_NUMBER.get(name, 1) * n_out
    return sum(x.numel() for x in given) if torch.Tag.reduction in func.tags else 0


def _tensors(values: Any) -> list[Tensor]:
    return [x for x in tree_leaves(values) if isinstance(x, Tensor)]


def _size(x: Tensor) -> int:
    """Numbers in a tensor's storage."""
    return x.untyped_storage().nbytes() // x.itemsize


def _place(x: Tensor) -> int:
    """The storage that a tensor is in."""
    return x.untyped_storage()._cdata  # noqa: SLF001
