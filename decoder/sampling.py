"""How a distribution is warped before a token is taken from it, as a checked value."""

from __future__ import annotations

from dataclasses import dataclass

from decoder.checks import at_least, in_range, number


@dataclass(frozen=True)
class SamplingParams:
    """How a distribution is warped before a token is taken from it.

    Applied in transformers' order: temperature, top-k, top-p, min-p.

    temperature: >= 0; 0 is greedy decoding.  top_p: (0, 1]; 1 keeps all.
    top_k: >= 0; 0 keeps all.                 min_p: [0, 1]; 0 keeps all.
    """

    temperature: float = 1.0
    top_p: float = 0.9
    top_k: int = 0
    min_p: float = 0.0

    def __post_init__(self) -> None:
        if not 0.0 <= number("temperature", self.temperature) < float("inf"):
            raise ValueError(f"temperature={self.temperature!r} must be >= 0 and finite; 0 means greedy decoding.")
        number("top_p", self.top_p)
        in_range("top_p", self.top_p, 0, 1, "use 1.0 to keep every token.", include_low=False)
        number("min_p", self.min_p)
        in_range("min_p", self.min_p, 0, 1, "use 0.0 to keep every token.")
        at_least("top_k", self.top_k, 0, "use 0 to keep every token.", wanted="an integer")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0
