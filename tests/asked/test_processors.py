"""Every logits processor that transformers has, against `generate`: one text, ragged lists, left-padded batches.

`CASES` knows each class by name, and how it is asked for. Greedy runs must write the same ids from the same scores.
Runs that sample draw with another random stream, so that their scores are compared: those of each written prefix with
those that `generate` finds after the same prefix.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import GenerationConfig, SynthIDTextWatermarkingConfig, WatermarkingConfig
from transformers.generation import logits_process as library

from decoder import SpeculativeDecoder
from decoder.asked.processors import keeps_state
from decoder.models.toy import noisy_copy, toy_model

ROWS = [[7, 33, 12, 50, 7, 33], [11], [4, 19, 44, 19]]
WIDTH = 6
PAD = 0
IDS = torch.tensor([[PAD] * (WIDTH - len(row)) + row for row in ROWS])
MASK = torch.tensor([[0] * (WIDTH - len(row)) + [1] * len(row) for row in ROWS])
EOS = [16, 41, 5]
NEW = 12


@dataclass(frozen=True)
class Case:
    """fields: of a generation_config.   build: makes the processor, given the prompts' ids [B, L].

    state: it may depend on its earlier calls, or calls code of the user's.   row: a prompt for which it does something.
    """

    fields: dict[str, Any] = field(default_factory=dict)
    build: Callable[[Tensor], Any] | None = None
    sampled: bool = False
    state: bool = False
    row: int = 0


def allowed(batch: int, ids: Tensor) -> list[int]:
    """What a user's `prefix_allowed_tokens_fn` may look at: the number of the prompt and the whole prefix."""
    return [token for token in range(64) if (token + batch + ids.sum().item()) % 3]


def whisper(begin: int) -> Any:
    config = GenerationConfig(eos_token_id=16, no_timestamps_token_id=40)
    return library.WhisperTimeStampLogitsProcessor(config, begin_index=begin)


