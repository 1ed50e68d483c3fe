"""Plan: a grid of runs before it is run, and what it will take. No torch."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from attnres_cli.recipe import Recipe
from attnres_cli.run import RunSpec, Settings

TIMED_STEPS = 4
"""Training steps of each arm that a prediction rests on."""

_TIMED_FLOPS = {"cpu": 5e10, "cuda": 2e13}
"""What about a second's work is; longer steps are timed in part."""

_EVAL_SHARE = 0.4  # of a training step's time per token: one forward pass of three, and a little
_START_S = 4.0  # a worker's imports and data
_COMPILE_S = 60.0  # an arm, the first time


@dataclass(frozen=True)
class Arm:
    """A variant in this experiment; step_s (seconds per step) is None until it is timed."""

    variant: str
    n_params: int
    flops_per_token: int
    step_s: float | None = None


@dataclass(frozen=True)
class Plan:
    """All that will be done, before it is done.

    Attributes:
        devices: one per worker process.
        done: (variant, seed) of the runs that the study already holds.

    """

    recipe: Recipe
    arms: tuple[Arm, ...]
    seeds: tuple[int, ...]
    devices: tuple[str, ...]
    settings: Settings
    fingerprint: str
    done: frozenset[tuple[str, int]] = frozenset()

    @property
    def specs(self) -> list[RunSpec]:
        """Every run, seed by seed, so that an interrupted grid is balanced."""
        return [
            RunSpec(self.recipe, arm.variant, seed, self.fingerprint)
            for seed in self.seeds
            for arm in self.arms
        ]

    @property
    def missing(self) -> list[tuple[Arm, int]]:
        """The runs that are still to be trained."""
        pairs = [(arm, seed) for seed in self.seeds for arm in self.arms]
        return [(arm, seed) for arm, seed in pairs if (arm.variant, seed) not in self.done]

    @property
    def flops(self) -> float:
        """Training FLOPs of the missing runs."""
        tokens = self.recipe.steps * self.recipe.tokens_per_step
        return float(tokens * sum(arm.flops_per_token for arm, _ in self.missing))

    @property
    def timed_sequences(self) -> int:
        """Sequences that are timed: a (micro-)batch where it takes about a second or less.

        0 where one sequence alone takes twenty times as long: then nothing is timed.
        """
        per_token = max(arm.flops_per_token for arm in self.arms)
        affordable = _TIMED_FLOPS[self.settings.device] / (per_token * self.recipe.model.seq_len)
        if affordable < 1:
            return 1 if affordable > 1 / 20 else 0
        return min(int(affordable), self.recipe.train.rows)

    @property
    def seconds(self) -> float | None:
        """Predicted wall time of the missing runs, None if an arm of theirs is not timed.

        Compiling counts once per arm: another run of it finds most in the compiler's cache.
        """
        n_evals = min(self.recipe.train.n_evals, self.recipe.steps) + 1
        evaluated = n_evals * self.recipe.train.eval_tokens * _EVAL_SHARE
        steps = self.recipe.steps + evaluated / self.recipe.tokens_per_step
        free_at = [_START_S] * len(self.devices)
        to_compile = {arm for arm in self.arms if self.settings.compiled}
        for arm, _ in self.missing:
            if arm.step_s is None:
                return None
            compile_s = _COMPILE_S if arm in to_compile else 0.0
            to_compile.discard(arm)
            heapq.heapreplace(free_at, free_at[0] + compile_s + steps * arm.step_s)
        return max(free_at)
