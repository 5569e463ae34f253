from __future__ import annotations

import math
import os

import pytest

from joulelab.core.errors import ConfigError, Unavailable
from joulelab.instruments import estimate


def test_is_load_times_rated_power(tmp_path):
    stat = tmp_path / "stat"
    stat.write_text("cpu  0 0 0 0 0 0 0 0 0 0\n")
    clock = [0]
    meter = estimate.EstimateMeter(tmp_path, 1.0, 200.0, is_given=True, now=lambda: clock[0])
    (stream,) = meter.streams()
    stat.write_text("cpu  30 10 5 50 4 3 2 6 0 0\n")  # 50 of 110 ticks busy, 6 stolen
    assert math.isnan(meter.read(stream)[0])  # nothing can be said of less than a few ticks
    clock[0] = estimate.SHORTEST_NS
    assert meter.read(stream)[0] == pytest.approx(200 * 50 / 110)
    stat.write_text("cpu  31 10 5 50 4 3 2 6 0 0\n")
    clock[0] += 4_000_000
    assert meter.read(stream)[0] == pytest.approx(200 * 50 / 110)
    (spec,) = stream.channels
    assert spec.estimate
    assert spec.accuracy.source == "assumed"
    assert spec.accuracy.gain == 0.5
    assert spec.limits == (0, 200)
    assert "200 W (given)" in spec.accuracy.reference
    meter.close()


def test_an_assumed_rating_is_labelled_and_wider():
    meter = estimate.open_meter({})
    (stream,) = meter.streams()
    spec = stream.channels[0]
    assert "assumed" in spec.accuracy.reference
    assert spec.accuracy.gain == 0.8
    assert not meter.read(stream)[0] > spec.limits[1]
    assert spec.limits[1] == 3 * os.cpu_count()


def test_is_opened_on_request_only():
    assert estimate.DEFAULT is False


@pytest.mark.parametrize("value", [0, -5, "65 W"])
def test_a_wrong_rating_is_refused(value):
    with pytest.raises(ConfigError, match="cpu_w is"):
        estimate.open_meter({"cpu_w": value})


def test_without_load_there_is_no_estimate(tmp_path):
    with pytest.raises(Unavailable):
        estimate.open_meter({"proc": str(tmp_path)})
