"""A row of the verdict table: one schema, for every format and for notebooks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

from attnres_cli.records.comparison_terms import SHARED
from attnres_cli.records.evaluated import bits_per_byte
from attnres_cli.stats.multiples import Worth
from attnres_cli.stats.power import multiplier
from attnres_cli.verdict import fields, labels, pays
from attnres_cli.verdict.comparison import ArmResult, Comparison
from attnres_cli.verdict.fields import Field, Style, at
from attnres_cli.verdict.numbers import interval

ArmField = Field[ArmResult, Comparison]

STYLES: dict[str, Style] = {
    "better": "good", "worse": "bad", "equivalent": "good", "non-inferior": "good",
    "pending": "warning", "blocked": "warning", "baseline": "strong", "identical": "warning",
}  # fmt: skip


def loss_text(row: Any) -> str:
    """A row's `mean` and `sd` over seeds: `1.5721 ± 0.0041`."""
    mean, sd = at(row, "mean"), at(row, "sd")
    if mean is None or math.isnan(mean):
        return "-" if mean is None else "diverged"
    return f"{mean:.4f}" + ("" if sd is None else f" ± {sd:.4f}")


def difference_text(row: Any, value: str = "difference.mean", ends: str = "interval") -> str:
    """Mean paired difference and its interval, which stand at these places of a row:
    `-0.0210 [-0.0312, -0.0108]`; `-` where there is none.
    """
    found = at(row, value)
    return "-" if found is None else interval(found, at(row, ends), "+.4f")


def n_seeds(arm: ArmResult) -> int:
    """How many seeds a row is of."""
    return len(arm.pairs) or len(arm.losses)


def pairs_text(arm: ArmResult, comparison: Comparison) -> str:
    """How many seeds a row is of: `7`; `7 of 11` where the table has more."""
    n, every = n_seeds(arm), len(comparison.family.seeds)
    return str(n) if n == every else f"{n} of {every}"


def _detects(of: Comparison) -> bool:
    return any(arm.verdict == "inconclusive" and arm.detectable for arm in of.arms)


def _detectable(arm: ArmResult, of: Comparison) -> str:
    """What an inconclusive look finds with 80% power; by the slope of loss also in tokens."""
    if arm.verdict != "inconclusive" or arm.detectable is None:
        return "-"
    slope = of.rules.slope
    times = "" if slope is None else f" ({multiplier(arm.detectable, slope):.2f}x)"
    return f"{arm.detectable:.4f}{times}"


def worth_text(found: Worth | None) -> str:
    """`1.08x [1.04, 1.12]`; beyond the budgets that were measured `>2x [1.62, >2]`."""
    if found is None:
        return "-"
    value, low, high = (_times(end, found) for end in (found.value, found.low, found.high))
    return f"{value}x [{low}, {high}]"


def _times(end: float, found: Worth) -> str:
    beyond = f"<{found.least:.2g}" if end < found.least else f">{found.most:.2g}"
    return f"{end:.2f}" if 0 < end < math.inf else beyond


def _tokens(arm: ArmResult, of: Comparison) -> str:
    return "1.00x" if arm is of.base else worth_text(pays.tokens(arm, of))


def _time(arm: ArmResult, of: Comparison) -> str:
    return "1.00x" if arm is of.base else worth_text(pays.time(arm, of)).partition(" ")[0]


def _multiplier(name: Literal["tokens", "time"], part: str) -> ArmField:
    """A number of an arm's multiplier, for files."""
    return Field(
        f"multiplier_{name}{'' if part == 'value' else '_' + part}",
        lambda arm, of: (found := multipliers(arm, of)[name]) and found[part],
    )


def multipliers(arm: ArmResult, of: Comparison) -> dict[str, dict[str, float | None] | None]:
    """What an arm's difference is worth, for files: None beyond what was measured."""
    return {"tokens": _numbers(pays.tokens(arm, of)), "time": _numbers(pays.time(arm, of))}


def _numbers(found: Worth | None) -> dict[str, float | None] | None:
    if found is None:
        return None
    ends = {"value": found.value, "low": found.low, "high": found.high}
    return {name: end if 0 < end < math.inf else None for name, end in ends.items()}


def _params(arm: ArmResult, _: Comparison) -> str:
    return f"{arm.n_params:,}" + (f" ({arm.params_delta:+,})" if arm.params_delta else "")


