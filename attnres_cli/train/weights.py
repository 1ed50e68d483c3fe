"""A run's final weights: a file of their own, so that they outlive its checkpoints."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from attnres_cli.records.run import WEIGHTS
from attnres_cli.train.checkpoint import check_room, sync


def keep(model: torch.nn.Module, folder: Path) -> None:
    """Write a model's weights and buffers into a run's folder, whole or not at all.

    What is tied is there once; `model.load` of an exported run undoes that.

    Raises:
        OSError: they could not be written, as on a full disk.

    """
    from safetensors import SafetensorError  # a run that keeps nothing needs none of it
    from safetensors.torch import save_model

    folder.mkdir(parents=True, exist_ok=True)
    final, part = folder / WEIGHTS, folder / f".{WEIGHTS}.{os.getpid()}"
    final.unlink(missing_ok=True)  # of an attempt that was not recorded: nobody else's may stay
    check_room(folder, [*model.parameters(), *model.buffers()])
    try:
        save_model(model, str(part))
        sync(part)
        part.replace(final)
        sync(folder)
    except SafetensorError as error:
        raise OSError(str(error)) from error
    finally:
        part.unlink(missing_ok=True)


def differing(one: Path, other: Path) -> list[str]:
    """Names of the tensors that are not in both files, bit for bit the same.

    Raises:
        OSError: a file cannot be read.

    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        ours, theirs = load_file(one), load_file(other)
    except SafetensorError as error:
        raise OSError(f"{one.name}: {error}") from error
    names = sorted(ours.keys() | theirs.keys())
    return [name for name in names if not _same(ours.get(name), theirs.get(name))]


def _same(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    """Whether the bits are: nan is the same as itself, 0.0 is not -0.0."""
    if one is None or other is None or one.dtype != other.dtype or one.shape != other.shape:
        return False
    return torch.equal(one.flatten().view(torch.uint8), other.flatten().view(torch.uint8))
