"""Searches as Optuna's studies in the study's own database hold them; read back without torch.
There is one per variant, `attnres-<name of the search>-<variant>`. Its user attributes define the
search, those of a trial name its run.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from attnres_cli.records.search_records import Designs, Family, Search, State, Trial
from attnres_cli.store.optuna import asking, searches_to_read

if TYPE_CHECKING:
    from optuna import Study
    from optuna.storages import RDBStorage
    from optuna.trial import FrozenTrial

PREFIX = "attnres-"
VOID = "void"
"""Of a trial that never had a run, with the reason."""

EXTRA = "extra"
"""Of a trial beyond those asked for: a shape that was best for another variant."""

_DEFINED, _ASKED, _RUN = "attnres", "attnres_asked", "attnres_run"
_BEFORE = "; before: "  # in the text that names a sampler
_STATES = {
    "RUNNING": State.RUNNING,
    "WAITING": State.RUNNING,
    "COMPLETE": State.COMPLETE,
    "FAIL": State.FAILED,
}
_GROWS = ("n_trials", "confirm_seeds")  # of a search, without making it another one
_ASKED_FOR = (*_GROWS, "earlier_seeds", "families")


def _defined(search: Search) -> dict[str, Any]:
    """What makes a search another one, and its name."""
    held = {key: value for key, value in asdict(search).items() if key not in _ASKED_FOR}
    if search.designs is None:
        del held["designs"]
    else:
        del held["designs"]["compared_digest"]
        if search.designs.slope is None:
            del held["designs"]["slope"]
    return held


def name_of(search: Search, variants: Sequence[str]) -> str:
    """What a search is known by: a digest of all that decides what it may try and how it judges."""
    decides = _defined(search)
    del decides["name"]
    text = json.dumps([decides, list(variants)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def of_other_code(search: Search, variants: Sequence[str], study: str) -> list[str]:
    """What to say of searches that differ from this one in the code of designs alone."""
    others = [other for other in read(study) if other.name != search.name]
    alike = [replace(other, codes=search.codes) for other in others]
    names = [each.name for each in alike if name_of(each, variants) == search.name]
    report = "attnres report --recipe"
    return [f"search {name}, the same by other code, stays: `{report} {name}`" for name in names]


def open_study(storage: RDBStorage, search: Search, variants: Sequence[str], spec: str) -> Study:
    """Optuna's study of one variant, made if it is not there; it keeps what defines the search."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)  # a lost connection is told by us
    found = optuna.create_study(
        storage=storage,
        study_name=f"{PREFIX}{search.name}-{spec}",
        directions=["minimize"] * len(search.objectives),
        load_if_exists=True,
    )
    if _DEFINED not in found.user_attrs:
        defined = _defined(search) | {"variant": spec, "variants": list(variants)}
        found.set_user_attr(_DEFINED, defined)
    return found


def keep_asked(study: Study, search: Search, sampler: str) -> None:
    """Record what was asked last: trials, confirmation seeds, and the sampler if one is named. What
    was asked before stays: seeds, also those that are asked for again beside others.
    """
    before = study.user_attrs.get(_ASKED, {})
    asked = {
        "n_trials": search.n_trials,
        "confirm_seeds": list(search.confirm_seeds),
        "sampler": _samplers(before.get("sampler", ""), sampler),
        "earlier_seeds": _earlier_seeds(before, search),
    }
    if search.designs is not None:
        asked["compared_digest"] = search.designs.compared_digest
    if before != asked:
        study.set_user_attr(_ASKED, asked)


def run_attributes(trial: Trial) -> dict[str, Any]:
    """What a trial of Optuna says of its run."""
    kept = ("dimensions", "variant", "recipe_digest", "n_params", "flops")
    return {_RUN: {name: getattr(trial, name) for name in kept}}


def has_run(trial: FrozenTrial) -> bool:
    """Whether it says which run is its own."""
    return _RUN in trial.user_attrs and VOID not in trial.user_attrs


def rank(trial: FrozenTrial) -> tuple[int, int]:
    """Which of several trials of one point counts, the least: a complete one, and a failed one only
    if it was not tried again.
    """
    order = {"COMPLETE": 0, "FAIL": 2}
    return order.get(trial.state.name, 1), trial.number


