"""A search of which every run was really trained, told from the study alone."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
import searches
from commands import attnres

from attnres_cli.config.recipe import load
from attnres_cli.records.run import RunRecord
from attnres_cli.records.search_records import Family, Search
from attnres_cli.report.formats import to_json
from attnres_cli.report.search import report_of
from attnres_cli.store.store import Store
from attnres_cli.verdict.optima import find

SIZES = ((2, 32, 2), (3, 24, 2))
VARIANTS = ("standard", "attnres")


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What the command prints; it has to end well."""
    code, out, err = attnres(capsys, *arguments)
    assert code == 0
    return out + err


def overrides(sizes: tuple[int, int, int]) -> list[str]:
    n_layers, d_model, n_heads = sizes
    sizes_set = [f"model.n_layers={n_layers}", f"model.d_model={d_model}"]
    return [*sizes_set, f"model.n_heads={n_heads}", "model.d_ff=64", "train.tokens=4k"]


def search_of(runs: list[RunRecord]) -> Search:
    """As if Optuna had proposed these shapes."""
    families = []
    for variant in VARIANTS:
        trials = []
        for number, sizes in enumerate(SIZES):
            digest = load("smoke", overrides(sizes)).digest
            first = next(
                r for r in runs if (r.variant, r.recipe_digest, r.seed) == (variant, digest, 0)
            )
            made = searches.trial(
                number, variant, sizes, recipe_digest=digest, values=(first.result.val_loss,)
            )
            trials.append(made)
        families.append(Family(variant, tuple(trials), "grid: 2 shapes, 2 trials"))
    changes = {"recipe": "smoke", "fingerprint": runs[0].fingerprint, "confirm_seeds": (1, 2)}
    return searches.search(families, **changes)


@pytest.mark.slow
def test_a_trained_search_is_told_and_its_command_trains_nothing_new(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    for sizes in SIZES:
        sets = [part for override in overrides(sizes) for part in ("--set", override)]
        brief = ("--recipe", "smoke", "--seeds", "3", "--workers", "1")
        printed(capsys, "ablate", *VARIANTS, *sets, *brief)
    store = Store.open("attnres.db", create=False)
    runs = store.runs()
    search = search_of(runs)

    found = json.loads(to_json(report_of(find(search, runs), store.recipe)))

    losses = {(r.variant, r.recipe_digest, r.seed): r.result.val_loss for r in runs}
    for family in found["families"]:
        for trial in family["trials"]:
            mine = losses[family["variant"], trial["recipe_digest"], 2]
            assert trial["shape"]["fresh"]["2"] == mine
        best = min(family["trials"], key=lambda t: t["shape"]["mean"])
        assert family["best"] == best["number"]
    assert found["pairs"][0]["test"]["p"] <= 1
    assert re.search(r"the optima (differ|cannot be told apart) \(p ", found["answer"])
    typed = shlex.split(found["families"][1]["command"])[1:]
    planned = printed(capsys, *typed[: typed.index("--study")], "--dry-run")
    assert "3 runs (1 arm x 3 seeds), 0 to train" in planned
