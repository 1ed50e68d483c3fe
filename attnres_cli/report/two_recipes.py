"""Two recipes side by side, as a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attnres_cli.config.as_typed import differing, settings
from attnres_cli.records.evaluated import bits_per_byte
from attnres_cli.report.comparison import UNIT
from attnres_cli.report.table import Report, tabled
from attnres_cli.stats.pairs import mean_sd
from attnres_cli.stats.sequential import LEAST_SEEDS
from attnres_cli.verdict.fields import Field, picked, record
from attnres_cli.verdict.rows import difference_text, loss_text
from attnres_cli.verdict.two_recipes import Row, Side

_PAIRED = (
    f"B minus A: mean difference in {UNIT}, paired by seed; below 0 B has the lower loss. The "
    "intervals of all designs that are paired here hold together with 95 % probability for two "
    "recipes and seeds that were chosen beforehand and are looked at once: that is not known here, "
    "so no word is said",
    "one seed gives both recipes the same order of batches where the shape of a batch is the same, "
    "and the same initial weights where that of the model is; else pairing only costs freedom",
    f"an interval takes {LEAST_SEEDS} seeds in common",
)
_OTHER_DATA = "on other data: these losses are of other tokens, so none is subtracted from another"
_FEW = 4  # designs that are named
_SIDE = "name=recipe.name digest=recipe.digest data=data.fingerprint"
_IN_BYTES = (
    "bits/byte: of the UTF-8 text of the evaluated tokens, which compares tokenizers on one text; "
    "windows of two tokenizers are not the same, so no interval is given"
)
_Arm = dict[str, Any]


def _bits(name: str, place: int) -> Field[_Arm, Sequence[Side]]:
    """The losses of one side in bits per byte; a column where a tokenizer's bytes are known."""

    def value(row: _Arm, of: Sequence[Side]) -> float | None:
        mean = row[name]["mean"]
        return None if mean is None else bits_per_byte(mean, of[place])

    return Field(
        f"bits_per_byte_{name}", value, f"{name.upper()} bits/byte", "{:.4f}", applies=_in_bytes
    )


def _in_bytes(sides: Sequence[Side]) -> bool:
    return any(side.evaluated for side in sides)


def _on_one_text(sides: Sequence[Side]) -> bool:
    return len({side.data.fingerprint for side in sides}) == 1


_FIELDS: Sequence[Field[_Arm, Sequence[Side]]] = (
    Field("variant", title="variant", kind="code"),
    Field("mean_a", "a.mean", "A", lambda row, _: loss_text(row["a"])),
    Field("sd_a", "a.sd"),
    Field("n_a", "a.n"),
    Field("mean_b", "b.mean", "B", lambda row, _: loss_text(row["b"])),
    Field("sd_b", "b.sd"),
    Field("n_b", "b.n"),
    Field(
        "difference",
        title="B minus A [interval]",
        show=lambda row, _: difference_text(row, "difference"),
        applies=_on_one_text,
    ),
    Field("ci_low", "interval.0"),
    Field("ci_high", "interval.1"),
    Field(title="n", show=lambda row, _: _n(row), kind="word"),
    *(_bits(name, place) for place, name in enumerate("ab")),
    Field("reason", title="why no interval", kind="text", applies=_on_one_text),
    Field("recipe_a", lambda _, of: of[0].recipe.digest),
    Field("recipe_b", lambda _, of: of[1].recipe.digest),
)


def report_of(first: Side, second: Side, rows: Sequence[Row]) -> Report:
    """The designs under both recipes."""
    sides = first, second
    names = [f"{side.recipe.name} ({side.recipe.digest})" for side in sides]
    keys = differing([side.recipe for side in sides])
    differ = {key: [settings(side.recipe).get(key) for side in sides] for key in keys}
    text = [
        f"{letter}: recipe {name}, data {side.data.called}"
        for letter, name, side in zip("AB", names, sides, strict=True)
    ]
    text.append(f"what differs: {_differences(differ)}")
    arms = [_arm(row) for row in rows]
    notes = [*_PAIRED] if _on_one_text(sides) else [_OTHER_DATA]
    notes += [_IN_BYTES] if _in_bytes(sides) else []
    return Report(
        title=f"recipes {' and '.join(names)} side by side",
        text=text,
        tables=[tabled("validation loss, mean ± sd over seeds", _FIELDS, arms, sides)],
        notes=notes,
        document={
            "recipes": [picked(side, _SIDE) for side in sides],
            "differ": differ,
            "unit": UNIT,
            "arms": arms,
            "notes": [*text, *notes],
        },
        records=[record(_FIELDS, arm, sides) for arm in arms],
        question="What does the other recipe change for each design?",
    )


def _differences(differ: Mapping[str, Sequence[Any]]) -> str:
    """Key by key; of settings by design, which may be dozens, for which designs."""
    parts, designs = [], dict[str, None]()
    for key, values in differ.items():
        if key.startswith("arms."):
            designs[key.removeprefix("arms.").partition(".optim.")[0]] = None
            continue
        a, b = ("nothing" if value is None else value for value in values)
        parts.append(f"{key} {a} in A, {b} in B")
    if designs:
        of = ", ".join(designs) if len(designs) <= _FEW else f"{len(designs)} designs"
        parts.append(f"settings by design of {of}")
    return "; ".join(parts) or "no setting"


def _arm(row: Row) -> _Arm:
    found = {}
    for name, losses in zip("ab", row.losses, strict=True):
        mean, sd = mean_sd([*losses.values()]) if losses else (None, None)
        found[name] = {"n": len(losses), "mean": mean, "sd": sd, "losses": losses}
    return found | picked(row, "variant difference interval reason")


def _n(row: Mapping[str, Any]) -> str:
    a, b = row["a"]["n"], row["b"]["n"]
    return str(a) if a == b else f"{a} and {b}"
