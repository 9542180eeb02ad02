"""scripts/measure_reduced_vocabulary.py in pieces, on the bundled pair; what it measures here means nothing."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest

from decoder import SpeculativeDecoder
from decoder.drafters import ReducedVocabularyDrafter
from decoder.models.tiny import tiny_paths

SCRIPT = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "measure_reduced_vocabulary.py"))


def test_sizes_are_added_to_what_was_measured_before(tmp_path, capsys) -> None:
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "reduced.json"
    prompts.write_text("".join(json.dumps({"prompt": f"The {name}"}) + "\n" for name in ("fox", "hen", "cat")))
    models = ["--target", str(tiny_paths().target), "--draft", str(tiny_paths().target), "--prompts", str(prompts)]
    small = [*models, "--rank-on", "1", "--new-tokens", "6", "--repeats", "1", "--out", str(out)]
    SCRIPT["main"]([*small, "--sizes", "256"])
    first = json.loads(out.read_text())["rows"]
    assert [row["tokens"] for row in first][:1] == [256] and len(first) == 2
    assert first[-1]["alpha"] == 1.0  # the target drafts for itself with its whole head
    SCRIPT["main"]([*small, "--sizes", "64", "256"])
    rows = json.loads(out.read_text())["rows"]
    assert rows[1:] == first and rows[0]["tokens"] == 64 and rows[0]["draft_step_s"] > 0
    assert "64" in capsys.readouterr().out
    assert "The fox" not in out.read_text()
    with pytest.raises(SystemExit, match="other options"):
        SCRIPT["main"]([*small, "--k", "2"])


def test_seconds_and_agreement_are_measured_apart_on_a_draft_made_of_the_target(tmp_path, capsys) -> None:
    prompts, book, out = tmp_path / "prompts.jsonl", tmp_path / "book.txt", tmp_path / "apart.json"
    prompts.write_text(json.dumps({"turns": ["The fox"]}) + "\n")
    book.write_text("Once upon a time the fox and the hen went home.\n\nThe end.")
    small = ["--target", str(tiny_paths().target), "--draft", "layerskip", "--prompts", str(prompts)]
    small += ["--rank-on", "0", "--rank-texts", str(book), "--new-tokens", "8", "--repeats", "1", "--sizes", "64"]
    SCRIPT["main"]([*small, "--only", "steps", "--out", str(out)])
    rows = json.loads(out.read_text())["rows"]
    assert [set(row) for row in rows] == [{"tokens", "draft_step_s", "verify_s"}] * 2
    assert rows[0]["verify_s"] == rows[1]["verify_s"] > 0 and rows[0]["draft_step_s"] > 0
    SCRIPT["main"]([*small, "--only", "alpha", "--out", str(out)])
    done = json.loads(out.read_text())["rows"]
    for row, before in zip(done, rows, strict=True):
        assert row["draft_step_s"] == before["draft_step_s"]  # not measured again
        round_s = 4 * row["draft_step_s"] + row["verify_s"]
        assert row["promised_tokens_per_second"] == pytest.approx(row["tokens_per_iteration"] / round_s)
    assert done[0]["alpha"] < done[1]["alpha"]
    assert "fox" not in out.read_text()
    assert "tokens/s promised" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="nothing to rank on"):
        SCRIPT["main"]([*small[:7], "0"])


def test_agreement_read_off_the_text_is_that_of_generating() -> None:
    """Oracle: the real loop with the same cut draft."""
    paths = tiny_paths()
    spec = SpeculativeDecoder(str(paths.target), str(paths.draft), temperature=0.0, dtype="float32")
    drafter = ReducedVocabularyDrafter(300).bind(spec.target_model, spec.draft_model)
    for k, new in ((4, 40), (3, 21)):
        result = spec.generate("The fox and the hen", k=k, drafter=drafter, max_new_tokens=new, eos_token_id=None)
        agreed = SCRIPT["agreements"](drafter.model, result.prompt_token_ids, result.token_ids)
        accepted, tested, emitted, count = SCRIPT["rounds"](agreed, k)
        assert 0 < accepted == result.num_accepted_tokens < result.num_draft_tokens
        assert tested == sum(step.tested for step in result.steps)
        assert (emitted, count) == (new - 1, result.num_iterations)
