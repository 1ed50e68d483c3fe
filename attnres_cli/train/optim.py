"""The optimiser and its schedule, the same for every arm."""

from __future__ import annotations

import math

import torch

from attnres_cli.model import Transformer
from attnres_cli.recipe import Optim


def make_optimizer(model: Transformer, optim: Optim) -> torch.optim.Optimizer:
    """AdamW in two groups: matrices of the trunk are decayed; embedding, gains, and everything
    that a design adds are not, since decay would pull a design towards its own start.
    """
    decayed = [
        parameter
        for name, parameter in model.shared_parameters().items()
        if parameter.ndim == 2 and not name.startswith("embed")
    ]
    taken = {id(parameter) for parameter in decayed}
    rest = [parameter for parameter in model.parameters() if id(parameter) not in taken]
    groups = [
        {"params": decayed, "weight_decay": optim.weight_decay},
        {"params": rest, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        groups, lr=optim.lr, betas=(optim.beta1, optim.beta2), eps=optim.eps, fused=True
    )


def lr_factor(optim: Optim, step: int, steps: int) -> float:
    """The factor on lr for step 0..steps-1: linear warm-up, then cosine, or constant and a linear
    fall over the last decay_fraction of the steps (wsd).
    """
    warmup = math.ceil(optim.warmup_fraction * steps)
    if step < warmup:
        return (step + 1) / warmup
    floor = optim.final_lr_fraction
    if optim.schedule == "cosine":
        progress = (step - warmup) / max(1, steps - 1 - warmup)
        return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * progress))
    decay = max(1, round(optim.decay_fraction * steps))
    remaining = (steps - 1 - step) / decay
    return floor + (1 - floor) * min(1.0, remaining)
