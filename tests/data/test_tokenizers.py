"""Tokenizers: what they make of documents, and what is refused."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from attnres_cli.config import recipe
from attnres_cli.data import sources, tokenizers
from attnres_cli.data.documents import Document, parts
from attnres_cli.data.tokenizers import streams
from attnres_cli.data.tokens import Streams, of_bytes
from attnres_cli.errors import DataError

WORDS = {"<unk>": 0, "the": 1, "cat": 2, "sat": 3, "caf\u00e9": 4, "\u00e9\u00e9": 5}


@pytest.fixture
def words(tmp_path: Path) -> str:
    """A tokenizer file that knows five words, written as the `tokenizers` library writes one."""
    pytest.importorskip("tokenizers")
    held = {
        "version": "1.0",
        "truncation": {
            "max_length": 2,
            "strategy": "LongestFirst",
            "stride": 0,
            "direction": "Right",
        },
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": WORDS, "unk_token": "<unk>"},
    }
    path = tmp_path / "words.json"
    path.write_text(json.dumps(held))
    return str(path)


def documents(*texts: str) -> list[Document]:
    return [Document(f"{i}.txt", text.encode()) for i, text in enumerate(texts)]


def held(tokens: Streams) -> tuple[list[int], list[int]]:
    return np.asarray(tokens.train).tolist(), np.asarray(tokens.val).tolist()


def refusal(tokenizer: str, train: list[Document] | None = None) -> str:
    """The one line that a user sees."""
    train = documents("the cat") if train is None else train
    with pytest.raises(DataError) as caught:
        streams("text", train, documents("sat"), tokenizer)

    message = str(caught.value)
    assert "\n" not in message
    return message


def test_without_a_tokenizer_and_with_bytes_tokens_are_bytes():
    for tokenizer in (None, "bytes"):
        tokens = streams("text", documents("ab"), documents("c"), tokenizer)

        assert held(tokens) == ([97, 98], [99])
        assert tokens.vocab_size == 256


def test_tokens_are_text_again(words: str):
    for name, text in ((None, "caf\u00e9 \n"), ("bytes", "a b"), (words, "the cat sat")):
        found = tokenizers.of(name)
        (tokens,) = found.encode([text])
        assert found.decode(list(tokens)) == text
    assert tokenizers.of(None).decode([0xC3, 0x41]) == "\ufffdA"
    with pytest.raises(DataError):
        tokenizers.of("words")


def test_a_tokenizer_file_is_used_for_whole_documents_in_order(words: str):
    tokens = streams("text", documents("the cat sat", "the dog"), documents("caf\u00e9"), words)

    assert held(tokens) == ([1, 2, 3, 1, 0], [4])
    assert tokens.vocab_size == 6
    assert tokens.description.n_bytes == len("the cat satthe dog") + len("caf\u00e9".encode())


def test_the_vocabulary_reaches_to_the_largest_token(tmp_path: Path, words: str):
    text = Path(words).read_text().replace('"sat": 3', '"sat": 300')
    (tmp_path / "gap.json").write_text(text)

    tokens = streams("text", documents("sat"), documents("cat"), str(tmp_path / "gap.json"))

    assert tokens.vocab_size == 301


@pytest.mark.parametrize("cut", range(1, 12))
def test_a_document_that_is_cut_within_a_character_loses_that_one_alone(words: str, cut: int):
    content = "\u00e9\u00e9 \u00e9\u00e9 caf\u00e9".encode()[:15]
    halves = [Document("a", content[:cut])], [Document("a", content[cut:])]

    tokens = streams("text", *halves, words)

    lost = "\u00e9" if content[cut] & 0xC0 == 0x80 else ""
    texts = [half[0].content.decode(errors="ignore") for half in halves]
    assert len("".join(texts)) == len(content.decode()) - len(lost)
    assert [len(part) for part in held(tokens)] == [len(text.split()) for text in texts]


def test_the_same_documents_validate_as_with_bytes(words: str):
    many = documents(*["the cat sat"] * 30, *["caf\u00e9 cat"] * 30)

    plain = of_bytes("text", *parts(many, 0.2))
    tokens = streams("text", *parts(many, 0.2), words)

    assert np.asarray(tokens.val).tobytes().count(b"\4") == bytes(plain.val).count(b"caf")


def test_the_fingerprint_is_that_of_the_tokens(tmp_path: Path, words: str):
    (tmp_path / "copy.json").write_text(Path(words).read_text())
    texts = documents("the cat sat"), documents("sat")

    first, copy, other, bytes_ = (
        streams("text", *halves, tokenizer).fingerprint
        for halves, tokenizer in (
            (texts, words),
            (texts, str(tmp_path / "copy.json")),
            ((documents("the cat cat"), texts[1]), words),
            (texts, None),
        )
    )

    assert first == copy
    assert len({first, other, bytes_}) == 3


def test_an_encoding_of_tiktoken_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """One that tiktoken finds as it finds any other's, and does not have to download."""
    pytest.importorskip("tiktoken")
    from tiktoken import registry

    (tmp_path / "tiktoken_ext").mkdir()
    (tmp_path / "tiktoken_ext/local.py").write_text(
        "ENCODING_CONSTRUCTORS = {'pairs': lambda: {'name': 'pairs', 'pat_str': r'\\w+|\\s',\n"
        "    'mergeable_ranks': {bytes([i]): i for i in range(256)} | {b'ab': 256},\n"
        "    'special_tokens': {'<|end|>': 257}}}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry, "ENCODING_CONSTRUCTORS", None)

    tokens = streams("text", documents("abc ab"), documents("c<|end|>"), "tiktoken:pairs")

    assert tokens.vocab_size == 258
    assert held(tokens) == ([256, 99, 32, 256], [99, *b"end"])


def test_an_encoding_that_tiktoken_does_not_know_is_refused_with_the_nearest():
    pytest.importorskip("tiktoken")

    assert "did you mean 'gpt2'" in refusal("tiktoken:gtp2")


@pytest.mark.parametrize("package", ["tokenizers", "tiktoken"])
def test_a_missing_package_is_named_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str
):
    monkeypatch.setitem(sys.modules, package, None)
    (tmp_path / "a.json").write_text("{}")

    name = str(tmp_path / "a.json") if package == "tokenizers" else "tiktoken:gpt2"

    assert f"pip install 'attnres-cli[{package}]'" in refusal(name)


