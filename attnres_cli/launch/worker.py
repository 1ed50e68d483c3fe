"""One worker process: claims runs from the study and trains them until none is left."""

from __future__ import annotations

import signal
import traceback
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection

import torch

from attnres_cli import data, docs
from attnres_cli.data import Tokens
from attnres_cli.errors import AttnresError, DataError
from attnres_cli.launch.provenance import versions
from attnres_cli.recipe import Recipe
from attnres_cli.residual import registry
from attnres_cli.run import CODE, Event, RunRecord, RunSpec, Settings
from attnres_cli.store import Store
from attnres_cli.train import train
from attnres_cli.variant import parse


@dataclass(frozen=True)
class Job:
    """What a worker is told: which runs of which study, and where to compute them.

    The recipe is that of all of them, with the data where they lie now: the study's copy has them
    where they lay when it was first used.
    """

    study: str
    run_ids: tuple[int, ...]
    device: str
    settings: Settings
    recipe: Recipe


def work(worker: int, job: Job, report: Connection) -> None:
    """Train runs of the job, one after the other. Ends at once where the launcher is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the launcher, which ends us
    torch.set_num_threads(job.settings.threads)
    try:
        store, tokens = Store.open(job.study, create=True), None
        while (claimed := store.claim(job.run_ids)) is not None:
            report.send(Event(worker, claimed.id))
            spec = RunSpec(job.recipe, claimed.variant, claimed.seed, claimed.fingerprint)
            tokens = tokens or data.load(spec.recipe)
            report.send(_run(worker, store, claimed, spec, tokens, job, report))
    except BrokenPipeError:
        return
    finally:
        report.close()


def _run(
    worker: int,
    store: Store,
    claimed: RunRecord,
    spec: RunSpec,
    tokens: Tokens,
    job: Job,
    report: Connection,
) -> Event:
    """Train and record one run. Whatever goes wrong in it is recorded and ends this run alone."""

    def on_step(step: int, loss: float) -> None:
        report.send(Event(worker, claimed.id, step, loss))

    try:
        _check_data(spec, tokens)
        result = train(spec, tokens, job.settings, job.device, on_step)
    except BrokenPipeError:
        raise
    except Exception as error:
        store.fail(claimed.id, _explain(error, spec), _versions(spec))
        return Event(worker, claimed.id, done=True)
    store.finish(replace(claimed, status=result.status, result=result, versions=_versions(spec)))
    return Event(worker, claimed.id, result.steps, result.val_loss, done=True)


def _versions(spec: RunSpec) -> dict[str, str]:
    """Of everything, the design's own code included."""
    cls = registry()[parse(spec.variant).name]
    return versions() | {CODE: docs.code_digest(cls)}


def _check_data(spec: RunSpec, tokens: Tokens) -> None:
    if tokens.fingerprint != spec.fingerprint:
        raise DataError(
            f"the data changed while the study ran: fingerprint {tokens.fingerprint}, the run was "
            f"planned on {spec.fingerprint}"
        )


def _explain(error: Exception, spec: RunSpec) -> str:
    """What to write down of an error: one line where we know its cause, else the traceback."""
    out_of_memory = isinstance(error, torch.OutOfMemoryError | MemoryError)
    if out_of_memory or "can't allocate memory" in str(error):
        size = spec.recipe.train.batch_size
        return (
            f"out of memory with train.batch_size {size}: lower it, as in "
            f"--set train.batch_size={max(1, size // 2)}"
        )
    if isinstance(error, AttnresError):
        return str(error)
    return "".join(traceback.format_exception(error)).strip()
