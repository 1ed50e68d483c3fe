"""Several arrays read as one, without being copied into one: shards that lie on disk."""

from __future__ import annotations

import bisect
from collections.abc import Sequence

import numpy as np

from attnres_cli.data.tokens import Array


class Chain:
    """The tokens of all parts, one after the other. A slice copies what it spans, no more."""

    def __init__(self, parts: Sequence[Array]) -> None:
        self.parts = tuple(parts)
        self.ends = np.cumsum([len(part) for part in parts]).tolist()

    def __len__(self) -> int:
        return self.ends[-1] if self.ends else 0

    def __getitem__(self, wanted: slice) -> Array:
        start, stop, step = wanted.indices(len(self))
        assert step == 1
        found = []
        while start < stop:
            shard = bisect.bisect_right(self.ends, start)
            first = self.ends[shard] - len(self.parts[shard])
            end = min(stop, self.ends[shard])
            found.append(self.parts[shard][start - first : end - first])
            start = end
        if len(found) == 1:
            return found[0]
        return np.concatenate(found) if found else np.zeros(0, dtype=np.int64)

    def cut(self, at: int) -> tuple[Chain, Chain]:
        """The first `at` tokens, and the others; nothing is copied."""
        before, after, first = [], [], 0
        for part in self.parts:
            where = min(max(at - first, 0), len(part))
            before.append(part[:where])
            after.append(part[where:])
            first += len(part)
        return Chain([p for p in before if len(p)]), Chain([p for p in after if len(p)])
