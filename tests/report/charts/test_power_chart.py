"""Power over time as the browser gets it: every number comes back, and nothing of a run's text breaks it."""

from __future__ import annotations

import base64
import json
from dataclasses import replace

import numpy as np
import pytest
from tests.analysis.folders import Folder, gpu, power
from tests.analysis.nodes import END, START, T, busy, node
from tests.analysis.virtual import ns

from joulelab.analysis.analyse import analyse_run
from joulelab.analysis.power_profile import MissingScope, make_profile
from joulelab.analysis.result import Gap
from joulelab.report.charts.power_chart import (
    MOST_GAPS,
    MOST_PHASES,
    encode_power_chart,
    find_common_traces,
    list_power_lines,
    make_power_chart,
)
from joulelab.report.html import embed_json

HOSTILE = "</script><b>\u202e\x1b[2J"


def encode(profile, result):
    return encode_power_chart(make_power_chart(profile, result))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = node(Folder(tmp_path_factory.mktemp("runs")), ac=1400.0)
    folder.event(START - 0.5, "idle", **{"from": ns(0.5), "to": ns(START - 0.5)})
    folder.marks("1", {"t": ns(6), "mark": "begin", "id": "a", "name": HOSTILE}, {"t": ns(8), "mark": "end", "id": "a"})
    run = folder.close(START, END).open()
    return analyse_run(run), make_profile(run)


def unpacked(text):
    return np.frombuffer(base64.b64decode(text), np.dtype("<f4"))


def test_every_level_of_every_trace_comes_back(made):
    result, profile = made
    data = json.loads(json.dumps(encode(profile, result), allow_nan=False))
    assert set(data) == {
        "start_utc", "duration_s", "from_s", "to_s", "finest_s", "raw_s", "steps_s", "counts", "series", "lines",
        "phases", "gaps",
    }  # fmt: skip
    assert data["finest_s"] == data["steps_s"][0] == profile.grid.step_s
    assert data["to_s"] == pytest.approx(data["from_s"] + data["counts"][0] * data["finest_s"])
    for given, trace in zip(data["series"], profile.traces, strict=True):
        assert (given["id"], given["role"], given["unit"]) == (trace.id, trace.role, trace.unit)
        assert given["shown"] == (trace.role in ("stack", "whole", "load"))
        for level, buckets in enumerate(trace.levels):
            for what in ("mean", "low", "high"):
                found = unpacked(given[what][level])
                assert found.size == data["counts"][level]
                assert np.array_equal(found, getattr(buckets, what).astype(np.float32), equal_nan=True)


def test_a_long_run_has_steps_that_fit_its_counts(tmp_path):
    t = np.arange(0, 900, 0.1)
    folder = Folder(tmp_path).add("nvml", gpu(0), t, 300 * t, np.full(t.size, 300.0))
    run = folder.close(0.0, 899.0).open()
    data = encode(make_profile(run), analyse_run(run))
    assert len(data["counts"]) == 4
    for step, count in zip(data["steps_s"], data["counts"], strict=True):
        assert step * count == pytest.approx(data["to_s"] - data["from_s"])


def test_rated_mean_and_idle_power_are_lines(made):
    result, _ = made
    found = {line.kind: (line.label, line.watts) for line in list_power_lines(result)}
    assert found["rated"] == ("rated: 2 x 700 W (gpu)", 1400.0)
    assert found["mean"][1] == pytest.approx(result.group("measured").mean_w.value)
    assert found["idle"] == ("idle: 200.0 W", pytest.approx(200.0))


def test_lines_that_are_not_known_are_left_out(tmp_path):
    folder = Folder(tmp_path).add("nvml", gpu(0), T, *busy(50.0, 400.0))
    result = analyse_run(folder.close(START, END).open())
    assert [line.kind for line in list_power_lines(result)] == ["rated", "mean"]
    assert list_power_lines(replace(result, groups=())) == ()
    none = replace(result, rated=type(result.rated)())
    assert [line.kind for line in list_power_lines(none)] == ["mean"]
    known = replace(result.rated, unknown=())
    assert list_power_lines(replace(result, rated=known))[0].label == "rated: 700 W"


