"""What every shape of a search costs: parameters, training FLOPs, or both."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from attnres_cli.config.sections import parse_count
from attnres_cli.errors import UsageError, unknown

TOLERANCE = 0.005
"""The share by which a shape may miss its budget, as with `ablate --match params`."""

_MOST = {"params": 1e12, "flops": 1e27}  # what is beyond has shapes that nobody can list
_EXPECTED = {"params": "a whole number of parameters, as 2M", "flops": "a number, as 1e17"}
_NUMBER = re.compile(r"\d{1,30}(\.\d{1,12})?([eE][+-]?\d{1,2})?")
_TOKENS_PER_PARAM = 20  # compute-optimal (Hoffmann et al. 2022, arXiv 2203.15556)
_SIZES = (0.25, 0.5, 1.0, 2.0, 4.0)  # of that model, where FLOPs alone are given


@dataclass(frozen=True)
class Budget:
    """Parameters of a model, FLOPs of its training; None: from the recipe, or searched."""

    params: int | None
    flops: float | None

    @property
    def text(self) -> str:
        """The same however it was typed."""
        params = [] if self.params is None else [f"params={self.params}"]
        return ",".join([*params, *([] if self.flops is None else [f"flops={self.flops:g}"])])

    def sizes(self) -> tuple[int, ...]:
        """The parameters to try: the budget's, or where it is of FLOPs alone five sizes by factors
        of 2 around the compute-optimal one, of 20 tokens per parameter.
        """
        if self.params is not None:
            return (self.params,)
        assert self.flops is not None
        optimal = math.sqrt(self.flops / (6 * _TOKENS_PER_PARAM))
        return tuple(max(1, int(float(f"{optimal * factor:.3g}"))) for factor in _SIZES)


def parse(texts: Sequence[str], recipe_params: int) -> Budget:
    """The budget of `params=2M`, `flops=1e17` or both; by default the recipe's own size."""
    if any(not text.strip(" ,") for text in texts):
        raise UsageError(
            "--budget is empty: leave it out for the recipe's own size, or give one, as params=2M"
        )
    found: dict[str, float] = {}
    for part in filter(None, (part.strip() for text in texts for part in text.split(","))):
        key, _, value = part.partition("=")
        if key not in _MOST:
            raise UsageError("--budget: " + unknown("budget", key, tuple(_MOST)) + ", as params=2M")
        if key in found:
            raise UsageError(f"--budget: {key} is given twice")
        count = str(parse_count(value))
        number = float(count) if _NUMBER.fullmatch(count) else math.nan
        if not 0 < number <= _MOST[key] or (key == "params" and number != int(number)):
            expected = f"expected {_EXPECTED[key]}, up to {_MOST[key]:g}"
            raise UsageError(f"--budget {key}: {expected}, got '{value}'")
        found[key] = number
    params = found.get("params", None if found else recipe_params)
    return Budget(None if params is None else int(params), found.get("flops"))
