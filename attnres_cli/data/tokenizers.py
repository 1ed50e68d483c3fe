"""From documents to tokens: bytes, a `tokenizers` JSON file, or an encoding of tiktoken."""

from __future__ import annotations

import codecs
import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version

import numpy as np

from attnres_cli.console import Progress
from attnres_cli.data import cache
from attnres_cli.data.documents import Document
from attnres_cli.data.tokens import Array, Streams, beginning, digest_of, of_bytes
from attnres_cli.errors import DataError, required, unknown
from attnres_cli.files import path_of, read_text

_TIKTOKEN = "tiktoken:"
_MOST_BYTES = 2**28  # of a tokenizer's file; those of 250,000 tokens have 2**24
_ENDS = ("<|endoftext|>", "<|end_of_text|>", "<|eos|>", "<eos>", "</s>")  # of a text, by family
NOTHING = "none"
_AT_ONCE = 1000  # documents that are decoded at a time: they may lie on a disk

_VERSION = 2  # of how tokens are kept


@dataclass(frozen=True)
class Tokenizer:
    """Makes tokens of texts; tokenizers of one identity make the same of every text."""

    identity: str
    vocab_size: int
    encode: Callable[[list[str]], Iterable[Sequence[int]]]
    decode: Callable[[Sequence[int]], str]  # what is no UTF-8 becomes U+FFFD
    end: tuple[int, str] | None = None  # the special token that ends a text


def of(name: str | None) -> Tokenizer:
    """The tokenizer of that name, bytes for None. Raises DataError where there is none such."""
    return _BYTES if name is None or name == "bytes" else _open(name)


def streams(
    source: str,
    train: list[Document],
    val: list[Document],
    tokenizer: str | None,
    separator: str | None = NOTHING,
    key: str | None = None,
) -> Streams:
    """Both halves as tokens; bytes where tokenizer is None. Between documents stands the separator,
    by default (None) the tokenizer's token for the end of a text, or where it has none a newline
    where a document ends without one. What a text spells like a special token is text.

    Tokens are kept on disk (cache.py) for the next process, bytes too where there is a key for
    them. A character that the cut through a document divides is left out. Raises DataError where
    there is no such tokenizer, its package is missing, or a document is no UTF-8.
    """
    known, cut = of(tokenizer), {each.name for each in train} & {each.name for each in val}
    end = known.end if separator is None else None
    if end is None:
        train, val = separated(train, separator), separated(val, separator)
    if known is _BYTES and key is None:
        return of_bytes(source, train, val)
    key = key or _key(known, train, val, end)
    halves = cache.find(key, known.vocab_size)
    if halves is None:
        cache.keep(key, known.vocab_size, [_pieces(known, each, cut, end) for each in (train, val)])
        halves = cache.find(key, known.vocab_size) or (  # maps need less memory
            _whole(_pieces(known, train, cut, end)),
            _whole(_pieces(known, val, cut, end)),
        )
    seen = digest_of if known is _BYTES else partial(cache.fingerprint, known.vocab_size)
    return Streams(
        source,
        *halves,
        fingerprint=seen(halves),
        vocab_size=known.vocab_size,
        n_bytes=sum(len(document.content) for document in train + val),
        val_text=beginning(val),
    )


def remember(key: str, tokens: Streams) -> None:
    """Keep all but the tokens themselves, which `streams` has kept under the same key."""
    text = (tokens.val_text or b"").decode("latin-1")
    facts = (tokens.source, tokens.fingerprint, tokens.vocab_size, tokens.n_bytes, tokens.split)
    cache.remember(key, [*facts, text])


def recalled(key: str) -> Streams | None:
    """The tokens of which everything is kept under a key."""
    facts = cache.recalled(key)
    halves = None if facts is None else cache.find(key, facts[2])
    if halves is None:
        return None
    source, fingerprint, vocab_size, n_bytes, split, text = facts
    return Streams(source, *halves, fingerprint, vocab_size, n_bytes, text.encode("latin-1"), split)


def separated(documents: list[Document], separator: str | None) -> list[Document]:
    """With it between them; None: a newline where a document ends without one."""
    if separator == NOTHING:
        return documents
    found: list[Document] = []
    gap = Document("", ("\n" if separator is None else separator).encode())  # one for all
    for document in documents:
        if found and gap.content and (separator or bytes(found[-1].content[-1:]) != b"\n"):
            found.append(gap)
        found.append(document)
    return found


def between(halves: Sequence[list[Document]], tokenizer: str | None, separator: str | None) -> str:
    """What `streams` puts between documents, in words; empty for nothing."""
    end, n_gaps = of(tokenizer).end, sum(max(0, len(half) - 1) for half in halves)
    if separator is None and end and n_gaps:
        return f"{end[1]} between documents"
    n = sum(len(separated(half, separator)) - len(half) for half in halves)
    what = "a newline" if separator is None else repr(separator)
    return f"{what} put between documents, {n:,} times" if n else ""


