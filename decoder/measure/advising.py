"""Should I speculate here, with what, and what will I gain? Measured on the person's own device and prompts.

A probe run of each drafter at the greatest length K gives rounds (d_r drafted, a_r of them accepted). A round of
length k <= K would have drafted min(d_r, k) and kept min(a_r, k) of them, so with the measured forward times t_v(m)

    seconds per token at k = sum_r [min(d_r, k) t_d + t_v(1 + min(d_r, k)) + t_o] / sum_r [min(a_r, k) + 1]

(Leviathan et al. 2023, arXiv 2211.17192, theorem 3.8, with counted rounds in place of independent ones, so that it
holds for lookup drafters too). The best k of each drafter is then run against plain decoding, interleaved. The advice
follows the measurement; the prediction stands beside it and says why: it is computed again with a free draft, with
verification as cheap as one token, with half of the rejections gone, and so on; what helps most stands in the way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from typing_extensions import Unpack

from decoder.api import SpeculativeDecoder
from decoder.asked.options import CallOptions
from decoder.checks import at_least
from decoder.drafters.model import Openable
from decoder.measure.advice import Advice, Candidate
from decoder.measure.forwards import ForwardCost, forward_cost
from decoder.measure.profiling import measured_request
from decoder.measure.statistics import median
from decoder.measure.summary import speedup
from decoder.measure.timing import Counts, Method, RunOutput, Sample, interleaved
from decoder.results import GenerationResult, RowRound
from decoder.types import Drafter

GAIN = 1.03  # less is not worth the memory of a draft
PROBE_LENGTH = 8


class Decoding(Protocol):
    """What is needed of a decoder."""

    def generate(self, prompt: Any, **options: Any) -> Any: ...

    def generate_baseline(self, prompt: Any, **options: Any) -> Any: ...


@dataclass(frozen=True)
class Rounds:
    """What the probe of one drafter counted, and what its parts cost in seconds."""

    shapes: tuple[tuple[int, float], ...]  # (drafted, accepted) per round
    draft_s: float  # t_d, per drafted token
    overhead_s: float  # t_o, per round
    prefill_s: float  # per token emitted

    @classmethod
    def of(cls, results: Sequence[GenerationResult]) -> Rounds:
        rounds: list[RowRound] = [step for result in results for step in result.steps[1:]]
        drafted = sum(len(step.drafted) for step in rounds)
        tokens = max(1, sum(len(result.token_ids) for result in results))
        return cls(
            tuple((len(step.drafted), step.accepted) for step in rounds),
            sum(step.draft_s for step in rounds) / max(1, drafted),
            sum(result.overhead_s for result in results) / max(1, len(rounds)),
            sum(result.prefill_s for result in results) / tokens,
        )

    def tokens_per_iteration(self, k: int) -> float:
        """E_k."""
        return 1 + sum(min(accepted, k) for _, accepted in self.shapes) / max(1, len(self.shapes))

    def drafted_per_iteration(self, k: int) -> float:
        return sum(min(drafted, k) for drafted, _ in self.shapes) / max(1, len(self.shapes))

    def token_s(self, k: int, target: ForwardCost, *, flat: bool = False) -> float:
        """Seconds per token at draft length k; `flat`: verification costs what one token costs."""
        widths = [min(drafted, k) for drafted, _ in self.shapes] or [0]
        verify_s = sum(target.seconds(1 if flat else 1 + width) for width in widths) / len(widths)
        round_s = self.drafted_per_iteration(k) * self.draft_s + verify_s + self.overhead_s
        return round_s / self.tokens_per_iteration(k) + self.prefill_s


@dataclass(frozen=True)
class Decoded:
    """A way to decode as a `Method`."""

    name: str
    decoder: Decoding
    device: torch.device
    options: Mapping[str, Any]
    plain: bool = False

    def run(self, prompt: Sequence[int], seed: int) -> GenerationResult:
        call = self.decoder.generate_baseline if self.plain else self.decoder.generate
        result: GenerationResult = call(list(prompt), **{"seed": seed, **self.options})
        return result

    def __call__(self, prompt: Sequence[int], seed: int) -> RunOutput:
        result = self.run(prompt, seed)
        return RunOutput(result.token_ids, Counts.of(result))


def _probe(method: Decoded, prompts: Sequence[Sequence[int]]) -> list[GenerationResult]:
    method.run(prompts[0], 0)  # warms up
    return [method.run(prompt, 0) for prompt in prompts]


def _obstacles(rounds: Rounds, k: int, target: ForwardCost, plain_s: float) -> dict[str, float]:
    """What the speed-up would be with one obstacle taken away, the most obstructive first."""
    better = replace(rounds, shapes=tuple((drafted, (accepted + drafted) / 2) for drafted, accepted in rounds.shapes))
    busy = replace(rounds, shapes=tuple(shape for shape in rounds.shapes if shape[0]) or rounds.shapes)
    without = {
        "draft": plain_s / replace(rounds, draft_s=0.0).token_s(k, target),
        "verification": plain_s / rounds.token_s(k, target, flat=True),
        "acceptance": plain_s / better.token_s(k, target),
        "supply": plain_s / busy.token_s(k, target),
        "overhead": plain_s / replace(rounds, overhead_s=0.0).token_s(k, target),
    }
    return dict(sorted(without.items(), key=lambda pair: -pair[1]))


def _candidate(name: str, results: Sequence[GenerationResult], plain: Rounds, target: ForwardCost) -> Candidate:
    """The probe of one drafter, folded; still without a measured speed-up."""
    rounds = Rounds.of(results)
    plain_s = plain.token_s(0, target)
    predicted = {k: plain_s / rounds.token_s(k, target) for k in range(1, PROBE_LENGTH + 1)}
    k = max(predicted, key=lambda each: predicted[each])
    tested = sum(min(accepted + 1, drafted) for drafted, accepted in rounds.shapes)
    empty = sum(drafted == 0 for drafted, _ in rounds.shapes)
    return Candidate(
        drafter=name,
        k=k,
        predicted=predicted[k],
        predicted_by_k=predicted,
        alpha=sum(accepted for _, accepted in rounds.shapes) / tested if tested else None,
        cost_ratio=rounds.draft_s / target.seconds(1),
        verify_ratio=target.seconds(k + 1) / target.seconds(1),
        tokens_per_iteration=rounds.tokens_per_iteration(k),
        without_proposal=empty / max(1, len(rounds.shapes)),
        without_obstacle=_obstacles(rounds, k, target, plain_s),
    )


def _baseline_cost(model: Openable, prompts: Sequence[Sequence[int]], repeats: int) -> ForwardCost:
    """t_v(m) behind the prompt of median length, shortened where the widest probe would not fit."""
    prompt = sorted(prompts, key=len)[len(prompts) // 2]
    if model.context_length is not None:
        prompt = prompt[: max(1, model.context_length - PROBE_LENGTH - 1)]
    return forward_cost(model, prompt, widths=range(1, PROBE_LENGTH + 2), repeats=repeats)


def advice_on(
    decoder: Decoding,
    target: Openable,
    drafters: Mapping[str, Drafter],
    prompts: Sequence[Sequence[int]],
    options: Mapping[str, Any],
    *,
    repeats: int = 3,
) -> Advice:
    """Probe each drafter, predict, run the best draft lengths against plain decoding, and say what to do.

    Raises:
        ValueError: no drafters, or prompts after which the target ends every text at once.
    """
    if not drafters:
        raise ValueError("drafters is empty; name at least one, as in drafters=['ngram'].")
    device = torch.device(getattr(target, "device", "cpu"))
    plain = Decoded("plain", decoder, device, options, plain=True)
    plain_results = _probe(plain, prompts)
    if not any(result.num_iterations for result in plain_results):
        raise ValueError("prompts end at once: the target emits EOS or one token only; give others or more new tokens.")
    cost = _baseline_cost(target, prompts, 3 * repeats)
    plain_rounds = Rounds.of(plain_results)
    methods: list[Method] = [plain]
    candidates = []
    for name, drafter in drafters.items():
        probe = Decoded(name, decoder, device, {**options, "drafter": drafter, "k": PROBE_LENGTH})
        candidate = _candidate(name, _probe(probe, prompts), plain_rounds, cost)
        candidates.append(candidate)
        methods.append(replace(probe, options={**options, "drafter": drafter, "k": candidate.k}))
    samples = interleaved(methods, prompts, repeats=repeats, warm_up=1)
    return _conclude(candidates, samples, cost, len(prompts))


def _conclude(candidates: Sequence[Candidate], samples: Sequence[Sample], cost: ForwardCost, prompts: int) -> Advice:
    """Put what was measured beside what was predicted, and choose."""
    base = [sample for sample in samples if sample.method == "plain"]
    measured = [
        replace(each, measured=speedup([sample for sample in samples if sample.method == each.drafter], base))
        for each in candidates
    ]
    best = max(measured, key=lambda each: each.measured.ratio if each.measured else 0.0)
    assert best.measured is not None
    sure = best.measured.lower is None or best.measured.lower > 1.0
    speculate = best.measured.ratio >= GAIN and sure
    return Advice(
        speculate=speculate,
        drafter=best.drafter if speculate else None,
        k=best.k if speculate else 0,
        best=best,
        candidates=tuple(measured),
        target=cost,
        prompts=prompts,
        plain_tokens_per_second=median([len(sample.token_ids) / sample.wall_s for sample in base]),
    )


def advise(
    spec: SpeculativeDecoder,
    prompts: Any,
    *,
    drafters: Sequence[str | Drafter] | None = None,
    repeats: int = 3,
    **options: Unpack[CallOptions],
) -> Advice:
    """Should I speculate on prompts like these, on this device, with what and how long, and what will I gain?

    Measures forwards, acceptance and whole runs; a few seconds to minutes, by the size of the models. Give several
    prompts of the kind you have. drafters: names or objects; the decoder's own and "ngram" by default. Other
    options as in `generate`; 64 new tokens by default. Print the answer.

    Raises:
        ValueError, TypeError: as `generate`; no drafters; prompts after which the target has nothing to say.
    """
    request = measured_request(spec, prompts, options, 0, "advise")
    at_least("repeats", repeats, 1, "3 to start with.")
    if isinstance(drafters, str):
        raise TypeError(f"drafters={drafters!r} must be a list of names or Drafter objects, as in ['ngram'].")
    chosen: list[str | Drafter] = [spec.drafter, "ngram"] if drafters is None else list(drafters)
    found = {recipe.name: recipe for recipe in (spec.drafter_for(each) for each in chosen)}
    decoding: Any = spec  # its overloads say more than is needed here
    prompt_ids = [row.tokens for row in request.rows]
    return advice_on(decoding, spec.target_model, found, prompt_ids, options, repeats=repeats)
