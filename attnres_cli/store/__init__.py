"""The study: every run with its recipe, data, curve, provenance. Rows never leave this package."""

from attnres_cli.store.owner import BEAT_S
from attnres_cli.store.retry import patiently, retry_s
from attnres_cli.store.store import Store

__all__ = ["BEAT_S", "Store", "patiently", "retry_s"]
