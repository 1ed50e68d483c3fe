"""A margin: the difference that does not matter, in nats per token or as a multiple of compute."""

from __future__ import annotations

import math
import re
from typing import Annotated

from pydantic import AfterValidator

from attnres_cli.errors import RecipeError

_TIMES = re.compile(r"(\d+(?:\.\d+)?)x")


def _checked(margin: float | str | None) -> float | str | None:
    """The margin as it was written; ValueError where it is none."""
    try:
        value = None if margin is None else float(str(margin).removesuffix("x"))
    except ValueError:
        value = math.nan
    is_times = isinstance(margin, str) and _TIMES.fullmatch(margin) is not None
    if value is not None and not (math.isfinite(value) and value > (1 if is_times else 0)):
        raise ValueError(
            f"a margin is a difference in nats per token, as 0.01, or of compute, as 1.05x, got "
            f"{margin!r}"
        )
    return margin


Margin = Annotated[float | str | None, AfterValidator(_checked)]
"""`0.01` in nats per token, `1.05x` of compute; None where none is given."""


def nats(margin: float | str, slope: float | None) -> float:
    """A margin in nats per token; `slope` is by how much the loss falls per e-fold of compute.
    Raises RecipeError where it is no margin, or one of compute without a slope.
    """
    try:
        _checked(margin)
    except ValueError as error:
        raise RecipeError(str(error)) from None
    if not (isinstance(margin, str) and margin.endswith("x")):
        return float(margin)
    if slope is None:
        raise RecipeError(
            f"--margin {margin}: by how much the loss falls with compute is not known of this "
            "recipe: give the margin in nats per token, as 0.01"
        )
    return slope * math.log(float(margin.removesuffix("x")))
