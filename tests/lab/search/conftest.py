"""What the tests of searches share."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest
from untrained import Bench, opposed

from attnres_cli.store.optuna import optuna_storage
from attnres_cli.store.store import Store

Make = Callable[..., Bench]


@contextmanager
def _benches(path: Path) -> Iterator[Make]:
    with ExitStack() as made:
        yield lambda **asked: made.enter_context(closing(Bench(str(path), **asked)))


@pytest.fixture(scope="package")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study with all tables: making them anew for each test takes longest."""
    path = tmp_path_factory.mktemp("empty") / "attnres.db"
    Store.open(str(path), create=True)
    with optuna_storage(str(path)):
        pass
    return path


@pytest.fixture
def bench(empty: Path, tmp_path: Path) -> Iterator[Make]:
    """Makes searches without training in one study; the second continues the first."""
    with _benches(_copy(empty, tmp_path)) as make:
        yield make


@pytest.fixture(scope="package")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """A whole search, only to be read: what is best for one design is worst for the other."""
    with _benches(tmp_path_factory.mktemp("finished") / "attnres.db") as make:
        yield make(n_trials=4).run(opposed)


@pytest.fixture
def continued(finished: Bench, tmp_path: Path) -> Iterator[Make]:
    """Makes searches that continue a copy of the finished one."""
    with _benches(_copy(Path(finished.study), tmp_path)) as make:
        yield make


def _copy(study: Path, folder: Path) -> Path:
    copy = folder / "attnres.db"
    with closing(sqlite3.connect(study)) as held, closing(sqlite3.connect(copy)) as made:
        held.backup(made)
    return copy
