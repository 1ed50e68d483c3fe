"""Models that `attnres runs export` wrote, from folders that may be damaged. Needs torch and
safetensors alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

from attnres_cli.errors import ExportError, VariantError
from attnres_cli.files import sha256
from attnres_cli.nn import code
from attnres_cli.nn.model import Transformer
from attnres_cli.nn.residual import PLUGINS, add_plugin
from attnres_cli.nn.shape import Shape
from attnres_cli.nn.variant import parse

_MOST_POSITIONS = 2**24


def load(folder: str | Path, *, plugin: bool = False) -> Transformer:
    """The model that `attnres runs export` wrote into a folder: float32, on the CPU, to evaluate.

    A plugin's source in the folder is code, which is imported only with `plugin`. Raises
    ExportError for a folder that is no export, or is damaged, and names what loads one of
    `save_pretrained`; VariantError for a design that is not known here, or by other code than the
    run's.
    """
    try:
        check(Path(folder))
        return _loaded(Path(folder), plugin)
    except VariantError:
        raise
    except Exception as error:  # of a file that somebody or a disk has changed, anything
        if _is_saved_by_transformers(Path(folder)):
            raise ExportError(
                f"{folder} was saved by transformers: load it with AutoModelForCausalLM"
            ) from error
        raise error if isinstance(error, ExportError) else damaged(folder, error) from error


def _loaded(folder: Path, plugin: bool) -> Transformer:
    from safetensors.torch import load_model  # whoever only builds models needs none of it

    config = json.loads((folder / "config.json").read_text("utf-8"))
    weights, written = folder / "model.safetensors", config.get("weights_sha256")
    if written is not None and sha256(weights) != written:
        raise ExportError(f"{weights} is damaged, it is not as it was written: export it again")
    model = model_of(config, folder, plugin=plugin)
    load_model(model, weights)
    return model.eval()


def model_of(config: Mapping[str, Any], folder: Path, *, plugin: bool) -> Transformer:
    """The model that a config.json in this folder tells of, without its weights; see `load`."""
    if config.get("plugin"):
        _know(config, folder / Path(config["plugin"]).name, plugin)
    shape = Shape(**config["shape"])
    return Transformer(shape, parse(config["variant"]).build(shape.d_model, shape.n_sublayers))


def _know(config: Mapping[str, Any], file: Path, is_asked: bool) -> None:
    """Make the design of a plugin known, by the code that trained the run. Raises VariantError."""
    name = config["variant"]
    try:
        design = parse(name)
    except VariantError as error:
        if not is_asked:
            raise VariantError(
                f"{name} is a design of the plugin {file}, which is code: read it and type "
                f"load(..., plugin=True), or name it in {PLUGINS}"
            ) from error
        add_plugin(str(file))
        design = parse(name)
    if code.of_design(*design.classes) != config["versions"]["code_design"]:
        raise VariantError(f"{file} is not the code of {name} that trained these weights")


def _is_saved_by_transformers(folder: Path) -> bool:
    with suppress(OSError, UnicodeDecodeError):
        return '"transformers_version"' in (folder / "config.json").read_text("utf-8")
    return False


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
