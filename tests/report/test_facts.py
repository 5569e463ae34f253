"""Facts and steps of a run as they are printed, listed, compared, queried and kept."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from tests.report.synthetic import START, epochs, make_run
from tests.rows import every_row

from joulelab.analysis import analyse
from joulelab.analysis.results_file import list_query_rows, load_head, load_result
from joulelab.core.clock import NS
from joulelab.core.quantity import Quantity
from joulelab.report import format as fmt
from joulelab.report.comparison import compare_runs
from joulelab.report.run_rows import count_hidden_phases, list_phase_rows
from joulelab.report.run_summary import choose_work_kinds
from joulelab.report.run_tables import lay_out_run
from joulelab.report.terminal import write_blocks
from joulelab.store.run_query import run_query
from joulelab.study.results import make_trial

if TYPE_CHECKING:
    from pathlib import Path

    from joulelab.analysis.result import Result

FACTS = {"accuracy": 0.912345678, "data": "fashion-mnist", "ranks": 60000, "real": True}


def told(**facts: Any) -> dict[str, Any]:
    return {"t": START + 5, "mark": "fact", "facts": facts, "rank": 0}


def stepped(count: int, each: int) -> list[dict[str, Any]]:
    """Return marks of epochs with steps in each: FLOP, samples and steps."""
    marks = epochs(count, 10.0)
    length = 10 * NS // count // each
    for k in range(count):
        for j in range(each):
            begin, number = START + k * (10 * NS // count) + j * length, k * each + j + 1
            line = {"t": begin, "mark": "begin", "id": f"4242-s{number}", "name": "step", "n": number, "labels": {}}
            work = {"steps": 1.0, "samples": 64.0 / each, "FLOP": 1e12}
            marks.append(line | {"parent": f"4242-{k + 1}", "thread": 1, "rank": 0, "work": work})
            marks.append({"t": begin + length - 20, "mark": "end", "id": f"4242-s{number}"})
            line = {"t": begin + length - 20, "mark": "work", "from": begin, "phase": f"4242-{k + 1}"}
            marks.append(line | {"amounts": {"steps": 1.0, "FLOP": 1e12}, "count": 1, "at": []})
    return marks


def shown(result: Result, folder: Path, **options: Any) -> str:
    return write_blocks(lay_out_run(result, folder, width=100, **options), 100)


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (640, "samples", "640 samples"),
        (1.2e12, "FLOP", "1.200 TFLOP"),
        (3.4e21, "FLOP", "3.400 ZFLOP"),
        (0, "FLOP", "0 FLOP"),
    ],
)
def test_amounts_of_work(value: float, kind: str, text: str) -> None:
    assert fmt.format_work(value, kind) == text


def test_rates_and_energies_of_work_have_prefixes() -> None:
    assert fmt.format_work_rate(3.4e11, "FLOP") == "340.0 GFLOP/s"
    assert fmt.format_work_rate(64.1, "samples") == "64.10 samples/s"
    assert fmt.format_quantity(Quantity(8e-12, {"gain": 5e-14}), "J/FLOP") == "8.00 ± 0.10 pJ/FLOP"
    assert fmt.scale_per_work([8e-10, 2e-10], "FLOP") == (pytest.approx(1e-12), "pJ/FLOP")
    assert fmt.scale_per_work([3e-3], "tokens") == (pytest.approx(1e-3), "mJ/token")
    assert fmt.scale_per_work([0.5, 2e-9], "samples") == (1.0, "J/sample")
    assert fmt.scale_per_work([], "samples")[1] == "J/sample"


@every_row(("value", "text"), [("x", "x"), (True, "yes"), (False, "no"), (60000, "60,000"), (0.912345678, "0.912346")])
def test_values_of_facts(value: Any, text: str) -> None:
    assert fmt.format_fact(value) == text


def test_samples_come_before_what_they_took() -> None:
    assert choose_work_kinds(["steps", "FLOP", "samples", "tokens"]) == ["samples", "tokens", "FLOP"]
    assert choose_work_kinds(["steps", "samples", "steps"]) == ["samples", "steps"]


@pytest.mark.system  # pure, and slow
def test_a_run_shows_its_data_and_then_the_other_facts(runs: Path) -> None:
    run = make_run(runs, marks=[told(**FACTS)])
    text = shown(load_result(run), run)
    assert "data       fashion-mnist\nfacts      accuracy = 0.912346; ranks = 60,000; real = yes\n" in text
    assert load_result(run).to_json()["facts"] == FACTS
    assert "data " not in shown(load_result(make_run(runs)), run)
    assert "facts      loss = 0.5" in shown(load_result(make_run(runs, marks=[told(loss=0.5)])), run)


def test_steps_are_one_line_for_each_epoch(runs: Path) -> None:
    run = make_run(runs, marks=stepped(3, 10))
    result = load_result(run)
    text = shown(result, run)
    assert [row.label for row in list_phase_rows(result)] == [
        "train", "epoch 1", "step 1-10", "epoch 2", "step 11-20", "epoch 3", "step 21-30",
    ]  # fmt: skip
    assert count_hidden_phases(result) == 0
    assert "J/sample" in text
    assert "pJ/FLOP" in text
    assert "J/step" in text
    assert re.search(r"30\.00 TFLOP: 2[23]\d ± [12]\d pJ/FLOP, 3\.000 TFLOP/s", text)
    assert result.work == {"samples": 192.0, "steps": 30.0, "FLOP": 3e13}
    first = result.phases[2]
    assert (first.title, first.depth, first.work) == ("step 1", 2, {"steps": 1.0, "samples": 6.4, "FLOP": 1e12})
    assert len(list_phase_rows(result, every=True)) == 34


def test_of_many_epochs_steps_are_one_line_in_all(runs: Path) -> None:
    result = load_result(make_run(runs, gpus=1, cpus=0, marks=stepped(12, 2)))
    rows = list_phase_rows(result)
    assert [(row.label, row.count) for row in rows] == [("train", 1), ("epoch x 12", 12), ("step 1-24", 24)]
    assert rows[2].energy is not None
    assert rows[1].energy is not None
    assert rows[2].energy.value == pytest.approx(rows[1].energy.value, rel=0.01)


def test_steps_together_are_seen_as_well_as_what_they_are_in(runs: Path) -> None:
    result = load_result(make_run(runs, gpus=1, cpus=0, seen=0.25, marks=stepped(2, 40)))
    (_, epoch, steps, *_) = list_phase_rows(result)
    assert (epoch.label, steps.label) == ("epoch 1", "step 1-40")
    assert epoch.energy is not None
    assert steps.energy is not None
    assert steps.energy.value == pytest.approx(epoch.energy.value, rel=0.01)
    assert steps.energy.budget()["unseen"] == pytest.approx(epoch.energy.budget()["unseen"], rel=0.01)
    alone = list_phase_rows(result, every=True)[2]
    assert alone.label == "step 1"
    assert alone.energy is not None
    assert alone.energy.budget()["unseen"] > 0


def test_studies_keep_facts_and_leave_steps_out_of_phases(runs: Path) -> None:
    kept = make_trial(load_result(make_run(runs, marks=[*stepped(2, 3), told(**FACTS, loss=float("inf"))])))
    assert set(kept.phases) == {"train", "epoch"}
    assert kept.work["steps"] == 6.0
    assert kept.facts == {**FACTS, "loss": "inf"}


@pytest.mark.system  # pure, and slow
def test_facts_are_listed_and_queried(runs: Path) -> None:
    run = make_run(runs, marks=[told(**FACTS), *stepped(2, 2)])
    without = make_run(runs)
    assert load_head(run).facts == FACTS
    assert load_head(without).facts == {}
    sql = "SELECT run, value, number FROM facts WHERE fact = 'accuracy'"
    assert run_query(runs, sql, results=list_query_rows)[1] == [(run.name, "0.912345678", 0.912345678)]
    last = "SELECT n, last FROM phases WHERE phase = 'step' ORDER BY n"
    assert run_query(runs, last, results=list_query_rows)[1] == [(1, 1), (2, 2), (3, 3), (4, 4)]
    assert run_query(runs, "SELECT number FROM facts WHERE fact = 'real'", results=list_query_rows)[1] == [(None,)]


@pytest.mark.system  # pure, and slow
def test_runs_on_other_data_are_compared_with_a_doubt(runs: Path) -> None:
    a = load_result(make_run(runs, marks=[told(accuracy=0.9, data="cifar-10")]))
    b = load_result(make_run(runs, marks=[told(data="synthetic", seed=1)]))
    found = compare_runs(a, b)
    assert found.list_notes()[0].code == "data-differ"
    assert found.list_notes()[0].texts == {
        "first": "A", "second": "B", "first_data": "cifar-10", "second_data": "synthetic",
    }  # fmt: skip
    assert list(found.facts.items()) == [
        ("data", ("cifar-10", "synthetic")),
        ("accuracy", (0.9, None)),
        ("seed", (None, 1)),
    ]
    assert found.to_json()["facts"]["accuracy"] == {"a": 0.9, "b": None}
    silent = load_result(make_run(runs))
    assert compare_runs(a, silent).list_notes()[0].code == "data-differ"
    assert "data-differ" not in [note.code for note in compare_runs(a, a).list_notes()]


@pytest.mark.system  # pure, and slow
def test_figures_are_not_parted_by_the_end_of_a_line(runs: Path) -> None:
    facts = {f"figure_{k}": 1_234_567 + k for k in range(9)} | {"quality": "mape, last", "mape": 9.2979, "last": 4.64}
    run = make_run(runs, marks=[told(**facts)])
    text = write_blocks(lay_out_run(load_result(run), run, width=80), 80)
    lines = text.splitlines()
    assert "quality    mape 9.298, last 4.640" in lines
    for k in range(9):
        assert any(f"figure_{k} = 1,234,56{7 + k}" in line or f"figure_{k} = 1,234,57{k - 3}" in line for line in lines)
    assert "\N{NO-BREAK SPACE}" not in text


ODD = {
    "data": "\x1b]0;owned\x07\x1b[31m\nnext",
    "bytes": "\udc80x",
    "big": 10**400,
    "large": 2**70,
    "long": "y" * 100_000,
    "\udc81": 1,
    "lost": float("nan"),
    "quality": "lost",
}


def test_odd_facts_break_nothing(runs: Path) -> None:
    odd = [told(**ODD), {"t": START + 6, "mark": "begin", "id": "1-1", "name": "p\x1b", "n": "tensor(4)", "labels": 3}]
    odd += [{"t": START + 7, "mark": "work", "phase": "1-1", "amounts": {"s": "x", "S": 2, "\udc80": 1, "t": None}}]
    odd += [{"t": START + 8, "mark": "work", "phase": "1-1", "amounts": {"s": 1}}]
    run = make_run(runs, gpus=1, cpus=0, marks=odd)
    result = load_result(run)
    text = shown(result, run)
    assert "\x1b" not in text
    assert r"\x1b]0;owned\x07\x1b[31m\nnext" in text
    assert len(text) < 6000
    assert "quality    lost nan" in text
    assert "quality: lost is not a number" in text
    assert load_result(run).to_json()["facts"]["long"] == ODD["long"]
    assert result.facts["bytes"] == "\\udc80x"
    assert result.facts["big"] == str(10**400)
    assert (result.phases[0].n, result.work) == (None, {"S": 2.0, "\\udc80": 1.0, "s": 1.0})
    assert run_query(runs, "SELECT value FROM facts WHERE fact = 'bytes'", results=list_query_rows)[1] == [
        ("\\udc80x",)
    ]
    assert run_query(runs, "SELECT n, work_S, work_s_2 FROM phases", results=list_query_rows)[1] == [(None, 2.0, 1.0)]
    assert len(run_query(runs, "SELECT * FROM facts", results=list_query_rows)[1]) == len(ODD)
    rows = run_query(runs, "SELECT data, quality FROM runs", results=list_query_rows)[1]
    assert rows == [(ODD["data"], "lost nan")]


def test_runs_tell_their_data_only_where_it_is_asked_for(runs: Path) -> None:
    run = make_run(runs, marks=[told(data="x", quality="a, b", a=1.5, b=2)])
    asked: list[Path] = []

    def results(path: Path) -> Any:
        asked.append(path)
        return list_query_rows(path)

    assert run_query(runs, "SELECT count(*), min(run) FROM runs", results=results)[1] == [(1, run.name)]
    assert not asked
    assert run_query(runs, "SELECT data, quality FROM runs", results=results)[1] == [("x", "a 1.5, b 2")]
    columns, [row] = run_query(runs, "FROM runs", results=results)
    assert row[columns.index("data")] == "x"


def test_joined_rows_stay_below_their_own(runs: Path) -> None:
    marks: list[dict[str, Any]] = []
    for k in range(24):
        name, at = ("prefill", "decode")[k % 2], START + k * NS // 4
        begin = {"mark": "begin", "labels": {}, "rank": 0}
        marks.append(begin | {"t": at, "id": f"1-{k}", "name": name, "n": None, "parent": None})
        step = {"t": at, "id": f"1-s{k}", "name": "step", "n": k + 1, "parent": f"1-{k}", "work": {"steps": 1.0}}
        marks += [begin | step, {"t": at + NS // 4, "mark": "end", "id": f"1-s{k}"}]
        marks += [{"t": at + NS // 4, "mark": "end", "id": f"1-{k}"}]
    rows = list_phase_rows(load_result(make_run(runs, gpus=1, cpus=0, marks=marks)))
    assert [(r.label, r.depth) for r in rows] == [
        ("prefill x 12", 0),
        ("step 1-23", 1),
        ("decode x 12", 0),
        ("step 2-24", 1),
    ]
    for around, steps in (rows[:2], rows[2:]):
        assert around.energy is not None
        assert steps.energy is not None
        assert steps.energy.value == pytest.approx(around.energy.value)
        assert steps.energy.expanded == pytest.approx(around.energy.expanded)


def test_steps_beyond_the_limit_have_their_energy_together(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(analyse, "MOST_PHASE_ENERGIES", 5)
    result = load_result(make_run(runs, gpus=1, cpus=0, seen=0.25, marks=stepped(3, 40)))
    rows = list_phase_rows(result)
    assert [r.label for r in rows][1:3] == ["epoch 1", "step 1-40"]
    epoch, steps = rows[1].energy, rows[2].energy
    assert epoch is not None
    assert steps is not None
    assert steps.value == pytest.approx(epoch.value, rel=1e-6)
    assert steps.expanded == pytest.approx(epoch.expanded, rel=1e-3), "over the same time, as well known"
    plain = result.to_json()
    assert plain["phases"][-1]["energy"] == {}
    assert plain["stretches"][2]["title"] == "step 81-120"
    assert plain["phases"][1]["rates"]["samples"] == pytest.approx(64 / 3.333, rel=0.01)


def test_work_is_told_per_second_of_its_phases(runs: Path) -> None:
    marks = epochs(2, 5.0)[1:-1]
    marks = [m | {"parent": None} if m["mark"] == "begin" else m for m in marks]
    marks.append({"t": START + 9 * NS, "mark": "work", "from": START, "phase": None, "amounts": {"validated": 5}})
    run = make_run(runs, gpus=1, cpus=0, marks=marks)
    result = load_result(run)
    text = shown(result, run)
    assert "J/sample, 25.60 samples/s in epoch, 12.80 samples/s over all\n" in text
    assert "work       5 validated\n" in text
    assert list(result.per_work()) == ["samples"]
    found = compare_runs(result, result)
    assert [line.name for line in found.lines][-2:] == ["per sample", "samples/s"]


def test_names_are_cut_in_their_middle() -> None:
    name = "folder in the form of cifar-10"
    assert fmt.format_data_name(name, 20) == "form of cifar-10"
    assert fmt.format_data_name(name, 12) == "form…ifar-10"
    assert fmt.format_data_name(name) == name
    assert fmt.format_data_name(3) == "3"
    assert len(fmt.shorten_middle("z" * 1000, 20)) == 20
    assert fmt.shorten_middle("ab", 1) == "…"
    assert [fmt.format_fact(v) for v in (1234567.5, 1e-5, 3.0, float("nan"))] == ["1,234,568", "0.00001", "3", "nan"]
    assert fmt.format_quality(float("inf")) == "nan"
