"""The first lines about a run: the answer, one table, three notes, the next commands."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from tests.report.synthetic import UNKNOWN, epochs, make_run
from tests.rows import every_row

from joulelab.analysis.result import Check
from joulelab.analysis.results_file import load_result
from joulelab.core.quantity import Quantity
from joulelab.report.run_summary import (
    choose_notes,
    choose_phase_rows,
    choose_summary_rows,
    describe_coverage,
    format_energy,
    lay_out_summary,
    write_energy_answer,
    write_headline,
)
from joulelab.report.terminal import write_blocks

if TYPE_CHECKING:
    from pathlib import Path

    from joulelab.analysis.result import Result


def write_summary(result: Result, folder: Path, width: int = 80, **options: Any) -> str:
    return write_blocks(lay_out_summary(result, folder, width=width, handle="last", **options), width)


def find_line(text: str, label: str) -> str:
    return next(line.removeprefix(label).strip() for line in text.splitlines() if line.startswith(f"{label} "))


def test_the_answer_comes_first_and_fits_into_80_columns(runs: Path) -> None:
    path = make_run(runs, gpus=8, cpus=2, idle=True, marks=epochs(5, 10.0), name="baseline")
    text = write_summary(load_result(path), path)
    labels = [line.split(" ")[0] for line in text.splitlines()[:5]]
    assert labels == ["joulelab", "energy", "covers", "site", "work"]
    assert find_line(text, "joulelab") == "python train.py · 10.00 s · exit 0"
    assert max(len(line) for line in text.splitlines() if not line.startswith("run ")) <= 80
    assert len(text.splitlines()) <= 25
    assert not [line for line in text.splitlines() if line != line.rstrip()]


def test_the_energy_has_its_interval_also_in_percent(runs: Path) -> None:
    path = make_run(runs, gpus=2, gpu_w=300.0, cpus=1, cpu_w=90.0)
    result = load_result(path)
    found = re.fullmatch(r"([\d.]+) ± ([\d.]+) kJ \(± (\d+) %\), (\d+) W on average", write_energy_answer(result))
    assert found is not None
    energy_kj, wide_kj, percent, watts = map(float, found.groups())
    assert result.energy is not None
    assert (energy_kj, watts) == (pytest.approx(result.energy.value / 1e3, rel=0.01), pytest.approx(690, rel=0.01))
    assert percent == pytest.approx(100 * wide_kj / energy_kj, abs=0.6)


@every_row(
    ("joules", "expanded", "text"),
    [
        (3.528e6, 0.2e6, "0.98 ± 0.06 kWh (± 6 %)"),
        (0.36e6, 0.012e6, "0.100 ± 0.003 kWh (± 3 %)"),
        (0.359e6, 0.012e6, "359 ± 12 kJ (± 3 %)"),
        (28200.0, 100.0, "28.20 ± 0.10 kJ (± 0.4 %)"),
        (4830.0, 3600.0, "5 ± 4 kJ (± 75 %)"),
        (0.19, 35.0, "too short to measure"),
    ],
)
def test_energies_are_in_kwh_from_a_tenth_up_and_rounded_to_their_interval(
    joules: float, expanded: float, text: str
) -> None:
    assert format_energy(Quantity(joules, {"edge:m": expanded / 2})) == text


def test_the_headline_has_all_of_the_answer_in_one_sentence(runs: Path) -> None:
    path = make_run(runs, gpus=8, cpus=0, gpu_w=700.0, seconds=1000.0, marks=epochs(5, 1000.0))
    result = load_result(path)
    text = write_headline(result)
    assert re.fullmatch(
        r"1\.5\d* ± 0\.\d+ kWh \(± \d %\) in 16 min 40 s, 5,?[56]\d* W on average; "
        r"17[\d.]* ± [\d.]+ kJ/sample; GPUs only \(8\): no meter for the rest of the node",
        text,
    )
    assert text.startswith(write_energy_answer(result).partition(",")[0])
    vague = tuple(replace(g, energy=Quantity(10.0, {"edge:x": 8.0})) for g in result.groups)
    assert write_headline(replace(result, groups=vague)).startswith(
        "energy: too short to measure; it took 16 min 40 s; GPUs"
    )
    bare = replace(result, groups=(), scopes=())
    assert write_headline(bare) == "no power meter was read (`joulelab meters` shows why); it took 16 min 40 s"
    assert write_headline(replace(bare, outcome="imported")) == (
        "no energy: the imported data has neither power nor energy; it covers 16 min 40 s"
    )
    assert " in 16 min 40 s so far, " in write_headline(replace(result, state="live"))


def test_few_phases_are_rows_of_the_same_table_and_many_are_left_to_all(runs: Path) -> None:
    path = make_run(runs, gpus=2, marks=epochs(3, 10.0))
    result = load_result(path)
    assert [row.label for row in choose_phase_rows(result)] == ["train", "epoch 1", "epoch 2", "epoch 3"]
    text = write_summary(result, path)
    assert re.search(r"\ntrain +[\d.]+ ± [\d.]+ +100 +\d+ +10\.00 s\n  epoch 1 ", text)
    assert max(len(line) for line in text.splitlines() if not line.startswith("run ")) <= 80
    assert [row.label for row in choose_phase_rows(load_result(make_run(runs, marks=epochs(8, 10.0))))] == ["train"]


def test_phases_of_an_estimated_run_are_marked_as_estimates(runs: Path) -> None:
    path = make_run(runs, gpus=0, cpus=0, estimate=True, marks=epochs(2, 10.0))
    text = write_summary(load_result(path), path)
    assert re.search(r"\ncpu[^\n]* ~[\d.]+ ± ", text), text
    assert re.search(r"\ntrain +~[\d.]+ ± [\d.]+ ", text), text


def test_coverage_is_in_words_and_names_the_part_without_a_meter(runs: Path) -> None:
    both = load_result(make_run(runs, gpus=8, cpus=2))
    assert describe_coverage(both) == "8 GPUs, 2 CPUs; nothing measures the rest of the node"
    gpus = load_result(make_run(runs, gpus=4, cpus=0))
    assert describe_coverage(gpus) == "GPUs only (4): no meter for the rest of the node"
    wall = replace(both, groups=tuple(replace(g, scopes=("node.ac",)) for g in both.groups if g.name == "measured"))
    assert describe_coverage(wall) == "the whole node at the wall"


def test_each_kind_of_device_has_one_row_with_its_share(runs: Path) -> None:
    path = make_run(runs, gpus=8, cpus=2)
    result = load_result(path)
    assert [row.label for row in choose_summary_rows(result)] == ["gpu (8)", "cpu (2)"]
    text = write_summary(result, path)
    cells = [line.split() for line in text.splitlines() if re.match(r"(gpu|cpu) \(", line)]
    shares = [int(each[-3]) for each in cells]
    assert sum(shares) == pytest.approx(100, abs=1)
    means, peaks = ([float(each[k].replace(",", "")) for each in cells] for k in (-2, -1))
    assert all(mean <= peak < 1.2 * mean for mean, peak in zip(means, peaks, strict=True))  # of the sum of eight


def test_at_most_three_notes_are_shown_and_the_others_are_counted(runs: Path) -> None:
    path = make_run(runs, gpus=1, cpus=0)
    checks = tuple(Check(f"code-{n}", "warning", f"gpu:{n}") for n in range(5))
    result = replace(load_result(path), checks=checks)
    notes, hidden = choose_notes(result, ["the disk was full"])
    assert [label for label, _ in notes] == ["problem", "warning", "warning"]
    assert hidden == 3
    assert "--all   # 3 more notes, meters" in write_summary(result, path, problems=["the disk was full"])


def test_a_run_without_a_meter_names_the_reason_and_a_try(runs: Path) -> None:
    path = make_run(runs, gpus=0, cpus=0)
    text = write_summary(load_result(path), path)
    assert find_line(text, "energy").startswith("no power meter")
    assert find_line(text, "try") == "joulelab twin -- joulelab run -- python train.py   # a simulated node"


def test_an_unknown_accuracy_is_stated_once(runs: Path) -> None:
    path = make_run(runs, gpus=1, cpus=0, accuracy=UNKNOWN)
    assert "(accuracy unknown)" in write_energy_answer(load_result(path))
