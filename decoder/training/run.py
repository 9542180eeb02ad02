"""L5: the training run: accelerate, one text stream a process, checkpoints from which it goes on.

The schedule follows wall time or steps. Every checkpoint holds the head (in the layout that drafting reads), both
optimisers, the position in the data and the time used, and measures held-out acceptance by depth.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list
from torch import Tensor, nn
from tqdm.auto import tqdm

from decoder.heads.eagle import FeatureHead
from decoder.heads.store import save_head
from decoder.training.curves import Curves
from decoder.training.loss import Tally, tally, unrolled_loss
from decoder.training.recipe import Recipe
from decoder.training.teacher import Lesson, Teacher
from decoder.training.texts import Batch, Text, batch_of, batches, read_texts

STATE_FILE = "state.pt"


class Learner(nn.Module):
    """The head and its loss as one forward, which a distributed wrapper needs."""

    def __init__(self, head: FeatureHead, rows: Tensor, recipe: Recipe) -> None:
        super().__init__()
        self.head, self.recipe = head, recipe
        self._rows = rows

    def forward(self, batch: Batch, lesson: Lesson) -> Tensor:
        return unrolled_loss(self.head, self._rows, batch, lesson, self.recipe.weights(), self.recipe.loss)


def optimisers(head: FeatureHead, recipe: Recipe) -> list[torch.optim.Optimizer]:
    """Muon for the layer's matrices, AdamW for the rest."""
    own = ("lm_head", "embed_tokens")
    matrices = [p for name, p in head.named_parameters() if p.dim() == 2 and not name.startswith(own)]
    taken = {id(p) for p in matrices}
    rest = [p for p in head.parameters() if id(p) not in taken]
    muon = torch.optim.Muon(matrices, lr=recipe.rate, weight_decay=recipe.weight_decay, adjust_lr_fn="match_rms_adamw")
    return [muon, torch.optim.AdamW(rest, lr=recipe.rate_vectors, betas=(0.9, 0.95), weight_decay=0.0)]


@dataclass
class Progress:
    """Where a run stands; what a checkpoint keeps of it."""

    step: int = 0
    tokens: int = 0
    elapsed_s: float = 0.0
    epoch: int = 0
    batch: int = 0  # of the epoch


class Stream:
    """The batches of one process, epoch after epoch; texts that were added appear with the next epoch."""

    def __init__(self, data: Path, recipe: Recipe, progress: Progress, rank: int, ranks: int) -> None:
        self._data, self._recipe, self._progress = data, recipe, progress
        self._rank, self._ranks = rank, ranks

    def _mine(self) -> list[Text]:
        texts = read_texts(self._data, self._recipe.longest)
        mine = [text for text in texts if not text.held_out and int(text.key[-6:], 16) % self._ranks == self._rank]
        if not mine:
            raise ValueError(f"data={str(self._data)!r} holds no text to learn from for process {self._rank}.")
        return mine

    def __iter__(self) -> Iterator[Batch]:
        at = self._progress
        while True:
            groups = batches(self._mine(), self._recipe.tokens_per_batch, self._recipe.seed + at.epoch)
            while at.batch < len(groups):
                group = groups[at.batch]
                at.batch += 1
                yield batch_of(group, self._recipe.skip)
            at.epoch, at.batch = at.epoch + 1, 0