def test_hostile_names_cannot_break_out(made):
    result, profile = made
    gaps = (Gap("pdu", HOSTILE, ns(6), ns(7), HOSTILE), Gap("pdu", "x", ns(8), None, ""))
    data = encode(profile, replace(result, gaps=gaps))
    assert data["phases"][0]["title"].isprintable()
    assert (data["phases"][0]["from_s"], data["phases"][0]["to_s"]) == (pytest.approx(1.0), pytest.approx(3.0))
    assert all(gap["label"].isprintable() for gap in data["gaps"])
    assert data["gaps"][1] == {
        "label": "pdu x", "from_s": pytest.approx(3.0), "to_s": pytest.approx(profile.grid.to_s),
    }  # fmt: skip
    assert "</script>" not in embed_json("power", data).removesuffix("</script>")


def test_of_very_many_phases_and_gaps_the_outer_and_the_long_ones_are_kept(made):
    result, profile = made
    (phase,) = result.phases
    steps = tuple(
        replace(phase, title=f"step {k}", n=k, last=k, depth=1, start_s=k / 100) for k in range(2 * MOST_PHASES)
    )
    gaps = tuple(Gap("pdu", str(k), ns(5), ns(5 + k / 1000), "") for k in range(2 * MOST_GAPS))
    data = encode(profile, replace(result, phases=(*steps, phase), gaps=gaps))
    assert len(data["phases"]) == MOST_PHASES
    assert sum(p["depth"] == 0 for p in data["phases"]) == 1
    assert [p["from_s"] for p in data["phases"]] == sorted(p["from_s"] for p in data["phases"])
    assert {gap["label"] for gap in data["gaps"]} == {f"pdu {k}" for k in range(MOST_GAPS, 2 * MOST_GAPS)}


def test_what_is_missing_of_one_of_several_hosts_is_a_gap_that_names_it(made):
    result, profile = made
    gone = replace(profile, missing=(MissingScope(f"node7{HOSTILE}", 1.0, 2.5),))
    (gap,) = encode(gone, result)["gaps"]
    assert gap["label"].startswith("node7")
    assert gap["label"].isprintable()
    assert (gap["from_s"], gap["to_s"]) == (1.0, 2.5)


def wall(tmp_path, name, *, inside, scope="node.ac", host="node1"):
    """Return the profile of a run that is measured at a scope, with or without a GPU inside."""
    folder = Folder(tmp_path / name).add("bmc", power(scope), T, busy(200.0, 600.0)[1], host=host)
    if inside:
        folder.add("nvml", gpu(0), T, *busy(50.0, 300.0), host=host)
    return make_profile(folder.close(START, END).open())


def found(*profiles):
    return [(label, [t.id for t in traces]) for label, traces in find_common_traces(profiles)]


def test_runs_have_in_common_what_is_measured_whatever_else_is(tmp_path, made):
    inside, outside = wall(tmp_path, "a", inside=True), wall(tmp_path, "b", inside=False)
    assert found(inside, outside) == [("everything measured (node.ac)", ["whole", "node.ac"])]
    assert found(outside, inside) == [("everything measured (node.ac)", ["node.ac", "whole"])]
    # Of GPUs there are two in one and one in the other.
    assert found(inside, made[1]) == [
        ("everything measured (node.ac)", ["whole", "whole"]),
        ("gpu", ["gpu", "gpu"]),
        ("rest of node.ac", ["rest", "rest"]),
    ]


def test_where_everything_is_not_the_same_scope_the_outermost_that_all_have_comes_first(tmp_path):
    direct = wall(tmp_path, "a", inside=True, scope="node.dc")
    folder = Folder(tmp_path / "b").add("nvml", gpu(0), T, *busy(50.0, 300.0))
    for scope in ("node.ac", "node.dc"):
        folder.add("bmc", power(scope), T, busy(200.0, 600.0)[1])
    both = make_profile(folder.close(START, END).open())
    assert found(direct, both)[:2] == [("node.dc", ["whole", "scope:node.dc"]), ("gpu", ["gpu", "gpu"])]
    assert found(wall(tmp_path, "c", inside=False), wall(tmp_path, "d", inside=False, scope="node.dc")) == []
