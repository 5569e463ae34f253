"""A run as a document for a paper: LaTeX and Markdown."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from tests.report.latex import list_latex_tables
from tests.report.synthetic import epochs, make_run

from joulelab.analysis.results_file import load_result
from joulelab.report.run_tables import write_run_document

if TYPE_CHECKING:
    from joulelab.analysis.result import Result


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return load_result(make_run(tmp_path_factory.mktemp("runs"), marks=epochs(2, 10.0)))


def test_a_run_is_written_in_latex_with_the_figures_of_the_terminal(result: Result) -> None:
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
def test_a_run_without_meters_and_a_simulated_one_say_so(result: Result, form: str) -> None:
    bare = write_run_document(replace(result, scopes=(), groups=(), phases=()), form)
    assert "no power meter" in bare
    assert "Energy and power" not in bare
    assert "(simulated: " in write_run_document(replace(result, twin="bnl-h100"), form)
