"""What people see: tables that fit, progress lines, and which runs a report is of."""

from __future__ import annotations

import io
import math
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from attnres_cli.config.recipe import Recipe
from attnres_cli.records.plan import Arm, Plan
from attnres_cli.records.run import DataDescription, Event, RunRecord, Settings, Status
from attnres_cli.report import comparison as export
from attnres_cli.report import progress, terminal
from attnres_cli.report.formats import show as print_report
from attnres_cli.report.plans import plan_of
from attnres_cli.verdict.comparison import Comparison
from attnres_cli.verdict.format import duration
from attnres_cli.verdict.judge import compare

LONG = "attnres:block_size=4,heads=2,key_norm=off,norm=sigmoid"
COLOUR = r"\x1b\[(?:\d+;)*[349][0-7]m"

Show = Callable[[int | None], str]


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing in the environment decides about colours or widths."""
    for name in ("COLUMNS", "LINES", "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")


@pytest.fixture
def comparison(make_arm, make_run, facts) -> Comparison:
    """A baseline, arms of all verdicts with long and short names, and a failed run."""
    records = [
        *make_arm("standard", 1.50, 1.70, 1.60, 1.40, 1.55),
        *make_arm(LONG, 1.39, 1.59, 1.50, 1.31, 1.45, n_params=123_456_789),
        *make_arm("denseformer", 1.61, 1.80, 1.71, 1.50, 1.65),
        *make_arm("hyper", 1.51, 1.68, 1.61, 1.40, 1.54),
        make_run("gone", 0, status=Status.DIVERGED, steps=7),
        make_run("broken", 0, status=Status.FAILED, error="ValueError: " + "no " * 60),
    ]
    return compare(records, facts, "standard")


@pytest.fixture
def show(
    comparison: Comparison, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Show:
    """A function that prints the comparison where COLUMNS has a value, or none."""

    def printed(columns: int | None) -> str:
        if columns is not None:
            monkeypatch.setenv("COLUMNS", str(columns))
        print_report(export.report_of([comparison]), "table", sys.stdout)
        return capsys.readouterr().out

    return printed


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


@pytest.fixture
def planned(make_run, plan: Plan) -> list[RunRecord]:
    return [
        make_run(variant, seed, status=Status.PENDING)
        for variant, seed in [("standard", 1), (LONG, 0), (LONG, 1)]
    ]


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line after every event."""
    monkeypatch.setattr(progress, "_LINE_EVERY_S", -1.0)


@contextmanager
def shown(plan: Plan, records: list[RunRecord]) -> Iterator[progress.Display]:
    """A display that knows the runs of a plan."""
    arms = {arm.variant: arm for arm in plan.arms}
    with progress.progress(len(plan.missing), plan.seconds, plan.settings) as display:
        for record in records:
            flops = arms[record.variant].flops_per_token
            display.know(record, plan.recipe, plan.recipe, flops)
        yield display


class Terminal(io.StringIO):
    """Text that is kept, where colours and cursor movements are welcome."""

    def isatty(self) -> bool:
        return True


def stderr_of(capsys: pytest.CaptureFixture[str]) -> list[str]:
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err.splitlines()


@pytest.mark.parametrize("columns", [80, 100, 120, 140, 200])
def test_the_verdict_fits_the_columns_there_are(columns: int, show: Show):
    assert max(len(line) for line in show(columns).splitlines()) <= columns


@pytest.mark.parametrize("columns", [80, 120, 140, None])
def test_the_verdict_has_no_escape_codes_where_there_is_no_terminal(
    columns: int | None, show: Show
):
    assert "\x1b" not in show(columns)


@pytest.mark.parametrize("columns", [80, 120, 140, None])
def test_the_verdict_holds_every_number_whole(
    columns: int | None, show: Show, comparison: Comparison
):
    text = show(columns)

    for arm in comparison.arms:
        assert export.loss_text(arm) in text
        assert export.difference_text(arm) in text


