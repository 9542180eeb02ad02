"""Exact speculative decoding for Hugging Face models."""

from decoder.api import SpeculativeDecoder
from decoder.results import GenerationResult
from decoder.types import Draft, Drafter, SamplingParams

__version__ = "0.1.0"

__all__ = ["Draft", "Drafter", "GenerationResult", "SamplingParams", "SpeculativeDecoder", "__version__"]
