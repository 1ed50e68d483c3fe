"""A machine that computes wrong is found out, and what is wrong there is not trained by."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from attnres_cli.errors import DeviceError
from attnres_cli.lab import doctor
from attnres_cli.lab.doctor import examined, problems, sound, ways
from attnres_cli.nn import measure
from attnres_cli.nn.depthmix import engines
from attnres_cli.nn.depthmix.reference import Reference
from attnres_cli.records.assumed import read
from attnres_cli.records.run import GRAPHS, Settings
from attnres_cli.records.ways import Tried, Way
from attnres_cli.train import device

EAGER = Way("cpu", "eager", "fp32", compiled=False)
ON_GPU = Settings("cuda", "NVIDIA Broken", "bf16", compiled=True, threads=1, engine="triton")


class Broken(Reference):
    """The reference engine, with something done to what it reads, or to sources in bf16."""

    def __init__(self, done) -> None:
        self.done = done

    def append(self, state, v: Tensor):
        is_hit = self.done is nan_in_bf16 and v.dtype == torch.bfloat16
        return super().append(state, v * torch.nan if is_hit else v)

    def read(self, state, site: int, query: Tensor | None):
        mix, state = super().read(state, site, query)
        return self.done(mix), state


def torn(mix: Tensor) -> Tensor:
    raise RuntimeError("the provided PTX was compiled with an unsupported toolchain")


def full(mix: Tensor) -> Tensor:
    raise torch.OutOfMemoryError("CUDA out of memory")


def nan_in_bf16(mix: Tensor) -> Tensor:
    return mix  # it is the sources that become so


BREAKS = {
    "fails to compile": (torn, "RuntimeError: the provided PTX was compiled"),
    "wrong values": (lambda mix: mix + mix.flip(-1), "its loss is off the reference's by"),
    "wrong gradient": (lambda mix: mix + (mix - mix.detach()) / 2, "its gradient of "),
    "NaN in bf16": (nan_in_bf16, "its loss is off the reference's by nan"),
}


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch):
    """Let the engine `eager` do something to what it reads."""
    made = engines._made

    def breaks(done, *names: str) -> None:
        wanted = names or ("eager",)
        monkeypatch.setattr(
            engines, "_made", lambda n, scoring: Broken(done) if n in wanted else made(n, scoring)
        )

    return breaks


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What was tried is kept in a folder of the test's, and tried in this process."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(doctor, "examine", lambda asked: map(examined, asked))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_what_is_right_is_found_right(precision: str):
    found = examined(replace(EAGER, precision=precision))
    assert found.wrong is None
    assert found.loss is not None
    assert found.loss < (1e-5 if precision == "fp32" else 1e-2)


@pytest.mark.parametrize("how", BREAKS)
def test_an_engine_that_is_broken_is_told_by_its_first_design(how: str, broken):
    done, words = BREAKS[how]
    broken(done)
    precision = "bf16" if "bf16" in how else "fp32"

    wrong = examined(replace(EAGER, precision=precision)).wrong

    assert wrong is not None
    assert wrong.startswith("attnres")
    assert words in wrong


def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch, found: dict[tuple[str, bool], str | None]) -> list:
    """Let ways on a GPU come to this, by engine and whether compiled; the ways that were tried."""
    tried: list[Way] = []

    def examine(asked):
        tried.extend(asked)
        wrong = [found[way.engine, way.compiled, *["graphs"] * way.graphs] for way in asked]
        return [Tried(way, told, 0.1) for way, told in zip(asked, wrong, strict=True)]

    monkeypatch.setattr(doctor, "examine", examine)
    return tried


def test_what_computes_right_is_taken_and_not_tried_twice(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    tried = as_on_a_gpu(monkeypatch, {("triton", True): None})
    assert sound(ON_GPU, "cuda:0") == sound(ON_GPU, "cuda:0") == ON_GPU
    assert len(tried) == 1
    sound(replace(ON_GPU, device_name="another"), "cuda:0")
    assert len(tried) == 2
    (tmp_path / "version").write_text("NVRM version: 580.1")
    monkeypatch.setattr(doctor, "_DRIVER", tmp_path / "version")
    sound(ON_GPU, "cuda:0")
    assert len(tried) == 3


def test_what_does_not_is_replaced_by_the_next_loudly(monkeypatch: pytest.MonkeyPatch, capsys):
    wrong = {("triton", True): "attnres: its loss is off", ("triton", False): "it is torn"}
    as_on_a_gpu(monkeypatch, wrong | {("eager", False): None})

    for _ in range(2):
        taken = sound(ON_GPU, "cuda:0")
        assert (taken.engine, taken.compiled, taken.precision) == ("eager", False, "bf16")
        told = " ".join(capsys.readouterr().err.split())
        assert "engine triton, bf16, compiled on NVIDIA Broken: attnres: its loss is off" in told
        assert "Runs are computed by engine eager, bf16, not compiled instead" in told


def test_cuda_graphs_that_compute_wrong_are_left_for_the_compiler_and_that_for_neither(
    monkeypatch: pytest.MonkeyPatch, capsys
):
    wrong = {("triton", True, "graphs"): "a replay is off", ("triton", True): None}
    tried = as_on_a_gpu(monkeypatch, wrong)
    replayed = replace(ON_GPU, way=GRAPHS)

    taken = sound(replayed, "cuda:0")

    assert (taken.compiler, taken.engine) == ("on", "triton")
    assert taken.numerics == "cuda bf16 compiled, evaluation compiled"
    assert [way.graphs for way in tried] == [True, False]
    told = " ".join(capsys.readouterr().err.split())
    assert "engine triton, bf16, CUDA graphs on NVIDIA Broken: a replay is off. Runs" in told
    assert "computed by engine triton, bf16, compiled instead" in told

    other = replace(replayed, device_name="another")
    wrong |= {("triton", True): "it is torn", ("triton", False): None}
    assert sound(other, "cuda:0") == replace(other, compiled=False, way="")


def test_what_a_replay_or_a_compiled_evaluation_gets_wrong_is_found(
    monkeypatch: pytest.MonkeyPatch,
):
    def stale(model, *, graphs: bool):
        first: list[Tensor] = []

        def forward(tokens: Tensor, targets: Tensor) -> Tensor:
            first.extend((tokens, targets) if graphs and not first else ())
            loss = model(*first or (tokens, targets))
            return loss if torch.is_grad_enabled() or graphs else loss * 1.01

        return forward

    monkeypatch.setattr(measure, "compiled", stale)
    way = replace(EAGER, compiled=True)
    for each in (way, replace(way, graphs=True)):
        assert "its loss is off the reference's by" in str(examined(each).wrong)
    monkeypatch.setattr(measure, "compiled", lambda model, *, graphs: model)
    assert examined(replace(way, graphs=True)).wrong is None


def test_where_nothing_computes_right_nothing_is_trained(monkeypatch: pytest.MonkeyPatch):
    keys = [("triton", True), ("triton", False), ("eager", False)]
    as_on_a_gpu(monkeypatch, dict.fromkeys(keys, "its loss is off"))
    with pytest.raises(DeviceError, match="nothing computes right here, see attnres doctor"):
        sound(ON_GPU, "cuda:0")


def test_a_full_gpu_says_nothing_of_an_engine_and_is_not_remembered(broken, capsys):
    settings = Settings("cpu", "test", "fp32", compiled=False, threads=1, engine="eager")
    broken(full)
    assert sound(settings, "cpu") == settings
    broken(torn)
    with pytest.raises(DeviceError):
        sound(settings, "cpu")
    assert capsys.readouterr().err == ""


def test_what_could_not_be_computed_is_tried_again(monkeypatch: pytest.MonkeyPatch):
    tried: list[Way] = []

    def examine(asked: list[Way]) -> list[Tried]:
        tried.extend(asked)
        wrong = "attnres cannot be run: Failed to find C compiler" if len(tried) == 1 else None
        return [Tried(way, wrong, None if wrong else 0.1) for way in asked]

    monkeypatch.setattr(doctor, "examine", examine)
    assert [sound(ON_GPU, "cuda:0").compiled for _ in range(2)] == [False, True]


def test_a_gpu_is_tried_with_kernels_and_without_and_a_cpu_with_a_compiler_and_without(
    monkeypatch: pytest.MonkeyPatch,
):
    assert {(w.engine, w.compiled) for w in ways("cpu")} == {("compile", True), ("eager", False)}
    assert not any(way.graphs for way in ways("cpu"))
    monkeypatch.setattr(doctor, "has_triton", lambda: True)
    assert {(w.engine, w.compiled) for w in ways("cuda:0")} == {
        ("triton", True), ("triton", False), ("compile", True), ("eager", False),
    }  # fmt: skip
    assert {(w.engine, w.compiled) for w in ways("cuda:0") if w.graphs} == {
        ("triton", True), ("compile", True),
    }  # fmt: skip


def test_what_auto_takes_has_a_name_each(monkeypatch: pytest.MonkeyPatch):
    assert list(doctor.chosen("cpu")) == ["long runs", "short runs"]
    with device.assuming(read("h100")):
        found = doctor.chosen("cuda:0")
    assert {what: (way.compiled, way.graphs) for what, way in found.items()} == {
        "long runs": (True, False),
        "short runs": (False, False),
        "long runs of small models": (True, True),
    }


def test_what_is_missing_around_is_said_with_what_to_type(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setattr(torch.version, "cuda", None)  # a build for CUDA without a GPU is a problem
    assert problems("cpu") == []
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setattr(torch.version, "cuda", "13.0")

    driver, compiler, folder = problems("cpu")

    assert "torch is built for CUDA 13.0 and sees no GPU: nvidia-smi says" in driver
    assert compiler == "nothing can be compiled: a C++ compiler (g++) is not installed"
    assert "set XDG_CACHE_HOME to a folder" in folder


@pytest.mark.slow
def test_the_command_tries_each_way_in_a_process_of_its_own(attnres, monkeypatch):
    monkeypatch.undo()
    out = attnres.json("doctor", "--device", "cpu")
    assert [each["wrong"] for each in out["ways"]] == [None] * 4
    assert sorted(each["engine"] for each in out["ways"] if each["chosen"]) == ["compile", "eager"]
    assert "CUDA" in out["machine"]["torch"]
    rows = attnres.csv("doctor", "--device", "cpu")
    assert len(rows) == 4
