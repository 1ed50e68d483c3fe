"""`data.documents=isolated`, as it is typed."""

from __future__ import annotations

import json
from pathlib import Path

from commands import Attnres

TYPED = ["--recipe", "smoke", "--seeds", "1,", "--in-process", "--set", "train.tokens=4k"]
TYPED += ["--set", "train.eval_tokens=512"]
ROWS = ["--set", "data.source=text", "--set", "data.path=rows.jsonl"]
ISOLATED = ["--set", "data.documents=isolated"]


def test_a_tiny_text_is_trained_on_and_exported_with_a_word(attnres: Attnres, folder: Path):
    rows = [json.dumps({"text": f"row {n} of a text " * (1 + n % 5)}) for n in range(400)]
    (folder / "rows.jsonl").write_text("\n".join(rows))
    separated = [*ROWS, "--set", "data.separator=\x1e"]

    ours = attnres.json("ablate", "attnres", *TYPED, *separated, *ISOLATED, "--study", "a.db")
    theirs = attnres.json("ablate", "attnres", *TYPED, *separated, "--study", "b.db")

    assert ours["arms"][0]["mean"] != theirs["arms"][0]["mean"]
    code, _, err = attnres("runs", "export", "1", "--study", "a.db", "--output", "isolated")
    assert (code, "give it one document per row" in err) == (0, True)
    code, _, err = attnres("runs", "export", "1", "--study", "b.db", "--output", "joined")
    assert (code, "document" in err) == (0, False)


def test_what_cannot_isolate_is_refused_with_what_to_type(attnres: Attnres, folder: Path):
    (folder / "rows.jsonl").write_text("\n".join(json.dumps({"text": "ab" * 40}) for _ in "abc"))
    kda = ["--set", "model.attention=kda", "--set", "model.positions=none"]

    for more, words in (
        ([], "--set data.source=text"),
        ([*ROWS, *kda], "kda carries state across documents: --set model.attention=softmax"),
        (ROWS, r"bytes with data.separator unset has none: --set data.tokenizer=tiktoken:gpt2"),
    ):
        assert words in attnres.refuses("ablate", *TYPED, *more, *ISOLATED)