def read(study: str) -> list[Search]:
    """The searches of a study, oldest first. A server that is away is asked again for a while."""
    return asking(study, partial(_read, study))


def _read(study: str) -> list[Search]:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)  # a lost connection is told by us
    with searches_to_read(study) as storage:
        if storage is None:
            return []
        by_name: dict[str, dict[str, Study]] = {}
        for name in optuna.get_all_study_names(storage):
            if name.startswith(PREFIX):
                held = optuna.load_study(study_name=name, storage=storage)
                if (defined := held.user_attrs.get(_DEFINED)) is not None:
                    by_name.setdefault(defined["name"], {})[defined["variant"]] = held
        return [_search(found) for found in by_name.values()]


def _search(studies: Mapping[str, Study]) -> Search:
    defined = next(iter(studies.values())).user_attrs[_DEFINED]
    found = {spec: studies[spec] for spec in defined["variants"] if spec in studies}
    asked = [study.user_attrs.get(_ASKED, {}) for study in found.values()]
    # A command may have died before it told all: the study that says the most is right.
    seeds: list[int] = max((each.get("confirm_seeds", []) for each in asked), key=len, default=[])
    ever = dict.fromkeys(seed for each in asked for seed in _seeds_of(each))
    again = {seed for each in asked for seed in each.get("earlier_seeds", ())}
    known = {field.name for field in fields(Search)} & defined.keys()
    kept: dict[str, Any] = {
        key: tuple(v) if isinstance(v := defined[key], list) else v for key in known
    }
    if of_designs := kept.get("designs"):
        own = {"tokens": tuple(of_designs["tokens"])}
        own["compared_digest"] = max(each.get("compared_digest", "") for each in asked)
        kept["designs"] = Designs(**of_designs | own)
    return Search(
        **kept,
        n_trials=max((each.get("n_trials", 0) for each in asked), default=0),
        confirm_seeds=tuple(seeds),
        earlier_seeds=tuple(seed for seed in ever if seed in again or seed not in seeds),
        families=tuple(_family(spec, study) for spec, study in found.items()),
    )


def _samplers(before: str, now: str) -> str:
    """The sampler with its reason, and the names of others that proposed before it: `gp: as asked;
    before: tpe`.
    """
    if not now or not before:
        return now or before
    last, _, earlier = before.partition(_BEFORE)
    kinds = dict.fromkeys([*filter(None, earlier.split(", ")), last.partition(":")[0]])
    others = [kind for kind in kinds if kind != now.partition(":")[0]]
    return now + (f"{_BEFORE}{', '.join(others)}" if others else "")


def _earlier_seeds(before: Mapping[str, Any], search: Search) -> list[int]:
    """The seeds of other commands than this one."""
    if before.get("confirm_seeds") == list(search.confirm_seeds):
        return list(before.get("earlier_seeds", ()))
    return _seeds_of(before)


def _seeds_of(asked: Mapping[str, Any]) -> list[int]:
    """All seeds that have ever been asked for, to confirm."""
    every = [*asked.get("earlier_seeds", ()), *asked.get("confirm_seeds", ())]
    return list(dict.fromkeys(every))


def _family(spec: str, study: Study) -> Family:
    found = sorted(filter(has_run, study.get_trials(deepcopy=False)), key=rank)
    runs = [(_run(trial), trial) for trial in found]
    first = dict(reversed(runs))  # of a race of two processes one has won
    wanted = {run for run, trial in runs if EXTRA not in trial.user_attrs}
    trials = [
        Trial(
            trial.number,
            state := _STATES[trial.state.name],
            **trial.user_attrs[_RUN],
            values=tuple(trial.values or ()) if state is State.COMPLETE else (),
            is_extra=run not in wanted,
        )
        for run, trial in first.items()
    ]
    asked = study.user_attrs.get(_ASKED, {})
    in_order = sorted(trials, key=lambda trial: trial.number)
    return Family(spec, tuple(in_order), asked.get("sampler", ""))


def _run(trial: FrozenTrial) -> tuple[str, str]:
    """What tells its run from those of other points."""
    held = trial.user_attrs[_RUN]
    return held["recipe_digest"], held["variant"]
