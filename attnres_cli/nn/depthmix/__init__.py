"""The engine: weighted sums over depth. Variants say who reads what, the engine does the rest."""

from attnres_cli.nn.depthmix.engines import NAMES, use
from attnres_cli.nn.depthmix.history import History
from attnres_cli.nn.depthmix.scoring import Scoring

__all__ = ["NAMES", "History", "Scoring", "use"]
