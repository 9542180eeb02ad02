"""The tour runs top to bottom, offline, in a fresh kernel."""

from __future__ import annotations

from pathlib import Path

import pytest

TOUR = Path(__file__).parents[1] / "examples" / "tour.ipynb"


def test_tour_runs() -> None:
    nbformat = pytest.importorskip("nbformat")
    client = pytest.importorskip("nbclient")
    notebook = nbformat.read(TOUR, as_version=4)
    client.NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    printed = "".join(output.get("text", "") for output in outputs)
    assert "identical to plain decoding: True" in printed
    assert sum("image/png" in output.get("data", {}) for output in outputs) >= 2
    assert any("text/html" in output.get("data", {}) for output in outputs)


def test_stored_without_outputs() -> None:
    nbformat = pytest.importorskip("nbformat")
    notebook = nbformat.read(TOUR, as_version=4)
    assert all(not cell.get("outputs") for cell in notebook.cells), "clear the outputs: they hold a machine's figures"
