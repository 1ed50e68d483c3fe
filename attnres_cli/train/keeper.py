"""When a run is written down, and how it is taken up again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from attnres_cli.records.run import Point, Probe
from attnres_cli.train.checkpoint import LONGER, Checkpoints, keep_weights
from attnres_cli.train.optimizers import named, names_of

_TOGETHER_BYTES = 2**26  # that are copied at once: as much is taken of the device meanwhile
_MOST_SHARE = 0.02
"""Of a run's time, what writing checkpoints may take: large ones are written less often."""


class Stopped(Exception):  # noqa: N818 - no error
    """Training ended early because it was asked to; a checkpoint was written if one could be."""


@dataclass
class Stop:
    """A wish that training end soon. A plain field, so that a signal's handler may set it."""

    wanted: bool = False

    def heed(self, _number: int, _frame: object) -> None:
        """A signal's handler: it is wanted."""
        self.wanted = True


@dataclass
class Progress:
    """How far a run is: with model and optimiser, all that its continuation needs."""

    total: Tensor  # of the losses since the last point of the curve, on the device
    step: int = 0
    seconds: float = 0.0  # of training since that point
    curve: list[Point] = field(default_factory=list)
    probes: list[Probe] = field(default_factory=list)
    times: list[float] = field(default_factory=list)  # seconds per step, one for every point
    first_times: list[float] = field(default_factory=list)  # of each process's first point
    train_s: float = 0.0  # wall time in processes before this one
    peak_bytes: int = 0  # their largest memory
    ways: list[str] = field(default_factory=list)  # by which it was computed, one after the other

    def state(self) -> dict[str, Any]:
        """All but the tensor, for JSON."""
        plain = ("step", "seconds", "times", "first_times", "train_s", "peak_bytes", "ways")
        curve = [[point.step, point.train_loss, point.val_loss] for point in self.curve]
        probes = [asdict(probe) for probe in self.probes]
        return {name: getattr(self, name) for name in plain} | {"curve": curve, "probes": probes}

    @classmethod
    def from_state(cls, state: Mapping[str, Any], total: Tensor) -> Progress:
        """What `state` was taken from."""
        curve = [Point(*point) for point in state["curve"]]
        probes = [Probe(**_as_tuples(probe)) for probe in state["probes"]]
        return cls(total, **{**state, "curve": curve, "probes": probes})


@dataclass
class Keeper:
    """Keeps one run: writes it down every so many seconds, and when it is to stop."""

    checkpoints: Checkpoints
    every_s: float  # more where writing takes long; 0: after each step
    stop: Stop
    on_saved: Callable[[int], None] = lambda _step: None  # with the step
    on_trouble: Callable[[str], None] = lambda _text: None  # for checkpoints once
    step: int = 0  # done, for whoever watches from another thread
    save_s: float = 0.0  # of the last checkpoint

    def __post_init__(self) -> None:
        self._next = time.monotonic() + self.every_s
        self._saved_step = 0
        self._had_trouble = False

    def is_due(self) -> bool:
        """Whether a checkpoint is to be written now. Costs a look at the clock."""
        return self.stop.wanted or time.monotonic() >= self._next

    def save(self, state: Mapping[str, Any], tensors: Callable[[], Mapping[str, Tensor]]) -> None:
        """Write the run down as it is now, once. A failure is told and does not end the run."""
        step, started = int(state["step"]), time.monotonic()
        found = tensors()  # in any case: ranks bring them together, and not all may be at one point
        if step == self._saved_step:
            return
        try:
            self.checkpoints.save(step, state, found)
        except OSError as error:
            if not self._had_trouble:
                text = f"no checkpoint could be written ({error}); the run goes on without"
                self.on_trouble(text)
            self._had_trouble = True
        else:
            self._saved_step = step
            self.on_saved(step)
        ended = time.monotonic()
        self.save_s = ended - started
        if self.every_s:
            self._next = ended + max(self.every_s, self.save_s / _MOST_SHARE)

    def keep_for_longer(
        self, state: Mapping[str, Any], tensors: Callable[[], Mapping[str, Tensor]]
    ) -> None:
        """Write the run down for good, where a longer one may go on from; else as `save`."""
        place = replace(self.checkpoints, folder=self.checkpoints.folder / LONGER)
        try:
            place.save(int(state["step"]), state, tensors())
        except OSError as error:
            self.on_trouble(f"it cannot be trained further later: {error}")

    def keep_weights(self, model: torch.nn.Module) -> str | None:
        """Write down what the run has come to, and return the file's checksum; that it cannot be is
        told and fails no run.
        """
        try:
            return keep_weights(model, self.checkpoints.folder)
        except OSError as error:
            self.on_trouble(
                f"its final weights could not be written ({error}); its losses are kept"
            )
            return None

    def load(self) -> tuple[dict[str, Any], dict[str, Tensor]] | None:
        """The run as it was last written down; None: it starts from the beginning."""
        found = self.checkpoints.load()
        if found is not None:
            self.step = self._saved_step = int(found[0]["step"])
        return found


