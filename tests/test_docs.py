"""The documentation is true: its commands and blocks of Python and YAML run, its links lead on."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from answers import answers
from batch_system import install, jobs
from commands import describe_by_few_tokens, ended

from attnres_cli.config.recipe import load
from attnres_cli.lab import step_times
from attnres_cli.nn import residual
from attnres_cli.nn.proofs.prove import QUICK, prove
from attnres_cli.nn.proofs.subject import Subject
from attnres_cli.nn.variant import parse
from attnres_cli.store.store import Store

ROOT = Path(__file__).parent.parent
_FILES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")))
PAGES = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in _FILES}
README = PAGES["README.md"]


def blocks(language: str) -> list[tuple[str, str]]:
    """(page, text) of every block of code in that language."""
    fenced = re.compile(rf"```{language}\n(.*?)```", re.S)
    return [(page, code) for page, text in PAGES.items() for code in fenced.findall(text)]


_TYPED = re.compile(r"^\$ (.+?)(?:\s+#.*)?$", re.M)
COMMANDS = list(dict.fromkeys(x for _, code in blocks("console") for x in _TYPED.findall(code)))
ATTNRES = [command for command in COMMANDS if command.startswith("attnres ")]
MAKE = [command for command in COMMANDS if command.startswith("make ")]
SERVER = "postgresql+psycopg://lab@db.example/lab"
TINY = ["--recipe", "smoke", "--set", "train.tokens=2k"]
SHORT = "recipe: smoke\nset: [train.tokens=2k]"
ENDINGS = {
    "attnres ablate": [*TINY, "--seeds", "1", "--in-process"],
    "attnres search": [*TINY, "--seeds", "1", "--trials", "2", "--confirm", "1",
                       "--budget", "params=60k"],
    "attnres plan": ["--recipe", "smoke"],
    "attnres bench decode": ["--rounds", "2"],
    "attnres bench prefill": [],
    "attnres bench": ["--recipe", "smoke", "--rounds", "2"],
}  # fmt: skip
"""What makes a command short; the last of two options of one name counts, `ablate --recipe` not."""
SLOW = (
    "ablate standard attnres:block_size={", "data.", "n_layers=", "micro_batch_size", "optimizer=",
    "ablate standard --seeds", "--tune-lr", "--match", "--dry-run", "--scaling", "--shape", SERVER,
    "my_variant --plugin", "attnres check", "search", "bench", "verify", "--plan", "evaluate",
    "figures/run.pdf",
)  # fmt: skip
"""Words of commands that take long: only `make test-all` runs them."""


PROVEN = ("ablate standard attnres --tune-lr", "--launch slurm", "attnres doctor")
"""Long ones that tests of their own run in the same words."""


def tier(command: str) -> list[pytest.MarkDecorator]:
    """The longest, a dry run of 38 arms, is nightly, and what is proven elsewhere."""
    if "--plan two-texts" in command or any(words in command for words in PROVEN):
        return [pytest.mark.nightly]
    return [pytest.mark.slow] if any(word in command for word in SLOW) else []


def begun(command: str) -> list[str]:
    """The arguments of a command as the shell splits it, made short where it trains."""
    split = ["bash", "-c", f"printf '%s\\n' {command}"]
    if command.startswith("attnres search") and "--dry-run" not in command:  # takes several budgets
        split[-1] = split[-1].replace("--budget params=700k", "")
    words = subprocess.check_output(split, text=True).split("\n")[1:-1]
    if "--dry-run" in words or "--plan" in words:
        return words
    shorter = next((end for start, end in ENDINGS.items() if command.startswith(start)), [])
    if command.startswith("attnres ablate"):  # of two recipes both are compared
        words = _without_recipes(words)
    places = {"--workers", "--launch", "--in-process"} & set(words)
    return [*words, *(word for word in shorter if not (places and word == "--in-process"))]


def _without_recipes(words: list[str]) -> list[str]:
    named = [i for i, word in enumerate(words) if word == "--recipe"]
    return [word for i, word in enumerate(words) if not {i, i - 1} & {*named}]


def on_a_cluster(command: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command on a SLURM that stands in, or a Ray of our own."""
    pytest.importorskip("ray" if "ray" in command else "submitit")
    words = [*begun(command.replace("num_gpus", "num_cpus")), "--workers", "2"]
    home = Path(tempfile.mkdtemp(prefix="attnres-", dir="/tmp"))  # paths of sockets are short
    environment = {"HOME": str(home), "RAY_TMPDIR": str(home), "RAY_ADDRESS": ""}
    environment["PATH"] = f"{install(home)}{os.pathsep}{os.environ['PATH']}"
    try:
        done = subprocess.run(
            [sys.executable, "-m", "attnres_cli", *words], capture_output=True, text=True,
            timeout=1500, env=os.environ | environment,
        )  # fmt: skip
        while jobs(home / "bin"):  # cancelled: the report is there
            time.sleep(0.1)
    finally:
        shutil.rmtree(home, ignore_errors=True)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder as the reader has it by then: files of the user's, and a study of four runs."""
    folder = tmp_path_factory.mktemp("docs")
    (folder / "my_text").mkdir()
    for number in range(3):
        (folder / "my_text" / f"{number}.txt").write_text("a text of my own, " * 3000)
    stories = [json.dumps({"story": f"story {n}, " * 99, "by": "me"}) for n in range(200)]
    (folder / "stories.jsonl").write_text("\n".join(stories))
    (folder / "capitals.jsonl").write_text(next(c for _, c in blocks("json") if "Rome" in c))
    (folder / "halved.py").write_text(next(c for page, c in blocks("python") if "Halved" in c))
    quick = (ROOT / "recipes" / "quick.yaml").read_text(encoding="utf-8")
    prose = quick.replace("edition: 2", "source: text\n  path: my_text").replace("65536", "4096")
    (folder / "prose.yaml").write_text(prose)
    plan = next(c for _, c in blocks("yaml") if "hypothesis" in c)
    (folder / "plan.yaml").write_text(re.sub("recipe: quick.*", SHORT, plan))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        describe_by_few_tokens(patch)
        patch.setattr(step_times, "_LONG_S", 0.0)  # an arm is timed once
        patch.setenv("ATTNRES_PLUGINS", "")  # what commands add to it ends with these tests
        residual.registry()  # all built-in designs; plugins come into a copy
        patch.setattr(residual, "_REGISTRY", dict(residual._REGISTRY))
        cores = os.sched_getaffinity(0)
        mine = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % len(cores)
        os.sched_setaffinity(0, {sorted(cores)[-1 - mine]})  # a thread for each of our workers
        try:
            trained = ("standard", "attnres", *TINY, "--seeds", "2", "--in-process")
            assert ended("ablate", *trained) == 0
            assert ended("report", "--format", "json", "--output", "theirs.json") == 0
            held = Store.open("attnres.db", create=True)
            for run in held.runs():
                held.keep_items(answers(run, "quiz"))
            for name in ("mine", "theirs"):
                assert ended("runs", "merge", "attnres.db", "--into", f"{name}.db") == 0
            yield folder
        finally:
            os.sched_setaffinity(0, cores)


