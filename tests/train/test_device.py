"""Devices as they are typed, and what `auto` decides."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
from inputs import changed
from training import SETTINGS, Lab

from attnres_cli.config.recipe import Recipe
from attnres_cli.errors import DeviceError, UsageError
from attnres_cli.lab import grid
from attnres_cli.lab.workers.provenance import made_with
from attnres_cli.nn.depthmix import engines
from attnres_cli.train import device, group
from attnres_cli.train.device import devices, settings

Machine = Callable[..., None]


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
def test_without_a_gpu_auto_is_the_cpu_and_cuda_is_refused_with_what_to_type():
    assert devices("auto") == ["cpu"]
    for asked in ("cuda", "cuda:0"):
        with pytest.raises(DeviceError, match=r"sees no CUDA device here; use --device cpu"):
            devices(asked)


@pytest.mark.parametrize("asked", ["gpu", "tpu", "", "cpu:1"])
def test_unknown_devices_are_refused(asked: str):
    with pytest.raises(DeviceError, match="auto, cpu, cuda or cuda:N"):
        devices(asked)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A function that pretends what is there, and a CUDA device whose name can be asked."""

    def pretend(
        *, compiler: bool = True, triton: bool = True, interpret: bool = False, bf16: bool = True
    ) -> None:
        def has_bf16(including_emulation: bool = True) -> bool:
            return bf16 or including_emulation

        monkeypatch.setenv("CXX", "sh" if compiler else "no-such-compiler")
        monkeypatch.setattr(device, "has_triton", lambda: triton)
        monkeypatch.setenv("TRITON_INTERPRET", str(int(interpret)))
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "Some GPU")
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", has_bf16)

    pretend()
    return pretend


SHORT, LONG = 1e12, 1e17
RESOLVED = [
    # asked, device, train.compile, FLOPs: compiled, engine
    ("auto", "cpu", "auto", SHORT, False, "eager"),
    ("auto", "cpu", "auto", LONG, True, "compile"),
    ("auto", "cpu", "on", SHORT, True, "compile"),
    ("auto", "cpu", "off", LONG, False, "eager"),
    ("auto", "cuda", "auto", SHORT, False, "triton"),
    ("auto", "cuda", "auto", LONG, True, "triton"),
    ("eager", "cpu", "auto", LONG, False, "eager"),
    ("eager", "cuda", "auto", LONG, False, "eager"),
    ("compile", "cpu", "auto", SHORT, True, "compile"),
    ("compile", "cuda", "auto", SHORT, True, "compile"),
    ("reference", "cpu", "auto", SHORT, False, "reference"),
    ("reference", "cpu", "on", SHORT, True, "reference"),
    ("triton", "cuda", "auto", SHORT, False, "triton"),
    ("triton", "cuda", "on", SHORT, True, "triton"),
]


MANY, H100 = "100M", "NVIDIA H100 80GB HBM3"  # training tokens; a GPU with known peaks
LARGE = {"n_layers": 4, "d_model": 512, "n_heads": 8, "seq_len": 512}
TAKEN = [
    # training tokens, model, GPU, engine: train.compile as it is decided
    (MANY, {}, H100, "auto", "graphs"),
    (MANY, {}, H100, "reference", "graphs"),
    ("200k", {}, H100, "auto", "off"),  # a minute of compiling saves seconds
    (MANY, {}, "Some GPU", "auto", "off"),  # nobody knows how long it computes
    (MANY, {}, H100, "eager", "off"),
    (MANY, {}, H100, "compile", "on"),
    ("100B", LARGE, H100, "auto", "on"),  # computes longer than it launches
]


@pytest.mark.parametrize(("tokens", "model", "gpu", "engine", "wish"), TAKEN)
def test_cuda_graphs_are_taken_where_a_long_run_mostly_launches_by_the_arithmetic_of_plans(
    tokens: str,
    model: dict,
    gpu: str,
    engine: str,
    wish: str,
    tiny_recipe: Recipe,
    machine: Machine,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: gpu)
    train = {"tokens": tokens, "batch_size": 64 if model else 4, "eval_tokens": 512}
    recipe = changed(tiny_recipe, train=train, model=model)

    found = grid.settings(recipe, "cuda", 1, engine)

    assert found.compiler == wish
    assert found.numerics == {
        "off": "cuda bf16 eager",
        "on": "cuda bf16 compiled, evaluation compiled",
        "graphs": "cuda bf16 compiled, CUDA graphs",
    }.get(wish)


