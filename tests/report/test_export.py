"""A comparison for scripts, spreadsheets and pages."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
from typing import Any, NoReturn

import pytest

from attnres_cli.records.run import Status
from attnres_cli.report import comparison as export
from attnres_cli.report import formats, terminal
from attnres_cli.verdict.comparison import Comparison, compare

ARM = {
    "variant": str,
    "seeds": list,
    "params": int,
    "params_delta": int,
    "flops_per_token": int,
    "tokens": int,
    "mean": float,
    "sd": float,
    "losses": dict,
    "tokens_per_second": float,
    "mfu": type(None),  # no peak of this device is known
    "step_ms": float,
    "engines": list,
    "difference": dict,
    "verdict": str,
    "reason": str,
    "recipe_digest": str,
    "own": type(None),
    "gates": dict,
}
DIFFERENCE = {
    "n": int,
    "mean": float,
    "sd": float,
    "ci95": list,
    "p": float,
    "p_holm": float,
    "p_sign_flip": float,
    "p_sign_flip_is_exact": bool,
    "bca95": type(None),  # below six seeds
    "correlation": float,
    "gain": float,
    "detectable": float,
    "seeds_needed": int,
}
PROMISED = {
    "recipe": str,
    "recipe_digest": str,
    "data": dict,
    "baseline": str,
    "metric": str,
    "unit": str,
    "arms": list,
    "failed": list,
}
WITH_OPTIONS = "attnres:block_size=4,heads=2"


@pytest.fixture
def comparison(make_arm, make_run, facts) -> Comparison:
    """A baseline, a better arm, one that diverged, one with a single seed, and a failed run."""
    records = [
        *make_arm("standard", 1.50, 1.70, 1.60),
        *make_arm(WITH_OPTIONS, 1.39, 1.59, 1.50, n_params=1_000_500, step_s=0.0125),
        make_run("denseformer", 0, val_loss=1.45),
        make_run("denseformer", 1, status=Status.DIVERGED, steps=7),
        make_run("lone", 0, val_loss=2.0),
        make_run("broken", 0, status=Status.FAILED, error="Traceback ...\nValueError: a, b"),
    ]
    return compare(records, facts, "standard")


@pytest.fixture
def document(comparison: Comparison) -> dict[str, Any]:
    def refuse(constant: str) -> NoReturn:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(formats.to_json(export.report_of([comparison])), parse_constant=refuse)


@pytest.fixture
def rows(comparison: Comparison) -> dict[str, dict[str, str]]:
    """The lines of the CSV, by variant."""
    reader = csv.DictReader(
        io.StringIO(formats.to_csv(export.report_of([comparison]))), strict=True
    )
    return {row["variant"]: row for row in reader}


def types_of(values: dict[str, Any]) -> dict[str, type]:
    return {key: type(value) for key, value in values.items()}


def named(document: dict[str, Any], variant: str) -> dict[str, Any]:
    (arm,) = [arm for arm in document["arms"] if arm["variant"] == variant]
    return arm


def table_of(markdown: str) -> list[list[str]]:
    """The cells of every row below the head."""
    lines = [line for line in markdown.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_json_has_the_promised_keys(document: dict[str, Any]):
    assert types_of(document).items() >= PROMISED.items()


def test_json_says_what_was_compared(document: dict[str, Any]):
    data = {"source": "stdlib", "fingerprint": "0123456789abcdef", "bytes": 1000}

    assert document["data"] == data
    assert (document["recipe"], document["recipe_digest"]) == ("quick", "abcdef012345")
    assert (document["metric"], document["unit"]) == ("val_loss", "nats/token")
    assert document["baseline"] == "standard"


def test_json_has_exactly_the_promised_keys_per_arm(document: dict[str, Any]):
    assert [arm.keys() for arm in document["arms"]] == [ARM.keys()] * 4
    assert types_of(named(document, WITH_OPTIONS)) == ARM


def test_json_has_exactly_the_promised_keys_per_difference(document: dict[str, Any]):
    difference = named(document, WITH_OPTIONS)["difference"]

    assert types_of(difference) == DIFFERENCE
    assert types_of(dict(enumerate(difference["ci95"]))) == {0: float, 1: float}


def test_json_has_the_numbers_of_the_comparison(document: dict[str, Any], comparison: Comparison):
    arm, ours = comparison.arms[1], named(document, comparison.arms[1].variant)

    assert arm.difference is not None
    assert ours["losses"] == {str(seed): loss for seed, loss in arm.losses.items()}
    assert ours["seeds"] == list(arm.losses)
    assert (ours["mean"], ours["sd"]) == (arm.mean, arm.sd)
    assert ours["difference"]["p_holm"] == arm.difference.p_holm
    assert ours["difference"]["ci95"] == list(arm.difference.ci95)


def test_json_keeps_the_order_and_verdicts_of_the_arms(
    document: dict[str, Any], comparison: Comparison
):
    said = [(arm["variant"], arm["verdict"], arm["reason"]) for arm in document["arms"]]

    assert said == [(arm.variant, arm.verdict, arm.reason) for arm in comparison.arms]


def test_json_gives_times_in_milliseconds(document: dict[str, Any]):
    assert named(document, WITH_OPTIONS)["step_ms"] == pytest.approx(12.5)


def test_the_share_of_a_known_peak_is_told(make_arm, facts):
    a100 = {"device_name": "NVIDIA A100-SXM4-80GB", "precision": "bf16"}
    speeds = {"tokens_per_second": 1e6, "flops_per_token": 156_000_000, "settings": a100}
    comparison = compare(make_arm("standard", 1.5, 1.4, **speeds), facts, "standard")

    (arm,) = json.loads(formats.to_json(export.report_of([comparison])))["arms"]

    assert arm["mfu"] == pytest.approx(0.5)
    assert "standard: 1,000,000 tokens/s, MFU 50.0 %" in export.facts_of(comparison)


def test_json_has_null_where_a_run_diverged(document: dict[str, Any]):
    arm = named(document, "denseformer")

    assert (arm["mean"], arm["sd"], arm["difference"]) == (None, None, None)
    assert arm["losses"] == {"0": 1.45, "1": None}


def test_json_has_null_for_the_spread_of_one_seed(document: dict[str, Any]):
    assert named(document, "lone")["sd"] is None


def test_json_lists_failed_runs_by_one_line(document: dict[str, Any]):
    assert document["failed"] == [{"variant": "broken", "seed": 0, "error": "ValueError: a, b"}]


def test_json_and_csv_name_the_engines_of_an_arm(make_arm, make_run, facts):
    runs = [*make_arm("a", 1.5, 1.4), make_run("a", 2, settings={"engine": "compile"})]
    comparison = compare(runs, facts, "standard")

    (arm,) = json.loads(formats.to_json(export.report_of([comparison])))["arms"]
    (row,) = csv.DictReader(
        io.StringIO(formats.to_csv(export.report_of([comparison]))), strict=True
    )

    assert arm["engines"] == ["compile", "eager"]
    assert row["engines"] == "compile eager"


def test_json_without_a_baseline_has_no_parameter_difference(make_arm, facts):
    comparison = compare(make_arm("attnres", 1.5, 1.4), facts, "standard")

    (arm,) = json.loads(formats.to_json(export.report_of([comparison])))["arms"]

    assert arm["params_delta"] is None
    assert arm["verdict"] == "blocked"


def test_csv_has_one_line_per_arm_in_order(comparison: Comparison):
    lines = formats.to_csv(export.report_of([comparison])).splitlines()
    variants = [row["variant"] for row in csv.DictReader(lines, strict=True)]

    assert len(lines) == 1 + len(comparison.arms)
    assert variants == [arm.variant for arm in comparison.arms]


def test_csv_fills_every_column_of_an_arm_that_was_compared(rows: dict[str, dict[str, str]]):
    unknown = {"floor", "zlib_bits_per_byte", "xz_bits_per_byte"}  # of these data
    unknown |= {"own", "mfu"}  # its recipe is the shared one, its device's peak is not known
    unknown |= {"registered"}  # nothing is preregistered

    assert {name for name, value in rows[WITH_OPTIONS].items() if not value} == unknown


def test_csv_has_the_numbers_of_the_comparison(
    rows: dict[str, dict[str, str]], comparison: Comparison
):
    row, arm = rows[comparison.arms[1].variant], comparison.arms[1]

    assert arm.difference is not None
    difference = (arm.difference.mean, *arm.difference.ci95, arm.difference.p_holm)
    read = [float(row[key]) for key in ("difference", "ci95_low", "ci95_high", "p_holm")]
    assert read == list(difference)
    assert float(row["bits_per_byte"]) == pytest.approx(arm.mean / math.log(2))


@pytest.mark.parametrize("column", ["mean", "sd", "bits_per_byte", "difference", "p", "ci95_low"])
def test_csv_is_empty_where_a_diverged_arm_has_no_value(
    column: str, rows: dict[str, dict[str, str]]
):
    assert rows["denseformer"][column] == ""


def test_markdown_has_one_row_per_arm_with_a_cell_per_column(comparison: Comparison):
    rows = table_of(formats.to_markdown(export.report_of([comparison])))

    assert [row[0] for row in rows] == [f"`{arm.variant}`" for arm in comparison.arms]
    assert {len(row) for row in rows} == {7}


def test_markdown_says_verdict_reason_and_failures(comparison: Comparison):
    text = formats.to_markdown(export.report_of([comparison]))

    assert "| better |" in text
    assert "| blocked: seed 1 diverged at step 7 |" in text
    assert "- failed: `broken` seed 0: ValueError: a, b" in text


def test_a_loss_is_told_with_its_spread_where_it_has_one(comparison: Comparison):
    texts = {arm.variant: export.loss_text(arm) for arm in comparison.arms}

    assert texts["standard"] == "1.6000 ± 0.1000"
    assert texts["lone"] == "2.0000"
    assert texts["denseformer"] == "diverged"


def test_a_difference_is_told_with_signs_and_interval(comparison: Comparison):
    texts = {arm.variant: export.difference_text(arm) for arm in comparison.arms}

    assert texts[WITH_OPTIONS] == "-0.1067 [-0.1210, -0.0923]"
    assert texts["standard"] == "-"


def test_a_loss_of_ln_two_is_one_bit_per_byte():
    assert export.bits_per_byte(math.log(2)) == 1


def test_the_facts_hold_the_reference_lines(comparison: Comparison):
    text = "\n".join(export.facts_of(comparison))

    assert "(bigram) 2.4000" in text
    assert "(unigram) 3.3000" in text
    assert "floor" not in text
    assert "compressors" not in text


def test_what_compressors_make_of_bytes_is_told_as_a_loss_too(make_arm, facts):
    packed = dataclasses.replace(facts, zlib_bits=2.0, xz_bits=1.5)
    comparison = compare(make_arm("standard", 1.5, 1.6), packed, "standard")

    assert (
        "compressors, on at most a MiB of validation text: zlib 2.0000 bits/byte (1.3863 "
        "nats/token), xz 1.5000 bits/byte (1.0397 nats/token)"
    ) in export.facts_of(comparison)


def test_what_compressors_make_of_tokenised_text_is_told_per_byte_alone(make_arm, facts):
    packed = dataclasses.replace(facts, vocab_size=50257, zlib_bits=2.0, xz_bits=1.5)
    comparison = compare(make_arm("standard", 1.5, 1.6), packed, "standard")

    (line,) = (line for line in export.facts_of(comparison) if "compressors" in line)
    assert line.endswith("zlib 2.0000 bits/byte, xz 1.5000 bits/byte")


def test_the_floor_of_a_task_is_told_in_every_format(make_arm, facts, capsys):
    task = dataclasses.replace(facts, source="recall", n_bytes=0, train_tokens=0, floor=0.8125)
    comparison = compare(make_arm("standard", 1.5, 1.6), task, "standard")
    terminal.print_comparison(comparison)

    line = "floor: a model that knows the task loses 0.8125 nats/token"
    assert line in capsys.readouterr().out
    assert f"- {line}" in formats.to_markdown(export.report_of([comparison]))
    reference = json.loads(formats.to_json(export.report_of([comparison])))["reference"]
    assert reference == {
        "unigram_entropy": 3.3,
        "bigram_entropy": 2.4,
        "floor": 0.8125,
        "zlib_bits_per_byte": None,
        "xz_bits_per_byte": None,
    }
    (row,) = csv.DictReader(formats.to_csv(export.report_of([comparison])).splitlines())
    assert (row["floor"], row["bigram_entropy"], row["xz_bits_per_byte"]) == ("0.8125", "2.4", "")


def test_the_facts_say_when_the_baseline_has_learned_too_little(make_arm, facts):
    well = compare(make_arm("standard", 1.5, 1.6), facts, "standard")
    badly = compare(make_arm("standard", 2.5, 2.6), facts, "standard")

    assert "above the bigram line" not in "\n".join(export.facts_of(well))
    assert "above the bigram line" in "\n".join(export.facts_of(badly))


def test_the_facts_say_which_arms_another_engine_computed(make_arm, facts):
    base = make_arm("standard", 1.5, 1.6)
    alike = compare(base + make_arm("a", 1.4, 1.5), facts, "standard")
    other = make_arm("a", 1.4, 1.5, settings={"engine": "compile"})
    mixed = compare(base + other, facts, "standard")

    assert "different engines" not in "\n".join(export.facts_of(alike))
    assert (
        "arms computed by different engines, which agree to rounding: standard by eager; "
        "a by compile"
    ) in export.facts_of(mixed)


@pytest.mark.parametrize("write", [formats.to_json, formats.to_csv, formats.to_markdown])
def test_a_comparison_without_any_result_can_be_written(write, make_run, facts):
    comparison = compare([make_run("a", 0, status=Status.FAILED, error="no")], facts, "standard")

    assert write(comparison)


def test_losses_of_tokens_that_are_no_bytes_are_not_said_to_be_of_bytes(make_run, facts, capsys):
    tokens = dataclasses.replace(facts, source="nanogpt", n_bytes=2000, vocab_size=50257)
    task = dataclasses.replace(facts, source="recall", n_bytes=0, train_tokens=0)

    for data, size in ((tokens, "1,000 tokens, 50 of"), (task, "generated without end, 50 tokens")):
        comparison = compare([make_run("standard", 0), make_run("standard", 1)], data, "standard")
        terminal.print_comparison(comparison)
        out = capsys.readouterr().out
        assert "bits/byte" not in out
        assert size in out
        assert "next token given this token" in out
        (row,) = csv.DictReader(formats.to_csv(export.report_of([comparison])).splitlines())
        assert row["bits_per_byte"] == ""
