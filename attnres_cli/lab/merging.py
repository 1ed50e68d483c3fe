"""Studies brought together: their rows in one transaction, then the files of their runs."""

from __future__ import annotations

from collections.abc import Sequence

from attnres_cli.records.merged import Fate, Merged
from attnres_cli.records.run import WAITS, weights_file
from attnres_cli.store.store import Store
from attnres_cli.train.checkpoint import bring

_THEIRS = (Fate.ADDED, Fate.REPLACED, Fate.EQUAL)


def merge(sources: Sequence[Store], target: Store) -> list[list[Merged]]:
    """Bring the runs of these studies into the target, with weights and checkpoints; what became of
    the runs of each. A second time it copies the files that a first one, cut short, has not. Raises
    StudyError where two results cannot both be right: nothing is changed then.
    """
    found = target.merge([source.holding() for source in sources])
    here = {record.id: record for record in target.runs(curves=False)}
    for source, merged in zip(sources, found, strict=True):
        there = {record.id: record for record in source.runs(curves=False)}
        for each in merged:
            if each.here not in here or each.there not in there:
                continue  # not brought, or removed a moment ago
            old, new = there[each.there], here[each.here]
            if each.fate in _THEIRS or new.status in WAITS:
                sha256 = old.result.weights_sha256 if old.result else None
                folders = source.folder_of(old), target.folder_of(new)
                bring(*folders, weights=weights_file(sha256))
    return found
