"""The ranks of torchrun as one worker: rank 0 does what the command says, the others train with it
the runs that it has claimed, and print nothing but what goes wrong on them alone.
"""

from __future__ import annotations

import math
import os
import signal
import time
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

from attnres_cli.data import sources
from attnres_cli.data.tokens import Tokens
from attnres_cli.errors import DONE, SOME_FAILED, UsageError, WorkersError
from attnres_cli.lab.workers.provenance import code_of
from attnres_cli.lab.workers.signals import ENDING, handled, interrupt
from attnres_cli.nn.residual import PLUGINS, add_plugin
from attnres_cli.records.run import RunResult, RunSpec, Settings
from attnres_cli.train import group
from attnres_cli.train.checkpoint import Checkpoints
from attnres_cli.train.group import Group
from attnres_cli.train.keeper import Keeper, Stop, Stopped
from attnres_cli.train.loop import OnStep, train

_TICK_S = 0.05
_ALL_FAIL_S = 15.0  # within which all ranks meet one error, if it is the run's and not one rank's


@dataclass(frozen=True)
class _Order:
    """What the other ranks need to know of a run."""

    number: int
    spec: RunSpec
    settings: Settings
    torch: str
    plugins: str


class _Elsewhere(Checkpoints):
    """Of ranks that write nothing."""

    def save(self, *_: object) -> None:
        """Rank 0 does."""

    def load(self) -> None:
        """Rank 0 does: what lies here is somebody's own."""


class _LostError(Exception):
    """Ranks are no longer at one point; caused by an error of the run, if it is that."""


@dataclass
class _Leader:
    """What rank 0 knows of the others: how many runs they were told, and whether they still can be
    told anything, all being at one point.
    """

    n_told: int = 0
    is_lost: bool = False


_leader = _Leader()


def as_rank(command: Callable[[], int]) -> int:
    """Do the command as rank 0, or what that says as another; the exit code."""
    found = group.join()
    if found.rank:
        return _follow(found)
    try:
        with handled(dict.fromkeys(ENDING[1:], interrupt)):
            return command()
    finally:
        if not _leader.is_lost:
            with suppress(RuntimeError):  # others are gone
                found.tell(None)


def together(
    spec: RunSpec,
    tokens: Tokens,
    settings: Settings,
    device: str,
    on_step: OnStep,
    keeper: Keeper,
) -> RunResult:
    """`train`, with all ranks where the settings say so. Raises what went wrong with the run, or
    WorkersError where a rank was lost, and the run is to go on in another group.
    """
    ranks = group.current()
    if ranks is None or not settings.shared:
        return train(spec, tokens, settings, device, on_step, keeper)
    if _leader.is_lost:
        raise WorkersError("a rank was lost: the same command goes on with what is left")
    _leader.n_told, _leader.is_lost = _leader.n_told + 1, True
    spec = replace(spec, code=code_of(spec.variant))
    plugins = os.environ.get(PLUGINS, "")
    order = _Order(_leader.n_told, spec, settings, torch.__version__, plugins)
    try:
        try:
            ranks.tell(order)
        except RuntimeError as error:  # one was lost between two runs
            raise _LostError(f"a rank was lost ({error})") from None
        result = _train(ranks, order, lambda: tokens, on_step, keeper)
    except _LostError as lost:
        for number in ENDING:  # torchrun ends all now: what is to be written down comes first
            signal.signal(number, signal.SIG_IGN)
        if lost.__cause__ is not None:
            raise lost.__cause__ from None
        raise WorkersError(f"{lost}: the same command goes on") from None
    except Exception:  # Stopped, too
        _leader.is_lost = False
        raise
    _leader.is_lost = False
    return result


