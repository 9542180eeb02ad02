"""The HTML report: complete, escaped, self-contained, well-formed, and it renders in a real browser."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from decoder.report.bars import Bar, bar_chart, nice_step
from decoder.report.page import html_report, write_html

HOSTILE = "<script>alert(1)</script>\x1b[2J\"'&"
VOID = {"meta", "br", "img", "hr", "link"}
SPACE = "{http://www.w3.org/2000/svg}"


def method(name: str, speed: float, **more: Any) -> dict[str, Any]:
    spread = {"median": speed, "lower": speed * 0.9, "upper": speed * 1.1, "count": 5}
    return {"name": name, "tokens_per_second": speed, "spread": spread, "tokens": 320, "seconds": 320 / speed, **more}


def benchmark() -> dict[str, Any]:
    """The shape that `decoder.measure` writes."""
    ratio = {"ratio": 1.9, "lower": 1.7, "upper": 2.1, "level": 0.95}
    return {
        "title": f"Pairs {HOSTILE}",
        "plan": {"max_new_tokens": 64, "params": {"temperature": 0.0}, "stop_at_eos": False},
        "environment": {"command": "specdec bench --k 4", "versions": {"torch": "2.13"}, "threads": 2},
        "notes": ["synthetic weights", HOSTILE],
        "methods": [
            method("hf", 20.0, speedups={}),
            method(f"speculative {HOSTILE}", 38.0, speedups={"hf": ratio}, acceptance_rate=0.71, alpha=0.8),
        ],
        "samples": [{"method": "hf", "prompt": i, "wall_s": 1.5, "token_ids": [1, 2, 3]} for i in range(70)],
        "unheard_of": {"nested": [{"a": 1}, {"a": None, "b": HOSTILE}], "flag": True},
    }


class Checker(HTMLParser):
    """Tags must nest; remembers what a browser would fetch or run."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def parse(page: str) -> Checker:
    checker = Checker()
    checker.feed(page)
    checker.close()
    assert not checker.open
    return checker


def test_nothing_is_fetched_or_run() -> None:
    page = parse(html_report(benchmark()))
    assert not {"script", "link", "iframe", "object", "img"} & set(page.tags)
    assert not [name for name, _ in page.attributes if name in ("src", "href", "srcset") or name.startswith("on")]
    assert not re.search(r"url\((?!#)|@import", html_report(benchmark()))


def test_hostile_text_arrives_as_text() -> None:
    shown = "".join(parse(html_report(benchmark())).text)
    assert shown.count("<script>alert(1)</script>\\x1b[2J\"'&") >= 5  # title twice, note, method, nested value
    assert "\x1b" not in html_report(benchmark())


def test_every_part_of_the_json_is_shown() -> None:
    shown = "".join(parse(html_report(benchmark())).text)
    for expected in ("max_new_tokens", "unheard_of", "nested", "flag", "2.13", "--k 4", "synthetic weights", "0.7100"):
        assert expected in shown
    assert "and 10 more" in shown  # of 70 samples
    assert "1.900" in shown and "38.00" in shown


def test_unknown_shapes_are_shown_generically() -> None:
    for data in ({}, {"methods": "none"}, {"methods": [{"k": 1}]}, {"rows": [[1, 2], [3]], "empty": [], "none": None}):
        parse(html_report(data))
    assert "none" in "".join(parse(html_report({"methods": "none"})).text)
    with pytest.raises(TypeError, match="must be a JSON object"):
        html_report([1, 2])  # type: ignore[arg-type]


def test_bars_are_as_long_as_their_values() -> None:
    root = ElementTree.fromstring(bar_chart([Bar("a", 10.0), Bar("b<&", 40.0, 30.0, 50.0, True)], "tokens/s", mark=20))
    bars = [rect for rect in root.iter(f"{SPACE}rect") if rect.get("stroke")]
    widths = [float(rect.get("width", "0")) for rect in bars]
    assert widths[1] == pytest.approx(4 * widths[0], abs=0.2)
    assert bars[0].get("fill") != bars[1].get("fill") and bars[1].get("fill", "").startswith("url(#")
    texts = [text.text for text in root.iter(f"{SPACE}text")]
    assert {"10.00", "40.00", "b<&", "tokens/s"} <= set(texts)
    dashed = [path.get("d", "") for path in root.iter(f"{SPACE}path") if path.get("stroke-dasharray")]
    assert dashed and float(dashed[0][1:].split()[0]) == pytest.approx(220 + 2 * widths[0], abs=0.2)


@pytest.mark.parametrize(("reach", "step"), [(50, 10), (1.9, 0.5), (0.04, 0.01), (7, 2), (1000, 200)])
def test_ticks_are_round(reach: float, step: float) -> None:
    assert nice_step(reach) == pytest.approx(step)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
def test_bars_need_values(value: float) -> None:
    with pytest.raises(ValueError, match="must be finite"):
        bar_chart([Bar("a", value)], "s")


def test_files_are_read_and_written(tmp_path: Path) -> None:
    source = tmp_path / "run.json"
    source.write_text(json.dumps(benchmark()))
    assert write_html(source) == tmp_path / "run.html"
    assert "speed-up over hf" in (tmp_path / "run.html").read_text()
    source.write_text("{")
    with pytest.raises(ValueError, match=r"run\.json is not a JSON file"):
        write_html(source)


def browser() -> str | None:
    found = (shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome"))
    return next((path for path in found if path), None)


@pytest.mark.skipif(browser() is None, reason="no Chromium on this machine")
def test_a_browser_renders_it_offline(tmp_path: Path) -> None:
    """The DOM after loading holds the charts, and the screenshot is not blank."""
    source = tmp_path / "run.json"
    source.write_text(json.dumps(benchmark()))
    page = write_html(source).as_uri()
    command = [str(browser()), "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1000,1600"]
    dom = subprocess.run([*command, "--dump-dom", page], capture_output=True, text=True, timeout=120, check=True).stdout
    assert dom.count("<svg") == 2 and "<script" not in dom
    shot = tmp_path / "shot.png"
    subprocess.run([*command, f"--screenshot={shot}", page], capture_output=True, timeout=120, check=True)
    assert shot.stat().st_size > 20_000