def test_cuda_graphs_are_refused_where_there_is_no_gpu_or_more_than_one_device(
    tiny_recipe: Recipe, machine: Machine, monkeypatch: pytest.MonkeyPatch
):
    recipe = changed(tiny_recipe, train={"compile": "graphs"})
    assert settings(recipe, "cuda", 1, 0.0).graphs
    with pytest.raises(DeviceError, match=r"this run is on cpu: --set train.compile=on, or auto"):
        settings(recipe, "cpu", 1, 0.0)
    with pytest.raises(UsageError, match=r"train.compile is graphs: --set train.compile=off, or"):
        settings(recipe, "cuda", 1, 0.0, "eager")

    monkeypatch.setattr(group, "_current", group.Group(0, 2, 0, 2, None, None))  # type: ignore[arg-type]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(UsageError, match=r"run is ddp on 2 ranks: --set train.compile=on, or type"):
        settings(recipe, "cuda", 1, 0.0)
    auto = changed(tiny_recipe, train={"tokens": MANY})
    assert not settings(auto, "cuda", 1, 0.0).graphs
    compiled = settings(changed(auto, train={"compile": "on"}), "cuda", 1, 0.0)
    assert compiled.way == "evaluation compiled, ddp on 2 ranks"
    assert (compiled.shared, compiled.parallel) == ("ddp on 2 ranks", ("ddp", 2))
    assert compiled.uncompiled.way == "ddp on 2 ranks"


@pytest.mark.parametrize(("asked", "where", "wish", "flops", "compiled", "engine"), RESOLVED)
def test_an_engine_is_resolved_by_device_and_compiler(
    asked: str,
    where: str,
    wish: str,
    flops: float,
    compiled: bool,
    engine: str,
    tiny_recipe: Recipe,
    machine: Machine,
):
    found = settings(changed(tiny_recipe, train={"compile": wish}), where, 1, flops, asked)

    assert (found.compiled, found.engine) == (compiled, engine)
    assert found.precision == ("fp32" if where == "cpu" else "bf16")


def test_a_gpu_that_emulates_bf16_trains_in_fp32(tiny_recipe: Recipe, machine: Machine):
    machine(bf16=False)
    assert settings(tiny_recipe, "cuda", 1, SHORT).precision == "fp32"


def test_triton_is_for_gpus_that_have_it_and_for_its_interpreter(
    tiny_recipe: Recipe, machine: Machine
):
    machine(triton=False)
    assert settings(tiny_recipe, "cuda", 1, SHORT).engine == "eager"

    machine(interpret=True)
    assert settings(tiny_recipe, "cpu", 1, SHORT, "triton").engine == "triton"


def test_without_a_compiler_training_is_eager_with_one_warning(
    tiny_recipe: Recipe, machine: Machine
):
    machine(compiler=False)

    with pytest.warns(UserWarning, match=r"not compiled: a C\+\+ compiler") as caught:
        found = settings(tiny_recipe, "cpu", 1, LONG)

    assert (found.compiled, found.engine) == (False, "eager")
    assert len(caught) == 1


@pytest.mark.parametrize(
    ("there", "asked", "where", "words"),
    [
        ({"compiler": False}, "compile", "cpu", r"needs a C\+\+ compiler \(g\+\+\).*drop --engine"),
        ({"triton": False}, "compile", "cuda", "needs Triton, which is not installed: install it"),
        ({"triton": False}, "triton", "cuda", "pip install triton, or drop --engine"),
        ({}, "triton", "cpu", "needs a CUDA device, and this run is on cpu: drop --engine, or"),
    ],
)
def test_an_engine_that_this_machine_lacks_is_refused_with_what_to_do(
    there: dict[str, bool],
    asked: str,
    where: str,
    words: str,
    tiny_recipe: Recipe,
    machine: Machine,
):
    machine(**there)

    with pytest.raises(DeviceError, match=words):
        settings(tiny_recipe, where, 1, SHORT, asked)


