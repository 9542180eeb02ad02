"""The tokenizer, the packed token stream, and the order in which its chunks are read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

END_OF_TEXT = "<|endoftext|>"  # both beginning and end of a text: one id separates the stories of the stream
PAD = "<|pad|>"
END_OF_TEXT_ID = 0
PAD_ID = 1


def train_tokenizer(sections: Sequence[str], vocab_size: int, context: int) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE of at most `vocab_size` entries, the two special tokens included.

    All 256 bytes are in the alphabet, so any UTF-8 text makes the round trip although the corpus is ASCII.
    """
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT, PAD],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    core.train_from_iterator(sections, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token=END_OF_TEXT,
        eos_token=END_OF_TEXT,
        pad_token=PAD,
        model_max_length=context,
        clean_up_tokenization_spaces=False,
    )


def encode_stream(tokenizer: PreTrainedTokenizerFast, sections: Sequence[str]) -> np.ndarray:
    """Concatenate sections into one uint16 stream (n,): END_OF_TEXT before each section and once at the end."""
    pieces: list[int] = [END_OF_TEXT_ID]
    for encoding in tokenizer.backend_tokenizer.encode_batch(list(sections), add_special_tokens=False):
        pieces.extend(encoding.ids)
        pieces.append(END_OF_TEXT_ID)
    return np.asarray(pieces, dtype=np.uint16)


def save_stream(path: Path, stream: np.ndarray) -> None:
    """Write a token stream (n,) as a plain .npy file."""
    np.save(path, stream, allow_pickle=False)


def load_stream(path: Path) -> np.ndarray:
    """Read a token stream written by `save_stream`."""
    return np.load(path, allow_pickle=False)


class ChunkOrder:
    """A stateless shuffled order over a token stream: batch number and seed alone say which tokens it holds.

    The stream is cut into chunks of `chunk` tokens; each epoch shifts the cuts and permutes the chunks anew. Since
    nothing is remembered between calls, a run resumed at step s reads exactly what an uninterrupted run would.
    """

    def __init__(self, stream: np.ndarray, chunk: int, seed: int) -> None:
        self.count = (len(stream) - 1) // chunk - 1  # one chunk fewer, to leave room for the epoch's shift
        if self.count < 1:
            raise ValueError(f"stream: {len(stream)} tokens, at least {2 * chunk + 1} are needed; give more text")
        self._stream, self._chunk, self._seed = stream, chunk, seed

    def batch(self, step: int, chunks: int, length: int) -> torch.Tensor:
        """Token ids (chunks * chunk / length, length + 1) int64 of the `step`-th batch of `chunks` chunks.

        Each row carries one token more than `length`: row[:-1] is the input, row[1:] what it must predict.
        """
        if self._chunk % length:
            raise ValueError(f"length: {length} must divide the chunk length {self._chunk}")
        rows = []
        for index in range(step * chunks, (step + 1) * chunks):
            start = self._start(index)
            for offset in range(start, start + self._chunk, length):
                rows.append(self._stream[offset : offset + length + 1].astype(np.int64))
        return torch.from_numpy(np.stack(rows))

    def _start(self, index: int) -> int:
        epoch, position = divmod(index, self.count)
        rng = np.random.default_rng([self._seed, epoch])
        shift = int(rng.integers(self._chunk))
        return shift + int(rng.permutation(self.count)[position]) * self._chunk
