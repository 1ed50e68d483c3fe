"""Claimers as tasks of Ray."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from attnres_cli.errors import UsageError, required, unknown
from attnres_cli.lab.workers.claimer import Claimer, Outcome
from attnres_cli.verdict.numbers import plural

_OPTIONS = {"num_cpus": float, "num_gpus": float, "memory": float, "accelerator_type": str}
_RESOURCES = {"num_cpus": "CPU", "num_gpus": "GPU", "memory": "memory"}
_LAST_WORDS_S = 20.0  # for checkpoints of tasks that are cancelled


def checked(options: Mapping[str, str]) -> dict[str, Any]:
    """What is typed for each task, by the names of Ray's options. Raises UsageError."""
    found: dict[str, Any] = {}
    for name, text in options.items():
        if name not in _OPTIONS:
            raise UsageError("--job: " + unknown("option of Ray", name, _OPTIONS))
        found[name] = text if _OPTIONS[name] is str else _number(name, text)
    return found


def _number(name: str, text: str) -> float:
    with suppress(ValueError):
        if 0 <= (found := float(text)) < math.inf:
            return found
    raise UsageError(f"--job: {name} takes a number from 0 up, got '{text}'")


def lacking(machines: Sequence[Mapping[str, float]], options: Mapping[str, Any]) -> str:
    """What to say where none of a cluster's machines, given by Ray's resources, has room for a task
    with these options; empty where one has. A cluster may start more machines when tasks wait.
    """
    asked = {_RESOURCES.get(name, f"{name}:{value}"): value for name, value in options.items()}
    needed = {"CPU": 1.0} | {n: 1e-9 if isinstance(v, str) else v for n, v in asked.items()}
    if any(all(has.get(n, 0.0) >= v for n, v in needed.items()) for has in machines):
        return ""
    typed = (f"{n}={v:.12g}" if isinstance(v, float) else f"{n}={v}" for n, v in options.items())
    held = "; ".join(dict.fromkeys(map(_size, machines)))
    return (
        f"no machine of the Ray cluster has {', '.join(typed) or 'a CPU'}, only {held}: tasks "
        "wait until one joins"
    )


def _size(has: Mapping[str, float]) -> str:
    """`8 CPUs, 1 GPU, 16.0 GB`."""
    counts = [plural(int(has.get(name, 0)), name) for name in ("CPU", "GPU")]
    return f"{', '.join(counts)}, {has.get('memory', 0) / 1e9:.1f} GB"


class OnRay:
    """Claimers on the cluster that `RAY_ADDRESS` names or this machine belongs to; without one, on
    a Ray of this machine alone, for as long as the command runs. A task whose machine dies is
    begun again elsewhere by Ray.
    """

    def __init__(self, claimer: Claimer, n: int, options: Mapping[str, Any]) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        self._ray = required("ray", "ray", "--launch ray", UsageError)
        if not self._ray.is_initialized():
            try:
                self._ray.init(include_dashboard=False, log_to_driver=False, logging_level="error")
            except Exception as error:  # Ray raises no better one where it does not start in time
                raise UsageError(f"--launch ray: Ray is not there: {error}") from error
        machines = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        self.n_machines, self.lacks = len(machines), lacking(machines, options)
        self.n, task = n, self._ray.remote(_call)
        try:
            self._tasks = [task.options(**options).remote(claimer) for _ in range(n)]
        except (ValueError, TypeError) as error:  # as of one and a half GPUs
            raise UsageError(f"--job: {error}") from error
        self._ended: dict[Any, Outcome] = {}

    def ended(self) -> Sequence[Outcome]:
        """Return how those that have ended did."""
        left = [task for task in self._tasks if task not in self._ended]
        done, _ = self._ray.wait(left, num_returns=len(left), timeout=0) if left else ([], [])
        self._ended |= {task: self._outcome(task) for task in done}
        return list(self._ended.values())

    def cancel(self) -> None:
        """End the others; each saves its run, which waits again."""
        for task in self._tasks:
            if task not in self._ended:
                self._ray.cancel(task)
        deadline = time.monotonic() + _LAST_WORDS_S
        while len(self.ended()) < len(self._tasks) and time.monotonic() < deadline:
            time.sleep(0.1)
        self._ray.shutdown()

    def _outcome(self, task: Any) -> Outcome:
        try:
            found: Outcome = self._ray.get(task)
        except (self._ray.exceptions.RayError, KeyboardInterrupt) as error:
            return Outcome(1, "", str(error).strip().splitlines()[-1])
        return found


def _call(claimer: Claimer) -> Outcome:
    return claimer()
