"""The script that measures k="auto": its verdicts from given seconds, and a dry run on toys from end to end."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from decoder.measure.statistics import Spread
from decoder.measure.summary import MethodSummary

SCRIPT = Path(__file__).parents[2] / "scripts" / "measure_auto.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("measure_auto", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["measure_auto"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def summary(name: str, seconds: float) -> MethodSummary:
    return MethodSummary(name, 1, 100, seconds, 100 / seconds, Spread(1, 1, 1, 1))


def test_verdicts_follow_the_seconds(script: ModuleType) -> None:
    found = script.verdicts(
        [
            summary("baseline", 10.0),
            summary("k=2", 6.0),
            summary("k=4", 5.0),
            summary("auto", 5.3),
            summary("auto, fresh", 5.6),
            summary("auto, hopeless draft", 10.2),
            summary("auto, hopeless draft, fresh", 11.0),
        ],
        [2, 4],
    )
    assert ["NOT" in line for line in found] == [False, False, True, True]
    assert "0.980x" in found[0] and "1.060 of the time of k=4" in found[1]


def test_a_dry_run_ends_with_a_report(script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "auto.json"
    options = "--toy --max-new-tokens 12 --repeats 1 --k 2 --stop-below 0.3 --out".split()
    assert script.main([*options, str(path)]) == 0
    shown = capsys.readouterr().out
    assert "A dry run" in shown and "hopeless draft" in shown
    names = [each["name"] for each in json.loads(path.read_text())["methods"]]
    assert names[:3] == ["baseline", "k=2", "auto"] and names[-1] == "auto, stop below 0.3"


def test_a_hopeless_copy_has_the_draft_s_shape_and_nothing_of_its_weights(script: ModuleType) -> None:
    draft = script.toy_model("llama", 0)
    copy = script.hopeless_copy(draft)
    assert copy.config.to_dict() == draft.config.to_dict() and copy.dtype == draft.dtype
    assert not any((a == b).all() for (n, a), b in zip(copy.named_parameters(), draft.parameters()) if a.ndim > 1)  # noqa: B905
