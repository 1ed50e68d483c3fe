"""A study in a notebook: its runs, curves and verdicts as plain records, or as pandas data frames.

    study = open_study("attnres.db")
    study.frame("verdicts")[["variant", "mean", "difference", "ci_low", "ci_high", "verdict"]]

A record is a dictionary of numbers and text, one per row of such a frame. Losses are in nats per
token, times in seconds.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from attnres_cli.config import address
from attnres_cli.errors import UsageError, required, unknown
from attnres_cli.lab.run_listing import listed
from attnres_cli.lab.study_view import Held
from attnres_cli.records.run_records import Record, as_records
from attnres_cli.store.store import Store
from attnres_cli.verdict.caveats import not_kept, qualifiers
from attnres_cli.verdict.rows import record

if TYPE_CHECKING:
    import pandas as pd

Table = Literal["runs", "curves", "verdicts"]


def open_study(study: str = address.DEFAULT) -> Study:
    """The study in that SQLite file, or under that URL.

    Raises:
        StudyError: it is not there, or is no study.
    """
    return Study(address.withhold(str(study)))


class Study:
    """What a study holds at the moment it is asked."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._store = Store.open(name, create=False)

    def runs(self) -> list[Record]:
        """A record per run, with a key per setting in which runs differ, as `optim.lr`; the same as
        `attnres runs --format csv` has.
        """
        return as_records(listed(self._store, self._store.runs(curves=False, gates=False)))

    def curves(self) -> list[Record]:
        """A record per point of every run's curve; a loss that was not measured there is None."""
        return [
            {
                "run": run.id,
                "recipe": run.recipe,
                "variant": run.variant,
                "seed": run.seed,
                "step": point.step,
                "train_loss": point.train_loss,
                "val_loss": point.val_loss,
            }
            for run in self._store.runs()
            if run.result is not None
            for point in run.result.curve
        ]

    def verdicts(self, baseline: str = "standard", recipe: str | None = None) -> list[Record]:
        """A record per arm of every comparison, the newest recipe's last: what `attnres report
        --format csv` has (`verdict/rows.py`). The study keeps that these tables were asked for; if
        it cannot be written to, a warning says so.

        Args:
            baseline: the arm that the others are compared with.
            recipe: a name or digest; None: all recipes of the study.

        Raises:
            StudyError: the study holds no runs.
            UsageError: no such recipe or baseline in it.
        """
        held = Held(self._store, self.name, self._store.runs(curves=False))
        every = held.every(recipe, baseline)
        found = held.kept([one for chosen in every for one in held.comparisons(chosen)])
        for line in not_kept(found[0]):
            warnings.warn(line, stacklevel=2)
        return [
            record(arm, comparison, "; ".join(qualifiers(comparison)))
            for comparison in found
            for arm in comparison.arms
        ]

    def frame(self, table: Table = "verdicts", **given: str | None) -> pd.DataFrame:
        """The records of `runs`, `curves` or `verdicts` as a data frame; keywords are those of
        `verdicts`.

        Raises:
            UsageError: pandas is not installed, or there is no such table.
        """
        tables: dict[str, Callable[..., list[Record]]]
        tables = {"runs": self.runs, "curves": self.curves, "verdicts": self.verdicts}
        if table not in tables:
            raise UsageError(unknown("table", table, tables))
        library = required("pandas", "pandas", "a data frame", UsageError)
        frame: pd.DataFrame = library.DataFrame(tables[table](**given))
        return frame