def test_an_unknown_tokenizer_is_told_which_there_are():
    message = refusal("gpt2")

    assert "'gpt2'" in message
    assert "FILE.json" in message


def test_a_tokenizer_file_that_is_not_there_is_refused(tmp_path: Path):
    assert "No such file" in refusal(str(tmp_path / "none.json"))


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b"\xff\xfe", b'{"model": {"type": "no"}}'])
def test_a_file_that_is_no_tokenizer_is_refused(tmp_path: Path, content: bytes):
    pytest.importorskip("tokenizers")
    (tmp_path / "a.json").write_bytes(content)

    message = refusal(str(tmp_path / "a.json"))

    assert "a.json" in message


def test_a_document_that_is_no_utf_8_is_refused_with_its_name_and_place(words: str):
    wrong = [Document("latin.txt", "the caf\u00e9 sat here".encode("latin-1"))]

    message = refusal(words, wrong)

    assert "latin.txt" in message
    assert "byte 7" in message
    assert "UTF-8" in message


def test_a_recipe_with_a_tokenizer_loads_its_tokens(tmp_path: Path, words: str):
    (tmp_path / "a.txt").write_text("the cat sat " * 3000)
    sets = ["data.source=text", f"data.path={tmp_path}/a.txt", f"data.tokenizer={words}"]

    tokens = sources.load(recipe.load("smoke", [*sets, "train.eval_tokens=256"]))

    held = tokens.description
    assert held.train_tokens + held.val_tokens == pytest.approx(9000, abs=2)
