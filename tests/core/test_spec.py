"""Specs and streams survive the journal's header, whatever version wrote it."""

from __future__ import annotations

import json
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulelab.core.spec import Accuracy, AccuracySource, Kind, Pace, Spec, Stream

floats = st.floats(allow_nan=False, allow_infinity=False)
maybe = st.none() | floats
specs = st.builds(
    Spec,
    name=st.text(min_size=1),
    quantity=st.text(),
    unit=st.text(),
    kind=st.sampled_from(get_args(Kind)),
    update_s=maybe,
    window_s=maybe,
    seen=floats,
    modulus=maybe,
    limits=st.none() | st.tuples(floats, floats),
    accuracy=st.builds(
        Accuracy,
        source=st.sampled_from(get_args(AccuracySource)),
        gain=floats,
        offset=floats,
        quantum=floats,
        shared=st.text(),
        reference=st.text(),
    ),
    estimate=st.booleans(),
)
streams = st.builds(
    Stream,
    name=st.text(min_size=1),
    table=st.text(),
    scope=st.text(),
    period_s=floats,
    channels=st.lists(specs, max_size=3).map(tuple),
    parent=st.none() | st.text(),
    pace=st.sampled_from(get_args(Pace)),
    device=st.text(),
    model=st.text(),
)


@given(streams)
def test_a_stream_comes_back_from_its_header_as_it_was(stream):
    assert Stream.from_json(json.loads(json.dumps(stream.to_json()))) == stream


@given(streams, st.dictionaries(st.text(min_size=20), floats, max_size=2))
def test_what_a_newer_version_adds_is_ignored(stream, more):
    plain = stream.to_json() | more
    plain["channels"] = [c | more | {"accuracy": c["accuracy"] | more} for c in plain["channels"]]
    assert Stream.from_json(plain) == stream


def test_what_an_older_version_lacked_has_its_default():
    spec = Spec.from_json({"name": "power_w", "quantity": "power", "unit": "W"})
    assert spec == Spec("power_w", "power", "W")
    assert spec.accuracy.source == "unknown"
    assert (spec.kind, spec.seen, spec.modulus, spec.limits) == ("state", 1.0, None, None)


def test_a_limit_of_zero_watts_is_a_limit():
    assert Spec.from_json({"name": "p", "quantity": "power", "unit": "W", "limits": [0.0, 0.0]}).limits == (0.0, 0.0)


def test_a_header_without_channels_is_no_stream():
    with pytest.raises(KeyError):
        Stream.from_json({"name": "gpu:0", "table": "power", "scope": "gpu:0", "period_s": 0.1})


def test_descriptions_are_keys():
    """Analysis and reports group channels by them."""
    spec = Spec("p", "power", "W", limits=(0.0, 1.0))
    assert len({spec, Spec("p", "power", "W", limits=(0.0, 1.0)), Spec("q", "power", "W")}) == 2
