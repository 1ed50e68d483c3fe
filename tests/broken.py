"""Break the laboratory on purpose, one way of tests/broken.yaml at a time; see which test finds it.

Each is broken in a copy of this checkout, where the tests that hold the promise are run until the
first one fails. Prints a line for each; ends with 3 where one was not found.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
LINKS = {"attnres_variants": "variants", "attnres_recipes": "recipes"}  # as they are installed
MARKS = "not slow and not nightly"
NOT_FOUND, MISSED = 3, "NOT FOUND"  # exit code, word
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}  # as `make test` has it
_PASSED, _USAGE, _NONE_RAN = 0, 4, 5  # exit codes of pytest
_running: list[subprocess.Popen[bytes]] = []
_FIRST = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)


@dataclass(frozen=True)
class Way:
    """One way to break a file: `old`, which it holds once, becomes `new`. `tests` are those that
    should find it, files or folders, the cheapest first.
    """

    name: str
    file: str
    old: str
    new: str
    tests: Sequence[str]

    def break_in(self, folder: Path) -> None:
        path = folder / self.file
        text = path.read_text(encoding="utf-8")
        if text.count(self.old) != 1:
            raise ValueError(f"{self.name}: {self.file} has the old text {text.count(self.old)}x")
        path.write_text(text.replace(self.old, self.new), encoding="utf-8")


def ways() -> list[Way]:
    text = Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")
    return [Way(**each) for each in yaml.safe_load(text)]


@contextmanager
def copied() -> Iterator[Path]:
    """A copy for a while of what git knows or would add, its packages by their installed names."""
    listed = ["git", "-C", str(ROOT), "ls-files", "-coz", "--exclude-standard"]
    names = subprocess.run(listed, capture_output=True, text=True, check=True).stdout.split("\0")
    with tempfile.TemporaryDirectory(prefix="broken-", ignore_cleanup_errors=True) as made:
        folder = Path(made)
        for name in filter(None, names):
            if (ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, folder / name)
        for link, package in LINKS.items():
            (folder / link).symlink_to(package)
        yield folder


def tried(way: Way, marks: str, limit_s: float, *, whole: bool) -> str:
    """Break a copy this way, and run its tests there, or all: one that does not end finds it too.
    Return a line that says whether it was found. Raises ValueError where there are no such tests.
    """
    with copied() as folder:
        way.break_in(folder)
        options = ["-x", "-q", "-p", "no:cacheprovider", "-m", marks]
        command = [sys.executable, "-m", "pytest", *options, *(["tests"] if whole else way.tests)]
        environment = {**_ONE_THREAD, **os.environ, "PYTHONPATH": str(folder)}
        started = time.monotonic()
        code, out = _run(command, folder, environment, limit_s)
    if code == _USAGE:
        raise ValueError(f"{way.name}: {out.strip()}")
    first = _FIRST.search(out)
    told = {
        None: f"found, by tests that did not end in {limit_s:g} s",
        _PASSED: f"{MISSED}, all tests passed",
        _NONE_RAN: f"{MISSED}, no test ran",
    }.get(code, f"found, by {first[1]}" if first else f"found, pytest ended with {code}")
    return f"{way.name}: {told}, {time.monotonic() - started:.0f} s"


def _run(
    command: Sequence[str], folder: Path, env: dict[str, str], limit_s: float
) -> tuple[int | None, str]:
    """Exit code (None: it took too long) and what was printed; leave no process behind."""
    with tempfile.TemporaryFile("w+", encoding="utf-8") as out:
        process = subprocess.Popen(
            command, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=out,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        _running.append(process)
        code: int | None = None
        with suppress(subprocess.TimeoutExpired):
            code = process.wait(limit_s)
        _kill(process)
        _running.remove(process)
        out.seek(0)
        return code, out.read()


def _kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Which test finds what is broken on purpose?")
    parser.add_argument("names", nargs="*", metavar="NAME", help="a part of the ways' names")
    parser.add_argument("--marks", default=MARKS, help=f"which tests, as pytest -m ({MARKS})")
    parser.add_argument("--jobs", type=int, default=1, help="ways at a time (1)")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds for a way (600)")
    parser.add_argument("--whole", action="store_true", help="run all tests, not the way's own")
    typed = parser.parse_args(arguments)
    wanted = [w for w in ways() if not typed.names or any(n in w.name for n in typed.names)]
    if not wanted:
        parser.error(f"no way is called {' or '.join(typed.names)}")
    n_found = 0
    each = partial(tried, marks=typed.marks, limit_s=typed.limit, whole=typed.whole)
    with ThreadPoolExecutor(typed.jobs) as pool:
        try:
            for line in pool.map(each, wanted):
                n_found += MISSED not in line
                sys.stdout.write(line + "\n")
                sys.stdout.flush()
        finally:  # after Ctrl-C some are running
            for process in list(_running):
                _kill(process)
    sys.stdout.write(f"found {n_found} of {len(wanted)}\n")
    return 0 if n_found == len(wanted) else NOT_FOUND


if __name__ == "__main__":
    sys.exit(main())
