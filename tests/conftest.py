"""What many tests share: offline settings, a small tokenizer, and transformers' own generate as the oracle."""

from __future__ import annotations

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
import torch
import transformers
from hypothesis import settings
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from decoder.models.toy import noisy_copy, toy_model

transformers.logging.set_verbosity_error()

# The same examples in every run; `pytest --hypothesis-profile=explore` looks for new ones.
settings.register_profile("fixed", derandomize=True)
settings.register_profile("explore")
settings.load_profile("fixed")

_CORPUS = ["once upon a time there was a little cat who liked the river and the sun", "the end of the story is near"]


def byte_level_tokenizer(vocab_size: int = 280) -> PreTrainedTokenizerFast:
    """Byte-level BPE: every byte is a token, so a model can emit half a character."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=["<pad>", "<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(_CORPUS, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<s>", eos_token="</s>", pad_token="<pad>")


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    return byte_level_tokenizer()


@pytest.fixture(scope="session")
def target(tokenizer):
    """A random Llama with the tokenizer's vocabulary that mostly speaks in whole characters."""
    model = toy_model("llama", seed=3, vocab_size=len(tokenizer))
    broken = [token for token in range(len(tokenizer)) if not tokenizer.decode([token]).isprintable()]
    broken += [token for token in range(len(tokenizer)) if "\ufffd" in tokenizer.decode([token])]
    with torch.no_grad():
        model.lm_head.weight[broken] *= 0.3
    return model


@pytest.fixture(scope="session")
def draft(target):
    """Agrees with the target about half of the time."""
    return noisy_copy(target, 0.1)


def plain(model, prompt, new: int, **options) -> list[int]:
    """New ids of transformers' own greedy search; the oracle."""
    ids = torch.as_tensor(prompt, dtype=torch.long).reshape(1, -1)
    kept = model.generation_config.eos_token_id
    if options.get("eos_token_id", 0) is None:  # the library reads None as "use the model's own"
        model.generation_config.eos_token_id = None
    try:
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, do_sample=False, pad_token_id=0, **options
        )
    finally:
        model.generation_config.eos_token_id = kept
    return out[0, ids.shape[1] :].tolist()


@pytest.fixture(scope="session")
def greedy():
    return plain
