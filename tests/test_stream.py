"""`stream()`: the pieces are the text, never half a character, never past a stop string; dropping it is safe."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
import torch

from decoder import SpeculativeDecoder
from decoder.drafters import NgramDrafter
from decoder.models.toy import noisy_copy, toy_model


@pytest.fixture
def talker(target, draft, tokenizer) -> SpeculativeDecoder:
    return SpeculativeDecoder.from_models(target, draft, tokenizer=tokenizer, temperature=0)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("k", [0, 1, 5])
def test_pieces_join_to_the_result_and_to_generate(talker, k: int, temperature: float) -> None:
    options = {"k": k, "max_new_tokens": 40, "temperature": temperature, "top_p": 1.0, "eos_token_id": None, "seed": 3}
    stream = talker.stream("the cat 你", **options)
    pieces = list(stream)
    whole = talker.generate("the cat 你", **options)
    assert "".join(pieces) == stream.result.text == whole.text
    assert stream.result.token_ids == whole.token_ids
    assert all(pieces), "no empty pieces"
    assert len(pieces) > 3


class Parrot(torch.nn.Module):
    """A head that makes a model say a given text, whatever its layers think."""

    def __init__(self, size: int, script: list[int], model) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(size, 1))
        self.script = torch.tensor(script)
        self.positions = torch.zeros(1, 1)
        model.model.layers[0].register_forward_pre_hook(self.note, with_kwargs=True)

    def note(self, module, args, kwargs) -> None:
        self.positions = kwargs["position_ids"]

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        at = self.positions[:, -hidden.shape[1] :].clamp(max=len(self.script) - 1)
        return torch.nn.functional.one_hot(self.script[at], self.weight.shape[0]).float() * 20


def parrot(tokenizer, text: str):
    """A model that continues a one-token prompt with `text` and EOS."""
    model = toy_model("llama", vocab_size=len(tokenizer))
    script = [*tokenizer(text)["input_ids"], tokenizer.eos_token_id]
    model.lm_head = Parrot(len(tokenizer), script, model)
    return model


WRITINGS = [
    "👩‍👩‍👧‍👦 ok 🐈‍⬛!",
    "你好，世界。再见",
    "e\u0301 n\u0303 \u0928\u092e\u0938\u094d\u0924\u0947",
    "plain text",
    "\ufffd odd \ufffd",
]


@pytest.mark.parametrize("k", [0, 2, 7])
@pytest.mark.parametrize("text", WRITINGS)
def test_no_piece_ever_holds_half_a_character(tokenizer, text: str, k: int) -> None:
    spec = SpeculativeDecoder.from_models(parrot(tokenizer, text), tokenizer=tokenizer, temperature=0)
    spec = SpeculativeDecoder.from_models(
        spec.target, parrot(tokenizer, text[:5] + "?"), tokenizer=tokenizer, temperature=0
    )
    stream = spec.stream(torch.tensor([5]), k=k)
    pieces = list(stream)
    assert "".join(pieces) == text == stream.result.text
    assert stream.result.finish_reason == "eos"
    for piece in pieces:
        assert piece.encode("utf-8")  # no lone surrogates
        assert "\ufffd" in text or "\ufffd" not in piece


@pytest.mark.parametrize("k", [0, 3, 6])
def test_a_stop_string_is_never_streamed_past_nor_its_beginning_shown_and_taken_back(tokenizer, k: int) -> None:
    spec = SpeculativeDecoder.from_models(
        parrot(tokenizer, "one END of it END. two"), tokenizer=tokenizer, temperature=0
    )
    for string, wanted in (("END.", "one END of it END."), ("END", "one END"), ("nowhere", "one END of it END. two")):
        stream = spec.stream(torch.tensor([5]), k=k, stop_strings=[string])
        shown = ""
        for piece in stream:
            shown += piece
            assert wanted.startswith(shown)
        assert shown == wanted == stream.result.text
        assert stream.result.finish_reason == ("eos" if string == "nowhere" else "stop")


def test_a_stop_string_that_begins_in_the_prompt_stops_and_cuts_everywhere_alike(tokenizer, greedy) -> None:
    """It ends inside a token of several characters: the ids are those of transformers, the text is cut there."""
    text = "once upon a time there was a little cat"
    model, ids = parrot(tokenizer, text), tokenizer(text)["input_ids"]
    spec = SpeculativeDecoder.from_models(model, parrot(tokenizer, text[:20] + "?"), tokenizer=tokenizer, temperature=0)
    tried = 0
    for m in range(1, len(ids) - 1):
        piece = tokenizer.decode(ids[m])
        if len(piece) < 2:
            continue
        prompt, stop = torch.tensor([5, *ids[:m]]), tokenizer.decode(ids[m - 1])[-1] + piece[:-1]
        wanted = greedy(model, prompt, 20, stop_strings=[stop], tokenizer=tokenizer)
        assert len(wanted) < 20
        options = {"k": 3, "max_new_tokens": 20, "stop_strings": [stop, "never said"]}
        result, stream = spec.generate(prompt, **options), spec.stream(prompt, **options)
        assert list(result.token_ids) == wanted and result.finish_reason == "stop"
        assert result.text == piece[:-1] and result.full_text.endswith(stop)
        assert "".join(stream) == "".join(piece for piece, _ in spec.stream(prompt, **options).tokens()) == result.text
        assert "".join(result.token_texts) == result.text
        assert list(stream.result.token_ids) == wanted
        tried += 1
    assert tried >= 4


@pytest.mark.parametrize(
    ("prompt", "said", "stop", "text"),
    [
        ("x<s>", "y on and on", "xy", "y on and on"),  # the special token keeps the two apart
        ("a", "x<s>y, xy on", "xy", "xy, xy"),
        ("a", "x<s>y on", "s>y", "xy"),
        ("a", "bx<s>y on", "x<", "bx"),
    ],
)
@pytest.mark.parametrize("k", [0, 3])
def test_with_special_tokens_ids_text_stream_and_reason_tell_one_story(
    tokenizer, greedy, k: int, prompt: str, said: str, stop: str, text: str
) -> None:
    before = tokenizer(prompt)["input_ids"]
    behind = tokenizer.decode(before[1:])  # a parrot's script begins behind the first token of its prompt
    model, draft = parrot(tokenizer, behind + said), parrot(tokenizer, behind + said[:6] + "?")
    spec = SpeculativeDecoder.from_models(model, draft, tokenizer=tokenizer, temperature=0)
    ids, options = torch.tensor(before), {"k": k, "max_new_tokens": 30, "stop_strings": [stop]}
    wanted = greedy(model, ids, 30, stop_strings=[stop], tokenizer=tokenizer)
    result, stream = spec.generate(ids, **options), spec.stream(ids, **options)
    assert list(result.token_ids) == wanted
    assert result.finish_reason == ("eos" if wanted[-1] == tokenizer.eos_token_id else "stop")
    assert result.text == text == "".join(result.token_texts)
    assert "".join(stream) == text and stream.result.text == text
    assert "".join(piece for piece, _ in spec.stream(ids, **options).tokens()) == text
    assert list(stream.result.token_ids) == wanted and stream.result.finish_reason == result.finish_reason


def test_special_tokens_are_not_part_of_the_text(tokenizer) -> None:
    spec = SpeculativeDecoder.from_models(parrot(tokenizer, "a<s>b"), tokenizer=tokenizer, temperature=0)
    stream = spec.stream(torch.tensor([5]))
    assert "".join(stream) == stream.result.text == "ab"


def test_the_result_is_there_at_the_end_and_only_then(talker) -> None:
    stream = talker.stream("the cat", max_new_tokens=12)
    assert stream.result is None
    assert isinstance(next(stream), str)
    assert stream.result is None
    for _ in stream:
        pass
    assert stream.result is not None
    with pytest.raises(StopIteration):
        next(stream)

    def outer():
        return (yield from talker.stream("the cat", max_new_tokens=12))

    generator = outer()
    try:
        while True:
            next(generator)
    except StopIteration as end:
        assert end.value.token_ids == stream.result.token_ids


def test_a_stream_is_read_once(talker) -> None:
    """A second reading would go on writing to the finished text."""
    stream = talker.stream("the cat", max_new_tokens=12)
    assert "".join(stream) == stream.result.text
    ids = stream.result.token_ids
    assert list(stream) == []
    with pytest.raises(ValueError, match="this stream has been read already"):
        list(stream.tokens())
    assert stream.result.token_ids == ids
    half = talker.stream("the cat", max_new_tokens=12)
    first = next(half)
    with pytest.raises(ValueError, match="this stream has been read already"):
        list(half.tokens())
    assert first + "".join(half) == half.result.text == stream.result.text


def test_nothing_runs_before_the_first_piece_is_asked_for(talker, monkeypatch) -> None:
    calls = []
    monkeypatch.setattr(talker.target, "forward", lambda *args, **kwargs: calls.append(1))
    talker.stream("the cat", max_new_tokens=5)
    assert not calls


def test_waiting_before_or_between_pieces_is_not_counted_as_work(talker) -> None:
    stream = talker.stream("the cat", k=3, max_new_tokens=8, eos_token_id=None)
    time.sleep(0.3)
    for n, _ in enumerate(stream):
        if n == 0:
            time.sleep(0.3)
    result = stream.result
    busy = result.prefill_s + result.draft_s + result.target_s
    assert result.wall_s < busy + 0.25


@pytest.mark.parametrize("how", ["dropped", "closed", "kept"])
def test_an_abandoned_stream_leaves_the_decoder_usable(talker, how: str) -> None:
    before = talker.generate("a little river", k=3, max_new_tokens=12)
    stream = talker.stream("the cat", k=3, max_new_tokens=40)
    next(stream)
    if how == "dropped":
        del stream
    elif how == "closed":
        stream.close()
    assert talker.generate("a little river", k=3, max_new_tokens=12).token_ids == before.token_ids
    if how == "kept":  # and the half-read stream goes on where it was
        rest = "".join(stream)
        assert stream.result.text.endswith(rest)
        assert stream.result.token_ids == talker.generate("the cat", k=3, max_new_tokens=40).token_ids


def test_a_cache_in_use_by_a_stream_is_refused_and_free_after_it(talker) -> None:
    first = talker.generate("the cat", k=3, max_new_tokens=8, return_cache=True)
    stream = talker.stream("the cat", k=3, max_new_tokens=20, cache=first.cache)
    next(stream)
    with pytest.raises(ValueError, match="cache= is in use by another call"):
        talker.generate("the cat", cache=first.cache)
    stream.close()
    again = talker.generate("the cat", k=3, max_new_tokens=8, cache=first.cache)
    assert again.token_ids == first.token_ids


def test_streams_may_be_read_in_turns(talker) -> None:
    prompts = ["the cat", "a little river", "once upon"]
    wanted = [talker.generate(prompt, k=3, max_new_tokens=24).text for prompt in prompts]
    streams = [talker.stream(prompt, k=3, max_new_tokens=24) for prompt in prompts]
    texts = ["", "", ""]
    live = [0, 1, 2]
    while live:
        for n in list(live):
            piece = next(streams[n], None)
            if piece is None:
                live.remove(n)
            else:
                texts[n] += piece
    assert texts == wanted


def test_a_stream_takes_any_drafter_and_processors(talker) -> None:
    options = {"k": 4, "max_new_tokens": 16, "repetition_penalty": 1.4, "drafter": NgramDrafter(1, 2)}
    stream = talker.stream("the cat the cat", **options)
    assert "".join(stream) == talker.generate("the cat the cat", **options).text


def test_noise_in_the_draft_does_not_reach_the_text(target, tokenizer) -> None:
    texts = set()
    for noise in (0.0, 0.05, 0.3):
        spec = SpeculativeDecoder.from_models(target, noisy_copy(target, noise), tokenizer=tokenizer, temperature=0)
        texts.add("".join(spec.stream("the cat", k=4, max_new_tokens=20)))
    assert len(texts) == 1


# ---- async for ----


async def gathered(stream) -> list[str]:
    return [piece async for piece in stream]


@pytest.mark.parametrize("k", [0, 4])
def test_async_for_gives_the_same_pieces_and_result(talker, k: int) -> None:
    options = {"k": k, "max_new_tokens": 24, "eos_token_id": None}
    stream = talker.stream("the cat", **options)
    assert asyncio.run(gathered(stream)) == list(talker.stream("the cat", **options))
    assert stream.result.text == talker.generate("the cat", **options).text
    assert asyncio.run(gathered(stream)) == [], "a stream is read once"


def test_the_event_loop_is_free_while_a_round_runs(talker) -> None:
    """No forward runs in the loop's thread, and another task gets its turns during each of them."""
    threads, turns = set(), []

    def slow(module, args) -> None:
        threads.add(threading.get_ident())
        time.sleep(0.02)

    handle = talker.target.register_forward_pre_hook(slow)

    async def both() -> list[str]:
        async def tick() -> None:
            while True:
                turns.append(None)
                await asyncio.sleep(0.002)

        ticking = asyncio.ensure_future(tick())
        pieces = await gathered(talker.stream("the cat", k=2, max_new_tokens=12, eos_token_id=None))
        ticking.cancel()
        return pieces

    try:
        text = "".join(asyncio.run(both()))
    finally:
        handle.remove()
    assert text == talker.generate("the cat", k=2, max_new_tokens=12, eos_token_id=None).text
    assert threads and threading.get_ident() not in threads
    assert len(turns) > 10