def _bits(arm: ArmResult, of: Comparison) -> str:
    bits = bits_per_byte(arm.mean, of)
    return "-" if bits is None or math.isnan(bits) else f"{bits:.4f}"


RECIPE = Field[Any, Comparison]("recipe", lambda _, of: of.recipe)
DIGEST = Field[Any, Comparison]("recipe_digest", lambda _, of: of.recipe_digest)
FINGERPRINT = Field[Any, Comparison]("fingerprint", lambda _, of: of.data.fingerprint)
BASELINE = Field[Any, Comparison]("baseline", lambda _, of: of.baseline)
TERMS = Field[Any, Comparison]("terms", lambda _, of: labels.name(of.terms))
REGISTERED = Field[Any, Comparison]("registered", lambda _, of: of.registered)
"""What a row has of the comparison it is of."""

FIELDS: Sequence[ArmField] = (
    Field("variant", title="variant", kind="name"),
    Field(title="val loss", show=lambda arm, _: loss_text(arm)),
    Field(title="vs baseline [95% CI]", show=lambda arm, _: difference_text(arm)),
    Field("verdict", title="verdict", kind="word", style=STYLES),
    Field(
        title="tokens", show=_tokens, is_optional=True,
        applies=lambda of: any(pays.tokens(arm, of) for arm in of.arms),
    ),
    Field(
        title="time", show=_time, is_optional=True,
        applies=lambda of: any(pays.time(arm, of) for arm in of.arms),
    ),
    Field("reason"),
    Field(
        "own", "own.text", "its own", kind="word", is_optional=True,
        applies=lambda of: of.terms != SHARED,
    ),
    Field("n_seeds", lambda arm, _: n_seeds(arm), "n", pairs_text, is_optional=True),
    Field("mean"),
    Field("sd"),
    Field("difference", "difference.mean"),
    Field("difference_sd", "difference.sd"),
    Field("ci_low", "interval.0"),
    Field("ci_high", "interval.1"),
    *(_multiplier(name, part) for name in ("tokens", "time") for part in ("value", "low", "high")),
    Field("step_ratio", lambda arm, of: (r := of.step_ratios.get(arm.variant)) and r.median),
    Field("detectable", "", "detectable", _detectable, is_optional=True, applies=_detects),
    Field("look", "look.n"),
    Field("next_look", "look.next"),
    Field("alpha", "look.alpha"),
    Field("params", "n_params", "params", _params, is_optional=True),
    Field("params_delta"),
    Field(
        "bits_per_byte", lambda arm, of: bits_per_byte(arm.mean, of),
        "bits/byte", _bits, is_optional=True,
        applies=lambda of: bits_per_byte(0.0, of) is not None,
    ),
    Field("flops_per_token", "", "FLOPs/token", "{:.3g}", is_optional=True),
    Field("tokens"),
    Field("engines", lambda arm, _: " ".join(arm.engines)),
    RECIPE,
    Field("recipe_digest"),
    FINGERPRINT,
    BASELINE,
    TERMS,
    Field("unigram_loss", lambda _, of: of.data.unigram_loss),
    Field("bigram_loss", lambda _, of: of.data.bigram_loss),
    Field("floor", lambda _, of: of.data.floor),
    Field("zlib_bits_per_byte", lambda _, of: of.data.zlib_bits),
    Field("xz_bits_per_byte", lambda _, of: of.data.xz_bits),
    REGISTERED,
)  # fmt: skip
"""Losses in nats per token."""


def fields_of(comparison: Comparison) -> list[ArmField]:
    """The same, with a column for each of the lesser terms that the comparison stands beside."""
    place = fields.keys(FIELDS).index("own") + 3  # two before it are shown only
    return [*FIELDS[:place], *map(_on_lesser_terms, comparison.beside), *FIELDS[place:]]


def _on_lesser_terms(beside: Comparison) -> ArmField:
    at = "the recipe's settings" if beside.terms.by_design else "the shared rate"
    title = f"at {'its rate alone' if beside.terms.rate_only else at}"
    show = lambda arm, _: difference_text(beside.arm(arm.variant))  # noqa: E731
    return Field(title=title, show=show, is_optional=True)


def record(arm: ArmResult, comparison: Comparison, qualified: str) -> dict[str, Any]:
    """An arm's row as plain values, with what it must be read with."""
    return fields.record(FIELDS, arm, comparison) | {"qualified": qualified}
