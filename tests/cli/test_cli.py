"""The command line as a user types it: results, messages, exit codes."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from commands import Attnres
from studies import fill

from attnres_cli.cli.app import app
from attnres_cli.config.recipe import load

ABLATE = "ablate --recipe smoke"
SMOKE = ("ablate", "--recipe", "smoke")
HERE = ("--set", "train.tokens=1k", "--in-process")
TEXT = f"{ABLATE} --set data.source=text"
BAD = [
    (f"{ABLATE} standart", "did you mean 'standard'?"),
    (f"{ABLATE} attnres:blocksize=4", "did you mean 'block_size'?"),
    (f"{ABLATE} attnres:block_size=big", "block_size must be a whole number"),
    (f"{ABLATE} attnres:block_size=0", "block_size must be at least 1"),
    (f"{ABLATE} attnres:block_size=2,window=3", "exclude each other"),
    (f"{ABLATE} attnres:heads=5", "heads must divide d_model 32, got 5"),
    (f"{ABLATE} --baseline standrad", "did you mean 'standard'?"),
    ("ablate --suite tabel4", "did you mean 'table4'?"),
    ("ablate --suite ''", "unknown suite"),
    (f"{ABLATE} standard --suite quick", "not both"),
    ("ablate --recipe quik", "did you mean 'quick'?"),
    ("ablate --recipe ./none.yaml", "No such file"),
    ("ablate --recipe /dev/zero", "is no file"),
    (f"{ABLATE} --set train.tokns=2M", "did you mean 'tokens'?"),
    (f"{ABLATE} --set trian.tokens=2M", "did you mean 'train'?"),
    (f"{ABLATE} --set train.tokens=many", "train.tokens"),
    (f"{ABLATE} --set optim.lr=-1", "greater than 0"),
    (f"{ABLATE} --set train.tokens", "section.key=value"),
    (f"{ABLATE} --set model.n_heads=5", "d_model must be a multiple"),
    (f"{ABLATE} --set train.tokens=9999999999B", "less than"),
    (f"{ABLATE} --set train.tokens=2G", "k, M and B"),
    (f"{ABLATE} --set train.tokens=010000", "valid integer"),
    (f"{ABLATE} --set 'train.tokens=2M\nfoo: 3'", "--set"),
    (f"{ABLATE} --seeds 0", "--seeds must be at least 1, at most 1000, got 0"),
    (f"{ABLATE} --match parms", "did you mean 'params'?"),
    (
        f"{ABLATE} standard mhc --match flops",
        "mhc cannot be brought within 0.5% of standard: the nearest is d_ff 1",
    ),
    (f"{ABLATE} --workers 0", "workers"),
    (f"{ABLATE} --in-process --workers 2", "starts no worker"),
    (f"{ABLATE} --format jsno", "did you mean 'json'?"),
    (f"{ABLATE} --format html", "--format html: `attnres report --format html` prints it"),
    (f"{ABLATE} --device gpu", "auto, cpu, cuda or cuda:N"),
    (f"{ABLATE} --engine egaer", "did you mean 'eager'?"),
    (
        f"{ABLATE} --engine compile --set train.compile=off",
        "--set train.compile=on, or drop --engine",
    ),
    (
        f"{ABLATE} --engine eager --set train.compile=on",
        "--set train.compile=off, or drop --engine",
    ),
    (TEXT, "--set data.path="),
    (f"{TEXT} --set data.path=none.txt", "none.txt does not exist"),
    (f"{TEXT} --set data.path=/dev/zero", "no file or folder"),
    (f"{ABLATE} --study no/such/folder/a.db", "does not exist"),
    (f"{ABLATE} --dry-run --study no/a.db", "does not exist"),
    (f"{ABLATE} --study /proc/attnres.db", "/proc"),
    (f"{ABLATE} --study .", "is a folder"),
    (f"{ABLATE} --study :memory:", "the path of a file"),
    (f"{ABLATE} --study /dev/null", "is no file"),
    (f"{ABLATE} --study postgresql://127.0.0.1:1/db", "cannot be reached"),
    ("report --study none.db", "no study at none.db"),
    ("report --format pdf", "unknown format 'pdf'"),
    ("report --format htlm", "did you mean 'html'?"),
    ("recipes -q --verbose", "give one of them"),
    ("recipes --set model.n_layers=3", "recipes NAME"),
    ("recipes smok", "did you mean 'smoke'?"),
    ("variants atnres", "did you mean 'attnres'?"),
    ("variants attnres --shape n_layers=0", "whole numbers"),
    ("variants attnres --shape depth=3", "unknown size 'depth'"),
    ("variants attnres:heads=7", "must divide d_model 1024"),
    ("variants --shape n_layers=3", "attnres variants NAME --shape"),
    ("variants attnres --new x", "takes nothing else"),
    ("variants --new standard", "is there already"),
    ("check atnres", "did you mean 'attnres'?"),
    ("ablat", "ablat"),
    ("ablate --recipes quick", "--recipe"),
]


def test_bad_input_is_one_line_exit_code_2_and_nothing_written(
    attnres: Attnres, folder: Path, subtests: pytest.Subtests
):
    for typed, words in BAD:
        with subtests.test(typed):
            assert words in attnres.refuses(*shlex.split(typed))
            assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("option", "words"),
    [("--device=cuda", "use --device cpu"), ("--engine=triton", "--engine triton needs")],
)
def test_what_needs_cuda_is_refused_without_it(
    option: str, words: str, attnres: Attnres, folder: Path, monkeypatch: pytest.MonkeyPatch
):
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)

    assert words in attnres.refuses(*SMOKE, option)
    assert list(folder.iterdir()) == []


def test_data_that_are_too_short_are_refused(attnres: Attnres, folder: Path):
    for content, words in (
        (b"", "holds no text"),
        (b"x" * 30, "training data hold"),
        (b"x" * 5000, "validation data hold"),
    ):
        (folder / "short.txt").write_bytes(content)

        assert words in attnres.refuses(*TEXT.split(), "--set", "data.path=short.txt")
        assert not (folder / "attnres.db").exists()


@pytest.mark.parametrize("content", [b"my diary\n" * 100, b"SQLite format 3\0 cut"])
def test_a_file_that_is_no_study_is_refused_and_left_as_it_was(
    content: bytes, attnres: Attnres, folder: Path
):
    path = folder / "attnres.db"
    path.write_bytes(content)

    codes = [attnres(*command)[0] for command in (SMOKE, ("report",))]

    assert codes == [2, 2]
    assert path.read_bytes() == content


def test_a_dry_run_prints_the_plan_and_writes_nothing(attnres: Attnres, folder: Path):
    typed = (*SMOKE, "standard", "attnres", "--seeds", "2", "--dry-run")

    out, plan = attnres.prints(*typed), attnres.json(*typed)

    assert "4 runs (2 arms x 2 seeds), 4 to train" in out
    assert "predicted time" in out
    assert "vocabulary 256 (bytes)" in out
    assert "split: whole files validate, by the hashes of their names" in out
    assert "warning: runs are evaluated on 4,096 tokens" in out
    assert list(folder.iterdir()) == []
    assert [arm["variant"] for arm in plan["arms"]] == ["standard", "attnres"]
    assert [arm["to_train"] for arm in plan["arms"]] == [2, 2]
    assert (plan["recipe"], plan["to_train"], plan["more"]) == ("smoke", 4, [])
    assert plan["settings"]["threads"] == 1
    assert plan["seconds"] > 0


def test_an_arm_goes_by_the_name_of_the_design_that_it_is_at_this_depth(attnres: Attnres):
    typed = ("kimi-k3:heads=2", "attnres:window=8", "--seeds", "1", "--dry-run")

    code, out, err = attnres(*SMOKE, *typed)

    assert code == 0
    assert "kimi-k3:heads=2 is attnres:block_size=4,heads=2 in a model of 4 sublayers" in err
    assert "attnres:block_size=4,heads=2" in out
    assert "attnres:window=8 is attnres in a model of 4 sublayers" in err
    assert "attnres:window=8" not in out


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("variants", ("standard", "denseformer", "attnres", "h_{l+1} = h_l + f_l(h_l)")),
        (
            "variants attnres",
            (
                *("softmax_i", "Start: w = 0", "arXiv 2603.15031"),
                *("block_size", "a whole number or none", "on or off"),
            ),
        ),
        (
            "variants attnres:block_size=2 --shape n_layers=3,d_model=256",
            (
                "parameters     +3,584",  # 2 D (L + 1)
                "   5 ██─█─\n   6 ██─█─█\n   7 ██─█─█─\n",
                "1.746 nats per token (Table 4 and Fig. 6, 436M)",
            ),
        ),
        ("recipes", ("smoke", "quick", "kimi-tiny", "paper-436m", "table4")),
        (
            "recipes quick --set model.n_layers=3",
            ("# Command:", "parameters of the trunk", "--set model.n_layers=3"),
        ),
    ],
)
def test_designs_and_recipes_have_lists_and_pages(
    command: str, words: tuple[str, ...], attnres: Attnres
):
    out = attnres.prints(*command.split())

    for word in words:
        assert word in out
    assert "FAILED" not in out


def test_every_command_has_help_with_all_that_is_in_brackets(attnres: Attnres):
    """For example the extra [lm-eval], which rich would take for its own markup."""
    commands = [((), typer.main.get_command(app))]
    for path, command in commands:  # grows
        commands += [
            ((*path, name), each) for name, each in getattr(command, "commands", {}).items()
        ]
        texts = [command.help, *(getattr(each, "help", None) for each in command.params)]
        written = {word for text in texts for word in re.findall(r"\[[\w.-]+\]", text or "")}
        out = attnres.prints(*path, "--help")
        assert "Usage" in out
        assert {word for word in written if word not in out} == set(), path
    assert "[lm-eval]" in attnres.prints("evaluate", "--help")
    assert attnres.prints("--version").startswith("attnres 0.")
    _, out, err = attnres()  # no command
    assert ("Usage" in out, err) == (True, "")


def python(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)


def test_nothing_heavy_is_imported_before_a_command_needs_it():
    done = python(
        "import sys, attnres_cli.cli.app\n"
        "heavy = {'torch', 'optuna', 'matplotlib', 'sqlalchemy', 'scipy', 'numpy', 'pydantic'}\n"
        "print(*sorted(heavy & sys.modules.keys()))\n"
        "import attnres_cli.report.terminal\n"
        "print(*sorted({'torch', 'optuna', 'matplotlib'} & sys.modules.keys()))\n"
        "from attnres_cli.lab.search.studies import read\n"
        "print(read('no.db'), 'torch' in sys.modules)"
    )

    assert (done.stdout, done.returncode) == ("\n\n[] False\n", 0), done.stderr


def test_mistakes_reports_and_plans_need_no_torch(folder: Path):
    fill(folder / "attnres.db", load("smoke"), {"standard": [1.5, 1.6], "attnres": [1.4, 1.5]})
    refused = ["ablate", "search", "bench", "bench decode"]
    done = python(
        "import sys\n"
        "from attnres_cli.cli import app\n"
        "def ended(line):\n"
        "    sys.argv = ['attnres', *line.split()]\n"
        "    return app.run()\n"
        "sys.modules['torch'] = sys.modules['scipy'] = None  # importing them now raises\n"
        f"assert {{ended(f'{{each}} --recipe nosuch') for each in {refused}}} == {{2}}\n"
        "del sys.modules['scipy']\n"
        "assert ended('plan') == 0\n"
        "print('|', flush=True)\n"
        "assert ended('report --format json') == 0"
    )

    assert done.returncode == 0, done.stderr
    plan, _, report = done.stdout.partition("|")
    assert done.stderr.count("unknown recipe 'nosuch'") == len(refused)
    assert "noise floor" in plan
    assert json.loads(report)["arms"][0]["variant"] == "standard"


def shell(command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", f"set -o pipefail; {sys.executable} -m attnres_cli {command}"],
        capture_output=True,
        text=True,
        env=os.environ | {"LC_ALL": "C.UTF-8"} | environment,
    )


def test_a_report_survives_narrow_ascii_and_closed_outputs(
    folder: Path, attnres: Attnres, monkeypatch: pytest.MonkeyPatch
):
    losses = {"standard": [1.5, 1.6], "attnres:block_size=2": [1.4, 1.7]}
    fill(folder / "attnres.db", load("smoke"), losses)

    for closed in (shell("report | true"), shell("report >&-")):
        assert (closed.returncode, closed.stderr) == (0, "")
    with monkeypatch.context() as patch:
        ascii_only = io.BytesIO()
        patch.setattr(sys, "stdout", io.TextIOWrapper(ascii_only, encoding="ascii"))
        assert attnres("report") == (0, "", "")
        assert b"attnres:block_size=2" in ascii_only.getvalue()
    monkeypatch.setenv("COLUMNS", "40")
    code, narrow, err = attnres("report")
    assert (code, err) == (0, "")
    assert "verdict" in narrow
    assert "separable" in narrow


@pytest.mark.parametrize(
    "where", ["--in-process", pytest.param("--workers 1", marks=pytest.mark.slow)]
)
def test_training_goes_on_when_nobody_reads_its_progress(
    where: str, attnres: Attnres, folder: Path
):
    (folder / "text.txt").write_text("a text of my own, " * 9000)
    options = f"standard --seeds 2 --set train.tokens=1k --set data.path=text.txt {where}"

    shell(f"{TEXT} {options} 2>&1 >out.txt | head -1")

    assert [run["status"] for run in attnres.json("runs")] == ["complete"] * 2
    assert "standard" in (folder / "out.txt").read_text(encoding="utf-8")


def test_runs_use_the_engine_that_you_ask_for_and_a_report_says_which(attnres: Attnres):
    """A baseline that is no arm is trained too."""
    brief = ("--seeds", "1", *HERE)
    asked = ("--engine", "reference", "--format", "json")

    code, out, err = attnres(*SMOKE, "attnres", *brief, *asked)
    assert code == 0, err
    assert "the baseline standard is trained too" in err
    assert "depth mixing by reference" in err
    verdicts = {arm["variant"]: arm["verdict"] for arm in json.loads(out)["arms"]}
    assert verdicts["standard"] == "baseline"
    assert verdicts["attnres"] != "blocked"

    attnres(*SMOKE, "standard", "attnres", "denseformer", *brief)
    document, table = attnres.json("report"), attnres.prints("report")
    engines = {arm["variant"]: arm["engines"] for arm in document["arms"]}
    reference = ["reference"]
    assert engines == {"standard": reference, "attnres": reference, "denseformer": ["eager"]}
    assert any(text.endswith("depth mixing by reference") for text in document["settings"])
    assert "arms computed by different engines, which agree to rounding:" in table


def test_a_report_takes_a_baseline_in_any_of_its_forms(attnres: Attnres, folder: Path):
    fill(folder / "attnres.db", load("smoke"), {"standard": [1.5, 1.6], "attnres": [1.4, 1.5]})

    for spec in ("attnres", "attnres:heads=1", "attnres:window=9"):
        assert attnres.json("report", "--baseline", spec)["baseline"] == "attnres"


def test_data_that_have_moved_are_read_where_they_lie_now(attnres: Attnres, folder: Path):
    for name, design in (("before.txt", "standard"), ("after.txt", "attnres")):
        path = folder / name
        path.write_text("a text of my own, " * 9000)
        attnres.prints(*TEXT.split(), design, "--set", f"data.path={path}", "--seeds=1", *HERE)
        path.unlink()

    assert len(attnres.json("runs")) == 2  # the standard of the second command was there


def test_quiet_leaves_results_and_warnings_and_verbose_tells_of_every_run(attnres: Attnres):
    one_run = (*SMOKE, "standard", "--seeds", "1", *HERE)
    code, quiet, said = attnres(*one_run, "-q")
    _, usual, nothing_new = attnres(*one_run)
    *_, verbose = attnres("-v", *one_run, "--study", "second.db")
    before = attnres(*one_run, "--study", "third.db")[2]

    assert (code, said) == (0, "")
    assert quiet == usual
    assert nothing_new == ""
    taken = "attnres: standard seed 0 (run 1): taken by worker 0"
    assert taken in verbose.splitlines()
    assert taken not in before
    assert "attnres: standard seed 0: val loss" in before
    assert "plan: recipe smoke" in before


@pytest.mark.parametrize(
    ("command", "forms"),
    [
        ("variants", "csv json markdown"),
        ("variants attnres:block_size=4", "csv json markdown"),
        ("recipes", "csv json markdown"),
        ("recipes smoke", "csv json markdown"),
        ("check standard --only counts", "csv json markdown"),
        (f"{ABLATE} standard attnres --seeds 2 --dry-run", "csv markdown"),  # json: see above
        (f"{ABLATE} standard --seeds 1 --tune-lr --dry-run", "csv json"),
        ("search standard --recipe smoke --budget params=60k --dry-run", "csv json"),
    ],
)
def test_every_command_prints_every_format_that_its_help_offers(
    command: str, forms: str, attnres: Attnres
):
    typed = (*command.split(), "-q")

    rows = attnres.csv(*typed)
    assert rows
    assert all(None not in row and row for row in rows)
    assert "json" not in forms or attnres.json(*typed)
    assert "markdown" not in forms or attnres.prints(*typed, "--format", "markdown").strip()
