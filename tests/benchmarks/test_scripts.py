"""Every benchmark runs, in tiny sizes, and writes what it promises. No time is asserted.

In `make test` all of them find what they import, and one runs; the others are slow.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from servers import PASSWORD

from attnres_cli.stats.power import detectable, multiplier
from attnres_cli.stats.sequential import first_rate

FOLDER = Path(__file__).parent.parent.parent / "benchmarks"
HEAVY = ("pydantic", "typer", "rich", "yaml", "sqlalchemy", "optuna", "scipy", "matplotlib")
UNCOMPILED = {"TORCHDYNAMO_DISABLE": "1"}  # torch.compile then leaves a model as it is


def python(*arguments: object, folder: Path, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=600,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""} | environment,
    )


def run(
    script: str, *arguments: str, folder: Path, before: str = "", **environment: str
) -> tuple[str, dict[str, Any]]:
    """What a script printed and the JSON that it wrote, in a process that did something before."""
    path = folder / "out" / "result.json"
    program = f"{before}\nimport runpy\nrunpy.run_path({str(FOLDER / script)!r}, {{}}, '__main__')"
    small = ["--quick", "--rounds", "2", "--json", path]
    done = python("-c", program, *small, *arguments, folder=folder, **environment)
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(path.read_text())
    assert {"device", "torch", "python", "threads", "copy_speed"} <= document["machine"].keys()
    return done.stdout, document


def test_every_benchmark_finds_what_it_imports_and_mixing_compares_with_copying(tmp_path: Path):
    names = sorted(path.stem for path in FOLDER.glob("*.py"))
    before = f"""
import sys, types
sys.path.insert(0, {str(FOLDER)!r})
preload = "attnres_cli.lab.workers.preload"  # imports for seconds what workers may need
sys.modules[preload] = types.ModuleType(preload)
import {", ".join(names)}
"""

    engines = ["--engines", "reference", "eager"]
    _, document = run("mixing.py", *engines, folder=tmp_path, before=before)

    patterns = [arm["pattern"] for arm in document["results"][::2]]
    assert patterns == ["read of 3", "Full 4", "Block(2) 4"]
    for arm in document["results"]:
        assert arm["wrong"] is None
        assert arm["forward"]["bytes"] > 0
        assert set(arm["backward"]) == {"seconds", "bytes", "share", "target"}


@pytest.mark.parametrize(
    "typed",
    [
        pytest.param("mixing.py --engines compile", marks=pytest.mark.slow),
        pytest.param("memory.py --engines compile --depths 1", marks=pytest.mark.nightly),
        pytest.param("step.py cpu-compile-4", marks=pytest.mark.nightly),
    ],
)
def test_mixing_memory_and_steps_compile(typed: str, tmp_path: Path):
    _, document = run(*typed.split(), folder=tmp_path)

    for result in document["results"]:
        assert all(arm["wrong"] is None for arm in result.get("arms", [result]))
        if "step" in typed:
            assert result["setting"]["compiled"] is True
            assert all(arm["start_s"] > 0 for arm in result["arms"])


@pytest.mark.slow
def test_step_times_arms_beside_targets_and_needs_only_torch_and_no_installation(tmp_path: Path):
    before = f"""
