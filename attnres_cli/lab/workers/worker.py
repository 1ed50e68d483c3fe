"""One worker process: asks which runs there are, claims one, trains it, until none is left."""

from __future__ import annotations

import faulthandler
import re
import signal
import threading
import time
import traceback
from bdb import BdbQuit
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from multiprocessing.connection import Connection

import torch

from attnres_cli.config.recipe import Recipe
from attnres_cli.config.sections import Train
from attnres_cli.console import say
from attnres_cli.data import sources
from attnres_cli.data.tokens import Tokens
from attnres_cli.errors import AttnresError, AwayError, DataError, StudyError, WorkersError
from attnres_cli.lab.workers.cores import bind
from attnres_cli.lab.workers.heartbeat import Heartbeat
from attnres_cli.lab.workers.provenance import code_of, made_with, remember_code
from attnres_cli.lab.workers.ranks import together
from attnres_cli.lab.workers.signals import ENDING
from attnres_cli.nn.proofs.prove import doubts
from attnres_cli.records.code import Code
from attnres_cli.records.gates import DOUBTS
from attnres_cli.records.plan import smaller_step
from attnres_cli.records.run import WAITS, Event, RunRecord, RunResult, RunSpec, Settings
from attnres_cli.store import waits
from attnres_cli.store.retry import patiently, retry_s, seconds_of
from attnres_cli.store.store import Store
from attnres_cli.train.checkpoint import Checkpoints, clear
from attnres_cli.train.device import ran_out_of_memory
from attnres_cli.train.keeper import Keeper, Stop, Stopped
from attnres_cli.verdict.numbers import plural

CHECKPOINT_S = "ATTNRES_CHECKPOINT_S"
"""Environment variable: seconds between checkpoints; 0: one after every step."""

_EVERY_S = 30.0
_TICK_S = 0.5  # between looks at runs that others have
_ANYWHERE = ("host", "platform", "attnres", "git_revision", "git_dirty")
"""Versions that decide no number: what is trained by has digests of its own."""

_OF_A_CPU = ("threads", "cpu_capability")  # which round nothing that a GPU computes


@dataclass(frozen=True)
class Job:
    """What a worker is told at its start: whose runs, and where to compute them. Of `recipe` only
    the place of the data and the pipeline's cut count, as the study may know old ones. Empty
    `cores` bind to none.
    """

    study: str
    device: str
    settings: Settings
    recipe: Recipe
    cores: tuple[int, ...] = ()


def checkpoint_s() -> float:
    """Seconds between checkpoints. Raises UsageError where the environment says no number."""
    return seconds_of(CHECKPOINT_S, _EVERY_S)


def work(worker: int, job: Job, line: Connection) -> None:
    """Train the runs that the launcher names, one after the other. On SIGTERM or SIGHUP, or if the
    launcher is gone, it ends early, and its run is saved and waits again. What keeps it from study
    or data, as a full disk, it sends to the launcher.
    """
    stop, send = _heed_signals(), partial(_send, line, threading.Lock())
    waits.hear(send)
    with suppress(OSError, ValueError, RuntimeError):  # stderr is no file
        faulthandler.enable(all_threads=False)  # where Python was if a design crashes the process
    bind(job.cores)  # before there are threads
    remember_code()
    torch.set_num_threads(job.settings.threads)
    try:
        store = patiently(lambda: Store.open(job.study, create=True), retry_s())
        tokens = None
        while not stop.wanted and (ids := _asked(line, send)):
            tokens = tokens or sources.load(job.recipe)  # before a run is claimed: none is to blame
            claimed = store.claim(ids)
            if claimed is not None:  # nobody was first
                _do(claimed, worker, send, store, job, tokens, stop)
    except (ConnectionError, EOFError, AwayError):  # the launcher sees itself that a server is away
        return
    except (StudyError, DataError) as error:
        with suppress(ConnectionError):
            send(error)
    finally:
        line.close()


def work_here(
    store: Store,
    job: Job,
    wanted: Callable[[int], Sequence[int]],
    on_event: Callable[[Event | None], None],
) -> None:
    """Train all wanted runs in this process, in order, as a worker would: where breakpoints and
    profilers see them, and with the other ranks, if it is one of several. See `pool.run_all`.

    Raises KeyboardInterrupt, also where a debugger is left: the run goes on from its last
    checkpoint when it is wanted again. Else as `run_all`.
    """
    torch.set_num_threads(job.settings.threads)
    remember_code()
    tokens = sources.load(job.recipe)
    while ids := wanted(1):
        found = store.statuses(ids)
        unfinished = [run_id for run_id in ids if found.get(run_id) in WAITS]
        if not unfinished:
            return
        store.release(unfinished)
        claimed = store.claim(unfinished)
        if claimed is None:  # others have them
            on_event(None)
            time.sleep(_TICK_S)
            continue
        stop = Stop()
        try:
            _do(claimed, 0, on_event, store, job, tokens, stop)
        except BaseException:
            with suppress(StudyError):
                store.let_go(claimed.id)
            raise
        if stop.wanted and job.settings.shared:  # by a signal to some rank
            raise KeyboardInterrupt


def _send(line: Connection, turn: threading.Lock, what: object) -> None:
    """Send it whole: the heartbeat's thread sends too."""
    with turn:
        line.send(what)


def _asked(line: Connection, send: Callable[[object], None]) -> list[int]:
    """The runs that wait, none where this is the end."""
    send(None)
    ids: list[int] = line.recv()
    return ids


