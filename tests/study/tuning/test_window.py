"""Energy and power of a window of a stored run."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.store.make import START_NS
from tests.study.tuning.inside import long_run

from joulelab.analysis.analyse import analyse_run
from joulelab.core.clock import NS
from joulelab.store.run_reader import open_run
from joulelab.study.tuning.windows import find_scopes, measure_draw, read_scopes, sum_energy


def test_energy_of_a_stored_run_is_that_of_its_scopes() -> None:
    run = Path(__file__).parents[2] / "golden" / "schema-1" / "20231114-221320-aaaa"
    with open_run(run) as opened:
        whole = analyse_run(opened)
    scopes, everything = find_scopes(run, whole.start_ns, whole.end_ns)
    assert everything
    found = read_scopes(run, whole.start_ns, whole.end_ns)
    energy = sum_energy(found, [(whole.start_ns, whole.end_ns)], scopes)
    assert energy is not None
    assert whole.energy is not None
    assert energy.value == pytest.approx(whole.energy.value)
    middle = (whole.start_ns + whole.end_ns) // 2
    halves = sum_energy(found, [(whole.start_ns, middle), (middle, whole.end_ns)], scopes)
    assert halves is not None
    assert halves.value == pytest.approx(energy.value)
    assert sum_energy(found, [(whole.start_ns, whole.end_ns)], ["gpu:77"]) is None
    assert sum_energy(found, [(whole.start_ns, whole.end_ns)], []) is None


def test_a_gpu_that_does_not_keep_to_its_cap_is_seen(tmp_path: Path) -> None:
    a, b = START_NS + 10 * NS, START_NS + 15 * NS
    found = read_scopes(long_run(tmp_path / "a", lambda _: 231.0), a, b)
    assert measure_draw(found, a, b, {"gpu:0": 225.0})[1] == ""
    mean, said = measure_draw(found, a, b, {"gpu:0": 170.0})
    assert mean == pytest.approx(231, rel=0.01)
    assert said == "gpu:0 drew 231 W under a cap of 170 W"
    assert measure_draw(found, a, b, {}) == (None, "")
    other = read_scopes(long_run(tmp_path / "b", lambda _: 150.0, enforced=260.0), a, b)
    assert measure_draw(other, a, b, {"gpu:0": 170.0})[1] == "gpu:0 enforced 260 W where 170 W were requested"
    assert measure_draw(other, a, b, {"gpu:0": 260.0})[1] == ""
