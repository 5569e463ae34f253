from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from tests.report.synthetic import START, UNKNOWN, epochs, make_run

from joulelab.analysis.result import Check, PhaseResult
from joulelab.analysis.results_file import load_result
from joulelab.core.quantity import Quantity
from joulelab.report import format as fmt
from joulelab.report.messages import word_check, word_checks
from joulelab.report.run_rows import EnergyRow, count_hidden_phases, list_energy_rows, list_phase_rows
from joulelab.report.run_summary import lay_out_summary
from joulelab.report.run_tables import lay_out_run, make_budget_table, make_energy_table
from joulelab.report.tables import measure_table, write_terminal
from joulelab.report.terminal import list_facts, write_blocks

if TYPE_CHECKING:
    from pathlib import Path

    from joulelab.analysis.result import Result

NO_METER = [
    {"meter": "nvml", "status": "unavailable", "what": "no GPU", "why": "no library", "next": "install the driver"},
    {
        "meter": "rapl",
        "status": "denied",
        "what": "may not be read",
        "why": "root only",
        "next": "joulelab doctor rapl",
    },
]


def shown(result: Result, folder: Path, width: int = 80, **options: Any) -> str:
    return write_blocks(lay_out_run(result, folder, width=width, **options), width)


def numbers(line: str) -> list[float]:
    return [float(n) for n in re.findall(r"-?\d+\.?\d*", line)]


def row(text: str, label: str) -> str:
    return next(line for line in text.splitlines() if line.startswith(label))


def test_the_table_fits_into_80_columns_and_has_no_blanks_at_line_ends(runs: Path) -> None:
    path = make_run(runs, gpus=8, cpus=2, idle=True, marks=epochs(5, 10.0), name="baseline")
    text = shown(load_result(path), path)
    free = [line for line in text.splitlines() if not line.startswith(("run ", "next ")) and "->" not in line]
    assert max(len(line) for line in free) <= 80
    assert not [line for line in text.splitlines() if line != line.rstrip()]
    assert "\x1b" not in text


def test_all_figures_begin_with_the_same_answer_as_the_summary(runs: Path) -> None:
    path = make_run(runs, gpus=2, gpu_w=300.0, cpus=1, cpu_w=90.0, marks=epochs(2, 10.0))
    result = load_result(path)
    summary = write_blocks(lay_out_summary(result, path, width=80, handle="last"), 80)
    answer = summary.partition("\n\n")[0]
    assert [line.split()[0] for line in answer.splitlines()] == ["joulelab", "energy", "covers", "site", "work"]
    assert shown(result, path).partition("\n\n")[0] == answer


def test_the_table_has_the_numbers_of_the_json(runs: Path) -> None:
    path = make_run(runs, gpus=2, idle=True)
    result = load_result(path)
    text, data = shown(result, path), json.loads(json.dumps(result.to_json()))
    for scope in data["scopes"]:
        cells = numbers(row(text, scope["scope"] + " ").partition(" ")[2])
        energy, wide, mean = cells[:3]
        net, net_wide = cells[-2:]
        unit = 1000.0
        assert energy == pytest.approx(scope["reading"]["energy"]["value"] / unit, abs=wide * 0.06)
        assert wide == pytest.approx(scope["reading"]["energy"]["expanded"] / unit, rel=0.06)
        assert mean == pytest.approx(scope["mean_w"]["value"], abs=scope["mean_w"]["expanded"] * 0.06)
        assert net == pytest.approx(scope["net"]["value"] / unit, abs=net_wide * 0.06)
        if scope["statistics"]:
            assert cells[3] == pytest.approx(scope["statistics"]["median"], rel=6e-4)
            assert cells[4] == pytest.approx(scope["statistics"]["maximum"], rel=6e-4)
    whole = next(g for g in data["groups"] if g["name"] == "measured")
    assert numbers(row(text, "measured"))[0] == pytest.approx(whole["energy"]["value"] / 1000, rel=2e-2)
    assert data["energy"] == whole["energy"]


def test_without_a_meter_there_is_no_energy_and_a_way_to_try(runs: Path) -> None:
    path = make_run(runs, gpus=0, cpus=0, missing=NO_METER, command=["sleep", "1"])
    text = shown(load_result(path), path)
    assert not re.search(r"\d\s*[kMm]?J\b", text)
    assert "no GPU (no library)" in text  # what the meter said
    assert "-> joulelab doctor rapl" in text
    assert "joulelab twin -- joulelab run -- sleep 1" in text
    assert "power meter:" not in text  # the headline has said it


