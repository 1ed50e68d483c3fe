"""Add-ons: what is put on any stream, as in attnres:block_size=4+vres, and how they compose.

An add-on keeps tensors of its own beside the stream's state, and may change what passes: what a
sublayer reads, an attention's values, what a sublayer puts out, what the output norm sees. Typed
alone it stands on h_{l+1} = h_l + f_l(h_l).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from attnres_cli.errors import VariantError
from attnres_cli.nn.residual import Hidden, Inputs, Residual, by_input

Kept = tuple[Tensor, ...]
"""What an add-on keeps of a batch, each (batch, time, ...)."""


class State(NamedTuple):
    """The stream's own, and what each add-on keeps."""

    stream: Any
    kept: tuple[Kept, ...]


class Composed(Residual):
    """A stream with add-ons, in their canonical order. Raises VariantError for a pair that does not
    go together.
    """

    def __init__(self, stream: Residual, addons: Mapping[str, Addon]) -> None:
        super().__init__(stream.d_model, stream.n_sublayers)
        self.stream, self.addons = stream, nn.ModuleDict(addons)
        self._compose(stream, tuple(addons.values()))
        named = {"stream": stream} | {f"addons.{name}": addon for name, addon in addons.items()}
        self.rate_falls = tuple(
            (f"{at}.{name}", b, c) for at, part in named.items() for name, b, c in part.rate_falls
        )

    def _compose(self, stream: Residual, addons: tuple[Addon, ...]) -> None:
        for addon in addons:
            addon.check(stream)
        self.norms, self.branch_scale = stream.norms, stream.branch_scale
        self.named_inputs, every = stream.named_inputs, (stream, *addons)
        self.adds_to_values = any(part.adds_to_values for part in every)
        self.depth_exponent = stream.depth_exponent + sum(a.depth_exponent - 1 for a in addons)
        self.not_linear = next((part.not_linear for part in every if part.not_linear), "")
        self.unbounded = next((part.unbounded for part in every if part.unbounded), "")
        own = type(stream).depth_mixing not in (Residual.depth_mixing, Composed.depth_mixing)
        if own and self.changes_stream():
            self.not_linear = f"{type(stream).__name__} weighs what an add-on has changed"
        self.equals_standard_at_init = all(part.equals_standard_at_init for part in every)

    def _parts(self) -> tuple[Residual, tuple[Any, ...]]:
        return self.stream, tuple(self.addons.values())

    def changes_stream(self) -> bool:
        """Whether an add-on changes more than values."""
        return any(addon.changes_stream() for addon in self._parts()[1])

    @property
    def sees_values(self) -> bool:
        """Whether any part does."""
        stream, addons = self._parts()
        return stream.sees_values or any(addon.has("on_values") for addon in addons)

    def start(self, x: Hidden) -> State:
        """What the stream and each add-on make of the embedding."""
        stream, addons = self._parts()
        return State(stream.start(x), tuple(addon.begin(x) for addon in addons))

    def read(self, state: State, l: int) -> tuple[Hidden | Inputs, State]:
        """The stream's read, passed through the add-ons."""
        stream, addons = self._parts()
        h, after = stream.read(state.stream, l)
        kept = []
        for addon, held in zip(addons, state.kept, strict=True):
            h, held = addon.on_read(held, l, h)
            after = h if addon.acts_on_stream else after
            kept.append(held)
        return h, State(after, tuple(kept))

    def values(self, state: State, l: int, v: Tensor) -> tuple[Tensor, State]:
        """The stream first, if it sees values, then the add-ons."""
        stream, addons = self._parts()
        v, after = stream.values(state.stream, l, v)
        kept = []
        for addon, held in zip(addons, state.kept, strict=True):
            v, held = addon.on_values(held, l, v)
            kept.append(held)
        return v, State(after, tuple(kept))

    def write(self, state: State, l: int, y: Hidden) -> State:
        """The output, passed through the add-ons, written to the stream."""
        stream, addons = self._parts()
        for addon in addons:
            y = addon.on_write(l, y)
        return State(stream.write(state.stream, l, y), state.kept)

    def finish(self, state: State) -> Hidden:
        """The stream's end, passed through the add-ons."""
        stream, addons = self._parts()
        h = stream.finish(state.stream)
        for addon, held in zip(addons, state.kept, strict=True):
            h = addon.on_finish(held, h)
        return h

    def carry(self, state: State, l: int) -> tuple[Tensor, ...]:
        """What add-ons keep, then the stream's."""
        kept = [tensor for held in state.kept for tensor in held]
        return (*kept, *self._parts()[0].carry(state.stream, l))

    def resume(self, tensors: Sequence[Tensor], l: int) -> State:
        """The state of these."""
        stream, addons = self._parts()
        kept, rest = [], list(tensors)
        for addon in addons:
            n = addon.n_kept(l)
            kept.append(tuple(rest[:n]))
            rest = rest[n:]
        return State(stream.resume(rest, l), tuple(kept))

    def extra_flops_per_token(self) -> int:
        """Of all parts."""
        stream, addons = self._parts()
        return sum(part.extra_flops_per_token() for part in (stream, *addons))

    def dead_params(self) -> Mapping[str, Sequence[int]]:
        """Those of all parts, by where they are."""
        named: dict[str, Any] = {"stream": self.stream}
        named |= {f"addons.{name}": addon for name, addon in self.addons.items()}
        return {
            f"{name}.{parameter}": rows
            for name, part in named.items()
            for parameter, rows in part.dead_params().items()
        }

    @torch.no_grad()
    def depth_mixing(self, values: Sequence[Hidden]) -> Tensor | Inputs | None:
        """The stream's own, where no add-on changes what is read; else by channel, or with one
        weight for all where they are equal: sources are told apart by the sequence of a batch.
        """
        if self.not_linear:
            return None
        if not self.changes_stream():
            stream, _ = self._parts()
            return stream.depth_mixing(values) if stream is not _SUM else _triangle(values)
        n, d = self.n_sublayers + 1, self.d_model
        units = torch.eye(n).to(values[0])[:, :, None, None].expand(n, n, 1, d)
        state, rows = self.start(units[0]), list[Hidden | Inputs]()
        for l in range(1, n):
            h, state = self.read(state, l)
            rows.append(h)
            state = self.write(state, l, units[l])
        return by_input([*rows, self.finish(state)], _by_channel)


