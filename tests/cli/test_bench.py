"""`attnres bench`: what is shown, and that what is wrong is not timed. No time is asserted."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import attnres
from torch import Tensor

from attnres_cli.lab import bench
from attnres_cli.nn import measure
from attnres_cli.nn.depthmix.history import History
from attnres_cli.nn.depthmix.reference import Reference

TINY = ("--recipe", "smoke", "--rounds", "2", "--set", "model.d_model=16")
TINY = (*TINY, "--set", "train.batch_size=2", "--set", "train.tokens=1k")
DECODE_TINY = ("decode", *TINY, "--tokens", "3", "--batch", "1", "--batch", "2")


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setattr(measure, "copy_speed", lambda device: 1e9)  # takes a while


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of `attnres bench` in this process."""
    return attnres(capsys, "bench", *arguments)


def arms_of(out: str) -> dict[str, dict[str, Any]]:
    return {arm["variant"]: arm for arm in json.loads(out)["arms"]}


def break_reads(monkeypatch: pytest.MonkeyPatch, wrong: Any) -> None:
    """Every engine but the reference reads wrong(h, v_0) where it should read h."""
    right = History.read

    def read(self: History, site: int, query: Tensor | None = None) -> tuple[Tensor, History]:
        h, history = right(self, site, query)
        if isinstance(history.engine, Reference):
            return h, history
        return wrong(h, history.sources[0]), history

    monkeypatch.setattr(History, "read", read)


def test_json_has_all_that_was_measured_and_counted(capsys: pytest.CaptureFixture[str]):
    code, out, err = run(capsys, *TINY, "--format", "json")

    assert code == 0, err
    document, arms = json.loads(out), arms_of(out)
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
    assert arms["attnres"]["extra_bytes"] > 0
    assert arms["attnres"]["table_one"]["paper"] == 24
    assert arms["denseformer"]["table_one"] is None
    conditions = document["conditions"]
    assert (conditions["engine"], conditions["rounds"]) == ("eager", 2)
    assert conditions["shape"]["d_model"] == 16
    assert set(conditions["versions"]) == {"attnres", "torch", "python"}
    assert conditions["threads"] >= 1
    assert conditions["device_name"]
    assert document["tokens_per_step"] == 64


def test_the_design_with_the_formula_of_the_contract_reads_three_widths_a_sublayer(
    capsys: pytest.CaptureFixture[str],
):
    arms = arms_of(run(capsys, *TINY, "--format", "json")[1])

    assert arms["standard"]["io_per_sublayer"] == 3
    n_sublayers, d_model = 4, 16
    full = arms["attnres"]
    extra = full["extra_bytes"] / 4 / d_model / n_sublayers
    assert full["io_per_sublayer"] == pytest.approx(3 + extra)


def test_the_table_shows_arms_machine_and_the_papers_reading(capsys: pytest.CaptureFixture[str]):
    code, out, _ = run(capsys, "standard", "attnres", "denseformer", *TINY)

    assert code == 0
    for word in ("ms/step", "vs standard", "tokens/s", "memory", "extra FLOPs", "extra bytes"):
        assert word in out
    assert "4.00 d at S=2, N=2 [24 d]" in out
    assert "no formula in the paper" in out
    assert "engine eager" in out
    assert f"torch {torch.__version__}" in out


@pytest.mark.parametrize("command", [TINY, DECODE_TINY])
def test_markdown_and_csv_hold_every_arm(
    command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
):
    markdown = run(capsys, *command, "attnres", "--format", "markdown")[1]
    lines = list(csv.DictReader(io.StringIO(run(capsys, *command, "--format", "csv")[1])))

    assert "| `attnres` |" in markdown
    assert "| `standard` |" in markdown
    assert {line["variant"] for line in lines} >= {"standard", "denseformer"}
    assert all(float(line["ratio_median"]) for line in lines if line["variant"] == "standard")


def test_a_baseline_that_was_not_asked_for_is_timed_too(capsys: pytest.CaptureFixture[str]):
    code, out, err = run(capsys, "attnres", "--baseline", "denseformer", *TINY, "--format", "json")

    assert code == 0
    assert "the baseline denseformer is timed too" in err
    assert list(arms_of(out)) == ["denseformer", "attnres"]


@pytest.mark.parametrize("named", [(), ("step",)])
def test_step_is_what_is_run_where_nothing_is_named(
    named: tuple[str, ...], capsys: pytest.CaptureFixture[str]
):
    out = run(capsys, *named, "standard", *TINY, "--format", "json")[1]

    assert list(arms_of(out)) == ["standard"]


WRONG = {
    "the sum": (lambda h, x: h + 0.1 * x, "its loss|its gradient"),
    "the gradient": (lambda h, x: h + 0.1 * (h - h.detach()), "its gradient of .* is off"),
    "no number": (lambda h, x: h * float("nan"), "its loss .* nan"),
}


