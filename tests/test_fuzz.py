"""Whatever is typed or read ends in an answer or one line and exit code 2, not in a traceback."""

from __future__ import annotations

import random
import re
import shutil
import sqlite3
import traceback
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from pathlib import Path

import pytest
import yaml
from commands import Attnres
from studies import FACTS, fill

from attnres_cli.config.recipe import load, text_of
from attnres_cli.errors import BAD_INPUT, DONE, SOME_FAILED, AttnresError
from attnres_cli.lab.downstream.task_files import wishes
from attnres_cli.lab.search import budget, space
from attnres_cli.nn import variant
from attnres_cli.records.run import Probe, RunSpec
from attnres_cli.store.store import Store

pytestmark = pytest.mark.slow
ROUNDS, SEED = 60, 17
NASTY = (
    "", " ", "0", "-1", "1e-320", "1e308", "1e999", "nan", "-inf", "9" * 30, "9" * 400, "0x1F",
    "1_0", "~nobody_here/x", "x" * 300, "x" * 5000, "../../x", "/dev/zero", "/dev/full",
    "/proc/self/mem", "/", ".", "..", "circle", "a\x1b[31mb", "\u202e\u2028", "\ud800", "=1+1",
    "%s%n", "{}", "[[[[", "a:b:c", "*x", "&x", "!!python/object:os.system", "null", "true",
    "attnres:", ":", "attnres:block_size=", "attnres:block_size=0", "attnres:heads=9999999999",
    "standard:x=1", ",", "=", "1..", "..2", "1..2..0", "1|", "|", "--", "-h", "postgresql://",
    "sqlite:///", "file:x", "\U0001f600", "1;2",
)  # fmt: skip
COMMANDS = (
    "report", "runs", "runs show", "runs export", "plan", "variants", "recipes", "ablate --dry-run",
    "search --dry-run", "verify", "bench", "check", "runs rm", "runs note", "runs tag", "no_such",
)  # fmt: skip
OPTIONS = (
    "--study", "--recipe", "--baseline", "--margin", "--format", "--output", "--figures", "--code",
    "--preregister", "--against", "--status", "--variant", "--gap", "--arms", "--workers",
    "--shape", "--new", "--set", "--seeds", "--suite", "--match", "--device", "--engine",
    "--budget", "--space", "--trials", "--sampler", "--objective", "--confirm", "--plugin",
    "--tensorboard", "--reason",
)  # fmt: skip
KINDS = ("params", "flops")
QUERY = ("application_name=y", "host=x&host=y", "port=z", "=", "options=-c")
OURS = "SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE 'attnres%'"
_TRACEBACK = re.compile(r"Traceback|File \"")
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e\u2028]")


