"""A plain trainer of one GPT, in one file and with torch and numpy alone: what one would write.

    python benchmarks/plain.py FILE.bin --vocab-size 50257
    python benchmarks/plain.py FILE.bin --vocab-size 50257 --device cuda --dtype bfloat16 --compile

No study, no probes, no checkpoints. The model is what `standard` is, written without a contract for
residual designs: RMSNorm, rotary positions, causal attention, GELU or SwiGLU. Tokens are uint16.
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
    d_ff: int = 1024
    seq_len: int = 256
    vocab_size: int = 4096
    mlp: str = "gelu"
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
        self.n_heads, self.gated = config.n_heads, config.mlp == "swiglu"
        self.norm_1 = nn.RMSNorm(d, eps=1e-6)
        self.qkv = nn.Linear(d, 3 * d, bias=False)
        self.out = nn.Linear(d, d, bias=False)
        self.norm_2 = nn.RMSNorm(d, eps=1e-6)
        self.up = nn.Linear(d, config.d_ff * (2 if self.gated else 1), bias=False)
        self.down = nn.Linear(config.d_ff, d, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        batch, time_, width = x.shape
        q, k, v = self.qkv(self.norm_1(x)).split(width, dim=2)
        q, k, v = (t.view(batch, time_, self.n_heads, -1).transpose(1, 2) for t in (q, k, v))
        q, k = rotated(q, cos, sin), rotated(k, cos, sin)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, time_, width))
        u = self.up(self.norm_2(x))
        if self.gated:
            gate, up = u.chunk(2, dim=-1)
            return x + self.down(F.silu(gate) * up)
        return x + self.down(F.gelu(u))


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Queries or keys (B, H, T, d_head) at their positions."""
    cos, sin = cos.to(x.dtype), sin.to(x.dtype)
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)


class GPT(nn.Module):
    """Tokens and targets to the loss."""

    cos: Tensor
    sin: Tensor

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.embed = nn.Embedding(config.vocab_size, config.d_model)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_layers))
        self.norm = nn.RMSNorm(config.d_model, eps=1e-6)
        self.head = nn.Linear(config.d_model, config.vocab_size, bias=False)
        half = config.d_model // config.n_heads // 2
        frequency = 10_000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
        angle = torch.arange(config.seq_len, dtype=torch.float64)[:, None] * frequency
        self.register_buffer("cos", angle.cos().float(), persistent=False)
        self.register_buffer("sin", angle.sin().float(), persistent=False)
        nn.init.normal_(self.head.weight, std=0.02)
        for block in self.blocks:
            for layer in (block.out, block.down):
                nn.init.normal_(layer.weight, std=(layer.in_features * 2 * config.n_layers) ** -0.5)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Mean loss in nats per token."""
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.view(-1, logits.size(-1)).float(), targets.reshape(-1))


class Plain:
    """The model, its optimiser, its data, and the loop over them."""

    def __init__(self, config: Config, data: Path) -> None:
        torch.manual_seed(config.seed)
        self.config, self.done = config, 0
        self.data = np.memmap(data, dtype=np.uint16, mode="r")
        self.draw = np.random.default_rng(config.seed)
        self.model = GPT(config).to(config.device)
        named = list(self.model.named_parameters())
        decayed = [p for name, p in named if p.ndim == 2 and not name.startswith("embed")]
        rest = [p for name, p in named if p.ndim < 2 or name.startswith("embed")]
        self.optimizer = torch.optim.AdamW(
            [{"params": decayed, "weight_decay": config.weight_decay},
             {"params": rest, "weight_decay": 0.0}],
            lr=config.lr, betas=(0.9, 0.95), fused=True,
        )  # fmt: skip
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
