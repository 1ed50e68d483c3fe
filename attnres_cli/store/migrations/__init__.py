"""Alembic's folder: env.py runs a migration, versions/ holds one file per schema."""

import pkgutil
from pathlib import Path

SCHEMAS = tuple(
    sorted(
        name[1:5] for _, name, _ in pkgutil.iter_modules([str(Path(__file__).parent / "versions")])
    )
)
"""Every schema there was, as `0001`, the newest last: the files' names, which Alembic is not asked
for since it takes longer to import than a study to read.
"""
