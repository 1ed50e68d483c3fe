"""The optimisers of a run: which parameters each trains, how fast, and how its state is called."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from attnres_cli.config.recipe import Optim, Recipe
from attnres_cli.nn.addon import Composed
from attnres_cli.nn.model import Transformer
from attnres_cli.nn.residual import Norms, Residual, registry
from attnres_cli.nn.transfer import Factors, Transfer
from attnres_cli.nn.trunk.norm import RMSNorm

Groups = dict[str, list[dict[str, Any]]]
"""By optimiser, in the order of their steps: groups of parameters, each with `names`, what its
`weight_decay` is, by what its rate `scale`s the recipe's, and an `eps` of its own if it has one.
"""


def design_parameters(residual: Residual) -> dict[str, nn.Parameter]:
    """What a design adds, by name. Norms that stand in place of the trunk's are the trunk's own."""
    replaced: set[int] = set()
    if residual.norms is Norms.NONE:
        norms = (module for module in residual.modules() if isinstance(module, RMSNorm))
        replaced = {id(parameter) for norm in norms for parameter in norm.parameters()}
    named = residual.named_parameters()
    return {name: parameter for name, parameter in named if id(parameter) not in replaced}


def transfer_of(recipe: Recipe) -> Transfer | None:
    """How the model stands to the one at which the rate was tuned; None where they are one."""
    optim, model = recipe.optim, recipe.model
    if optim.base is None:
        return None
    depth = model.n_layers / optim.base.n_layers if optim.transfer == "completep" else 1.0
    return Transfer(model.d_model / optim.base.d_model, depth)


def groups_of(model: Transformer, optim: Optim, transfer: Transfer | None = None) -> Groups:
    """What each optimiser trains, where rates are transferred in groups of one rate and epsilon.

    AdamW decays matrices of the trunk. Embedding, gains, and everything that a design adds are not
    decayed, since decay would pull a design towards its own start.

    Muon (Jordan et al. 2024) takes the matrices inside of sublayers, as they lie: q, k and v are
    one, and so are gate and up; stacks of matrices are left to AdamW.
    """
    trunk = {n: p for n, p in model.shared_parameters().items() if p.ndim > 1}
    hidden = [n for n, p in trunk.items() if n.startswith("sublayers") and p.ndim == 2]
    by_muon = hidden if optim.optimizer == "muon" else []
    decayed = [n for n in trunk if not n.startswith("embed") and n not in by_muon]
    rest = [n for n, _ in model.named_parameters() if n not in {*by_muon, *decayed}]
    added = _by_scale(model.residual, optim)
    rest = [name for name in rest if not any(name in names for names in added.values())]
    adamw = [_group(decayed, optim.weight_decay), _group(rest, 0.0)]
    adamw += [_group(names, 0.0, scale) for scale, names in added.items()]
    muon = {"muon.": [_group(by_muon, optim.weight_decay)]} if by_muon else {}
    found = muon | {"adamw.": adamw}
    if transfer is None:
        return found
    return {
        prefix: [each for group in groups for each in _split(group, model, optim, transfer, prefix)]
        for prefix, groups in found.items()
    }


def _by_scale(residual: Residual, optim: Optim) -> dict[float, list[str]]:
    """What a design adds, by the multiple of the rate at which it is trained; nothing where all
    are trained at the rate itself.
    """
    if optim.design_lr_scale == 1 and not optim.part_lr_scale:
        return {}
    own, found = dict(optim.part_lr_scale), dict[float, list[str]]()
    for name in design_parameters(residual):
        scale = optim.design_lr_scale * own.get(part_of(residual, name), 1.0)
        found.setdefault(scale, []).append(f"residual.{name}")
    return found


def part_of(residual: Residual, name: str) -> str:
    """The stream or add-on, by its name in the registry, that a parameter of a design is of."""
    if type(residual) is Composed:
        head, _, inner = name.partition(".")
        if head == "addons":
            return inner.partition(".")[0]
        residual = residual.stream
    return next(key for key, cls in registry().items() if type(residual) is cls)


def _split(
    group: Mapping[str, Any], model: Transformer, optim: Optim, transfer: Transfer, prefix: str
) -> Iterator[dict[str, Any]]:
    """A group, divided by what a transfer gives its parameters."""
    parameters, of = dict(model.named_parameters()), dict[Factors, list[str]]()
    for name in group["names"]:
        found = transfer.factors(name, parameters[name], model.residual, muon=prefix == "muon.")
        of.setdefault(found, []).append(name)
    for (rate, eps), names in of.items():
        own = _group(names, group["weight_decay"] / rate, group["scale"] * rate)
        yield own if prefix == "muon." else own | {"eps": optim.eps * eps}


def _group(names: Sequence[str], weight_decay: float, scale: float = 1.0) -> dict[str, Any]:
    return {"names": list(names), "weight_decay": weight_decay, "scale": scale}


def make_optimizers(
    model: Transformer, optim: Optim, transfer: Transfer | None = None
) -> list[torch.optim.Optimizer]:
    """AdamW, and Muon before it if the recipe says so; one lr serves both.

    Muon's updates are scaled by 0.2 sqrt(max(rows, columns)), to the size that those of AdamW have
    (Liu et al. 2025, arXiv 2502.16982).
    """
    parameters = dict(model.named_parameters())
    found: list[torch.optim.Optimizer] = []
    for prefix, groups in groups_of(model, optim, transfer).items():
        given = [{**each, "params": [parameters[n] for n in each["names"]]} for each in groups]
        if prefix == "muon.":
            found.append(torch.optim.Muon(given, lr=optim.lr, adjust_lr_fn="match_rms_adamw"))
        else:
            betas = optim.beta1, optim.beta2
            adamw = torch.optim.AdamW(given, lr=optim.lr, betas=betas, eps=optim.eps, fused=True)
            found.append(adamw)
    return found


def set_rate(optimizers: Sequence[torch.optim.Optimizer], lr: float) -> None:
    """Let the next step be at this rate, and at its multiples."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = lr * group["scale"]