@pytest.fixture(autouse=True)
def folder(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a link in a circle and a study; no command waits long for a server."""
    monkeypatch.setenv("ATTNRES_RETRY_S", "0")
    monkeypatch.setenv("PGPASSWORD", "")
    monkeypatch.delenv("ATTNRES_PLUGINS", raising=False)
    (here / "circle").symlink_to("circle")
    row = (1.0, 2.0, 3.0, 4.0, 5.0)
    probe = Probe(5, row, row, row, mixing=(row,) * 5, entropy=row)
    losses = {"standard": (1.5, 1.6, 1.55, 1.4), "attnres": (1.4, 1.52, 1.45, float("nan"))}
    fill(here / "attnres.db", load("smoke"), losses, probes=(probe,))
    return here


def fault_of(attnres: Attnres, arguments: Iterable[str]) -> tuple[int, str]:
    """The exit code of a command, and how it did not end as commands end, if so."""
    told = " ".join(arguments)[:200]
    try:
        code, out, err = attnres(*arguments)
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        return -1, f"{told}: {error!r} in {where.filename}:{where.lineno}"[:600]
    last = err.rstrip().rpartition("\n")[2]
    is_told = code != BAD_INPUT or last.startswith("attnres: ")
    shown = _TRACEBACK.search(err) or _CONTROL.search(out + err)
    if code not in (DONE, BAD_INPUT, SOME_FAILED) or not is_told or shown:
        return code, f"{told}: {code}, {last}"
    return code, ""


def n_refused(attnres: Attnres, commands: Iterable[list[str]]) -> int:
    """How many of the commands are refused. None may end in another way than commands end."""
    found = [fault_of(attnres, arguments) for arguments in commands]
    faults = [fault for _, fault in found if fault]
    assert not faults, "\n".join(faults)
    return sum(code == BAD_INPUT for code, _ in found)


def mutated(text: str, draw: random.Random) -> str:
    """A text with a few characters, lines or values changed."""
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(text) + 1)
        kind = draw.randrange(6)
        lines = text.split("\n")
        line = draw.randrange(len(lines))
        if kind == 0:
            text = text[:at] + draw.choice("\x00\x1b:=,.|[]{}&*!%@`'\"\n\t -0é😀") + text[at:]
        elif kind == 1:
            text = text[:at] + text[at + draw.randint(1, 9) :]
        elif kind == 2:
            text = "\n".join([*lines[:line], lines[draw.randrange(len(lines))], *lines[line:]])
        elif kind == 3:
            head = lines[line].partition(":")[0]
            text = "\n".join([*lines[:line], f"{head}: {draw.choice(NASTY)}", *lines[line + 1 :]])
        elif kind == 4:
            text = text[:at] + draw.choice(NASTY) + text[at:]
        else:
            text = text[:at]
    return text


def test_commands(attnres: Attnres):
    draw = random.Random(SEED)

    def typed() -> list[str]:
        arguments = draw.choice(COMMANDS).split()
        for _ in range(draw.randint(1, 3)):
            arguments += [draw.choice(OPTIONS)] if draw.random() < 0.7 else []
            arguments += [draw.choice(NASTY)]
        return arguments

    assert n_refused(attnres, (typed() for _ in range(ROUNDS))) > 0.8 * ROUNDS


def test_recipes(attnres: Attnres, folder: Path):
    draw, text = random.Random(SEED), text_of("smoke")

    def typed() -> list[str]:
        (folder / "r.yaml").write_text(mutated(text, draw), encoding="utf-8", errors="replace")
        return ["recipes", "r.yaml"]

    assert 0.4 < n_refused(attnres, (typed() for _ in range(ROUNDS))) / ROUNDS < 1


def test_overrides(attnres: Attnres):
    draw = random.Random(SEED)
    sections = load("smoke").model_dump().items()
    keys = [f"{name}.{key}" for name, of in sections if isinstance(of, dict) for key in of]
    keys += ["name", "margin", "slope", "ladder", "variants", "x.y.z"]
    keys += ["arms", "arms.attnres.optim.lr"]
    changes = [f"{draw.choice(keys)}={draw.choice(NASTY)}" for _ in range(ROUNDS)]
    assert n_refused(attnres, (["recipes", "smoke", "--set", change] for change in changes)) > 0


def test_spaces_and_budgets():
    draw, specs = random.Random(SEED), [variant.parse("attnres"), variant.parse("standard")]
    names = [*space.TRUNK, "block_size", "heads", "window", "query"]
    signs = ("..", "|", "=", ",", "")
    for _ in range(200):
        parts = [draw.choice((*NASTY[2:13], "2", "16", "0.5", "3e-4")) for _ in range(3)]
        values = draw.choice(signs).join(parts[: draw.randint(1, 3)])
        with suppress(AttnresError):
            space.parse(f"{draw.choice(names)}={values}", specs)
        with suppress(AttnresError):
            budget.parse([f"{draw.choice(KINDS)}={parts[0]}"], 9).sizes()


TASK = """task: sums
include: base.yaml
dataset_path: json
dataset_kwargs: {data_files: {test: sums.jsonl}}
output_type: multiple_choice
doc_to_text: "{{context}}"
doc_to_choice: [a, b]
metric_list: [{metric: acc}]
"""


def test_task_files(folder: Path):
    draw, code = random.Random(SEED), "!function evil.text"
    (folder / "base.yaml").write_text("description: none\n")
    (folder / "evil.yaml").write_text(f"x: {code}\n")
    n_read = 0
    for _ in range(10 * ROUNDS):
        text = mutated(TASK, draw)
        (folder / "task.yaml").write_text(text, encoding="utf-8", errors="replace")
        with suppress(AttnresError):
            wishes(folder / "task.yaml", {"acc"})
            hidden = text.replace("base.yaml", "evil.yaml").replace("[a, b]", f"[a, {code}]")
            (folder / "task.yaml").write_text(hidden, encoding="utf-8", errors="replace")
            found = [wish for wish in wishes(folder / "task.yaml", {"acc"}) if wish.text == code]
            tags = [e for e in yaml.parse(hidden) if getattr(e, "tag", None) == "!function"]
            assert bool(found) >= bool(tags)
            n_read += bool(found)
    assert n_read > ROUNDS


@pytest.mark.parametrize("secret", ["geheim", "ge:he@im", "ge%2Fheim?x"])
def test_urls(attnres: Attnres, secret: str):
    draw = random.Random(SEED)
    url = f"postgresql+psycopg://me:{secret}@127.0.0.1:1/lab?connect_timeout=1&application_name=x"

    def typed() -> list[str]:
        changed = url
        for _ in range(draw.randint(0, 3)):
            at = draw.randrange(len(changed))
            changed = draw.choice((
                changed[:at] + changed[at + 1 :],
                changed[:at] + draw.choice(":/@?&=% ") + changed[at:],
                f"{changed}&{draw.choice(QUERY)}",
            ))  # fmt: skip
        return ["runs", "--study", changed]

    assert n_refused(attnres, (typed() for _ in range(ROUNDS // 3))) > 0


def damaged_bytes(study: Path, draw: random.Random) -> None:
    content = bytearray(study.read_bytes())
    for _ in range(draw.choice((1, 1, 2, 8, 64))):
        content[draw.randrange(16, len(content))] ^= 1 << draw.randrange(8)
    study.write_bytes(content)


def damaged_values(study: Path, draw: random.Random) -> None:
    with closing(sqlite3.connect(study)) as connection:
        tables = [name for (name,) in connection.execute(OURS)]
        for _ in range(draw.randint(1, 2)):
            table = draw.choice(["attnres_runs", *tables])
            columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
            others = (None, -1, 2**62, 1e308, b"\xff\x00", b"", "{}", "[" * 9999)
            value = draw.choice((*NASTY[:-20], *others))
            if isinstance(value, str):
                value = value.encode("utf-8", "replace").decode()
            change = f"UPDATE OR IGNORE {table} SET {draw.choice(columns)} = ?"
            with suppress(sqlite3.IntegrityError):
                connection.execute(change, (value,))
        connection.commit()


@pytest.mark.parametrize("damage", [damaged_bytes, damaged_values])
def test_damaged_studies(attnres: Attnres, folder: Path, damage: Callable[..., None]):
    draw = random.Random(SEED)
    commands = (
        "runs", "runs", "runs show 1", "runs show 8", "runs export 1", "report --format csv",
        "report --format json", "plan", "report",
    )  # fmt: skip
    for number in range(ROUNDS):
        study = folder / f"damaged{number}.db"  # a connection to the last one may be open yet
        shutil.copyfile(folder / "attnres.db", study)
        damage(study, draw)
        _, fault = fault_of(attnres, [*draw.choice(commands).split(), "--study", str(study)])
        assert not fault
        _, fault = fault_of(attnres, ["runs", "merge", str(study), "--into", f"into{number}.db"])
        assert not fault
        with suppress(AttnresError):  # what `ablate` does first
            specs = [RunSpec(load("smoke"), "attnres", seed, FACTS.fingerprint) for seed in (0, 9)]
            Store.open(str(study), create=True).plan(specs, FACTS)
        for left in folder.glob(f"{study.name}*"):
            left.unlink(missing_ok=True)
