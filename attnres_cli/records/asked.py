"""What a study was asked for: the tables that somebody has seen, of which one is shown."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Asked:
    """A table: of which recipe and data, from which baseline, on which terms (labels.name), by
    which margin (nats per token; empty where none was given).
    """

    recipe_digest: str
    fingerprint: str
    baseline: str
    terms: str
    margin: str
