from __future__ import annotations

import json
import os
import threading

import numpy as np
import pytest

from joulelab.core.errors import ConfigError
from joulelab.plan.rates.kept import Origin, actual_beside, cut, keep, list_kept, pairs, read_kept
from joulelab.plan.rates.rate import Label
from joulelab.plan.rates.steps import Steps

HOUR_S = 3600.0
T0 = 1_794_787_200.0  # 2026-11-16 00:00 UTC


def steps(values, since=T0, issued=None, **words):
    label = Label("average", "g/kWh", "x", zone="DE", covers="direct", issued_utc_s=issued, notes=("n",), **words)
    starts = since + HOUR_S * np.arange(len(values))
    return Steps(label, starts, np.array(values, float), since + HOUR_S * len(values))


def origin(fetched=T0, series="em-DE"):
    return Origin("em", series, fetched, {"zone": "DE"})


def test_a_series_comes_back_as_it_was(tmp_path):
    given = steps([1 / 3, np.nan, 1e-17], source="S", licence="L", u_rel=0.1)
    kept = keep(given, origin(), tmp_path)
    back = read_kept(kept.name, tmp_path)
    assert kept.name == "em-DE/actual-20261116T000000Z"
    np.testing.assert_array_equal(back.values, given.values)
    np.testing.assert_array_equal(back.start_s, given.start_s)
    assert back.end_s == given.end_s
    assert back.label.name == "kept:em-DE/actual-20261116T000000Z"
    assert back.label.to_json() | {"name": "x"} == given.label.to_json()
    assert (kept.unknown_s, kept.forecast, kept.since_s, kept.until_s) == (HOUR_S, False, T0, given.end_s)
    assert list_kept(tmp_path) == [kept]
    assert json.loads(json.dumps(kept.to_json(), allow_nan=False))["label"]["zone"] == "DE"


def test_nothing_is_ever_written_over(tmp_path):
    first = keep(steps([1, 2]), origin(), tmp_path)
    before = first.path.read_bytes()
    assert keep(steps([1, 2]), origin(T0 + 5), tmp_path).path == first.path  # the same again
    second = keep(steps([1, 3]), origin(T0 + 9), tmp_path)
    third = keep(steps([1, 4]), origin(T0 + 9), tmp_path)
    assert [second.name[-2:], third.name[-2:]] == ["-2", "-3"]
    assert first.path.read_bytes() == before
    assert keep(steps([1, 3]), origin(T0 + 20), tmp_path).path == second.path
    versions = [first, second, third, *(keep(steps([1, n]), origin(T0 + n), tmp_path) for n in range(50, 58))]
    assert [one.name for one in list_kept(tmp_path)] == [one.name for one in versions]
    assert not [path for path in tmp_path.rglob("*") if path.name.startswith(".")]


def test_two_that_keep_at_once_both_keep(tmp_path):
    ready = threading.Barrier(8)
    names = []

    def work(n):
        ready.wait()
        names.append(keep(steps([n]), origin(), tmp_path).name)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert len(set(names)) == 8
    assert sorted(read_kept(name, tmp_path).values[0] for name in names) == list(range(8))


def test_without_links_it_is_still_not_written_over(tmp_path, monkeypatch):
    def none(*_):
        raise PermissionError(1, "no links here")

    monkeypatch.setattr(os, "link", none)
    first, second = keep(steps([1]), origin(), tmp_path), keep(steps([2]), origin(), tmp_path)
    assert (first.name, second.name) == ("em-DE/actual-20261116T000000Z", "em-DE/actual-20261116T000000Z-2")
    assert read_kept(first.name, tmp_path).values.tolist() == [1]


def test_actual_values_are_one_series_the_newest_answer_wins(tmp_path):
    keep(steps([1, 2, 3, 4]), origin(T0 + 10), tmp_path)
    keep(steps([20, np.nan], since=T0 + HOUR_S), origin(T0 + 20), tmp_path)
    keep(steps([9], since=T0 + 6 * HOUR_S), origin(T0 + 5), tmp_path)
    keep(steps([77] * 9, issued=T0), origin(T0 + 30), tmp_path)  # a forecast is no actual value
    whole = read_kept("em-DE", tmp_path)
    assert whole.label.name == "kept:em-DE"
    assert whole.end_s == T0 + 7 * HOUR_S
    edges = T0 + HOUR_S * np.arange(5)
    assert whole.means(edges).tolist() == [1, 20, 3, 4]  # a later gap takes nothing away
    assert whole.gaps() == [(T0 + 4 * HOUR_S, T0 + 6 * HOUR_S)]
    with pytest.raises(ConfigError, match="gap"):
        whole.means(np.array([T0, T0 + 7 * HOUR_S]))
    np.testing.assert_array_equal(read_kept("em-DE/actual", tmp_path).values, whole.values)


