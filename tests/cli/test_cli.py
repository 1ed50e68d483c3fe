"""The command line as a user types it: results, messages, exit codes."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import typer
from commands import attnres

from attnres_cli.cli.app import app


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "140")


SMOKE = ("ablate", "--recipe", "smoke")
BAD = {
    "variant": ([*SMOKE, "standart"], "did you mean 'standard'?"),
    "variant option": ([*SMOKE, "attnres:blocksize=4"], "did you mean 'block_size'?"),
    "option value": ([*SMOKE, "attnres:block_size=big"], "block_size must be a whole number"),
    "option range": ([*SMOKE, "attnres:block_size=0"], "block_size must be at least 1"),
    "options that clash": ([*SMOKE, "attnres:block_size=2,window=3"], "exclude each other"),
    "heads": ([*SMOKE, "attnres:heads=5"], "heads must divide d_model 32, got 5"),
    "baseline": ([*SMOKE, "--baseline", "standrad"], "did you mean 'standard'?"),
    "suite": (["ablate", "--suite", "tabel4"], "did you mean 'table4'?"),
    "suite and variants": ([*SMOKE, "standard", "--suite", "quick"], "not both"),
    "recipe": (["ablate", "--recipe", "quik"], "did you mean 'quick'?"),
    "recipe file": (["ablate", "--recipe", "./none.yaml"], "No such file"),
    "key": ([*SMOKE, "--set", "train.tokns=2M"], "did you mean 'tokens'?"),
    "section": ([*SMOKE, "--set", "trian.tokens=2M"], "did you mean 'train'?"),
    "type": ([*SMOKE, "--set", "train.tokens=many"], "train.tokens"),
    "range": ([*SMOKE, "--set", "optim.lr=-1"], "greater than 0"),
    "set without value": ([*SMOKE, "--set", "train.tokens"], "section.key=value"),
    "heads of the trunk": ([*SMOKE, "--set", "model.n_heads=5"], "d_model must be a multiple"),
    "no seeds": ([*SMOKE, "--seeds", "0"], "--seeds must be at least 1, at most 1000, got 0"),
    "seeds that are none": ([*SMOKE, "--seeds", "a,b"], "as 0,3,7"),
    "equal seeds": ([*SMOKE, "--seeds", "1,1"], "different seeds"),
    "seeds kept for tuning": ([*SMOKE, "--seeds", "0,1000000"], "are kept for --tune-lr"),
    "match": ([*SMOKE, "--match", "parms"], "did you mean 'params'?"),
    "no such match": (
        [*SMOKE, "standard", "mhc", "--match", "flops"],
        "mhc cannot be brought within 0.5% of standard: the nearest is d_ff 1",
    ),
    "workers": ([*SMOKE, "--workers", "0"], "workers"),
    "workers in one process": ([*SMOKE, "--in-process", "--workers", "2"], "starts no worker"),
    "quiet and verbose": (["recipes", "-q", "--verbose"], "give one of them"),
    "format": ([*SMOKE, "--format", "jsno"], "did you mean 'json'?"),
    "format of a report": (
        [*SMOKE, "--format", "html"],
        "--format html: `attnres report --format html` prints it",
    ),
    "format that a report has not": (["report", "--format", "htlm"], "did you mean 'html'?"),
    "device": ([*SMOKE, "--device", "gpu"], "auto, cpu, cuda or cuda:N"),
    "engine": ([*SMOKE, "--engine", "egaer"], "did you mean 'eager'?"),
    "engine, not compiled": (
        [*SMOKE, "--engine", "compile", "--set", "train.compile=off"],
        "--set train.compile=on, or drop --engine",
    ),
    "engine, compiled": (
        [*SMOKE, "--engine", "eager", "--set", "train.compile=on"],
        "--set train.compile=off, or drop --engine",
    ),
    "data path": (
        [*SMOKE, "--set", "data.source=text", "--set", "data.path=none.txt"],
        "none.txt does not exist",
    ),
    "no data path": ([*SMOKE, "--set", "data.source=text"], "--set data.path="),
    "study folder": ([*SMOKE, "--study", "no/such/folder/a.db"], "does not exist"),
    "read-only study folder": ([*SMOKE, "--study", "/proc/attnres.db"], "/proc"),
    "study is a folder": ([*SMOKE, "--study", "."], "is a folder"),
    "study in memory": ([*SMOKE, "--study", ":memory:"], "the path of a file"),
    "study is a device": ([*SMOKE, "--study", "/dev/null"], "is no file"),
    "dry run, study folder": ([*SMOKE, "--dry-run", "--study", "no/a.db"], "does not exist"),
    "recipe is a device": (["ablate", "--recipe", "/dev/zero"], "is no file"),
    "data are a device": (
        [*SMOKE, "--set", "data.source=text", "--set", "data.path=/dev/zero"],
        "no file or folder",
    ),
    "count of a count": ([*SMOKE, "--set", "train.tokens=9999999999B"], "less than"),
    "suffix": ([*SMOKE, "--set", "train.tokens=2G"], "k, M and B"),
    "octal": ([*SMOKE, "--set", "train.tokens=010000"], "valid integer"),
    "two lines": ([*SMOKE, "--set", "train.tokens=2M\nfoo: 3"], "--set"),
    "empty suite": (["ablate", "--suite", ""], "unknown suite"),
    "set without recipe": (["recipes", "--set", "model.n_layers=3"], "recipes NAME"),
    "postgres": ([*SMOKE, "--study", "postgresql://127.0.0.1:1/db"], "cannot be reached"),
    "no such study": (["report", "--study", "none.db"], "no study at none.db"),
    "report format": (["report", "--format", "pdf"], "unknown format 'pdf'"),
    "unknown variant page": (["variants", "atnres"], "did you mean 'attnres'?"),
    "a shape that is none": (["variants", "attnres", "--shape", "n_layers=0"], "whole numbers"),
    "an unknown size": (["variants", "attnres", "--shape", "depth=3"], "unknown size 'depth'"),
    "a design that fits no width": (["variants", "attnres:heads=7"], "must divide d_model 1024"),
    "a shape of none": (["variants", "--shape", "n_layers=3"], "attnres variants NAME --shape"),
    "a new one and a page": (["variants", "attnres", "--new", "x"], "takes nothing else"),
    "a new one that is there": (["variants", "--new", "standard"], "is there already"),
    "check of none": (["check", "atnres"], "did you mean 'attnres'?"),
    "unknown recipe page": (["recipes", "smok"], "did you mean 'smoke'?"),
    "unknown command": (["ablat"], "ablat"),
    "unknown flag": (["ablate", "--recipes", "quick"], "--recipe"),
}


def test_bad_input_is_one_line_exit_code_2_and_nothing_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], subtests: pytest.Subtests
):
    for name, (arguments, words) in BAD.items():
        with subtests.test(name):
            code, out, err = attnres(capsys, *arguments)

            assert (code, out) == (2, "")
            assert words in err
            assert err.count("\n") == 1
            assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
def test_cuda_without_cuda_is_refused(capsys: pytest.CaptureFixture[str]):
    code, _, err = attnres(capsys, *SMOKE, "--device", "cuda")

    assert code == 2
    assert "use --device cpu" in err


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
def test_tritons_engine_without_cuda_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)

    code, _, err = attnres(capsys, *SMOKE, "--engine", "triton")

    assert (code, err.count("\n")) == (2, 1)
    assert "--engine triton needs" in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "holds no text"),
        (b"x" * 30, "training data hold"),
        (b"x" * 5000, "validation data hold"),
    ],
)
def test_data_that_are_too_short_are_refused(
    content: bytes, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = tmp_path / "short.txt"
    path.write_bytes(content)

    code, _, err = attnres(
        capsys, *SMOKE, "--set", "data.source=text", "--set", f"data.path={path}"
    )

    assert (code, err.count("\n")) == (2, 1)
    assert words in err
    assert not (tmp_path / "attnres.db").exists()


@pytest.mark.parametrize("content", [b"my diary\n" * 100, b"SQLite format 3\0 cut"])
def test_a_file_that_is_no_study_is_refused_and_left_as_it_was(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = tmp_path / "attnres.db"
    path.write_bytes(content)

    codes = [attnres(capsys, *command)[0] for command in (SMOKE, ("report",))]

    assert codes == [2, 2]
    assert path.read_bytes() == content


def test_a_dry_run_prints_the_plan_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    code, out, _ = attnres(capsys, *SMOKE, "standard", "attnres", "--seeds", "2", "--dry-run")

    assert code == 0
    assert "4 runs (2 arms x 2 seeds), 4 to train" in out
    assert "predicted time" in out
    assert "vocabulary 256 (bytes)" in out
    assert "split: whole files validate, by the hashes of their names" in out
    assert "warning: runs are evaluated on 4,096 tokens" in out
    assert list(tmp_path.iterdir()) == []


def test_variants_lists_every_design_with_its_equation(capsys: pytest.CaptureFixture[str]):
    code, out, _ = attnres(capsys, "variants")

    assert code == 0
    assert all(name in out for name in ("standard", "denseformer", "attnres"))
    assert "h_{l+1} = h_l + f_l(h_l)" in out


def test_a_preset_is_the_design_that_it_stands_for(capsys: pytest.CaptureFixture[str]):
    code, out, err = attnres(capsys, *SMOKE, "kimi-k3:heads=2", "--seeds", "1", "--dry-run")

    assert code == 0
    assert "kimi-k3:heads=2 is attnres:block_size=4,heads=2 in a model of 4 sublayers" in err
    assert "attnres:block_size=4,heads=2" in out


def test_a_variants_page_draws_who_reads_what_and_counts_at_a_shape(
    capsys: pytest.CaptureFixture[str],
):
    shape = "n_layers=3,d_model=256"

    code, out, _ = attnres(capsys, "variants", "attnres:block_size=2", "--shape", shape)

    assert code == 0
    assert "parameters     +3,584" in out  # 2 D (L + 1)
    assert "   5 ██─█─\n   6 ██─█─█\n   7 ██─█─█─\n" in out
    assert "1.746 nats per token (Table 4 and Fig. 6, 436M)" in out
    assert "FAILED" not in out


def test_a_variants_page_has_equation_options_start_and_source(
    capsys: pytest.CaptureFixture[str],
):
    code, out, _ = attnres(capsys, "variants", "attnres")

    assert code == 0
    assert all(word in out for word in ("softmax_i", "Start: w = 0", "arXiv 2603.15031"))
    assert all(word in out for word in ("block_size", "a whole number or none", "on or off"))


def test_recipes_lists_recipes_and_suites(capsys: pytest.CaptureFixture[str]):
    code, out, _ = attnres(capsys, "recipes")

    assert code == 0
    assert all(name in out for name in ("smoke", "quick", "kimi-tiny", "paper-436m", "table4"))


def test_a_recipes_page_has_its_text_and_what_follows_from_it(
    capsys: pytest.CaptureFixture[str],
):
    code, out, _ = attnres(capsys, "recipes", "quick", "--set", "model.n_layers=3")

    assert code == 0
    assert "# Command:" in out
    assert "parameters of the trunk" in out
    assert "--set model.n_layers=3" in out


def test_an_empty_study_says_what_to_type(capsys: pytest.CaptureFixture[str]):
    from attnres_cli.store.store import Store

    Store.open("attnres.db", create=True)

    code, _, err = attnres(capsys, "report")

    assert code == 2
    assert "holds no runs yet: `attnres ablate" in err


def test_version_and_help_answer(capsys: pytest.CaptureFixture[str]):
    assert attnres(capsys, "--version")[1].startswith("attnres 0.")
    for command in ((), ("ablate",), ("report",), ("variants",), ("recipes",)):
        code, out, _ = attnres(capsys, *command, "--help")
        assert (code, "Usage" in out) == (0, True)


def test_help_prints_what_is_in_brackets(capsys: pytest.CaptureFixture[str]):
    """As the extra of attnres-cli[lm-eval], which rich would take for its own markup."""
    commands = [((), typer.main.get_command(app))]
    for path, command in commands:  # grows
        commands += [
            ((*path, name), each) for name, each in getattr(command, "commands", {}).items()
        ]
        texts = [command.help, *(getattr(each, "help", None) for each in command.params)]
        written = {word for text in texts for word in re.findall(r"\[[\w.-]+\]", text or "")}
        out = attnres(capsys, *path, "--help")[1]
        assert {word for word in written if word not in out} == set(), path
    assert "pip install 'attnres-cli[lm-eval]'" in attnres(capsys, "evaluate", "--help")[1]


@pytest.mark.parametrize("module", ["attnres_cli.cli.app", "attnres_cli.report.terminal"])
def test_nothing_heavy_is_imported_before_a_command_needs_it(module: str):
    program = (
        f"import sys, {module}\n"
        "print(*sorted({'torch', 'optuna', 'matplotlib'} & sys.modules.keys()))"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert (done.stdout.split(), done.returncode) == ([], 0)


def test_help_imports_no_database_either():
    program = (
        "import sys, attnres_cli.cli.app\n"
        "heavy = {'torch', 'optuna', 'sqlalchemy', 'scipy', 'numpy', 'pydantic'}\n"
        "print(*sorted(heavy & sys.modules.keys()))"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert (done.stdout.split(), done.returncode) == ([], 0)


@pytest.mark.parametrize("command", ["ablate", "search", "bench", "bench decode"])
def test_a_recipe_that_is_none_is_refused_before_torch_is_imported(command: str):
    program = (
        "import sys\n"
        "sys.modules['torch'] = sys.modules['scipy'] = None  # importing them now raises\n"
        f"sys.argv = ['attnres', *{command.split()}, '--recipe', 'nosuch']\n"
        "from attnres_cli.cli.app import main\n"
        "main()"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert done.returncode == 2
    assert "unknown recipe 'nosuch'" in done.stderr


def test_a_report_needs_no_torch(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    attnres(capsys, *SMOKE, "standard", "--seeds", "1", "--set", "train.tokens=2k")
    program = (
        "import sys\n"
        "sys.modules['torch'] = None  # importing it now raises\n"
        "sys.argv = ['attnres', 'report', '--format', 'json']\n"
        "from attnres_cli.cli.app import main\n"
        "main()"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["arms"][0]["variant"] == "standard"


def trained(capsys: pytest.CaptureFixture[str], *arms: str) -> None:
    short = ("--seeds", "2", "--set", "train.tokens=2k")
    code, _, err = attnres(capsys, *SMOKE, *arms, *short)
    assert code == 0, err


def test_a_baseline_that_is_no_arm_is_trained_too(capsys: pytest.CaptureFixture[str]):
    code, out, err = attnres(
        capsys, *SMOKE, "attnres", "--seeds", "2", "--set", "train.tokens=2k", "--format", "json"
    )

    assert code == 0
    assert "the baseline standard is trained too" in err
    arms = {arm["variant"]: arm["verdict"] for arm in json.loads(out)["arms"]}
    assert arms["standard"] == "baseline"
    assert arms["attnres"] != "blocked"


def test_runs_are_computed_by_the_engine_asked_for_and_a_report_says_so(
    capsys: pytest.CaptureFixture[str],
):
    short = ("--seeds", "1", "--set", "train.tokens=2k")
    code, _, err = attnres(capsys, *SMOKE, "standard", "attnres", *short, "--engine", "reference")
    assert code == 0, err
    assert "depth mixing by reference" in err

    attnres(capsys, *SMOKE, "standard", "attnres", "denseformer", *short)
    document = json.loads(attnres(capsys, "report", "--format", "json")[1])
    table = attnres(capsys, "report")[1]

    engines = {arm["variant"]: arm["engines"] for arm in document["arms"]}
    asked = ["reference"]
    assert engines == {"standard": asked, "attnres": asked, "denseformer": ["eager"]}
    assert any(text.endswith("depth mixing by reference") for text in document["settings"])
    assert "arms computed by different engines, which agree to rounding:" in table


def test_a_spec_that_is_a_simpler_design_at_this_depth_says_so(capsys: pytest.CaptureFixture[str]):
    code, out, err = attnres(capsys, *SMOKE, "standard", "attnres:window=8", "--dry-run")

    assert code == 0
    assert "attnres:window=8 is attnres in a model of 4 sublayers" in err
    assert "attnres:window=8" not in out


def test_a_report_takes_a_baseline_in_any_of_its_forms(capsys: pytest.CaptureFixture[str]):
    trained(capsys, "standard", "attnres")

    for spec in ("attnres", "attnres:heads=1", "attnres:window=9"):
        code, out, _ = attnres(capsys, "report", "--baseline", spec, "--format", "json")
        assert (code, json.loads(out)["baseline"]) == (0, "attnres")


def test_a_report_survives_narrow_ascii_and_closed_outputs(capsys: pytest.CaptureFixture[str]):
    trained(capsys, "standard", "attnres:block_size=2")
    program = f"{sys.executable} -m attnres_cli report"

    def shell(command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-c", "set -o pipefail; " + command],
            capture_output=True,
            text=True,
            env=os.environ | {"LC_ALL": "C.UTF-8"} | environment,
        )

    narrow, ascii_only = shell(program, COLUMNS="40"), shell(program, PYTHONIOENCODING="ascii")
    read_once, closed = shell(program + " | head -1"), shell(program + " >&-")

    assert all(done.returncode == 0 for done in (narrow, ascii_only, read_once, closed))
    assert all(done.stderr == "" for done in (narrow, ascii_only, read_once, closed))
    assert "verdict" in narrow.stdout
    assert "separable" in narrow.stdout
    assert "attnres:block_size=2" in ascii_only.stdout


def test_training_goes_on_when_nobody_reads_its_progress(capsys: pytest.CaptureFixture[str]):
    command = f"{sys.executable} -m attnres_cli {' '.join(SMOKE)} standard --seeds 2 2>&1 >out.txt"

    subprocess.run(["bash", "-c", command + " | head -1"], capture_output=True)

    assert attnres(capsys, "report")[0] == 0
    assert "standard" in Path("out.txt").read_text(encoding="utf-8")


def test_no_command_prints_the_help(capsys: pytest.CaptureFixture[str]):
    _, out, err = attnres(capsys)

    assert "Usage" in out
    assert err == ""


def test_data_that_have_moved_are_read_where_they_lie_now(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    text = "a text of my own, " * 9000
    for name in ("before.txt", "after.txt"):
        (tmp_path / name).write_text(text)
        data = ["--set", "data.source=text", "--set", f"data.path={tmp_path / name}"]
        design = "standard" if name == "before.txt" else "attnres"
        code, _, err = attnres(
            capsys, *SMOKE, design, *data, "--seeds", "1", "--set", "train.tokens=2k"
        )
        assert code == 0, err
        (tmp_path / name).unlink()


HERE = (*SMOKE, "standard", "--seeds", "1", "--set", "train.tokens=8k", "--in-process")


def test_quiet_leaves_results_and_warnings_and_verbose_tells_of_every_run(
    capsys: pytest.CaptureFixture[str],
):
    code, quiet, said = attnres(capsys, *HERE, "-q")
    _, usual, nothing_new = attnres(capsys, *HERE)
    *_, verbose = attnres(capsys, "-v", *HERE, "--study", "second.db")
    before = attnres(capsys, *HERE, "--study", "third.db")[2]

    assert (code, said) == (0, "")
    assert quiet == usual
    assert nothing_new == ""
    taken = "attnres: standard seed 0 (run 1): taken by worker 0"
    assert taken in verbose.splitlines()
    assert taken not in before
    assert "attnres: standard seed 0: val loss" in before
    assert "plan: recipe smoke" in before


PRINTED = {
    "variants": ("variants",),
    "a variant": ("variants", "attnres:block_size=4"),
    "recipes": ("recipes",),
    "a recipe": ("recipes", "smoke"),
    "check": ("check", "standard", "--only", "counts"),
    "ablate": (*SMOKE, "standard", "attnres", "--seeds", "2", "--dry-run"),
    "tuning": (*SMOKE, "standard", "--seeds", "1", "--tune-lr", "--dry-run"),
    "search": ("search", "standard", "--recipe", "smoke", "--budget", "params=60k", "--dry-run"),
}


@pytest.mark.parametrize("name", PRINTED)
def test_every_command_prints_every_format_that_its_help_offers(
    name: str, capsys: pytest.CaptureFixture[str]
):
    code, listed, _ = attnres(capsys, *PRINTED[name], "--format", "csv", "-q")
    assert code == 0
    rows = list(csv.DictReader(io.StringIO(listed)))
    assert rows
    assert all(None not in row and row for row in rows)
    document = json.loads(attnres(capsys, *PRINTED[name], "--format", "json", "-q")[1])
    assert document
    assert attnres(capsys, *PRINTED[name], "--format", "markdown", "-q")[1].strip()


def test_a_dry_run_in_json_has_the_plan(capsys: pytest.CaptureFixture[str]):
    plan = json.loads(attnres(capsys, *PRINTED["ablate"], "--format", "json", "-q")[1])

    assert [arm["variant"] for arm in plan["arms"]] == ["standard", "attnres"]
    assert [arm["to_train"] for arm in plan["arms"]] == [2, 2]
    assert (plan["recipe"], plan["to_train"], plan["more"]) == ("smoke", 4, [])
    assert plan["settings"]["threads"] == 1
    assert plan["seconds"] > 0