@pytest.mark.parametrize("columns", [80, 120, None])
def test_the_verdict_holds_every_name_whole_however_it_is_folded(columns: int | None, show: Show):
    lines = show(columns).splitlines()

    first_column = [line.removeprefix(" ").partition(" ")[0] for line in lines]
    assert f"standard{LONG}" in "".join(first_column)


@pytest.mark.parametrize("columns", [80, 140])
def test_a_long_name_of_the_baseline_cuts_nothing_else(
    columns: int, make_arm, facts, capsys, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("COLUMNS", str(columns))
    records = make_arm(LONG, 1.50, 1.70, 1.60, 1.40, 1.55)
    records += make_arm("standard", 1.39, 1.59, 1.50, 1.31, 1.45)

    print_report(export.report_of([compare(records, facts, LONG)]), "table", sys.stdout)

    text = capsys.readouterr().out
    assert max(len(line) for line in text.splitlines()) <= columns
    for whole in ("1.5500 ± 0.1118", "-0.1020 [-0.1152, -0.0888]", "baseline", "better"):
        assert whole in text


def test_a_terminal_gets_colours(comparison: Comparison, monkeypatch: pytest.MonkeyPatch):
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)

    print_report(export.report_of([comparison]), "table", sys.stdout)

    assert re.search(COLOUR, screen.getvalue())


def test_no_color_is_respected(comparison: Comparison, monkeypatch: pytest.MonkeyPatch):
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("NO_COLOR", "1")

    print_report(export.report_of([comparison]), "table", sys.stdout)

    assert not re.search(COLOUR, screen.getvalue())


def test_a_recipes_name_is_printed_as_it_is(make_arm, facts, capsys):
    records = make_arm("standard", 1.5, 1.6, recipe=("a [bold]b[/i] :smile:", "abcdef012345"))

    print_report(export.report_of([compare(records, facts, "standard")]), "table", sys.stdout)

    assert "ecipe a [bold]b[/i] :smile:, the same for every arm" in capsys.readouterr().out


@pytest.mark.parametrize("columns", [80, 120])
def test_the_plan_fits_and_has_no_escape_codes(
    columns: int, plan: Plan, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("COLUMNS", str(columns))
    stream = io.StringIO()

    terminal.print_report(plan_of(plan), stream)

    assert max(len(line) for line in stream.getvalue().splitlines()) <= columns
    assert "\x1b" not in stream.getvalue()


def test_the_plan_says_what_is_to_train_and_how_long_it_takes(plan: Plan):
    stream = io.StringIO()

    terminal.print_report(plan_of(plan), stream)

    text = stream.getvalue()
    assert "4 runs (2 arms x 2 seeds), 3 to train; each 6 steps, 384 tokens" in text
    assert "1 of 2" in text
    assert "2 workers, each cpu fp32 eager, 1 thread, Some CPU, depth mixing by eager" in text
    assert f"predicted time {duration(plan.seconds or math.nan)}" in text
    assert "disk: 15 MB for final weights; while it trains up to 89 MB more" in text


@pytest.mark.parametrize(("share", "held"), [(0.1, "90%"), (0.5, "50%"), (0.95, None)])
def test_a_plan_that_was_timed_on_a_busy_core_says_what_it_takes_without_the_others(
    share: float, held: str | None, plan: Plan
):
    hourly = [replace(arm, step_s=3600.0) for arm in plan.arms]
    busy = replace(plan, arms=tuple(hourly), core_share=share)

    (said,) = [line for line in plan_of(busy).notes if line.startswith("predicted time")]

    assert said.startswith(f"predicted time {duration(busy.seconds or math.nan)}, from 4 training")
    alone = duration(share * (busy.seconds or math.nan))
    told = f"; other processes had {held} of its core meanwhile: without them some {alone}"
    assert said.endswith(told if held else "one arm at a time")


def test_a_compiled_plan_says_what_will_be_waited_for(plan: Plan):
    stream = io.StringIO()
    settings = replace(plan.settings, compiled=True, engine="compile")
    compiled = replace(plan, settings=settings)

    terminal.print_report(plan_of(compiled), stream)

    assert "cpu fp32 compiled, 1 thread, Some CPU, depth mixing by compile" in stream.getvalue()
    assert "compiling every arm: about a minute each the first time" in stream.getvalue()
    assert compiled.seconds == pytest.approx((plan.seconds or math.nan) + 60)  # two at once


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min 0 s"),
        (75, "1 min 15 s"),
        (3599.4, "59 min 59 s"),
        (3599.6, "1 h 0 min"),
        (7320, "2 h 2 min"),
        (100_000, "27 h 46 min"),
    ],
)
def test_a_duration_is_told_in_two_units(seconds: float, text: str):
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("changes", "vocabulary"),
    [({}, "256 (bytes)"), ({"vocab_size": 50_257}, "50,257"), ({"source": "npy"}, "256")],
)
def test_a_plan_says_what_its_runs_will_read(
    plan: Plan, facts: DataDescription, changes: dict, vocabulary: str, capsys
):
    data = replace(facts, split="whole files validate: 3 of 60", **changes)

    terminal.print_report(plan_of(replace(plan, data=data)), sys.stdout)

    lines = capsys.readouterr().out.splitlines()
    assert any(f"vocabulary {vocabulary}" == line.split("; ")[-1] for line in lines)
    assert "split: whole files validate: 3 of 60" in lines
    assert "a run reads its 95,000 training tokens 0.004 times (epochs)" in lines
    assert any(line.startswith("warning: runs are evaluated on 256 tokens") for line in lines)


