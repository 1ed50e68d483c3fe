"""A model trained by attnres as a model of transformers. `attnres runs export --to hf` writes this
file beside the weights, and `from_pretrained(FOLDER, trust_remote_code=True)` runs it.

It needs the package attnres_cli, installed from its repository: its trunk and designs compute the
model, as they did when it was trained, and need torch alone.

Rows of a batch may begin with padding, which `attention_mask` tells. Rows that begin at one place
go through the model together, without their padding: n beginnings take n calls, every row has the
numbers that it has alone, and neither attentions nor states of fixed size see a mask.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.utils import can_return_tuple

from attnres_cli.nn import code, plugins
from attnres_cli.nn.exported import check, damaged, model_of
from attnres_cli.nn.model import Transformer, init_weights
from attnres_cli.nn.variant import parse

_SIZES = {
    "vocab_size": "vocab_size",
    "hidden_size": "d_model",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "max_position_embeddings": "seq_len",
    "tie_word_embeddings": "tie_embeddings",
}
"""What transformers calls what a shape has."""


class AttnResConfig(PretrainedConfig):
    """The shape and the variant that the model is built of, and all that is known of the run."""

    model_type = "attnres"

    def __init__(
        self, shape: dict[str, Any] | None = None, variant: str = "standard", **known: Any
    ) -> None:
        self.shape, self.variant = shape or {}, variant
        sizes = {theirs: self.shape[ours] for theirs, ours in _SIZES.items() if self.shape}
        super().__init__(**(known | sizes))


class Group(NamedTuple):
    """Rows of a batch that begin at one place."""

    rows: Tensor  # their numbers, rising
    begin: int  # tokens of padding before
    caches: Sequence[object]  # one per sublayer; none where nothing is kept


class Cache:
    """What sublayers keep of the `seen` tokens so far, padding among them, of `length` at most."""

    is_compileable = False

    def __init__(self, length: int) -> None:
        self.length, self.seen = length, 0
        self.groups: list[Group] = []

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Tokens so far."""
        return self.seen

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Each row becomes that of another beam of the same prompt."""
        for group in self.groups:
            taken = torch.searchsorted(group.rows, beam_idx[group.rows])
            for cache in group.caches:
                if cache is not None:
                    vars(cache).update({k: _rows_of(v, taken) for k, v in vars(cache).items()})


class AttnResForCausalLM(PreTrainedModel, GenerationMixin):
    """The trunk around its design, as it was trained."""

    config_class = AttnResConfig
    base_model_prefix = "model"
    _tied_weights_keys = {"model.head.weight": "model.embed.weight"}  # noqa: RUF012
    _supports_sdpa = True
    _is_stateful = True  # a cache takes no token back, which assisted decoding would ask

    def __init__(self, config: AttnResConfig) -> None:
        super().__init__(config)
        self.model, self._tables = _built(config)
        self._is_read = self.model.embed.weight.is_meta  # from a file, otherwise it is a fresh one
        if not self._is_read:
            init_weights(self.model, seed=0)
        self.post_init()

    @classmethod
    def from_pretrained(cls, name: Any, *arguments: Any, **known: Any) -> Any:
        """As `PreTrainedModel` does it. Raises ExportError for a folder that is damaged."""
        if (Path(name) / "model.safetensors").is_file():
            check(Path(name))
        try:
            return super().from_pretrained(name, *arguments, **known)
        except (SafetensorError, RuntimeError, KeyError) as error:
            if type(error) is not RuntimeError and isinstance(error, RuntimeError):
                raise  # of the device, as where its memory ends
            raise damaged(name, error) from error

    def save_pretrained(
        self, save_directory: Any, is_main_process: bool = True, **known: Any
    ) -> Any:
        """As `PreTrainedModel` does it, with the files of a plugin's design beside it."""
        super().save_pretrained(save_directory, is_main_process, **known)
        for cls in parse(self.config.variant).classes if is_main_process else ():
            plugin = plugins.file_of(cls.__module__)
            for file in code.files_of(cls) if plugin else ():
                copy = Path(save_directory) / file.relative_to(Path(str(plugin)).parent)
                if not (copy.exists() and copy.samefile(file)):
                    copy.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(file, copy)

    def resize_token_embeddings(
        self, new_num_tokens: int | None = None, pad_to_multiple_of: int | None = None, **_: Any
    ) -> nn.Module:
        """The embedding as it is. Raises ValueError for another size, before anything changes."""
        size = self.config.vocab_size
        if new_num_tokens not in (None, size) or size % (pad_to_multiple_of or 1):
            raise ValueError(f"the model has {size} tokens, which cannot change: add none")
        return self.get_input_embeddings()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: Cache | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
    ) -> CausalLMOutputWithPast:
        """Logits (B, T, vocab_size) of tokens (B, T) that follow those in the cache, or of the last
        `logits_to_keep` of them; where there is padding they mean nothing. With labels, which are
        the tokens themselves or -100, also their mean loss; those predicted from padding are left
        out.

        Raises ValueError for more tokens than positions, and for a mask with padding elsewhere than
        before a row's tokens or, without a cache, after.
        """
        cache = past_key_values
        if cache is None and use_cache:
            cache = Cache(self.config.max_position_embeddings)
        hidden = self._hidden(input_ids, attention_mask, cache)
        last = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.model.head(hidden[:, last])
        loss = None
        if labels is not None:
            if attention_mask is not None:
                labels = _predicted(labels, attention_mask)
            loss = self.loss_function(logits, labels, vocab_size=self.config.vocab_size)
        return CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=cache)

    def _hidden(self, tokens: Tensor, mask: Tensor | None, cache: Cache | None) -> Tensor:
        """What the head sees (B, T, D), zeros for padding before a row."""
        seen, time = 0 if cache is None else cache.seen, tokens.shape[1]
        _refuse(seen + time, mask, self.config.max_position_embeddings, cache)
        groups = cache.groups if cache is not None and seen else _groups(tokens, mask)
        if cache is not None and not seen:
            room = [self.model.caches(cache.length - group.begin) for group in groups]
            groups = [g._replace(caches=kept) for g, kept in zip(groups, room, strict=True)]
            cache.groups = groups
        if cache is not None:
            cache.seen += time
        if len(groups) == 1 and groups[0].begin == 0:
            return self.model.hidden(tokens, groups[0].caches)
        out = None
        for rows, begin, caches in groups:
            skipped = 0 if seen else begin
            found = self.model.hidden(tokens[rows, skipped:], caches)
            if out is None:
                out = found.new_zeros(*tokens.shape, found.shape[-1])
            out[rows, skipped:] = found
        assert out is not None
        return out

    def _prepare_cache_for_generation(
        self,
        generation_config: Any,
        model_kwargs: dict[str, Any],
        generation_mode: Any,
        batch_size: int,
        max_cache_length: int,
    ) -> None:
        """Put a cache for so many tokens where `forward` finds it."""
        if generation_config.cache_implementation is not None:
            raise ValueError(
                f"cache_implementation={generation_config.cache_implementation!r}: the model's "
                "sublayers make their own caches, leave it out"
            )
        if model_kwargs.get("past_key_values") is None and generation_config.use_cache:
            model_kwargs["past_key_values"] = Cache(max_cache_length)

    def _init_weights(self, module: nn.Module) -> None:
        if self._is_read:  # what the file lacks, of which transformers warns
            super()._init_weights(module)
        for name, table in self._tables.get(module, {}).items():
            module.get_buffer(name).copy_(table)

    def get_input_embeddings(self) -> nn.Module:
        """The embedding."""
        return self.model.embed

    def get_output_embeddings(self) -> nn.Module:
        """The head."""
        return self.model.head


