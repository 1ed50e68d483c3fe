"""Files of tokens, mapped into memory and never read whole: nanogpt, llmc, megatron and npy.

nanogpt: numbers without a header, little-endian uint16 or uint32. llmc: the shards of llm.c and
modded-nanogpt, 256 int32 (magic, version, number of tokens) and then tokens. megatron: numbers
whose type and count a .idx file beside them says. npy: NumPy arrays of one dimension and whole
numbers; never pickles.
"""

from __future__ import annotations

import glob
import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from attnres_cli.config.recipe import Data
from attnres_cli.data import megatron
from attnres_cli.data.tokens import Array, Chain, Streams, refuse_beyond
from attnres_cli.errors import DataError
from attnres_cli.files import path_of

_VALIDATES = {"val", "valid", "validation"}  # words in the names of files
_HEADERS = {20240520: (1, "<u2"), 20240801: (7, "<u4")}  # magic: version, type of a token
_EVALUATIONS = 20240522  # llm.c keeps multiple-choice questions in files with this magic
_HEADER_BYTES = 256 * 4
_NPY = b"\x93NUMPY"
_PACKED = (b"PK\x03\x04", b"\x1f\x8b\x08", b"\x28\xb5\x2f\xfd")  # zip, gzip, zstd: no tokens
_HALVES = 4  # upper halves of uint32 are below it, with a vocabulary of up to 262,144

_WHOLE = 2**28
"""Bytes up to which all files are read once before training, for fingerprint and vocabulary. Of
more, only blocks are: the first and last of every file, and others evenly between.
"""
_BLOCK = 2**16  # bytes
_BLOCKS = 1024  # of all files together, where so many are read
_FOUND_VOCABULARY = 2**20  # larger ones are more likely a mistake than found


@dataclass(frozen=True)
class _Shard:
    """One file, mapped, and what reading it (or blocks of it) once has shown."""

    path: Path
    tokens: Array
    digest: str
    low: int
    high: int


def load(config: Data) -> Streams:
    """The token files of a recipe: those of data.val_path validate, else those of a folder that are
    called so (val.bin, x_val_000000.bin), else the end of all of them. Raises DataError where that
    cannot be, as where a file would train and validate.
    """
    suffix = ".npy" if config.source == "npy" else ".bin"
    train_paths, val_paths = divided(found(config.path, suffix, "data.path"))
    if config.val_path is not None:
        given = found(config.val_path, suffix, "data.val_path")
        val_paths = divided(given)[1] or given
    paths = train_paths + val_paths
    arrays = [_mapped(path, config) for path in paths]
    is_much = sum(array.nbytes for array in arrays) > _WHOLE
    n_blocks = max(2, _BLOCKS // len(arrays)) if is_much else None
    shards = [_read_once(path, a, n_blocks) for path, a in zip(paths, arrays, strict=True)]
    train, val = shards[: len(train_paths)], shards[len(train_paths) :]
    _refuse_shared(train, val)
    vocab_size = config.vocab_size or _found_vocabulary(shards)
    for shard in shards:
        refuse_beyond(np.array([shard.low, shard.high]), vocab_size, f"token file {shard.path}")
    streams = Chain([shard.tokens for shard in train]), Chain([shard.tokens for shard in val])
    split = f"files that train: {len(train)}, others that validate: {len(val)}"
    if not val:
        streams = streams[0].cut(len(streams[0]) - round(config.val_fraction * len(streams[0])))
        of = "the one file" if len(train) == 1 else f"{len(train)} files in a row"
        split = f"the last {100 * config.val_fraction:.3g} % of {of} validates"
    facts = [vocab_size, len(streams[0]), [[s.tokens.dtype.str, s.digest] for s in shards]]
    return Streams(
        config.source,
        *streams,
        fingerprint=hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16],
        vocab_size=vocab_size,
        n_bytes=sum(shard.tokens.nbytes for shard in shards),
        split=split,
    )


