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

_KEYS = ("params", "flops")
_MOST = {"params": 1e12, "flops": 1e27}  # what is beyond has shapes that nobody can list
_TOKENS_PER_PARAM = 20  # compute-optimal (Hoffmann et al. 2022, arXiv 2203.15556)
_SIZES = (0.25, 0.5, 1.0, 2.0, 4.0)  # of that model, where FLOPs alone are given


@dataclass(frozen=True)
class Budget:
    """Parameters of a model, FLOPs of its training; None: from the recipe, or searched."""

    text: str
    params: int | None
    flops: float | None

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
    for part in [part.strip() for text in texts for part in text.split(",") if part.strip()]:
        key, _, value = part.partition("=")
        if key not in _KEYS:
            raise UsageError("--budget: " + unknown("budget", key, _KEYS) + ", as params=2M")
        if key in found:
            raise UsageError(f"--budget: {key} is given twice")
        found[key] = _number(key, value)
    if not found:
        found["params"] = recipe_params
    params = int(found["params"]) if "params" in found else None
    flops = found.get("flops")
    texts = [] if params is None else [f"params={params}"]  # the same however it was typed
    texts += [] if flops is None else [f"flops={flops:g}"]
    return Budget(",".join(texts), params, flops)


def _number(key: str, text: str) -> float:
    value = parse_count(text)
    number = float(str(value)) if _is_number(value) else math.nan
    if not 0 < number <= _MOST[key] or (key == "params" and number != int(number)):
        kind = "a whole number of parameters, as 2M" if key == "params" else "a number, as 1e17"
        raise UsageError(f"--budget {key}: expected {kind}, up to {_MOST[key]:g}, got '{text}'")
    return number


def _is_number(value: object) -> bool:
    return re.fullmatch(r"\d{1,30}(\.\d{1,12})?([eE][+-]?\d{1,2})?", str(value)) is not None
