"""A plain trainer of one GPT, in one file and with torch and numpy alone: what one would write.

    python benchmarks/plain.py FILE.bin --vocab-size 50257
    python benchmarks/plain.py FILE.bin --vocab-size 50257 --device cuda --dtype bfloat16 --compile

No study, no probes, no checkpoints. The model has the operations of nanoGPT (Karpathy 2022) by its
defaults: LayerNorm, learned positions, causal attention, an MLP of four times the width with GELU,
biases, a head tied to the embedding. Tokens are uint16.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Config:
    """Sizes of the model, and how it is trained."""

    n_layers: int = 4
    d_model: int = 256
    n_heads: int = 4
    seq_len: int = 256
    vocab_size: int = 4096
    batch_size: int = 8
    steps: int = 100
    lr: float = 1e-3
    weight_decay: float = 0.1
    clip: float = 1.0
    warmup: int = 5
    seed: int = 0
    log_every: int = 10
    device: str = "cpu"
    dtype: str = "float32"
    compile: bool = False


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        d = config.d_model
        self.n_heads = config.n_heads
        self.norm_1, self.norm_2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        batch, time_, width = x.shape
        q, k, v = self.qkv(self.norm_1(x)).split(width, dim=2)
        q, k, v = (t.view(batch, time_, self.n_heads, -1).transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, time_, width))
        return x + self.down(F.gelu(self.up(self.norm_2(x))))


class GPT(nn.Module):
    """Tokens and targets to the loss."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.embed = nn.Embedding(config.vocab_size, config.d_model)
        self.positions = nn.Embedding(config.seq_len, config.d_model)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_layers))
        self.norm = nn.LayerNorm(config.d_model)
        self.head = nn.Linear(config.d_model, config.vocab_size, bias=False)
        self.head.weight = self.embed.weight
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                depth = 2 * config.n_layers if name.endswith(("out.weight", "down.weight")) else 1
                nn.init.normal_(parameter, std=0.02 * depth**-0.5)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Mean loss in nats per token."""
        x = self.embed(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.reshape(-1))


def adamw(model: nn.Module, lr: float, weight_decay: float) -> torch.optim.AdamW:
    """AdamW that decays all but biases and gains; fused on a GPU alone, as nanoGPT has it."""
    decayed = [p for p in model.parameters() if p.ndim >= 2]
    rest = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": decayed, "weight_decay": weight_decay},
              {"params": rest, "weight_decay": 0.0}]  # fmt: skip
    fused = {"fused": True} if decayed[0].is_cuda else {}
    return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95), **fused)


class Plain:
    """The model, its optimiser, its data, and the loop over them."""

    def __init__(self, config: Config, data: Path) -> None:
        torch.manual_seed(config.seed)
        self.config, self.done = config, 0
        self.data = np.memmap(data, dtype=np.uint16, mode="r")
        self.draw = np.random.default_rng(config.seed)
        self.model = GPT(config).to(config.device)
        self.optimizer = adamw(self.model, config.lr, config.weight_decay)
        self.forward = torch.compile(self.model) if config.compile else self.model
        kind = torch.device(config.device).type
        bf16 = config.dtype == "bfloat16"
        self.autocast = torch.autocast(kind, torch.bfloat16) if bf16 else contextlib.nullcontext()
        self.next = self.batch()

    def batch(self) -> tuple[Tensor, Tensor]:
        """Inputs and targets (B, T) from random places."""
        size, length = self.config.batch_size, self.config.seq_len
        starts = self.draw.integers(0, len(self.data) - length, size=size)
        rows = np.stack([self.data[start : start + length + 1] for start in starts])
        windows = torch.from_numpy(rows.astype(np.int64))
        if self.config.device.startswith("cuda"):
            windows = windows.pin_memory().to(self.config.device, non_blocking=True)
        return windows[:, :-1], windows[:, 1:]

    def lr(self) -> float:
        """Linear warm-up, then cosine to a tenth."""
        config, step = self.config, self.done
        if step < config.warmup:
            return config.lr * (step + 1) / config.warmup
        part = (step - config.warmup) / max(1, config.steps - config.warmup)
        return config.lr * (0.1 + 0.45 * (1 + math.cos(math.pi * min(1.0, part))))

    def train(self, n_steps: int) -> float:
        """Train so many steps; the loss of the last one, which waits for the device."""
        for _ in range(n_steps):
            for group in self.optimizer.param_groups:
                group["lr"] = self.lr()
            with self.autocast:
                loss = self.forward(*self.next)
            self.next = self.batch()  # while the device computes
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            self.done += 1
        return loss.item()


def main() -> None:
    """Train on a file of tokens and print what a line of a log would say."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    for name, value in vars(Config()).items():
        flag = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            parser.add_argument(flag, action="store_true")
        else:
            parser.add_argument(flag, type=type(value), default=value)
    given = vars(parser.parse_args())
    plain = Plain(Config(**{key: value for key, value in given.items() if key != "data"}),
                  given["data"])  # fmt: skip
    config = plain.config
    while plain.done < config.steps:
        n_steps = min(config.log_every, config.steps - plain.done)
        started = time.perf_counter()
        loss = plain.train(n_steps)
        seconds = (time.perf_counter() - started) / n_steps
        speed = config.batch_size * config.seq_len / seconds
        print(f"step {plain.done} loss {loss:.4f} {1000 * seconds:.1f} ms {speed:,.0f} tokens/s")


if __name__ == "__main__":
    main()
