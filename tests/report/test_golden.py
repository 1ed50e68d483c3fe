"""Every report in every format, as a whole; how to renew the files is said in tests/golden.py."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace
from functools import partial

import pytest
from answers import answers
from comparisons import BETTER, PROBE, WORSE, grown
from golden import check

from attnres_cli.config.recipe import load
from attnres_cli.records.comparison_terms import ArmRecipe, Terms, Tuned
from attnres_cli.records.items import Kind
from attnres_cli.records.run import Standing, Status
from attnres_cli.records.run_records import Listed
from attnres_cli.records.verification import Departure, Verification
from attnres_cli.report import against, comparison, downstream, page, power, runs, scaling
from attnres_cli.report.figures.drawing import of_sizes
from attnres_cli.report.file_formats import show
from attnres_cli.report.html import page_of
from attnres_cli.report.table import Report
from attnres_cli.verdict import downstream as tasks
from attnres_cli.verdict.comparison import Rules
from attnres_cli.verdict.ladder import Rung, ladder
from attnres_cli.verdict.power import analyse
from attnres_cli.verdict.report_section import Chapter
from attnres_cli.verdict.slope import Slope

UNKIND = "my_own:a=<b>x</b>&y,c=50%|~{d}"
RATES = Tuned(
    0.01, (0.005, 0.01, 0.02), (1.9, 1.5, None), (7, 8), 0.02, True, "between its neighbours"
)
SUFFIXES = {"table": "txt", "markdown": "md", "csv": "csv", "json": "json", "latex": "tex"}


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LINES", "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "140")


@pytest.fixture
def records(base, make_arm, make_run):
    """Arms of every verdict, one with an unkind name, and a run that failed unkindly."""
    return [
        *base,
        *make_arm("attnres", *BETTER, n_params=1_002_048),
        *make_arm("mhc", *WORSE),
        *make_arm("denseformer", 1.51, 1.68, 1.62, 1.40, 1.54),
        *make_arm(UNKIND, 1.49, 1.70, 1.585, 1.39, 1.56),
        make_run("gone", 0, status=Status.DIVERGED, steps=7),
        make_run("broken", 0, status=Status.FAILED, error="ValueError: <script>alert(1)</script>"),
    ]


@pytest.fixture
def comparisons(records, make_arm, judge, facts):
    """On the shared recipe, which was registered, and with a rate tuned for one arm."""
    data = replace(facts, floor=0.5, zlib_bits=1.9, xz_bits=1.5)
    shared = judge(records, data=data, rules=Rules(margin=0.005, slope=0.4))
    terms = Terms(is_tuned=True)
    own = ArmRecipe("abcdef012345", facts.fingerprint, terms, "attnres", "b" * 12, RATES)
    tuned = make_arm("attnres", 1.3, 1.4, 1.5, 1.2, 1.3, recipe=("quick", "b" * 12))
    return [
        replace(shared, registered="preregistered 0a1b2c3d4e5f"),
        judge(records[:5], tuned, data=data, terms=terms, own=[own]),
    ]


@pytest.fixture
def sizes(make_arm, judge):
    """Four sizes; attnres is worth about 1.3 times its compute, mhc loses with depth."""
    rungs = []
    for n_layers, off in ((2, 0.001), (4, -0.002), (8, 0.0015), (16, -0.0005)):
        recipe, flops, found = grown(n_layers), 10**9 * n_layers**2, []
        of = {"flops_per_token": flops, "recipe": ("grown", recipe.digest)}
        for variant, worth, more in (("standard", 1, 0), ("attnres", 1.3, 0), ("mhc", 1, 1e-3)):
            loss = 1.2 + 1.5 * (worth * flops) ** -0.05 + more * n_layers + off
            off_seed = 0.003 * worth + more * n_layers / 10
            found += make_arm(variant, loss + 0.004, loss - off_seed, loss + 0.001, **of)
        rungs.append(Rung(recipe, judge(found)))
    return ladder(rungs)


@pytest.fixture
def answered(records, judge):
    """Tasks of several kinds; one at chance, one that came later, one that a run lacks."""
    kinds = {"cloze": Kind.CHOICE, "guess": Kind.CHOICE, "sums": Kind.GENERATION, "text": Kind.TEXT}
    gains = {"attnres": 0.6, "mhc": -0.4}
    items = [
        answers(
            run, name, kind=kind, gain=gains.get(run.variant, 0.0), skill=float(name != "guess"),
            truncated=3 * (name == "text"),
        )
        for run in records
        if run.result is not None
        for name, kind in kinds.items()
        if (name, run.variant, run.seed) != ("text", "mhc", 4)
    ]  # fmt: skip
    sums = [each for each in items if each.task == "sums"]
    late = [replace(each, task="late", evaluated_at="2026-11-24") for each in sums]
    return tasks.downstream(judge(records), [*items, *late])


def shown(report: Report, form: str) -> str:
    out = io.StringIO()
    show(report, form, out)
    return out.getvalue()


def check_all(name: str, report: Report, subtests, forms=tuple(SUFFIXES)) -> None:
    for form in forms:
        with subtests.test(form):
            text = shown(report, form)
            if form == "json":
                json.loads(text, parse_constant=pytest.fail)
            if form == "csv":
                assert all(None not in row for row in csv.DictReader(io.StringIO(text)))
            check(f"{name}.{SUFFIXES[form]}", text)


def check_page(name: str, html: str) -> None:
    """Without style, script and the drawings' insides, which tests of their own look at."""
    for tag in ("style", "script", "svg"):
        html = re.sub(rf"<{tag}\b.*?</{tag}>", f"<{tag}></{tag}>", html, flags=re.DOTALL)
    check(f"{name}.html", html)