def _mapped(path: Path, config: Data) -> Array:
    """The tokens of a file, as a read-only map of it."""
    try:
        if path.stat().st_size == 0:
            raise ValueError("is empty")
        tokens = FORMATS[config.source](path, config)
        if len(tokens) == 0:
            raise ValueError("holds no tokens")
    except OSError as error:
        raise DataError(f"token file {path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise DataError(f"token file {path} {error}") from error
    return tokens


def _nanogpt(path: Path, config: Data) -> Array:
    wide = config.vocab_size is not None and config.vocab_size > 2**16
    dtype = np.dtype({"uint16": "<u2", "uint32": "<u4"}[config.dtype or ("uint16", "uint32")[wide]])
    magic, size = magic_of(path), path.stat().st_size
    with path.open("rb") as file:
        if file.read(4).startswith(_PACKED):
            raise ValueError("is packed, by zip, gzip or zstd: unpack it")
    if magic in _HEADERS:
        raise ValueError(
            f"begins with magic {magic}: it is a shard of llm.c or modded-nanogpt; "
            "--set data.source=llmc"
        )
    if megatron.index(path)[0] == megatron.MAGIC:
        raise ValueError("has Megatron's index beside it: --set data.source=megatron")
    if size % dtype.itemsize:
        raise ValueError(
            f"has {size} bytes, no multiple of {dtype.itemsize}: it is truncated or not "
            f"{dtype.name} (data.dtype takes uint16 or uint32)"
        )
    tokens = np.asarray(np.memmap(path, dtype, mode="r"))
    head = tokens[:4096]
    if dtype.itemsize == 2 and len(head) > 64 and head[1::2].max() < _HALVES <= head[::2].max():
        raise ValueError(
            "has numbers below 4 after every other one: it looks like uint32; "
            "--set data.dtype=uint32"
        )
    return tokens


def _llmc(path: Path, _config: Data) -> Array:
    magic, size = magic_of(path), path.stat().st_size
    if magic == _EVALUATIONS:
        raise ValueError("holds llm.c's multiple-choice questions, no text")
    if magic not in _HEADERS:
        raise ValueError(
            f"begins with {magic}, expected magic {' or '.join(map(str, _HEADERS))}; a nanoGPT "
            "file without header takes --set data.source=nanogpt"
        )
    if size < _HEADER_BYTES:
        raise ValueError(f"ends within its header, after {size} bytes")
    header = np.fromfile(path, "<i4", count=256)
    version, dtype = _HEADERS[magic][0], np.dtype(_HEADERS[magic][1])
    if header[1] != version:
        raise ValueError(f"is of version {header[1]}, expected {version}")
    n_tokens, expected = int(header[2]), _HEADER_BYTES + int(header[2]) * dtype.itemsize
    if size != expected or n_tokens < 0:
        what = "it is truncated" if size < expected else "its header is wrong"
        raise ValueError(
            f"has {size} bytes, its header says {n_tokens} tokens, which take {expected}: {what}"
        )
    if n_tokens == 0:
        return np.zeros(0, dtype)
    return np.asarray(np.memmap(path, dtype, "r", offset=_HEADER_BYTES, shape=(n_tokens,)))


def _npy(path: Path, _config: Data) -> Array:
    with path.open("rb") as file:
        start = file.read(len(_NPY))
    if start != _NPY:
        raise ValueError(f"is no .npy file: it begins with {start!r}")
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:  # cut off, a header of nonsense, Python objects
        reason = str(error).partition("\n")[0]
        raise ValueError(f"cannot be read as .npy: {reason}") from error
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ValueError(
            f"holds {array.dtype.name} of shape {array.shape}, expected whole numbers in one "
            "dimension"
        )
    return np.asarray(array)


FORMATS = {
    "nanogpt": _nanogpt,
    "llmc": _llmc,
    "megatron": lambda path, _: megatron.tokens(path),
    "npy": _npy,
}


def magic_of(path: Path) -> int:
    """The first four bytes, as a number."""
    with path.open("rb") as file:
        return int.from_bytes(file.read(4), "little", signed=True)


def _read_once(path: Path, array: Array, n_blocks: int | None) -> _Shard:
    """A file's digest and extremes: of all it holds, or of so many blocks."""
    digest = hashlib.sha256(len(array).to_bytes(8, "big"))
    low, high = int(array[0]), int(array[0])
    for block in _blocks(array, n_blocks):
        digest.update(np.ascontiguousarray(block).data)
        low, high = min(low, int(block.min())), max(high, int(block.max()))
    return _Shard(path, array, digest.hexdigest(), low, high)


def _blocks(array: Array, count: int | None) -> Iterator[Array]:
    """All of an array piece by piece, or `count` evenly spread blocks with its start and end."""
    if count is None:
        for start in range(0, len(array), 2**22):
            yield array[start : start + 2**22]
        return
    length = _BLOCK // array.itemsize
    last = max(0, len(array) - length)
    for start in np.unique(np.linspace(0, last, count).astype(np.int64)).tolist():
        yield array[start : start + length]


def _refuse_shared(train: Sequence[_Shard], val: Sequence[_Shard]) -> None:
    trained = {shard.digest: shard.path for shard in train}
    for shard in val:
        if shard.digest in trained:
            raise DataError(
                f"token file {shard.path} would validate what {trained[shard.digest]} trains: they "
                "hold the same tokens"
            )


def _found_vocabulary(shards: Sequence[_Shard]) -> int:
    n_bytes, high = sum(shard.tokens.nbytes for shard in shards), max(s.high for s in shards)
    if n_bytes > _WHOLE:
        raise DataError(
            f"{n_bytes} bytes of tokens are too many to look for the largest one: give the "
            "tokenizer's size, as --set data.vocab_size=50257"
        )
    if high >= _FOUND_VOCABULARY:
        raise DataError(
            f"the largest token is {high}: is data.dtype or the format another one? else give the "
            f"vocabulary, --set data.vocab_size={high + 1}"
        )
    return high + 1


def found(given: str | None, suffix: str, key: str) -> list[Path]:
    """The file, those of a folder with this suffix, or what a pattern matches; sorted by name."""
    if given is None:
        raise DataError(f"token files need a path: --set {key}=FILE_FOLDER_OR_PATTERN")
    path = path_of(given, key, DataError)
    try:
        if path.is_dir():
            paths = [p for p in path.iterdir() if p.suffix == suffix and p.name[0] != "."]
        elif path.exists():
            paths = [path]
        else:
            paths = [Path(name) for name in glob.glob(str(path), recursive=True)]  # noqa: PTH207
    except OSError as error:
        raise DataError(f"{key} {path} cannot be read: {error.strerror}") from error
    if not paths and not path.is_dir():
        raise DataError(f"{key} {path} does not exist: --set {key}=FILE_FOLDER_OR_PATTERN")
    files = sorted(p for p in paths if p.is_file())
    if not files:
        raise DataError(f"{key} {path} holds no {suffix} file: is data.source another one?")
    return files


def divided(paths: list[Path]) -> tuple[list[Path], list[Path]]:
    """Files that train, and those that validate by their names. Where names say `train`, only those
    train; a single file trains whatever it is called.
    """
    if len(paths) == 1:
        return paths, []
    val = [path for path in paths if _words(path) & _VALIDATES]
    others = [path for path in paths if path not in val]
    train = [path for path in others if "train" in _words(path)]
    return (train or others or val), (val if others else [])


def _words(path: Path) -> set[str]:
    return set(re.split(r"[^a-z]+", path.stem.lower()))