def _train(
    ranks: Group,
    order: _Order,
    load: Callable[[], Tokens],
    on_step: OnStep,
    keeper: Keeper,
) -> RunResult:
    """One run, on every rank. Raises what all of them raise, else _LostError."""
    torch.set_num_threads(order.settings.threads)
    tokens, trouble, device = None, None, ""
    try:
        device = ranks.device(order.settings.device)
        _check(order)
        tokens = load()
    except Exception as error:
        trouble = str(error) or repr(error)
    try:
        told = ranks.answers(trouble)
    except RuntimeError as error:
        raise _LostError(f"a rank was lost ({error})") from None
    for rank, each in enumerate(told):
        if each is not None:
            raise UsageError(f"rank {rank}: {each}")
    assert tokens is not None
    with handled(dict.fromkeys(ENDING, keeper.stop.heed)):  # torchrun ends all where one has ended
        try:
            return train(order.spec, tokens, order.settings, device, on_step, keeper)
        except Stopped:
            raise
        except Exception as error:
            _meet(ranks, order, None if _is_of_the_line(error) else error)
            raise


def _meet(ranks: Group, order: _Order, error: Exception | None) -> None:
    """Go on where all ranks have met an error of their own: they are at one point still. Else raise
    _LostError, caused by the error of this rank, or of another that has told it.
    """
    keys = [f"run {order.number} rank {rank}" for rank in range(ranks.ranks)]
    if error is not None:
        ranks.board.set(keys[ranks.rank], f"{type(error).__name__}: {error}")
        deadline = time.monotonic() + _ALL_FAIL_S
        while not ranks.board.check(keys):
            if time.monotonic() > deadline:
                raise _LostError from error
            time.sleep(_TICK_S)
        return
    for rank, key in enumerate(keys):
        if ranks.board.check([key]):
            said = ranks.board.get(key).decode(errors="replace")
            raise _LostError from _OfRankError(f"rank {rank}: {said}")
    raise _LostError("a rank was lost")


class _OfRankError(Exception):
    """What another rank has told of itself."""


def _is_of_the_line(error: Exception) -> bool:
    """Whether it is what a rank meets when another one is gone."""
    words = ("gloo", "NCCL", "Connection closed", "Connection reset")
    return isinstance(error, dist.DistError) or any(word in str(error) for word in words)


def _follow(ranks: Group) -> int:
    """Train what rank 0 says, until it says no more; the exit code."""
    tokens: dict[str, Tokens] = {}
    warnings.simplefilter("ignore")  # rank 0 gives them
    for number in ENDING:  # Python hears none while it waits for rank 0
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    while (order := ranks.tell()) is not None:
        keeper = Keeper(_Elsewhere(Path(), {}), math.inf, Stop())
        try:
            _train(ranks, order, partial(_tokens, order, tokens), _quiet, keeper)
        except _LostError as lost:
            if lost.__cause__ is not None and not isinstance(lost.__cause__, _OfRankError):
                traceback.print_exception(lost.__cause__)
            return SOME_FAILED
        except Exception:  # noqa: S112 - of all ranks: rank 0 writes it down, or it was Stopped
            continue
    return DONE


def _quiet(_step: int, _loss: float | None) -> None:
    return


def _check(order: _Order) -> None:
    """Raise UsageError where this machine has other code than rank 0."""
    for path in filter(None, order.plugins.split(os.pathsep)):
        add_plugin(path)
    mine = {"torch": torch.__version__, "code": code_of(order.spec.variant).digest}
    theirs = {"torch": order.torch, "code": order.spec.code.digest}
    for name, value in mine.items():
        if value != theirs[name]:
            raise UsageError(f"{name} {value}, that of rank 0 is {theirs[name]}")


def _tokens(order: _Order, known: dict[str, Tokens]) -> Tokens:
    """The data of a run, as they are on this machine. Raises UsageError where rank 0 has others."""
    wanted = order.spec.fingerprint
    if wanted not in known:
        found = sources.load(order.spec.recipe)
        known[found.fingerprint] = found
        if found.fingerprint != wanted:
            raise UsageError(f"data {found.fingerprint}, those of rank 0 are {wanted}")
    return known[wanted]