SYNTH_ID = SynthIDTextWatermarkingConfig(ngram_len=3, keys=[3, 14, 15, 92], context_history_size=8)
GREEN = WatermarkingConfig(bias=4.0, greenlist_ratio=0.4)
CASES: dict[str, Case] = {
    "MinLengthLogitsProcessor": Case(
        {"min_length": 13}, lambda ids: library.MinLengthLogitsProcessor(ids.shape[1] + 7, EOS)
    ),
    "MinNewTokensLengthLogitsProcessor": Case(
        {"min_new_tokens": 8}, lambda ids: library.MinNewTokensLengthLogitsProcessor(ids.shape[1], 8, EOS)
    ),
    "RepetitionPenaltyLogitsProcessor": Case(
        {"repetition_penalty": 1.7},
        lambda ids: library.RepetitionPenaltyLogitsProcessor(1.7, torch.tensor([2, 1, 3, 1, 1, 1])[: len(ids)]),
    ),
    "EncoderRepetitionPenaltyLogitsProcessor": Case(
        {"encoder_repetition_penalty": 20.0},
        lambda ids: library.EncoderRepetitionPenaltyLogitsProcessor(20.0, ids),
    ),
    "NoRepeatNGramLogitsProcessor": Case(
        {"no_repeat_ngram_size": 1}, lambda ids: library.NoRepeatNGramLogitsProcessor(2)
    ),
    "EncoderNoRepeatNGramLogitsProcessor": Case(
        {"encoder_no_repeat_ngram_size": 1}, lambda ids: library.EncoderNoRepeatNGramLogitsProcessor(1, ids)
    ),
    "SequenceBiasLogitsProcessor": Case(
        {"sequence_bias": [[[16], -5.0], [[33, 9], 40.0], [[9], 3.0]]},
        lambda ids: library.SequenceBiasLogitsProcessor({(16,): -5.0, (33, 9): 40.0, (9,): 3.0}),
    ),
    "NoBadWordsLogitsProcessor": Case(
        {"bad_words_ids": [[token] for token in range(0, 64, 2)] + [[33, 9]]},
        lambda ids: library.NoBadWordsLogitsProcessor([[token] for token in range(0, 64, 2)], EOS),
    ),
    "PrefixConstrainedLogitsProcessor": Case(
        {"prefix_allowed_tokens_fn": allowed},
        lambda ids: library.PrefixConstrainedLogitsProcessor(allowed, 1),
        state=True,
    ),
    "ForcedBOSTokenLogitsProcessor": Case(
        {"forced_bos_token_id": 9}, lambda ids: library.ForcedBOSTokenLogitsProcessor(9), row=1
    ),
    "ForcedEOSTokenLogitsProcessor": Case(
        {"forced_eos_token_id": [2], "eos_token_id": 63},
        lambda ids: library.ForcedEOSTokenLogitsProcessor(ids.shape[1] + 9, EOS),
    ),
    "InfNanRemoveLogitsProcessor": Case(
        {"remove_invalid_values": True, "bad_words_ids": [[token] for token in range(0, 64, 2)]},
        lambda ids: library.LogitsProcessorList(
            [library.NoBadWordsLogitsProcessor([[3], [9]]), library.InfNanRemoveLogitsProcessor()]
        ),
    ),
    "ExponentialDecayLengthPenalty": Case(
        {"exponential_decay_length_penalty": (2, 3.0)},
        lambda ids: library.ExponentialDecayLengthPenalty((3, 3.0), EOS, ids.shape[1]),
    ),
    "SuppressTokensAtBeginLogitsProcessor": Case(
        {"begin_suppress_tokens": list(range(0, 64, 2))},
        lambda ids: library.SuppressTokensAtBeginLogitsProcessor(list(range(0, 64, 2)), ids.shape[1]),
    ),
    "SuppressTokensLogitsProcessor": Case(
        {"suppress_tokens": list(range(0, 64, 2))}, lambda ids: library.SuppressTokensLogitsProcessor([16, 41, 9])
    ),
    "UnbatchedClassifierFreeGuidanceLogitsProcessor": Case({"guidance_scale": 1.8}, state=True),
    "WatermarkLogitsProcessor": Case({"watermarking_config": GREEN}),
    "SynthIDTextWatermarkLogitsProcessor": Case(
        {"watermarking_config": SYNTH_ID}, lambda ids: SYNTH_ID.construct_processor(64, "cpu"), state=True
    ),
    "LogitNormalization": Case({"renormalize_logits": True}, lambda ids: library.LogitNormalization()),
    "TemperatureLogitsWarper": Case({"temperature": 0.6}, lambda ids: library.TemperatureLogitsWarper(0.6), True),
    "TopPLogitsWarper": Case({"top_p": 0.5}, lambda ids: library.TopPLogitsWarper(0.5, min_tokens_to_keep=3), True),
    "TopKLogitsWarper": Case({"top_k": 5}, lambda ids: library.TopKLogitsWarper(5), True),
    "MinPLogitsWarper": Case({"min_p": 0.3}, lambda ids: library.MinPLogitsWarper(0.3), True),
    "TopHLogitsWarper": Case({"top_h": 0.4}, lambda ids: library.TopHLogitsWarper(0.4), True),
    "TypicalLogitsWarper": Case({"typical_p": 0.4}, lambda ids: library.TypicalLogitsWarper(0.4), True),
    "EpsilonLogitsWarper": Case({"epsilon_cutoff": 0.05}, lambda ids: library.EpsilonLogitsWarper(0.05), True),
    "EtaLogitsWarper": Case({"eta_cutoff": 0.2}, lambda ids: library.EtaLogitsWarper(0.2), True),
    # Made for Whisper and Bark, but functions of one text's ids and scores, so that they serve any decoder.
    "WhisperTimeStampLogitsProcessor": Case({}, lambda ids: whisper(ids.shape[1])),
    "AlternatingCodebooksLogitsProcessor": Case(
        {}, lambda ids: library.AlternatingCodebooksLogitsProcessor(ids.shape[1], 20, 20)
    ),
    "BarkEosPrioritizerLogitsProcessor": Case({}, lambda ids: library.BarkEosPrioritizerLogitsProcessor([14], 0.04)),
}
# What a text decoder cannot be asked for, in `generate` neither.
NOT_FOR_TEXT = {
    "WhisperNoSpeechDetection": "reads the speech model it is given, and changes no score",
    "ClassifierFreeGuidanceLogitsProcessor": "MusicGen's: wants scores [2B, V], conditional and unconditional ones",
    "DiaClassifierFreeGuidanceLogitsProcessor": "wants scores [2B, V], conditional and unconditional ones",
    "DiaEOSChannelFilterLogitsProcessor": "wants ids and scores with a channel dimension",
    "DiaEOSDelayPatternLogitsProcessor": "wants ids and scores with a channel dimension",
}
BY_FIELD = [name for name, case in CASES.items() if case.fields]
BY_OBJECT = [name for name, case in CASES.items() if case.build]