def test_forecasts_and_later_actuals_stand_side_by_side(tmp_path):
    old = keep(steps([5, 6, 7, 8], issued=T0 - 100), origin(), tmp_path)
    new = keep(steps([50, 60, 70], issued=T0 + 10), origin(), tmp_path)
    assert actual_beside(old.name, tmp_path) is None
    assert pairs("em-DE", tmp_path) == []
    keep(steps([1, 2, 3], since=T0 + 2 * HOUR_S), origin(), tmp_path)
    beside = actual_beside(old.name, tmp_path)
    assert (beside.since_s, beside.end_s, beside.values.tolist()) == (T0 + 2 * HOUR_S, T0 + 4 * HOUR_S, [1, 2])
    found = pairs("em-DE", tmp_path)
    assert [one.name for one, _, _ in found] == [old.name, new.name]
    assert [actual.values.tolist() for _, _, actual in found] == [[1, 2], [1]]
    assert read_kept("em-DE/forecast", tmp_path).values.tolist() == [50, 60, 70]
    keep(steps([4], since=T0 + 90 * HOUR_S, issued=T0 + 5), origin(series="gb-GB"), tmp_path)
    assert actual_beside("gb-GB/forecast-20261116T000005Z", tmp_path) is None


def test_kinds_are_not_mixed_in_one_series(tmp_path):
    keep(steps([1]), origin(), tmp_path)
    other = Label("marginal", "g/kWh", "x", covers="direct")
    keep(Steps(other, np.array([T0 + HOUR_S]), np.array([1.0]), T0 + 2 * HOUR_S), origin(), tmp_path)
    with pytest.raises(ConfigError, match=r"different kinds.*average g/kWh direct and marginal"):
        read_kept("em-DE", tmp_path)


def test_cut_keeps_what_is_between():
    part = cut(steps([1, 2, 3, 4]), T0 + 1.5 * HOUR_S, T0 + 3 * HOUR_S)
    assert part.start_s.tolist() == [T0 + 1.5 * HOUR_S, T0 + 2 * HOUR_S]
    assert (part.values.tolist(), part.end_s) == ([2, 3], T0 + 3 * HOUR_S)


def test_what_is_not_kept_is_told_with_what_is(tmp_path):
    with pytest.raises(ConfigError, match="nothing is kept in"):
        read_kept("em-DE", tmp_path / "none")
    kept = keep(steps([1], issued=T0), origin(), tmp_path)
    with pytest.raises(ConfigError, match="did you mean 'em-DE'"):
        read_kept("em-DR", tmp_path)
    for name in ("em-DE", "em-DE/actual-20261116T000000Z", "em-DE/else", "../em-DE/actual", ""):
        with pytest.raises(ConfigError, match="nothing is kept as"):
            read_kept(name, tmp_path)
    assert [one.name for one in list_kept(tmp_path)] == [kept.name]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda data: data[: len(data) // 2], "it is damaged"),
        (lambda data: data.replace(b'"format": 1', b'"format": 2'), "a newer joulelab"),
        (lambda data: data.replace(b"joulelab rate", b"something else"), "no kept series"),
        (lambda data: data.replace(b'"service": "em"', b'"service": 3'), "it is damaged"),
        (lambda data: data.replace(b'"values": [\n  1.0', b'"values": [\n  -1.0'), "negative"),
        (lambda data: data.replace(b'"values": [\n  1.0', b'"values": [\n  "x"'), "it is damaged"),
        (lambda data: b"[]", "it is damaged"),
        (lambda data: b"\xff\xfe", "it is damaged"),
    ],
)
def test_a_damaged_file_is_listed_with_its_problem_and_not_used(tmp_path, change, words):
    bad, good = keep(steps([1.0, 2]), origin(), tmp_path), keep(steps([3], since=T0 + 9 * HOUR_S), origin(), tmp_path)
    bad.path.write_bytes(change(bad.path.read_bytes()))
    with pytest.raises(ConfigError, match=words):
        read_kept(bad.name, tmp_path)
    listed = list_kept(tmp_path)
    assert [bool(one.problem) for one in listed] == [True, False]
    assert listed[0].to_json()["since_s"] is None
    assert read_kept("em-DE", tmp_path).values.tolist() == [3]
    assert good.problem == ""


def test_a_damaged_file_does_not_stop_keeping(tmp_path):
    bad = keep(steps([1]), origin(), tmp_path)
    bad.path.write_bytes(b"{")
    assert keep(steps([1]), origin(), tmp_path).name == f"{bad.name}-2"


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be kept"):
        keep(steps([1]), origin(), tmp_path / "file")
    with pytest.raises(ConfigError, match="cannot name a folder"):
        keep(steps([1]), origin(series="../x"), tmp_path)
