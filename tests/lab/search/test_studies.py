"""Searches read back from Optuna's own tables."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import searches
from optuna.distributions import IntDistribution
from optuna.trial import FrozenTrial, create_trial

from attnres_cli.lab.search import studies
from attnres_cli.lab.search.studies import name_of, of_other_code, open_study, read
from attnres_cli.records.search_records import Designs, Search
from attnres_cli.store.optuna import optuna_storage
from attnres_cli.store.store import Store


def ended(number: int, loss: float, **more: object) -> FrozenTrial:
    mine = searches.trial(number, "standard", (number + 1, 96, 2))
    params = {"params": {"n_layers": 1}, "distributions": {"n_layers": IntDistribution(1, 40)}}
    attributes = {**studies.run_attributes(mine), **more}
    return create_trial(user_attrs=attributes, **params, value=loss)


def test_void_trials_are_left_out_and_extra_ones_marked(tmp_path: Path):
    void = ended(1, 0.1, **{studies.VOID: "its process died"})
    extra = ended(2, 2.5, **{studies.EXTRA: True})
    with optuna_storage(str(tmp_path / "study.db")) as storage:
        study = open_study(storage, searches.search(()), ["standard"], "standard")
        study.add_trials([ended(0, 2.0), void, extra])
    (search,) = read(str(tmp_path / "study.db"))
    found = [(t.number, t.values, t.is_extra) for t in search.families[0].trials]
    assert found == [(0, (2.0,), False), (2, (2.5,), True)]


def test_another_slope_is_another_search_and_without_one_names_are_as_they_were():
    about = Designs(12, 1.0, (1, 4), "a" * 12, "b" * 12)

    def named(designs: Designs) -> str:
        return name_of(searches.search((), designs=designs, codes=("c",)), ["designs"])

    assert named(about) == "fa542e8c"
    assert len({named(replace(about, slope=slope)) for slope in (None, 0.1, 0.2)}) == 3


def test_a_search_by_other_code_is_another_search_and_is_named(tmp_path: Path):
    path = str(tmp_path / "study.db")
    Store.open(path, create=True)

    def by(code: str, **changes: object) -> Search:
        search = replace(searches.search(()), codes=(code,), **changes)
        return replace(search, name=name_of(search, ["standard"]))

    old, now, other = by("old"), by("now"), by("old", budget="params=3M")
    with optuna_storage(path) as storage:
        for search in (old, other):
            open_study(storage, search, ["standard"], "standard")

    assert old.name != now.name
    (told,) = of_other_code(now, ["standard"], path)
    assert f"attnres report --recipe {old.name}" in told
    assert of_other_code(old, ["standard"], path) == []
    assert read(path)[0].codes == ("old",)
