"""Texts as tokens, for tests."""

from __future__ import annotations

from attnres_cli.data.documents import Document, parts
from attnres_cli.data.tokens import Streams, of_bytes


def split(source: str, documents: list[Document], val_fraction: float) -> Streams:
    """Their bytes as tokens, split by document."""
    return of_bytes(source, *parts(documents, val_fraction))