@pytest.fixture
def folder(study: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(study)
    monkeypatch.setenv("COLUMNS", "140")
    return study


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("command", [pytest.param(each, marks=tier(each)) for each in ATTNRES])
def test_a_command_of_the_documentation_runs(command: str, folder: Path, attnres, request):
    if command.startswith("attnres evaluate"):
        pytest.importorskip("lm_eval", reason="the extra lm-eval is not installed")
    if SERVER in command:
        server, name = request.getfixturevalue("database")
        command = command.replace(SERVER, server.url(name))
        if not command.startswith("attnres ablate"):
            short = [*ENDINGS["attnres ablate"], "--study", server.url(name)]
            assert ended("ablate", "standard", *short) == 0
    if "my_variant" in command and "--new" not in command and not Path("my_variant.py").exists():
        assert ended("variants", "--new", "my_variant") == 0
    if "--scaling" in command:
        for depth in 2, 4:
            sized = ["--seeds", "2", "--set", f"model.n_layers={depth}"]
            assert ended("ablate", "standard", "attnres", *TINY, *sized) == 0
    if "--new" in command:
        Path("my_variant.py").unlink(missing_ok=True)
    if "--launch" in command and "--print" not in command:
        code, out, err = on_a_cluster(command)
    else:
        code, out, err = attnres(*begun(command))

    assert code == 0, err
    assert out.strip() or "--output" in command or "--new" in command


def test_every_other_command_is_one_of_make_or_the_shell():
    assert len(ATTNRES) > 40
    assert {"make ablate", "make test", "make pictures"} == set(MAKE)
    assert set(COMMANDS) - set(ATTNRES) - set(MAKE) == set()


def test_every_pip_install_names_an_extra_of_the_clone_or_a_package_of_an_index():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = "|".join(project["optional-dependencies"])
    typed = {found for text in PAGES.values() for found in re.findall(r"pip install [^`\n]+", text)}
    ours = re.compile(rf"pip install -e '\.\[({extras})\]'")
    others = {command for command in typed if not ours.fullmatch(command)}
    assert len(typed) > 8
    assert others == {"pip install optuna-dashboard", "pip install torch==2.15.0"}


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_knows_its_targets_and_what_they_run(subtests: pytest.Subtests):
    for target, tools in {
        "ablate": ["bin/attnres ablate"],
        "test": ["ruff", "mypy", "lint-imports", "pytest", "-m 'not slow and not nightly'"],
        "test FILES=tests/test_docs.py": ["-m pytest tests/test_docs.py"],
        "quick": ["--testmon --testmon-forceselect"],
        "test-all": ["ruff", "mypy", "lint-imports", "pytest", "-m 'not nightly'"],
        "nightly": ["pytest", "-m 'nightly'", "tests/broken.py"],
        "lint": ["ruff", "mypy", "lint-imports"],
        "pictures": ["benchmarks/pictures.py"],
    }.items():
        with subtests.test(target):
            command = ["make", *target.split(), "--dry-run", "--always-make"]
            shown = subprocess.check_output(command, cwd=ROOT, text=True)
            assert all(tool in shown for tool in tools)


def test_python_blocks_run_in_a_folder_with_a_study(folder: Path, capsys, subtests, monkeypatch):
    assert ended("runs", "export", "2", "--output", "exported") == 0
    assert ended("runs", "export", "2", "--output", "exported-hf", "--to", "hf") == 0
    with contextlib.suppress(ImportError):  # where it copies code that it runs
        from transformers import dynamic_module_utils

        monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(folder / "modules"))
        monkeypatch.setattr(sys, "path", sys.path.copy())
    capsys.readouterr()
    for page, code in blocks("python"):
        with subtests.test(page, code=code.splitlines()[0]):
            if page == "docs/huggingface.md":
                pytest.importorskip("transformers", reason="the extra hf is not installed")
            if "register(" not in code:  # that one runs as a plugin
                names: dict[str, object] = {}
                exec(re.sub('"winner(-hf)?"', r'"exported\1"', code), names)
                if "model.generate" in code:
                    assert names["tokens"].shape == (1, 17)


