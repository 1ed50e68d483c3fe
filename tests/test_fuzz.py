"""Whatever is typed or read ends in an answer or in one line and exit code 2, never in a traceback:
2,700 inputs, the same ones each time. The test's id, with the seed below, gives an input again.
"""

from __future__ import annotations

import random
import re
import shutil
import sqlite3
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from commands import attnres
from studies import fill

from attnres_cli.config.recipe import load, text_of
from attnres_cli.errors import BAD_INPUT, DONE, SOME_FAILED, AttnresError
from attnres_cli.lab.search import budget, space
from attnres_cli.nn import variant
from attnres_cli.records.run import Probe

pytestmark = pytest.mark.slow

SEED = 17
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
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a link in a circle, a pipe and a study; what a command cannot know is short."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ATTNRES_RETRY_S", "0")
    monkeypatch.setenv("PGPASSWORD", "")
    monkeypatch.delenv("ATTNRES_PLUGINS", raising=False)
    (tmp_path / "circle").symlink_to("circle")
    fill(tmp_path / "attnres.db", load("smoke"), LOSSES, probes=(PROBE,))
    return tmp_path


LOSSES = {"standard": (1.5, 1.6, 1.55, 1.4, 1.45), "attnres": (1.4, 1.52, 1.45, 1.3, float("nan"))}
_ROW = (1.0, 2.0, 3.0, 4.0, 5.0)
PROBE = Probe(5, _ROW, _ROW, _ROW, mixing=(_ROW,) * 5, entropy=_ROW)


class Faults(list[str]):
    """Commands that did not end as commands end, and how many were refused."""

    n_refused = 0

    def check(
        self, capsys: pytest.CaptureFixture[str], *arguments: str, hidden: str = "\0"
    ) -> None:
        """Run one. Nothing hidden may be in what it prints."""
        told = " ".join(arguments)[:200]
        try:
            code, out, err = attnres(capsys, *arguments)
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            self.append(f"{told}: {error!r} in {where.filename}:{where.lineno}"[:600])
            return
        last = err.rstrip().rpartition("\n")[2]
        self.n_refused += code == BAD_INPUT
        is_told = code != BAD_INPUT or last.startswith("attnres: ")
        shown = _TRACEBACK.search(err) or _CONTROL.search(out + err) or hidden in out + err
        if code not in (DONE, BAD_INPUT, SOME_FAILED) or not is_told or shown:
            self.append(f"{told}: {code}, {last}")


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


def test_commands(capsys: pytest.CaptureFixture[str]):
    draw, faults = random.Random(SEED), Faults()
    for _ in range(250):
        arguments = draw.choice(COMMANDS).split()
        for _ in range(draw.randint(1, 3)):
            arguments += [draw.choice(OPTIONS)] if draw.random() < 0.7 else []
            arguments += [draw.choice(NASTY)]
        faults.check(capsys, *arguments)

    assert not faults, "\n".join(faults)
    assert faults.n_refused > 200


def test_recipes(capsys: pytest.CaptureFixture[str], folder: Path):
    draw, text, faults = random.Random(SEED), text_of("smoke"), Faults()
    for _ in range(200):
        (folder / "r.yaml").write_text(mutated(text, draw), encoding="utf-8", errors="replace")
        faults.check(capsys, "recipes", "r.yaml")

    assert not faults, "\n".join(faults)
    assert 100 < faults.n_refused < 200


def test_overrides(capsys: pytest.CaptureFixture[str]):
    draw, faults = random.Random(SEED), Faults()
    keys = [
        f"{section}.{key}"
        for section, values in load("smoke").model_dump().items() if isinstance(values, dict)
        for key in values
    ]  # fmt: skip
    keys += ["name", "margin", "slope", "ladder", "rates", "rates.attnres", "variants", "x.y.z"]
    for _ in range(200):
        faults.check(
            capsys, "recipes", "smoke", "--set", f"{draw.choice(keys)}={draw.choice(NASTY)}"
        )

    assert not faults, "\n".join(faults)


def test_spaces_and_budgets():
    draw, specs = random.Random(SEED), [variant.parse("attnres"), variant.parse("standard")]
    names = [*space.SIZES, *space.RATIOS, *space.LADDERS, "block_size", "heads", "window", "query"]
    signs = ("..", "|", "=", ",", "")
    for _ in range(200):
        parts = [draw.choice((*NASTY[2:13], "2", "16", "0.5", "3e-4")) for _ in range(3)]
        values = draw.choice(signs).join(parts[: draw.randint(1, 3)])
        for parse, text in (
            (lambda text: space.parse(text, specs), f"{draw.choice(names)}={values}"),
            (lambda text: budget.parse([text], 9).sizes(), f"{draw.choice(KINDS)}={parts[0]}"),
        ):  # fmt: skip
            with suppress(AttnresError):
                parse(text)


@pytest.mark.parametrize("secret", ["geheim", "ge:he@im", "ge%2Fheim?x"])
def test_urls(capsys: pytest.CaptureFixture[str], secret: str):
    draw, faults = random.Random(SEED), Faults()
    url = f"postgresql+psycopg://me:{secret}@127.0.0.1:1/lab?connect_timeout=1&application_name=x"
    for _ in range(70):
        typed = url
        for _ in range(draw.randint(0, 3)):
            at = draw.randrange(len(typed))
            typed = draw.choice((
                typed[:at] + typed[at + 1 :],
                typed[:at] + draw.choice(":/@?&=% ") + typed[at:],
                f"{typed}&{draw.choice(QUERY)}",
            ))  # fmt: skip
        faults.check(capsys, "runs", "--study", typed)

    assert not faults, "\n".join(faults)


def damaged_bytes(study: Path, draw: random.Random) -> None:
    """Flip a few bits anywhere behind the header."""
    content = bytearray(study.read_bytes())
    for _ in range(draw.choice((1, 1, 2, 8, 64))):
        content[draw.randrange(16, len(content))] ^= 1 << draw.randrange(8)
    study.write_bytes(content)


def damaged_values(study: Path, draw: random.Random) -> None:
    """Put what nobody wrote into a column."""
    with closing(sqlite3.connect(study)) as connection:
        tables = [name for (name,) in connection.execute(OURS)]
        for _ in range(draw.randint(1, 2)):
            table = draw.choice(["attnres_runs", *tables])
            columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
            value = draw.choice(
                [*NASTY[:-20], None, -1, 2**62, 1e308, b"\xff\x00", b"", "{}", "[" * 9999]
            )
            if isinstance(value, str):
                value = value.encode("utf-8", "replace").decode()
            change = f"UPDATE OR IGNORE {table} SET {draw.choice(columns)} = ?"
            try:
                connection.execute(change, (value,))
            except sqlite3.IntegrityError:
                continue
        connection.commit()


@pytest.mark.parametrize("damage", [damaged_bytes, damaged_values])
def test_damaged_studies(
    capsys: pytest.CaptureFixture[str],
    folder: Path,
    damage: Callable[[Path, random.Random], None],
):
    sound = folder / "attnres.db"
    draw, faults = random.Random(SEED), Faults()
    commands = (
        "runs", "runs", "runs show 1", "runs show 10", "runs export 1", "report --format csv",
        "report --format json", "plan", "report",
    )  # fmt: skip
    for number in range(200):
        study = folder / f"damaged{number}.db"  # a connection to the last one may be open yet
        shutil.copyfile(sound, study)
        damage(study, draw)
        faults.check(capsys, *draw.choice(commands).split(), "--study", str(study))
        for left in folder.glob(f"{study.name}*"):
            left.unlink(missing_ok=True)

    assert not faults, "\n".join(faults)