def test_a_verdict_is_the_same_in_every_format_and_at_any_width(comparisons, subtests, monkeypatch):
    check_all("verdict", comparison.report_of(comparisons), subtests)
    monkeypatch.setenv("COLUMNS", "80")  # keeps what decides
    check("verdict-80.txt", shown(comparison.report_of(comparisons[:1]), "table"))


def test_how_busy_the_machine_was_in_training_changes_no_report(records, judge):
    """Runs of different hours and loads: their times say nothing about their designs."""

    def slower(run):
        times = {"step_s": 4 * run.result.step_s, "tokens_per_second": 7.0, "train_s": 900.0}
        return replace(run, result=replace(run.result, **times))

    busy = [slower(run) if run.seed % 2 and run.result else run for run in records]

    calm, loaded = (comparison.report_of([judge(runs)]) for runs in (records, busy))

    for form in SUFFIXES:
        assert shown(loaded, form) == shown(calm, form)
        assert "ms/step" not in shown(calm, form)


def test_a_study_of_failures_is_the_same_in_every_format(make_run, judge, subtests):
    failed = make_run("standard", 0, status=Status.FAILED, error="OSError: no space left")
    check_all("nothing", comparison.report_of([judge([failed])]), subtests)


def test_the_paper_stands_beside_a_study_in_every_format(comparisons, subtests):
    report = against.report_of(comparisons)
    check_all("paper", report, subtests)
    check_page("paper", page_of(report, "my.db"))


def test_tasks_are_the_same_in_every_format_and_their_page_is_whole(answered, subtests):
    report = downstream.report_of([answered])
    check_all("downstream", report, subtests)
    check_page("downstream", page_of(report, "my.db"))


def test_a_ladder_is_the_same_in_every_format_and_its_page_is_whole(sizes, subtests):
    check_all("scaling", scaling.report_of([sizes]), subtests)
    check_page("scaling", page_of(scaling.report_of([sizes]), "my.db", [of_sizes(sizes)]))


def test_a_power_analysis_is_the_same_in_every_format(records, facts, subtests):
    slope = Slope(0.43, "as the recipe states")
    found = analyse(records, facts, "standard", 0.02, None, None, n_cores=4, slope=slope)
    assert found is not None
    check_all("power", power.report_of(found), subtests, ("table", "markdown", "csv", "json"))


def test_runs_are_listed_and_shown_one_by_one(records, make_run, subtests):
    standing = Standing(1, None, None, None, 1, "2026-01-01T00:00:00+00:00", None, None, None)
    busy = replace(standing, owner="here/1|boot|17|9", is_alive=False, step=120)
    probed = replace(records[0].result, probes=(replace(PROBE, step=0), PROBE))
    noted = replace(records[0], result=probed, note="to be watched", tags=("keep", "long"))
    recipe, own = load("smoke", ["train.tokens=204800"]), {"optim.lr": 0.02}
    one = partial(Listed, recipe=recipe, settings=own, own={}, differs="", base="")
    whole = one(noted, standing, own=own, differs="optim.lr=0.02", base="recipe smoke")
    lines = [
        whole,
        one(records[-2], standing),
        one(records[-1], standing),
        one(make_run("mhc", 3, status=Status.RUNNING), busy),
        one(make_run("attnres", 4, status=Status.PENDING), standing),
    ]
    check_all("runs", runs.list_of(lines), subtests, ("table", "json", "markdown", "csv"))
    check_all("run", runs.run_of(whole), subtests, ("table", "json"))
    check_all("run-failed", runs.run_of(lines[2]), subtests, ("table",))


def test_a_verified_run_is_equal_or_says_where_it_departs(records, subtests):
    record = records[0]
    equal = Verification(record, record.result, None, (), ())
    other = replace(record.result, val_loss=1.5000000000000002)
    names = ("embed.weight", "head.weight", "norm.weight", "layers.0.attn.out.weight")
    departure = Departure(200, "train loss", 2.0, 2.0000000000000004)
    departs = Verification(record, other, departure, names, (("torch", "2.9.0", "2.10.0"),))
    rounded = replace(departs, early=1e-6, spread=0.02)
    assert rounded.agrees
    assert not departs.agrees  # nothing is known of how far seeds are apart
    for changes in (
        {"early": 1e-2},  # they do not begin alike
        {"spread": 1e-17},  # they end further apart than seeds do
        {"changed": (("torch", "2.9.0", "2.10.0"), ("code_loop", "a", "b"))},
        {"changed": (("git_revision", "a", "b"),)},
    ):
        assert not replace(rounded, **changes).agrees
    check_all("rounded", runs.verification_of(rounded), subtests, ("table", "json"))
    check_all("equal", runs.verification_of(equal), subtests, ("table", "json"))
    check_all("departs", runs.verification_of(departs), subtests, ("table", "json"))


def test_the_page_of_a_study_is_whole_and_every_name_on_it_is_text(comparisons, monkeypatch):
    monkeypatch.setattr(page, "drawings", lambda chapter, without: [])
    check_page("page", page.to_html([Chapter(held, study="my.db") for held in comparisons]))