def test_a_run_that_ends_is_one_line_on_stderr(plan: Plan, planned: list[RunRecord], capsys):
    with shown(plan, planned) as on_event:
        on_event(Event(0, planned[0].id, 6, 1.25, done=True))
        on_event(Event(1, planned[1].id, done=True))

    assert stderr_of(capsys) == [
        "attnres: standard seed 1: val loss 1.2500",
        f"attnres: {LONG} seed 0: failed",
    ]


def test_a_search_names_the_lowest_loss_so_far(
    plan: Plan, planned: list[RunRecord], capsys, often: None
):
    first, second = planned[:2]
    with progress.progress(30, None, plan.settings, seeks=True) as display:
        display.know(first, plan.recipe, plan.recipe, 6)
        display(Event(0, first.id, 3, 2.5))
        display(Event(0, first.id, 6, 1.25, done=True))
        display.know(second, plan.recipe, plan.recipe, 6)
        display(Event(0, second.id, 6, 1.75, done=True))
        display(None)

    begun, *_, line = stderr_of(capsys)
    assert begun.startswith("attnres: 0 of 30 runs, 2%; standard seed 1 step 3/6 loss 2.500")
    assert re.fullmatch(r"attnres: 2 of 30 runs, 7%, about .* left, lowest 1\.2500: standard", line)


def test_a_run_that_diverged_is_never_the_lowest(
    plan: Plan, planned: list[RunRecord], capsys, often: None
):
    with progress.progress(3, None, plan.settings, seeks=True) as display:
        for record, loss in zip(planned[:3], (1.5, math.nan, 1.75), strict=True):
            display.know(record, plan.recipe, plan.recipe, 6)
            display(Event(0, record.id, 6, loss, done=True))
        display.expect(7)
        display(None)

    line = stderr_of(capsys)[-1]
    assert "lowest 1.5000: standard" in line
    assert "3 of 10 runs" in line


def test_a_prediction_that_has_not_held_is_not_told(
    plan: Plan, planned: list[RunRecord], capsys, often: None
):
    with progress.progress(40, 0.0, plan.settings) as display:
        display.know(planned[0], plan.recipe, plan.recipe, 6)
        display(Event(0, planned[0].id, 3, 2.5))

    assert "left" not in stderr_of(capsys)[-1]


