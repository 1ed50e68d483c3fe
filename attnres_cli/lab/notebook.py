"""A study in a notebook: its runs, curves and verdicts as plain records, or as pandas data frames.

    study = open_study("attnres.db")
    study.frame("verdicts")[["variant", "loss", "difference", "ci_low", "ci_high", "verdict"]]

A record is a dictionary of numbers and text, one per row of such a frame. Losses are in nats per
token, times in seconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from attnres_cli.config import address
from attnres_cli.errors import UsageError, required, unknown
from attnres_cli.lab.held import Held
from attnres_cli.lab.listing import listed
from attnres_cli.records.listed import Record, as_records
from attnres_cli.store.store import Store
from attnres_cli.verdict.comparison import ArmResult, Comparison
from attnres_cli.verdict.qualified import qualifiers

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
        return as_records(listed(self._store, self._store.runs(curves=False)))

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
        """A record per arm of every comparison, the newest recipe's last; `qualified` is what
        the verdicts of the comparison must be read with.

        Args:
            baseline: the arm that the others are compared with.
            recipe: a name or digest; None: all recipes of the study.

        Raises:
            StudyError: the study holds no runs.
            UsageError: no such recipe or baseline in it.
        """
        held = Held(self._store, self.name, self._store.runs(curves=False))
        return [
            _verdict(comparison, arm)
            for chosen in held.every(recipe, baseline)
            for comparison in held.comparisons(chosen)
            for arm in comparison.arms
        ]

    def frame(self, table: Table = "verdicts") -> pd.DataFrame:
        """The records of `runs`, `curves` or `verdicts` as a data frame.

        Raises:
            UsageError: pandas is not installed, or there is no such table.
        """
        tables = {"runs": self.runs, "curves": self.curves, "verdicts": self.verdicts}
        if table not in tables:
            raise UsageError(unknown("table", table, tables))
        library = required("pandas", "pandas", "a data frame", UsageError)
        frame: pd.DataFrame = library.DataFrame(tables[table]())
        return frame


def _verdict(comparison: Comparison, arm: ArmResult) -> Record:
    terms, found = comparison.terms, arm.difference
    low, high = arm.interval or (None, None)
    return {
        "recipe": comparison.recipe,
        "recipe_digest": comparison.recipe_digest,
        "data": comparison.data.fingerprint,
        "match": terms.match,
        "tuned": terms.is_tuned,
        "rates_by_design": terms.by_design,
        "registered": comparison.registered,
        "baseline": comparison.baseline,
        "variant": arm.variant,
        "seeds": len(arm.pairs) or len(arm.losses),
        "loss": arm.mean,
        "sd": arm.sd,
        "difference": None if found is None else found.mean,
        "ci_low": low,
        "ci_high": high,
        "sees": arm.sees,
        "verdict": arm.verdict,
        "reason": arm.reason,
        "qualified": "; ".join(qualifiers(comparison)),
        "n_params": arm.n_params,
        "flops_per_token": arm.flops_per_token,
    }
