"""The contract of a residual design, and the registry of all known ones.

A design owns what is carried from depth to depth. The trunk (model.py) asks it four questions,
and one more of attentions, and never which design it is:

    state = residual.start(x)
    for l, f in enumerate(sublayers, 1):
        h, state = residual.read(state, l)
        [v, state = residual.values(state, l, v), v what attention f has made of h]
        state = residual.write(state, l, f(h))
    out = residual.finish(state)

Options are the keyword arguments of its constructor after `d_model` and `n_sublayers`; their names,
types and defaults are declared nowhere else. variant.py reads them.
"""

from __future__ import annotations

import enum
import importlib
import inspect
import os
import pkgutil
import re
import sys
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from attnres_cli.errors import VariantError as VariantError  # for designs
from attnres_cli.files import path_of
from attnres_cli.nn import plugins
from attnres_cli.nn.cost import TableOne
from attnres_cli.nn.counting import costs_of
from attnres_cli.nn.design_page import NAME

Hidden = Tensor
"""A float tensor of shape (batch, time, d_model)."""


class Inputs(NamedTuple):
    """What an attention makes its queries, keys and values of, where a design tells them apart."""

    q: Hidden
    k: Hidden
    v: Hidden


def by_input(
    rows: Sequence[Hidden | Inputs], join: Callable[[list[Tensor]], Tensor]
) -> Tensor | Inputs:
    """What `join` makes of all rows; if some are `Inputs`, of each input's rows."""
    parts = [[h[k] if isinstance(h, Inputs) else h for h in rows] for k in range(3)]
    if not any(isinstance(h, Inputs) for h in rows):
        return join(parts[0])
    return Inputs(*map(join, parts))


Value = int | float | bool | str | None
"""What an option can be."""


class Norms(enum.Enum):
    """Which norms the trunk puts around a sublayer F."""

    PRE = "F(N(h))"
    NONE = "F(h)"
    PRE_AND_POST = "N'(F(N(h)))"


