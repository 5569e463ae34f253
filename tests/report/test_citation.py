"""The methods paragraph: facts from results, sentences from facts, the citation of joulelab."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

import pytest
from tests.report.synthetic import make_run

from joulelab.analysis.results_file import load_result
from joulelab.core.quantity import Quantity
from joulelab.core.version import __version__
from joulelab.report.citation import (
    AT_WALL,
    METER_NAMES,
    OUTSIDE,
    REST_OF_NODE,
    TERM_WORDS,
    MethodFacts,
    StudyFacts,
    gather_measurement,
    gather_methods,
    word_methods,
    write_bibtex,
    write_citation,
)
from joulelab.store.run_folder import read_meta
from joulelab.store.run_reader import open_run

if TYPE_CHECKING:
    from pathlib import Path

    from joulelab.analysis.result import Result

STUDY = StudyFacts("caps", 2, (3, 5), 7, ("train",), {"cap": ("100 W", "200 W")}, 1, (), None)


def gather(*folders: Path, study: StudyFacts | None = None, **changed: Any) -> MethodFacts:
    results: list[Result] = [dataclasses.replace(load_result(folder), **changed) for folder in folders]
    return gather_methods(results, [read_meta(folder) for folder in folders], study)


def test_the_facts_of_a_run_are_those_of_its_result(tmp_path: Path) -> None:
    run = make_run(tmp_path, gpus=2, cpus=1)
    facts, result = gather(run), load_result(run)
    assert facts.runs == (result.run,)
    assert facts.energy == result.energy
    assert facts.relative == (result.energy.relative, result.energy.relative)
    assert facts.durations_s == (result.duration_s, result.duration_s)
    counted = result.group("measured")
    assert {scope for use in facts.meters for scope in use.scopes} == set(counted.scopes)
    assert math.isclose(sum(facts.terms.values()), 1.0)
    assert list(facts.terms.values()) == sorted(facts.terms.values(), reverse=True)
    first = next(one for one in result.scopes if one.scope == "gpu:0")
    use = next(use for use in facts.meters if "gpu:0" in use.scopes)
    assert use.rate_hz == pytest.approx(first.reading.readings / result.duration_s, rel=0.01)
    assert (use.accuracy, use.reference) == (first.reading.accuracy, first.reading.reference)


def test_a_counter_that_does_not_see_all_the_time_is_none_for_the_levels(tmp_path: Path) -> None:
    folder = make_run(tmp_path, gpus=0, cpus=1)
    result = load_result(folder)
    assert gather_measurement(result, read_meta(folder)).is_counter
    scopes = [
        dataclasses.replace(one, mean_w=dataclasses.replace(one.mean_w, bounds={"x": 1.0})) for one in result.scopes
    ]
    assert not gather_measurement(dataclasses.replace(result, scopes=scopes), read_meta(folder)).is_counter
    folder = make_run(tmp_path, gpus=1, cpus=0, seen=0.25)  # at constant power there may be no bounds
    result = load_result(folder)
    scopes = [dataclasses.replace(one, mean_w=dataclasses.replace(one.mean_w, bounds={})) for one in result.scopes]
    result = dataclasses.replace(result, scopes=scopes)
    assert gather_measurement(result, read_meta(folder)).is_counter
    assert not gather_measurement(result, read_meta(folder), None, open_run(folder).tables()).is_counter


def test_parts_without_a_meter_are_named(tmp_path: Path) -> None:
    assert gather(make_run(tmp_path, gpus=1, cpus=1)).left_out[-2:] == (REST_OF_NODE, OUTSIDE)
    assert "CPUs" in gather(make_run(tmp_path, gpus=1, cpus=0)).left_out
    mixed = gather(make_run(tmp_path, gpus=1, cpus=1), make_run(tmp_path, gpus=1, cpus=0)).left_out
    assert "CPUs (in 1 of 2 runs)" in mixed  # a run that measures them does not speak for the other
    assert mixed[-1] == OUTSIDE
    assert "node.ac" in AT_WALL


def test_simulated_figures_are_called_so_first_and_have_no_date_in_virtual_time(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    virtual = word_methods(gather(run, twin="bnl-h100"))
    assert virtual[0].startswith("These figures are simulated (twin bnl-h100, virtual time)")
    assert load_result(run).start_utc[:10] not in virtual[1]
    assert " recorded " in virtual[1]
    measured = word_methods(gather(run))
    assert " was measured with joulelab" in measured[0]
    assert load_result(run).start_utc[:10] in measured[0]


def test_an_unknown_accuracy_gives_no_interval(tmp_path: Path) -> None:
    facts = gather(make_run(tmp_path))
    unknown = [dataclasses.replace(use, accuracy="unknown") for use in facts.meters]
    said = " ".join(word_methods(dataclasses.replace(facts, meters=tuple(unknown), relative=None)))
    assert "The accuracy is unknown" in said
    assert "k = 2" not in said


def test_an_estimate_is_not_called_a_measurement(tmp_path: Path) -> None:
    facts = gather(make_run(tmp_path))
    estimated = tuple(dataclasses.replace(use, is_estimate=True) for use in facts.meters)
    said = " ".join(word_methods(dataclasses.replace(facts, meters=estimated)))
    assert "is estimated, not measured" in said
    assert " read by " not in said


def test_an_imported_result_is_not_called_a_measurement_of_joulelab(tmp_path: Path) -> None:
    facts = gather(make_run(tmp_path), outcome="imported", labels={"origin": "codecarbon 3.3.2"})
    assert (facts.imported, facts.origins) == (1, ("codecarbon 3.3.2",))
    total = dataclasses.replace(facts.meters[0], meter="codecarbon", scopes=("cpu", "dram"), is_estimate=True)
    said = " ".join(word_methods(dataclasses.replace(facts, meters=(total,))))
    assert "was recorded by codecarbon 3.3.2 and imported by joulelab" in said
    assert "CPU packages and memory domains (cpu, dram" in said  # their number is not known
    assert "one total by CodeCarbon, an estimate" in said
    assert not any(words in said for words in ("measured with", "counter", "every", "runtime of the command"))
    both = " ".join(word_methods(dataclasses.replace(facts, runs=("a", "b"), energy=None)))
    assert "were measured with joulelab" in both
    assert "; 1 of them were imported from codecarbon 3.3.2" in both


def test_a_study_states_cells_runs_order_and_settings(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    said = word_methods(gather(run, make_run(tmp_path), study=STUDY))
    text = " ".join(said)
    for part in ("2 cells with 3 to 5 runs each", "seed 7", "cap = 100 W, 200 W", "Workloads: train", "1 further runs"):
        assert part in text
    assert "spread of their runs" in text


def test_a_bound_is_stated_beside_the_interval(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    facts = gather(run)
    with_bound = dataclasses.replace(facts, bound=0.25)
    assert "the error can reach 25 %" in " ".join(word_methods(with_bound))


def test_damaged_runs_are_not_called_runs_without_a_meter(tmp_path: Path) -> None:
    facts = dataclasses.replace(gather(make_run(tmp_path)), meters=(), damaged=1, relative=None, energy=None)
    text = " ".join(word_methods(facts))
    assert "missing or damaged" in text
    assert "No power meter" not in text


def test_facts_are_plain_in_json(tmp_path: Path) -> None:
    import json

    plain = json.loads(json.dumps(gather(make_run(tmp_path)).to_json()))
    assert plain["energy"]["value"] > 0
    assert plain["meters"][0]["scopes"]


def test_every_meter_and_every_term_has_words() -> None:
    from joulelab import instruments

    named = {*instruments.list_meters(), *instruments.list_archives()} - {"host", "file"}
    assert named <= {*METER_NAMES}
    assert {"gain", "offset", "sampling", "edge"} <= {*TERM_WORDS}


def test_latex_has_a_citation_and_no_raw_signs() -> None:
    text = write_citation(["The energy was measured with joulelab 1: 4.8 ± 0.4 kJ (± 8 %) of node_1."], "latex")
    first = text.partition("\n")[0]
    assert r"with joulelab~\cite{joulelab} 1" in first
    assert "±" not in first
    assert r"8 \%" in first
    assert r"node\_1" in first


def test_the_citation_of_the_software_needs_no_run() -> None:
    assert write_citation([], "latex") == f"{write_bibtex()}\n"
    assert write_citation([], "text") == f"{write_bibtex()}\n"
    assert f"version = {{{__version__}}}" in write_bibtex()
    assert write_citation(["One."], "markdown").startswith("One.\n\n```bibtex\n@software{joulelab,")


def test_terms_of_a_quantity_without_uncertainty_are_left_out(tmp_path: Path) -> None:
    facts = gather(make_run(tmp_path))
    exact = dataclasses.replace(facts, terms={}, relative=(0.0, 0.0), energy=Quantity(5.0))
    assert "dominated" not in " ".join(word_methods(exact))