@pytest.mark.parametrize("how", ["cancelled", "closed", "broken off"])
def test_leaving_an_async_stream_ends_the_generation_and_frees_its_cache(talker, how: str) -> None:
    kept = talker.generate("the cat", k=3, max_new_tokens=8, return_cache=True).cache
    stream = talker.stream("the cat", k=3, max_new_tokens=200, cache=kept, eos_token_id=None)
    inside, go_on, forwards = threading.Event(), threading.Event(), []

    def wait(module, args) -> None:
        forwards.append(None)
        if len(forwards) == 3 and how == "cancelled":
            inside.set()
            go_on.wait(10)

    async def leave() -> None:
        if how == "cancelled":  # in the middle of a round
            task = asyncio.ensure_future(gathered(stream))
            await asyncio.to_thread(inside.wait, 10)
            task.cancel()
            await asyncio.sleep(0.01)
            go_on.set()
            with pytest.raises(asyncio.CancelledError):
                await task
        elif how == "closed":
            pieces = stream.__aiter__()
            await pieces.__anext__()
            await pieces.aclose()
        else:
            async for _ in stream:
                break
            await asyncio.sleep(0.05)  # the loop closes what nobody holds

    handle = talker.target.register_forward_pre_hook(wait)
    try:
        asyncio.run(leave())
    finally:
        handle.remove()
    assert 0 < len(forwards) < 20 and stream.result is None
    assert list(stream) == [], "it is over"
    again = talker.generate("the cat", k=3, max_new_tokens=8, cache=kept)
    assert again.text == talker.generate("the cat", k=3, max_new_tokens=8).text


def test_an_error_in_a_round_reaches_the_task(tokenizer) -> None:
    model = toy_model("llama", vocab_size=len(tokenizer))
    with torch.no_grad():
        model.lm_head.weight.fill_(float("nan"))
    spec = SpeculativeDecoder.from_models(model, tokenizer=tokenizer, temperature=0)
    with pytest.raises(ValueError, match="the target's logits are NaN"):
        asyncio.run(gathered(spec.stream("the cat")))


def test_async_streams_side_by_side(talker) -> None:
    prompts = ["the cat", "a little river", "once upon"]

    async def all_of_them():
        return await asyncio.gather(*[gathered(talker.stream(prompt, k=3, max_new_tokens=20)) for prompt in prompts])

    together = ["".join(pieces) for pieces in asyncio.run(all_of_them())]
    assert together == [talker.generate(prompt, k=3, max_new_tokens=20).text for prompt in prompts]
