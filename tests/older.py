"""Studies as an older attnres would have made them."""

from __future__ import annotations

import lzma
import sqlite3
from contextlib import closing
from pathlib import Path

from attnres_cli.store.upgrade import BEFORE, PLACES

RESULTS = Path(__file__).parent.parent / "docs" / "results"


def published(name: str, path: Path) -> Path:
    """One of docs/results, as it was published, at that path."""
    path.write_bytes(lzma.decompress((RESULTS / f"{name}.db.xz").read_bytes()))
    return path


def make_older(path: Path, version: str) -> None:
    """Take from the tables of a study what that schema does not have."""
    with closing(sqlite3.connect(path)) as study, study:
        for statement in statements(version):
            study.execute(statement)


def statements(version: str) -> list[str]:
    """What takes it, in SQL."""
    return [
        *(f"DROP TABLE {table.name}" for table in BEFORE[version]),
        *(f"ALTER TABLE attnres_data DROP COLUMN {name}" for name in PLACES),
        f"UPDATE attnres_schema SET version_num = '{version}'",
    ]
