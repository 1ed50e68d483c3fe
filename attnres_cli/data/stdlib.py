"""The second edition of the standard library's text. It leaves out files that programs wrote, and
the split keeps near-duplicates together.
"""

from __future__ import annotations

import hashlib

from attnres_cli.data import cache, documents, duplicates
from attnres_cli.data.documents import Document
from attnres_cli.data.machine_written import is_machine_written

_RULE = b"stdlib 2.1"  # another rule, another key in the cache


def halves(val_fraction: float) -> tuple[list[Document], list[Document], str]:
    """Training and validation documents of edition 2, and how they were chosen, in words."""
    every = documents.standard_library()
    digest = hashlib.sha256(_RULE)
    for each in every:
        digest.update(b"%d %s %d " % (len(each.name), each.name.encode(), len(each.content)))
        digest.update(each.content)
    numbers = cache.remembered(digest.hexdigest()[:32], lambda: _numbers(every))
    kept = [(each, n) for each, n in zip(every, numbers, strict=True) if n is not None]
    texts = [each for each, _ in kept]
    found = duplicates.parts(texts, [number for _, number in kept], val_fraction)
    train, val = found or documents.parts(texts, val_fraction)
    split = documents.rule(train, val, val_fraction, "file")
    if found is not None:
        split += ", near-duplicates together"
    n_out = len(every) - len(texts)
    return train, val, f"{split}; edition 2: {n_out} files that programs wrote are left out"


def _numbers(every: list[Document]) -> list[int | None]:
    """The cluster of each document; None if a program wrote it."""
    texts = [each for each in every if not is_machine_written(bytes(each.content))]
    numbers = dict(
        zip(
            [each.name for each in texts],
            duplicates.clusters([each.content for each in texts]),
            strict=True,
        )
    )
    return [numbers.get(each.name) for each in every]