def test_with_a_meter_only_what_can_be_repaired_is_missing(runs: Path) -> None:
    path = make_run(runs, missing=NO_METER)
    text = shown(load_result(path), path)
    assert "no GPU" not in text
    assert "-> joulelab doctor rapl" in text


def test_a_meter_that_was_asked_for_is_listed_if_it_is_not_there(runs: Path) -> None:
    path = make_run(runs, missing=NO_METER, options={"named": ["nvml", "rapl"]})
    assert "no GPU (no library)" in shown(load_result(path), path)


def test_too_few_readings_are_not_called_an_unknown_accuracy(runs: Path) -> None:
    path = make_run(runs, gpus=1, cpus=0)
    result = load_result(path)
    (scope,) = result.scopes
    energy = replace(scope.energy, known=False)
    few = replace(scope, reading=replace(scope.reading, energy=energy, readings=1))
    groups = tuple(replace(group, energy=energy) for group in result.groups)
    text = shown(replace(result, scopes=(few,), groups=groups), path)
    assert "J (too few readings for an interval)," in text.splitlines()[1]
    assert f"accuracy {scope.reading.accuracy}, too few readings for an interval" in text
    assert "accuracy unknown" not in text
    many = replace(few, reading=replace(few.reading, readings=100))
    assert "J (accuracy unknown)," in shown(replace(result, scopes=(many,), groups=groups), path).splitlines()[1]


def test_energies_that_are_smaller_than_their_intervals_are_in_words() -> None:
    short, wide = Quantity(10.0, {"edge:x": 8.0}), Quantity(10.0, {"gain:x": 8.0})
    rows = [
        EnergyRow("gpu:0", short, short, 3.0, net=short),
        EnergyRow("cpu:0", wide, wide),
        EnergyRow("rest of node.ac", short, short, 3.0, is_derived=True),
    ]
    lines = write_terminal(make_energy_table(rows)).splitlines()
    assert [re.split(r" {2,}", line)[1:] for line in lines[2:]] == [
        [fmt.TOO_SHORT_CELL, "-", "3.000", "-"],
        [fmt.NOT_RESOLVED, "-", "-", "-"],
        [fmt.NOT_RESOLVED, "-", "-", "-"],
    ]
    lines = write_terminal(make_energy_table([replace(rows[0], net=Quantity(5.0)), *rows[:1]])).splitlines()
    assert [line.split("  ")[-1].strip() for line in lines[2:]] == ["5.000", fmt.NOT_RESOLVED]


def test_the_rest_of_a_node_has_a_median_but_no_peak(runs: Path) -> None:
    result = load_result(make_run(runs, gpus=2, cpus=0))
    group = result.group("gpu")
    assert group is not None
    assert group.statistics is not None
    rest = replace(group, name="rest of node.ac")
    (row,) = (r for r in list_energy_rows(replace(result, groups=(*result.groups, rest))) if r.is_derived)
    assert (row.median_w, row.max_w) == (group.statistics.median, None)


def test_the_cause_of_gaps_stands_above_them() -> None:
    gaps = Check("gaps", "failed", "gpu:0", {"lost_share": 0.4})
    died, late = Check("recorder.died", "warning", texts={"reason": "signal 9"}), Check("late", "note", "gpu:0")
    assert [check.code for check in word_checks([late, gaps, died])] == ["recorder.died", "gaps", "late"]
    other = Check("not-read", "failed", "gpu:1")
    assert [check.code for check in word_checks([died, other])] == ["not-read", "recorder.died"]


def test_the_budget_names_a_family_of_one_member_once(runs: Path) -> None:
    path = make_run(runs, gpus=1, cpus=0)
    result = load_result(path)
    (scope,), (group, *_) = result.scopes, result.groups
    node = replace(scope, scope="node.ac")
    groups = [replace(group, name=name, scopes=("node.ac",)) for name in ("node.ac", "measured")]
    rows = list_energy_rows(replace(result, scopes=(node,), groups=tuple(groups)))
    assert [row.cells[0] for row in make_budget_table(rows).rows] == ["node.ac"]


def test_in_a_narrow_terminal_the_smallest_parts_of_the_budget_are_one_column() -> None:
    kinds = ("gain", "sampling", "missed", "quantum", "offset", "in-step", "gap")
    energy = Quantity(100.0, {f"{kind}:x": 2.0**-k for k, kind in enumerate(kinds)}, bounds={"x": 4.0})
    rows = [EnergyRow("gpu:0", energy, energy)]
    wide, narrow = make_budget_table(rows), make_budget_table(rows, 60)
    assert [column.name for column in wide.columns[2:]] == [*kinds, "bound:\nunseen"]
    assert [column.name for column in narrow.columns[2:]] == [*kinds[:3], "other", "bound:\nunseen"]
    assert measure_table(narrow) <= 60 < measure_table(wide)
    assert narrow.rows[0].cells[-2:] == ("0.29", "8.0")  # 2 x the root of the sum of the squares of 1/8 to 1/64


