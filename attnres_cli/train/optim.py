"""The optimiser and its schedule, the same for every arm."""

from __future__ import annotations

import math

import torch

from attnres_cli.config.recipe import Optim
from attnres_cli.nn.model import Transformer


def make_optimizers(model: Transformer, optim: Optim) -> list[torch.optim.Optimizer]:
    """AdamW, and Muon before it if the recipe says so; one lr serves both.

    AdamW has two groups: matrices of the trunk are decayed; embedding, gains, and everything that
    a design adds are not, since decay would pull a design towards its own start.

    Muon (Jordan et al. 2024) takes the matrices inside of sublayers, as they lie: q, k and v are
    one, and so are gate and up. Its updates are scaled by 0.2 sqrt(max(rows, columns)), to the size
    that those of AdamW have (Liu et al. 2025, arXiv 2502.16982).
    """
    trunk = {n: p for n, p in model.shared_parameters().items() if p.ndim == 2}
    hidden = [p for n, p in trunk.items() if n.startswith("sublayers")]
    by_muon = hidden if optim.optimizer == "muon" else []
    taken = {id(parameter) for parameter in by_muon}
    decayed = [p for n, p in trunk.items() if not n.startswith("embed") and id(p) not in taken]
    taken |= {id(parameter) for parameter in decayed}
    rest = [parameter for parameter in model.parameters() if id(parameter) not in taken]
    groups = [
        {"params": decayed, "weight_decay": optim.weight_decay},
        {"params": rest, "weight_decay": 0.0},
    ]
    adamw = torch.optim.AdamW(
        groups, lr=optim.lr, betas=(optim.beta1, optim.beta2), eps=optim.eps, fused=True
    )
    if not by_muon:
        return [adamw]
    decay = optim.weight_decay
    muon = torch.optim.Muon(
        by_muon, lr=optim.lr, weight_decay=decay, adjust_lr_fn="match_rms_adamw"
    )
    return [muon, adamw]


def lr_factor(optim: Optim, step: int, steps: int) -> float:
    """The factor on lr for step 0..steps-1: a linear warm-up, then cosine, or constant and, over
    the last decay_fraction of the steps, a linear fall (wsd).
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
