"""Which options of attnres exclude each other, and why."""

from __future__ import annotations

from .sources import refuse


def size_of(n_sublayers: int, block_size: int, n_blocks: int | None) -> int:
    """Outputs per block, of `block_size` or `n_blocks`. Raises VariantError for both."""
    if n_blocks is None:
        return block_size
    refuse(
        (n_blocks < 1, f"n_blocks must be at least 1, got {n_blocks}"),
        (block_size != 1, "n_blocks sets block_size: give one of them"),
    )
    return -(-n_sublayers // n_blocks)


def refuse_without_keys(
    key_norm: bool, head_norm: bool, query: str, rank: int | None, prior: str, norm: str
) -> None:
    """Raise VariantError for what static scores exclude."""
    given = {"key_norm": not key_norm, "head_norm": head_norm, "query": query != "learned"}
    given |= {"rank": rank is not None, "prior": prior != "none"}
    names = ", ".join(name for name, here in given.items() if here)
    alone = "score=static is one scalar for every site and source, without query, key and prior"
    by_softmax = "score=static is normalised by softmax, or not: norm=softmax, sigmoid or none"
    refuse((bool(names), f"{alone}: drop {names}"), (norm == "sigmoid_normalised", by_softmax))


def refuse_keys(
    d_model: int, heads: int, key_norm: bool, head_norm: bool, query: str, rank: int | None
) -> None:
    """Raise VariantError for keys and queries that cannot be."""
    if rank is not None:
        refuse(
            (not 1 <= rank <= d_model, f"rank must be in 1..{d_model} (d_model), got {rank}"),
            (rank % heads > 0, f"heads slice the keys too: {heads} do not divide rank {rank}"),
            (not key_norm, "keys of low rank are always normalised: drop rank or key_norm=off"),
        )
    if head_norm:
        whole = "head_norm=on is of keys of full width that are normalised: drop it"
        refuse(
            (heads == 1, "head_norm=on normalises each head's slice: set heads, or drop it"),
            (not key_norm or rank is not None, whole),
        )
    learned = f"keys of low rank have learned queries: drop query={query}"
    refuse((query != "learned" and rank is not None, learned))


def refuse_weights(norm: str, prior: str, size: int) -> None:
    """Raise VariantError for a prior or norm that means nothing here."""
    alone = "where every source is one output: set block_size or drop it"
    under = "prior=count multiplies weights by n under a softmax, not under a sigmoid: drop one"
    refuse(
        (prior == "count" and size == 1, f"prior=count adds log 1 = 0 {alone}"),
        (norm == "none", "norm=none is for score=static: queries need one"),
        (prior == "count" and norm != "softmax", under),
    )