class Residual(nn.Module, ABC):
    """What is carried from depth to depth, and how each sublayer reads and writes it.

    The state is the design's own: a tensor, a history, a stack of streams. It is never changed in
    place, so that a sublayer may be run twice (activation checkpointing). Where a design says
    nothing else it is one stream, which sublayers and the output norm see as it is.

    Facts that the trunk and the proofs read, of the class or of the instance:
        norms: the norms the trunk puts around each sublayer.
        branch_scale: a factor on the initial weights of values, MLPs and output projections.
        equals_standard_at_init: whether the untrained model computes the same function of the
            shared weights as `standard`, gradients included.
        depth_exponent: a, where outputs of sublayers must shrink as depth^-a for a deeper model to
            behave as a shallow one; 1 for a sum. Read where rates are transferred.
        rate_falls: (parameter, b, c): its learning rate must fall as width^-b depth^-c for a step
            to change a larger model as much; 0 and 0 for those that are not there. A query, which
            is summed against keys over the width, has 1 and 0. Read there too.
        named_inputs: whether reads for attentions are `Inputs`.
        adds_to_values: whether it adds vectors of the stream to attentions' values, which must
            then be as wide as the model.
        not_linear: why no sublayer sees a weighted sum of earlier outputs, one weight per slice
            of the width; empty where each does (`depth_mixing` then gives the weights).
        unbounded: why huge parameters overflow in the published formula; empty where they do not.

    Nothing may move between time steps: a test proves it for every design.
    """

    norms: Norms = Norms.PRE
    branch_scale: float = 1.0
    equals_standard_at_init: bool = False
    depth_exponent: float = 1.0
    rate_falls: Sequence[tuple[str, float, float]] = ()
    named_inputs: bool = False
    adds_to_values: bool = False
    not_linear: str = ""
    unbounded: str = ""

    def __init__(self, d_model: int, n_sublayers: int) -> None:
        super().__init__()
        self.d_model = d_model
        self.n_sublayers = n_sublayers

    @property
    def n_layers(self) -> int:
        """Transformer layers: an attention, the odd sublayer, and an MLP, the even one."""
        return self.n_sublayers // 2

    def start(self, x: Hidden) -> Any:
        """The state that holds the embedding x = v_0."""
        return x

    @property
    def sees_values(self) -> bool:
        """Whether attentions hand it their values."""
        return type(self).values is not Residual.values

    def read(self, state: Any, l: int) -> tuple[Hidden | Inputs, Any]:
        """What sublayer l in 1..L sees, and the state with whatever write needs kept in it. For an
        attention, the odd l, it may be `Inputs`; the norm before it is applied to each.
        """
        return state, state

    def values(self, state: Any, l: int, v: Tensor) -> tuple[Tensor, Any]:
        """What attention l, between its read and its write, takes for its values v (batch, time,
        n_kv_heads, d_head), to which no position has been given, and the state.
        """
        return v, state

    @abstractmethod
    def write(self, state: Any, l: int, y: Hidden) -> Any:
        """The state after sublayer l has put out y."""

    def finish(self, state: Any) -> Hidden:
        """What the output norm sees."""
        return state

    def carry(self, state: Any, l: int) -> Sequence[Tensor]:
        """What later sublayers and `finish` need of the state after sublayer l, as tensors (batch,
        time, ...): a pipeline sends them to the process that goes on. What an earlier state had too
        is the same tensor. Raises VariantError for a design that cannot be cut.
        """
        if not isinstance(state, Tensor):
            raise VariantError(
                f"{type(self).__name__} cannot be cut between processes: its state is no tensor, "
                "and it has no methods carry and resume"
            )
        return (state,)

    def resume(self, tensors: Sequence[Tensor], l: int) -> Any:
        """The state after sublayer l, from what `carry` gave."""
        (state,) = tensors
        return state

    def n_params(self) -> int:
        """Parameters that the design adds: counted, so that no design declares them."""
        return sum(parameter.numel() for parameter in self.parameters())

    def extra_flops_per_token(self) -> int:
        """Forward FLOPs per token beyond `standard` (a multiply-add is two): counted. A formula in
        its place is quicker, where a search asks for many sizes; a proof holds it to the count.
        """
        return costs_of(self).flops

    def table_one(self) -> TableOne | None:
        """The paper's own count of reads and writes, for the designs that its Table 1 has."""
        return None

    def dead_params(self) -> Mapping[str, Sequence[int]]:
        """Rows (first axis) of parameters that can never receive a gradient, by name."""
        return {}

    def depth_mixing(self, values: Sequence[Hidden]) -> Tensor | Inputs | None:
        """M with h_l = sum_i M[l, i] v_i, from the embedding v_0 and the outputs v_1..v_L, or None
        where `not_linear` says why there is none. Of `Inputs` three, each with all sites.

        Its shape is (B, T, H, L+1, L+1): token, slice of the width, site l = 1..L+1, source i =
        0..L; H is D where every channel has weights of its own. B and T may be 1. This default
        replays the design on unit vectors, which is right where weights do not depend on values.
        """
        if self.not_linear:
            return None
        units = torch.eye(self.n_sublayers + 1, dtype=values[0].dtype, device=values[0].device)
        state, rows = self.start(units[0].view(1, 1, -1)), list[Hidden | Inputs]()
        for l in range(1, self.n_sublayers + 1):
            h, state = self.read(state, l)
            rows.append(h)
            state = self.write(state, l, units[l].view(1, 1, -1))
        rows.append(self.finish(state))
        return by_input(rows, lambda each: torch.stack(each, dim=2).unsqueeze(2))

    @classmethod
    def canonical_options(
        cls, options: Mapping[str, Value], n_sublayers: int
    ) -> Mapping[str, Value]:
        """The options of the simplest spec of the same design at this depth."""
        return options


_REGISTRY: dict[str, type[Residual]] = {}
_PRESETS: dict[str, tuple[str, Mapping[str, Value]] | str] = {}

PLUGINS = "ATTNRES_PLUGINS"
"""Environment variable: files of designs to load, separated as in PATH; workers inherit it."""

_LONGEST_NAME = 100
_OURS = "attnres_variants."

R = TypeVar("R", bound=Residual)


def register(
    name: str, presets: Mapping[str, Mapping[str, Value]] | None = None
) -> Callable[[type[R]], type[R]]:
    """Make a design known under `name`, as typed on the command line. `presets` are options by the
    name of a published model or layout, which may be typed alone. Raises VariantError where another
    module has the name, a method is missing, or the constructor takes **kwargs, which would hide a
    mistyped option.
    """

    def known_as(cls: type[R]) -> type[R]:
        for word in (name, *(presets or {})):
            check_name(word)
        for preset in presets or {}:
            if preset in (name, *_REGISTRY) or _meaning(preset) not in ("", name):
                raise _taken(preset, f"a preset of {_where(cls)}")
        holder = _REGISTRY.get(name)
        if name in _PRESETS or (holder is not None and holder.__module__ != cls.__module__):
            raise _taken(name, _where(cls))
        if not issubclass(cls, Residual):
            raise VariantError(f"variant '{name}': {cls.__name__} must be a subclass of Residual")
        kinds = {parameter.kind for parameter in inspect.signature(cls).parameters.values()}
        if kinds & {inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL}:
            raise VariantError(f"variant '{name}' takes * or ** arguments: name every option")
        if missing := sorted(cls.__abstractmethods__):
            takes = {m: ", ".join(inspect.signature(getattr(cls, m)).parameters) for m in missing}
            heads = " and ".join(f"def {method}({names})" for method, names in takes.items())
            raise VariantError(f"variant '{name}': {cls.__name__} must have {heads}")
        _REGISTRY[name] = cls
        for preset, options in (presets or {}).items():
            _PRESETS[preset] = name, options
        return cls

    return known_as


