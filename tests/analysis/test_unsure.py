"""That begin and end of a run are known only so well is in its uncertainty, once for all scopes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest

from joulelab.analysis.analyse import add_interval_terms, analyse_run, read_edge_offsets
from joulelab.core.quantity import Quantity
from joulelab.core.spec import Accuracy, Fetched, Spec, Stream
from joulelab.report.messages import word_check
from joulelab.report.result_json import describe_result
from joulelab.store.imported import ImportedMeter, RunImport, import_run
from joulelab.store.run_reader import open_run

if TYPE_CHECKING:
    from pathlib import Path

NS = 1_000_000_000


def test_events_tell_how_far_the_ends_may_be_off() -> None:
    told = {"t": 1, "event": "interval-unsure", "begin_s": 7.5, "end_s": 0.25}
    assert read_edge_offsets([{"t": 0, "event": "clock"}, told]) == (7_500_000_000, 250_000_000)
    assert read_edge_offsets([{"t": 0, "event": "clock"}]) == (0, 0)


def test_an_interval_that_is_not_known_is_a_check_of_the_run(tmp_path: Path) -> None:
    spec = Spec("power_w", "power", "W", "power", 1.0, 1.0, accuracy=Accuracy("assumed", 0.01))
    doubts = [
        {"t": 1010 * NS, "event": "interval-doubt", "status": status, "what": f"job 7: {status}", "next": "ask"}
        for status in ("failed", "warning", "note", "strange")
    ]
    rows = [(t * NS, t * NS, (100.0,)) for t in range(1000, 1201)]
    streams = [Fetched(Stream("node.ac", "power", "node.ac", 1.0, (spec,)), rows, "n1", doubts)]
    with open_run(
        import_run(tmp_path, RunImport([ImportedMeter("bmc", streams)], 1010 * NS, 1190 * NS, {}, ["x"]))
    ) as run:
        result = analyse_run(run)
    found = [c for c in result.checks if c.name == "interval"]
    assert [c.status for c in found] == ["failed", "warning", "note", "warning"]
    assert (word_check(found[0]).text, word_check(found[0]).next) == ("job 7: failed", "ask")
    plain = {"name": "interval", "code": "interval", "status": "note", "message": "job 7: note", "next": "ask"}
    plain |= {"scope": "", "numbers": {}, "texts": {"what": "job 7: note", "next": "ask"}}
    assert plain in describe_result(result)["checks"]


def test_an_end_is_worth_what_was_drawn_around_it() -> None:
    energy = Quantity(1000.0, {"gain:x": 3.0})
    assert add_interval_terms(energy, lambda t, off: 1 / 0, 0, 10, (0, 0)) is energy
    # 100 W at the begin, 300 W at the end.
    watts = {0: 100.0, 10: 300.0}
    found = add_interval_terms(energy, lambda t, off: watts[t] * off / math.sqrt(3), 0, 10, (2, 1))
    assert found.value == 1000.0
    assert found.terms == {
        "gain:x": 3.0,
        "interval:0": pytest.approx(-200 / math.sqrt(3)),
        "interval:10": pytest.approx(300 / math.sqrt(3)),
    }


def test_scopes_that_begin_together_add() -> None:
    one = add_interval_terms(Quantity(1.0), lambda t, off: 5.0, 0, 9, (1, 1))
    two = add_interval_terms(Quantity(2.0), lambda t, off: 7.0, 0, 9, (1, 1))
    assert (one + two).budget() == {"interval": pytest.approx(12 * math.sqrt(2))}
    assert (two - one).budget() == {"interval": pytest.approx(2 * math.sqrt(2))}


def test_the_cords_of_a_node_begin_together(tmp_path: Path) -> None:
    """Two outlets of 100 W and 200 W, the run known to 6 s at its begin and 3 s at its end."""
    streams = []
    for number, watts in ((1, 100.0), (2, 200.0)):
        spec = Spec("power_w", "power", "W", "power", 1.0, 1.0, accuracy=Accuracy("assumed", 0.0, shared="pdu"))
        scope = f"outlet:p.{number}"
        stream = Stream(scope, "power", scope, 1.0, (spec,), "node.ac", sums="node.ac", parts=2)
        rows = [(t * NS, t * NS, (watts,)) for t in range(1000, 1201)]
        streams.append(Fetched(stream, rows, "n1"))
    what = RunImport([ImportedMeter("pdu", streams)], 1050 * NS, 1150 * NS, {}, ["x"], unsure_s=(6.0, 3.0))
    with open_run(import_run(tmp_path, what)) as run:
        result = analyse_run(run)
    node = next(s for s in result.scopes if s.scope == "node.ac")
    assert node.energy.value == pytest.approx(300 * 100)
    expected = 300 * math.hypot(6.0, 3.0) / math.sqrt(3)
    assert node.energy.budget()["interval"] == pytest.approx(expected, rel=1e-6)
    measured = next(g for g in result.groups if g.name == "measured")
    assert measured.energy.budget()["interval"] == pytest.approx(expected, rel=1e-6)
