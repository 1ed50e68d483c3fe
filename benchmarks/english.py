"""Fetch English text that any machine can have: the documentation of Django and Sphinx, 5.5 MB.

    python benchmarks/english.py            # writes the folder english/
    attnres ablate --recipe quick --set data.source=text --set data.path=english --dry-run

Both are source packages of one version, which their registry never changes; pip checks their sums.
Left out are release notes and lists of changes, which repeat themselves, and files of one page or
less. It is prose about software, with code between: English as such packages have it, no novel.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

PACKAGES = (
    "Django==5.2.7 --hash=sha256:e0f6f12e2551b1716a95a63a1366ca91bbcd7be059862c1b18f989b1da356cdd",
    "Sphinx==8.2.3 --hash=sha256:398ad29dee7f63a75888314e9424d40f52ce5a6a87ae88e7071e80af296ec348",
)
_FOLDERS = ("docs", "doc")
_LEFT_OUT = ("releases", "changes", "_theme", "_themes", "_templates", "_static")
_LEAST = 1_000  # bytes of a file


def main(folder: Path = Path("english")) -> None:
    """Write every page into a folder. Raises CalledProcessError where pip cannot fetch."""
    with tempfile.TemporaryDirectory() as there:
        pinned = Path(there) / "pinned.txt"
        pinned.write_text("\n".join(PACKAGES), encoding="utf-8")
        fetch = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary"]
        fetch += [":all:", "--require-hashes", "--dest", there, "-r", str(pinned)]
        subprocess.run(fetch, check=True)  # noqa: S603
        found = dict(sorted(page for path in Path(there).glob("*.tar.gz") for page in _pages(path)))
    for name, content in found.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    print(f"{folder}  {len(found)} files, {sum(map(len, found.values())):,} bytes")


def _pages(package: Path) -> Iterator[tuple[str, bytes]]:
    """Names, below the package's, and contents of the pages in a package."""
    with tarfile.open(package) as archive:
        for member in archive:
            top, *parts = PurePosixPath(member.name).parts
            is_page = parts[:1] and parts[0] in _FOLDERS and member.name.endswith((".txt", ".rst"))
            if not (is_page and member.isfile()) or {*parts} & {*_LEFT_OUT}:
                continue
            content = archive.extractfile(member)
            assert content is not None
            text = content.read()
            if len(text) >= _LEAST:
                yield str(PurePosixPath(top.partition("-")[0], *parts[1:])), text


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