def register_preset(name: str, spec: str) -> None:
    """Make a composition known under the name of a published model, which may be typed alone.
    Raises VariantError where a design, or another preset, has the name.
    """
    check_name(name)
    if name in _REGISTRY or _meaning(name) not in ("", spec):
        raise _taken(name, f"the preset {spec}")
    _PRESETS[name] = spec


def check_name(word: str) -> None:
    """Raise VariantError for what no design and no preset can be called."""
    if len(word) > _LONGEST_NAME:
        raise VariantError(
            f"a variant's name has at most {_LONGEST_NAME} characters, got {len(word)}: "
            f"{word[:20]}..."
        )
    if not re.fullmatch(NAME, word):
        raise VariantError(
            f"a variant's name is a word of letters, digits, _ and -, as my_variant, got {word!r}"
        )
    if hasattr(nn.ModuleDict, word):  # the parts of a composition are in one, by name
        raise VariantError(f"'{word}' is the name of a method of torch: take another name")


def _meaning(name: str) -> str:
    """The design or spec that a preset stands for, empty where there is none of this name."""
    preset = _PRESETS.get(name, "")
    return preset if isinstance(preset, str) else preset[0]


def _taken(name: str, by: str) -> VariantError:
    """That a name has two meanings: the one it has, and that which `by` would give it."""
    whose = f"the preset {_meaning(name)}" if name in _PRESETS else by
    if name in _REGISTRY:
        whose = _where(_REGISTRY[name])
    return VariantError(f"variant '{name}' is defined twice, by {whose} and {by}: rename one")


def add_plugin(path: str) -> None:
    """Make the designs of a user's own file known here and in worker processes started later.
    Raises VariantError for a file that cannot be imported, or that registers nothing.
    """
    file = path_of(path, "--plugin", VariantError).resolve()
    registry()  # so that a name taken twice is told of the plugin
    _load_plugin(file)
    listed = os.environ.get(PLUGINS, "").split(os.pathsep)
    os.environ[PLUGINS] = os.pathsep.join(dict.fromkeys([*filter(None, listed), str(file)]))


def _load_plugin(file: Path) -> None:
    before = dict(_REGISTRY)
    if plugins.load(file) and before == _REGISTRY:
        raise VariantError(f'plugin {file} registers nothing: put @register("name") on its class')


def is_shipped(cls: type[Residual]) -> bool:
    """Whether a design is one of this release, which our tests have proven."""
    return cls.__module__.startswith(_OURS)


def blamed(error: BaseException) -> str | None:
    """The line that says what a design of somebody else's raised, and where; None for any other
    error.
    """
    theirs = [each for each in _REGISTRY.values() if not is_shipped(each)]
    files = {file for each in theirs if (file := sys.modules[each.__module__].__file__)}
    frames = traceback.extract_tb(error.__traceback__)
    if not any(frame.filename in files for frame in frames):
        return None
    return f"{plugins.blamed(error, files)} (--traceback shows what led there)"


def _where(cls: type[Any]) -> str:
    """A class's module, and its file where that is a plugin's."""
    return plugins.file_of(cls.__module__) or cls.__module__


@cache
def _load_entry_points() -> None:
    """Import every package or module of the entry-point group `attnres.variants`, once. Raises
    VariantError for one of others that raises.
    """
    for entry in entry_points(group="attnres.variants"):
        try:
            module = entry.load()
            for found in pkgutil.iter_modules(getattr(module, "__path__", [])):
                importlib.import_module(f"{module.__name__}.{found.name}")
        except Exception as error:  # a package may raise anything
            if entry.module == "attnres_variants":
                raise
            brought_by = entry.dist.name if entry.dist is not None else entry.module
            raise VariantError(
                f"package {brought_by} brings designs and cannot be imported: "
                f"{plugins.blamed(error, [])}: mend it, or pip uninstall {brought_by}"
            ) from error


@cache
def _load_plugins(listed: str) -> None:
    for path in filter(None, listed.split(os.pathsep)):
        _load_plugin(path_of(path, PLUGINS, VariantError).resolve())


def registry() -> Mapping[str, type[Residual]]:
    """All known designs by name, `standard` first, then by alphabet."""
    _load_entry_points()
    _load_plugins(os.environ.get(PLUGINS, ""))
    return dict(sorted(_REGISTRY.items(), key=lambda item: (item[0] != "standard", item[0])))


def presets() -> Mapping[str, tuple[str, Mapping[str, Value]] | str]:
    """(design, options), or a spec, by the names of published models and layouts."""
    registry()
    return dict(sorted(_PRESETS.items()))
