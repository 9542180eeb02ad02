"""What a decoder is built with, as frozen values: each option is named, typed and given its default here only.

`SpeculativeDecoder(...)` takes a `Named`, `SpeculativeDecoder.from_models(...)` a `Loaded`; `load` turns the first into
the second. `takes` gives a method the signature of such a value, for people (`help`, completion) and type checkers.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, fields
from typing import Any, Concatenate, TypeVar

from typing_extensions import ParamSpec

from decoder.asked import options
from decoder.models import loading
from decoder.randomness import Sampling
from decoder.text import check_same_tokenizer
from decoder.types import Drafter, SamplingParams, Verifier

P = ParamSpec("P")
S = TypeVar("S")
R = TypeVar("R")


@dataclass(frozen=True, eq=False, kw_only=True)
class Settings:
    """Options of every decoder; `SpeculativeDecoder` says what they mean.

    Raises:
        TypeError, ValueError: naming the argument, its value and the remedy.
    """

    tokenizer: Any = None
    temperature: float = SamplingParams.temperature
    top_p: float = SamplingParams.top_p
    top_k: int = SamplingParams.top_k
    min_p: float = SamplingParams.min_p
    drafter: str | Drafter | None = None
    head: Any = None
    verifier: str | Verifier = "auto"
    seed: int | None = None
    sampling: Sampling = "rejection"
    compile: bool = False
    packed: bool = False

    def __post_init__(self) -> None:
        options.switch("compile", self.compile)
        options.switch("packed", self.packed)
        _ = self.params  # validates
        options.settled({"drafter": self.drafter, "seed": self.seed})
        options.check_head(self.head, self.drafter)
        options.verifier("verifier", self.verifier)
        options.sampling("sampling", self.sampling)
        options.check_pair(self.sampling, self.verifier)

    @property
    def params(self) -> SamplingParams:
        return SamplingParams(self.temperature, self.top_p, self.top_k, self.min_p)


@dataclass(frozen=True, eq=False)
class Loaded(Settings):
    """Models that are in memory."""

    target: Any
    draft: Any = None
    _: KW_ONLY
    draft_tokenizer: Any = None

    def __post_init__(self) -> None:
        super().__post_init__()
        loading.check_loaded("target", self.target)
        if self.draft is not None:
            loading.check_loaded("draft", self.draft)
        if self.tokenizer is not None and self.draft_tokenizer is not None and self.drafter != "crosstokenizer":
            check_same_tokenizer(self.tokenizer, self.draft_tokenizer)


@dataclass(frozen=True, eq=False)
class Named(Settings):
    """Models by name or folder (or loaded ones), and where and how they are loaded."""

    target_model_name: Any = "tiny"
    draft_model_name: Any = None
    _: KW_ONLY
    device: Any = "auto"
    dtype: Any = "auto"
    draft_device: Any = None
    draft_dtype: Any = None
    max_memory: dict[Any, Any] | None = None
    offload_folder: str | None = None
    gguf_file: str | None = None
    draft_gguf_file: str | None = None
    trust_remote_code: bool = False

    @property
    def target_dtype(self) -> Any:
        """The bundled pair has an "auto" of its own."""
        return loading.tiny_dtype(self.dtype, self.device) if self.target_model_name == "tiny" else self.dtype

    def draft_options(self) -> dict[str, Any]:
        """How the draft is loaded: where nothing is said, as the target."""
        return {
            "device": self.draft_device or self.device,
            "dtype": self.draft_dtype or self.target_dtype,
            "gguf_file": self.draft_gguf_file,
            "trust_remote_code": self.trust_remote_code,
        }

    def loaded(self, target: Any, draft: Any, **changes: Any) -> Loaded:
        """The same options over models that are in memory now."""
        shared = {field.name: getattr(self, field.name) for field in fields(Settings)}
        return Loaded(target, draft, **{**shared, **changes})


def load(given: Named) -> Loaded:
    """Read tokenizers and weights; what can be refused is refused before any weights are read.

    Raises:
        TypeError, ValueError: naming the argument.
    """
    target, draft = given.target_model_name, given.draft_model_name
    if not loading.is_name(target):  # a loaded model is accepted wherever a name is
        loading.check_loaded("target_model_name", target)
        if draft is not None:
            loading.check_loaded("draft_model_name", draft)
        return given.loaded(target, draft)
    target_name, draft_name, tokenizer_name = loading.resolve_names(target, draft)
    source: dict[str, Any] = {"gguf_file": given.gguf_file, "trust_remote_code": given.trust_remote_code}
    tokenizer = given.tokenizer
    if tokenizer is None:
        tokenizer = loading.load_tokenizer("target_model_name", tokenizer_name, **source)
    draft_tokenizer = None if draft_name is None else _draft_tokenizer(given, draft_name, tokenizer)
    target = loading.load_model(
        "target_model_name",
        target_name,
        device=given.device,
        dtype=given.target_dtype,
        max_memory=given.max_memory,
        offload_folder=given.offload_folder,
        **source,
    )
    if draft_name is not None:
        draft = loading.load_model("draft_model_name", draft_name, **given.draft_options())
    return given.loaded(target, draft, tokenizer=tokenizer, draft_tokenizer=draft_tokenizer)


def _draft_tokenizer(given: Named, draft_name: str, tokenizer: Any) -> Any:
    """Check a draft that is to be loaded; its own tokenizer where it may differ from the target's, else None."""
    draft = given.draft_options()
    loading.check_device(draft["device"])
    loading.check_dtype(draft["dtype"])
    source = {name: draft[name] for name in ("gguf_file", "trust_remote_code")}
    if given.drafter == "crosstokenizer":
        return loading.load_tokenizer("draft_model_name", draft_name, **source)
    loading.compare_tokenizers(tokenizer, draft_name, **source)
    return None


def takes(settings: Callable[P, S], where: str) -> Callable[[Callable[[Any, S], R]], Callable[Concatenate[Any, P], R]]:
    """A method of one settings value becomes a method of that value's own arguments.

    Unknown keywords are errors with the nearest known name as remedy; `where` is how the errors call the method.
    """
    asked = inspect.signature(settings)

    def decorate(method: Callable[[Any, S], R]) -> Callable[Concatenate[Any, P], R]:
        own, _ = inspect.signature(method).parameters.values()  # self or cls

        @functools.wraps(method)
        def call(self: Any, /, *args: P.args, **given: P.kwargs) -> R:
            options.reject_unknown(given, where, asked.parameters)
            asked.bind(*args, **given)
            return method(self, settings(*args, **given))

        returns = inspect.signature(method).return_annotation
        found = asked.replace(parameters=[own, *asked.parameters.values()], return_annotation=returns)
        call.__signature__ = found  # type: ignore[attr-defined]  # what help() and completion show
        return call

    return decorate
