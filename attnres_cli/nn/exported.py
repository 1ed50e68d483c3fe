"""Models that `attnres runs export` wrote, from folders that may be damaged."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

from attnres_cli.errors import ExportError, VariantError
from attnres_cli.nn import model
from attnres_cli.nn.model import Transformer
from attnres_cli.nn.shape import Shape

_MOST_POSITIONS = 2**24


def load(folder: str | Path, *, plugin: bool = False) -> Transformer:
    """The model that `attnres runs export` wrote into a folder: float32, on the CPU, to evaluate.

    Needs torch and safetensors alone. A plugin's source in the folder is code, which is imported
    only with `plugin`. Raises ExportError for a folder that is no export, or is damaged, and
    VariantError for a design that is not known here, or by other code than the run's.
    """
    check(Path(folder))
    try:
        return model.load(folder, plugin=plugin)
    except VariantError:
        raise
    except Exception as error:  # of a file that somebody or a disk has changed, anything
        raise damaged(folder, error) from error


def damaged(folder: str | Path, error: Exception) -> ExportError:
    """What to raise for an error of its files."""
    said = " ".join(str(error).split())[:200] or type(error).__name__
    return ExportError(
        said if "is damaged" in said else f"{folder} is damaged ({said}): export it again"
    )


def check(folder: Path) -> None:
    """Raise ExportError for a folder without its files, or with sizes that the weights do not have:
    another digit of a size could ask for more memory than there is.
    """
    try:
        _agree(folder)
    except FileNotFoundError as error:
        raise ExportError(f"{folder} is no folder of `attnres runs export`: {error}") from error
    except Exception as error:
        raise damaged(folder, error) from error


def _agree(folder: Path) -> None:
    from safetensors import safe_open

    sizes: dict[str, Any] = json.loads((folder / "config.json").read_text("utf-8"))["shape"]
    for field in fields(Shape):
        value = sizes.get(field.name, field.default)
        if field.type == "int" and not (type(value) is int and 0 <= value < 2**31):
            raise ValueError(f"{field.name} is {value!r} in config.json")
    weights = folder / "model.safetensors"
    with safe_open(weights, "pt") as file:
        n_tensors = len(file.keys())
    if sizes["n_layers"] > n_tensors or sizes["seq_len"] > _MOST_POSITIONS:
        raise ValueError(
            f"config.json has {sizes['n_layers']} layers, {sizes['seq_len']} positions"
        )
    if Shape(**sizes).n_params() > weights.stat().st_size:  # a byte each, with the fewest bits
        raise ValueError("config.json tells of a larger model than model.safetensors holds")
