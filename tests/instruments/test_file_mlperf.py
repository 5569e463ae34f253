"""MLPerf's logs as they are: the analyzer's spl.txt, and lines of :::MLLOG with readings, times and results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.instruments.file_bench import T0, everything, problems, seconds, values
from tests.instruments.mlperf_bench import write_load, write_mllog, write_spl

from joulelab.core.clock import NS
from joulelab.core.errors import ConfigError
from joulelab.instruments.file import open_archive
from joulelab.instruments.file.mlperf import LoadArchive

if TYPE_CHECKING:
    from pathlib import Path


def test_the_sum_channel_of_an_analyzers_log_is_the_power_at_the_wall(tmp_path: Path) -> None:
    archive = open_archive({"path": str(write_spl(tmp_path / "spl.txt", ["800.5", "801.5", "over", "802"]))})
    (found,) = everything(archive)
    assert (found.stream.scope, seconds(found)) == ("node.ac", [0.0, 1.0, 2.0, 3.0])
    assert values(found)[:2] == [800.5, 801.5]
    (spec,) = found.stream.channels
    assert (spec.accuracy.source, spec.accuracy.gain) == ("assumed", 0.01)
    assert "'over'" in problems(archive)


def test_readings_of_a_training_are_told_apart_by_node_and_side(tmp_path: Path) -> None:
    entries: list[tuple[str, Any, dict[str, Any]]] = [
        ("power_measurement_start", None, {}),
        ("conversion_eff", 0.94, {"measurement_type": "DC"}),
        ("power_reading", 700, {"host": "node_0"}),
        ("power_reading", 800, {"host": "node_0", "sensor": "AC"}),
        ("power_reading", 710, {"host": "node_0"}),
        ("power_reading", 810, {"host": "node_0", "sensor": "AC"}),
        ("power_measurement_stop", None, {}),
    ]
    archive = open_archive({"path": str(write_mllog(tmp_path / "node_0.txt", *entries))})
    ac, dc = sorted(everything(archive), key=lambda f: f.stream.scope)
    assert (ac.host, ac.stream.scope, dc.stream.scope) == ("node_0", "node.ac", "node.dc")
    assert [(t - T0) // NS for t, _, (w,) in dc.rows if w == w] == [2, 4]
    assert [w for _, _, (w,) in ac.rows if w == w] == [800.0, 810.0]
    assert "conversion_eff 0.94 is not applied" in archive.told[0]


def test_readings_of_an_unknown_side_are_refused_unless_it_is_given(tmp_path: Path) -> None:
    path = write_mllog(tmp_path / "node_0.txt", *[("power_reading", w, {"host": "n1"}) for w in (700, 710)])
    with pytest.raises(ConfigError, match=r"feeds=node\.ac") as error:
        open_archive({"path": str(path)})
    assert error.value.code == "config.no-side"
    (found,) = everything(open_archive({"path": str(path), "feeds": "node.dc"}))
    assert (found.stream.scope, values(found)) == ("node.dc", [700.0, 710.0])


def test_a_load_has_its_times_and_work_and_a_training_its_phases(tmp_path: Path) -> None:
    load = open_archive({"path": str(write_load(tmp_path / "mlperf_log_detail.txt"))})
    assert isinstance(load, LoadArchive)
    assert load.interval == (T0 + 2 * NS, T0 + 6 * NS)
    assert load.steps == [("test", T0 + 2 * NS, T0 + 6 * NS, {"tokens": 1000.0})]
    assert load.labels == {"scenario": "Offline"}
    keys = ("run_start", "epoch_start", "epoch_stop", "eval_start", "eval_stop", "run_stop")
    path = write_mllog(tmp_path / "result_0.txt", *[(key, None, {}) for key in keys])
    training = open_archive({"path": str(path)})
    assert training.interval == (T0, T0 + 5 * NS)
    assert [(s[0], s[1] - T0, s[2] - T0) for s in training.steps] == [("epoch", NS, 2 * NS), ("eval", 3 * NS, 4 * NS)]
