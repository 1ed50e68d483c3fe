"""Designs on several texts, as a report: a word for each text, and whether the texts agree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attnres_cli.records.comparison_terms import stated
from attnres_cli.report.comparison import UNIT
from attnres_cli.report.table import Report, grouped, listed, tabled
from attnres_cli.verdict import labels
from attnres_cli.verdict.caveats import n_read, qualifiers
from attnres_cli.verdict.comparison import Comparison
from attnres_cli.verdict.fields import Field, Style, picked, record
from attnres_cli.verdict.numbers import interval, plural
from attnres_cli.verdict.rows import STYLES, difference_text
from attnres_cli.verdict.texts import OnTexts, Texts, on_texts

_STYLES: dict[str, Style] = {"agree": "good", "differ": "bad", "other size": "warning"}
_RULES = (
    f"words and differences ({UNIT}) are those of each text's own table, whose intervals hold "
    "together within it",
    "texts apart: how much the difference from the baseline changes between the two texts that are "
    "furthest apart, with the interval of Welch's t; the intervals of this table hold together "
    "with 95 % probability at one look",
    "agree: one word on all texts, and no text shown to be apart; other size: one word, but the "
    "differences are apart; differ: apart without one word, better or worse; open: all else",
)


def reports_of(comparisons: Sequence[Comparison]) -> list[Report]:
    """The tables over the texts of these comparisons; nothing where all are of one text."""
    return [report_of(each) for each in on_texts(comparisons)]


def report_of(texts: Texts) -> Report:
    """The designs that several texts have."""
    first, fields = texts.comparisons[0], _fields(texts)
    of_each = [", ".join(labels.parts(one.terms)) for one in texts.comparisons]
    alike, said = len(set(of_each)) == 1, answer(texts)
    terms = f", {of_each[0]}" if alike and of_each[0] else ""
    title = f"{plural(len(texts.names), 'text')}: {', '.join(texts.names)}{terms}, never pooled"
    caveats = qualified(texts)
    return Report(
        title=title,
        text=[said],
        caveats=caveats,
        tables=[
            tabled("by text: the word, and the difference [interval]", fields, texts.rows, texts)
        ],
        notes=list(_RULES),
        document={
            "title": title,
            "answer": said,
            "qualified": caveats,
            "baseline": first.baseline,
            "unit": UNIT,
            "texts": [
                {"name": name, "terms": stated(one.terms)}
                | picked(one, "recipe recipe_digest fingerprint=data.fingerprint registered")
                for name, one in zip(texts.names, texts.comparisons, strict=True)
            ],
            "arms": [_arm(row, texts) for row in texts.rows],
            "notes": list(_RULES),
        },
        records=[record(fields, row, texts) for row in texts.rows],
        question="Do the texts agree on which residual connection is better?",
    )


def qualified(texts: Texts) -> list[str]:
    """What the words must be read with, that of single texts by name."""
    every, n = texts.comparisons, len(texts.names)
    terms = [", ".join(labels.parts(one.terms)) or "one recipe for every arm" for one in every]
    lines = [
        [*([what] if len(set(terms)) > 1 else []), *qualifiers(one, n_read(one, every))]
        for what, one in zip(terms, every, strict=True)
    ]
    pairs = zip(texts.names, lines, strict=True)
    at = grouped((line, name) for name, mine in pairs for line in mine)
    return [line if len(on) == n else f"{listed(on)}: {line}" for line, on in at.items()]


def answer(texts: Texts) -> str:
    """What holds on all texts, and on which designs they differ."""
    base, n = texts.comparisons[0].baseline, len(texts.rows)
    on = f"On {plural(len(texts.names), 'text')}, of {plural(n, 'design')} beside {base}:"
    told = []
    for word in ("better", "worse", "equivalent", "non-inferior"):
        for where in ("all", "all that have it"):
            names = [
                row.variant
                for row in texts.rows
                if row.agreement != "open" and _words(row) == {word}
                if (None not in row.at) == (where == "all")
            ]
            told += [f"{word} on {where}: {listed(names)}"] if names else []
    differ = [row for row in texts.rows if row.agreement == "differ"]
    for row in differ:
        at = zip(row.at, texts.names, strict=True)
        words = [f"{arm.verdict} on {name}" for arm, name in at if arm is not None]
        told.append(f"the texts differ on {row.variant} ({listed(words)})")
    if left := sum(row.agreement == "open" for row in texts.rows):
        told.append(f"{left} {'is' if left == 1 else 'are'} open")
    return f"{on} {'; '.join(told)}." if told else f"{on} none is told apart."


def _words(row: OnTexts) -> set[str]:
    return {arm.verdict for arm in row.at if arm is not None}


def _between(row: OnTexts, texts: Texts) -> str:
    """`+0.0120 [+0.0010, +0.0230]`; of more than two texts, also which two."""
    if row.between is None or row.places is None:
        return "-"
    text = interval(*row.between, "+.4f")
    earlier, later = (texts.names[place] for place in row.places)
    return text if len(texts.names) == 2 else f"{text} ({earlier} to {later})"


def _fields(texts: Texts) -> list[Field[OnTexts, Texts]]:
    """Words, whether they agree, and the numbers behind both."""
    words, numbers = list[Field[OnTexts, Texts]](), list[Field[OnTexts, Texts]]()
    for place, name in enumerate(texts.names):

        def word(row: OnTexts, _: Texts, place: int = place) -> str:
            arm = row.at[place]
            return "-" if arm is None else arm.verdict

        def difference(row: OnTexts, _: Texts, place: int = place) -> str:
            return difference_text(row.at[place])

        at = f"at.{place}"
        words.append(Field(f"verdict_{name}", word, name, word, "word", style=STYLES))
        numbers += [
            Field(title=f"{name}: difference", show=difference, is_optional=True),
            Field(f"difference_{name}", f"{at}.difference.mean"),
            Field(f"low_{name}", f"{at}.interval.0"),
            Field(f"high_{name}", f"{at}.interval.1"),
        ]
    return [
        Field("variant", title="variant", kind="code"),
        *words,
        Field("agreement", title="texts", kind="word", style=_STYLES),
        Field("apart", "between.0", "texts apart [95%]", _between),
        Field("apart_low", "between.1.0"),
        Field("apart_high", "between.1.1"),
        *numbers,
    ]


def _arm(row: OnTexts, texts: Texts) -> dict[str, Any]:
    """A design as JSON has it."""
    names = [None if row.places is None else texts.names[place] for place in row.places or ()]
    apart = None
    if row.between is not None:
        mean, ends = row.between
        apart = {"mean": mean, "interval": ends, "from": names[0], "to": names[1]}
    at = {
        name: None if arm is None else picked(arm, "verdict difference=difference.mean interval")
        for name, arm in zip(texts.names, row.at, strict=True)
    }
    return {"variant": row.variant, "agreement": row.agreement, "apart": apart, "texts": at}