def _heed_signals() -> Stop:
    """What SIGTERM and SIGHUP set. Ctrl-C reaches the launcher, which ends us."""
    stop = Stop()

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
            signal.signal(number, stop.heed)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)  # held up while we were starting
    return stop


def _do(
    claimed: RunRecord,
    worker: int,
    tell: Callable[[Event], None],
    store: Store,
    job: Job,
    tokens: Tokens,
    stop: Stop,
) -> None:
    """Train a run, record how it ends, and tell. Whatever goes wrong in it ends it alone."""
    event, ended = partial(Event, worker, claimed.id), claimed
    tell(event())
    recipe = _as_asked(store.recipe(claimed.recipe_digest), job.recipe)
    spec = RunSpec(recipe, claimed.variant, claimed.seed, claimed.fingerprint)
    name = f"{spec.variant} seed {spec.seed} (run {claimed.id})"
    planned, ours = Code.of(claimed.versions), code_of(spec.variant)
    versions = made_with(spec, job.settings) | planned.versions
    checkpoints = checkpoints_of(store, claimed, job.settings, versions)
    keeper = Keeper(checkpoints, checkpoint_s(), stop)
    keeper.on_trouble = lambda text: say(f"{name}: {text}")
    heartbeat = Heartbeat(store, claimed.id, keeper)
    keeper.on_saved = heartbeat.further

    on_step = partial(_tell, tell, event, keeper)
    try:
        with heartbeat:
            _check_data(spec, tokens)
            _check_code(planned, ours)
            result = together(spec, tokens, job.settings, job.device, on_step, keeper)
    except WorkersError:
        store.let_go(claimed.id)
        raise
    except Stopped:
        with suppress(AwayError):  # it waits again when it is seen that we are gone
            store.let_go(claimed.id)
        return
    except BdbQuit as left:
        raise KeyboardInterrupt from left
    except Exception as error:
        why = _explain(error, recipe.train.of_rank(job.settings.ranks))
        end = partial(store.fail, claimed.id, why, versions, keeper.step)
        last = event(done=True)
    else:
        result = _doubted(result, claimed.variant, recipe)
        ended = replace(claimed, status=result.status, result=result, versions=versions)
        end = partial(store.finish, ended)
        last = event(result.steps, done=True, val_loss=result.val_loss)
    try:
        end()
    except StudyError:
        if store.owns(claimed.id):
            raise
        say(f"{name} was taken over by another process, which records it")
        return
    if ended.result is not None:
        with suppress(OSError):  # of another user, who began it
            clear(checkpoints.folder, store.weights_of(ended).name)
    tell(last)


def _doubted(result: RunResult, variant: str, recipe: Recipe) -> RunResult:
    """The result, with what is wrong of all that a design says of itself among its proofs."""
    found = zip(DOUBTS, doubts(variant, recipe.model.n_layers), strict=False)
    wrong = ((name, why) for name, why in found if why is not None)
    return replace(result, proofs=(*result.proofs, *wrong))


def _as_asked(held: Recipe, asked: Recipe) -> Recipe:
    """The study's recipe with what its digest does not see, as this command has it: the settings of
    the job name that way, so that it must be the one that is computed.
    """
    train = held.train.model_copy(update={"pipeline": asked.train.pipeline})
    return held.model_copy(update={"data": asked.data, "train": train})


def _tell(
    tell: Callable[[Event], None],
    event: Callable[..., Event],
    keeper: Keeper,
    step: int,
    loss: float | None,
) -> None:
    try:
        tell(event(step, loss, save_s=keeper.save_s))
    except ConnectionError:  # the launcher is gone
        keeper.stop.wanted = True


def checkpoints_of(
    store: Store, claimed: RunRecord, settings: Settings, versions: dict[str, str]
) -> Checkpoints:
    """Where a run's checkpoints lie, and what decides whether they may be gone on from."""
    identity = {
        "recipe": claimed.recipe_digest,
        "variant": claimed.variant,
        "seed": str(claimed.seed),
        "data": claimed.fingerprint,
    }
    free = ("way", *_ANYWHERE, *(_OF_A_CPU if settings.device != "cpu" else ()))
    computed = {name: str(value) for name, value in asdict(settings).items()}
    folder = store.folder_of(claimed)
    return Checkpoints(folder, identity | computed | versions, frozenset(free))


def _check_data(spec: RunSpec, tokens: Tokens) -> None:
    if tokens.fingerprint != spec.fingerprint:
        raise DataError(
            f"the data changed while the study ran: fingerprint {tokens.fingerprint}, the run was "
            f"planned on {spec.fingerprint}"
        )


def _check_code(planned: Code, ours: Code) -> None:
    if planned.digest and planned != ours:
        raise StudyError(
            f"the code ({', '.join(planned.changed(ours))}) changed while the study ran: it was "
            f"planned with {planned.digest}, this is {ours.digest}; the same command again plans "
            "and trains a run of this code"
        )


def _explain(error: Exception, train: Train) -> str:
    """What to write down of an error: the traceback, the last line being one that a list shows."""
    if isinstance(error, AttnresError):
        return str(error)
    trace = "".join(traceback.format_exception(error)).strip()
    if ran_out_of_memory(error):
        n = plural(train.rows, "sequence")
        trace += f"\nMemoryError: out of memory with {n} at a time: {smaller_step(train)}"
    if half := re.search(r"(\S+\.so): file too short", str(error)):  # PyTorch would load it again
        trace += f"\nImportError: {half[1]} was left half compiled by a killed command: delete it"
    return trace
