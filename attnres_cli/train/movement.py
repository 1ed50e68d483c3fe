"""How far the parameters that a design adds have moved, of how far their learning rate lets them.

| measure   | of each parameter | definition                                                |
|-----------|-------------------|-----------------------------------------------------------|
| moved     | mean over numbers | |p_t - p_0| / sum of the learning rates of steps 1..t     |
| agreement | mean over numbers | |m_t| / sqrt(v_t), Adam's moments, their bias corrected   |

Adam moves a number by about the learning rate in a step, whatever its gradient's size. So `moved`
is 1 for a number that went one way all the time, and about t^-1/2 for one that went to and fro.
`agreement` says the same of the last ten steps or so: near 1 where their gradients have one sign,
about 0.2 where they are noise. Both near 1 at the end of training: it was still under way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from attnres_cli.config.recipe import Optim
from attnres_cli.nn.residual import Residual
from attnres_cli.train.optimizers import design_parameters, lr_factor, names_of

_MOST = 2**16  # numbers of a parameter that are followed: a mean over more says nothing else


def sampled(tensor: Tensor) -> Tensor:
    """Some numbers of a tensor, always the same ones, as a copy on the CPU."""
    flat = tensor.detach().flatten()
    return flat[:: max(1, len(flat) // _MOST)].float().cpu().clone()


def starts(residual: Residual) -> dict[str, Tensor]:
    """What a design's own parameters are before training, by name; of large ones some numbers."""
    return {name: sampled(each) for name, each in design_parameters(residual).items()}


@torch.no_grad()
def movement(
    began: Mapping[str, Tensor],
    residual: Residual,
    adamw: torch.optim.Optimizer,
    optim: Optim,
    step: int,
    steps: int,
    whole: Callable[[Tensor], Tensor],
) -> dict[str, Any]:
    """The measures of a Probe after `step` of `steps` steps; empty before the first one, and where
    a design adds nothing. `residual` has all its weights; `whole` brings a moment's parts together.
    """
    if not began or not step:
        return {}
    own = {f"residual.{name}": name for name in began}
    scales = {
        own[name]: group["scale"]
        for group in adamw.param_groups
        for name in group["names"]
        if name in own
    }
    factors = sum(lr_factor(optim, each, steps) for each in range(step))
    now, total = design_parameters(residual), {n: optim.lr * scales[n] * factors for n in began}
    moved = [(sampled(now[n]) - p).abs().mean().item() / total[n] for n, p in began.items()]
    parameters = [p for group in adamw.param_groups for p in group["params"]]
    states = {
        own[n]: adamw.state[p] for n, p in zip(names_of(adamw), parameters, strict=True) if n in own
    }
    agreement = [_agreement(states[name], optim, whole) for name in began]
    return {"added": ", ".join(began), "moved": tuple(moved), "agreement": tuple(agreement)}


def _agreement(
    state: Mapping[str, Tensor], optim: Optim, whole: Callable[[Tensor], Tensor]
) -> float:
    if not state:
        return 0.0  # it never had a gradient
    t = state["step"].item()
    m = sampled(whole(state["exp_avg"])) / (1 - optim.beta1**t)
    v = sampled(whole(state["exp_avg_sq"])) / (1 - optim.beta2**t)
    return (m.abs() / v.sqrt().clamp_min(torch.finfo(v.dtype).tiny)).mean().item()