@pytest.mark.parametrize("name", ["asking", "loud", "prior"])
def test_designs_of_the_documentation_keep_the_contract(name: str, tmp_path: Path, monkeypatch):
    (text,) = (code for _, code in blocks("python") if f'register("{name}")' in code)
    (tmp_path / f"{name}.py").write_text(text)
    residual.registry()
    monkeypatch.setattr(residual, "_REGISTRY", dict(residual._REGISTRY))
    monkeypatch.setenv("ATTNRES_PLUGINS", "")
    residual.add_plugin(str(tmp_path / f"{name}.py"))
    found = list(prove(Subject(parse(name)), QUICK))
    assert [each for each in found if each.outcome in ("failed", "not run")] == []


def test_yaml_blocks_are_recipes_or_plans(tmp_path: Path):
    for _, code in blocks("yaml"):
        if "hypothesis:" not in code:
            (tmp_path / "block.yaml").write_text(code)
            recipe = load(str(tmp_path / "block.yaml"))
            assert recipe.ladder or recipe.arms


def test_a_stranger_reads_the_first_page_in_three_minutes():
    assert len(README.splitlines()) <= 200
    prose = re.sub(r"```.*?```|^\|.*?$", "", README, flags=re.S | re.M)
    sentences = re.split(r"(?<=[.?!:;])\s+|\n\s*\n|\n- ", prose)
    assert [each for each in sentences if len(re.findall(r"\w[\w'/.-]*", each)) > 30] == []


def test_every_link_leads_somewhere(subtests: pytest.Subtests):
    for page, text in PAGES.items():
        for address, heading in re.findall(r"\]\((?!https://)([^)#]*)#?([^)]*)\)", text):
            with subtests.test(page, link=f"{address}#{heading}"):
                found = (ROOT / page).parent / address if address else ROOT / page
                assert found.exists()
                if heading:  # as a code host names it
                    titles = re.findall(r"^#+ (.+)$", found.read_text(encoding="utf-8"), re.M)
                    named = [re.sub(r"[^\w\- ]", "", title.lower()) for title in titles]
                    assert heading in [name.replace(" ", "-") for name in named]


def test_pictures_are_small_and_of_this_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """`python benchmarks/pictures.py` draws them again; the page's text stands for its picture."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import pictures

    for name, value in pictures.TERMINAL.items():
        monkeypatch.setenv(name, value)
    shutil.copy(pictures.IMAGES / "study.json", tmp_path)
    pictures.draw(tmp_path)

    def written(folder: Path) -> dict[str, list[str]]:
        texts = {file.name: file.read_text(encoding="utf-8") for file in folder.glob("*.svg")}
        return {name: re.findall(r"<text[^>]*>([^<]*)", text) for name, text in texts.items()}

    assert max(image.stat().st_size for image in pictures.IMAGES.iterdir()) < 200_000
    assert written(tmp_path) == written(pictures.IMAGES)
    page = (pictures.IMAGES / "page.txt").read_text()
    assert (tmp_path / "page.txt").read_text().splitlines() == page.splitlines()


def test_every_page_is_linked_from_the_first_one_and_the_index():
    for page in PAGES:
        if page.startswith("docs/") and page != "docs/README.md":
            assert f"({page})" in README
            assert f"({Path(page).name})" in PAGES["docs/README.md"]


def test_the_page_on_architecture_names_every_room():
    rooms = {p.parent.name for p in (ROOT / "attnres_cli").glob("*/__init__.py")}
    assert rooms == set(re.findall(r"^\| `(\w+)/` \|", PAGES["docs/architecture.md"], re.M))
