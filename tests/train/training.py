"""How tests train: tiny runs with plain settings, stopped and resumed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from inputs import changed

from attnres_cli.config.recipe import Recipe
from attnres_cli.data.tokens import Tokens
from attnres_cli.records.run import EVALUATION, RunResult, RunSpec, Settings
from attnres_cli.train.checkpoint import Checkpoints
from attnres_cli.train.keeper import Keeper, Stop, Stopped
from attnres_cli.train.loop import OnStep, train
from attnres_cli.train.trainer import Trainer

SETTINGS = Settings("cpu", "test", "fp32", compiled=False, threads=1, engine="eager")
COMPILED = replace(SETTINGS, compiled=True, engine="compile", way=EVALUATION)


def keeper_of(folder: Path, every_s: float = 1e9, **more: object) -> Keeper:
    """Keeps a run in a folder, by default only when it stops."""
    return Keeper(Checkpoints(folder, {"recipe": "a"}), every_s, Stop(), **more)


@dataclass(frozen=True)
class Lab:
    """A recipe and the tokens that runs of it train on; `sections` change keys of the recipe."""

    recipe: Recipe
    tokens: Tokens

    def with_recipe(self, **sections: dict) -> Lab:
        return replace(self, recipe=changed(self.recipe, **sections))

    def spec(self, variant: str = "standard", seed: int = 0, **sections: dict) -> RunSpec:
        recipe = changed(self.recipe, **sections)
        return RunSpec(recipe, variant, seed, self.tokens.fingerprint)

    def trainer(
        self,
        variant: str = "standard",
        seed: int = 0,
        settings: Settings = SETTINGS,
        **sections: dict,
    ) -> Trainer:
        spec = self.spec(variant, seed, **sections)
        return Trainer(spec, self.tokens, settings, torch.device("cpu"))

    def run(
        self,
        variant: str = "standard",
        seed: int = 0,
        settings: Settings = SETTINGS,
        on_step: OnStep = lambda *_: None,
        keeper: Keeper | None = None,
        **sections: dict,
    ) -> RunResult:
        spec = self.spec(variant, seed, **sections)
        return train(spec, self.tokens, settings, "cpu", on_step, keeper)

    def stop_at(
        self,
        step: int,
        keeper: Keeper,
        variant: str = "standard",
        seed: int = 0,
        settings: Settings = SETTINGS,
    ) -> None:
        """Train until that many steps are done."""
        taken = Trainer.step

        def stopping(self: Trainer, number: int) -> torch.Tensor:
            keeper.stop.wanted = number + 1 == step
            return taken(self, number)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Trainer, "step", stopping)
            with pytest.raises(Stopped):
                self.run(variant, seed, settings, keeper=keeper)
        assert keeper.step == step


def numbers(result: RunResult) -> tuple[object, ...]:
    """All that a run finds, without its times and memory."""
    found = (result.status, result.val_loss, result.initial_loss, result.steps)
    return *found, result.curve, result.probes