def _refuse(total: int, mask: Tensor | None, n_positions: int, cache: Cache | None) -> None:
    if total > n_positions:
        raise ValueError(f"{total} tokens, but the model has {n_positions} positions")
    if cache is not None and total > cache.length:
        raise ValueError(f"{total} tokens, but this cache was made for {cache.length}")
    if mask is None:
        return
    if mask.ndim != 2 or mask.shape[1] != total:
        raise ValueError(f"attention_mask must be (batch, {total}), got {tuple(mask.shape)}")
    if cache is not None and not mask[:, cache.seen or total - 1 :].all():
        raise ValueError("attention_mask ends with padding: pad on the left, a cache follows")


def _groups(tokens: Tensor, mask: Tensor | None) -> list[Group]:
    """All rows, by where they begin. Raises ValueError for padding between tokens."""
    everyone = torch.arange(len(tokens), device=tokens.device)
    if mask is None:
        return [Group(everyone, 0, ())]
    is_token = mask != 0
    before = (is_token.cumsum(1) == 0).sum(1)
    after = (is_token.flip(1).cumsum(1) == 0).sum(1)
    if ((before + is_token.sum(1) + after) != tokens.shape[1]).any():
        raise ValueError("attention_mask has a row without tokens, or padding between tokens")
    return [Group(everyone[before == begin], begin, ()) for begin in before.unique().tolist()]


def _predicted(labels: Tensor, mask: Tensor) -> Tensor:
    """Labels (B, T) without those that stand after padding; the mask may begin before them."""
    is_padding = mask[:, -labels.shape[1] : -1] == 0
    return torch.cat([labels[:, :1], labels[:, 1:].masked_fill(is_padding, -100)], dim=1)


def _rows_of(kept: Any, rows: Tensor) -> Any:
    """These rows of all tensors in what a cache keeps, which have the batch first."""
    if isinstance(kept, Tensor):
        return kept[rows]
    return type(kept)(_rows_of(part, rows) for part in kept) if isinstance(kept, tuple) else kept


def _built(config: AttnResConfig) -> tuple[Transformer, dict[nn.Module, dict[str, Tensor]]]:
    """The model, and tables of its modules, which they compute and no file stores.

    transformers builds models on the meta device and leaves tables empty: here parameters alone are
    moved to it, as they are made, and tables are kept to be filled in.
    """
    folder = Path(config.name_or_path or ".")
    if getattr(config, "plugin", None) and not folder.is_dir():
        raise ValueError(f"a plugin's design is loaded from a folder of this machine, not {folder}")
    is_meta = torch.get_default_device().type == "meta"
    moved: Any = _to_meta  # torch's annotation leaves out what a hook may return
    hook = register_module_parameter_registration_hook(moved) if is_meta else None
    try:
        with torch.device("cpu") if is_meta else nullcontext():
            model = model_of(config.to_dict(), folder, plugin=True)
    finally:
        if hook is not None:
            hook.remove()
    tables = {
        module: {
            name: buffer.clone()
            for name, buffer in module.named_buffers(recurse=False)
            if name in module._non_persistent_buffers_set  # noqa: SLF001  torch has no other
        }
        for module in model.modules()
    }
    return model, tables


def _to_meta(_module: nn.Module, _name: str, made: nn.Parameter | None) -> nn.Parameter | None:
    if made is None or made.is_meta:
        return made
    return nn.Parameter(made.to("meta"), made.requires_grad)
