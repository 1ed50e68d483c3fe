"""How long a training step of an arm takes, as a multiple of the baseline's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class StepRatio:
    """Of n pairs of steps, timed in turn: the median ratio with its quartiles."""

    n: int
    median: float
    low: float
    high: float

    @classmethod
    def of(cls, ratios: Sequence[float]) -> StepRatio:
        """Of these ratios, one or more."""
        import numpy as np  # 0.1 s, which lists of runs do not wait for

        low, median, high = np.quantile(np.array(ratios), (0.25, 0.5, 0.75)).tolist()
        return cls(len(ratios), median, low, high)

    @property
    def error(self) -> float:
        """Half the 95 % interval of the median's logarithm, by the quartiles, of normal noise."""
        sd = math.log(self.high / self.low) / 1.349
        return 1.96 * 1.2533 * sd / math.sqrt(self.n)


@dataclass(frozen=True)
class TimedArm:
    """An arm's ratio as a study holds it: of which arms, under which recipe, and how computed."""

    recipe_digest: str
    variant: str
    baseline: str
    numerics: str
    device_name: str
    n: int
    median: float
    low: float
    high: float

    @property
    def ratio(self) -> StepRatio:
        """The ratio alone."""
        return StepRatio(self.n, self.median, self.low, self.high)
