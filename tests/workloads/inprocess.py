"""Run the cells of a notebook in this process, and gather what they tell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import joulelab
from joulelab.run import notebook

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import pytest


def run_cells(
    file: Path, given: Mapping[str, str], monkeypatch: pytest.MonkeyPatch
) -> tuple[dict[str, Any], dict[str, float], dict[str, Any]]:
    """Run a notebook with some parameters; return its facts, its work, and its names."""
    import matplotlib as mpl
    import matplotlib.pyplot as plt

    mpl.use("Agg")
    facts: dict[str, Any] = {}
    amounts: dict[str, float] = {}

    def add(**more: float) -> None:
        for key, value in more.items():
            amounts[key] = amounts.get(key, 0) + value

    monkeypatch.setattr(plt, "show", lambda: plt.close("all"))
    monkeypatch.setattr(joulelab, "fact", facts.update)
    monkeypatch.setattr(joulelab, "work", add)
    monkeypatch.setattr(joulelab, "step", lambda **more: add(steps=1, **more))
    book, names = notebook.load_notebook(file), dict[str, Any]()
    for number, cell in enumerate(book["cells"], 1):
        if cell["cell_type"] == "code":
            exec(compile(notebook.get_source(cell), f"cell {number}", "exec"), names)
        if number == notebook.find_parameters_place(book):
            exec(notebook.format_parameters(given), names)
    plt.close("all")
    return facts, amounts, names
