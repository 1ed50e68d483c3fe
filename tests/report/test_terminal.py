"""What people see in a terminal: tables that fit, plans, and lines of progress."""

from __future__ import annotations

import io
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import pytest
from comparisons import BASE, BETTER, EQUAL, WORSE

from attnres_cli import console
from attnres_cli.config.recipe import Recipe
from attnres_cli.records.plan import TIMED_STEPS, Arm, Plan
from attnres_cli.records.run import Event, RunRecord, Settings, Status
from attnres_cli.report import comparison as reported
from attnres_cli.report import progress
from attnres_cli.report.file_formats import show
from attnres_cli.report.plans import line_of, plan_of
from attnres_cli.report.table import Report
from attnres_cli.verdict.comparison import Comparison
from attnres_cli.verdict.numbers import duration
from attnres_cli.verdict.rows import difference_text, loss_text

LONG = "attnres:block_size=4,heads=2,key_norm=off,norm=sigmoid"
COLOR = re.compile(r"\x1b\[(?:\d+;)*[349][0-7]m")


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing in the environment decides about colors or widths."""
    for name in ("COLUMNS", "LINES", "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")


def shown(found: Comparison | Plan, columns: int | None = None) -> str:
    """What is printed of a verdict or a plan where COLUMNS has that value, or none."""
    report = plan_of(found) if isinstance(found, Plan) else reported.report_of([found])
    return shown_report(report, columns)


def shown_report(report: Report, columns: int | None) -> str:
    out = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        if columns is not None:
            patch.setenv("COLUMNS", str(columns))
        show(report, "table", out)
    return out.getvalue()


class Terminal(io.StringIO):
    """Text that is kept, where colors and cursor movements are welcome."""

    def isatty(self) -> bool:
        return True


# Verdicts


@pytest.fixture
def comparison(base, make_arm, make_run, judge) -> Comparison:
    """A baseline, arms of all verdicts with long and short names, and a failed run."""
    return judge(
        base,
        make_arm(LONG, *BETTER, n_params=123_456_789),
        make_arm("denseformer", *WORSE),
        make_arm("hyper", *EQUAL),
        [make_run("gone", 0, status=Status.DIVERGED, steps=7)],
        [make_run("broken", 0, status=Status.FAILED, error="ValueError: " + "no " * 60)],
    )


@pytest.mark.parametrize("columns", [80, 100, 120, 140, 200, None])
def test_a_verdict_fits_and_breaks_no_number_or_name_also_where_the_baselines_is_long(
    columns: int | None, comparison: Comparison, make_arm, judge
):
    led = judge(make_arm(LONG, *BASE), make_arm("standard", *BETTER), baseline=LONG)
    text, of_long = shown(comparison, columns), shown(led, columns)

    for each in (text, of_long):
        assert columns is None or max(map(len, each.splitlines())) <= columns
        assert "\x1b" not in each
    for arm in comparison.arms:
        assert loss_text(arm) in text
        assert difference_text(arm) in text
    (row,) = [line for line in text.splitlines() if line.startswith(f" {LONG[:8]}")]
    named = row.split()[0]
    start, cut, end = named.partition("…")
    assert LONG.startswith(start)
    assert LONG.endswith(end)
    assert bool(cut) == (columns in (80, 100))  # in its middle, where there is no room
    for whole in ("1.5500 ± 0.1118", "-0.1020 [-0.1152, -0.0888]", "baseline", "better"):
        assert whole in of_long
    named = make_arm("standard", 1.5, 1.6, recipe=("a [bold]b[/i] :smile:", "abcdef012345"))
    assert "ecipe a [bold]b[/i] :smile:, the same for every arm" in shown(judge(named))


def test_a_command_at_the_end_of_a_line_is_one_line_however_narrow_a_terminal_is():
    typed = "attnres ablate standard attnres --recipe smoke --set train.tokens=2k --seeds 12"
    said = ["a sentence of many words, which are " * 5, f"To decide: 12 seeds: {typed}"]
    text = shown_report(Report(title="", notes=said), 80)
    assert typed in text
    assert len(text.splitlines()) > 3


def test_a_terminal_gets_colors_unless_no_color_is_set(comparison: Comparison, monkeypatch):
    for has_colors in (True, False):
        if not has_colors:
            monkeypatch.setenv("NO_COLOR", "1")
        show(reported.report_of([comparison]), "table", screen := Terminal())
        assert bool(COLOR.search(screen.getvalue())) is has_colors


# Plans


@pytest.fixture
def plan(tiny_recipe: Recipe) -> Plan:
    """Two arms, two seeds, half a second per step; one run is done."""
    return Plan(
        recipe=tiny_recipe,
        arms=(Arm("standard", 1_234_567, 6_000_000, 0.5), Arm(LONG, 1_234_999, 7_000_000, 0.5)),
        seeds=(0, 1),
        devices=("cpu", "cpu"),
        settings=Settings("cpu", "Some CPU", "fp32", compiled=False, threads=1, engine="eager"),
        fingerprint="0123456789abcdef",
        done=frozenset({(tiny_recipe.digest, "standard", 0, "0123456789abcdef", "")}),
    )


@pytest.mark.parametrize("columns", [80, 120, None])
def test_a_plan_fits_and_says_what_it_trains_and_compiles_in_what_time(
    columns: int | None, plan: Plan
):
    settings = replace(plan.settings, compiled=True, engine="compile")
    compiled = replace(plan, settings=settings)
    text, of_compiled = shown(plan, columns), shown(compiled, columns)

    for each in (text, of_compiled):
        assert columns is None or max(map(len, each.splitlines())) <= columns
        assert "\x1b" not in each
    flat, of_compiled = " ".join(text.split()), " ".join(of_compiled.split())
    assert "4 runs (2 arms x 2 seeds), 3 to train; each 6 steps, 384 tokens" in flat
    assert "1 of 2" in flat
    assert "2 workers, each cpu fp32 eager, 1 thread, Some CPU, depth mixing by eager" in flat
    assert f"predicted time {duration(plan.seconds or math.nan)}" in flat
    assert "disk: 15 MB for final weights; while it trains up to 89 MB more" in flat
    assert "cpu fp32 compiled, 1 thread, Some CPU, depth mixing by compile" in of_compiled
    assert "compiling every arm: about a minute each the first time" in of_compiled
    assert compiled.seconds == pytest.approx((plan.seconds or math.nan) + 60)  # two at once


@pytest.mark.parametrize(
    ("key", "values", "counted"),
    [
        ("optim.lr", (1e-3, 2e-3), "2 learning rates"),
        ("optim.design_lr_scale", (3.0, 10.0), "2 settings"),
    ],
)
def test_a_line_counts_what_an_arm_is_tuned_over(
    key: str, values: tuple[float, float], counted: str, plan: Plan
):
    recipes = [plan.recipe.changed((key, value)) for value in values]
    arms = tuple(replace(arm, recipe=recipe) for arm in plan.arms for recipe in recipes)

    assert f"8 runs (2 arms x {counted} x 2 seeds)" in line_of(replace(plan, arms=arms))


@pytest.mark.parametrize(("share", "held"), [(0.1, "90%"), (0.5, "50%"), (0.95, None)])
def test_a_plan_timed_on_a_busy_core_predicts_an_idle_one_too(share, held, plan: Plan):
    hourly = [replace(arm, step_s=3600.0) for arm in plan.arms]
    busy = replace(plan, arms=tuple(hourly), core_share=share)

    (said,) = [line for line in plan_of(busy).notes if line.startswith("predicted time")]

    assert said.startswith(
        f"predicted time {duration(busy.seconds or math.nan)}, from {TIMED_STEPS} training"
    )
    alone = duration(share * (busy.seconds or math.nan))
    told = f"; other processes had {held} of its core meanwhile: without them some {alone}"
    assert said.endswith(told if held else "one arm at a time")


@pytest.mark.parametrize(
    ("changes", "vocabulary"),
    [({}, "256 (bytes)"), ({"vocab_size": 50_257}, "50,257"), ({"source": "npy"}, "256")],
)
def test_a_plan_says_what_its_runs_will_read(plan: Plan, facts, changes: dict, vocabulary: str):
    data = replace(facts, split="whole files validate: 3 of 60", **changes)

    lines = shown(replace(plan, data=data)).splitlines()

    assert any(f"vocabulary {vocabulary}" == line.split("; ")[-1] for line in lines)
    assert "split: whole files validate: 3 of 60" in lines
    assert "a run reads its 95,000 training tokens 0.004 times (epochs)" in lines
    assert any(line.startswith("warning: only 256 evaluation tokens") for line in lines)


def test_a_duration_has_two_units():
    durations = {0: "0 s", 59.4: "59 s", 59.6: "1 min 0 s", 75: "1 min 15 s",
                 3599.4: "59 min 59 s", 3599.6: "1 h 0 min", 7320: "2 h 2 min",
                 100_000: "27 h 46 min"}  # fmt: skip

    assert {seconds: duration(seconds) for seconds in durations} == durations


# Progress


@pytest.fixture
def planned(make_run) -> list[RunRecord]:
    named = [("standard", 1), (LONG, 0), (LONG, 1)]
    return [make_run(variant, seed, status=Status.PENDING) for variant, seed in named]


@pytest.fixture
def watch(
    plan: Plan, planned: list[RunRecord], capsys: pytest.CaptureFixture[str]
) -> Callable[..., list[str]]:
    """A function that returns the lines on stderr of such events: worker, step, loss, done. A
    worker trains the run of its number; `often` prints a line after every event.
    """

    def lines(events: Iterable[tuple | None], *, of: Plan = plan, often: bool = True) -> list[str]:
        arms = {arm.variant: arm for arm in of.arms}
        with pytest.MonkeyPatch.context() as patch:
            if often:
                patch.setattr(progress, "_LINE_EVERY_S", -1.0)
            with progress.progress(len(of.missing), of.seconds, of.settings) as display:
                for record in planned:
                    flops = arms[record.variant].flops_per_token
                    display.know(record, of.recipe, of.recipe, flops)
                for event in events:
                    display(event and Event(event[0], planned[event[0]].id, *event[1:]))
        captured = capsys.readouterr()
        assert captured.out == ""
        return captured.err.splitlines()

    return lines


def test_a_run_that_fails_is_a_line_one_that_ends_only_if_asked_for(watch, monkeypatch):
    steps = [event for step in range(6) for event in ((0, step, 2.0), None)]
    ends, failed = [(0, 6, None, True, 1.25), (1, 0, None, True)], f"attnres: {LONG} seed 0: failed"

    assert watch(steps, often=False) == []
    assert watch(ends, often=False) == [failed]
    monkeypatch.setattr(console, "_loudness", console.VERBOSE)
    assert watch(ends, often=False) == ["attnres: standard seed 1: val loss 1.2500", failed]


def test_a_line_says_how_far_all_runs_are_and_the_time_left(plan: Plan, planned, watch):
    first, line = watch([(0,)])[-1], watch([(0, 6, None, True, 1.25), (1, 3, 2.5)])[-1]
    part = progress.ProgressDisplay(336, None, plan.settings, part="part 1 of 11")
    late = progress.ProgressDisplay(40, 0.0, plan.settings)
    late.know(planned[0], plan.recipe, plan.recipe, 6)
    late(Event(0, planned[0].id, 3, 2.5))

    told = re.search(r"about (\d+) s left; standard seed 1 step 0/6$", first)
    assert told is not None
    assert int(told[1]) == pytest.approx(plan.seconds, abs=2)  # as predicted
    assert line.startswith("attnres: 1 of 3 runs, 50%, about ")
    assert line.endswith(f" left; {LONG} seed 0 step 3/6 loss 2.500")
    assert "left" not in late.head()  # of a prediction that has not held
    settings = replace(plan.settings, compiled=True, engine="compile")
    compiling, stepping = watch([(0,), (0, 1, 5.5)], of=replace(plan, settings=settings))
    assert compiling.endswith("standard seed 1 compiling for 0 s")
    assert stepping.endswith("standard seed 1 step 1/6 loss 5.500")
    assert part.head() == "part 1 of 11: 0 of 336 runs, 0%"


@pytest.mark.parametrize(
    ("device", "told"),
    [("Some CPU", "32 tokens/s"), ("NVIDIA A100-SXM4-80GB", "32 tokens/s, MFU 50%")],
)
def test_a_line_says_how_fast_a_run_is(device: str, told: str, plan: Plan, watch, monkeypatch):
    arms = tuple(replace(arm, flops_per_token=int(19.5e12 / 64)) for arm in plan.arms)
    settings = replace(plan.settings, device_name=device)
    clock = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])

    def steps() -> Iterator[tuple[int, int, float]]:
        for step, clock[0] in enumerate((100.0, 130.0, 131.0, 134.0)):  # 64 tokens each
            yield 0, step, 2.5

    lines = watch(steps(), of=replace(plan, arms=arms, settings=settings))

    assert "tokens/s" not in "".join(lines[:2])
    at_first = told.replace("32", "64").replace("50", "100")
    assert lines[2].endswith(f"step 2/6 loss 2.500, {at_first}")
    assert lines[3].endswith(f"step 3/6 loss 2.500, {told}")


def test_a_search_names_the_lowest_finite_loss_so_far(plan: Plan, planned, capsys, monkeypatch):
    monkeypatch.setattr(progress, "_LINE_EVERY_S", -1.0)
    with progress.progress(30, None, plan.settings, seeks=True) as display:
        display.know(planned[0], plan.recipe, plan.recipe, 6)
        display(Event(0, planned[0].id, 3, 2.5))
        for record, loss in zip(planned, (1.25, math.nan, 1.75), strict=True):
            display.know(record, plan.recipe, plan.recipe, 6)
            display(Event(0, record.id, 6, done=True, val_loss=loss))
        display(None)
        display.expect(7)
        display(None)

    begun, *_, line, more = capsys.readouterr().err.splitlines()
    assert begun.startswith("attnres: 0 of 30 runs, 2%; standard seed 1 step 3/6 loss 2.500")
    told = r"attnres: 3 of {} runs, .*%, about .* left, lowest 1\.2500: standard"
    assert re.fullmatch(told.format(30), line)
    assert re.fullmatch(told.format(10), more)


def test_a_terminal_shows_means_so_far_and_a_row_per_worker(
    plan: Plan, planned: list[RunRecord], monkeypatch
):
    monkeypatch.setattr(sys, "stderr", screen := Terminal())

    with progress.progress(3, plan.seconds, plan.settings) as display:
        for worker, step in ((0, (3, 2.5)), (1, ())):
            display.know(planned[worker], plan.recipe, plan.recipe, 6_000_000)
            display(Event(worker, planned[worker].id, *step))
        display.know(planned[2], plan.recipe, plan.recipe, 6_000_000)
        display(Event(1, planned[2].id, 6, done=True, val_loss=1.25))

    seen = COLOR.sub("", screen.getvalue())
    for text in ("1 of 3 runs, 50%", "3/6", "loss 2.500", "1/2   1.2500"):
        assert text in seen