def _by_channel(rows: list[Tensor]) -> Tensor:
    """M of what units became, or of one channel where all are equal."""
    found = torch.stack(rows)[:, :, 0].permute(2, 0, 1)  # (D, l, i)
    found = found[:1] if bool((found == found[:1]).all()) else found
    return found[None, None]


class Addon(Composed):
    """Where it says nothing else, everything passes as it is, and nothing is kept.

    `acts_on_stream`: it needs a stream that is one tensor, which sublayers read as it is; what its
    `on_read` gives is then where the stream goes on.
    `order`: add-ons of a smaller one come first; of equal ones, which must not care, by name.
    """

    equals_standard_at_init = False
    acts_on_stream = False
    order = 0

    def __init__(self, d_model: int, n_sublayers: int) -> None:
        Residual.__init__(self, d_model, n_sublayers)

    def _parts(self) -> tuple[Residual, tuple[Any, ...]]:
        return _SUM, (self,)

    def has(self, method: str) -> bool:
        """Whether it has a method of its own of this name."""
        return getattr(type(self), method) is not getattr(Addon, method)

    def changes_stream(self) -> bool:
        """Whether what passes on its way is changed."""
        return any(map(self.has, ("on_read", "on_write", "on_finish")))

    def check(self, stream: Residual) -> None:
        """Raise VariantError for a stream that it cannot stand on."""
        own = type(stream)
        plain = all(
            getattr(own, name) is getattr(Residual, name) for name in ("start", "read", "finish")
        )
        if self.acts_on_stream and not plain:
            raise VariantError(
                f"{type(self).__name__} acts on a stream that every sublayer reads as it is, and "
                f"{own.__name__} has none: put it on standard"
            )

    def begin(self, x: Hidden) -> Kept:
        """What is kept of the embedding."""
        return ()

    def on_read(self, kept: Kept, l: int, h: Any) -> tuple[Any, Kept]:
        """What sublayer l reads in place of h (of `Inputs` where the stream tells them apart)."""
        return h, kept

    def on_values(self, kept: Kept, l: int, v: Tensor) -> tuple[Tensor, Kept]:
        """What attention l takes for its values v (batch, time, n_kv_heads, d_head)."""
        return v, kept

    def on_write(self, l: int, y: Hidden) -> Hidden:
        """What is written of the output y of sublayer l."""
        return y

    def on_finish(self, kept: Kept, h: Hidden) -> Hidden:
        """What the output norm sees in place of h."""
        return h

    def n_kept(self, l: int) -> int:
        """How many tensors are kept after sublayer l; 0 after none but what `begin` gives."""
        return 0

    def extra_flops_per_token(self) -> int:
        """Counted, as of any design."""
        return Residual.extra_flops_per_token(self)

    def dead_params(self) -> Mapping[str, Sequence[int]]:
        """None."""
        return {}


class _Sum(Residual):
    """h_{l+1} = h_l + f_l(h_l), without sizes."""

    equals_standard_at_init = True

    def write(self, state: Hidden, l: int, y: Hidden) -> Hidden:
        return state + y


_SUM = _Sum(0, 0)


def _triangle(values: Sequence[Hidden]) -> Tensor:
    """M of the plain sum: every site sees all outputs before it."""
    return torch.ones(len(values), len(values)).tril().to(values[0])[None, None, None]