import importlib.metadata, sys
sys.modules.update(dict.fromkeys({HEAVY}))  # importing one now raises
none = importlib.metadata.EntryPoints()
importlib.metadata.entry_points = lambda **_: none
"""

    _, document = run("step.py", "cpu-eager", folder=tmp_path, before=before)

    (result,) = document["results"]
    arms = {arm["arm"]: arm for arm in result["arms"]}
    mixed = ["attnres (eager)", "attnres:block_size=4 (eager)", "stacked", "stacked:block_size=4"]
    assert list(arms) == ["standard", *mixed]
    assert all(len(arm["seconds"]) == 2 and arm["wrong"] is None for arm in arms.values())
    assert [arm["target"] for arm in arms.values()] == [None, 1.15, 1.08, None, None]
    assert arms["standard"]["ratio"]["median"] == 1


@pytest.mark.slow
def test_memory_counts_what_grows(tmp_path: Path):
    _, document = run("memory.py", "--engines", "reference", "eager", folder=tmp_path)

    found = {(arm["layers"], arm["engine"], arm["variant"]): arm for arm in document["results"]}
    assert len(found) == 2 * 2 * 3
    for arm in found.values():
        assert arm["wrong"] is None
        assert abs(arm["beyond_saved"]) < 0.01 * arm["held"]  # autograd's hooks saw everything
        assert arm["peak"] >= arm["held"] > 0
    full = found[2, "eager", "attnres"]["ratio"]
    stacked = found[2, "reference", "attnres"]["ratio"]
    assert 1 < full["saved"] < 1.2 < stacked["saved"]


@pytest.mark.slow
def test_trainer_takes_turns_with_the_plain_script(tmp_path: Path):
    only = ["cpu", "--threads", "1", "--only", "middle", "eager"]
    _, document = run("trainer.py", *only, folder=tmp_path)

    settings = [each["setting"] for each in document["results"]]
    assert settings == ["middle eager float32", "middle eager bfloat16"]
    for each in document["results"]:
        assert each["target"] == 0.97
        assert len(each["seconds"]) == each["turns"] == len(each["steps"]) > 0
        assert each["ratio"]["median"] > 0
        assert each["tokens_per_second"]["median"] > 0


@pytest.mark.slow
def test_nanogpt_takes_turns_with_its_stand_in(tmp_path: Path):
    _, document = run("nanogpt.py", "--precision", "bf16", folder=tmp_path)

    arms = [(each["setting"], each["arm"]) for each in document["results"]]
    assert arms == [(s, a) for s in ("narrow", "wide") for a in ("standard", "swiglu", "stand-in")]
    for each in document["results"]:
        assert each["target"] == (0.97 if each["arm"] == "standard" else None)
        assert each["ratios"]["stand-in"]["median"] > 0
        assert len(each["seconds"]) == 2


@pytest.mark.slow
def test_the_plain_script_needs_nothing_else_and_step_a_gpu_for_its_gpu_settings(tmp_path: Path):
    data = tmp_path / "tokens.bin"
    data.write_bytes(bytes(range(64)) * 200)  # uint16 up to 0x3f3e

    sizes = ["--vocab-size", 16384, "--steps", 4, "--d-model", 16, "--seq-len", 8]
    done = python(FOLDER / "plain.py", data, *sizes, "--log-every", 2, folder=tmp_path)
    refused = python(FOLDER / "step.py", "gpu", folder=tmp_path)

    first, last = done.stdout.splitlines()
    assert first.startswith("step 2 loss 9.")  # about ln 16384
    assert last.endswith("tokens/s")
    assert refused.returncode == 1
    assert "needs a CUDA device" in refused.stderr


@pytest.mark.slow
def test_workers_compares_processes(tmp_path: Path):
    _, document = run("workers.py", "--threads", "1", folder=tmp_path)

    (result,) = document["results"]
    assert len(result["one_s"]) == len(result["many_s"]) == 2
    assert result["faster"]["median"] > 0


@pytest.mark.parametrize(
    "environment",
    [
        pytest.param(UNCOMPILED, marks=pytest.mark.slow),
        pytest.param({}, marks=pytest.mark.nightly),
    ],
)
def test_ways_compares_compiled_and_bf16(environment: dict[str, str], tmp_path: Path):
    _, document = run("ways.py", "--threads", "1", folder=tmp_path, **environment)

    ways = {each["way"]: each for each in document["results"]}
    assert ways["eager float32"]["faster"]["median"] == 1
    assert ways["compiled bfloat16"]["target"] == 1.9


@pytest.mark.slow
def test_report_times_the_command_on_a_study_that_it_makes(tmp_path: Path):
    out, document = run("report.py", folder=tmp_path)

    assert "100 runs" in out  # ten sizes, five arms, two seeds
    nothing, report = document["results"]
    assert (report["command"], report["target_s"]) == ("report", 1.0)
    assert report["processor_s"]["median"] > nothing["processor_s"]["median"] > 0


@pytest.mark.slow
def test_study_counts_every_trial_in_files_and_on_servers(database, tmp_path: Path):
    server, name = database
    server.sql(f"CREATE DATABASE {name}_2")
    late = server.url(f"{name}_2") + "?options=-c%20synchronous_commit%3Doff"

    out, document = run("study.py", "--study", server.url(name), "--study", late, folder=tmp_path)
    server.sql(f"DROP DATABASE {name}_2 WITH (FORCE)")

    results = document["results"]
    of = [(each["study"], each.get("server", {}).get("synchronous_commit")) for each in results]
    assert of[::2] == of[1::2] == [("sqlite", None), ("postgresql", "on"), ("postgresql", "off")]
    assert [each["what"] for each in results] == ["trials", "claims"] * 3
    assert {each["server"]["fsync"] for each in results if "server" in each} == {"off"}
    assert all(len(each["with_s"]) == 2 for each in results if "with_s" in each)
    assert all(len(each["per_minute"]) == 2 for each in results if "per_minute" in each)
    assert out.count("none lost, none twice") == 6
    assert PASSWORD not in out + json.dumps(document)


@pytest.mark.slow
def test_resolution_follows_from_noise_and_slope_and_no_mean_is_shown(tmp_path: Path):
    short = ["--recipe", "smoke", "--seeds", "3", "--slope-seeds", "2"]
    done = python(FOLDER / "resolution.py", *short, folder=tmp_path)
    assert done.returncode == 0, done.stderr

    slope = float(re.search(r"slope of standard: (\S+) nats", done.stdout)[1])
    sd, n = re.search(r"^attnres .* (0\.\d+) \[.*\] of (\d)$", done.stdout, re.M).groups()
    plan = r"^now: 1 arm x 7 seeds +attnres +(\S+)  (\S+)x"
    sees, worth = map(float, re.search(plan, done.stdout, re.M).groups())
    assert n == "3"
    assert sees == pytest.approx(detectable(7, float(sd), first_rate(1)), abs=2e-4)
    assert worth == pytest.approx(multiplier(sees, slope), rel=2e-3)
    assert "val loss" not in done.stdout