@pytest.mark.parametrize(("wrong", "words"), WRONG.values(), ids=WRONG)
def test_an_engine_that_is_wrong_is_said_and_not_timed(
    wrong: Any, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    break_reads(monkeypatch, wrong)

    code, out, err = run(capsys, "standard", "attnres", *TINY, "--format", "table")

    assert code == 3
    assert "wrong, and not timed: attnres" in err
    assert "wrong: attnres: it" in out
    monkeypatch.setenv("COLUMNS", "400")
    found = arms_of(run(capsys, "standard", "attnres", *TINY, "--format", "json")[1])
    assert re.search(words, found["attnres"]["wrong"])
    assert found["attnres"]["seconds"] == []
    assert found["attnres"]["ratio"] is None
    assert found["standard"]["wrong"] is None
    assert found["standard"]["step_s"] is not None


def test_an_arm_that_cannot_be_run_does_not_stop_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def fails(h: Tensor, x: Tensor) -> Tensor:
        if h.is_meta:  # counted, not computed
            return h
        raise RuntimeError("out of luck")

    break_reads(monkeypatch, fails)

    code, out, _ = run(capsys, "standard", "attnres", *TINY, "--format", "json")

    assert code == 3
    assert arms_of(out)["attnres"]["wrong"] == "it cannot be run: RuntimeError: out of luck"
    assert len(arms_of(out)["standard"]["seconds"]) == 2


def test_a_wrong_baseline_leaves_times_without_ratios(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    break_reads(monkeypatch, WRONG["the gradient"][0])

    code, out, _ = run(capsys, "standard", "--baseline", "attnres", *TINY, "--format", "json")

    assert code == 3
    assert arms_of(out)["standard"]["step_s"] is not None
    assert arms_of(out)["standard"]["ratio"] is None


def test_the_engine_and_the_precision_that_were_asked_for_are_used(
    capsys: pytest.CaptureFixture[str],
):
    out = run(
        capsys, "attnres", *TINY, "--engine", "reference", "--set", "train.precision=bf16",
        "--format", "json",
    )[1]  # fmt: skip

    conditions = json.loads(out)["conditions"]
    assert conditions["engine"] == "reference"
    assert conditions["computed"] == "cpu bf16 eager, 1 thread"
    found = arms_of(out)["attnres"]
    assert found["wrong"] is None
    assert 1e-5 < found["disagreement"][1] < 0.08  # bf16 is rougher than what it is compared with


@pytest.mark.slow
def test_compiled_arms_say_so_and_show_their_start(capsys: pytest.CaptureFixture[str]):
    code, out, err = run(capsys, "attnres", *TINY, "--set", "train.compile=on", "--format", "json")

    assert code == 0
    assert "compiling attnres, about a minute, once" in err
    assert json.loads(out)["conditions"]["engine"] == "compile"
    assert all(arm["start_s"] > 0 for arm in arms_of(out).values())


def test_decoding_is_timed_per_batch_size(capsys: pytest.CaptureFixture[str]):
    code, out, err = run(capsys, *DECODE_TINY, "--format", "json")

    assert code == 0, err
    document = json.loads(out)
    assert (document["n_prompt"], document["n_new"]) == (16, 3)
    for arm in arms_of(out).values():
        assert arm["wrong"] is None
        assert set(arm["batch_sizes"]) == {"1", "2"}
        for found in arm["batch_sizes"].values():
            assert len(found["seconds"]) == 2
            assert set(found["token_s"]) == set(found["ratio"]) == {"median", "low", "high"}


def test_decoding_has_a_table(capsys: pytest.CaptureFixture[str]):
    code, out, _ = run(capsys, "decode", "attnres", *TINY, "--tokens", "2")

    assert code == 0
    assert "ms per generated token" in out
    assert "batch 16 vs standard" in out


def test_decoding_that_is_wrong_is_said_and_not_timed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    break_reads(monkeypatch, lambda h, x: -h)

    code, out, err = run(capsys, *DECODE_TINY, "standard", "attnres", "--format", "json")

    assert code == 3
    assert "wrong, and not timed: attnres" in err
    assert "not the reference's likeliest" in arms_of(out)["attnres"]["wrong"]
    assert arms_of(out)["attnres"]["batch_sizes"]["1"]["token_s"] is None
    assert arms_of(out)["standard"]["batch_sizes"]["1"]["token_s"] is not None


BAD = {
    "variant": (["standart"], "did you mean 'standard'?"),
    "option": (["attnres:blocksize=4"], "did you mean 'block_size'?"),
    "baseline": (["--baseline", "standrad"], "did you mean 'standard'?"),
    "recipe": (["--recipe", "quik"], "did you mean 'quick'?"),
    "key": (["--set", "model.d_modl=4"], "did you mean 'd_model'?"),
    "format": (["--format", "jsno"], "did you mean 'json'?"),
    "engine": (["--engine", "eger"], "did you mean 'eager'?"),
    "device": (["--device", "gpu"], "auto, cpu, cuda or cuda:N"),
    "rounds": (["--rounds", "0"], "rounds"),
    "flag": (["--round", "3"], "--rounds"),
    "decode, variant": (["decode", "standart"], "did you mean 'standard'?"),
    "decode, batch": (["decode", "--batch", "0"], "batch"),
    "decode, engine": (["decode", "--engine", "compile"], "train.compile=on compiles generation"),
    "decode, no room": (["decode", "--set", "model.seq_len=2"], "at least 4 positions"),
}


@pytest.mark.parametrize(("arguments", "words"), BAD.values(), ids=BAD)
def test_bad_input_is_one_line_and_exit_code_2(
    arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    code, out, err = run(capsys, *arguments)

    assert code == 2
    assert words in err.splitlines()[-1]
    assert len([line for line in err.splitlines() if "checking" not in line]) == 1
    assert out == ""
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_ends_with_130_and_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(bench, "steps", stopped)

    code, out, err = run(capsys, "standard", *TINY)

    assert (code, out) == (130, "")
    assert err.splitlines()[-1] == "attnres: interrupted; nothing was kept"


def test_help_tells_of_both(capsys: pytest.CaptureFixture[str]):
    steps, decode = run(capsys, "--help")[1], run(capsys, "decode", "--help")[1]

    assert "attnres bench decode" in steps
    assert "--rounds" in steps
    assert "--batch" in decode
