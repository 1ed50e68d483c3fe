"""What a study keeps of the tokens that runs saw. No torch, no SQL."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from attnres_cli.config.sections import TEXTS


@dataclass(frozen=True)
class DataDescription:
    """What is kept of the tokens a run saw. The reference lines are losses on validation tokens of
    tables fitted to training tokens, nats per token: see data/reference.py. Both are None in a
    study of an attnres that fitted them to validation tokens.
    """

    fingerprint: str
    source: str
    n_bytes: int
    vocab_size: int
    train_tokens: int
    val_tokens: int
    unigram_loss: float | None = None
    bigram_loss: float | None = None  # None too where there is none, or it gains nothing
    floor: float | None = None  # least loss on evaluation windows; known of generated tasks
    zlib_bits: float | None = None  # per byte of the validation text's first MiB; None: no text
    xz_bits: float | None = None
    split: str | None = None  # what trains and what validates, and what was left out
    path: str | None = None  # as the recipe has it, where a study keeps it
    val_path: str | None = None

    @property
    def name(self) -> str | None:
        """The last part of its path that is no pattern; None without a path."""
        parts = [] if self.path is None else Path(self.path).absolute().parts[1:]
        return next((part for part in reversed(parts) if not {*"*?["} & {*part}), None)

    @property
    def called(self) -> str:
        """The source, and the name of what it read, with the fingerprint."""
        return f"{' '.join(filter(None, (self.source, self.name)))} ({self.fingerprint})"

    @property
    def is_bytes(self) -> bool:
        """Whether a token is a byte of text, so that losses are those of bytes too."""
        is_one_each = self.n_bytes == self.train_tokens + self.val_tokens
        return self.source in TEXTS and self.vocab_size == 256 and is_one_each

    @property
    def size(self) -> str:
        """How much there is, in words."""
        if not self.train_tokens:
            return f"generated without end, {self.val_tokens:,} tokens for validation"
        unit = "bytes" if self.is_bytes else "tokens"
        all_of_them = self.train_tokens + self.val_tokens
        return f"{all_of_them:,} {unit}, {self.val_tokens:,} of them for validation"
