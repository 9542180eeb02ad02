"""Training of heads: the unrolled run is drafting itself, losses are what they say, runs go on where they stopped."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from decoder import SpeculativeDecoder, cli
from decoder.heads import FeatureHead
from decoder.heads.config import config_for
from decoder.heads.store import load_own
from decoder.models.cache import PositionCache
from decoder.models.features import feature_modules, recorded
from decoder.models.toy import toy_model
from decoder.training.command import train_head
from decoder.training.loss import step_loss, tally, target_probs, unrolled_loss
from decoder.training.recipe import Recipe
from decoder.training.start import fit_outputs, initialise
from decoder.training.teacher import LessonStore, Teacher
from decoder.training.texts import Text, batch_of, batches, frequent_ids, read_texts
from decoder.training.unroll import unrolled

VOCAB = 24


@pytest.fixture(scope="module")
def target() -> Any:
    model = toy_model("llama", seed=2, vocab_size=VOCAB, num_hidden_layers=3)
    model.generation_config.eos_token_id = None
    return model


@pytest.fixture(scope="module")
def texts(target: Any) -> list[Text]:
    """What the target writes greedily after random prompts."""
    generator = torch.Generator().manual_seed(0)
    prompts = torch.randint(3, VOCAB, (60, 5), generator=generator)
    written = target.generate(prompts, max_new_tokens=20, do_sample=False, pad_token_id=0)
    return [Text(tuple(row), 5) for row in written.tolist()]


@pytest.fixture
def data(texts: list[Text], tmp_path: Path) -> Path:
    path = tmp_path / "texts.jsonl"
    rows = [{"prompt": list(t.tokens[: t.given]), "tokens": list(t.tokens[t.given :])} for t in texts]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("joins", ["input", "attention"])
@torch.no_grad()
def test_unrolled_steps_are_what_drafting_computes(target: Any, joins: str) -> None:
    """Oracle: from each anchor, one forward at a time over a cache that holds true features up to the anchor."""
    torch.manual_seed(0)
    config = config_for(target, joins=joins)
    head = FeatureHead(config).borrow(target)
    tokens = torch.randint(3, VOCAB, (2, 12))
    with recorded(feature_modules(target, config.feature_layers)) as found:
        target(tokens)
    first = 2
    steps = list(unrolled(head, tokens, found.states, 4, first))
    features = head.features(found.states)
    for anchor in range(first, 8):
        cache = PositionCache(1, 2, 32)
        cache.place([0, 0], anchor + 1)
        here = torch.arange(anchor + 1)[None]
        hidden = head(tokens[:, 1 : anchor + 2], features[:, : anchor + 1], here, None, cache.layers[0])[:, -1:]
        cache.commit([anchor + 1] * 2)
        torch.testing.assert_close(hidden[:, 0], steps[0][:, anchor - first])
        for step in range(1, 4):
            at = anchor + step
            cache.place([at, at], 1)
            hidden = head(tokens[:, at + 1 : at + 2], hidden, torch.full((1, 1), at), None, cache.layers[0])
            torch.testing.assert_close(hidden[:, 0], steps[step][:, at - first - step])


def test_recorded_states_are_transformers_hidden_states(target: Any) -> None:
    tokens = torch.randint(3, VOCAB, (2, 7))
    with torch.no_grad():
        states = target(tokens, output_hidden_states=True).hidden_states  # transformers leaves hooks of its own
        before = [len(module._forward_hooks) for module in target.modules()]
        with recorded(feature_modules(target, (1, 2))) as found:
            target(tokens)
    assert torch.equal(found.states, torch.cat([states[1], states[2]], -1))
    assert [len(module._forward_hooks) for module in target.modules()] == before


def test_p_over_a_reduced_vocabulary_is_a_part_of_p(target: Any, texts: list[Text]) -> None:
    batch = batch_of(texts[:3])
    lesson = Teacher(target, (1, 3)).lesson(batch)
    ids = torch.tensor([3, 7, 8, 20])
    p = target_probs(target.lm_head.weight[ids].detach(), lesson, 2)
    with torch.no_grad():
        whole = torch.softmax(target(batch.tokens).logits, -1)
    torch.testing.assert_close(p, whole[:, 3:, ids], rtol=0.05, atol=2e-3)  # kept in bfloat16
    assert (lesson.choice == whole.argmax(-1)).all()


def test_losses() -> None:
    p = torch.tensor([[[0.5, 0.3, 0.1]]])  # 0.1 lies outside
    logits = torch.tensor([[[2.0, 1.0, 0.0]]], requires_grad=True)
    q = torch.softmax(logits, -1)
    assert step_loss(logits, p, "kl").item() == pytest.approx(-(p * q.log()).sum().item())
    assert step_loss(logits, p, "tv").item() == pytest.approx(1 - torch.minimum(p, q).sum().item())
    step_loss(logits, p, "kl").sum().backward()
    torch.testing.assert_close(logits.grad, (0.9 * q - p).detach())


def test_a_tally_counts_what_greedy_drafting_accepts(target: Any, texts: list[Text]) -> None:
    """Oracle: the drafter itself, from every position of the texts."""
    torch.manual_seed(1)
    config = config_for(target)
    head = FeatureHead(config).borrow(target)
    initialise(head, target)
    batch = batch_of(texts[:4])
    lesson = Teacher(target, config.feature_layers).lesson(batch)
    depth = 3
    found = tally(head, target.lm_head.weight.detach(), batch, lesson, depth)
    decoder = SpeculativeDecoder.from_models(target, head=head, temperature=0)
    accepted = []
    for text in texts[:4]:
        for end in range(text.given + 1, len(text.tokens) - depth + 1):
            # the second round of a run drafts on tokens[:end]: the first token is the prefill's
            result = decoder.generate(list(text.tokens[: end - 1]), max_new_tokens=depth + 2, k=depth)
            accepted.append(result.steps[1].accepted)
    reached = [sum(n >= d for n in accepted) for d in range(depth + 1)]
    # the first anchor of each text drafts its first own token, which no run above does
    assert found.positions - 4 == reached[0]
    assert all(abs(a - b) <= 4 for a, b in zip(found.reached, reached, strict=True))


def test_the_closed_form_explains_and_helps(target: Any, texts: list[Text]) -> None:
    config = config_for(target)
    teacher = Teacher(target, config.feature_layers)
    lessons = [(batch, teacher.lesson(batch)) for batch in (batch_of(texts[:40]),)]
    torch.manual_seed(0)
    head = FeatureHead(config).borrow(target)
    initialise(head, target)
    rows = target.lm_head.weight.detach()
    held = batch_of(texts[40:])
    before = tally(head, rows, held, teacher.lesson(held), 2).acceptance[0]
    explained = fit_outputs(head, lessons)
    assert explained["join"] > 0.5 and all(0 < each <= 1 for each in explained.values())
    assert tally(head, rows, held, teacher.lesson(held), 2).acceptance[0] > before


def test_training_lowers_the_loss_and_goes_on(target: Any, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "head"
    recipe = Recipe(minutes=0, steps=6, vocabulary=12, tokens_per_step=300, tokens_per_batch=200, fit_tokens=0, depth=2)
    run = train_head(target, data, out, recipe)
    assert run.progress.step == 6
    losses = [float(row["loss"]) for row in csv.DictReader((out / "loss.csv").open())]
    assert losses[-1] < losses[0]
    head = load_own(out)
    assert head.config.outputs == 12 and head.lm_head is None
    again = train_head(target, data, out, Recipe(**{**recipe.to_dict(), "steps": 8, "feature_layers": ()}))
    assert again.progress.step == 8 and again.progress.tokens > run.progress.tokens
    assert len((out / "loss.csv").read_text().splitlines()) == 9
    assert (out / "curves.png").stat().st_size > 1000
    SpeculativeDecoder.from_models(target, head=out, temperature=0).generate([3, 4, 5], max_new_tokens=8)


def test_an_interrupted_run_equals_a_whole_one(target: Any, data: Path, tmp_path: Path) -> None:
    recipe = Recipe(
        minutes=0, steps=4, vocabulary=0, tokens_per_step=200, tokens_per_batch=200, fit_tokens=500, depth=2
    )
    whole = train_head(target, data, tmp_path / "whole", recipe)
    train_head(target, data, tmp_path / "parts", recipe, pause_after_s=0.0)
    for _ in range(4):
        parts = train_head(target, data, tmp_path / "parts", recipe, pause_after_s=1e-6)
    assert parts.progress.step == whole.progress.step == 4
    for name, tensor in whole.head.state_dict().items():
        torch.testing.assert_close(parts.head.state_dict()[name], tensor, rtol=1e-4, atol=1e-5)


def test_the_store_keeps_lessons_up_to_its_bound(target: Any, texts: list[Text], tmp_path: Path) -> None:
    batch = batch_of(texts[:4])
    made = Teacher(target, (1, 3)).lesson(batch)
    size = LessonStore(tmp_path / "one", 10**9)
    Teacher(target, (1, 3), size).lesson(batch)
    kept = LessonStore(tmp_path / "one", 10**9)  # read again from disk
    assert len(kept) == 4
    again = Teacher(target, (1, 3), kept).lesson(batch)
    assert torch.equal(again.states, made.states) and torch.equal(again.final, made.final)
    assert torch.equal(again.choice, made.choice)
    small = LessonStore(tmp_path / "two", 3000)
    Teacher(target, (1, 3), small).lesson(batch)
    assert len(small) < 4 and (tmp_path / "two" / "lessons.bin").stat().st_size <= 3000 if len(small) else True


def test_texts(data: Path, tmp_path: Path) -> None:
    texts = read_texts(data, 12)
    assert all(len(text.tokens) == 12 for text in texts)
    ids = frequent_ids(texts, VOCAB, 9)
    assert len(ids) == 9 and ids.tolist() == sorted(set(ids.tolist()))
    groups = batches(texts, 40, 0)
    assert sorted(t.key for g in groups for t in g) == sorted(t.key for t in texts)
    assert all(len(group) <= 3 for group in groups)
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"prompt": "words", "tokens": [1]}\n')
    with pytest.raises(ValueError, match="line 1"):
        read_texts(bad, 12)
    with pytest.raises(ValueError, match="neither"):
        read_texts(tmp_path / "none.jsonl", 12)


def test_the_command_writes_texts_and_trains(
    target: Any, tokenizer: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = toy_model("llama", seed=2, vocab_size=len(tokenizer))
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("".join(f"once upon a time {n}\n" for n in range(40)))
    arguments = [
        "train-head",
        "--target",
        str(tmp_path / "model"),
        "--data",
        str(prompts),
        "--out",
        str(tmp_path / "o"),
    ]
    options = "--steps 2 --minutes 9 --vocabulary 64 --max-new-tokens 12 --tokens-per-step 200 --store-gb 0"
    assert cli.main([*arguments, *options.split()]) == 0
    assert "tokens_per_round" in capsys.readouterr().out
    assert len((tmp_path / "o" / "texts" / "texts.jsonl").read_text().splitlines()) == 40
    assert load_own(tmp_path / "o").config.outputs == 64
    assert cli.main([*arguments[:-1], str(tmp_path / "p"), "--loss", "kl", "--data", str(tmp_path / "none")]) == 2
    assert "does not exist" in capsys.readouterr().err


def test_unrolled_loss_needs_no_padding(target: Any, texts: list[Text]) -> None:
    """A batch of two texts of different length has the weighted mean loss of each alone."""
    torch.manual_seed(0)
    config = config_for(target)
    head = FeatureHead(config).borrow(target)
    teacher, rows = Teacher(target, config.feature_layers), target.lm_head.weight.detach()
    short = Text(texts[1].tokens[:14], 5)
    losses, counts = [], []
    for group in ([texts[0]], [short], [texts[0], short]):
        batch = batch_of(group)
        losses.append(unrolled_loss(head, rows, batch, teacher.lesson(batch), [1.0], "kl").item())
        counts.append(int(batch.learn.sum()))
    assert losses[2] == pytest.approx((losses[0] * counts[0] + losses[1] * counts[1]) / counts[2], rel=1e-3)