def test_an_unknown_accuracy_gives_no_interval(runs: Path) -> None:
    path = make_run(runs, gpus=1, cpus=0, accuracy=UNKNOWN)
    text = shown(load_result(path), path)
    assert "±" not in text.splitlines()[1]
    assert re.search(r"gpu:0 +\d\.\d+‡ ", text)
    assert text.count("no interval: the accuracy of a meter is unknown") == 1


def test_an_estimate_is_marked_everywhere(runs: Path) -> None:
    path = make_run(runs, gpus=0, cpus=0, estimate=True)
    text = shown(load_result(path), path)
    assert re.match(r"energy +~.*, estimate\)", text.splitlines()[1])
    line = row(text, "cpu (estimate)")
    assert len(re.findall("~", line)) == 4


def test_the_headline_is_without_the_bound_of_a_sensor_that_sees_part_of_the_time(runs: Path) -> None:
    path = make_run(runs, gpus=1, cpus=0, seen=0.25)
    result = load_result(path)
    text = shown(result, path)
    assert result.energy is not None
    assert result.energy.expanded is not None
    assert result.energy.budget()["unseen"] > 0
    wide = numbers(text.splitlines()[1])[1] * (1000 if " kJ" in text.splitlines()[1] else 1)
    assert wide == pytest.approx(result.energy.expanded, rel=0.06)
    assert result.energy.expanded < 0.1 * result.energy.value < result.energy.bound
    check = result.bound_check
    assert check is not None
    assert (check.code, check.scope) == ("unseen", "gpu:0")
    flat, worded = " ".join(text.split()), word_check(check)
    assert flat.count(worded.text) == 1
    assert flat.count(worded.next.replace(": joulelab", ": -> joulelab")) == 1
    assert worded.text[:50] in next(line for line in text.splitlines() if line.startswith("note "))
    assert "unseen" in shown(result, path, budget=True)


def test_parts_of_packages_are_shown_on_request(runs: Path) -> None:
    path = make_run(runs, core=True)
    result = load_result(path)
    assert "core:0" not in shown(result, path)
    assert "core:0" in shown(result, path, every_scope=True)


def test_many_devices_are_shown_as_sum_and_extremes(runs: Path) -> None:
    path = make_run(runs, gpus=12, cpus=0)
    rows = list_energy_rows(load_result(path))
    assert len(rows) == 4
    assert rows[2].label == "gpu (12)"
    assert len(list_energy_rows(load_result(path), every=True)) == 14


@pytest.mark.system  # pure, and slow
def test_few_phases_are_listed_many_are_summed_by_name(runs: Path) -> None:
    few = load_result(make_run(runs, marks=epochs(3, 9.0), seconds=9.0))
    assert [r.label for r in list_phase_rows(few)] == ["train", "epoch 1", "epoch 2", "epoch 3"]
    assert [r.depth for r in list_phase_rows(few)] == [0, 1, 1, 1]
    path = make_run(runs, marks=epochs(40, 10.0))
    many = load_result(path)
    rows = list_phase_rows(many)
    assert [r.label for r in rows] == ["train", "epoch x 40"]
    parts = [p for p in list_phase_rows(many, every=True) if p.depth == 1]
    assert rows[1].energy is not None
    assert rows[1].energy.value == pytest.approx(sum(p.energy.value for p in parts if p.energy))
    assert rows[1].work == {"samples": 40 * 64.0}
    text = shown(many, path)
    assert "epoch x 40" in text
    assert "J/sample" in text
    assert len(shown(many, path, every_phase=True).splitlines()) > 100


def test_thousands_of_nested_phases_are_cut_after_the_outermost(runs: Path) -> None:
    path = make_run(runs)
    result = load_result(path)
    phase = PhaseResult("deep", "deep", None, 0.0, 1.0, {}, {})
    nested = tuple(
        replace(phase, depth=k, number=k, parent=k - 1 if k else None, name=f"level {k}") for k in range(3_000)
    )
    deep = replace(result, phases=nested)
    assert [r.depth for r in list_phase_rows(deep)] == list(range(20))
    assert count_hidden_phases(deep) == 2_980
    lines = shown(deep, path, every_phase=True).splitlines()
    assert max(len(line) for line in lines) < 200