class Run:
    """One training run into `out`; goes on from what is there.

    teacher: the frozen target.  rows: its output matrix at the head's ids [outputs, hidden], float32.
    """

    def __init__(
        self, head: FeatureHead, teacher: Teacher, rows: Tensor, data: Path, out: Path, recipe: Recipe, **options: Any
    ) -> None:
        self.accelerator = Accelerator(**options)
        self.head, self.teacher, self.rows, self.data, self.out, self.recipe = head, teacher, rows, data, out, recipe
        self.learner = Learner(head, rows, recipe)
        self._plain = optimisers(head, recipe)
        self._rates = [group["lr"] for each in self._plain for group in each.param_groups]
        self.progress = Progress()
        self.curves = Curves(out)
        self._resume()
        self._model, *self._optimisers = self.accelerator.prepare(self.learner, *self._plain)

    # ---- resuming ----

    def _state_path(self) -> Path:
        return self.out / f"process{self.accelerator.process_index}" / STATE_FILE

    def _resume(self) -> None:
        path = self._state_path()
        if not path.is_file():
            return
        state = torch.load(path, map_location="cpu", weights_only=True)
        self.progress = Progress(**state["progress"])
        self.head.load_state_dict(state["head"])
        for each, held in zip(self._plain, state["optimisers"], strict=True):
            each.load_state_dict(held)

    def _keep(self) -> None:
        path = self._state_path()
        path.parent.mkdir(parents=True, exist_ok=True)
        state = {
            "progress": vars(self.progress),
            "head": self.head.state_dict(),
            "optimisers": [each.state_dict() for each in self._plain],
        }
        torch.save(state, path.with_suffix(".part"))
        path.with_suffix(".part").replace(path)

    # ---- the run ----

    def train(self, pause_after_s: float = float("inf")) -> Progress:
        """Train to the end of the schedule, or for so long; returns where it stands."""
        accelerator, recipe, at = self.accelerator, self.recipe, self.progress
        stream = iter(Stream(self.data, recipe, at, accelerator.process_index, accelerator.num_processes))
        if at.step == 0:
            self.checkpoint()
        began, before_s = time.perf_counter(), at.elapsed_s
        saved = self._now(began, before_s)
        bar = tqdm(total=100, unit="%", disable=not accelerator.is_main_process, initial=0, mininterval=10)
        while (progress := recipe.progress(at.elapsed_s, at.step)) < 1.0 and at.elapsed_s - before_s < pause_after_s:
            bar.update(int(100 * progress) - bar.n)
            loss = self._step(stream, recipe.rate_factor(progress))
            at.step += 1
            at.elapsed_s = self._now(began, before_s)
            self.curves.add(at.step, at.tokens * accelerator.num_processes, at.elapsed_s, loss)
            bar.set_postfix(loss=f"{loss:.3f}", step=at.step)
            if at.elapsed_s - saved >= 60 * recipe.checkpoint_minutes:
                saved = at.elapsed_s
                self.checkpoint()
        bar.close()
        self.checkpoint()
        return at

    def _now(self, began: float, before_s: float) -> float:
        """Seconds used so far, the same for all processes."""
        spent = [before_s + time.perf_counter() - began]
        return float(broadcast_object_list(spent)[0]) if self.accelerator.num_processes > 1 else spent[0]

    def _step(self, stream: Iterator[Batch], factor: float) -> float:
        """One optimiser step over this process's share of the tokens; the mean loss."""
        for rate, group in zip(self._rates, (g for each in self._plain for g in each.param_groups), strict=True):
            group["lr"] = rate * factor
        share = self.recipe.tokens_per_step / self.accelerator.num_processes
        group_of: list[Batch] = []
        while sum(batch.tokens.numel() for batch in group_of) < share:
            group_of.append(next(stream))
        learnt = [int(batch.learn.sum()) for batch in group_of]
        total = 0.0
        for place, (batch, count) in enumerate(zip(group_of, learnt, strict=True)):
            lesson = self.teacher.lesson(batch)
            last = place == len(group_of) - 1
            with self.accelerator.accumulate(self._model) if last else self.accelerator.no_sync(self._model):
                loss = self._model(batch, lesson) * (count / sum(learnt))
                self.accelerator.backward(loss)
            total += float(loss.detach())
        self.progress.tokens += sum(learnt)
        self.accelerator.clip_grad_norm_(self.head.parameters(), 1.0)
        for each in self._optimisers:
            each.step()
            each.zero_grad()
        return total

    def checkpoint(self) -> Tally | None:
        """Save everything; the first process measures held-out acceptance and draws the curves."""
        self._keep()
        if not self.accelerator.is_main_process:
            self.accelerator.wait_for_everyone()
            return None
        save_head(self.head, self.out)
        found = self.measure()
        self.curves.measured(self.progress.step, self.progress.elapsed_s, found)
        self.curves.write()
        self.accelerator.wait_for_everyone()
        return found

    def measure(self) -> Tally:
        """Acceptance by depth on the held-out texts."""
        texts = [text for text in read_texts(self.data, self.recipe.longest) if text.held_out]
        texts = sorted(texts, key=lambda text: text.key)[: self.recipe.held_out]
        depth = self.recipe.depth
        found = Tally(0, (0,) * (depth + 1), (0.0,) * depth, 0)
        self.head.eval()
        for group in batches(texts, self.recipe.tokens_per_batch, 0) if texts else []:
            batch = batch_of(group)
            found = found + tally(self.head, self.rows, batch, self.teacher.lesson(batch), depth)
        self.head.train()
        return found
