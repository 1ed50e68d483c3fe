"""Devices as they are typed, and what `auto` decides."""

from __future__ import annotations

import os

import pytest
import torch

from attnres_cli.errors import DeviceError
from attnres_cli.recipe import Recipe
from attnres_cli.train import cores, devices, settings

no_cuda = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")


@no_cuda
def test_auto_is_the_cpu_where_there_is_no_gpu():
    assert devices("auto") == ["cpu"]


@no_cuda
@pytest.mark.parametrize("asked", ["cuda", "cuda:0"])
def test_cuda_without_cuda_is_refused_with_what_to_type(asked: str):
    with pytest.raises(DeviceError, match=r"sees no CUDA device here; use --device cpu"):
        devices(asked)


@pytest.mark.parametrize("asked", ["gpu", "tpu", "", "cpu:1"])
def test_unknown_devices_are_refused(asked: str):
    with pytest.raises(DeviceError, match="auto, cpu, cuda or cuda:N"):
        devices(asked)


def test_short_runs_on_a_cpu_are_neither_compiled_nor_bfloat16(tiny_recipe: Recipe):
    found = settings(tiny_recipe, "cpu", threads=1, run_flops=1e12)

    assert (found.precision, found.compiled) == ("fp32", False)


def test_long_runs_are_compiled_where_there_is_a_compiler(
    tiny_recipe: Recipe, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("CXX", "sh")  # there is one on every machine

    assert settings(tiny_recipe, "cpu", threads=1, run_flops=1e15).compiled


def test_without_a_compiler_training_is_eager_with_one_warning(
    tiny_recipe: Recipe, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("CXX", "no-such-compiler")

    with pytest.warns(UserWarning, match=r"not compiled: a C\+\+ compiler") as caught:
        found = settings(tiny_recipe, "cpu", threads=1, run_flops=1e15)

    assert not found.compiled
    assert len(caught) == 1


def test_cores_are_at_most_those_this_process_may_use():
    assert 1 <= len(cores()) <= len(os.sched_getaffinity(0))


def test_numerics_name_what_makes_runs_incomparable(tiny_recipe: Recipe):
    assert settings(tiny_recipe, "cpu", 1, 0).numerics == "cpu fp32 eager"
