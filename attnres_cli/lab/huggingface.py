"""What lies beside an exported run's weights for transformers to read them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attnres_cli.config.sections import TEXTS
from attnres_cli.data import tokenizers
from attnres_cli.errors import DataError, UsageError
from attnres_cli.files import path_of, read_text

MODEL = "modeling_attnres.py"
_MOST_TOKENIZER = 2**28  # bytes


def files(config: Mapping[str, Any]) -> tuple[dict[str, str], str]:
    """Texts by the names of their files, of a run of this config.json; and why none of them is a
    tokenizer's, empty where one is.
    """
    classes = {"AutoConfig": "AttnResConfig", "AutoModelForCausalLM": "AttnResForCausalLM"}
    whole = {
        **config,
        "model_type": "attnres",
        "architectures": ["AttnResForCausalLM"],
        "auto_map": {auto: f"{Path(MODEL).stem}.{name}" for auto, name in classes.items()},
        "dtype": "float32",
    }
    code = Path(__file__).with_name(MODEL).read_text(encoding="utf-8")
    texts = {"config.json": json.dumps(whole, indent=2) + "\n", MODEL: code}
    try:
        texts["tokenizer.json"] = _tokenizer(config["recipe"]["data"], config["shape"])
    except UsageError as error:
        return texts, str(error)
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": config["shape"]["seq_len"],
        "model_input_names": ["input_ids", "attention_mask"],
        "clean_up_tokenization_spaces": False,
    }
    if end := _end(config["recipe"]["data"]):
        settings["eos_token"] = end
    texts["tokenizer_config.json"] = json.dumps(settings, indent=2) + "\n"
    return texts, ""


def _tokenizer(data: Mapping[str, Any], shape: Mapping[str, Any]) -> str:
    """The text of tokenizer.json. Raises UsageError where there is none."""
    name = data["tokenizer"] or "bytes"
    if data["source"] not in TEXTS:
        raise UsageError(f"the data are tokens ({data['source']}), not text")
    if name == "bytes":
        return of_bytes()
    if not name.endswith(".json"):
        raise UsageError(f"data.tokenizer is {name}, not a file of tokenizers")
    text = read_text(path_of(name, "tokenizer"), "tokenizer", UsageError, _MOST_TOKENIZER)
    if vocabulary(text) != shape["vocab_size"]:
        raise UsageError(f"{name} is not the file that the run had, it has other tokens")
    return _without_additions(text)


def _without_additions(text: str) -> str:
    """The text of a file of `tokenizers` that adds no tokens to a text, as in training."""
    held = json.loads(text)
    if (held.get("post_processor") or {}).get("type") in (None, "ByteLevel"):
        return text
    return json.dumps(held | {"post_processor": None}, indent=1) + "\n"


def _end(data: Mapping[str, Any]) -> str:
    """The special token that a run has seen between texts; empty without one."""
    if data["source"] == "stdlib" or data.get("separator") is not None:
        return ""
    try:
        end = tokenizers.of(data["tokenizer"]).end
    except DataError:  # as without the package, which reads it later
        return ""
    return end[1] if end else ""


def vocabulary(text: str) -> int:
    """Tokens of the text of a file of `tokenizers`, by the largest; 0 of any other text."""
    try:
        held = json.loads(text)
        vocab = held["model"]["vocab"]  # token -> number, or pairs of token and score
        numbers = vocab.values() if isinstance(vocab, dict) else range(len(vocab))
        return 1 + max([*numbers, *(token["id"] for token in held.get("added_tokens", ()))])
    except (ValueError, TypeError, KeyError, RecursionError):
        return 0


def of_bytes() -> str:
    """tokenizer.json of tokens that are UTF-8's bytes: token n is byte n, written as the character
    that `tokenizers` has for it.
    """
    seen = [*range(ord("!"), 127), *range(161, 173), *range(174, 256)]  # as they are; others from
    unseen = [byte for byte in range(256) if byte not in seen]  # U+0100 on
    characters = {byte: chr(byte) for byte in seen}
    characters |= {byte: chr(256 + number) for number, byte in enumerate(unseen)}
    level = {
        "type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False,
    }  # fmt: skip
    model: dict[str, Any] = {
        "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
        "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
        "ignore_merges": False, "vocab": {characters[byte]: byte for byte in range(256)},
        "merges": [],
    }  # fmt: skip
    whole: dict[str, Any] = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [],
        "normalizer": None, "pre_tokenizer": level, "post_processor": None, "decoder": level,
        "model": model,
    }  # fmt: skip
    return json.dumps(whole, indent=1) + "\n"