def tensors_of(
    model: torch.nn.Module,
    optimizers: Sequence[torch.optim.Optimizer],
    device: torch.device,
    whole: Callable[[Tensor], Tensor] = lambda tensor: tensor,
) -> dict[str, Tensor]:
    """Weights, buffers, the optimisers' states and the state of torch's generators, on the CPU.
    `whole` brings together what lies on several devices.
    """
    found = {f"model.{name}": tensor for name, tensor in _of_model(model).items()}
    for prefix, optimizer in named(optimizers).items():
        names = names_of(optimizer)
        for index, values in optimizer.state_dict()["state"].items():
            for key, value in values.items():
                assert isinstance(value, Tensor), f"the optimiser's {key} is not kept"
                found[f"{prefix}{names[index]}.{key}"] = value
    found["generator.cpu"] = torch.get_rng_state()
    if device.type == "cuda":
        found["generator.cuda"] = torch.cuda.get_rng_state(device)
    every = ((name, whole(tensor.detach())) for name, tensor in found.items())
    held = {name: tensor.contiguous() for name, tensor in carried(every, torch.device("cpu"))}
    return {name: held[name] for name in found}


@torch.no_grad()
def restore(
    tensors: Mapping[str, Tensor],
    model: torch.nn.Module,
    optimizers: Sequence[torch.optim.Optimizer],
    device: torch.device,
    part: Callable[[Tensor, Tensor], Tensor] = lambda tensor, _like: tensor,
) -> None:
    """Undo what has happened to these since `tensors_of` was asked. `part` takes of a whole tensor
    what this device has of one like another. The state of parameters that are not here is left.
    """
    ours = {f"model.{name}": tensor for name, tensor in _of_model(model).items()}
    owners: dict[str, tuple[str, int, Tensor]] = {}
    for prefix, optimizer in named(optimizers).items():
        held = [each for group in optimizer.param_groups for each in group["params"]]
        for index, (name, owner) in enumerate(zip(names_of(optimizer), held, strict=True)):
            owners[f"{prefix}{name}"] = prefix, index, owner
    states: dict[str, dict[int, dict[str, Tensor]]] = {prefix: {} for prefix in named(optimizers)}
    wanted = [*ours, *(name for name in tensors if name.rpartition(".")[0] in owners)]
    for full, value in carried(((name, tensors[name]) for name in wanted), device):
        if full in ours:
            ours[full].copy_(part(value, ours[full]))
            continue
        name, _, key = full.rpartition(".")
        prefix, index, owner = owners[name]
        if key != "step" and not value.ndim:  # of mhc's readout, saved before it had an axis
            value = value.expand(owner.shape).clone()
        own = part(value, owner)
        own = own.clone() if value is tensors[full] else own  # its own, aligned memory
        states[prefix].setdefault(index, {})[key] = own
    for prefix, optimizer in named(optimizers).items():
        optimizer.load_state_dict({**optimizer.state_dict(), "state": states[prefix]})
    torch.set_rng_state(tensors["generator.cpu"].clone())
    if device.type == "cuda":
        torch.cuda.set_rng_state(tensors["generator.cuda"].clone(), device)


def carried(
    tensors: Iterable[tuple[str, Tensor]], device: torch.device
) -> Iterator[tuple[str, Tensor]]:
    """Tensors on a device, those that were elsewhere in memory of their own: of one dtype many in
    one copy, since each copy from or to a GPU waits for it. They come in another order.
    """
    waiting: dict[object, dict[str, Tensor]] = {}
    for name, tensor in tensors:
        if tensor.device.type == device.type:
            yield name, tensor
            continue
        together = waiting.setdefault((tensor.device, tensor.dtype), {})
        together[name] = tensor
        if sum(each.nbytes for each in together.values()) >= _TOGETHER_BYTES:
            yield from in_one_copy(together, device).items()
            together.clear()
    for together in filter(None, waiting.values()):
        yield from in_one_copy(together, device).items()


def in_one_copy(tensors: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """Tensors of one device and dtype, on another: each contiguous, in memory of its own."""
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors.values()]).to(device)
    parts = flat.split([tensor.numel() for tensor in tensors.values()])
    return {
        name: part.clone().view(tensor.shape)
        for (name, tensor), part in zip(tensors.items(), parts, strict=True)
    }


def _as_tuples(value: Any) -> Any:
    """What JSON holds, with tuples where there are lists."""
    if isinstance(value, dict):
        return {key: _as_tuples(each) for key, each in value.items()}
    return tuple(_as_tuples(each) for each in value) if isinstance(value, list) else value


def _of_model(model: torch.nn.Module) -> dict[str, Tensor]:
    """Each once, whatever it is tied to; buffers too that no state dict holds."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}