def test_the_table_knows_every_processor() -> None:
    every = {
        name
        for name, kind in inspect.getmembers(library, inspect.isclass)
        if issubclass(kind, library.LogitsProcessor) and kind is not library.LogitsProcessor
    }
    assert not every - CASES.keys() - NOT_FOR_TEXT.keys(), "say in CASES how it is asked for"


def test_which_keep_state() -> None:
    for name, case in CASES.items():
        if case.build is not None and hasattr(library, name):
            processor = case.build(IDS[:1])
            assert isinstance(processor, list) or keeps_state(processor) == case.state, name


@pytest.fixture(scope="module")
def model():
    return toy_model("llama", seed=5)


@pytest.fixture(scope="module")
def spec(model):
    return SpeculativeDecoder.from_models(model, noisy_copy(model, 0.05), top_p=1.0, seed=3)


def options_of(name: str, how: str, ids: Tensor) -> dict[str, Any]:
    """Fresh options: an object is asked for once only."""
    if not hasattr(library, name):
        pytest.skip("this version of transformers does not have it")
    case = CASES[name]
    options = {"eos_token_id": EOS, "max_new_tokens": NEW, "do_sample": case.sampled}
    if how == "field":
        return options | case.fields
    built = case.build(ids)
    return options | {"logits_processor": list(built) if isinstance(built, list) else [built]}


def plain(model, ids: Tensor, mask: Tensor | None, **options) -> Any:
    """transformers' own; top_k=50 is its default."""
    wanted = {"pad_token_id": PAD, "return_dict_in_generate": True, "output_scores": True}
    if options["do_sample"]:
        wanted["top_k"] = 0
    if "logits_processor" in options:
        options = options | {"logits_processor": library.LogitsProcessorList(options["logits_processor"])}
    if mask is not None:
        wanted["attention_mask"] = mask
    return model.generate(ids, **(wanted | options))


def written(sequences: Tensor, row: int, width: int) -> list[int]:
    """The new ids of a row, up to and with its end."""
    new = sequences[row, width:].tolist()
    ends = [at for at, token in enumerate(new) if token in EOS]
    return new[: ends[0] + 1] if ends else new


def close(ours: Tensor, theirs: Tensor) -> bool:
    return torch.equal(ours == -torch.inf, theirs == -torch.inf) and torch.allclose(ours, theirs, rtol=1e-4, atol=1e-4)


def check_row(ours: tuple[list[int], list[Tensor]], theirs: Any, row: int, width: int) -> None:
    """Ids and scores of one row of a greedy run; `generate` pads behind a row's end."""
    ids, scores = ours
    tail = theirs.sequences[row, width:].tolist()
    assert ids == tail[: len(ids)] and set(tail[len(ids) :]) <= {PAD}
    for at, own in enumerate(scores):
        assert close(own, theirs.scores[at][row]), f"scores of new token {at}"


def check_sampled(ours: list[tuple[list[int], list[Tensor]]], prefix: Tensor, mask, again: Callable[..., Any]) -> None:
    """Each row's scores are those that `generate` finds after the same prefix. prefix: the prompts [B, L]."""
    for at in range(max(len(ids) for ids, _ in ours)):
        theirs = again(prefix, mask)
        for row, (ids, scores) in enumerate(ours):
            assert at >= len(ids) or close(scores[at], theirs.scores[0][row]), f"row {row}, new token {at}"
        column = torch.tensor([[ids[at] if at < len(ids) else 1] for ids, _ in ours])
        prefix, mask = torch.cat([prefix, column], 1), torch.cat([mask, torch.ones_like(column)], 1)


def said(result) -> tuple[list[int], list[Tensor]]:
    return list(result.token_ids), list(result.scores)


WAYS = [("field", name) for name in BY_FIELD] + [("object", name) for name in BY_OBJECT]


@pytest.mark.parametrize(("how", "name"), WAYS)
def test_one_text(model, spec, how: str, name: str) -> None:
    ids = torch.tensor([ROWS[CASES[name].row]])
    ours = said(spec.generate(ids[0], output_scores=True, **options_of(name, how, ids)))
    bare = {"eos_token_id": CASES[name].fields.get("eos_token_id", EOS), "max_new_tokens": NEW, "do_sample": False}
    free = plain(model, ids, None, **bare)
    if not CASES[name].sampled:
        theirs = plain(model, ids, None, **options_of(name, how, ids))
        check_row(ours, theirs, 0, ids.shape[1])
        other = not torch.equal(theirs.sequences, free.sequences)
        assert other or not close(theirs.scores[0], free.scores[0]), "it does something here"
        return

    def again(prefix: Tensor, mask: Tensor) -> Any:
        return plain(model, prefix, mask, **options_of(name, how, ids) | {"max_new_tokens": 1})

    check_sampled([ours], ids, torch.ones_like(ids), again)
    assert not close(ours[1][0], free.scores[0][0]), "it does something here"


