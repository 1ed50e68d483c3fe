"""The English text: which files of a source package are its pages."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

from test_scripts import FOLDER, python


def test_pages_are_the_long_files_of_the_documentation_without_lists_of_changes(tmp_path: Path):
    long = b"Prose about software. " * 100
    names = ["docs/intro.txt", "docs/releases/1.0.txt", "docs/a/_static/b.txt", "src/c.txt"]
    with tarfile.open(tmp_path / "django-5.tar.gz", "w:gz") as archive:
        for name, content in [*((name, long) for name in names), ("docs/short.txt", b"short")]:
            member = tarfile.TarInfo(f"django-5/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); from pathlib import Path; import english"
    )
    program += "\nprint([name for name, _ in english._pages(Path('django-5.tar.gz'))])"
    done = python("-c", program, FOLDER, folder=tmp_path)
    assert done.stdout.strip() == "['django/intro.txt']", done.stderr
