"""Two groups of runs compared by the statistics of a study's cells."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from tests.report.latex import list_latex_tables
from tests.report.synthetic import epochs, make_run
from tests.worded import assert_note_worded

from joulelab.analysis.result import Check, GpuLoad, Result
from joulelab.analysis.results_file import load_result
from joulelab.report.comparison import compare_runs, write_comparison
from joulelab.report.group_comparison import RunGroup, _word_pair, compare_groups, lay_out_groups, write_groups
from joulelab.report.messages import COMPARISON
from joulelab.report.terminal import write_blocks

if TYPE_CHECKING:
    from pathlib import Path

SPREAD = (0.99, 1.0, 1.01)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """A run of 10 s with two GPUs and a CPU, 128 samples, an accuracy and a load."""
    result = load_result(make_run(tmp_path_factory.mktemp("runs"), marks=epochs(2, 10.0)))
    loads = (GpuLoad(result.host, "gpu:0", 0.9, 1.0),)
    return replace(result, facts={"accuracy": 0.9, "quality": "accuracy"}, gpu_loads=loads)


def scale_run(run: Result, factor: float, name: str, **more: Any) -> Result:
    """Return a run with all energies multiplied; errors of the meters grow with them."""
    groups = tuple(replace(g, energy=g.energy * factor, mean_w=g.mean_w * factor) for g in run.groups)
    return replace(run, run=name, groups=groups, **more)


def make_groups(base: Result, b: float = 0.9, n: int = 3, **more: Any) -> tuple[RunGroup, RunGroup]:
    first = tuple(scale_run(base, k, f"a{k}") for k in SPREAD)
    return RunGroup("A", "cap=300", first), RunGroup(
        "B", "cap=200", tuple(scale_run(base, b * k, f"b{k}", **more) for k in SPREAD[:n])
    )


def test_errors_of_one_meter_cancel_in_the_difference_and_not_in_the_means(base: Result) -> None:
    found = compare_groups(*make_groups(base))
    energy = found.find_figure("energy")
    assert energy is not None
    assert energy.a is not None
    assert energy.b is not None
    assert energy.a.value == pytest.approx(base.energy.value)  # type: ignore[union-attr]
    pair = energy.pair
    assert (pair.verdict, pair.ratio) == ("less", pytest.approx(0.9))
    assert pair.ratio_interval == pytest.approx((0.88, 0.92), abs=0.005)
    # Both meters may be wrong by 5 %: more than the difference would be without the cancelling.
    assert energy.a.relative > 0.03
    assert [f.name for f in found.figures] == [
        "energy", "mean power", "time", "per sample", "samples/s", "GPU load", "accuracy"
    ]  # fmt: skip
    assert {f.pair.verdict for f in found.figures[-2:]} == {"no significant difference"}
    assert [note.code for note in found.notes if note.code.endswith("groups")] == ["same-devices.groups"]
    assert found.word_verdict().startswith("B uses 10.0 % less energy (95 %: 7.9 % to 12.0 %)")
    assert "no significant difference in time" in found.word_verdict()


def test_a_small_difference_is_not_significant(base: Result) -> None:
    found = compare_groups(*make_groups(base, 0.999))
    assert found.word_verdict().startswith("No significant difference in energy (95 %: -")
    assert found.figures[0].pair.more_than_100 or found.figures[0].pair.more_repeats


def test_a_verdict_without_an_interval_is_a_sentence(base: Result) -> None:
    energy = compare_groups(*make_groups(base, 0.999)).figures[0]
    for verdict, words in (
        ("no significant difference", "no significant difference in energy"),
        ("less", "B uses 48.1 % less energy, a significant difference"),
    ):
        pair = replace(energy.pair, ratio=0.519, ratio_interval=None, verdict=verdict)
        assert _word_pair(pair, "energy", "B uses") == words
    fewer = replace(energy.pair, ratio=0.803, ratio_interval=None, verdict="less")
    assert _word_pair(fewer, "samples/s", "it does").startswith("it does 19.7 % fewer samples/s")


def test_runs_that_failed_and_work_that_lacks_are_named(base: Result) -> None:
    a, b = make_groups(base)
    broken = replace(b.runs[0], exit_code=3, outcome="exit", work={})
    for found in (
        compare_groups(a, replace(b, runs=(broken, *b.runs[1:]))).notes,
        compare_runs(base, broken).list_notes(),
    ):
        texts = {note.code: assert_note_worded(note, COMPARISON) or note.texts for note in found}
        assert texts["runs-not-succeeded"] == {"names": (f"{broken.run} (exit 3)",)}
        assert texts["work-lacking"] == {"kinds": "samples"}


def test_runs_on_a_shared_node_are_named(base: Result) -> None:
    a, b = make_groups(base)
    check = Check("shared-node", "note", numbers={"node_j": 9.0, "energy_j": 4.0, "low_j": 3.0, "high_j": 5.0})
    shared = replace(b.runs[0], checks=(check,))
    for found in (
        compare_groups(a, replace(b, runs=(shared, *b.runs[1:]))).notes,
        compare_runs(base, shared).list_notes(),
    ):
        (note,) = (note for note in found if note.code == "runs-shared")
        assert_note_worded(note, COMPARISON)
        assert note.texts == {"names": (shared.run,), "run": shared.run}


def test_words_instead_of_a_figure_have_no_unit(base: Result) -> None:
    a, b = make_groups(base)
    wide = replace(b, runs=(b.runs[0], scale_run(base, 0.001, "short")))
    text = write_blocks(lay_out_groups(compare_groups(a, wide), width=120), 120)
    assert "not resolved" in text
    assert not re.search("not resolved k?[JWs]", text)


def test_a_group_of_one_run_is_allowed_and_said(base: Result) -> None:
    found = compare_groups(*make_groups(base, n=1))
    assert [note.texts for note in found.notes if note.code == "one-run-group"] == [{"name": "B"}]
    assert found.figures[0].pair.assumed
    assert "yes*" in write_blocks(lay_out_groups(found, width=80), 80)


def test_amounts_of_work_that_differ_are_compared_per_unit(base: Result) -> None:
    found = compare_groups(*make_groups(base, 1.8, work={"samples": 256.0}))
    assert found.per == "samples"
    assert found.word_verdict().startswith("B uses 10.0 % less energy per sample")
    assert "more samples/s" in found.word_verdict()
    assert found.to_json()["lines"][0]["verdict"] == "more"


def test_what_makes_groups_differ_is_said(base: Result) -> None:
    gpus = tuple(g for g in base.groups if g.name == "gpu")
    whole = replace(gpus[0], name="measured")
    a, b = make_groups(replace(base, twin="bnl-h100", facts={"data": "x"}))
    only = tuple(replace(scale_run(base, k, f"c{k}"), groups=(*gpus, whole), facts={"data": "y"}) for k in SPREAD)
    found = compare_groups(a, replace(b, runs=only, left_out=2))
    for note in found.notes:
        assert_note_worded(note, COMPARISON)
    codes = [note.code for note in found.notes]
    assert codes[:4] == ["points-differ", "simulated-differ", "data-differ", "runs-left-out"]
    assert found.figures[0].pair.ratio == pytest.approx(1.0)  # only the GPUs, in both
    nothing = tuple(replace(run, groups=()) for run in only)
    none = compare_groups(a, replace(b, runs=nothing))
    assert none.word_verdict().startswith("The energies cannot be compared; no significant difference in time")


def test_every_format_has_the_same_figures(base: Result) -> None:
    found = compare_groups(*make_groups(replace(base, twin="bnl-h100")))
    text = write_blocks(lay_out_groups(found, width=80), 80)
    assert max(map(len, text.splitlines())) <= 80
    assert text.count("simulated: ") == 2
    ((head, *rows),) = list_latex_tables(write_groups(found, "latex"))
    assert "B - A" in head
    assert len(rows) == len(found.figures)
    assert "| energy |" in write_groups(found, "markdown")
    listed = list(csv.DictReader(io.StringIO(write_groups(found, "csv"))))
    assert [float(row["ratio"]) for row in listed] == [line["ratio"] for line in found.to_json()["lines"]]
    assert (listed[0]["a_n"], listed[0]["verdict"]) == ("3", "less")


def test_two_runs_are_written_for_a_paper(base: Result) -> None:
    found = compare_runs(base, scale_run(base, 0.9, "b"))
    figures, _facts, phases = list_latex_tables(write_comparison(found, "latex"))
    assert len(figures) == len(found.lines) + 1
    assert phases[0].startswith("phase & ")
    rows = list(csv.DictReader(io.StringIO(write_comparison(found, "csv"))))
    assert float(rows[0]["ratio"]) == pytest.approx(0.9)
    twin = replace(base, twin="bnl-h100")
    assert "simulated: twin bnl-h100" in write_comparison(compare_runs(twin, twin), "markdown")


def test_runs_without_a_common_family_have_no_common_energy(tmp_path: Path) -> None:
    gpus, cpus = (load_result(make_run(tmp_path, **given)) for given in ({"cpus": 0}, {"gpus": 0}))
    found = compare_groups(RunGroup("A", "a", (gpus, gpus)), RunGroup("B", "b", (cpus, cpus)))
    assert found.find_figure("energy") is None
    assert found.word_verdict().startswith("The energies cannot be compared")