@pytest.mark.parametrize(
    ("asked", "wish", "words"),
    [
        ("compile", "off", "train.compile is off: --set train.compile=on, or drop --engine"),
        ("eager", "on", "train.compile is on: --set train.compile=off, or drop --engine"),
        ("egaer", "auto", "unknown engine 'egaer': did you mean 'eager'"),
        ("", "auto", "unknown engine ''"),
    ],
)
def test_an_impossible_engine_is_refused_with_what_to_type(
    asked: str, wish: str, words: str, tiny_recipe: Recipe, machine: Machine
):
    with pytest.raises(UsageError, match=words):
        settings(changed(tiny_recipe, train={"compile": wish}), "cpu", 1, SHORT, asked)


def test_an_uncompiled_engine_never_takes_the_list_form(tiny_recipe: Recipe, machine: Machine):
    machine(interpret=True)
    for asked in engines.NAMES:
        found = settings(tiny_recipe, "cpu", 1, LONG, asked)

        assert not found.uncompiled.compiled
        assert found.uncompiled.engine == {"compile": "eager"}.get(found.engine, found.engine)


def test_numerics_name_everything_that_makes_runs_incomparable_and_no_engine(tiny_recipe: Recipe):
    one, two = (settings(tiny_recipe, "cpu", threads, 0) for threads in (1, 2))

    assert (one.numerics, two.numerics) == ("cpu fp32 eager, 1 thread", "cpu fp32 eager, 2 threads")
    assert replace(two, device="cuda").numerics == "cuda fp32 eager"
    assert settings(tiny_recipe, "cpu", 1, 0, "reference").numerics == one.numerics


def test_more_ranks_than_gpus_are_refused_unless_they_are_for_the_cpu(
    tiny_recipe: Recipe, machine: Machine, monkeypatch: pytest.MonkeyPatch
):
    ranks = group.Group(1, 2, 1, 2, None, None)  # type: ignore[arg-type]
    monkeypatch.setattr(group, "_current", ranks)

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(DeviceError, match=r"2 ranks .* 1 CUDA device: --nproc-per-node 1, or"):
        settings(tiny_recipe, "cuda", 1, SHORT)
    assert settings(tiny_recipe, "cpu", 1, SHORT).way == "ddp on 2 ranks"

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert settings(tiny_recipe, "cuda", 1, SHORT).way == "ddp on 2 ranks"
    assert ranks.device("cuda") == "cuda:1"


@pytest.fixture
def _as_before() -> Iterator[None]:
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    cudnn = torch.backends.cuda.cudnn_sdp_enabled()
    yield
    torch.set_float32_matmul_precision(before[0])
    torch.backends.cudnn.allow_tf32 = before[1]
    torch.backends.cuda.enable_cudnn_sdp(cudnn)


@pytest.mark.usefixtures("_as_before")
def test_on_a_gpu_alone_products_and_attention_are_fixed(lab: Lab):
    def found() -> tuple[str, bool, bool]:
        cuda = torch.backends.cuda
        return (
            torch.get_float32_matmul_precision(),
            torch.backends.cudnn.allow_tf32,
            cuda.cudnn_sdp_enabled(),
        )

    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True
    torch.backends.cuda.enable_cudnn_sdp(True)
    lab.trainer()
    assert found() == ("high", True, True)

    device.fix_numerics(torch.device("cuda"))
    assert found() == ("highest", False, False)
    assert torch.backends.cuda.flash_sdp_enabled()


def test_a_run_records_what_is_fixed_on_a_gpu(lab: Lab):
    spec = lab.spec()
    on_cpu = made_with(spec, SETTINGS)
    on_gpu = made_with(spec, replace(SETTINGS, device="cuda"))
    fixed = {"float32_matmul": "highest", "attention": "flash, efficient, math"}
    assert on_gpu == on_cpu | fixed
    assert not fixed.keys() & on_cpu.keys()