def test_a_sum_of_phases_that_leaves_some_out_is_not_shown(runs: Path) -> None:
    result = load_result(make_run(runs, marks=epochs(40, 10.0)))
    cut = replace(result, phases=(*result.phases[:-1], replace(result.phases[-1], energy={})))
    assert list_phase_rows(cut)[1].energy is None


def test_work_gives_joules_per_sample(runs: Path) -> None:
    path = make_run(runs, gpus=1, gpu_w=300.0, cpus=0, marks=epochs(5, 10.0, samples=100.0))
    line = row(shown(load_result(path), path), "work")
    assert re.search(r"500 samples: (5\.9|6\.0)\d* ± 0\.\d+ J/sample, 50\.00 samples/s", line)


def test_the_budget_adds_up(runs: Path) -> None:
    path = make_run(runs, gpus=1, cpus=0)
    text = shown(load_result(path), path, budget=True)
    start = text.index("uncertainty, %")
    whole, *parts = numbers(row(text[start:], "gpu:0").partition(" ")[2])
    assert whole == pytest.approx(sum(p * p for p in parts) ** 0.5, rel=0.05)


def test_problems_come_before_doubts(runs: Path) -> None:
    path = make_run(runs)
    text = shown(load_result(path), path, problems=["it was killed"])
    assert row(text, "problem").endswith("it was killed")


def test_live_and_killed_runs_say_so(runs: Path) -> None:
    live = make_run(runs, state="live")
    text = shown(load_result(live), live)
    assert "so far" in text.splitlines()[1]
    killed = make_run(runs, state="killed")
    assert [load_result(path).state for path in (live, killed)] == ["live", "killed"]
    assert not list(killed.glob("*/*.journal"))  # whoever opens it next seals it
    assert list(live.glob("*/*.journal"))


def test_the_worst_checks_come_first_and_good_ones_are_left_out() -> None:
    checks = [Check("late", "ok"), Check("throttled.power-cap", "note", "gpu:0"), Check("gaps", "failed", "gpu:0")]
    checks += [Check("idle-drifted", "warning", f"gpu:{k}", {"drift_w": k + 0.5}) for k in range(3)]
    found = [(check.code, check.status, check.next) for check in word_checks(checks)]
    wait = "Wait until the node has cooled, or use a longer --idle"
    cap = "To see the cap that is in force: joulelab cap status"
    assert found == [("gaps", "failed", ""), ("idle-drifted", "warning", wait), ("throttled.power-cap", "note", cap)]


def test_a_long_command_is_wrapped_so_that_it_can_be_pasted() -> None:
    rule = """echo 'KERNEL=="ipmi*", MODE="0660", GROUP="me"' | sudo tee /etc/udev/rules.d/70.rules"""
    wrong = []
    for command, lines in (
        ("joulelab doctor nvml", 1),
        ("sudo chmod a+r /sys/class/powercap/*/energy_uj " * 3, 3),
        (rule, 2),
    ):
        _, *shown = write_blocks([list_facts([("rapl", f"it may not be read\n-> {command.strip()}")])], 80).splitlines()
        pasted = "\n".join(shown).replace("-> ", "").replace("\\\n", "")
        is_right = shlex.split(pasted) == shlex.split(command) and max(map(len, shown)) <= 80 and len(shown) == lines
        wrong += [] if is_right else [shown]
    assert wrong == []


def test_a_gap_names_the_next_command(runs: Path) -> None:
    gap = {"t": START, "event": "gap", "meter": "nvml", "stream": "gpu:0.power", "reason": "lost", "from": START}
    path = make_run(runs, gpus=1, cpus=0, events=[gap])
    result = load_result(path)
    failed = replace(result, checks=(Check("gaps", "failed", "gpu:0", {"lost_share": 0.5}, {"doctor": "nvml"}),))
    text = shown(failed, path)
    assert row(text, "failed").split(maxsplit=1)[1].startswith("gaps: gpu:0: no readings in 50 %")
    assert "         -> joulelab doctor nvml" in text


def test_no_output_suggests_itself(tmp_path: Path) -> None:
    path = make_run(tmp_path, gpus=1, cpus=0)
    result = load_result(path)
    rows: list[tuple[dict[str, Any], str | None]] = [
        ({}, "joulelab show last --budget"),
        ({"budget": True}, "joulelab show last --budget --scopes all"),
        ({"budget": True, "every_scope": True}, None),
    ]
    for wanted, command in rows:
        lines = write_blocks(lay_out_run(result, path, width=80, handle="last", **wanted), 80).splitlines()
        more = [line.removeprefix("more").partition("   # ")[0].strip() for line in lines if line.startswith("more")]
        assert more == ([command] if command else []), wanted
