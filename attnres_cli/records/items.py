"""What runs answer to the items of downstream tasks: one number per metric and item."""

from __future__ import annotations

import enum
import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass


class Kind(enum.StrEnum):
    """What an item asks for."""

    CHOICE = "choice"  # which of several answers is likeliest
    ANSWER = "answer"  # how likely one given answer is
    TEXT = "text"  # how likely a whole text is
    GENERATION = "generation"  # what the model writes, held against what is right


ACC = "acc"  # 1 where the right answer is the likeliest, else 0; of an ANSWER, of greedy decoding
ACC_NORM = "acc_norm"  # the same by likelihood per character
GOLD_NATS = "gold_nats"  # log-likelihood of the right answer, or of the text
GOLD_BYTES = "gold_bytes"  # its length in UTF-8
CHOICE_NATS = "choice_nats"  # log-probability of the right answer among the answers
N_CHOICES = "n_choices"  # answers there are
EXACT_MATCH = "exact_match"  # 1 where what was written is right, else 0

SHIPPED = ("cloze", "continuation", "recall")
"""Tasks that are made of a run's own data."""


@dataclass(frozen=True)
class Items:
    """What a run answered to the items of one task. A document's hash is the same in every run, so
    that items pair by it where `task` and `content` are equal. All metrics but GOLD_BYTES
    and N_CHOICES are better where they are higher; others than the above have the harness's names.
    """

    run_id: int
    task: str
    content: str  # 12 hex digits over how the task asks and scores, not over its documents
    kind: Kind
    doc_ids: tuple[int, ...]
    doc_hashes: tuple[str, ...]  # 16 hex digits each
    values: Mapping[str, tuple[float, ...]]  # metric: one per item, rounded to float32
    truncated: int  # items whose context was longer than the model's, and was cut from the left
    weights_sha256: str  # of the weights that answered
    harness: str  # version of lm-eval
    evaluated_at: str = ""  # UTC, ISO 8601

    @property
    def chance(self) -> float | None:
        """ACC of who guesses, 0 to 1; None where there are no answers to choose from."""
        found = self.values.get(N_CHOICES)
        return None if found is None else statistics.fmean(1 / n for n in found)

    @property
    def chance_nats(self) -> float | None:
        """CHOICE_NATS of who guesses."""
        found = self.values.get(N_CHOICES)
        return None if found is None else -statistics.fmean(map(math.log, found))

    def mean(self, metric: str) -> float:
        """Of the items with a number, nan without any; in bits per byte see `bits_per_byte`."""
        return statistics.fmean(self._finite(metric) or [math.nan])

    def standard_error(self, metric: str) -> float:
        """Of the mean, items taken as independent; nan of a single one."""
        values = self._finite(metric)
        return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan

    def _finite(self, metric: str) -> list[float]:
        return [value for value in self.values[metric] if math.isfinite(value)]

    @property
    def left_out(self) -> int:
        """Items that lack a number of a metric, such as nan: its mean leaves them out."""
        by_item = zip(*self.values.values(), strict=True)
        return sum(not all(map(math.isfinite, each)) for each in by_item)

    @property
    def answers(self) -> list[tuple[float, float]]:
        """Nats and bytes of the right answers, or texts, that have both."""
        pairs = zip(self.values[GOLD_NATS], self.values[GOLD_BYTES], strict=True)
        return [pair for pair in pairs if all(map(math.isfinite, pair))]

    @property
    def bits_per_byte(self) -> float | None:
        """Of all right answers, or texts, together; None where the task has none."""
        if GOLD_NATS not in self.values:
            return None
        n_bytes = math.fsum(size for _, size in self.answers)
        nats = math.fsum(nats for nats, _ in self.answers)
        return -nats / math.log(2) / n_bytes if n_bytes else None


@dataclass(frozen=True)
class Answered:
    """Who answered a task: a run, or weights in a folder."""

    label: str  # "run 3", or the folder
    variant: str
    seed: int
    items: Items
    is_new: bool = True  # else as the study had it