def test_between_ends_there_is_a_line_only_now_and_then(
    plan: Plan, planned: list[RunRecord], capsys
):
    with shown(plan, planned) as on_event:
        for step in range(6):
            on_event(Event(0, planned[0].id, step, 2.0))
            on_event(None)

    assert stderr_of(capsys) == []


def test_a_line_says_how_far_all_runs_are(
    plan: Plan, planned: list[RunRecord], capsys, often: None
):
    with shown(plan, planned) as on_event:
        on_event(Event(0, planned[0].id, 6, 1.25, done=True))
        on_event(Event(1, planned[1].id, 3, 2.5))

    line = stderr_of(capsys)[-1]
    assert line.startswith("attnres: 1 of 3 runs, 50%, about ")
    assert line.endswith(f" left; {LONG} seed 0 step 3/6 loss 2.500")


@pytest.mark.parametrize(
    ("device", "told"),
    [("Some CPU", "32 tokens/s"), ("NVIDIA A100-SXM4-80GB", "32 tokens/s, MFU 50%")],
)
def test_a_line_says_how_fast_a_run_is_since_its_first_step(
    device: str, told: str, plan: Plan, planned: list[RunRecord], capsys, monkeypatch
):
    clock = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(progress, "_LINE_EVERY_S", -1.0)
    arms = tuple(replace(arm, flops_per_token=int(19.5e12 / 64)) for arm in plan.arms)
    settings = replace(plan.settings, device_name=device)
    with shown(replace(plan, arms=arms, settings=settings), planned) as on_event:
        for step, second in ((0, 100.0), (1, 130.0), (2, 131.0), (3, 134.0)):  # 64 tokens each
            clock[0] = second
            on_event(Event(0, planned[0].id, step, 2.5))

    lines = stderr_of(capsys)
    assert "tokens/s" not in "".join(lines[:2])
    assert lines[2].endswith(
        "step 2/6 loss 2.500, " + told.replace("32", "64").replace("50", "100")
    )
    assert lines[3].endswith("step 3/6 loss 2.500, " + told)


def test_before_its_first_step_a_compiled_run_says_that_it_is_compiling(
    plan: Plan, planned: list[RunRecord], capsys, often: None
):
    compiled = replace(plan, settings=replace(plan.settings, compiled=True, engine="compile"))
    with shown(compiled, planned) as on_event:
        on_event(Event(0, planned[0].id))
        on_event(Event(0, planned[0].id, 1, 5.5))

    first, second = stderr_of(capsys)
    assert first.endswith("standard seed 1 compiling for 0 s")
    assert second.endswith("standard seed 1 step 1/6 loss 5.500")


def test_at_first_the_time_left_is_the_one_predicted(
    plan: Plan, planned: list[RunRecord], capsys, often: None
):
    with shown(plan, planned) as on_event:
        on_event(Event(0, planned[0].id))

    line = stderr_of(capsys)[-1]
    told = re.search(r"about (\d+) s left", line)
    assert told is not None
    assert int(told[1]) == pytest.approx(plan.seconds, abs=2)
    assert line.endswith("standard seed 1 step 0/6")


def test_of_several_parts_the_one_under_way_is_named(plan: Plan):
    display = progress.Display(336, None, plan.settings, part="part 1 of 11")

    assert display.head() == "part 1 of 11: 0 of 336 runs, 0%"


def test_a_terminal_shows_a_row_per_worker(
    plan: Plan, planned: list[RunRecord], monkeypatch: pytest.MonkeyPatch
):
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)

    with shown(plan, planned) as on_event:
        on_event(Event(0, planned[0].id, 3, 2.5))
        on_event(Event(1, planned[1].id))

    text = screen.getvalue()
    assert "0 of 3 runs, 17%" in text
    assert "3/6" in text
    assert "2.500" in text
