from __future__ import annotations

import datetime as dt
import email.utils

import pytest

from joulelab.core.errors import ConfigError, MissingDependency, ReadFailed
from joulelab.plan.rates.services import about, fetch, label_of, series_of
from joulelab.plan.rates.services.asking import pages, retry_after_s

NOW_S = dt.datetime(2026, 11, 16, 20, 0, tzinfo=dt.UTC).timestamp()
GOOD = {"zone": "DE", "history": [{"datetime": "2026-11-16T10:00Z", "carbonIntensity": 5}]}


@pytest.fixture
def asked(service):
    def ask(*answers):
        turns = iter(answers)
        service.answer = lambda request: next(turns)
        return service.fetch("em", "DE", NOW_S - 12 * 3600, NOW_S, now=lambda: NOW_S)

    return ask


@pytest.mark.system
def test_too_many_requests_wait_as_long_as_asked(asked, service):
    assert asked((429, {"Retry-After": "7"}, b""), (429, {}, b""), GOOD).values.tolist() == [5]
    assert service.slept == [7, 10]


@pytest.mark.system
def test_too_long_a_wait_is_told_instead(asked, service):
    with pytest.raises(ReadFailed, match=r"no more requests.*try again in 3600 s"):
        asked((429, {"Retry-After": "3600"}, b"slow down"))
    assert service.slept == []


@pytest.mark.system
def test_waiting_has_an_end_in_all(asked, service):
    with pytest.raises(ReadFailed, match="no more requests"):
        asked(*[(429, {"Retry-After": "20"}, b"")] * 10)
    assert service.slept == [20] * 4


@pytest.mark.system
def test_a_fault_that_passes(asked, service):
    broken = (500, {}, {"error": {"code": "500 Internal Server Error", "message": "Requested resource not found."}})
    assert asked(broken, (503, {}, b""), GOOD).values.tolist() == [5]
    assert service.slept == [1, 4]
    with pytest.raises(ReadFailed, match=r"HTTP 500.*Requested resource not found.*joulelab plan rates list"):
        asked(broken, broken, broken)


@pytest.mark.system
@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        ((200, {}, b"<html>maintenance</html>"), ReadFailed, "not JSON"),
        ((200, {}, b'{"data": NaN}'), ReadFailed, "not JSON"),
        ((200, {}, b'{"data": ['), ReadFailed, "not JSON"),
        ((200, {"Content-Length": "500"}, b'{"data": ['), ReadFailed, "connection broke"),
        ((400, {}, {"error": {"code": "400 Bad Request"}}), ConfigError, "400 Bad Request.*check the zone"),
        ((400, {}, b"<!DOCTYPE html><html>no words of use</html>"), ConfigError, r"HTTP 400\)"),
        ((400, {}, b"\x1b[31mred\x00\xff" + b"x" * 5000), ConfigError, r"\?\[31mred"),
        ((302, {"Location": "http://127.0.0.2:1/x"}, b""), ReadFailed, "another server"),
        ((204, {}, b""), ConfigError, "HTTP 204"),
    ],
)
def test_each_failure_in_its_own_words(asked, answer, kind, words):
    with pytest.raises(kind, match=words) as caught:
        asked(answer)
    assert len(str(caught.value)) < 500
    assert str(caught.value).isprintable()


@pytest.mark.system
def test_no_server(service, tmp_path):
    service.file.write_text('[em]\naddress = "http://127.0.0.1:9"\ntoken = { file = "key" }\n')
    with pytest.raises(ReadFailed, match="refused"):
        service.fetch("em", "DE")


@pytest.mark.system
def test_without_httpx(service, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "httpx", None)
    with pytest.raises(MissingDependency, match="httpx"):
        service.fetch("em", "DE")


def test_retry_after_is_seconds_or_a_date():
    assert retry_after_s("30", NOW_S) == 30
    assert retry_after_s("0", NOW_S) == 1
    assert retry_after_s(email.utils.formatdate(NOW_S + 45, usegmt=True), NOW_S) == 45
    assert retry_after_s(email.utils.formatdate(NOW_S - 45, usegmt=True), NOW_S) == 1
    assert retry_after_s("soon", NOW_S) == 10


def test_pages_cover_the_time_once():
    assert list(pages(0, 25, 10)) == [(0, 10), (10, 20), (20, 25)]
    assert list(pages(5, 5, 10)) == []


def test_names_and_labels_without_asking():
    assert series_of("em", "US-CAL-CISO") == "em-US-CAL-CISO"
    assert label_of("em", "FR").kind == "average"
    for service, zone, words in [
        ("em", "", "no zone is given"),
        ("em", "../x", "is no zone"),
        ("em", "a/b", "no zone"),
    ]:
        with pytest.raises(ConfigError, match=words):
            series_of(service, zone)
    with pytest.raises(ConfigError, match="no service 'x'"):
        fetch("x")


@pytest.mark.parametrize("word", ["gb", "watttime", "entsoe"])
def test_a_removed_service_says_what_to_use_instead(word):
    for ask in (about, fetch, series_of, label_of):
        with pytest.raises(ConfigError, match=rf"'{word}' .* was removed; use a CSV file .*FILE\.csv.*em:ZONE"):
            ask(word)
