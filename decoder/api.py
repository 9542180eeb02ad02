"""L4: `SpeculativeDecoder`: text in, result out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tqdm.auto import tqdm
from transformers.generation.utils import GenerateDecoderOnlyOutput
from typing_extensions import Unpack

from decoder.controllers import Length, check_length
from decoder.engine import Engine
from decoder.generation import Generation
from decoder.hf_generate import request_from_library
from decoder.keywords import CallOptions, check_choices
from decoder.measure.measurable import Measurable
from decoder.models.hf import CausalModel
from decoder.processors import check_one_row
from decoder.prompts import check_ids
from decoder.results import GenerationResult
from decoder.settings import Loaded, Named, load, takes
from decoder.streaming import TextStream


class SpeculativeDecoder(Engine, Measurable):
    """Wraps a target and a drafter; returns the target's own distribution, sooner.

    target_model_name, draft_model_name: a hub name, a folder, a loaded model, or "tiny" for the bundled pair (the
        default).
    tokenizer: the target's by default.
    device, dtype, max_memory, offload_folder: placement, through accelerate. `draft_device`, `draft_dtype` default to
        the target's.
    gguf_file, draft_gguf_file: a GGUF file within the named source.   trust_remote_code: as in transformers.
    temperature, top_p, top_k, min_p: default sampling; temperature 0 is greedy.
    drafter: a name in `decoder.drafters.DRAFTERS` or a `Drafter`; None means "model" with a draft model, else "ngram".
    verifier: "auto", "match", "token", "block" or a `Verifier`.
    seed: None draws one from torch's global generator at each call.
    sampling: "rejection" (accepts most), or "gumbel": with a seed the sampled tokens are the same for the baseline,
        every drafter, every k and every batch (up to near-ties that the rounding of the logits decides).
    compile: True runs the target's and the draft model's forwards after the prefill through `torch.compile`, one row at
        a time; the first use of each block size takes seconds to minutes (`decoder.models.compiled`). What cannot be
        compiled runs eager, with a warning.
    packed: True runs target and draft model over copies of their matrices in oneDNN's layout: faster for few tokens on
        many CPUs, for twice the memory of the matrices (`decoder.models.packed`). Models on the CPU only.

    Raises:
        TypeError, ValueError: before any model runs, naming the argument, its value and the remedy.

    Sources: Leviathan et al. 2023 (arXiv 2211.17192), Chen et al. 2023 (2302.01318), Sun et al. 2024 (2403.10444).
    """

    @takes(Named, "SpeculativeDecoder")
    def __init__(self, given: Named) -> None:
        """The options are those of the class's description."""
        self._assemble(load(given))

    @classmethod
    @takes(Loaded, "SpeculativeDecoder.from_models")
    def from_models(cls, given: Loaded) -> SpeculativeDecoder:
        """A decoder over loaded models. Neither their configuration nor their weights are changed.

        Without a tokenizer, prompts must be token ids and results hold ids only. `draft_tokenizer` is compared with it;
        drafter="crosstokenizer" lets it be another. The other options are those of the constructor.
        """
        self = cls.__new__(cls)
        self._assemble(given)
        return self

    # ---- generating ----

    def generate(self, prompt: Any, *, k: Length = 4, **options: Unpack[CallOptions]) -> Any:
        """Generate with speculation: one `GenerationResult`, or a list in order for a list of prompts.

        prompt: a string, chat messages, a 1-D or 2-D tensor of ids, or a list of prompts (a ragged batch).
        k: drafted tokens a round; 0 is plain decoding; "auto" follows measurements (docs/never-slower.md).
        options: see `decoder.request.CallOptions`; transformers' names with transformers' meanings.

        Raises:
            TypeError, ValueError: naming the argument, its value, the range and the remedy, before any model runs.
        """
        check_length(k)
        return self._call(prompt, options, k, "generate")

    def generate_baseline(self, prompt: Any, *, k: Length = 0, **options: Unpack[CallOptions]) -> Any:
        """Plain decoding of the target through the same loop: the yardstick.

        Same arguments as `generate`, so that a call can be repeated as it is; `k` and `drafter` are checked, and
        nothing is drafted.
        """
        check_length(k)
        check_choices(options.pop("drafter", None), "auto", None)
        return self._call(prompt, options, 0, "generate_baseline")

    def stream(self, prompt: Any, *, k: Length = 4, **options: Unpack[CallOptions]) -> TextStream:
        """Generate one prompt as an iterator of text pieces; its `.result` is there at the end."""
        check_length(k)
        if self.tokenizer is None:
            raise ValueError("stream() yields text and needs a tokenizer; pass tokenizer= when building the decoder.")
        rows, many = self._encode(prompt, options, "stream")
        request = self._settle(rows, options, "stream")
        if many or request.options.get("num_return_sequences", 1) != 1:
            raise ValueError("stream() takes one prompt and num_return_sequences=1; use generate() for several.")
        for name in ("return_dict_in_generate", "progress"):
            if request.options.get(name):
                raise ValueError(
                    f"{name}=True does not go with stream(), whose result is its `result`; use generate()."
                )
        generation = Generation(self._setting(options, k), request, rows, [0])
        return TextStream(generation, self.tokenizer, request.stop_strings)

    def _call(self, prompt: Any, options: CallOptions, k: Length, where: str) -> Any:
        rows, many = self._encode(prompt, options, where)
        request = self._settle(rows, options, where)
        options = request.options
        copies = options.get("num_return_sequences", 1) or 1
        rows = [row for row in rows for _ in range(copies)]
        many = many or copies > 1
        for name in ("streamer", "cache", "return_cache"):
            if options.get(name) and len(rows) > 1:
                raise ValueError(f"{name}= goes with one prompt, not {len(rows)}; call once per prompt.")
        check_one_row(request.given, len(rows))
        setting = self._setting(options, k)
        results: list[GenerationResult] = []
        with tqdm(total=len(rows), disable=not (options.get("progress") and len(rows) > 1), unit="prompt") as bar:
            for generation in self._generations(rows, request, setting):
                self._consume(generation, options, len(rows) == 1)
                results += generation.results()
                bar.update(len(generation.rows))
        if options.get("return_dict_in_generate"):
            return GenerateDecoderOnlyOutput(sequences=self._sequences(results, options))
        return results if many else results[0]

    @staticmethod
    def _consume(generation: Generation, options: CallOptions, alone: bool) -> None:
        """Run to the end, with a bar over the tokens when one long text is all there is."""
        total = generation.rows[0].limits.max_new_tokens
        with tqdm(total=total, disable=not (options.get("progress") and alone), unit="token") as bar:
            for step in generation.steps():
                bar.update(len(step.rows[0].emitted))

    def _sequences(self, results: Sequence[GenerationResult], options: CallOptions) -> torch.Tensor:
        """Prompt and new ids of all rows, padded on the right: [B, L]."""
        wanted = (options.get("pad_token_id"), getattr(self.tokenizer, "pad_token_id", None), *self._own_eos(), 0)
        pad = next(token for token in wanted if token is not None)
        rows = [torch.tensor(result.prompt_token_ids + result.token_ids) for result in results]
        return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=pad)

    def __call__(self, model: Any, input_ids: torch.Tensor, **passed: Any) -> Any:
        """The hook of `model.generate(..., custom_generate=spec)`: this decoder's drafter drafts for `model`.

        Sampling follows the call's generation_config; returns ids [B, L] padded on the right.
        """
        target = self._target if model is self.target else CausalModel(model, "target", *self._vocabulary)
        head, size = target.head_size, self._vocabulary[0]
        if head < size or (self.tokenizer is None and head != size):
            raise ValueError(
                f"custom_generate: this decoder serves a vocabulary of {size} ids, but the model's head has {head}; "
                "build the decoder from a model of the same family, with its tokenizer."
            )
        rows, request, output = request_from_library(model, input_ids, passed, target.context_length)
        check_ids(rows, target.embedding_size)
        check_one_row(request.built, len(rows))
        setting = self._setting({}, output.k, target)
        sequences: list[GenerationResult] = []
        for generation in self._generations(rows, request, setting):
            self._consume(generation, {}, False)
            sequences += generation.results()
        return output.pack([result.token_ids for result in sequences])
