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
from attnres_cli.errors import DataError, installing

WORDS = {"<unk>": 0, "the": 1, "cat": 2, "sat": 3, "caf\u00e9": 4, "\u00e9\u00e9": 5}


@pytest.fixture
def words(tmp_path: Path) -> str:
    """A tokenizer file that knows five words, written as the `tokenizers` library writes one."""
    pytest.importorskip("tokenizers")
    truncation = {"max_length": 2, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
    held = dict.fromkeys(("padding", "normalizer", "post_processor", "decoder")) | {
        "version": "1.0",
        "truncation": truncation,
        "added_tokens": [],
        "pre_tokenizer": {"type": "Whitespace"},
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
    train = documents("the cat") if train is None else train
    with pytest.raises(DataError) as caught:
        streams("text", train, documents("sat"), tokenizer)
    (line,) = str(caught.value).splitlines()
    return line


def test_tokens_are_bytes_without_a_tokenizer_or_with_bytes():
    for tokenizer in (None, "bytes"):
        tokens = streams("text", documents("ab"), documents("c"), tokenizer)
        assert held(tokens) == ([97, 98], [99])
        assert tokens.vocab_size == 256


def test_tokens_decode_to_their_text(words: str):
    for name, text in ((None, "caf\u00e9 \n"), ("bytes", "a b"), (words, "the cat sat")):
        found = tokenizers.of(name)
        (tokens,) = found.encode([text])
        assert found.decode(list(tokens)) == text
    assert tokenizers.of(None).decode([0xC3, 0x41]) == "\ufffdA"
    with pytest.raises(DataError):
        tokenizers.of("words")


def test_a_tokenizer_file_is_used_for_whole_documents_in_order(tmp_path: Path, words: str):
    tokens = streams("text", documents("the cat sat", "the dog"), documents("caf\u00e9"), words)

    assert held(tokens) == ([1, 2, 3, 1, 0], [4])
    assert tokens.vocab_size == 6
    assert tokens.description.n_bytes == len("the cat satthe dog") + len("caf\u00e9".encode())
    gap = tmp_path / "gap.json"
    gap.write_text(Path(words).read_text().replace('"sat": 3', '"sat": 300'))
    tokens = streams("text", documents("sat"), documents("cat"), str(gap))
    assert tokens.vocab_size == 301  # up to the largest token


def test_documents_without_tokens_before_the_first_leave_the_others_as_they_are(words: str):
    blank = documents("\n", " ", "", "the cat sat", "cat")
    assert held(streams("text", blank, documents("\n", "sat"), words)) == ([1, 2, 3, 2], [3])


def test_a_document_cut_within_a_character_loses_only_that_one(words: str):
    content = "\u00e9\u00e9 \u00e9\u00e9 caf\u00e9".encode()[:15]
    for cut in range(1, 12):
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
    copy = tmp_path / "copy.json"
    copy.write_text(Path(words).read_text())

    def fingerprint(text: str, tokenizer: str | None) -> str:
        return streams("text", documents(text), documents("sat"), tokenizer).fingerprint

    first = fingerprint("the cat sat", words)
    assert fingerprint("the cat sat", str(copy)) == first
    assert len({first, fingerprint("the cat cat", words), fingerprint("the cat sat", None)}) == 3


def test_an_encoding_of_tiktoken_is_used_and_an_unknown_one_refused_with_the_nearest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
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
    assert "did you mean 'gpt2'" in refusal("tiktoken:gtp2")


def test_a_missing_package_is_named_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "a.json").write_text("{}")
    for package, name in (("tokenizers", f"{tmp_path}/a.json"), ("tiktoken", "tiktoken:gpt2")):
        monkeypatch.setitem(sys.modules, package, None)
        assert installing(package) in refusal(name)


def test_unknown_tokenizers_and_files_that_are_none_are_refused_by_name(tmp_path: Path):
    assert all(word in refusal("gpt2") for word in ("'gpt2'", "FILE.json"))
    assert "No such file" in refusal(str(tmp_path / "none.json"))
    pytest.importorskip("tokenizers")
    for content in (b"", b"{}", b"[1]", b"\xff\xfe", b'{"model": {"type": "no"}}'):
        (tmp_path / "a.json").write_bytes(content)
        assert "a.json" in refusal(str(tmp_path / "a.json"))


def test_a_document_that_is_not_utf_8_is_refused_with_its_name_and_place(words: str):
    message = refusal(words, [Document("latin.txt", "the caf\u00e9 sat here".encode("latin-1"))])
    assert all(part in message for part in ("latin.txt", "byte 7", "UTF-8")), message


def test_a_recipe_with_a_tokenizer_loads_its_tokens(tmp_path: Path, words: str):
    (tmp_path / "a.txt").write_text("the cat sat " * 3000)
    sets = ["data.source=text", f"data.path={tmp_path}/a.txt", f"data.tokenizer={words}"]
    tokens = sources.load(recipe.load("smoke", [*sets, "train.eval_tokens=256"]))
    held = tokens.description
    assert held.train_tokens + held.val_tokens == pytest.approx(9000, abs=2)


def test_a_newline_is_put_where_a_document_ends_without_one_or_what_is_asked_for():
    train, val = documents("ab", "c\n", "d", "e"), documents("f", "g")

    def texts(separator: str | None) -> tuple[bytes, bytes]:
        tokens = streams("text", train, val, None, separator)
        assert tokens.description.n_bytes == len(tokens.train) + len(tokens.val)
        return bytes(np.asarray(tokens.train)), bytes(np.asarray(tokens.val))

    assert texts(None) == (b"ab\nc\nd\ne", b"f\ng")
    assert texts("none") == (b"abc\nde", b"fg")
    assert texts("|") == (b"ab|c\n|d|e", b"f|g")
    words = tokenizers.between((train, val), None, None)
    assert words == "a newline put between documents, 3 times"
    assert tokenizers.between((documents("a\n", "b"), val[:1]), None, None) == ""


def test_a_tokenizers_end_of_text_stands_between_documents_and_its_spelling_in_one_is_text(
    tmp_path: Path, words: str
):
    held_words = json.loads(Path(words).read_text())
    special = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    end = {"id": 6, "content": "<|endoftext|>", "special": True} | special
    path = tmp_path / "with_end.json"
    path.write_text(json.dumps(held_words | {"added_tokens": [end]}))
    train, val = documents("the cat", "sat", "the<|endoftext|>cat"), documents("cat")

    tokens = streams("text", train, val, str(path), None)
    plain = streams("text", train, val, str(path), "none")

    assert held(tokens) == ([1, 2, 6, 3, 6, 1, 0, 0, 0, 2], [2])
    assert held(plain) == ([1, 2, 3, 1, 0, 0, 0, 2], [2])
    assert tokenizers.between((train, val), str(path), None) == "<|endoftext|> between documents"
    assert held(streams("text", train, val, words, None))[0] == [1, 2, 3, 1, 0, 0, 0, 2]


def test_the_recipes_digest_is_blind_to_the_separator_and_the_fingerprint_sees_its_tokens(
    tmp_path: Path,
):
    for name, text in (("a.txt", "one\n"), ("b.txt", "two\n"), ("c.txt", "three\n" * 200)):
        (tmp_path / name).write_text(text * 30)
    given = ["data.source=text", f"data.path={tmp_path}", "train.eval_tokens=64"]
    given += ["model.seq_len=16"]
    plain = recipe.load("smoke", given)
    asked = recipe.load("smoke", [*given, "data.separator=none"])
    other = recipe.load("smoke", [*given, "data.separator=|"])

    found = [sources.load(each) for each in (plain, asked, other)]

    assert plain.digest == asked.digest == other.digest
    assert found[1].fingerprint != found[2].fingerprint
    assert "'|' put between documents" in found[2].split
