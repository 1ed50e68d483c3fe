"""Documents that share many stretches of bytes, and a split that keeps them together."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from attnres_cli.data import documents
from attnres_cli.data.documents import Document, name_hash
from attnres_cli.errors import DataError

Hashes = NDArray[np.uint64]

STRETCH = 64  # bytes: documents share as many in a row by chance only in boilerplate
ALIKE = 0.05  # share of the shorter document's stretches from which two are near-duplicates
_SAMPLED = np.uint64(8)  # compare one stretch in 8, the same ones in every document
_NEXT = 16  # compare each document with so many others that have the stretch
_FACTOR, _SHIFT = np.uint64(0x9E3779B97F4A7C15), np.uint64(29)


def hashes(tokens: NDArray[Any], n: int) -> Hashes:
    """64-bit hash of the n tokens that start at each position; n is a power of two."""
    return joined(mixed(tokens.astype(np.uint64) + np.uint64(1)), 1, n)


def joined(found: Hashes, m: int, n: int) -> Hashes:
    """Hashes of stretches of n tokens from those of m tokens: two halves make a whole."""
    while m < n:
        found = mixed(found[: max(0, len(found) - m)] * _FACTOR + found[m:])
        m *= 2
    return found


def mixed(values: Hashes) -> Hashes:
    """The values in place, each bit spread over all others: a product alone would keep patterns."""
    values ^= values >> _SHIFT
    values *= _FACTOR
    values ^= values >> _SHIFT
    return values


def clusters(contents: Sequence[bytes | memoryview]) -> list[int]:
    """A number for each document. Near-duplicates have the same number, as do their own
    near-duplicates.
    """
    kept = [_sample(np.frombuffer(content, np.uint8)) for content in contents]
    sizes, n = np.array([len(each) for each in kept]), len(kept)
    every = np.concatenate([*kept, np.zeros(0, np.uint64)])
    owners = np.repeat(np.arange(n), sizes)
    order = np.lexsort((owners, every))
    pairs, counts = np.unique(_pairs(every[order], owners[order], n), return_counts=True)
    one, other = np.divmod(pairs, max(1, n))
    alike = counts >= ALIKE * np.minimum(sizes[one], sizes[other])
    edges = coo_array((np.ones(int(alike.sum())), (one[alike], other[alike])), (n, n))
    return [int(number) for number in connected_components(edges, directed=False)[1]]


def _sample(content: NDArray[np.uint8]) -> Hashes:
    found = hashes(content, STRETCH)
    return distinct(found[found % _SAMPLED == 0])


def distinct(values: Hashes) -> Hashes:
    """The values in order, each once; np.unique of 4 million takes 7 s, of NumPy 2.4, this 0.1."""
    ordered = np.sort(values)
    return ordered[np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)])]


def _pairs(every: Hashes, owners: NDArray[np.int64], n: int) -> NDArray[np.int64]:
    """Pairs of documents that have a stretch, once per stretch; each pair is a number below n^2."""
    found = [np.zeros(0, np.int64)]
    for lag in range(1, min(_NEXT, len(every) - 1) + 1):
        same = every[lag:] == every[:-lag]
        found.append(owners[:-lag][same] * n + owners[lag:][same])
    return np.concatenate(found)


def without(
    train: Sequence[Document], val: Sequence[Document] | None, val_fraction: float, what: str
) -> tuple[list[Document], list[Document], str]:
    """Training and validation documents, each `what` once, and the rule in words. Validation
    documents that are near-duplicates of training documents train. If none would then validate,
    documents are split one by one.
    """
    every = [*train, *(val or ())]
    own = {_digest(each): each for each in reversed(every)}
    kept = [each for each in train if own.get(_digest(each)) is each]
    given = [each for each in val or () if own.get(_digest(each)) is each]
    n_copies = len(train) + len(val or ()) - len(kept) - len(given)
    numbers = clusters([each.content for each in (*kept, *given)])
    said = f"{n_copies:,} exact copies of {what}s left out"
    if val is None:
        found = parts(kept, numbers, val_fraction)
        halves = found or documents.parts(kept, val_fraction)
        split = documents.rule(*halves, val_fraction, what)
        together = "together" if found else "not together: one group would be most of it"
        return *halves, f"{split}; {said}, near-duplicates {together}"
    trained = set(numbers[: len(kept)])
    moved = {n for n in numbers[len(kept) :] if n in trained}
    pairs = list(zip(given, numbers[len(kept) :], strict=True))
    stay = [each for each, number in pairs if number not in moved]
    if not stay:
        raise DataError(
            f"every validation {what} is a near-duplicate of a training {what}: use other "
            "validation data, or leave data.deduplicate out"
        )
    train = [*kept, *(each for each, number in pairs if number in moved)]
    split = f"{what}s that train: {len(train)}, others that validate: {len(stay)}"
    return (
        train,
        stay,
        f"{split}; {said}, {len(given) - len(stay):,} near-duplicates moved to train",
    )


def _digest(document: Document) -> bytes:
    return hashlib.sha256(document.content).digest()


def parts(
    texts: Sequence[Document], numbers: Sequence[int], val_fraction: float
) -> tuple[list[Document], list[Document]] | None:
    """Training and validation documents, split by whole clusters. They validate in the order of the
    hashes of their first names, until they hold val_fraction of the bytes. A cluster of more than a
    tenth of that trains. None if the others hold less than half of what should validate.
    """
    wanted = val_fraction * sum(len(document.content) for document in texts)
    groups: dict[int, list[Document]] = {}
    for number, document in zip(numbers, texts, strict=True):
        groups.setdefault(number, []).append(document)
    chosen: set[str] = set()
    held = 0
    for group in sorted(groups.values(), key=lambda group: name_hash(group[0])):
        size = sum(len(document.content) for document in group)
        if size <= wanted / 10 and held < wanted:
            chosen |= {document.name for document in group}
            held += size
    if held < wanted / 2:
        return None
    train = [document for document in texts if document.name not in chosen]
    return train, [document for document in texts if document.name in chosen]
