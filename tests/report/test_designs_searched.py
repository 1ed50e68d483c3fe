"""What a report of a search over designs says, of records made by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import searches
from comparisons import BASE, BETTER

from attnres_cli.records.search_records import Designs, Search
from attnres_cli.report.search_designs import report_of

TOKENS = (1000, 4000)
ABOUT = Designs(40, 1.0, TOKENS, "baseline0000", "settings0000")
LOSSES = {"hc": (2.2, 1.6), "delta": (2.3, 1.65), "mudd": (2.4, None)}


def looked(losses: Mapping[str, tuple[float, float | None]] = LOSSES, **changes: Any) -> Search:
    """A search with a look, or two, at each design."""
    trials = [
        replace(
            searches.trial(0, name, (6, 64, 4)),
            dimensions={"n_layers": 6, "stream": name, "tokens": tokens},
            recipe_digest=f"{name}{tokens}",
            values=(loss,),
        )
        for name, found in losses.items()
        for tokens, loss in zip(TOKENS, found, strict=True)
        if loss is not None
    ]
    families = [searches.family("designs", trials, sampler="tpe")]
    kept = {"designs": ABOUT, "budget": "params", "n_trials": 3, "first_seed": 1_000_100}
    return searches.search(families, **kept | changes)


def runs_of(search: Search) -> list[Any]:
    """The runs of its looks, and of the baseline's."""
    base = replace(search.families[0].trials[0], variant="standard", recipe_digest="baseline0000")
    trials = [*search.families[0].trials, base]
    return [searches.run(each, search.first_seed, each.values[0]) for each in trials]


def test_a_best_design_that_was_never_compared_has_not_been_found_without_a_verdict(
    make_arm, judge
):
    search = looked()
    arms = make_arm("standard", *BASE), make_arm("delta", *BETTER)

    def told(*compared: Any) -> str:
        return report_of(search, runs_of(search), *compared).text[0]

    for said in (told(), told(judge(*arms))):
        assert said.endswith(": hc, not compared on fresh seeds yet.")
    one_seed = judge(make_arm("standard", 1.5), make_arm("hc", 1.4))
    assert told(one_seed).endswith(": hc, compared without a verdict.")


def test_a_search_at_equal_time_says_what_was_compared_at_equal_tokens_and_how_times_were_taken():
    search = looked(objectives=("time",))
    runs = runs_of(search)
    another = replace(runs[0].result.settings, device_name="Another CPU")
    mixed = [replace(runs[0], result=replace(runs[0].result, settings=another)), *runs[1:]]

    told, apart, plain = (
        report_of(search, runs),
        report_of(search, mixed),
        report_of(looked(), runs),
    )

    assert "Fresh seeds are compared at equal tokens, first looks at equal time." in told.text[0]
    assert told.caveats[1].startswith("step times of looks are of single runs")
    assert "different machines" not in told.caveats[1]
    assert "on different machines: Another CPU, " in apart.caveats[1]
    assert len(plain.caveats) == 1
    assert "equal time" not in plain.text[0]


def noted(search: Search) -> str:
    return "\n".join(report_of(search, []).notes)


def test_notes_count_the_designs_that_there_are():
    few = replace(ABOUT, size=6, legal=0.5)
    assert "3 of 3 designs tried" in noted(looked(designs=few, n_trials=40))
    assert "3 of 30 designs tried" in noted(looked(n_trials=30))
    assert "3 of 40 designs tried" in noted(looked(n_trials=90))
    many = replace(ABOUT, size=5000, legal=0.001)
    assert "3 of 90 designs tried" in noted(looked(designs=many, n_trials=90))


def test_notes_name_all_fresh_seeds_and_none_where_there_are_none():
    more = noted(looked(confirm_seeds=(1, 2), earlier_seeds=(1, 2, 3, 4)))
    assert "fresh seeds: 1, 2; 3, 4 asked for before, which chose nothing" in more
    assert "fresh seeds: 1, 2, which chose nothing" in noted(looked(confirm_seeds=(1, 2)))
    assert "fresh seeds" not in noted(looked(confirm_seeds=()))
