"""`attnres bench`: what is shown, and that what is wrong is not timed. No time is asserted."""

from __future__ import annotations

import json
import re
import shlex
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
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
    standard, attnres_ = arms["standard"], arms["attnres"]
    assert list(arms) == ["standard", "attnres", "attnres:block_size=4", "denseformer"]
    for arm in arms.values():
        assert (arm["wrong"], len(arm["seconds"])) == (None, 2)
        assert set(arm["step_s"]) == set(arm["ratio"]) == {"median", "low", "high"}
        assert arm["tokens_per_second"] > 0
        assert arm["peak_bytes"] > 12 * arm["n_params"]  # weights and AdamW's two moments
        assert max(arm["disagreement"]) < 1e-3
    assert standard["ratio"] == {"median": 1.0, "low": 1.0, "high": 1.0}
    assert standard["extra_s_per_token"] == 0
    assert attnres_["table_one"]["paper"] == 24
    assert arms["denseformer"]["table_one"] is None
    assert (conditions["engine"], conditions["rounds"]) == ("eager", 2)
    assert conditions["shape"]["d_model"] == 16
    assert set(conditions["versions"]) == {"attnres", "torch", "python"}
    assert conditions["threads"] >= 1
    assert conditions["device_name"]
    assert document["tokens_per_step"] == 64
    n_sublayers, d_model = 4, 16
    extra = attnres_["extra_bytes"] / 4 / d_model / n_sublayers  # of 4 bytes each
    assert extra > 0
    assert standard["io_per_sublayer"] == 3
    assert attnres_["io_per_sublayer"] == pytest.approx(3 + extra)


def test_a_study_keeps_the_ratios_and_its_report_then_has_times(attnres: Attnres, here: Path):
    typed = ("ablate", "standard", "attnres", "--recipe", "smoke", *SIZES, "--seeds", "2")
    attnres(*typed, "--in-process")
    with closing(sqlite3.connect("attnres.db")) as study:
        study.execute("DELETE FROM attnres_step_ratios")
        study.commit()
    told = " ".join(attnres.prints("report", "--notes").split())
    command = re.search(r"`attnres (bench [^`]*--study attnres\.db)` times in turn", told)
    assert command is not None
    assert attnres.json("report")["arms"][1]["step_ratio"] is None

    attnres.prints(*shlex.split(command[1]), "--rounds", "2")

    assert attnres.json("report")["arms"][1]["step_ratio"]["n"] == 2
    other = attnres.refuses("bench", "--recipe", "smoke", "--study", "attnres.db")
    assert "study attnres.db has no recipe smoke (" in other
    assert "other.db" in attnres.refuses(*STEP, "--study", "other.db")
    assert not Path("other.db").exists()


def test_tables_show_arms_machine_and_the_papers_reading(attnres: Attnres):
    steps = attnres.prints(*STEP, "standard", "attnres", "denseformer")
    decode = attnres.prints("bench", "decode", "attnres", *TINY, "--tokens", "2")

    for word in ("ms/step", "vs standard", "tokens/s", "memory", "extra FLOPs", "extra bytes"):
        assert word in steps
    assert "4.00 d at S=2, N=2 [24 d]" in steps
    assert "no formula in the paper" in steps
    assert "engine eager" in steps
    assert f"torch {torch.__version__}" in steps
    assert "ms per generated token" in decode
    assert "batch 16 vs standard" in decode


@pytest.mark.parametrize("command", [STEP, DECODE])
def test_markdown_and_csv_hold_every_arm(command: tuple[str, ...], attnres: Attnres):
    markdown = attnres.prints(*command, "attnres", "--format", "markdown")
    rows = {row["variant"]: row for row in attnres.csv(*command)}
    assert "| `attnres` |" in markdown
    assert "| `standard` |" in markdown
    assert rows.keys() >= {"standard", "denseformer"}
    assert float(rows["standard"]["ratio_median"])


def test_the_baseline_engine_and_precision_that_you_ask_for_are_used(attnres: Attnres):
    """A baseline that is no arm is timed too; `bench step` is `bench`."""
    asked = "--baseline denseformer --engine reference --set train.precision=bf16 --format json"

    code, out, err = attnres("bench", "step", "attnres", *TINY, *asked.split())

    document = json.loads(out)
    found, conditions = arms_of(document), document["conditions"]
    assert code == 0
    assert "the baseline denseformer is timed too" in err
    assert list(found) == ["denseformer", "attnres"]
    assert conditions["engine"] == "reference"
    assert conditions["computed"] == "cpu bf16 eager, 1 thread"
    assert found["attnres"]["wrong"] is None
    assert 1e-5 < found["attnres"]["disagreement"][1] < 0.08  # bf16 is rough


def fails(h: Tensor, x: Tensor) -> Tensor:
    if h.is_meta:  # counted, not computed
        return h
    raise RuntimeError("out of luck")


WRONG: dict[str, tuple[Wrong, str]] = {
    "the sum": (lambda h, x: h + 0.1 * x, "its loss|its gradient"),
    "the gradient": (lambda h, x: h + 0.1 * (h - h.detach()), "its gradient of .* is off"),
    "no number": (lambda h, x: h * float("nan"), "its loss .* nan"),
    "an error": (fails, "^it cannot be run: RuntimeError: out of luck$"),
}


@pytest.mark.parametrize(("wrong", "words"), WRONG.values(), ids=WRONG)
def test_an_arm_that_is_wrong_or_cannot_be_run_is_said_and_not_timed_and_others_are(
    wrong: Wrong, words: str, break_reads: BreakReads, attnres: Attnres
):
    break_reads(wrong)

    arms, err = failed(attnres, *STEP, "standard", "attnres")

    assert "wrong, and not timed: attnres" in err
    assert re.search(words, arms["attnres"]["wrong"])
    assert (arms["attnres"]["seconds"], arms["attnres"]["ratio"]) == ([], None)
    assert arms["standard"]["wrong"] is None
    assert len(arms["standard"]["seconds"]) == 2
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
        assert (arm["wrong"], set(arm["batch_sizes"])) == (None, {"1", "2"})
        for found in arm["batch_sizes"].values():
            assert len(found["seconds"]) == 2
            assert set(found["token_s"]) == set(found["ratio"]) == {"median", "low", "high"}


def test_decoding_that_is_wrong_is_said_and_not_timed(break_reads: BreakReads, attnres: Attnres):
    break_reads(lambda h, x: -h)
    arms, err = failed(attnres, *DECODE, "standard", "attnres")
    assert "wrong, and not timed: attnres" in err
    assert "not the reference's likeliest" in arms["attnres"]["wrong"]
    assert arms["attnres"]["batch_sizes"]["1"]["token_s"] is None
    assert arms["standard"]["batch_sizes"]["1"]["token_s"] is not None


def test_a_prompt_that_is_too_short_to_generate_from_is_refused(attnres: Attnres):
    code, out, err = attnres(*["bench", "decode", "--set", "model.seq_len=2"])
    (told,) = [line for line in err.splitlines() if "checking" not in line]
    assert (code, out) == (2, "")
    assert "at least 4 positions" in told


def test_ctrl_c_ends_with_130_and_one_line(monkeypatch: pytest.MonkeyPatch, attnres: Attnres):
    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(bench, "steps", stopped)

    code, out, err = attnres(*STEP, "standard")

    assert (code, out) == (130, "")
    assert err.splitlines()[-1] == "attnres: interrupted; nothing was kept"
