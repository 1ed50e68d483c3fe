"""`attnres bench`: what is shown, and that what is wrong is not timed. No time is asserted."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import Attnres
from torch import Tensor

from attnres_cli.lab import bench
from attnres_cli.nn import measure
from attnres_cli.nn.depthmix.history import History
from attnres_cli.nn.depthmix.reference import Reference

SIZES = ("--set=model.d_model=16", "--set=train.batch_size=2", "--set=train.tokens=1k")
TINY = ("--recipe", "smoke", "--rounds", "2", *SIZES)
STEP = ("bench", *TINY)
DECODE = ("bench", "decode", *TINY, "--tokens", "3", "--batch", "1", "--batch", "2")
Wrong = Callable[[Tensor, Tensor], Tensor]
BreakReads = Callable[[Wrong], None]


@pytest.fixture(autouse=True)
def _assume_a_speed_of_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "copy_speed", lambda device: 1e9)  # takes a while


@pytest.fixture
def break_reads(monkeypatch: pytest.MonkeyPatch) -> BreakReads:
    """A function that makes every engine but the reference read wrong(h, v_0) in place of h."""
    right = History.read

    def broken(wrong: Wrong) -> None:
        def read(self: History, site: int, query: Tensor | None = None) -> tuple[Tensor, History]:
            h, history = right(self, site, query)
            if isinstance(history.engine, Reference):
                return h, history
            return wrong(h, history.sources[0]), history

        monkeypatch.setattr(History, "read", read)

    return broken


def arms_of(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {arm["variant"]: arm for arm in document["arms"]}


def failed(attnres: Attnres, *arguments: str) -> tuple[dict[str, dict[str, Any]], str]:
    """The arms of a command some of whose arms are not timed, and its stderr."""
    code, out, err = attnres(*arguments, "--format", "json")
    assert code == 3
    return arms_of(json.loads(out)), err


def test_json_has_all_that_was_measured_and_counted(attnres: Attnres):
    document = attnres.json(*STEP)

    arms, conditions = arms_of(document), document["conditions"]
    assert list(arms) == ["standard", "attnres", "attnres:block_size=4", "denseformer"]
    for arm in arms.values():
        assert arm["wrong"] is None
        assert len(arm["seconds"]) == 2
        assert set(arm["step_s"]) == set(arm["ratio"]) == {"median", "low", "high"}
        assert arm["tokens_per_second"] > 0
        assert arm["peak_bytes"] > 12 * arm["n_params"]  # weights and AdamW's two moments
        assert max(arm["disagreement"]) < 1e-3
    assert arms["standard"]["ratio"] == {"median": 1.0, "low": 1.0, "high": 1.0}
    assert arms["standard"]["extra_s_per_token"] == 0
    assert arms["attnres"]["table_one"]["paper"] == 24
    assert arms["denseformer"]["table_one"] is None
    assert (conditions["engine"], conditions["rounds"]) == ("eager", 2)
    assert conditions["shape"]["d_model"] == 16
    assert set(conditions["versions"]) == {"attnres", "torch", "python"}
    assert conditions["threads"] >= 1
    assert conditions["device_name"]
    assert document["tokens_per_step"] == 64
    n_sublayers, d_model = 4, 16
    extra = arms["attnres"]["extra_bytes"] / 4 / d_model / n_sublayers  # of 4 bytes each
    assert extra > 0
    assert arms["standard"]["io_per_sublayer"] == 3
    assert arms["attnres"]["io_per_sublayer"] == pytest.approx(3 + extra)


def test_the_table_shows_arms_machine_and_the_papers_reading(attnres: Attnres):
    import torch

    out = attnres.prints(*STEP, "standard", "attnres", "denseformer")

    for word in ("ms/step", "vs standard", "tokens/s", "memory", "extra FLOPs", "extra bytes"):
        assert word in out
    assert "4.00 d at S=2, N=2 [24 d]" in out
    assert "no formula in the paper" in out
    assert "engine eager" in out
    assert f"torch {torch.__version__}" in out


@pytest.mark.parametrize("command", [STEP, DECODE])
def test_markdown_and_csv_hold_every_arm(command: tuple[str, ...], attnres: Attnres):
    markdown = attnres.prints(*command, "attnres", "--format", "markdown")
    rows = {row["variant"]: row for row in attnres.csv(*command)}

    assert "| `attnres` |" in markdown
    assert "| `standard` |" in markdown
    assert rows.keys() >= {"standard", "denseformer"}
    assert float(rows["standard"]["ratio_median"])


def test_a_baseline_that_you_do_not_ask_for_is_timed_too(attnres: Attnres):
    """`bench step` is `bench`."""
    typed = ("bench", "step", "attnres", "--baseline", "denseformer", *TINY, "--format", "json")

    code, out, err = attnres(*typed)

    assert code == 0
    assert "the baseline denseformer is timed too" in err
    assert list(arms_of(json.loads(out))) == ["denseformer", "attnres"]


WRONG: dict[str, tuple[Wrong, str]] = {
    "the sum": (lambda h, x: h + 0.1 * x, "its loss|its gradient"),
    "the gradient": (lambda h, x: h + 0.1 * (h - h.detach()), "its gradient of .* is off"),
    "no number": (lambda h, x: h * float("nan"), "its loss .* nan"),
}


@pytest.mark.parametrize(("wrong", "words"), WRONG.values(), ids=WRONG)
def test_an_engine_that_is_wrong_is_said_and_not_timed(
    wrong: Wrong, words: str, break_reads: BreakReads, attnres: Attnres
):
    break_reads(wrong)

    arms, err = failed(attnres, *STEP, "standard", "attnres")

    assert "wrong, and not timed: attnres" in err
    assert re.search(words, arms["attnres"]["wrong"])
    assert arms["attnres"]["seconds"] == []
    assert arms["attnres"]["ratio"] is None
    assert arms["standard"]["wrong"] is None
    assert arms["standard"]["step_s"] is not None


def test_the_table_says_what_is_wrong_and_a_wrong_baseline_leaves_times_without_ratios(
    break_reads: BreakReads, attnres: Attnres
):
    break_reads(WRONG["the gradient"][0])
    typed = (*STEP, "standard", "--baseline", "attnres")

    code, table, _ = attnres(*typed)
    arms, _ = failed(attnres, *typed)

    assert code == 3
    assert "wrong: attnres: it" in table
    assert arms["standard"]["step_s"] is not None
    assert arms["standard"]["ratio"] is None


def test_an_arm_that_cannot_be_run_does_not_stop_the_others(
    break_reads: BreakReads, attnres: Attnres
):
    def fails(h: Tensor, x: Tensor) -> Tensor:
        if h.is_meta:  # counted, not computed
            return h
        raise RuntimeError("out of luck")

    break_reads(fails)

    arms, _ = failed(attnres, *STEP, "standard", "attnres")

    assert arms["attnres"]["wrong"] == "it cannot be run: RuntimeError: out of luck"
    assert len(arms["standard"]["seconds"]) == 2


def test_the_engine_and_the_precision_that_you_ask_for_are_used(attnres: Attnres):
    asked = ("--engine", "reference", "--set", "train.precision=bf16")

    document = attnres.json(*STEP, "attnres", *asked)

    found = arms_of(document)["attnres"]
    assert document["conditions"]["engine"] == "reference"
    assert document["conditions"]["computed"] == "cpu bf16 eager, 1 thread"
    assert found["wrong"] is None
    assert 1e-5 < found["disagreement"][1] < 0.08  # bf16 is rougher than what it is compared with


@pytest.mark.slow
def test_compiled_arms_say_so_and_show_their_start(attnres: Attnres):
    compiled = ("--set", "train.compile=on", "--set", "model.n_layers=1")
    code, out, err = attnres(*STEP, "standard", *compiled, "--format", "json")

    document = json.loads(out)
    assert code == 0
    assert "compiling standard, about a minute, once" in err
    assert document["conditions"]["engine"] == "compile"
    assert all(arm["start_s"] > 0 for arm in document["arms"])


def test_decoding_is_timed_per_batch_size(attnres: Attnres):
    document = attnres.json(*DECODE)

    assert (document["n_prompt"], document["n_new"]) == (16, 3)
    for arm in document["arms"]:
        assert arm["wrong"] is None
        assert set(arm["batch_sizes"]) == {"1", "2"}
        for found in arm["batch_sizes"].values():
            assert len(found["seconds"]) == 2
            assert set(found["token_s"]) == set(found["ratio"]) == {"median", "low", "high"}


def test_decoding_has_a_table(attnres: Attnres):
    out = attnres.prints("bench", "decode", "attnres", *TINY, "--tokens", "2")

    assert "ms per generated token" in out
    assert "batch 16 vs standard" in out


def test_decoding_that_is_wrong_is_said_and_not_timed(break_reads: BreakReads, attnres: Attnres):
    break_reads(lambda h, x: -h)

    arms, err = failed(attnres, *DECODE, "standard", "attnres")

    assert "wrong, and not timed: attnres" in err
    assert "not the reference's likeliest" in arms["attnres"]["wrong"]
    assert arms["attnres"]["batch_sizes"]["1"]["token_s"] is None
    assert arms["standard"]["batch_sizes"]["1"]["token_s"] is not None


def test_bad_input_is_one_line_and_exit_code_2(
    folder: Path, attnres: Attnres, subtests: pytest.Subtests
):
    for typed, words in (
        ("standart", "did you mean 'standard'?"),
        ("attnres:blocksize=4", "did you mean 'block_size'?"),
        ("--baseline standrad", "did you mean 'standard'?"),
        ("--recipe quik", "did you mean 'quick'?"),
        ("--set model.d_modl=4", "did you mean 'd_model'?"),
        ("--format jsno", "did you mean 'json'?"),
        ("--engine eger", "did you mean 'eager'?"),
        ("--device gpu", "auto, cpu, cuda or cuda:N"),
        ("--rounds 0", "rounds"),
        ("--round 3", "--rounds"),
        ("decode standart", "did you mean 'standard'?"),
        ("decode --batch 0", "batch"),
        ("decode --engine compile", "train.compile=on compiles generation"),
        ("decode --set model.seq_len=2", "at least 4 positions"),
    ):
        with subtests.test(typed):
            code, out, err = attnres("bench", *typed.split())
            (told,) = [line for line in err.splitlines() if "checking" not in line]
            assert (code, out) == (2, "")
            assert words in told
            assert list(folder.iterdir()) == []


def test_ctrl_c_ends_with_130_and_one_line(monkeypatch: pytest.MonkeyPatch, attnres: Attnres):
    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(bench, "steps", stopped)

    code, out, err = attnres(*STEP, "standard")

    assert (code, out) == (130, "")
    assert err.splitlines()[-1] == "attnres: interrupted; nothing was kept"


def test_help_tells_of_both(attnres: Attnres):
    steps, decode = attnres.prints("bench", "--help"), attnres.prints("bench", "decode", "--help")

    assert "attnres bench decode" in steps
    assert "--rounds" in steps
    assert "--batch" in decode
