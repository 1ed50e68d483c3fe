"""Losses of tokenizers in bits per byte of the text that is evaluated."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from older import make_older

from attnres_cli.config.recipe import Recipe, load
from attnres_cli.data import sources, tokenizers
from attnres_cli.data.tokens import Windows
from attnres_cli.lab.eval_bytes import bytes_of, counted, evaluated
from attnres_cli.lab.merging import merge
from attnres_cli.store.store import Store

SEQ_LEN = 16
LINES = [f"caf\u00e9 {n}, na\u00efve {n * n} \u2192 \U0001f642 the cat" for n in range(1500)]
TEXT = "\n".join(LINES)


@pytest.fixture(autouse=True)
def text(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(here / "cache"))
    (here / "text.txt").write_text(TEXT, encoding="utf-8")


def trained(name: str, n_tokens: int = 300, special: tuple[str, ...] = (), *, spaces: bool) -> str:
    """The file of a tokenizer of that text: of bytes, or of pieces whose spaces are `\u2581`."""
    package = pytest.importorskip("tokenizers")
    parts = package.pre_tokenizers, package.decoders, package.trainers
    pre, decoders, trainers = parts
    if spaces:
        found = package.Tokenizer(package.models.Unigram())
        found.pre_tokenizer, found.decoder = pre.Metaspace(), decoders.Metaspace()
        trainer = trainers.UnigramTrainer(vocab_size=n_tokens, special_tokens=["<unk>", *special])
    else:
        found = package.Tokenizer(package.models.BPE())
        found.pre_tokenizer = pre.ByteLevel(add_prefix_space=False)
        found.decoder = decoders.ByteLevel()
        alphabet = pre.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(
            vocab_size=n_tokens, special_tokens=[*special], initial_alphabet=alphabet
        )
    found.train_from_iterator([TEXT], trainer)
    found.save(name)
    return name


def recipe(tokenizer: str, *sets: str) -> Recipe:
    data = ("data.source=text", "data.path=text.txt", f"data.tokenizer={tokenizer}")
    return load("smoke", [*data, "train.tokens=1k", "train.eval_tokens=256", *sets])


def windows_of(tokens: list[int]) -> Windows:
    """All of them, each predicted once but for the first."""
    count = (len(tokens) - 1) // SEQ_LEN
    found = [tokens[n * SEQ_LEN : (n + 1) * SEQ_LEN + 1] for n in range(count)]
    return np.array(found, dtype=np.int64)


@pytest.mark.parametrize("spaces", [False, True])
def test_the_bytes_of_all_tokens_are_those_of_the_text(spaces: bool):
    name = trained("of.json", spaces=spaces)
    known = tokenizers.of(name)
    texts = (TEXT[:n] for n in range(3000, 4000))
    pairs = ((text, list(*known.encode([text]))) for text in texts)
    text, tokens = next((text, of) for text, of in pairs if len(of) % SEQ_LEN == 1)

    found = counted(known, bytes_of(name), [windows_of(tokens)])

    assert (bytes_of(name) is None) == spaces
    assert found == len(text.encode()) - len(known.decode(tokens[:1]).encode())
    assert found > len(tokens)


def test_a_tokenizer_file_may_have_no_added_tokens(here: Path):
    model = {"type": "BPE", "vocab": {"a": 0, "bc": 1}, "merges": []}
    (here / "own.json").write_text(json.dumps({"model": model, "decoder": {"type": "ByteLevel"}}))
    sizes = bytes_of("own.json")
    assert sizes is not None
    assert (sizes(0), sizes(1)) == (1, 2)


def test_what_ends_a_text_has_no_bytes_and_what_follows_is_a_text_of_its_own():
    for spaces in (False, True):
        name = trained("end.json", special=("<|endoftext|>",), spaces=spaces)
        known = tokenizers.of(name)
        assert known.end is not None
        end = known.end[0]
        (cat,) = known.encode(["the cat"])
        window = np.array([[*cat, end, *cat, end]])
        first = len(known.decode(list(cat)[:1]))
        assert counted(known, bytes_of(name), [window]) == 2 * len("the cat") - first


def test_the_evaluated_windows_are_counted_and_remembered(monkeypatch: pytest.MonkeyPatch):
    fixed = recipe(trained("of.json", spaces=False))
    tokens = sources.load(fixed)
    known = tokenizers.of("of.json")
    expected = sum(
        len(known.decode(window.tolist()).encode("utf-8")) - len(known.decode([window[0]]).encode())
        for batch in tokens.eval_batches(256, 4, fixed.model.seq_len)
        for window in batch
    )

    found = evaluated(fixed, tokens)
    assert found is not None
    assert found.n_tokens == 256
    assert found.n_bytes == pytest.approx(expected, rel=0.05)  # a decoded part has three bytes
    monkeypatch.setattr("attnres_cli.lab.eval_bytes.counted", lambda *_: pytest.fail("again"))
    assert evaluated(fixed, tokens) == found


def test_bytes_token_files_and_a_tokenizer_that_drops_something_have_none(here: Path):
    lossy = Path(trained("lossy.json", spaces=False))
    lossy.write_text(
        lossy.read_text().replace('"normalizer": null', '"normalizer": {"type": "Lowercase"}')
    )
    Path("text.txt").write_text(TEXT.replace("the", "The"), encoding="utf-8")
    for name in ("lossy.json", "bytes"):
        fixed = recipe(name)
        assert evaluated(fixed, sources.load(fixed)) is None
    np.arange(9000, dtype="<u2").tofile(here / "train.bin")
    sets = ["data.source=nanogpt", f"data.path={here}/train.bin", "train.eval_tokens=256"]
    files = load("smoke", sets)
    assert evaluated(files, sources.load(files)) is None


def test_a_report_compares_two_tokenizers_by_bits_per_byte_and_one_of_before_has_none(attnres: Any):
    def rows(name: str, command: str = "report", *more: str) -> list[dict[str, str]]:
        return attnres.csv(command, *more, "--recipe", digests[name])

    digests = {}
    for size in (300, 400):
        name = trained(f"{size}.json", size, spaces=False)
        fixed = recipe(name)
        sets = ("data.source=text", "data.path=text.txt", f"data.tokenizer={name}")
        sets += ("train.tokens=1k", "train.eval_tokens=256")
        words = [word for each in sets for word in ("--set", each)]
        attnres("ablate", "standard", "--recipe", "smoke", *words, "--seeds", "2", "--in-process")
        digests[name] = fixed.digest
        held = evaluated(fixed, sources.load(fixed))
        assert held is not None
        (row,) = rows(name)
        bits = float(row["mean"]) / math.log(2) * held.n_tokens / held.n_bytes
        assert float(row["bits_per_byte"]) == pytest.approx(bits)
        assert 1 < bits < 8
        told = attnres.prints("report", "--notes", "--recipe", fixed.digest)
        assert "bits/byte" in told.partition("params")[2]
        assert f"256 evaluated tokens / {held.n_bytes:,} bytes" in " ".join(told.split())

    sides = [word for digest in digests.values() for word in ("--recipe", digest)]
    (both,) = attnres.csv("report", *sides)
    alone = [float(rows(name)[0]["bits_per_byte"]) for name in digests]
    assert [float(both[f"bits_per_byte_{side}"]) for side in "ab"] == pytest.approx(alone)
    assert "A bits/byte" in attnres.prints("report", *sides)

    into = Store.open("all.db", create=True)
    merge([Store.open("attnres.db", create=False)], into)
    data = {run.recipe_digest: run.fingerprint for run in into.runs()}
    assert all(into.evaluated(*each) for each in data.items())
    make_older(Path("attnres.db"), "0011")
    before = Path("attnres.db").read_bytes()
    assert rows(name)[0]["bits_per_byte"] == ""
    assert Path("attnres.db").read_bytes() == before
    attnres("ablate", "standard", "--recipe", "smoke", *words, "--seeds", "2", "--in-process")
    assert float(rows(name)[0]["bits_per_byte"]) == pytest.approx(bits)
