"""A Hugging Face causal model as the loop sees it: tokens at positions in, logits out.

Knows devices, dtypes, masks and heads; does not know what is drafted, verified or sampled.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from decoder.clock import clock_for
from decoder.models.cache import PositionCache, cache_argument, check_rollback
from decoder.models.features import FeatureTape, feature_modules, recorded
from decoder.models.inputs import Inputs, attention_mask, grouped_heads, tree_mask
from decoder.trees import Tree

# Families whose ragged batches are tested. Any other decoder-only model runs too, one row at a time, after a probe.
BATCHED_FAMILIES = frozenset(
    "llama mistral qwen2 qwen3 gemma gemma2 gemma3 gemma3_text gpt2 gpt_neox opt phi phi3 smollm3 "
    "starcoder2 olmo2 granite stablelm cohere".split()
)
# Tested one row at a time.
SINGLE_FAMILIES = frozenset("falcon bloom".split())


def context_length(model: Any) -> int | None:
    """Positions the model was built for, or None where its configuration names no limit.

    LongRoPE turns every key anew beyond its original length; cached keys would be wrong there, so the context ends.
    """
    config = model.config.get_text_config(decoder=True)
    rope = getattr(config, "rope_parameters", None) or {}
    if isinstance(rope, dict) and rope.get("rope_type") == "longrope":
        original = rope.get("original_max_position_embeddings") or getattr(
            config, "original_max_position_embeddings", None
        )
        if original:
            return int(original)
    for name in ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length"):
        value = getattr(config, name, None)
        if isinstance(value, int) and value > 0:
            return value
    return None


def input_device(model: Any) -> torch.device:
    """Where token ids must be: the device of the embedding (models may be spread over several)."""
    weight = model.get_input_embeddings().weight
    if weight.device.type != "meta":
        return torch.device(weight.device)
    hook = getattr(model.get_input_embeddings(), "_hf_hook", None)  # offloaded by accelerate
    device = getattr(hook, "execution_device", None)
    if device is None:
        return torch.device("cpu")
    return torch.device(f"cuda:{device}" if isinstance(device, int) else device)


def check_no_dropout(model: Any, role: str) -> None:
    """A model in training mode draws dropout masks: it has no distribution of its own, and no cache would repeat it.

    Raises:
        ValueError: naming the model and the remedy.
    """
    if not model.training:
        return
    config = model.config.get_text_config(decoder=True)
    rates = [value for name, value in vars(config).items() if name.endswith(("dropout", "pdrop", "dropout_rate"))]
    modules = [module.p for module in model.modules() if isinstance(module, torch.nn.Dropout)]
    if any(isinstance(rate, float) and rate > 0 for rate in (*rates, *modules)):
        raise ValueError(
            f"{role} {type(model).__name__} is in training mode with dropout, so that its law changes with every "
            "forward; call .eval() on it first."
        )


class CausalModel:
    """A loaded model plus what the loop must know of it. Shared by all runs; holds no run's state.

    role: "target" or "draft", used in messages.
    vocab_size: V, at most the head's rows; logits are cut or padded with -inf to it, so that a padded head never
        emits an id the tokenizer lacks. None: as many as the head has.
    """

    def __init__(self, model: Any, role: str, vocab_size: int | None = None, banned: Sequence[int] = ()) -> None:
        check_rollback(model, role)
        check_no_dropout(model, role)
        self.model = model
        self.role = role
        self.head_size = int(model.get_output_embeddings().weight.shape[0])
        self.embedding_size = int(model.get_input_embeddings().weight.shape[0])
        self.vocab_size = self.head_size if vocab_size is None else vocab_size
        self.banned = tuple(banned)
        self.context_length = context_length(model)
        self.device = input_device(model)
        self.clock = clock_for(self.device)
        config = model.config.get_text_config(decoder=True)
        self.layers = int(config.num_hidden_layers)
        self.can_batch = config.model_type in BATCHED_FAMILIES and model.config._attn_implementation in (
            "eager",
            "sdpa",
        )
        self._window = getattr(config, "sliding_window", None)
        types = set(getattr(config, "layer_types", None) or ())
        self._mask_by_type = types if "sliding_attention" in types else None
        self._windowed = self._window is not None and getattr(config, "use_sliding_window", True) and not types
        self._plain_masks = (  # one boolean mask serves all layers
            self.can_batch
            and not self._mask_by_type
            and not self._windowed
            and model.config._attn_implementation == "sdpa"
        )
        self._cache_name = str(cache_argument(model))  # there is one, says `check_rollback`
        parameters = inspect.signature(model.forward).parameters
        self._takes_positions = "position_ids" in parameters
        self._keeps_logits = "logits_to_keep" in parameters
        self._prepared = Inputs(self.context_length, self.device)
        self._banned = torch.tensor(self.banned, dtype=torch.long, device=self.device)
        if config.model_type not in BATCHED_FAMILIES | SINGLE_FAMILIES:
            from decoder.models.probe import check_cached_equals_uncached

            kind = f"{role} {type(model).__name__} (model_type={config.model_type!r})"
            known = min(self.vocab_size, self.embedding_size)
            check_cached_equals_uncached(lambda limit: self.open(1, limit), self._uncached, known, model.dtype, kind)

    def _uncached(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.model(input_ids=tokens.to(self.device), use_cache=False).logits
        return self.fit_vocabulary(logits)

    compilations = 0  # graphs made so far; here none ever

    def warm_up(self, width: int, limit: int, told: Callable[[int], None]) -> None:
        """There is nothing to compile."""

    def open(self, rows: int, limit: int, cache: PositionCache | None = None) -> CausalSession:
        """A run over `rows` rows, none longer than `limit` tokens.

        cache: that of an earlier run, which is continued if it was one of this model.
        """
        if cache is None or cache.model is not self.model:
            cache = PositionCache(self.layers, rows, limit, self.model)
        else:
            cache.extend_limit(limit)
        return CausalSession(self, cache)

    @property
    def trees(self) -> bool:
        """Whether one forward verifies a tree exactly: where masks and positions are taken as they are given."""
        return self.can_batch and self._takes_positions

    def masks(
        self, starts: Sequence[int], count: int, least_slots: int = 0, tree: Tree | None = None
    ) -> Tensor | dict[str, Tensor] | None:
        """Explicit masks over at least so many slots; None lets transformers make the plain causal one."""
        if tree is None and len(set(starts)) == 1 and not least_slots:
            return self._prepared.causal_mask(starts[0], count) if self._plain_masks else None
        kinds = self._mask_by_type or {"sliding_attention" if self._windowed else "full_attention"}
        masks = {}
        for kind in kinds:
            window = self._window if kind == "sliding_attention" else None
            if tree is None:
                seen = attention_mask(starts, count, window, self.device, least_slots)
            else:
                seen = tree_mask(starts, tree, window, self.device)
            if self.model.config._attn_implementation == "eager":  # eager adds its mask to the scores
                dtype = self.model.dtype
                seen = torch.zeros(seen.shape, dtype=dtype, device=self.device).masked_fill_(
                    ~seen, torch.finfo(dtype).min
                )
            masks[kind] = seen
        return masks if self._mask_by_type else masks.popitem()[1]

    def call(
        self,
        tokens: Tensor,
        starts: Sequence[int],
        cache: PositionCache,
        keep: int | Tensor,
        tree: Tree | None = None,
    ) -> Tensor:
        """One forward of tokens [B, m], a chain or the root and the nodes of a tree; logits at the positions `keep`
        names (0: all)."""
        count = tokens.shape[1]
        arguments: dict[str, Any] = {"input_ids": tokens, "use_cache": True, self._cache_name: cache}
        if self._takes_positions:
            prepared = self._prepared
            positions = prepared.positions(starts, count) if tree is None else prepared.tree_positions(starts, tree)
            arguments["position_ids"] = positions
        mask = self.masks(starts, count, cache.pinned, tree)
        if mask is not None:
            arguments["attention_mask"] = mask
        if self._keeps_logits:
            arguments["logits_to_keep"] = keep
        with grouped_heads(self.device):
            logits: Tensor = self.model(**arguments).logits
        if not self._keeps_logits:
            logits = logits[:, -keep:] if isinstance(keep, int) else logits[:, keep]
        return logits

    def check_recordable(self) -> None:
        """Whether hooks see the hidden states of every forward; raises ValueError where they do not."""

    def fit_vocabulary(self, logits: Tensor) -> Tensor:
        """Cut or pad the head [B, n, head] to [B, n, V]; ids the tokenizer lacks get -inf."""
        missing = self.vocab_size - logits.shape[-1]
        if missing > 0:
            logits = torch.nn.functional.pad(logits, (0, missing), value=-torch.inf)
        elif missing < 0:
            logits = logits[..., : self.vocab_size]
        if self.banned:
            logits = logits.index_fill(-1, self._banned.to(logits.device), -torch.inf)
        return logits


class CausalSession:
    """One run of one model: implements `ModelSession` over a `PositionCache`."""

    def __init__(self, model: CausalModel, cache: PositionCache) -> None:
        self.model, self.cache = model, cache
        self.vocab_size = model.vocab_size
        self._tape: FeatureTape | None = None

    def record(self, layers: Sequence[int]) -> FeatureTape:
        """From now on every forward leaves these layers' hidden states on the tape returned.

        Raises:
            ValueError: layers that the model has not, or forwards that cannot be watched.
        """
        self.model.check_recordable()
        self._tape = FeatureTape(feature_modules(self.model.model, layers))
        return self._tape

    def _call(self, tokens: Tensor, starts: Sequence[int], keep: int | Tensor, tree: Tree | None) -> Tensor:
        if self._tape is None:
            return self.model.call(tokens, starts, self.cache, keep, tree)
        with recorded(self._tape.modules) as found:
            logits = self.model.call(tokens, starts, self.cache, keep, tree)
        self._tape.add(starts, found.states)
        return logits

    @property
    def lengths(self) -> list[int]:
        return self.cache.lengths

    @property
    def trees(self) -> bool:
        return self.model.trees

    def feed(
        self, tokens: Tensor, starts: Sequence[int], at: Sequence[int] | None = None, tree: Tree | None = None
    ) -> Tensor:
        model = self.model
        tokens = tokens.to(model.device)
        if model.embedding_size < model.vocab_size:  # a draft that lacks an id reads another instead: q stays honest
            tokens = tokens.masked_fill(tokens >= model.embedding_size, 0)
        self.cache.place(starts, tokens.shape[1])
        if at is None:
            return model.fit_vocabulary(self._call(tokens, starts, 0, tree))
        if all(index == tokens.shape[1] - 1 for index in at):
            return model.fit_vocabulary(self._call(tokens, starts, 1, tree))
        wanted = sorted(set(at))
        logits = self._call(tokens, starts, torch.tensor(wanted, device=model.device), tree)  # [B, U, V]
        column = torch.tensor([wanted.index(index) for index in at], device=logits.device)
        return model.fit_vocabulary(logits[torch.arange(len(at), device=logits.device), column].unsqueeze(1))

    def commit(self, lengths: Sequence[int], paths: Sequence[Sequence[int]] | None = None) -> None:
        if paths is not None:
            self.cache.keep_paths(paths)
            if self._tape is not None:
                self._tape.keep_paths(paths)
        self.cache.commit(lengths)

    def select(self, rows: Sequence[int]) -> None:
        self.cache.select(rows)
