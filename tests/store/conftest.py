"""A study with six planned runs, in a file and, slow, on PostgreSQL."""

from __future__ import annotations

import pytest
from studies import FACTS

from attnres_cli.config.recipe import Recipe
from attnres_cli.records.run import RunSpec
from attnres_cli.store.store import Store


@pytest.fixture
def study(any_study: str) -> str:
    return any_study


@pytest.fixture
def store(study: str) -> Store:
    return Store.open(study, create=True)


@pytest.fixture
def specs(tiny_recipe: Recipe) -> list[RunSpec]:
    """Two arms, three seeds."""
    return [
        RunSpec(tiny_recipe, variant, seed, FACTS.fingerprint)
        for seed in range(3)
        for variant in ("standard", "attnres")
    ]


@pytest.fixture
def ids(store: Store, specs: list[RunSpec]) -> list[int]:
    return [record.id for record in store.plan(specs, FACTS)]
