"""Checkpoints and final weights of a run: written whole or not at all, and checked when read.

A checkpoint is two files, `000000400.safetensors` (tensors) and `000000400.json` (the rest, with
the digests of both). The second is what makes it one: it is renamed into place last.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch
from torch import Tensor

from attnres_cli.console import say
from attnres_cli.errors import UsageError
from attnres_cli.files import sha256
from attnres_cli.records.run import WEIGHTS, weights_file

FORMAT = 3  # 2 called the optimiser's parameters by their numbers
_READ = (2, FORMAT)
_SPARE_BYTES = 2**20
_FINAL = "weights"  # what their names begin with, here a machine's that may have taken over
LONGER = "longer"  # a folder in a run's, with the checkpoint that longer runs may go on from
_KEPT = 2  # one more than needed, for when the newest is damaged


class _UnsoundError(Exception):
    """Of one checkpoint: why it cannot be used. The one before it may be."""

    @property
    def is_for_good(self) -> bool:
        """Whether it is not the disk, or a server of files, that fails just now."""
        cause = self.__cause__
        return not isinstance(cause, OSError) or isinstance(cause, FileNotFoundError)


class _ForeignError(Exception):
    """Of one checkpoint: which part of its making differs. So does that of all before it."""


@dataclass(frozen=True)
class Checkpoints:
    """The newest checkpoints of one run. `identity` says how they are made: all of it decides the
    run's numbers but what `may_differ`.
    """

    folder: Path
    identity: Mapping[str, str]
    may_differ: frozenset[str] = frozenset()

    def save(self, step: int, state: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Write one, then forget all but the newest two. Raises OSError where the disk is full."""
        from safetensors.torch import save_file  # a run that needs no checkpoint needs none of it

        self.folder.mkdir(parents=True, exist_ok=True)
        _check_room(self.folder, tensors.values())
        note = self.folder / f"{step:09d}.json"
        with whole(note.with_suffix(".safetensors")) as part:
            save_file(dict(tensors), part)
            digest = sha256(part)
        body = {"format": FORMAT, "step": step, "identity": dict(self.identity)}
        with whole(note) as part:
            text = _signed(body | {"state": state, "tensors_sha256": digest})
            part.write_text(text, encoding="utf-8")
        self._prune()

    def load(self) -> tuple[dict[str, Any], dict[str, Tensor]] | None:
        """State and tensors of the newest sound checkpoint, None if there is none. Damaged ones are
        removed, unless they cannot be read just now, and all are where one is of another identity;
        stderr tells so.
        """
        notes = self._notes()
        for note in notes:
            try:
                return self._read(note)
            except _UnsoundError as error:
                then = "the run starts again" if note is notes[-1] else "the one before is tried"
                say(f"checkpoint {note} is damaged ({error}): {then}")
                if error.is_for_good:
                    note.unlink(missing_ok=True)
            except _ForeignError as error:
                say(f"checkpoint {note} was made with another {error}: the run starts again")
                clear(self.folder)
                return None
        return None

    def take(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """State and tensors of the newest checkpoint, for another run. Raises UsageError where
        there is none, it is damaged, or was not made as `identity` says.
        """
        note = next(iter(self._notes()), None)
        if note is None:
            raise UsageError(f"nothing is kept of the run to go on from (in {self.folder})")
        try:
            return self._read(note)
        except _UnsoundError as error:
            raise UsageError(f"{note}, from which it would go on, is damaged: {error}") from None
        except _ForeignError as error:
            raise UsageError(f"{note} was made with another {error}: not exact here") from None

    def _read(self, note: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
        from safetensors.torch import load_file

        body = _unsigned(note)
        theirs = body["identity"]
        ours = dict(self.identity)
        names = (ours.keys() | theirs.keys()) - self.may_differ
        different = [name for name in sorted(names) if theirs.get(name) != ours.get(name)]
        if different:
            name = different[0]
            raise _ForeignError(f"{name} ({theirs.get(name)}, now {ours.get(name)})")
        blob = note.with_suffix(".safetensors")
        try:
            if sha256(blob) != body["tensors_sha256"]:
                raise _UnsoundError(f"{blob.name} is not as it was written")
            return body["state"], load_file(blob)
        except OSError as error:
            raise _UnsoundError(f"{blob.name}: {error.strerror}") from error

    def _notes(self) -> list[Path]:
        """The newest first."""
        return sorted(self.folder.glob("[0-9]*.json"), reverse=True)

    def _prune(self) -> None:
        """Remove what is older, and what a killed process has left half written."""
        kept = {note.stem for note in self._notes()[:_KEPT]}
        for file in sorted(self.folder.iterdir()):  # .json before .safetensors, of each step
            if file.is_dir():
                continue
            if file.stem not in kept and not file.name.lstrip(".").startswith(_FINAL):
                file.unlink(missing_ok=True)


def newest_step(folder: Path) -> int:
    """After which step a run's newest checkpoint was written; 0 without one."""
    return max((int(note.stem) for note in folder.glob("[0-9]*.json")), default=0)


def newest_identity(folder: Path) -> dict[str, str]:
    """How a run's newest checkpoint was made that can be read; empty without one."""
    for note in sorted(folder.glob("[0-9]*.json"), reverse=True):
        with suppress(_UnsoundError):
            return dict(_unsigned(note)["identity"])
    return {}


def bring(old: Path, new: Path, *, weights: str = WEIGHTS) -> None:
    """Copy into a run's folder what another one of the same run has: final weights of that name,
    the checkpoint that longer runs may go on from, and all others where this one has none.
    """
    if not old.is_dir():
        return
    new.mkdir(parents=True, exist_ok=True)
    has_own = newest_step(new) > 0
    for file in sorted(old.iterdir(), reverse=True):  # .safetensors before .json, of each step
        if file.is_dir():
            bring(file, new / file.name)
            continue
        is_checkpoint = file.name[0].isdecimal() and not has_own
        if (is_checkpoint or file.match(weights)) and not (new / file.name).exists():
            with whole(new / file.name) as part:
                shutil.copyfile(file, part)


def clear(folder: Path, weights: str = WEIGHTS) -> None:
    """Remove a run's checkpoints, half-written files and then empty folders, not final weights: all
    that are there, or those of this name.
    """
    with suppress(FileNotFoundError):
        for file in list(folder.iterdir()):
            if not file.match(weights) and file.name != LONGER:
                file.unlink(missing_ok=True)
    for empty in (folder, folder.parent):
        with suppress(OSError):  # something else is there, or it never was
            empty.rmdir()


def _signed(body: Mapping[str, Any]) -> str:
    text = json.dumps(body, sort_keys=True)
    return json.dumps({"sha256": hashlib.sha256(text.encode()).hexdigest(), "body": text})


def _unsigned(note: Path) -> dict[str, Any]:
    try:
        outer = json.loads(note.read_text(encoding="utf-8"))
        if hashlib.sha256(outer["body"].encode()).hexdigest() != outer["sha256"]:
            raise _UnsoundError(f"{note.name} is not as it was written")
        body: dict[str, Any] = json.loads(outer["body"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _UnsoundError(f"{note.name} is no note of a checkpoint") from error
    if body["format"] not in _READ:
        raise _UnsoundError(f"format {body['format']}, this version reads {FORMAT}")
    return body


@contextmanager
def whole(final: Path) -> Iterator[Path]:
    """A file to write to, named `final` once it is whole on the disk; OSError where that fails."""
    from safetensors import SafetensorError

    unlike = f"{uuid4().hex[:8]}.{os.getpid()}"  # two machines may have the same process ids
    part = final.with_name(f".{final.name}.{unlike}")
    try:
        yield part
        _sync(part)
        part.replace(final)
        _sync(final.parent)
    except SafetensorError as error:
        raise OSError(str(error)) from error
    finally:
        part.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    """Let a file or folder be on the disk, not in memory alone."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _check_room(folder: Path, tensors: Iterable[Tensor]) -> None:
    """Raise OSError where these would leave under a MiB of the disk, which the study may need."""
    n_bytes = sum(tensor.nbytes for tensor in tensors)
    if shutil.disk_usage(folder).free < n_bytes + _SPARE_BYTES:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def keep_weights(model: torch.nn.Module, folder: Path) -> str:
    """Write a model's weights and buffers, tied ones once, into a run's folder, for good. Returns
    the file's checksum, which names it (`weights_file`): the study says which file is the run's.
    """
    from safetensors.torch import save_model

    folder.mkdir(parents=True, exist_ok=True)
    _check_room(folder, [*model.parameters(), *model.buffers()])
    own = folder / f".{_FINAL}-{uuid4().hex[:8]}"
    with whole(own) as part:
        save_model(model, str(part))
        digest = sha256(part)
    own.replace(folder / weights_file(digest))
    return digest


def is_weights(path: Path) -> bool:
    """Whether a file is one of tensors, as far as its beginning and its length tell."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt"):
            return True
    except SafetensorError:
        return False


def differing(one: Path, other: Path) -> list[str]:
    """Names of the tensors that are not in both files, bit for bit the same."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        ours, theirs = load_file(one), load_file(other)
    except SafetensorError as error:
        raise OSError(f"{one.name}: {error}") from error
    names = sorted(ours.keys() | theirs.keys())
    return [name for name in names if not _same(ours.get(name), theirs.get(name))]


def _same(one: Tensor | None, other: Tensor | None) -> bool:
    """Whether the bits are: nan is the same as itself, 0.0 is not -0.0."""
    if one is None or other is None or one.dtype != other.dtype or one.shape != other.shape:
        return False
    return torch.equal(one.flatten().view(torch.uint8), other.flatten().view(torch.uint8))
