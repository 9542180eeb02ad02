"""Verification. Pure functions of probabilities, a draft and a random source."""

from collections.abc import Callable

from decoder.types import Verifier
from decoder.verify.auto import AutoVerifier
from decoder.verify.block import BlockVerifier
from decoder.verify.match import GreedyVerifier, MatchVerifier
from decoder.verify.token import TokenVerifier

VERIFIERS: dict[str, Callable[[], Verifier]] = {
    "auto": AutoVerifier,
    "match": MatchVerifier,
    "token": TokenVerifier,
    "block": BlockVerifier,
}

__all__ = ["VERIFIERS", "AutoVerifier", "BlockVerifier", "GreedyVerifier", "MatchVerifier", "TokenVerifier"]
