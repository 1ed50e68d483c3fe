"""What a study says about one to come, as JSON, CSV or Markdown."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

from attnres_cli.report.comparison import METRIC, UNIT
from attnres_cli.stats.power import ALPHA, POWER, SEEDS, Pairing, seconds
from attnres_cli.verdict.seeds import Foresight, facts_of, headline, tables


def to_json(found: Foresight) -> str:
    """The JSON that scripts rely on; null where more than 10,000 seeds would be needed."""
    comparison, floor = found.comparison, found.noise
    data, (base, *arms) = comparison.data, found.runs
    document = {
        "recipe": comparison.recipe,
        "recipe_digest": comparison.recipe_digest,
        "data": {"source": data.source, "fingerprint": data.fingerprint, "bytes": data.n_bytes},
        "baseline": comparison.baseline,
        "metric": METRIC,
        "unit": UNIT,
        "noise": {"runs": floor.n, "mean": floor.mean, "sd": floor.sd, "sd_ci95": list(floor.ci95)},
        "gap": found.gap,
        "arms": found.n_arms,
        "alpha": ALPHA / found.n_arms,
        "power": POWER,
        "workers": found.workers,
        "numerics": found.numerics,
        "left_out": found.left_out,
        "run_s": {"baseline": base[1], "arms": [time for _, time in arms], "runs": found.n_timed},
        "pairings": [_pairing(row, found) for row in found.pairings],
    }
    return json.dumps(document, indent=2, allow_nan=False)


def _pairing(row: Pairing, found: Foresight) -> dict[str, Any]:
    cost: tuple[int, int, float] | tuple[None, None, None] = (None, None, None)
    if row.needed is not None:
        cost = seconds(row.needed, found.runs, found.workers)
    return {
        "correlation": row.correlation,
        "is_measured": row.n_arms > 0,
        "measured_arms": row.n_arms,
        "measured_pairs": row.n_pairs,
        "sd": row.sd,
        "seeds": row.needed,
        "seeds_ci95": list(row.range),
        "runs": cost[0],
        "to_train": cost[1],
        "seconds": cost[2],
        "detectable": {str(n): least for n, least in zip(SEEDS, row.detectable, strict=True)},
    }


def to_csv(found: Foresight) -> str:
    """One line per correlation; empty where there is no value."""
    text, rows = io.StringIO(), [_flat(row, found) for row in found.pairings]
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _flat(row: Pairing, found: Foresight) -> dict[str, Any]:
    cells = _pairing(row, found)
    low, high = cells.pop("seeds_ci95")
    detectable = cells.pop("detectable")
    return {
        "recipe": found.comparison.recipe,
        "recipe_digest": found.comparison.recipe_digest,
        "baseline": found.comparison.baseline,
        "gap": found.gap,
        "arms": found.n_arms,
        "noise_sd": found.noise.sd,
        **cells,
        "seeds_low": low,
        "seeds_high": high,
        **{f"detectable_{n}": least for n, least in detectable.items()},
    }


def to_markdown(found: Foresight) -> str:
    """What the terminal shows, for a page."""
    lines = [headline(found), ""]
    for title, names, rows in tables(found):
        lines += [f"### {title}", "", _line(names), _line(["---"] * len(names))]
        lines += [*(_line(row) for row in rows), ""]
    return "\n".join([*lines, *(f"- {line}" for line in facts_of(found))]) + "\n"


def _line(cells: list[str] | tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"
