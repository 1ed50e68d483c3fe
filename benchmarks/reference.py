"""Write the shipped reports of the reference study anew, from the study as it is published.

    python benchmarks/reference.py

Each file of recipes/reports/reference/ keeps its recipe; its words and numbers are those of
`attnres report --format json` now. Say with `git diff` that no number changed.
"""

from __future__ import annotations

import json
import lzma
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    """Every file, one after the other."""
    with tempfile.TemporaryDirectory() as folder:
        study = Path(folder) / "reference.db"
        published = ROOT / "docs" / "results" / "reference.db.xz"
        study.write_bytes(lzma.decompress(published.read_bytes()))
        for path in sorted((ROOT / "recipes" / "reports" / "reference").glob("*.json")):
            digest = json.loads(path.read_text(encoding="utf-8"))["recipe_digest"]
            command = [sys.executable, "-m", "attnres_cli", "report", "--study", str(study)]
            command += ["--recipe", digest, "--format", "json", "--output", str(path), "-q"]
            subprocess.run(command, check=True)  # noqa: S603


if __name__ == "__main__":
    main()
