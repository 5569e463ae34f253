"""A run as a document for a paper: LaTeX and Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.report.latex import list_latex_tables
from tests.report.synthetic import epochs, make_run

from joulelab.analysis.results_file import load_result
from joulelab.report.run_tables import write_run_document

if TYPE_CHECKING:
    from pathlib import Path


def test_a_run_is_written_in_latex_with_the_figures_of_the_terminal(runs: Path) -> None:
    result = load_result(make_run(runs, marks=epochs(2, 10.0)))
    text = write_run_document(result, "latex", every_scope=True, every_phase=True, budget=True)
    energies, _meters, budget, phases = list_latex_tables(text)
    assert r"$\pm" not in energies[0]
    assert r" \pm " in energies[1]
    assert budget[0].startswith("uncertainty, \\%")
    assert any(line.startswith(r"\quad by gpu") for line in phases)
    assert text.startswith("% \\usepackage{booktabs}\n")
    assert "expanded uncertainties (k = 2)" in text
    assert r"\item work:" in text


@pytest.mark.parametrize("form", ["latex", "markdown"])
def test_a_run_without_meters_and_a_simulated_one_say_so(runs: Path, form: str) -> None:
    bare = write_run_document(load_result(make_run(runs, gpus=0, cpus=0)), form)
    assert "no energy measured" in bare
    assert "Energy and power" not in bare
    twin = write_run_document(load_result(make_run(runs, environment={"JOULELAB_TWIN": "x"})), form)
    assert "(simulated: " in twin
