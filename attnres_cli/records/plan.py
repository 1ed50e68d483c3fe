"""Plan: a grid of runs before it is run, and what it will take. No torch."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass, field

from attnres_cli.config.recipe import Recipe
from attnres_cli.config.sections import Train
from attnres_cli.records.code import Code
from attnres_cli.records.comparison_terms import SHARED, ArmRecipe, Given, Matched, Terms, Tuned
from attnres_cli.records.run import UNKNOWN, DataDescription, Identity, RunSpec, Settings
from attnres_cli.records.step_ratio import StepRatio

TIMED_STEPS = 8  # training steps of each arm that a prediction rests on
_TIMED_TOKENS = {"cpu": 2**15, "cuda": 2**20}  # at most: of tiny models memory decides, not FLOPs
_TIMED_FLOPS = {"cpu": 5e10, "cuda": 2e13}  # about a second's work: longer steps are timed in part
_EVAL_SHARE = 0.4  # of a training step's time per token: one forward pass of three, and a little
_START_S = 4.0  # a worker's imports and data
COMPILE_S = 60.0  # an arm, the first time
_WEIGHT_BYTES = 4  # float32, whatever the precision of a step

KEEPS_LESS = "--set train.checkpoint_activations=true"
NOTHING_LESS = "not one sequence at a time fits, take a smaller model or a larger machine"


@dataclass(frozen=True)
class Memory:
    """What a training step holds and does, counted (lab/step_memory.py), not compiled.

    Attributes:
        weights: bytes, there from the run's start to its end.
        optimiser: bytes of its state, there from the first step on.
        peak: the most bytes held at once: both, and activations, logits and gradients.
        made: bytes of all tensors that one micro-batch and the update make.
        n_operations: how many make or change a tensor in that.
        n_fused: how many of them are fused kernels of depth mixing.
    """

    weights: int
    optimiser: int
    peak: int
    made: int
    n_operations: int
    n_fused: int = 0


@dataclass(frozen=True)
class Arm:
    """A variant in this experiment, by the code that trains it now. step_s (seconds per step), its
    ratio to the baseline's and `memory` are None until timed and counted; `recipe` is None where it
    is the plan's, else `how` says what it was made for.
    """

    variant: str
    n_params: int
    flops_per_token: int
    step_s: float | None = None
    recipe: Recipe | None = None
    how: Matched | Tuned | Given | None = None
    code: Code = UNKNOWN
    memory: Memory | None = None
    step_ratio: StepRatio | None = None


@dataclass(frozen=True)
class Plan:
    """All that will be done, before it is done, with one worker process for each of `devices`.

    `recipe` is that of arms without their own; `done` are runs that have ended.
    """

    recipe: Recipe
    arms: tuple[Arm, ...]
    seeds: tuple[int, ...]
    devices: tuple[str, ...]
    settings: Settings
    fingerprint: str
    done: frozenset[Identity] = frozenset()
    terms: Terms = SHARED
    data: DataDescription | None = None  # None: nobody is told about it
    beginning: str = ""  # of the text that trains, quoted; empty where that is not shown
    threads_by: str = ""  # threads of each run, and whose word that is
    workers_by: str = ""  # where memory, or a GPU's room, decided how many there are
    begun: Mapping[Identity, int] = field(default_factory=dict)  # steps that runs go on from
    core_share: float = 1.0  # of a core, that the process had which timed the arms
    no_room: tuple[str, ...] = ()  # variants that ran out of memory while they were timed
    assumed: str = ""  # the GPUs that are not here, for which times and memory are foretold

    def recipe_of(self, arm: Arm) -> Recipe:
        """What an arm is trained under."""
        return arm.recipe or self.recipe

    @property
    def specs(self) -> list[RunSpec]:
        """Every run, seed by seed, so that an interrupted grid is balanced."""
        return [self.spec(arm, seed) for seed in self.seeds for arm in self.arms]

    def spec(self, arm: Arm, seed: int) -> RunSpec:
        """A run of an arm."""
        return RunSpec(self.recipe_of(arm), arm.variant, seed, self.fingerprint, arm.code)

    @property
    def missing(self) -> list[tuple[Arm, int]]:
        """The runs that are still to be trained."""
        of = {arm: self.spec(arm, 0).identity for arm in self.arms}
        pairs = [(arm, seed) for seed in self.seeds for arm in self.arms]
        return [
            (arm, seed)
            for arm, seed in pairs
            if (*of[arm][:2], seed, *of[arm][3:]) not in self.done
        ]

    @property
    def arm_recipes(self) -> list[ArmRecipe]:
        """The recipes that arms have of their own, and how they came to them."""
        return [
            ArmRecipe(
                base_digest=self.recipe.digest,
                fingerprint=self.fingerprint,
                terms=self.terms,
                variant=arm.variant,
                digest=self.recipe_of(arm).digest,
                how=arm.how,
                recipe=self.recipe.name,
            )
            for arm in self.arms
            if arm.how is not None
        ]

    @property
    def flops(self) -> float:
        """Training FLOPs of the missing runs."""
        return float(
            sum(arm.flops_per_token * n_tokens(self.recipe_of(arm)) for arm, _ in self.missing)
        )

    @property
    def can_go_on(self) -> bool:
        """Whether runs keep what longer ones may go on from: weights and two moments."""
        optim = self.recipe.optim
        return optim.schedule == "wsd" or optim.final_lr_fraction == 1

    @property
    def kept_bytes(self) -> int:
        """Disk that the final weights of the missing runs will take, and what `can_go_on`."""
        each = _WEIGHT_BYTES * (4 if self.can_go_on else 1)
        return each * sum(arm.n_params for arm, _ in self.missing)

    @property
    def checkpoint_bytes(self) -> int:
        """Disk that checkpoints take at most: per worker three, each of weights and two moments."""
        largest = max((arm.n_params for arm, _ in self.missing), default=0)
        return len(self.devices) * 3 * 3 * _WEIGHT_BYTES * largest

    @property
    def timed_sequences(self) -> int:
        """Sequences that are timed: about a second of them, 0 where one alone takes twenty."""
        per_token = max(arm.flops_per_token for arm in self.arms)
        affordable = _TIMED_FLOPS[self.settings.device] / (per_token * self.recipe.model.seq_len)
        if affordable < 1:
            return 1 if affordable > 1 / 20 else 0
        most = max(1, _TIMED_TOKENS[self.settings.device] // self.recipe.model.seq_len)
        return min(int(affordable), self.recipe.train.of_rank(self.settings.ranks).rows, most)

    @property
    def gpu_hours(self) -> float | None:
        """Hours of all its GPUs together, until the last run ends; None without GPUs or times."""
        if self.settings.device == "cpu" or self.seconds is None:
            return None
        return self.seconds / 3600 * len(set(self.devices))

    @property
    def seconds(self) -> float | None:
        """Predicted wall time of the missing runs, one compilation per arm; None if untimed."""
        free_at = [_START_S if self.missing else 0.0] * len(self.devices)
        to_compile = {arm.variant for arm in self.arms if self.settings.compiled}
        for arm, seed in self.missing:
            if arm.step_s is None:
                return None
            compile_s = COMPILE_S if arm.variant in to_compile else 0.0
            to_compile.discard(arm.variant)
            recipe = self.recipe_of(arm)
            left = 1 - self.begun.get(self.spec(arm, seed).identity, 0) / recipe.steps
            run_s = compile_s + left * _steps(recipe) * arm.step_s
            heapq.heapreplace(free_at, free_at[0] + run_s)
        return max(free_at)


def smaller_step(train: Train) -> str:
    """What to type so that a step takes less memory; the recipe trains the same."""
    if train.rows > 1:
        fewer = range(1, train.rows // 2 + 1)
        return f"--set train.micro_batch_size={max(n for n in fewer if train.batch_size % n == 0)}"
    return NOTHING_LESS if train.checkpoint_activations else KEEPS_LESS


def n_tokens(recipe: Recipe) -> int:
    """Tokens that a run of the recipe trains on."""
    return recipe.steps * recipe.tokens_per_step


def _steps(recipe: Recipe) -> float:
    """Steps of a run, its evaluations counted as steps of the same time."""
    n_evals = min(recipe.train.n_evals, recipe.steps) + 1
    evaluated = n_evals * recipe.train.eval_tokens * _EVAL_SHARE
    return recipe.steps + evaluated / recipe.tokens_per_step