def named(optimizers: Sequence[torch.optim.Optimizer]) -> dict[str, torch.optim.Optimizer]:
    """By what the names of their tensors in a checkpoint begin with."""
    return {f"{type(optimizer).__name__.lower()}.": optimizer for optimizer in optimizers}


def names_of(optimizer: torch.optim.Optimizer) -> list[str]:
    """The names of its parameters, in its order."""
    return [name for group in optimizer.param_groups for name in group["names"]]


def by_name(
    tensors: Mapping[str, Tensor], before: Mapping[str, Sequence[str]]
) -> dict[str, Tensor]:
    """Tensors of a checkpoint whose optimisers call parameters by their numbers, as format 2 did.
    `before` are the names of all parameters in each optimiser's order of then.
    """
    found = {}
    for key, tensor in tensors.items():
        first, _, inner = key.partition(".")
        number, _, rest = inner.partition(".")
        prefix = f"{first}."
        is_old = prefix in before and number.isdecimal()
        found[f"{prefix}{before[prefix][int(number)]}.{rest}" if is_old else key] = tensor
    return found


def order_before(model: Transformer, optim: Optim) -> dict[str, list[str]]:
    """The order that checkpoints of format 2 are in: nothing had a rate of its own."""
    alike = optim.model_copy(update={"design_lr_scale": 1.0, "part_lr_scale": ()})
    groups = groups_of(model, alike)
    return {prefix: [n for each in held for n in each["names"]] for prefix, held in groups.items()}


def lr_factor(optim: Optim, step: int, steps: int) -> float:
    """The factor on lr for step 0..steps-1: warm-up, then cosine, or at last a linear fall."""
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


def steady_steps(optim: Optim, steps: int) -> int:
    """After how many steps a run is still that of any longer one with as many steps of warm-up and
    this schedule; 0 where it falls from the warm-up on, as a cosine does.
    """
    if optim.final_lr_fraction == 1:
        return steps
    found = steps - max(1, round(optim.decay_fraction * steps))
    is_level = optim.schedule == "wsd" and found >= math.ceil(optim.warmup_fraction * steps)
    return found if is_level else 0
