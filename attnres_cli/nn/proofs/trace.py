"""What a design keeps beside its parameters: running it may leave nothing there."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from attnres_cli.nn.residual import Residual

_OF_MODULES = set(vars(nn.Module())) - {"_buffers"}


def held(design: Residual) -> dict[str, Any]:
    """All that a design keeps beside its parameters, by name, as values that can be compared."""
    found = {}
    for path, module in design.named_modules():
        kept = {name: each for name, each in vars(module).items() if name not in _OF_MODULES}
        for name, each in (kept | kept.pop("_buffers")).items():
            found[f"{path}.{name}".lstrip(".")] = _value(each)
    return found


def _value(each: Any) -> Any:
    if isinstance(each, Tensor):
        return each.shape, each.detach().cpu().flatten().view(torch.uint8).numpy().tobytes()
    if isinstance(each, dict):
        return [(_value(key), _value(value)) for key, value in each.items()]
    if isinstance(each, list | tuple):
        return [_value(one) for one in each]
    return each if isinstance(each, str | int | float | bool | None) else id(each)


def changed(before: dict[str, Any], after: dict[str, Any]) -> str:
    """The names of what is not as it was, empty where all is."""
    return ", ".join(n for n in {**before, **after} if before.get(n) != after.get(n))
