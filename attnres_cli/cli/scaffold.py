"""A starting file for a design of a user's own."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

from attnres_cli.errors import VariantError
from attnres_cli.nn.residual import presets, registry


def write(name: str) -> Path:
    """Write NAME.py here and return its path.

    Raises:
        VariantError: a name that is taken or cannot be typed, a file that is there, or a folder
            that cannot be written to.

    """
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise VariantError(f"a variant's name is a word of a-z, 0-9 and _, as my_variant: '{name}'")
    if name in registry() or name in presets():
        raise VariantError(f"variant '{name}' is there already: take another name")
    text = (files("attnres_cli") / "starting_variant.py").read_text(encoding="utf-8")
    camel = "".join(word.capitalize() for word in name.split("_"))
    text = text.replace("MyVariant", camel).replace("my_variant", name)
    file = Path(f"{name}.py")
    try:
        with file.open("x", encoding="utf-8") as out:  # never over a file that is there
            out.write(text)
    except FileExistsError:
        raise VariantError(f"{file} is there already: take another name, or move it") from None
    except OSError as error:
        raise VariantError(f"{file} cannot be written: {error.strerror}") from error
    return file
