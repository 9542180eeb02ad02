"""L3: what a decoder is made of and how a call becomes runs: models, drafters by name, validation, batches.

`api.SpeculativeDecoder` adds the ways in: constructors, generate, stream.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from decoder.controllers import Experiences, Length
from decoder.drafters import DRAFTERS
from decoder.drafters.none import NoDrafter
from decoder.generation import Generation, Setting
from decoder.keywords import CallOptions, as_ids, check_choices, check_invariant, check_sampling, reject_unknown
from decoder.models.hf import CausalModel
from decoder.models.wrapped import wrapped
from decoder.prompts import check_ids, encode
from decoder.randomness import fresh_seed
from decoder.request import Request, settle
from decoder.settings import Loaded
from decoder.text import valid_ids
from decoder.types import Drafter


class Engine:
    """The working half of `SpeculativeDecoder`."""

    def _assemble(self, given: Loaded) -> None:
        target, draft, tokenizer = given.target, given.draft, given.tokenizer
        self.target, self.draft, self.tokenizer = target, draft, tokenizer
        self.draft_tokenizer = given.draft_tokenizer  # set where it is not the target's
        self.params, self.verifier = given.params, given.verifier
        self.seed, self.sampling = given.seed, given.sampling
        size, missing = (None, []) if tokenizer is None else valid_ids(tokenizer)
        head = int(target.get_output_embeddings().weight.shape[0])
        size = head if size is None else min(size, head)
        banned = [token for token in missing if token < size]
        self._vocabulary = (size, banned)
        self.compile, self.packed = given.compile, given.packed
        self._target = self._wrap(target, "target")
        self._draft = None if draft is None else self._wrap(draft, "draft")
        self._named: dict[str, Drafter] = {}
        self.drafter = self._drafter(given.drafter)
        self._experiences = Experiences()

    def _wrap(self, model: Any, role: str) -> CausalModel:
        return wrapped(model, role, *self._vocabulary, packed=self.packed, compile=self.compile)

    def _drafter(self, choice: str | Drafter | None) -> Drafter:
        if isinstance(choice, Drafter):
            return choice.bind(self._target, self._draft)
        name = choice if choice is not None else "model" if self._draft is not None else "ngram"
        if name not in self._named:  # made once: a quantised draft takes its time
            self._named[name] = self._make(name)
        return self._named[name]

    def _make(self, name: str) -> Drafter:
        if name != "crosstokenizer":
            return DRAFTERS[name].for_models(self._target, self._draft)
        from decoder.drafters.crosstokenizer import CrossTokenizerDrafter

        own = self.draft if self._draft is None else self._draft.model  # packed or not
        recipe = CrossTokenizerDrafter(own, self.tokenizer, self.draft_tokenizer)
        return recipe.bind(self._target, self._draft)

    def _encode(self, prompt: Any, options: CallOptions, where: str) -> tuple[list[list[int]], bool]:
        reject_unknown(options, where)
        rows, many = encode(prompt, self.tokenizer, options.get("attention_mask"), self._padding(options))
        check_ids(rows, self._target.embedding_size)
        return rows, many

    def _settle(self, rows: Sequence[Sequence[int]], options: CallOptions, where: str) -> Request:
        """Validate a call, for its rows too, before anything runs."""
        request = settle(options, self.params, self._own_eos(), len(rows[0]), where, self._target.device)
        for word in request.options.get("bad_words_ids") or ():
            if max(word) >= self._target.vocab_size:
                raise ValueError(f"bad_words_ids={word!r} holds an id outside [0, {self._target.vocab_size}).")
        if request.stop_strings and self.tokenizer is None:
            raise ValueError(f"stop_strings={list(request.stop_strings)!r} needs a tokenizer; pass one.")
        for row in rows:
            request.limits_for(len(row), self._target.context_length)
        return request

    def _padding(self, options: CallOptions) -> int | None:
        """The id that the library takes for padding where a tensor comes without a mask: pad, unless it is an EOS."""
        sources = (options.get("generation_config"), self.target.generation_config)
        found = []
        for name in ("pad_token_id", "eos_token_id"):
            held = [getattr(source, name, None) for source in sources]
            found.append(options.get(name, held[0] if held[0] is not None else held[1]))
        pad, eos = found
        if not isinstance(pad, int) or eos is None:
            return pad if isinstance(pad, int) else None
        return None if pad in as_ids("eos_token_id", eos) else pad

    def _own_eos(self) -> list[int]:
        own = getattr(self.target.generation_config, "eos_token_id", None)
        if own is None and self.tokenizer is not None:
            own = self.tokenizer.eos_token_id
        return [] if own is None else [own] if isinstance(own, int) else list(own)

    def _setting(self, options: CallOptions, k: Length, target: CausalModel | None = None) -> Setting:
        seed = options.get("seed")
        seed = self.seed if seed is None else seed
        verifier, sampling = options.get("verifier"), options.get("sampling")
        verifier = self.verifier if verifier is None else verifier
        sampling = self.sampling if sampling is None else sampling
        check_choices(options.get("drafter"), verifier, seed)
        check_sampling(sampling, verifier)
        if self.packed:
            from decoder.models.packed import check_unchanged

            check_unchanged(self._target.model)
        drafter = self.drafter if options.get("drafter") is None else self._drafter(options["drafter"])
        if options.get("invariant"):
            check_invariant(k, self.target.config._attn_implementation)
        controller = self._experiences.controller(k, options.get("drafter") or self.drafter, reads=drafter.reads)
        return Setting(
            target=target or self._target,
            drafter=drafter.deferred() if k == "auto" else drafter if k else NoDrafter(),
            verifier=verifier,
            controller=controller,
            tokenizer=self.tokenizer,
            seed=fresh_seed() if seed is None else seed,
            sampling=sampling,
        )

    def _generations(self, rows: Sequence[Sequence[int]], request: Request, setting: Setting) -> Iterator[Generation]:
        """The batches of a call. Models outside the tested families, and calls whose forwards must keep one shape, run
        one row at a time; rows of different lengths run apart where a processor counts positions."""
        size = request.options.get("batch_size", 16)
        together = setting.target.can_batch and setting.drafter.can_batch
        if not together or request.options.get("invariant"):
            size = 1
        numbers: list[int] = []
        for number, row in enumerate(rows):
            numbers.append(number)
            following = rows[number + 1] if number + 1 < len(rows) else None
            apart = request.counts_positions and following is not None and len(following) != len(row)
            if following is None or len(numbers) == size or apart:
                yield Generation(setting, request.for_row(numbers[0], len(row)), [rows[n] for n in numbers], numbers)
                numbers = []
