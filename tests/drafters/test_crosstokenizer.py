"""A draft with another tokenizer: exact by enumeration and by parity, on text whose tokens end inside characters."""

from __future__ import annotations

import json

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from decoder import SpeculativeDecoder
from decoder.cli import main
from decoder.drafters.crosstokenizer import CrossTokenizerDrafter
from decoder.drafters.vocabulary import Reader, Vocabulary, byte_alphabet, whole_characters
from decoder.models.toy import TableModel, toy_model
from decoder.testing import check_lossless

MIXED = "Naïve café 🐈‍⬛ 猫が好き e\u0301te\u0301 – the cat 👩🏽‍🚀 went home,\n  二十 miles.  Ende"
STORY = ["the cat went to the river and the sun went home", "once upon a time the cat was near the end of the river"]
WORLD = ["cafe naive 猫が好き 猫が好き home home miles", "🐈 🐈 👩🏽‍🚀 👩🏽‍🚀 e\u0301te\u0301 Ende the end then there"]


def byte_level(corpus: list[str], size: int, *, bos: bool = False) -> PreTrainedTokenizerFast:
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=["<s>", "</s>"] if bos else ["<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(corpus, trainer)
    if bos:
        core.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    names = {"bos_token": "<s>", "eos_token": "</s>"} if bos else {"bos_token": "<|end|>", "eos_token": "<|end|>"}
    return PreTrainedTokenizerFast(tokenizer_object=core, **names)


def sentencepiece_like(corpus: list[str], size: int) -> PreTrainedTokenizerFast:
    """Spaces as U+2581, one put in front of every text, unknown characters as bytes."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Metaspace()
    core.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=size, show_progress=False))
    made = json.loads(core.to_str())
    for byte in range(256):
        made["model"]["vocab"][f"<0x{byte:02X}>"] = len(made["model"]["vocab"])
    made["model"]["byte_fallback"] = True
    core = Tokenizer.from_str(json.dumps(made))
    core.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=core)


def letters(*tokens: str) -> PreTrainedTokenizerFast:
    """A vocabulary of a few tokens over letters; the longer ones are merges of two."""
    merges = [(token[0], token[1]) for token in tokens if len(token) == 2]
    core = Tokenizer(models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=merges))
    return PreTrainedTokenizerFast(tokenizer_object=core)


@pytest.fixture(scope="module")
def story() -> PreTrainedTokenizerFast:
    return byte_level(STORY, 300)


@pytest.fixture(scope="module")
def world() -> PreTrainedTokenizerFast:
    return byte_level(WORLD, 330, bos=True)


@pytest.fixture(scope="module")
def spaced() -> PreTrainedTokenizerFast:
    return sentencepiece_like(STORY + WORLD, 120)


@pytest.fixture(scope="module")
def pair(story, world):
    """Random models of the two vocabularies."""
    return toy_model("llama", seed=3, vocab_size=len(story)), toy_model("gpt2", seed=4, vocab_size=len(world))


# ---- vocabularies ----


def test_the_byte_alphabet_is_the_librarys() -> None:
    alphabet = byte_alphabet()
    assert sorted(alphabet) == sorted(pre_tokenizers.ByteLevel.alphabet())
    written = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(MIXED)
    assert bytes(alphabet[character] for piece, _ in written for character in piece) == MIXED.encode()


def test_whole_characters_at_every_cut() -> None:
    data = MIXED.encode()
    for cut in range(len(data) + 1):
        assert whole_characters(data[:cut]) == len(data[:cut].decode(errors="ignore").encode())


@pytest.mark.parametrize("name", ["story", "world", "spaced"])
def test_every_prefix_of_mixed_text_is_spelled_back(name, request) -> None:
    vocabulary = Vocabulary(request.getfixturevalue(name))
    data = MIXED.encode()
    for cut in range(len(data) + 1):
        assert vocabulary.spell(vocabulary.encode(data[:cut])) == data[:cut]
        assert vocabulary.spell(vocabulary.encode(data[cut:])) == data[cut:]  # may begin inside a character


@pytest.mark.parametrize("name", ["story", "world", "spaced"])
def test_whole_text_is_encoded_as_the_tokenizer_does(name, request) -> None:
    tokenizer = request.getfixturevalue(name)
    wanted = tokenizer(MIXED, add_special_tokens=False)["input_ids"]
    assert Vocabulary(tokenizer).encode(MIXED.encode(), first=True) == wanted


def test_only_a_tokenizer_that_puts_bos_in_front_starts_with_it(story, world) -> None:
    assert Vocabulary(world).start == [world.bos_token_id]
    assert Vocabulary(story).start == []


# ---- reading ----


@pytest.mark.parametrize("names", [("story", "world"), ("world", "story"), ("story", "spaced"), ("spaced", "world")])
def test_reading_token_by_token_says_the_text(names, request) -> None:
    ours, theirs = (request.getfixturevalue(name) for name in names)
    target, draft = Vocabulary(ours), Vocabulary(theirs)
    context = ours(MIXED)["input_ids"]
    reader = Reader(target, draft)
    for length in range(1, len(context) + 1):
        reader.extend(context[:length])
        said = target.spell(context[:length])
        assert draft.spell(reader.ids).removeprefix(b" ") == said.removeprefix(b" ")
        assert not said or reader.ids.count(theirs.bos_token_id) == len(draft.start)
    whole = theirs(MIXED)["input_ids"]
    agree = sum(one == other for one, other in zip(reader.ids, whole, strict=False))
    assert agree >= 0.8 * len(whole), (reader.ids, whole)  # the same but for cuts inside unspaced writing


def test_words_are_read_as_the_draft_would_write_them(story, world) -> None:
    """Every word is encoded whole, however the target cut it."""
    text = "the cafe went home there"
    context = [story.get_vocab()["Ġ" if letter == " " else letter] for letter in text]  # letter by letter
    reader = Reader(Vocabulary(story), Vocabulary(world))
    for length in range(1, len(context) + 1):
        reader.extend(context[:length])
    assert reader.ids == world(text)["input_ids"]


def test_specials_are_translated_and_bos_never_comes_twice(story, world) -> None:
    ours, theirs = Vocabulary(world), Vocabulary(story)
    context = [world.bos_token_id, *world("the end")["input_ids"][1:], world.eos_token_id]
    reader = Reader(ours, theirs)
    reader.extend(context)
    assert reader.ids == [*story("the end")["input_ids"], story.eos_token_id]
    back = Reader(theirs, ours)
    back.extend([story.eos_token_id, *story("the end")["input_ids"]])  # BOS and EOS are one token there
    assert back.ids == world("the end")["input_ids"]


def test_a_draft_without_bytes_waits_for_the_whole_character(story) -> None:
    core = Tokenizer(models.BPE(vocab={"a": 0, "猫": 1, "b": 2}, merges=[]))
    draft = Vocabulary(PreTrainedTokenizerFast(tokenizer_object=core))
    reader = Reader(Vocabulary(story), draft)
    context = story("a猫b")["input_ids"]
    assert len(context) == 5  # the cat is three bytes here
    for length in range(1, 6):
        reader.extend(context[:length])
        assert reader.ids == [[0], [0], [0], [0, 1], [0, 1, 2]][length - 1]


def test_an_empty_past_is_a_past(story, world) -> None:
    reader = Reader(Vocabulary(world), Vocabulary(story))
    reader.extend([world.bos_token_id])
    assert reader.ids == [story.eos_token_id]
    reader.extend([world.bos_token_id, *world("the")["input_ids"][1:]])
    assert reader.ids == story("the")["input_ids"]


# ---- alignment ----


@pytest.mark.parametrize("names", [("story", "world"), ("world", "story"), ("spaced", "world")])
def test_aligned_tokens_spell_the_text_at_every_cut(names, request, pair) -> None:
    ours, theirs = (request.getfixturevalue(name) for name in names)
    drafter = CrossTokenizerDrafter(toy_model("llama", vocab_size=len(theirs)), ours, theirs)
    data = MIXED.encode()
    for cut in range(0, len(data), 3):
        context = drafter.target_vocabulary.encode(data[:cut])
        following = data[cut : cut + 9]
        assert drafter.target_vocabulary.spell(drafter.aligned(context, following)) == following


def test_aligned_goes_on_as_the_target_would(story, world) -> None:
    drafter = CrossTokenizerDrafter(toy_model("llama", vocab_size=len(world)), story, world)
    whole = story("the cat went home")["input_ids"]
    before = story("the cat")["input_ids"]
    assert before + drafter.aligned(before, b" went home") == whole
    assert drafter.aligned([*before, *story(" we")["input_ids"]], b"nt home")[-1] == whole[-1]


# ---- exactness ----

TARGETS = {2: letters("a", "b"), 3: letters("a", "b", "ab"), 5: letters("a", "b", "ab", "c", "ba")}
DRAFT = letters("b", "a", "ba", "bb")


@pytest.mark.parametrize("sample", [True, False], ids=["intersection", "text"])
def test_every_outcome_follows_the_target(sample) -> None:
    def recipe(target: TableModel) -> CrossTokenizerDrafter:
        tokenizer = TARGETS[target.vocab_size]
        return CrossTokenizerDrafter(TableModel.random(4, 7), tokenizer, DRAFT, sample=sample)

    print(check_lossless(recipe, ks=(1, 2)))


def prompts_of(tokenizer) -> list[list[int]]:
    return [tokenizer(text)["input_ids"] for text in ("the cat", MIXED, "猫が好")]


@pytest.mark.parametrize("flip", [False, True])
def test_greedy_equals_the_library(story, world, pair, flip, greedy) -> None:
    """Random models write broken characters most of the time; the batch is ragged."""
    models_, tokenizers = (pair[::-1], (world, story)) if flip else (pair, (story, world))
    spec = SpeculativeDecoder.from_models(
        *models_, tokenizer=tokenizers[0], draft_tokenizer=tokenizers[1], temperature=0.0, drafter="crosstokenizer"
    )
    prompts = prompts_of(tokenizers[0])
    results = spec.generate(prompts, max_new_tokens=20, eos_token_id=None)
    for prompt, result in zip(prompts, results, strict=True):
        assert list(result.token_ids) == greedy(models_[0], prompt, 20, eos_token_id=None)
        assert result.num_draft_tokens > 0


def bytes_only(*specials: str) -> PreTrainedTokenizerFast:
    """A token a byte, numbered backwards where there are specials in front."""
    order = sorted(pre_tokenizers.ByteLevel.alphabet(), reverse=bool(specials))
    core = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate([*specials, *order])}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    made = PreTrainedTokenizerFast(tokenizer_object=core)
    if specials:
        made.add_special_tokens({"eos_token": specials[0]})
    return made


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_same_model_under_other_numbers_is_always_accepted(temperature, greedy) -> None:
    """Its vectors sorted as its tokenizer numbers them, the target drafts for itself: nothing may get lost."""
    ours, theirs = bytes_only(), bytes_only("<eos>")
    target = toy_model("llama", seed=6, vocab_size=256)
    draft = toy_model("llama", seed=6, vocab_size=257)
    state = {name: value.clone() for name, value in target.state_dict().items()}
    place = [theirs.get_vocab()[token] for token, _ in sorted(ours.get_vocab().items(), key=lambda item: item[1])]
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        moved = torch.zeros(257, 32)
        moved[place] = state[name]
        state[name] = moved
    draft.load_state_dict(state)
    draft.lm_head.weight.data[0] = 0.0
    spec = SpeculativeDecoder.from_models(
        target,
        draft,
        tokenizer=ours,
        draft_tokenizer=theirs,
        temperature=temperature,
        top_p=1.0,
        drafter="crosstokenizer",
        seed=5,
    )
    result = spec.generate("猫 cat", max_new_tokens=30, eos_token_id=None)
    if temperature == 0.0:
        assert list(result.token_ids) == greedy(target, ours("猫 cat")["input_ids"], 30, eos_token_id=None)
    assert result.acceptance_rate == 1.0
    assert result.tokens_per_iteration > 4.5


def test_sampling_is_reproducible_and_drafts(story, world, pair) -> None:
    spec = SpeculativeDecoder.from_models(
        *pair, tokenizer=story, draft_tokenizer=world, temperature=1.0, drafter="crosstokenizer", seed=3
    )
    prompts = prompts_of(story)
    together = spec.generate(prompts, max_new_tokens=15, eos_token_id=None)
    again = spec.generate(prompts, max_new_tokens=15, eos_token_id=None)
    assert [result.token_ids for result in together] == [result.token_ids for result in again]
    assert sum(result.num_accepted_tokens for result in together) > 0


def test_a_short_draft_context_stops_drafting_not_generating(story, world, greedy) -> None:
    target = toy_model("llama", seed=3, vocab_size=len(story))
    draft = toy_model("gpt2", seed=4, vocab_size=len(world), n_positions=12)
    spec = SpeculativeDecoder.from_models(
        target, draft, tokenizer=story, draft_tokenizer=world, temperature=0.0, drafter="crosstokenizer"
    )
    prompts = [story(text)["input_ids"] for text in ("the", MIXED)]
    results = spec.generate(prompts, max_new_tokens=24, eos_token_id=None)
    for prompt, result in zip(prompts, results, strict=True):
        assert list(result.token_ids) == greedy(target, prompt, 24, eos_token_id=None)
    assert results[0].num_draft_tokens > 0
    assert results[1].num_draft_tokens == 0


def test_processors_that_leave_no_shared_token(story, world, pair) -> None:
    spec = SpeculativeDecoder.from_models(
        *pair, tokenizer=story, draft_tokenizer=world, temperature=1.0, drafter="crosstokenizer", seed=3
    )
    shared = set(spec.drafter._shared[0].tolist())
    result = spec.generate("the cat", max_new_tokens=8, eos_token_id=None, suppress_tokens=sorted(shared))
    assert not shared & set(result.token_ids)
    assert result.num_accepted_tokens == 0


# ---- asking for it ----


def test_different_tokenizers_are_refused_with_the_remedy(story, world, pair) -> None:
    with pytest.raises(ValueError, match="drafter='crosstokenizer'"):
        SpeculativeDecoder.from_models(*pair, tokenizer=story, draft_tokenizer=world)


def test_names_load_both_tokenizers(story, world, pair, tmp_path) -> None:
    for name, model, tokenizer in (("target", pair[0], story), ("draft", pair[1], world)):
        model.save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
    paths = str(tmp_path / "target"), str(tmp_path / "draft")
    with pytest.raises(ValueError, match="drafter='crosstokenizer'"):
        SpeculativeDecoder(*paths)
    spec = SpeculativeDecoder(*paths, drafter="crosstokenizer", temperature=0.0)
    result = spec.generate("the cat 🐈", max_new_tokens=12)
    assert result.token_ids == spec.generate_baseline("the cat 🐈", max_new_tokens=12).token_ids
    assert result.num_draft_tokens > 0
    assert "tokens shared" in repr(spec.drafter)


def test_compare_reaches_it_by_names(story, world, pair, tmp_path, capsys) -> None:
    """`specdec bench`, transformers' own assistance across tokenizers beside it."""
    for name, model, tokenizer in (("target", pair[0], story), ("draft", pair[1], world)):
        model.save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
    folders = ("--target", str(tmp_path / "target"), "--draft", str(tmp_path / "draft"))
    small = ("--limit", "1", "--repeats", "1", "--max-new-tokens", "8", "--k", "2", "--temperature", "0")
    assert main(["bench", *folders, *small, "--drafter", "crosstokenizer"]) == 0
    equal = [line.split()[1] for line in capsys.readouterr().out.splitlines() if line.endswith("1/1           |")]
    assert equal == ["hf", "hf-assisted", "baseline", "speculative"]
    assert main(["bench", *folders, *small]) == 2
    assert "drafter='crosstokenizer'" in capsys.readouterr().err


@pytest.mark.parametrize("missing", ["draft", "tokenizer", "draft_tokenizer"])
def test_what_is_missing_is_named(story, world, pair, missing) -> None:
    given = {"draft": pair[1], "tokenizer": story, "draft_tokenizer": world}
    del given[missing]
    name = {"tokenizer": "target_tokenizer", "draft": "draft_model_name"}.get(missing, missing)
    with pytest.raises(ValueError, match=name):
        SpeculativeDecoder.from_models(pair[0], **given, drafter="crosstokenizer")


def test_tokenizers_with_nothing_in_common_are_refused() -> None:
    with pytest.raises(ValueError, match="share no token"):
        CrossTokenizerDrafter(TableModel.random(2, 0), letters("a", "b"), letters("c", "d"))
