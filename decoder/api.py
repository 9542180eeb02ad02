"""`SpeculativeDecoder`: text in, result out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, overload

import torch
from tqdm.auto import tqdm
from typing_extensions import Unpack

from decoder import outputs
from decoder.asked.building import Loaded, Named, load, takes
from decoder.asked.hf_generate import request_from_transformers
from decoder.asked.options import CallOptions
from decoder.asked.request import Request, own_eos
from decoder.checks import at_least
from decoder.controllers import LONGEST, Experiences, FixedLength, Length, Warmed, check_length
from decoder.drafters import DRAFTERS, NoDrafter
from decoder.generation import Generation, Run
from decoder.models.hf import CausalModel
from decoder.models.wrapped import check_unchanged, fixed_width, wrapped
from decoder.results import GenerationResult
from decoder.streaming import TextStream
from decoder.text import valid_ids
from decoder.types import Drafter

if TYPE_CHECKING:
    from decoder.measure.advice import Advice
    from decoder.measure.profiling import Profile

Chat = Sequence[Mapping[str, Any]]  # messages with "role" and "content"


class SpeculativeDecoder:
    """Wraps a target and a drafter; returns the target's own distribution, sooner.

    target_model_name, draft_model_name: a hub name, a folder, a loaded model, or "tiny" for the bundled pair (the
        default).
    tokenizer: the target's by default.
    device, dtype, max_memory, offload_folder: placement, through accelerate. `draft_device`, `draft_dtype` default to
        the target's.
    gguf_file, draft_gguf_file: a GGUF file within the named source.   trust_remote_code: as in transformers.
    temperature, top_p, top_k, min_p: default sampling; temperature 0 is greedy.
    drafter: a name in `decoder.drafters.DRAFTERS` or a `Drafter`; None means "eagle" with a head, "model" with a draft
        model, else "ngram".
    head: a trained draft head for drafter="eagle", which it makes the default: a folder, or a loaded one. Without it,
        "eagle" takes the packaged head of this target.
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

    def _assemble(self, given: Loaded) -> None:
        self.target, self.draft, self.tokenizer = given.target, given.draft, given.tokenizer
        self.draft_tokenizer = given.draft_tokenizer  # set where it is not the target's
        self.params, self.verifier = given.params, given.verifier
        self.seed = given.seed
        self.sampling: str = given.sampling
        self.compile, self.packed = given.compile, given.packed
        head = int(given.target.get_output_embeddings().weight.shape[0])
        size, missing = (head, []) if given.tokenizer is None else valid_ids(given.tokenizer)
        size = min(size, head)
        self._vocabulary = (size, [token for token in missing if token < size])
        how = {"packed": given.packed, "compile": given.compile}
        self.target_model = wrapped(given.target, "target", self._vocabulary, **how)
        self.draft_model = None if given.draft is None else wrapped(given.draft, "draft", self._vocabulary, **how)
        self.head = given.head
        self._named: dict[str, Drafter] = {}
        self._experiences = Experiences()
        self.drafter = self.drafter_for(given.drafter)

    def drafter_for(self, choice: str | Drafter | None) -> Drafter:
        """The drafter that a name stands for here, or an object bound to these models; None is the default's."""
        if isinstance(choice, Drafter):
            return choice.bind(self.target_model, self.draft_model)
        own = "eagle" if self.head is not None else "model" if self.draft_model is not None else "ngram"
        name = choice if choice is not None else own
        if name not in self._named:  # made once: a quantised draft takes its time
            self._named[name] = DRAFTERS[name].for_decoder(self)
        return self._named[name]

    # ---- generating ----

    @overload
    def generate(self, prompt: str | Chat, *, k: Length = 4, **options: Unpack[CallOptions]) -> GenerationResult: ...
    @overload
    def generate(
        self, prompt: list[str], *, k: Length = 4, **options: Unpack[CallOptions]
    ) -> list[GenerationResult]: ...
    @overload
    def generate(self, prompt: Any, *, k: Length = 4, **options: Unpack[CallOptions]) -> Any: ...

    def generate(self, prompt: Any, *, k: Length = 4, **options: Unpack[CallOptions]) -> Any:
        """Generate with speculation: one `GenerationResult`, or a list in order for a list of prompts.

        prompt: a string, chat messages, a 1-D or 2-D tensor of ids, or a list of prompts (a ragged batch).
        k: drafted tokens per round; 0 is plain decoding; "auto" follows measurements (docs/never-slower.md).
        options: see `decoder.asked.options.CallOptions`; transformers' names with transformers' meanings.
            `num_return_sequences` above 1 gives a list, `return_dict_in_generate=True` transformers' own output class.

        Raises:
            TypeError, ValueError: naming the argument, its value, the range and the remedy, before any model runs.
        """
        return self._answer(Request.of(prompt, options, k, "generate", self))

    @overload
    def generate_baseline(
        self, prompt: str | Chat, *, k: Length = 0, **options: Unpack[CallOptions]
    ) -> GenerationResult: ...
    @overload
    def generate_baseline(
        self, prompt: list[str], *, k: Length = 0, **options: Unpack[CallOptions]
    ) -> list[GenerationResult]: ...
    @overload
    def generate_baseline(self, prompt: Any, *, k: Length = 0, **options: Unpack[CallOptions]) -> Any: ...

    def generate_baseline(self, prompt: Any, *, k: Length = 0, **options: Unpack[CallOptions]) -> Any:
        """Plain decoding of the target through the same loop: what speculation is compared with.

        Same arguments as `generate`, so that a call can be repeated as it is; `k` and `drafter` are checked, and
        nothing is drafted.
        """
        check_length(k)
        return self._answer(replace(Request.of(prompt, options, 0, "generate_baseline", self), drafter=None))

    def stream(self, prompt: Any, *, k: Length = 4, **options: Unpack[CallOptions]) -> TextStream:
        """Generate one prompt as an iterator of text pieces; its `.result` is there at the end."""
        check_length(k)
        if self.tokenizer is None:
            raise ValueError("stream() yields text and needs a tokenizer; pass tokenizer= when building the decoder.")
        request = Request.of(prompt, options, k, "stream", self)
        if request.many:
            raise ValueError("stream() takes one prompt and num_return_sequences=1; use generate() for several.")
        for name, asked in (("return_dict_in_generate", request.return_dict), ("progress", request.progress)):
            if asked:
                raise ValueError(
                    f"{name}=True does not go with stream(), whose result is its `result`; use generate()."
                )
        return TextStream(Generation(self.run_for(request), request), self.tokenizer, request.rows[0].stop_strings)

    def __call__(self, model: Any, input_ids: torch.Tensor, k: Length = 4, **passed: Any) -> Any:
        """The hook of `model.generate(..., custom_generate=spec, k=4)`: this decoder's drafter drafts for `model`.

        Sampling follows the call's generation_config; returns ids [B, L] padded on the right, or with
        return_dict_in_generate=True a `SpeculativeOutput`, which holds the results with their statistics. transformers
        hands on the keywords that stand in this signature: k, an integer or "auto".
        """
        target = self.target_model if model is self.target else CausalModel(model, "target", *self._vocabulary)
        head, size = target.head_size, self._vocabulary[0]
        if head < size or (self.tokenizer is None and head != size):
            raise ValueError(
                f"custom_generate: this decoder serves a vocabulary of {size} ids, but the model's head has {head}; "
                "build the decoder from a model of the same family, with its tokenizer."
            )
        request, hand_back = request_from_transformers(input_ids, passed, check_length(k), target, self)
        return hand_back.pack([result for batch in self._batches(request, target) for result in batch])

    def warm_up(self, *, k: Length = 4, max_length: int = 239, progress: bool = True) -> dict[str, list[int]]:
        """Compile now what calls with up to k drafted tokens will run: of a decoder with compile=True.

        k: "auto" compiles for every draft length. max_length: of the texts to come, prompt included; graphs serve
        lengths up to a power of two of slots (239 tokens in the smallest). torch keeps compiled code on disk, so that
        another process has it in a fraction of the time.

        Returns the block sizes that have graphs, for "target" and "draft".

        Raises:
            ValueError, TypeError: a decoder with compile=False; a wrong k or max_length.
        """
        longest = LONGEST if check_length(k) == "auto" else int(k)
        at_least("max_length", max_length, 2, "give the longest text to come, prompt included.")
        if not self.compile:
            raise ValueError("warm_up() compiles forwards; build the decoder with compile=True.")
        models = {"target": (self.target_model, longest + 1)}
        if self.draft_model is not None and longest:
            models["draft"] = (self.draft_model, 2)  # behind full acceptance it feeds two
        sizes: dict[str, list[int]] = {role: [] for role in models}
        with tqdm(disable=not progress, unit="graph") as bar:
            for role, (model, width) in models.items():
                bar.set_description(f"compiling the {role}")

                def told(size: int, role: str = role) -> None:
                    sizes[role].append(size)
                    bar.update()

                model.warm_up(width, max_length, told)
        return sizes

    def _compilations(self) -> int:
        return sum(model.compilations for model in (self.target_model, self.draft_model) if model is not None)

    # ---- measuring ----

    def profile(self, prompt: Any, **options: Any) -> Profile:
        """Where the time of `generate(prompt, ...)` goes: see `decoder.measure.profile`."""
        from decoder.measure import profile

        return profile(self, prompt, **options)

    def advise(self, prompts: Any, **options: Any) -> Advice:
        """Whether to speculate on prompts like these, and how: see `decoder.measure.advise`."""
        from decoder.measure import advise

        return advise(self, prompts, **options)

    # ---- from a request to results ----

    def run_for(self, request: Request, target: CausalModel | None = None) -> Run:
        """The models and parts that this decoder lends to a call."""
        if self.packed:
            check_unchanged(self.target_model)
        drafter = self.drafter if request.drafter is None else self.drafter_for(request.drafter)
        if request.k == "auto":
            controller = self._experiences.controller(request.drafter or self.drafter, reads=drafter.reads)
            if self.compile:
                controller = Warmed(controller, self._compilations)
        else:
            controller = FixedLength(request.k)
        target = target or self.target_model
        return Run(
            target=fixed_width(target) if request.invariant else target,
            drafter=drafter.deferred() if request.k == "auto" else drafter if request.k else NoDrafter(),
            controller=controller,
            tokenizer=self.tokenizer,
        )

    def _answer(self, request: Request) -> Any:
        results: list[GenerationResult] = []
        several = len(request.rows) > 1
        with tqdm(total=len(request.rows), disable=not (request.progress and several), unit="prompt") as bar:
            for batch in self._batches(request):
                results += batch
                bar.update(len(batch))
        if request.return_dict:
            return outputs.pack(
                results,
                self._sequences(results, request),
                scores=request.output_scores,
                logits=request.output_logits,
            )
        return results if request.many else results[0]

    def _batches(self, request: Request, target: CausalModel | None = None) -> Iterator[list[GenerationResult]]:
        """The results of a call, batch by batch, in order.

        Models outside the tested families, and calls whose forwards must keep one shape, run one row at a time.
        """
        run = self.run_for(request, target)
        size = request.batch_size if run.target.can_batch and run.drafter.can_batch else 1
        for first in range(0, len(request.rows), size):
            yield Generation(run, request, range(first, min(first + size, len(request.rows)))).finish()

    def _sequences(self, results: Sequence[GenerationResult], request: Request) -> torch.Tensor:
        """Prompt and new ids of all rows, padded on the right: [B, L]."""
        wanted = (request.pad_token_id, getattr(self.tokenizer, "pad_token_id", None), *own_eos(self), 0)
        pad = next(token for token in wanted if token is not None)
        rows = [torch.tensor(result.prompt_token_ids + result.token_ids) for result in results]
        return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=pad)
