"""Pictures for papers: they show what the pages show, with the same figures, and say what is simulated."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from tests.analysis.studies import sweep
from tests.report.synthetic import epochs, make_run

from joulelab.analysis.cell_metrics import summarise_cells
from joulelab.analysis.goals import Goal
from joulelab.analysis.result import Check
from joulelab.report import format as fmt
from joulelab.report.charts import print_pictures
from joulelab.report.charts.chart_model import COMPARED_NOTE
from joulelab.report.charts.print_painter import render_chart
from joulelab.report.page.run_page import load_result_and_profile

if TYPE_CHECKING:
    from pathlib import Path

    from joulelab.report.charts.print_pictures import Picture

pytestmark = pytest.mark.system

pytest.importorskip("matplotlib")


def texts(path: Path) -> str:
    return " ".join(" ".join(e.itertext()) for e in ET.parse(path).iter() if e.tag.endswith("}text"))


def drawn(found: list[Picture], kind: str, folder: Path, said: str = "") -> str:
    picture = next(p for p in found if p.kind == kind)
    file = folder / f"{kind}.svg"
    file.write_bytes(render_chart(picture.chart, ["svg"], remark=said)[0]["svg"])
    return texts(file)


@pytest.mark.no_cover
def test_a_run_is_drawn_with_its_phases_lines_and_figures(tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs", idle=True, marks=epochs(3, 10.0), name="one")
    result, profile = load_result_and_profile(run)
    found = print_pictures.list_run_pictures(result, profile)
    kinds = [p.kind for p in found]
    assert kinds[0] == "power"
    assert {"energy", "phases", "distribution", "uncertainty"} <= set(kinds)
    assert len(set(kinds)) == len(kinds)
    power = drawn(found, "power", tmp_path, "Simulated: twin x, virtual time.")
    for word in (
        "gpu (2)",
        "train",
        "idle: ",
        "mean: ",
        "time, s",
        "power, W",
        "Simulated: twin x",
        "mean over 100 ms",
    ):
        assert word in power, word
    assert result.energy is not None
    whole = fmt.format_quantity(result.energy, "J")
    assert whole in drawn(found, "energy", tmp_path)
    assert "each epoch" in drawn(found, "phases", tmp_path).lower()


@pytest.mark.no_cover
def test_runs_are_drawn_over_each_other_by_time_and_by_fraction(tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path / "runs", seconds=s, gpu_w=w, name=n) for s, w, n in ((10.0, 300.0, "a"), (5.0, 200.0, "b"))
    ]
    looked = [load_result_and_profile(run) for run in runs]
    found = print_pictures.list_comparison_pictures([r for r, _ in looked], [p for _, p in looked])
    assert [p.kind for p in found] == ["overlay", "fraction", "figures", "figures-2"]
    assert "time, s" in drawn(found, "overlay", tmp_path)
    said = drawn(found, "fraction", tmp_path)
    assert "fraction of runtime" in said
    assert "A: a" in said
    assert "B: b" in said
    nothing = make_run(tmp_path / "runs", gpus=0, cpus=0)
    result, profile = load_result_and_profile(nothing)
    assert profile is None
    assert print_pictures.list_comparison_pictures([result], [profile]) == []
    assert "power" not in [p.kind for p in print_pictures.list_run_pictures(result, profile)]


@pytest.mark.no_cover
def test_a_study_has_metrics_front_maps_and_scaling(tmp_path: Path) -> None:
    summary = summarise_cells(sweep(gpus=(1, 8), caps=(100, 180, 260), n=3), goals=[Goal.parse("edp")])
    found = print_pictures.list_study_pictures(summary)
    kinds = [p.kind for p in found]
    assert {"energy", "time", "edp", "gain-minus-loss", "pareto", "map-energy", "scaling-speed-up"} <= set(kinds)
    said = drawn(found, "map-energy", tmp_path)
    assert "power cap, W" in said
    assert "GPUs" in said
    assert "★" in said
    assert "Pareto" in drawn(found, "pareto", tmp_path)
    energy = next(p for p in found if p.kind == "energy")
    (files, caption) = render_chart(energy.chart, ["svg"], width_in=3.4, remark="Simulated.", has_caption=False)
    (tmp_path / "plain.svg").write_bytes(files["svg"])
    said = texts(tmp_path / "plain.svg")
    assert all(name in said for name in ("best", "reference", "gpus=8", "Simulated.", "energy, kJ"))
    assert COMPARED_NOTE in caption
    assert "Error bars" not in said
    assert "Energy" not in said


def test_what_is_simulated_or_damaged_is_said_once(tmp_path: Path) -> None:
    result, _ = load_result_and_profile(make_run(tmp_path / "runs"))
    twin = replace(result, twin="bnl-h100")
    assert print_pictures.word_remark([result, result]) == ""
    assert print_pictures.word_remark([twin, result, twin]) == "Simulated: twin bnl-h100, virtual time."
    damaged = replace(result, run="r1", checks=(Check("damaged", "failed", "node1/nvml.power.parquet"),))
    lost = "Incomplete: files of run r1 are damaged or missing."
    assert print_pictures.word_remark([result, damaged]) == lost
    assert print_pictures.word_remark([twin, damaged]) == f"Simulated: twin bnl-h100, virtual time. {lost}"
