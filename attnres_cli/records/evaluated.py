"""What an evaluation predicts: tokens, and the bytes of their text."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from attnres_cli.records.run import DataDescription


@dataclass(frozen=True)
class Evaluated:
    """Tokens that every evaluation under a recipe predicts, and the UTF-8 bytes of their text."""

    n_tokens: int
    n_bytes: int


class HasLosses(Protocol):
    """What has losses in nats per token."""

    @property
    def data(self) -> DataDescription:
        """Of what tokens."""

    @property
    def evaluated(self) -> Evaluated | None:
        """None where a token is a byte, or where bytes are not known."""


def bits_per_byte(loss: float, of: HasLosses) -> float | None:
    """Nats per token in bits per byte of text; None where the bytes of tokens are not known."""
    bits = loss / math.log(2)
    if of.evaluated is not None:
        return bits * of.evaluated.n_tokens / of.evaluated.n_bytes
    return bits if of.data.is_bytes else None
