"""What the tests of searches share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from untrained import Bench


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    """Makes searches without training in one study; the second goes on with the first."""
    made: list[Bench] = []

    def make(**asked: Any) -> Bench:
        made.append(Bench(str(tmp_path / "attnres.db"), **asked))
        return made[-1]

    yield make
    for each in made:
        each.close()
