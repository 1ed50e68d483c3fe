"""`report --scaling`: what an arm is worth over recipes of one name, and what is never pooled."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from commands import attnres
from studies import SETTINGS, fill

from attnres_cli.config.recipe import Recipe, validate
from attnres_cli.errors import StudyError
from attnres_cli.lab.held import Held
from attnres_cli.report.answer import multiplier_text
from attnres_cli.report.figures.drawing import of_sizes
from attnres_cli.report.scaling import notes, qualified
from attnres_cli.stats.scaling import Multiplier, PowerLaw
from attnres_cli.store.store import Store
from attnres_cli.verdict.ladder import Ladder, compute

WORTH, TOKENS = 1.3, 10_000
LAW = PowerLaw(1.5, 0.05, 0.0, 0.0)
NOISE = [0.004, -0.003, 0.001]
UNIT = 8.64e19  # FLOPs of a PFLOP/s-day


def sized(n_layers: int) -> Recipe:
    return validate(
        {
            "name": "grown",
            "model": {"n_layers": n_layers, "d_model": 16, "n_heads": 2, "seq_len": 16},
            "optim": {"lr": 1e-2},
            "train": {"tokens": 384, "batch_size": 4, "eval_tokens": 256},
        },
        "grown",
    )


def losses(n_layers: int, steps: list[float] = NOISE) -> tuple[int, dict[str, list[float]]]:
    """FLOPs per token, and losses: an arm that is worth 1.3 of its compute, noise of seeds shared
    up to the law's steepness.
    """
    flops = 10**9 * n_layers**2
    at = flops * TOKENS / UNIT
    base, arm = LAW.loss(at), LAW.loss(WORTH * at)
    return flops, {
        "standard": [base * (1 + step) for step in steps],
        "attnres": [arm * (1 + step) for step in steps],
        "mhc": [base * (1 + step) + 0.01 * n_layers * (1 + step) for step in steps],
    }


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "140")
    return tmp_path / "attnres.db"


def grow(
    study: Path, *depths: int, only: tuple[str, ...] = ("standard", "attnres", "mhc")
) -> Ladder:
    for depth in depths:
        flops, values = losses(depth)
        values = {variant: values[variant] for variant in only}
        fast = {"flops_per_token": flops, "tokens": TOKENS}
        store = fill(study, sized(depth), values, **fast)
    return over(store)


def over(store: Store) -> Ladder:
    """What the sizes say on the shared terms."""
    held = Held(store, "attnres.db", store.runs())
    return held.ladders(held.choose("grown", "standard"))[0]


@pytest.mark.parametrize("depths", [(2, 8), (2, 4, 8), (2, 4, 8, 16)])
def test_an_arm_of_known_worth_is_found_to_be_worth_that(depths: tuple[int, ...], study: Path):
    found = grow(study, *depths, only=("standard", "attnres"))

    standard, attnres = found.arms
    assert standard.variant == "standard"
    assert standard.law.alpha == pytest.approx(LAW.alpha, rel=1e-6)
    assert attnres.worth.value == pytest.approx(WORTH, rel=1e-4)
    assert (attnres.worth.left_out is None) == (len(depths) == 2)
    assert (attnres.plain is None) == (len(depths) < 4)
    assert (attnres.law.floor, attnres.worth.ci95) == (pytest.approx(0, abs=1e-3), None)
    none = "two sizes leave" if len(depths) == 2 else "no interval of attnres: the losses lie on"
    assert any(line.startswith(none) for line in notes(found))


def test_it_is_said_how_the_sizes_were_computed(study: Path):
    grow(study, 2, 4)
    flops, values = losses(8)
    other = {"settings": replace(SETTINGS, device_name="Another CPU")}
    store = fill(study, sized(8), values, flops_per_token=flops, tokens=TOKENS, **other)

    (line,) = [line for line in notes(over(store)) if "computed" in line]

    first, second = line.removeprefix("sizes were computed in different ways, ").split("; ")
    assert first.startswith("and differ in rounding too: 2 layers, 4 layers with cpu fp32 eager")
    assert second.startswith("8 layers with cpu fp32 eager, 1 thread on Another CPU")


def test_one_run_per_size_and_arm_is_enough_for_a_multiplier_with_its_interval(study: Path, capsys):
    for depth, scatter in ((2, 0.001), (4, -0.002), (8, 0.0015), (16, -0.0005)):
        flops, values = losses(depth, [0.002 * scatter])
        values["attnres"][0] *= 1 + scatter
        store = fill(study, sized(depth), values, flops_per_token=flops, tokens=TOKENS)

    found = over(store)
    code, out, _ = report(capsys)

    attnres = found.arms[1]
    assert attnres.worth.ci95[0] < WORTH < attnres.worth.ci95[1]
    assert {arm.law.floor for arm in found.arms} == {attnres.law.floor}
    assert found.left_out == ()
    assert code == 0
    assert multiplier_text(attnres.worth) in out
    assert "interval: over sizes" in out


def test_an_arm_of_other_tokens_is_left_out_though_it_has_one_run(study: Path):
    for depth in (2, 4):
        flops, values = losses(depth, [0.0])
        more = {"mhc": values.pop("mhc")}
        fill(study, sized(depth), values, flops_per_token=flops, tokens=TOKENS)
        store = fill(study, sized(depth), more, flops_per_token=flops, tokens=2 * TOKENS)

    found = over(store)

    assert [arm.variant for arm in found.arms] == ["standard", "attnres"]
    assert found.left_out[0].startswith("mhc: not comparable")


def test_an_interval_is_never_printed_as_one_number():
    assert multiplier_text(Multiplier(1.3212, 1.0, (1.32119, 1.32121))) == "1.321 [1.321, 1.322]"
    assert multiplier_text(Multiplier(1.321, 1.0, (0.1, 1e9))) == "1.321 [0.100, inf]"


def test_the_rungs_are_in_order_of_compute_and_each_is_compared_for_itself(study: Path):
    found = grow(study, 8, 2, 4)

    assert [rung.recipe.model.n_layers for rung in found.rungs] == [2, 4, 8]
    assert all({len(arm.losses) for arm in rung.comparison.arms} == {3} for rung in found.rungs)


def test_the_trend_over_depth_is_the_slope_that_was_put_in(study: Path):
    found = grow(study, 2, 4, 8)

    mhc = found.arms[-1]
    # 0.02, 0.04 and 0.08 over depths one doubling apart: (0.08 - 0.02) / 2 per doubling
    assert mhc.trend.mean == pytest.approx(0.03, abs=1e-4)
    assert mhc.trend.ci95[0] < 0.03 < mhc.trend.ci95[1]


def test_a_step_against_the_trend_is_told_beside_it(study: Path, capsys):
    for depth, gap in ((2, 0.08), (4, -0.02), (8, -0.06), (16, 0.01)):
        flops, values = losses(depth)
        noise = [0.0, 2e-4 * depth, -1e-4 * depth]
        values["mhc"] = [a + gap + b for a, b in zip(values["standard"], noise, strict=True)]
        store = fill(study, sized(depth), values, flops_per_token=flops, tokens=TOKENS)

    _, attnres, mhc = over(store).arms
    _, out, _ = report(capsys)

    assert attnres.turns == []
    assert mhc.turns == [2]
    assert mhc.steps[2].mean == pytest.approx(0.07, abs=1e-3)
    told = "Not in a line, though: from 8 layers to 16 layers mhc changes by +0.070"
    assert told in " ".join(out.split())


def test_depths_of_one_compute_have_no_law_but_differences_and_their_trend(study: Path, capsys):
    for depth in (2, 4, 8):
        _, values = losses(depth)
        fill(study, sized(depth), values, flops_per_token=10**9 + depth, tokens=TOKENS)

    code, out, _ = report(capsys)
    _, page, _ = report(capsys, "--format", "html")

    assert code == 0
    assert "Per doubling of layers the difference changes by" in out
    assert re.search(r"mhc +\+0.0200 +\+0.0400 +\+0.080\d +\+0.0300 \[", out)
    assert "no multiplier of attnres, mhc: standard takes nearly the same compute" in out
    assert "alpha" not in out
    assert "<figure id='s1-gains'>" in page
    assert "s1-scaling" not in page


def test_what_qualifies_one_size_alone_names_it(study: Path):
    for depth, loss in ((2, 2.6), (8, 1.5)):  # a bigram table has 2.4
        values = {"standard": [loss, loss + 0.01], "attnres": [loss - 0.1, loss - 0.08]}
        store = fill(study, sized(depth), values, flops_per_token=10**9 * depth)

    told = qualified(over(store))

    assert any(line.startswith("at 2 layers: the baseline ends above the bigram") for line in told)
    assert any(line.startswith("one learning rate for every arm") for line in told)


def test_the_figure_of_differences_has_every_arm_at_every_size(study: Path):
    found = grow(study, 2, 4)

    _, drawing = of_sizes(found)

    (axes,) = drawing.figure.axes
    drawn = {line.get_label(): list(line.get_ydata()) for line in axes.lines}
    for variant in ("attnres", "mhc"):
        gaps = [rung.arm(variant).difference.mean for rung in found.rungs]
        assert drawn[variant] == pytest.approx(gaps)
    assert [text.get_text() for text in axes.get_xticklabels()] == ["2 layers", "4 layers"]


def test_two_depths_have_no_trend(study: Path):
    assert grow(study, 2, 4).arms[-1].trend is None


def test_an_arm_that_a_size_lacks_is_left_out_by_name(study: Path):
    grow(study, 2, 4)
    flops, values = losses(8)
    del values["mhc"]
    store = fill(study, sized(8), values, flops_per_token=flops, tokens=TOKENS)

    found = over(store)

    assert [arm.variant for arm in found.arms] == ["standard", "attnres"]
    assert found.left_out == (f"mhc: not comparable under recipe {sized(8).digest}",)


def test_of_two_recipes_of_one_compute_the_newer_counts_and_the_other_is_named(study: Path):
    grow(study, 2, 4)
    flops, values = losses(4)
    other = validate(sized(4).model_dump() | {"optim": {"lr": 2e-2}}, "other")
    store = fill(study, other, values, flops_per_token=flops, tokens=TOKENS)

    found = over(store)

    assert [rung.recipe.digest for rung in found.rungs] == [sized(2).digest, other.digest]
    assert found.left_out == (f"recipe {sized(4).digest}: {other.digest} has the same compute",)


def test_one_size_is_no_ladder(study: Path):
    with pytest.raises(StudyError, match=r"1 size of recipe grown.*attnres ablate"):
        grow(study, 2)


def report(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    return attnres(capsys, "report", "--scaling", *arguments)


def test_one_size_alone_is_one_line(study: Path, capsys, tiny_recipe: Recipe):
    fill(study, tiny_recipe, {"standard": [1.5, 1.6]})

    code, out, err = report(capsys)

    assert (code, out) == (2, "")
    assert "takes two or more" in err
    assert err.count("\n") == 1


def test_the_figure_has_every_seed_the_laws_and_an_arrow_as_long_as_the_multiplier(study: Path):
    found = grow(study, 2, 4, 8, 16, only=("standard", "attnres"))

    drawing, _ = of_sizes(found)

    (axes,) = drawing.figure.axes
    drawn = [(line.get_xdata(), line.get_ydata()) for line in axes.lines]
    arm = found.rungs[0].arm("attnres")
    at = compute(arm) * UNIT
    assert ([at] * 3, list(arm.losses.values())) in [(list(x), list(y)) for x, y in drawn]
    laws = {line.get_label(): line for line in axes.lines if line.get_label()[0] != "_"}
    assert list(laws) == ["standard", *(each for each in laws if each != "standard")]
    (label,) = (each for each in laws if each.startswith("attnres"))
    assert "1.30" in label
    x, y = laws[label].get_data()
    shift = 1 + sum(NOISE) / len(NOISE)
    assert y == pytest.approx([shift * LAW.loss(WORTH * flops / UNIT) for flops in x], rel=1e-5)
    arrow = next(text for text in axes.texts if text.arrow_patch is not None)
    assert arrow.xy[0] / arrow.xyann[0] == pytest.approx(WORTH, rel=1e-4)
    assert arrow.xy[1] == arrow.xyann[1]
    assert arrow.xy[1] == pytest.approx(shift * LAW.loss(arrow.xy[0] / UNIT), rel=1e-4)
    assert "4 sizes; 3 seeds per arm and size; 10,000 tokens per run" in drawing.caption


def test_an_arm_worth_less_than_the_baseline_has_no_arrow(study: Path):
    for depth in (2, 4):
        flops, values = losses(depth)
        worse = {"standard": values["standard"], "mhc": values["mhc"]}
        store = fill(study, sized(depth), worse, flops_per_token=flops, tokens=TOKENS)
    found = over(store)

    drawing, _ = of_sizes(found)

    assert not drawing.figure.axes[0].texts
    assert "two points, so that nothing checks it" in drawing.caption


def test_figures_of_a_study_with_sizes_have_loss_over_compute(study: Path, capsys):
    grow(study, 2, 4)

    _, _, alone = report(capsys, "--figures", "alone/run.png")
    attnres(capsys, "report", "--figures", "all")

    assert "figures in alone: run-scaling.png" in alone
    assert {path.name for path in (study.parent / "alone").iterdir()} == {
        "run-gains.png", "run-scaling.png"
    }  # fmt: skip
    names = {path.name for path in (study.parent / "all").iterdir()}
    assert {"gains.svg", "scaling.svg", "forest.svg"} <= names


def test_a_page_has_a_part_for_every_size_and_one_over_them(study: Path, capsys):
    grow(study, 8, 2, 4)

    _, page, _ = attnres(capsys, "report", "--format", "html", "--figures", "drawn")

    heads = re.findall(r"<h2>(.*?)</h2>", page)
    assert heads[0] == "Scaling of recipe grown, 3 sizes, never pooled"
    assert [re.findall(r"(\d+) layers", head) for head in heads[1:4]] == [["2"], ["4"], ["8"]]
    assert "Per doubling of layers the difference changes by" in page
    assert page.count("<figure id='s1-scaling'>") == 1
    names = {path.name for path in (study.parent / "drawn").iterdir()}
    assert {f"grown-{sized(depth).digest}-forest.svg" for depth in (2, 4, 8)} <= names


def test_what_differs_between_the_sizes_is_said(study: Path):
    found = grow(study, 2, 4)
    flops, values = losses(8)
    faster = sized(8).model_copy(update={"optim": sized(8).optim.model_copy(update={"lr": 0.02})})
    store = fill(study, faster, values, flops_per_token=flops, tokens=TOKENS)
    mixed = over(store)

    assert "what differs between the sizes: model.n_layers" in notes(found)
    assert "what differs between the sizes: model.n_layers, optim.lr" in notes(mixed)
