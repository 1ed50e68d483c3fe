"""What a study holds, read once, and the comparisons that follow from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from attnres_cli.errors import StudyError
from attnres_cli.records.run import RunRecord
from attnres_cli.store.store import Store
from attnres_cli.verdict.chapter import Chapter
from attnres_cli.verdict.comparison import Comparison
from attnres_cli.verdict.ladder import Ladder, ladder
from attnres_cli.verdict.registered import EXPLORATORY, compared
from attnres_cli.verdict.select import Choice, choose, every


@dataclass
class Held:
    """What a study holds. `study` is its name as it was typed, `records` its runs, or those of them
    that are to be chosen from, without curves.
    """

    store: Store
    study: str
    records: list[RunRecord]

    def __post_init__(self) -> None:
        self._own = self.store.arm_recipes()
        self._registrations = self.store.registrations()

    def choose(self, recipe: str | None, baseline: str) -> Choice:
        """The runs under one recipe, by default the newest; see `select.choose`."""
        return choose(self.records, self.study, recipe, baseline, self._canonical, self._own)

    def every(self, recipe: str | None, baseline: str) -> list[Choice]:
        """The runs under each recipe that is meant, by default all, those of the newest last."""
        newest = self.choose(recipe, baseline)
        return every(newest, self.records, recipe, baseline, self._canonical, self._own)

    def _canonical(self, spec: str, digest: str) -> str:
        from attnres_cli.lab.grid import canonical  # with torch, which reports need only for this

        return canonical(spec, self.store.recipe(digest))

    def comparisons(self, chosen: Choice) -> list[Comparison]:
        """The comparisons under a recipe, the preregistered one first."""
        data = self.store.data(chosen.fingerprint)
        return compared(chosen, self.records, data, self._own, self._registrations)

    def chapters(self, chosen: Choice, *, whole: bool) -> list[Chapter]:
        """The comparisons under a recipe, each with its runs; the `whole` ones with what pages and
        figures show besides.
        """
        found = [Chapter(one, study=self.study) for one in self.comparisons(chosen)]
        return [self._whole(one) for one in found] if whole else found

    def _whole(self, chapter: Chapter) -> Chapter:
        """A chapter with curves, recipes and the last probes."""
        store, held = self.store, chapter.comparison
        ids = [run.id for run in held.records]
        last = {number: probes[-1] for number, probes in store.probes(ids).items() if probes}
        digests = {run.recipe_digest for run in held.records} | {held.recipe_digest}
        recipes = {digest: store.recipe(digest) for digest in digests}
        curved = {run.id: run for run in store.runs(ids=ids)}  # without those removed just now
        held = replace(held, records=tuple(curved.get(run.id, run) for run in held.records))
        return replace(chapter, comparison=held, probes=last, recipes=recipes)

    def ladder(self, chosen: Choice) -> Ladder:
        """All sizes of a recipe's name. Raises StudyError where there is but one."""
        name, data = chosen.records[-1].recipe, self.store.data(chosen.fingerprint)
        recipe_of = self.store.recipe
        sizes = ladder(self.records, name, data, chosen.baseline, recipe_of, self._own)
        return replace(sizes, registered=EXPLORATORY if self._registrations else "")

    def ladders(self, shown: Sequence[Choice]) -> list[Ladder]:
        """Of each recipe's name and data, what its sizes say together, if it has several."""
        found = []
        keys = {(chosen.records[-1].recipe, chosen.fingerprint): chosen for chosen in shown}
        for chosen in reversed(keys.values()):
            try:
                found.append(self.ladder(chosen))
            except StudyError:  # one size
                continue
        return found
