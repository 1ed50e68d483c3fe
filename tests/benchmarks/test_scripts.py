"""Every benchmark runs, in tiny sizes, and writes what it promises. No time is asserted.

By default one of them runs, and all find what they import: the rest take minutes.
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
from servers import PASSWORD, Server

from attnres_cli.stats.looks import first_rate
from attnres_cli.stats.power import detectable, multiplier

FOLDER = Path(__file__).parent.parent.parent / "benchmarks"
HEAVY = ("pydantic", "typer", "rich", "yaml", "sqlalchemy", "optuna", "scipy", "matplotlib")


def run(
    script: str, *arguments: str, folder: Path, program: str | None = None
) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    """What the script did, and the JSON it wrote."""
    path = folder / "out" / "result.json"
    command = [str(FOLDER / script)] if program is None else ["-c", program]
    done = subprocess.run(
        [sys.executable, *command, "--quick", "--rounds", "2", "--json", str(path), *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=600,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(path.read_text())
    assert {"device", "torch", "python", "threads", "copy_speed"} <= document["machine"].keys()
    return done, document


def test_every_benchmark_finds_what_it_imports():
    names = ", ".join(sorted(path.stem for path in FOLDER.glob("*.py")))
    program = f"import sys; sys.path.insert(0, {str(FOLDER)!r}); import {names}"

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_step_times_every_arm_beside_its_target(tmp_path: Path):
    _, document = run("step.py", "cpu-eager", folder=tmp_path)

    (result,) = document["results"]
    arms = {arm["arm"]: arm for arm in result["arms"]}
    assert list(arms) == [
        "standard",
        "attnres (eager)",
        "attnres:block_size=4 (eager)",
        "stacked",
        "stacked:block_size=4",
    ]
    assert all(len(arm["seconds"]) == 2 and arm["wrong"] is None for arm in arms.values())
    assert [arm["target"] for arm in arms.values()] == [None, 1.15, 1.08, None, None]
    assert arms["standard"]["ratio"]["median"] == 1


@pytest.mark.slow
def test_step_needs_torch_alone_and_no_installation(tmp_path: Path):
    program = (
        "import importlib.metadata, runpy, sys\n"
        f"sys.modules.update(dict.fromkeys({HEAVY}))\n"  # importing one now raises
        "none = importlib.metadata.EntryPoints()\n"
        "importlib.metadata.entry_points = lambda **_: none\n"
        f"runpy.run_path({str(FOLDER / 'step.py')!r}, run_name='__main__')\n"
    )

    _, document = run("step.py", "cpu-eager", folder=tmp_path, program=program)

    assert document["benchmark"] == "step"


@pytest.mark.slow
def test_step_on_a_gpu_says_so_where_there_is_none(tmp_path: Path):
    done = subprocess.run(
        [sys.executable, str(FOLDER / "step.py"), "gpu"],
        capture_output=True,
        text=True,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
    )

    assert done.returncode == 1
    assert "needs a CUDA device" in done.stderr


@pytest.mark.slow
def test_step_compiles(tmp_path: Path):
    _, document = run("step.py", "cpu-compile-4", folder=tmp_path)

    (result,) = document["results"]
    assert result["setting"]["compiled"] is True
    assert all(arm["start_s"] > 0 and arm["wrong"] is None for arm in result["arms"])


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
def test_memory_counts_what_is_compiled(tmp_path: Path):
    _, document = run("memory.py", "--engines", "compile", "--depths", "1", folder=tmp_path)

    assert all(arm["wrong"] is None for arm in document["results"])


def test_mixing_compares_with_copying(tmp_path: Path):
    _, document = run("mixing.py", "--engines", "reference", "eager", folder=tmp_path)

    assert [arm["pattern"] for arm in document["results"][::2]] == [
        "read of 3",
        "Full 4",
        "Block(2) 4",
    ]
    for arm in document["results"]:
        assert arm["wrong"] is None
        assert arm["forward"]["bytes"] > 0
        assert set(arm["backward"]) == {"seconds", "bytes", "share", "target"}


@pytest.mark.slow
def test_mixing_compiles(tmp_path: Path):
    _, document = run("mixing.py", "--engines", "compile", folder=tmp_path)

    assert all(arm["wrong"] is None for arm in document["results"])


@pytest.mark.slow
def test_trainer_takes_turns_with_the_plain_script(tmp_path: Path):
    _, document = run(
        "trainer.py", "cpu", "--threads", "1", "--only", "middle", "eager", folder=tmp_path
    )

    assert [each["setting"] for each in document["results"]] == [
        "middle eager float32",
        "middle eager bfloat16",
    ]
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
def test_the_plain_script_runs_alone(tmp_path: Path):
    data = tmp_path / "tokens.bin"
    data.write_bytes(bytes(range(64)) * 200)  # uint16 up to 0x3f3e

    done = subprocess.run(
        [sys.executable, str(FOLDER / "plain.py"), str(data), "--vocab-size", "16384", "--steps",
         "4", "--log-every", "2", "--d-model", "16", "--seq-len", "8"],
        check=True, capture_output=True, text=True,
    )  # fmt: skip

    first, last = done.stdout.splitlines()
    assert first.startswith("step 2 loss 9.")  # about ln 16384
    assert last.endswith("tokens/s")


@pytest.mark.slow
def test_workers_compares_processes(tmp_path: Path):
    _, document = run("workers.py", "--threads", "1", folder=tmp_path)

    (result,) = document["results"]
    assert len(result["one_s"]) == len(result["many_s"]) == 2
    assert result["faster"]["median"] > 0


@pytest.mark.slow
def test_ways_compares_compiled_and_bf16(tmp_path: Path):
    _, document = run("ways.py", "--threads", "1", folder=tmp_path)

    ways = {each["way"]: each for each in document["results"]}
    assert ways["eager float32"]["faster"]["median"] == 1
    assert ways["compiled bfloat16"]["target"] == 1.9


@pytest.mark.slow
def test_report_times_the_command_on_a_study_that_it_makes(tmp_path: Path):
    done, document = run("report.py", folder=tmp_path)

    assert "100 runs" in done.stdout  # ten sizes, five arms, two seeds
    nothing, report = document["results"]
    assert (report["command"], report["target_s"]) == ("report", 1.0)
    assert report["processor_s"]["median"] > nothing["processor_s"]["median"] > 0


@pytest.mark.slow
def test_study_counts_every_trial_in_a_file_and_on_a_server(
    database: tuple[Server, str], tmp_path: Path
):
    server, name = database
    server.sql(f"CREATE DATABASE {name}_2")
    late = server.url(f"{name}_2") + "?options=-c%20synchronous_commit%3Doff"

    done, document = run("study.py", "--study", server.url(name), "--study", late, folder=tmp_path)
    server.sql(f"DROP DATABASE {name}_2 WITH (FORCE)")

    results = document["results"]
    of = [(each["study"], each.get("server", {}).get("synchronous_commit")) for each in results]
    assert of[::2] == of[1::2] == [("sqlite", None), ("postgresql", "on"), ("postgresql", "off")]
    assert [each["what"] for each in results] == ["trials", "claims"] * 3
    assert {each["server"]["fsync"] for each in results if "server" in each} == {"off"}
    assert all(len(each["with_s"]) == 2 for each in results if "with_s" in each)
    assert all(len(each["per_minute"]) == 2 for each in results if "per_minute" in each)
    assert done.stdout.count("none lost, none twice") == 6
    assert PASSWORD not in done.stdout + json.dumps(document)


@pytest.mark.slow
def test_resolution_is_that_of_the_noise_and_the_slope_and_no_mean_is_told(tmp_path: Path):
    short = ["--recipe", "smoke", "--seeds", "3", "--slope-seeds", "2"]
    done = subprocess.run(
        [sys.executable, str(FOLDER / "resolution.py"), *short], cwd=tmp_path,
        check=True, capture_output=True, text=True,
    )  # fmt: skip

    slope = float(re.search(r"slope of standard: (\S+) nats", done.stdout)[1])
    sd, n = re.search(r"^attnres .* (0\.\d+) \[.*\] of (\d)$", done.stdout, re.M).groups()
    plan = r"^now: 1 arm x 7 seeds +attnres +(\S+)  (\S+)x"
    sees, worth = map(float, re.search(plan, done.stdout, re.M).groups())
    assert n == "3"
    assert sees == pytest.approx(detectable(7, float(sd), first_rate(1)), abs=2e-4)
    assert worth == pytest.approx(multiplier(sees, slope), rel=2e-3)
    assert "val loss" not in done.stdout