@pytest.mark.parametrize(("how", "name"), WAYS)
def test_a_ragged_list_is_each_row_alone(spec, how: str, name: str) -> None:
    def own(row: list[int]) -> dict[str, Any]:
        return options_of(name, how, torch.tensor([row]))

    settings = [{**own(row), "seed": 4} for row in ROWS]
    together = spec.generate(ROWS, output_scores=True, per_row=settings)
    assert sum(result.num_accepted_tokens for result in together) > 0
    for number, (row, result) in enumerate(zip(ROWS, together, strict=True)):
        options = own(row)
        if "prefix_allowed_tokens_fn" in options:  # alone a prompt has number 0
            options["prefix_allowed_tokens_fn"] = lambda _, ids, at=number: allowed(at, ids)
        alone = spec.generate(row, output_scores=True, seed=4, **options)
        assert alone.token_ids == result.token_ids
        assert all(close(a, b) for a, b in zip(result.scores, alone.scores, strict=True))


@pytest.mark.parametrize(("how", "name"), WAYS)
def test_a_left_padded_batch(model, spec, how: str, name: str) -> None:
    """Behind `custom_generate` processors see what `generate` shows them, padding included."""
    options = options_of(name, how, IDS)
    output = plain(model, IDS, MASK, custom_generate=spec, **options)
    ours = [said(result) for result in output.results]
    if not CASES[name].sampled:
        theirs = plain(model, IDS, MASK, **options_of(name, how, IDS))
        for row, mine in enumerate(ours):
            check_row(mine, theirs, row, WIDTH)
        return

    def again(prefix: Tensor, mask: Tensor) -> Any:
        return plain(model, prefix, mask, **options_of(name, how, IDS) | {"max_new_tokens": 1})

    check_sampled(ours, IDS, MASK, again)


@pytest.mark.parametrize("name", ["WatermarkLogitsProcessor", "LogitNormalization"])
def test_what_stands_behind_the_warpers(model, spec, name: str) -> None:
    options = {"top_p": 0.8, "temperature": 0.7, "eos_token_id": EOS, **CASES[name].fields}
    ours = [said(spec.generate(IDS[0], max_new_tokens=NEW, output_scores=True, **options))]

    def again(prefix: Tensor, mask: Tensor) -> Any:
        return plain(model, prefix, mask, do_sample=True, max_new_tokens=1, **options)

    check_sampled(ours, IDS[:1], MASK[:1], again)


@pytest.mark.parametrize(
    "name", ["EncoderRepetitionPenaltyLogitsProcessor", "EncoderNoRepeatNGramLogitsProcessor",
             "RepetitionPenaltyLogitsProcessor", "SynthIDTextWatermarkLogitsProcessor"]
)  # fmt: skip
@pytest.mark.parametrize("copies", [1, 2])
def test_an_object_built_for_a_batch_serves_each_row_its_part(model, spec, name: str, copies: int) -> None:
    """transformers spreads such an object over num_return_sequences as well; one of both is greedy here."""
    prompts = torch.tensor([[7, 33, 12], [4, 19, 44]])
    options = options_of(name, "object", prompts)
    found = spec.generate(prompts, num_return_sequences=copies, **options)
    for row in range(len(prompts)):
        one = options_of(name, "object", prompts)
        theirs = plain(model, prompts, torch.ones_like(prompts), **one)
        for copy in range(copies):
            assert list(found[row * copies + copy].token_ids) == written(theirs.sequences, row, 3)


def test_a_function_of_the_users_is_told_the_number_of_the_prompt(model, spec) -> None:
    options = options_of("PrefixConstrainedLogitsProcessor", "field", IDS)
    theirs = plain(model, IDS, MASK, **options)
    lists = spec.generate([IDS[0].tolist(), IDS[0].tolist()], **options)
    assert list(lists[0].token_ids) == written(theirs.sequences, 0, WIDTH) != list(lists[1].token_ids)
    alone = spec.generate(IDS[0], num_return_sequences=2, **options)
    assert [each.token_ids for each in alone] == [lists[0].token_ids] * 2


def test_padding_behind_a_prompt_is_refused(model, spec) -> None:
    with pytest.raises(ValueError, match="hides ids of row 1 behind others; pad prompts on the left"):
        plain(model, IDS.flip(1), MASK.flip(1), custom_generate=spec, max_new_tokens=4, do_sample=False)
