"""`load` as the package offers it: exported models, and a line for what transformers has saved."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from attnres_cli.errors import ExportError
from attnres_cli.nn import exported
from attnres_cli.nn.model import Transformer


def load(folder: str | Path, *, plugin: bool = False) -> Transformer:
    """The model that `attnres runs export` wrote into a folder, see `nn.exported.load`.

    Raises ExportError also for a folder that `save_pretrained` wrote, and names what loads it.
    """
    try:
        return exported.load(folder, plugin=plugin)
    except ExportError as error:
        with suppress(OSError, UnicodeDecodeError):
            if '"transformers_version"' in (Path(folder) / "config.json").read_text("utf-8"):
                raise ExportError(
                    f"{folder} was saved by transformers: load it with AutoModelForCausalLM"
                ) from error
        raise
