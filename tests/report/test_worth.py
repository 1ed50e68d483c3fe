"""`report --scaling`: what an arm is worth over recipes of one name, and what is never pooled."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from commands import Attnres
from comparisons import grown
from studies import fill

from attnres_cli.config.recipe import Recipe, validate
from attnres_cli.lab.study_view import Held
from attnres_cli.records.step_ratio import StepRatio
from attnres_cli.report.answer import courses, multiplier_text
from attnres_cli.report.figures.drawing import of_sizes
from attnres_cli.report.scaling import notes, one_rate, qualified
from attnres_cli.stats.multiples import Budget
from attnres_cli.stats.scaling import Multiplier, PowerLaw
from attnres_cli.store.store import Store
from attnres_cli.verdict.ladder import Ladder, Rung, compute, ladder

WORTH, TOKENS = 1.3, 10_000
LAW = PowerLaw(1.5, 0.05, 0.0, 0.0)
NOISE = [0.004, -0.003, 0.001]
UNIT = 8.64e19  # FLOPs of a PFLOP/s-day
Losses = Mapping[str, Sequence[float]]
Size = Callable[..., Rung]


def flops(n_layers: int) -> int:
    """Per token."""
    return 10**9 * n_layers**2


def losses(n_layers: int, steps: Sequence[float] = NOISE) -> dict[str, list[float]]:
    """Of the baseline, of an arm that is worth 1.3 of its compute, and of one that loses 0.01 per
    layer; each seed shifts all of them.
    """
    at = flops(n_layers) * TOKENS / UNIT
    base, arm = LAW.loss(at), LAW.loss(WORTH * at)
    return {
        "standard": [base * (1 + step) for step in steps],
        "attnres": [arm * (1 + step) for step in steps],
        "mhc": [base * (1 + step) + 0.01 * n_layers * (1 + step) for step in steps],
    }


@pytest.fixture
def size(make_arm, judge) -> Size:
    """A function that makes the rung of a recipe; keywords change the results of its runs."""

    def make(recipe: Recipe, values: Losses | None = None, **changes: object) -> Rung:
        depth = recipe.model.n_layers
        of = {"flops_per_token": flops(depth), "tokens": TOKENS, "steps": 400} | changes
        arms = (losses(depth) if values is None else values).items()
        named = (recipe.name, recipe.digest)
        return Rung(recipe, judge(*(make_arm(name, *at, recipe=named, **of) for name, at in arms)))

    return make


@pytest.fixture
def sizes(size: Size) -> Callable[..., Ladder]:
    """A function that makes the ladder of these depths; `only`: with these arms."""

    def make(*depths: int, only: Sequence[str] = ("standard", "attnres", "mhc")) -> Ladder:
        of = {depth: losses(depth) for depth in depths}
        return ladder([size(grown(d), {name: of[d][name] for name in only}) for d in depths])

    return make


# What is measured


@pytest.mark.parametrize("depths", [(2, 8), (2, 4, 8), (2, 4, 8, 16)])
def test_an_arm_of_known_worth_is_found_to_be_worth_that(depths: tuple[int, ...], sizes):
    found = sizes(*depths, only=("standard", "attnres"))

    standard, attnres = found.arms
    assert standard.variant == "standard"
    assert standard.law.alpha == pytest.approx(LAW.alpha, rel=1e-6)
    assert attnres.worth.value == pytest.approx(WORTH, rel=1e-4)
    assert (attnres.worth.left_out is None) == (len(depths) == 2)
    assert (attnres.plain is None) == (len(depths) < 4)
    assert (attnres.law.floor, attnres.worth.ci95) == (pytest.approx(0, abs=1e-3), None)
    none = "two sizes leave" if len(depths) == 2 else "no interval of attnres: the losses lie on"
    assert any(line.startswith(none) for line in notes(found))


def test_one_run_per_size_and_arm_is_enough_for_a_multiplier_with_its_interval(size: Size):
    rungs = []
    for depth, scatter in ((2, 0.001), (4, -0.002), (8, 0.0015), (16, -0.0005)):
        values = losses(depth, [0.002 * scatter])
        values["attnres"][0] *= 1 + scatter
        rungs.append(size(grown(depth), values))

    found = ladder(rungs)

    attnres = found.arms[1]
    assert attnres.worth.ci95[0] < WORTH < attnres.worth.ci95[1]
    assert {arm.law.floor for arm in found.arms} == {attnres.law.floor}
    assert found.left_out == ()
    # an interval is never printed as one number
    assert multiplier_text(Multiplier(1.3212, 1.0, (1.32119, 1.32121))) == "1.321 [1.321, 1.322]"
    assert multiplier_text(Multiplier(1.321, 1.0, (0.1, 1e9))) == "1.321 [0.100, inf]"


def test_rungs_in_order_of_compute_show_the_trend_over_depth_that_was_put_in(sizes):
    found = sizes(8, 2, 4)

    assert [rung.recipe.model.n_layers for rung in found.rungs] == [2, 4, 8]
    assert all({len(arm.losses) for arm in rung.comparison.arms} == {3} for rung in found.rungs)
    mhc = found.arms[-1]
    # 0.02, 0.04 and 0.08 over depths one doubling apart: (0.08 - 0.02) / 2 per doubling
    assert mhc.trend.mean == pytest.approx(0.03, abs=1e-4)
    assert mhc.trend.ci95[0] < 0.03 < mhc.trend.ci95[1]
    assert sizes(2, 4).arms[-1].trend is None
    assert (found.doubled, mhc.course) == ("layers", "grows")


@pytest.mark.parametrize(
    ("gaps", "course"),
    [((-0.04, -0.02, -0.01), "fades"), ((-0.01, -0.02, -0.04), "grows"), ((-0.02,) * 3, "holds")],
)
def test_over_budgets_of_one_model_a_gain_fades_grows_or_holds(
    gaps: tuple[float, ...], course: str, size: Size
):
    rungs, noise = [], (0.002, -0.001, -0.001, 0.003, -0.003)
    for doubling, gap in enumerate(gaps):
        tokens = 25_600 * 2**doubling
        base = [2.0 - 0.1 * doubling + 0.01 * seed for seed in range(5)]
        part = 1 - doubling  # of the noise of a seed, not the same at every size
        arm = [loss + gap + part * step for loss, step in zip(base, noise, strict=True)]
        recipe = grown(4).at(tokens)
        rungs.append(size(recipe, {"standard": base, "attnres": arm}, tokens=tokens))

    found = ladder(rungs)

    assert (found.doubled, found.arms[1].course) == ("tokens", course)
    assert any("one learning rate for all budgets" in line for line in qualified(found))
    (line,) = courses(found)
    told = ", ".join(f"{gap:+.4f}" for gap in gaps)
    assert line.startswith(f"attnres: {told} nats at 25,600 tokens to 102,400 tokens.")
    assert f"It {course}: " in line
    assert "per doubling of tokens" in line


def test_a_gain_beyond_all_budgets_pays_only_as_far_as_these_tell(size: Size):
    def timed(rung: Rung, ratio: float) -> Rung:
        budgets = (Budget(0.25, -0.6, 0.004, 5), Budget(0.5, -0.3, 0.004, 5))
        rules = replace(rung.comparison.rules, budgets=budgets)
        ratios = {"attnres": StepRatio(8, ratio, ratio, ratio)}
        return replace(rung, comparison=replace(rung.comparison, rules=rules, step_ratios=ratios))

    base = [2.0 + 0.01 * seed for seed in range(5)]
    arm = [loss - 0.1 + 0.001 * seed for seed, loss in enumerate(base)]
    rungs = [size(grown(depth), {"standard": base, "attnres": arm}) for depth in (2, 4)]
    (line,) = courses(ladder([timed(rungs[0], 1.5), timed(rungs[1], 0.8)]))
    assert "It is known to pay at 4 layers. At 2 layers budgets do not tell." in line
    (line,) = courses(ladder([timed(rung, 1.5) for rung in rungs]))
    assert "It is known to pay at no size. At 2 layers and 4 layers budgets do not tell." in line


def test_budgets_with_a_rate_for_each_and_sizes_are_not_said_to_share_one(size: Size, sizes):
    rungs = []
    for times, lr in ((1, 0.01), (2, 0.007), (4, 0.005)):
        recipe = grown(4).at(times * 25_600)
        tuned = recipe.model_copy(update={"optim": recipe.optim.model_copy(update={"lr": lr})})
        rungs.append(size(tuned, losses(2 * times), tokens=times * 25_600))

    assert ladder(rungs).doubled == "tokens"
    for found in (ladder(rungs), sizes(2, 4, 8)):
        assert found.arms[1].trend
        assert one_rate(found) == []


# What is not pooled


def test_what_cannot_be_compared_over_sizes_is_left_out_by_name(size: Size, judge):
    def with_other_tokens(depth: int) -> Rung:
        alike, twice = size(grown(depth)), size(grown(depth), tokens=2 * TOKENS, steps=800)
        runs = [run for run in alike.comparison.records if run.variant != "mhc"]
        others = [run for run in twice.comparison.records if run.variant == "mhc"]
        return Rung(grown(depth), judge(runs, others))

    others = ladder([with_other_tokens(2), with_other_tokens(4)])
    of_8 = {name: at for name, at in losses(8).items() if name != "mhc"}
    without = ladder([size(grown(2)), size(grown(4)), size(grown(8), of_8)])
    other = validate(grown(4).model_dump() | {"optim": {"lr": 2e-2}}, "other")
    newer = ladder([size(grown(2)), size(grown(4)), size(other)])

    for found in (others, without):
        assert [arm.variant for arm in found.arms] == ["standard", "attnres"]
    assert others.left_out[0].startswith("mhc: not comparable")
    assert without.left_out == (f"mhc: not comparable under recipe {grown(8).digest}",)
    assert [rung.recipe.digest for rung in newer.rungs] == [grown(2).digest, other.digest]
    assert newer.left_out == (f"recipe {grown(4).digest}: {other.digest} has the same compute",)


def test_what_differs_between_the_sizes_and_how_they_were_computed_is_said(size: Size, sizes):
    faster = grown(8).model_copy(update={"optim": grown(8).optim.model_copy(update={"lr": 0.02})})
    mixed = ladder(
        [size(grown(2)), size(grown(4)), size(faster, settings={"device_name": "Another CPU"})]
    )

    assert "what differs between the sizes: model.n_layers" in notes(sizes(2, 4))
    assert "what differs between the sizes: model.n_layers, optim.lr" in notes(mixed)
    (line,) = [line for line in notes(mixed) if "computed" in line]
    first, second = line.removeprefix("sizes were computed in different ways, ").split("; ")
    assert first.startswith("and differ in rounding too: 2 layers, 4 layers with cpu fp32 eager")
    assert second.startswith("8 layers with cpu fp32 eager, 1 thread on Another CPU")


def test_what_qualifies_only_one_size_names_it(size: Size):
    rungs = [
        size(grown(depth), {"standard": [loss, loss + 0.01], "attnres": [loss - 0.1, loss - 0.08]})
        for depth, loss in ((2, 2.6), (8, 1.5))  # a bigram table has 2.4
    ]

    told = qualified(ladder(rungs))

    assert any(line.startswith("at 2 layers: the baseline ends above the bigram") for line in told)
    assert any(line.startswith("every arm has the recipe") for line in told)


# Figures


def test_the_figure_of_differences_has_every_arm_at_every_size(sizes):
    found = sizes(2, 4)

    (axes,) = of_sizes(found)[1].figure.axes

    drawn = {line.get_label(): list(line.get_ydata()) for line in axes.lines}
    for variant in ("attnres", "mhc"):
        gaps = [rung.arm(variant).difference.mean for rung in found.rungs]
        assert drawn[variant] == pytest.approx(gaps)
    assert [text.get_text().split() for text in axes.get_xticklabels()] == [
        ["2", "layers"],
        ["4", "layers"],
    ]


def test_the_figure_has_every_seed_the_laws_and_an_arrow_as_long_as_the_multiplier(sizes):
    found = sizes(2, 4, 8, 16, only=("standard", "attnres"))

    drawing, _ = of_sizes(found)
    worse, _ = of_sizes(sizes(2, 4, only=("standard", "mhc")))

    (axes,) = drawing.figure.axes
    drawn = [(list(line.get_xdata()), list(line.get_ydata())) for line in axes.lines]
    arm = found.rungs[0].arm("attnres")
    assert ([compute(arm) * UNIT] * 3, list(arm.losses.values())) in drawn
    laws = {line.get_label(): line for line in axes.lines if line.get_label()[0] != "_"}
    baseline, label = laws
    assert baseline == "standard"
    assert label.startswith("attnres")
    assert "1.30" in label
    x, y = laws[label].get_data()
    shift = 1 + sum(NOISE) / len(NOISE)
    assert y == pytest.approx([shift * LAW.loss(WORTH * each / UNIT) for each in x], rel=1e-5)
    arrow = next(text for text in axes.texts if text.arrow_patch is not None)
    assert arrow.xy[0] / arrow.xyann[0] == pytest.approx(WORTH, rel=1e-4)
    assert arrow.xy[1] == arrow.xyann[1]
    assert arrow.xy[1] == pytest.approx(shift * LAW.loss(arrow.xy[0] / UNIT), rel=1e-4)
    assert "4 sizes; 3 seeds per arm and size; 10,000 tokens per run" in drawing.told
    assert not worse.figure.axes[0].texts  # no arrow of an arm worth less than the baseline
    assert "two points, so that nothing checks it" in worse.caption


# The command, on studies


@pytest.fixture
def attnres(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> Attnres:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "140")
    return Attnres(capsys)


def grow(depth: int, values: Losses | None = None, per_token: int = 0) -> None:
    """Add the runs of one size to the study here."""
    how = {"flops_per_token": per_token or flops(depth), "tokens": TOKENS}
    fill(Path("attnres.db"), grown(depth), losses(depth) if values is None else values, **how)


def test_a_step_against_the_trend_is_printed_beside_it(attnres: Attnres):
    for depth, gap in ((2, 0.08), (4, -0.02), (8, -0.06), (16, 0.01)):
        values, noise = losses(depth), [0.0, 2e-4 * depth, -1e-4 * depth]
        values["mhc"] = [a + gap + b for a, b in zip(values["standard"], noise, strict=True)]
        grow(depth, values)

    store = Store.open("attnres.db", create=False)
    held = Held(store, "attnres.db", store.runs())
    _, arm, mhc = held.ladders(held.choose("grown", "standard"))[0].arms
    out = attnres.prints("report", "--scaling")

    assert (arm.turns, mhc.turns) == ([], [2])
    assert mhc.steps[2].mean == pytest.approx(0.07, abs=1e-3)
    told = "Not in a line, though: from 8 layers to 16 layers mhc changes by +0.070"
    assert told in " ".join(out.split())
    assert multiplier_text(arm.worth) in out


def test_depths_of_one_compute_have_no_law_but_differences_and_their_trend(attnres: Attnres):
    for depth in (2, 4, 8):
        grow(depth, per_token=10**9 + depth)

    out = attnres.prints("report", "--scaling", "--notes")
    page = attnres.prints("report", "--scaling", "--format", "html")

    assert "Per doubling of layers the difference changes by" in out
    assert re.search(r"mhc +\+0.0200 +\+0.0400 +\+0.080\d +\+0.0300 \[", out)
    assert "no multiplier of attnres, mhc: standard takes nearly the same compute" in out
    assert "alpha" not in out
    assert "<figure id='r1-gains'>" in page
    assert "s1-scaling" not in page


def test_one_size_is_refused_in_one_line(attnres: Attnres):
    grow(2, {"standard": [1.5, 1.6]})

    told = attnres.refuses("report", "--scaling")

    assert re.search(r"1 size of recipe grown.*takes two or more.*attnres ablate", told)


def test_a_page_and_figures_have_a_part_for_every_size_and_one_over_them(attnres: Attnres):
    for depth in (4, 2):
        grow(depth)

    page = attnres.prints("report", "--format", "html", "--figures", "drawn")
    _, _, only_scaling = attnres("report", "--scaling", "--figures", "alone/run.png")

    heads = re.findall(r"<h2>([^<]*)</h2>", page)
    assert heads[0] == "Scaling of recipe grown, 2 sizes, never pooled"
    assert [re.findall(r"(\d+) layers", head) for head in heads[1:3]] == [["2"], ["4"]]
    assert page.count("<figure id='s1-scaling'>") == 1
    forests = {f"grown-{grown(depth).digest}-forest.svg" for depth in (2, 4)}
    assert forests <= {path.name for path in Path("drawn").iterdir()}
    assert "figures in alone: run-scaling.png" in only_scaling
    assert {path.name for path in Path("alone").iterdir()} == {"run-gains.png", "run-scaling.png"}
