"""Golden outputs: what a command printed once, looked through by a person; see CONTRIBUTING.md."""

from __future__ import annotations

import os
import re
from pathlib import Path

_GOLDEN = Path(__file__).parent / "report" / "golden"


def check(name: str, text: str) -> None:
    """Compare a text with the file of that name, numbers of many digits to four of them."""
    text = re.sub(r"\d+\.\d{6,}(?:e[-+]?\d+)?", lambda match: f"{float(match[0]):.4g}", text)
    text = "\n".join(line.rstrip() for line in text.splitlines()) + "\n"
    if os.environ.get("ATTNRES_GOLDEN") == "renew":
        (_GOLDEN / name).write_text(text, encoding="utf-8")
    assert text == (_GOLDEN / name).read_text(encoding="utf-8")