def _key(
    tokenizer: Tokenizer,
    train: list[Document],
    val: list[Document],
    end: tuple[int, str] | None,
) -> str:
    """32 hex digits over all that decides the tokens: the tokenizer, every document, the end."""
    identity = f"{_VERSION} {tokenizer.identity}" + (f" {end}" if end else "")
    digest = hashlib.sha256(identity.encode(errors="surrogatepass"))
    for document in (*train, None, *val):
        content = b"" if document is None else document.content
        name = "" if document is None else document.name  # one in both halves is cut in two
        digest.update(b"%d %d " % (len(name), len(content)))
        digest.update(name.encode(errors="surrogateescape"))
        digest.update(content)
    return digest.hexdigest()[:32]


def _pieces(
    tokenizer: Tokenizer,
    documents: list[Document],
    cut: set[str],
    end: tuple[int, str] | None,
) -> Iterator[Array]:
    """The tokens of one document after the other, and what stands between them."""
    if tokenizer is _BYTES:
        yield from (np.frombuffer(each.content, np.uint8) for each in documents)
        return
    dtype = np.uint16 if tokenizer.vocab_size <= 2**16 else np.uint32
    last: Array = np.array(end[:1] if end else (), dtype)
    progress = Progress("tokenizing")
    for start in range(0, len(documents), _AT_ONCE):
        some = documents[start : start + _AT_ONCE]
        texts = [_text(document, whole=document.name not in cut) for document in some]
        for number, tokens in enumerate(tokenizer.encode(texts), start + 1):
            yield np.array(tokens, dtype=dtype)
            if number < len(documents):
                yield last
        progress.add(sum(len(document.content) for document in some))


def _whole(pieces: Iterator[Array]) -> Array:
    found = list(pieces)
    return np.concatenate(found) if found else np.zeros(0, np.uint16)


def _text(document: Document, *, whole: bool) -> str:
    content = bytes(document.content)
    if not whole:
        content = content[:3].lstrip(bytes(range(0x80, 0xC0))) + content[3:]  # of a divided one
    try:
        return codecs.getincrementaldecoder("utf-8")().decode(content, final=whole)
    except UnicodeDecodeError as error:
        raise DataError(
            f"{document.name} is no UTF-8 text at byte {error.start}, which a tokenizer needs: "
            "convert it, or leave data.tokenizer out to train on bytes"
        ) from error


_BYTES = Tokenizer(
    "bytes",
    256,
    lambda texts: [list(text.encode(errors="replace")) for text in texts],
    lambda tokens: bytes(tokens).decode(errors="replace"),
)


def _open(name: str) -> Tokenizer:
    if name.startswith(_TIKTOKEN):
        return _tiktoken(name.removeprefix(_TIKTOKEN))
    if name.endswith(".json"):
        return _json(name)
    raise DataError(unknown("tokenizer", name, ["bytes", "FILE.json", "tiktoken:gpt2"]))


def _json(name: str) -> Tokenizer:
    path = path_of(name, "tokenizer", DataError)
    text = read_text(path, "tokenizer", DataError, _MOST_BYTES)
    package = required("tokenizers", "tokenizers", f"tokenizer {path}", DataError)
    try:
        found = package.Tokenizer.from_str(text)
    except Exception as error:  # the package raises nothing narrower
        raise DataError(f"tokenizer {path} is none that `tokenizers` reads: {error}") from error
    found.no_truncation()  # some files say how many tokens one of their models can take
    found.no_padding()
    found.encode_special_tokens = True  # what a text spells like one is text
    special = {str(each): n for n, each in found.get_added_tokens_decoder().items() if each.special}
    ends = [(special[name], name) for name in _ENDS if name in special]
    return Tokenizer(
        f"tokenizers {package.__version__} {text}",
        max(found.get_vocab().values(), default=0) + 1,  # their number, where none is left out
        lambda texts: [e.ids for e in found.encode_batch_fast(texts, add_special_tokens=False)],
        lambda tokens: str(found.decode(list(tokens), skip_special_tokens=False)),
        ends[0] if ends else None,
    )


def _tiktoken(name: str) -> Tokenizer:
    package = required("tiktoken", "tiktoken", f"tokenizer tiktoken:{name}", DataError)
    if name not in package.list_encoding_names():
        raise DataError(unknown("tiktoken encoding", name, package.list_encoding_names()))
    try:
        found = package.get_encoding(name)
    except Exception as error:  # it downloads what it has not kept, and anything may fail in that
        reason = " ".join(str(error).split())[:160]
        raise DataError(
            f"tiktoken cannot load {name}, which it downloads once unless TIKTOKEN_CACHE_DIR holds "
            f"it: {reason}"
        ) from error
    ends = [name for name in _ENDS if name in found.special_tokens_set]
    parts = [
        name,
        version("tiktoken"),
        found.n_vocab,
        getattr(found, "_pat_str", None),
        hashlib.sha256(b"\0".join(found.token_byte_values())).hexdigest(),
    ]
    return Tokenizer(
        f"tiktoken {parts}",
        found.n_vocab,
        found.encode_ordinary_batch,
        lambda tokens: str(found.decode(list(tokens))),
        (found.encode_single_token(ends[0]), ends[0]) if ends else None,
    )
