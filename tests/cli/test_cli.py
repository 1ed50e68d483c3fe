"""The command line as a user types it: results, messages, exit codes."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from commands import Attnres
from studies import fill

from attnres_cli.cli.app import app
from attnres_cli.cli.launching import claimers_words
from attnres_cli.cli.options import read_seeds
from attnres_cli.config.recipe import load, text_of
from attnres_cli.errors import UsageError

ABLATE = "ablate --recipe smoke"
SMOKE = ("ablate", "--recipe", "smoke")
HERE = ("--set", "train.tokens=1k", "--in-process")
TEXT = f"{ABLATE} --set data.source=text"


def test_a_dry_run_prints_the_plan_and_writes_nothing(attnres: Attnres, folder: Path):
    typed = (*SMOKE, "standard", "attnres", "--seeds", "2", "--dry-run")

    out, plan = attnres.prints(*typed), attnres.json(*typed)

    assert "4 runs (2 arms x 2 seeds), 4 to train" in out
    assert "predicted time" in out
    assert "vocabulary 256 (bytes)" in out
    assert "split: whole files validate, by the hashes of their names" in out
    assert "warning: only 4,096 evaluation tokens" in out
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


PAGES = {
    "variants": ("standard", "denseformer", "attnres", "h_{l+1} = h_l + f_l(h_l)"),
    "variants attnres": (
        *("softmax_i", "Start: w = 0", "arXiv 2603.15031"),
        *("block_size", "a whole number or none", "on or off"),
    ),
    "variants attnres:block_size=2 --shape n_layers=3,d_model=256": (
        "parameters     +3,584",  # 2 D (L + 1)
        "   5 ██─█─\n   6 ██─█─█\n   7 ██─█─█─\n",
        "1.746 nats per token (Table 4 and Fig. 6, 436M)",
    ),
    "recipes": ("smoke", "quick", "kimi-tiny", "paper-436m", "table4"),
    "recipes quick --set model.n_layers=3": (
        *("# Command:", "parameters of the trunk", "--set model.n_layers=3"),
    ),
}


def test_designs_and_recipes_have_lists_and_pages(attnres: Attnres):
    for command, words in PAGES.items():
        out = attnres.prints(*command.split())
        assert [word for word in words if word not in out] == [], command
        assert "FAILED" not in out


@pytest.mark.parametrize("name", ["quick", "sizes", "gpt2-124m"])
def test_what_is_printed_of_a_recipe_is_that_recipe(
    name: str, attnres: Attnres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("COLUMNS", "60")
    (tmp_path / "mine.yaml").write_text(attnres.prints("recipes", name))
    assert load(str(tmp_path / "mine.yaml")).digest == load(name).digest


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


def python(*lines: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True)


def test_nothing_heavy_is_imported_before_a_command_needs_it():
    done = python(
        "import sys, attnres_cli.cli.app",
        "heavy = {'torch', 'optuna', 'matplotlib', 'sqlalchemy', 'scipy', 'numpy', 'pydantic'}",
        "print(*sorted(heavy & sys.modules.keys()))",
        "import attnres_cli.report.terminal, attnres_cli.store.store",
        "print(*sorted({'torch', 'optuna', 'alembic', 'matplotlib'} & sys.modules.keys()))",
        "from attnres_cli.lab.search.studies import read",
        "print(read('no.db'), 'torch' in sys.modules)",
    )

    assert (done.stdout, done.returncode) == ("\n\n[] False\n", 0), done.stderr


@pytest.fixture
def study(folder: Path) -> None:
    losses = {"standard": [1.5, 1.6], "attnres": [1.4, 1.5], "attnres:block_size=2": [1.4, 1.7]}
    fill(folder / "attnres.db", load("smoke"), losses)


@pytest.mark.usefixtures("study")
def test_mistakes_reports_and_plans_need_no_torch():
    done = python(
        "import sys",
        "from attnres_cli.cli import app",
        "def ended(line):",
        "    sys.argv = ['attnres', *line.split()]",
        "    return app.run()",
        "sys.modules['torch'] = sys.modules['scipy'] = None  # importing them now raises",
        "for each in ('ablate', 'search', 'bench', 'bench decode'):",
        "    assert ended(f'{each} --recipe nosuch') == 2",
        "del sys.modules['scipy']",
        "assert ended('plan') == 0",
        "print('|', flush=True)",
        "assert ended('report --format json') == 0",
    )

    assert done.returncode == 0, done.stderr
    plan, _, report = done.stdout.partition("|")
    assert done.stderr.count("unknown recipe 'nosuch'") == 4
    assert "noise floor" in plan
    assert json.loads(report)["arms"][0]["variant"] == "standard"


def shell(command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", f"set -o pipefail; {sys.executable} -m attnres_cli {command}"],
        capture_output=True,
        text=True,
        env=os.environ | {"LC_ALL": "C.UTF-8"} | environment,
    )


@pytest.mark.usefixtures("study")
def test_a_report_survives_narrow_ascii_and_closed_outputs(
    attnres: Attnres, monkeypatch: pytest.MonkeyPatch
):
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
    assert "Pending: attnres (2 of 5 seeds)" in narrow


@pytest.mark.usefixtures("study")
def test_a_report_takes_a_baseline_in_any_of_its_forms(attnres: Attnres):
    for spec in ("attnres", "attnres:heads=1", "attnres:window=9"):
        assert attnres.json("report", "--baseline", spec)["baseline"] == "attnres"


@pytest.mark.parametrize(
    "where", ["--in-process", pytest.param("--workers 1", marks=pytest.mark.slow)]
)
def test_training_goes_on_if_nobody_reads_its_progress(where: str, attnres: Attnres, folder: Path):
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
    assert "to train on 1 worker" in err or "to train on 2 workers" in err
    verdicts = {arm["variant"]: arm["verdict"] for arm in json.loads(out)["arms"]}
    assert verdicts["standard"] == "baseline"
    assert verdicts["attnres"] != "blocked"

    attnres(*SMOKE, "standard", "attnres", "denseformer", *brief)
    document, table = attnres.json("report"), attnres.prints("report", "--notes")
    engines = {arm["variant"]: arm["engines"] for arm in document["arms"]}
    reference = ["reference"]
    assert engines == {"standard": reference, "attnres": reference, "denseformer": ["eager"]}
    assert any(text.endswith("depth mixing by reference") for text in document["settings"])
    assert "arms computed by different engines, which agree to rounding:" in table


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
    assert "attnres: standard seed 0: val loss" in verbose
    assert "val loss" not in before
    assert "plan: recipe smoke" in verbose
    (plan,) = [line for line in before.splitlines() if line.startswith("attnres: smoke: ")]
    assert "1 run (1 arm x 1 seed), 1 to train on 1 worker, about " in plan


FORMATS = {
    "variants": "json markdown",
    "variants attnres:block_size=4": "json markdown",
    "recipes": "json markdown",
    "recipes smoke": "json markdown",
    "check standard --only counts": "json markdown",
    f"{ABLATE} standard attnres --seeds 2 --dry-run": "markdown",  # json: see above
    f"{ABLATE} standard --seeds 1 --tune-lr --dry-run": "json",
    "search standard --recipe smoke --budget params=60k --dry-run": "json",
}


@pytest.mark.parametrize("command", FORMATS)
def test_every_command_prints_every_format_that_its_help_offers(command: str, attnres: Attnres):
    typed = (*command.split(), "-q")

    rows = attnres.csv(*typed)
    assert rows
    assert all(None not in row and row for row in rows)
    assert "json" not in FORMATS[command] or attnres.json(*typed)
    if "markdown" in FORMATS[command]:
        assert attnres.prints(*typed, "--format", "markdown").strip()


URL = "postgresql+psycopg://lab{}@127.0.0.1:1/lab"
SEEDS = {"3": (0, 1, 2), "1": (0,), "7,": (7,), "0,": (0,), "0,3,7": (0, 3, 7), "0,3,7,": (0, 3, 7)}
NO_SEEDS = {
    **dict.fromkeys(("", ",", "7,,", ",7", "x,"), "--seeds takes a number, a list as 0,3,7"),
    **dict.fromkeys(("-1,", "1,1,"), "--seeds takes different seeds from 0 up"),
    **dict.fromkeys(("0", "1001"), "--seeds must be at least 1, at most 1000"),
    "0,1000000": "--seeds: those from 1000000 up are kept for --tune-lr",
}


def test_seeds_are_a_number_or_with_a_comma_a_list_and_others_are_refused_with_what_you_typed():
    assert {text: read_seeds(text) for text in SEEDS} == SEEDS
    for text, words in NO_SEEDS.items():
        with pytest.raises(UsageError) as refused:
            read_seeds(text)
        assert str(refused.value).startswith(words)
        assert text in str(refused.value)


def test_a_claimer_is_the_command_with_one_worker_and_without_our_own_options():
    typed = ["-q", "ablate", "standard", "--launch=slurm", "--seeds", "2", "--workers", "8"]
    typed += ["--job", "time=90", "--study", URL.format(":secret"), "--print", "--", "attnres"]
    found = " ".join(claimers_words(typed, URL.format("")))
    place = f"--workers 1 --study {URL.format('')} -- attnres"
    assert found == f"-q ablate standard --seeds 2 {place}"
    again = claimers_words(["ablate", "--retry-failed"], "")
    assert re.fullmatch(r"ablate --retry-failed-before \S+\+00:00 --workers 1", " ".join(again))


@pytest.mark.parametrize("command", ["ablate", "search --budget params=60k"])
def test_the_script_has_the_command_and_no_password(
    command: str, attnres: Attnres, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PGPASSWORD", "none")  # the command sets it: put back afterwards
    command += " standard --recipe smoke"
    launch = "--launch slurm --workers 3 --job time=4:00:00 --print --study"

    out = attnres.prints(*command.split(), *launch.split(), URL.format(":secret"))

    assert "#SBATCH --array=0-2\n#SBATCH" in out
    assert "#SBATCH --time=4:00:00\n" in out
    assert f"attnres_cli {command} --workers 1 --study {URL.format('')} &\n" in out
    assert "secret" not in out


def test_what_an_encoding_lacks_is_spelled_and_a_reader_of_windows_files_sees_lines(tmp_path: Path):
    """In a process of its own, as the locale decides at its start."""
    fill(tmp_path / "attnres.db", load("smoke"), {"standard": (1.5, 1.6), "attnres": (1.4, 1.5)})
    text = text_of("smoke").replace("\n", "\r\n")
    (tmp_path / "crlf.yaml").write_bytes(text.encode("utf-8-sig"))

    def out(*words: str, **environment: str) -> str:
        bare = {name: os.environ[name] for name in ("PATH", "VIRTUAL_ENV") if name in os.environ}
        command = [sys.executable, "-m", "attnres_cli", *words]
        done = subprocess.run(command, cwd=tmp_path, env=bare | environment, capture_output=True)
        assert done.returncode == 0, done.stderr
        assert b"matplotlib" not in done.stderr.lower()
        return done.stdout.decode("utf-8")

    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    assert "1.5500 +/- 0.0707" in out("report", **ascii_only)
    shown = out("recipes", "crlf.yaml", LC_ALL="C.UTF-8")
    assert "\r" not in shown
    assert "\ufeff" not in shown
    out("-q", "report", "--format", "html", "--output", "page.html", HOME="/proc")
