"""Queries: what an address asks for, and what it finds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.rows import every_row

from joulelab.core.errors import ConfigError
from joulelab.core.quantity import Quantity
from joulelab.dashboard import run_table
from joulelab.dashboard.run_entries import Entry, name_program
from joulelab.dashboard.run_search import Query, find, parse
from joulelab.dashboard.run_table import RunTable, Snapshot


def entry(number: int, **more: Any) -> Entry:
    start = f"2026-11-{number:02d}T12:00:00.000+00:00"
    known = {
        "start_utc": start,
        "status": "ok",
        "text": f"run{number} {more.get('name', '')}".lower(),
        "is_complete": True,
    }
    return Entry(f"run{number}", Path(f"/x/run{number}"), **{**known, **more})


ENTRIES = [
    entry(1, name="alpha", energy=Quantity(5.0, {"other": 0.5}), duration_s=3.0, hosts=("a",), workload="train.py"),
    entry(2, name="Beta", labels={"batch": "64", "gpu": ""}, hosts=("a", "b"), duration_s=1.0),
    entry(3, name="gamma", status="failed", twin="h100", energy=Quantity(9.0, known=False)),
    entry(4, name="delta beta", study="s", labels={"batch": "128"}),
]
SNAPSHOT = Snapshot(RunTable(ENTRIES))


def found(*pairs: tuple[str, str]) -> list[str]:
    return [e.id for e in find(SNAPSHOT, parse(pairs)).entries]


@every_row(
    ("pairs", "wanted"),
    [
        ([], ["run3", "run2", "run1"]),
        ([("study", "*")], ["run4", "run3", "run2", "run1"]),
        ([("study", "s")], ["run4"]),
        ([("q", "BETA")], ["run2"]),
        ([("q", "beta run"), ("study", "*")], ["run4", "run2"]),
        ([("q", "beta nothing")], []),
        ([("status", "failed")], ["run3"]),
        ([("host", "b")], ["run2"]),
        ([("workload", "train.py")], ["run1"]),
        ([("label", "batch=64")], ["run2"]),
        ([("label", "batch=6")], []),
        ([("label", "gpu"), ("label", "batch")], ["run2"]),
        ([("label", "gpu="), ("q", "")], ["run2"]),
        ([("simulated", "yes")], ["run3"]),
        ([("simulated", "no")], ["run2", "run1"]),
        ([("from", "2026-11-02"), ("to", "2026-11-02")], ["run2"]),
        ([("sort", "energy")], ["run3", "run1", "run2"]),
        ([("sort", "time"), ("order", "up")], ["run2", "run1", "run3"]),  # what has no figure is last
        ([("sort", "energy"), ("order", "up"), ("study", "*")], ["run1", "run3", "run2", "run4"]),
        ([("sort", "name"), ("order", "up")], ["run1", "run2", "run3"]),
        ([("size", "1"), ("page", "2")], ["run2"]),
        ([("page", "99")], []),
    ],
)
def test_queries_find_what_they_say(pairs: list[tuple[str, str]], wanted: list[str]) -> None:
    assert found(*pairs) == wanted


@every_row(
    "pairs",
    [
        [("nonsense", "1")],
        [("q", "x" * 401)],
        [("status", "fine")],
        [("sort", "__class__")],
        [("page", "0")],
        [("page", "-1")],
        [("page", "1e3")],
        [("page", "٣")],
        [("page", "9" * 400)],
        [("size", "501")],
        [("from", "yesterday")],
        [("to", "2026-13-01")],
        [("order", "sideways")],
        [("simulated", "maybe")],
        [("q", "a " * 17)],
        [("label", f"a{k}") for k in range(17)],
    ],
)
def test_what_cannot_be_asked_is_refused(pairs: list[tuple[str, str]]) -> None:
    with pytest.raises(ConfigError):
        parse(pairs)


def test_an_address_asks_for_the_same_again() -> None:
    query = parse(
        [("q", "a b&c"), ("label", "x=1"), ("label", "y"), ("sort", "energy"), ("order", "up"), ("page", "3")]
    )
    from urllib.parse import parse_qsl

    assert parse(parse_qsl(query.address().removeprefix("?"))) == query
    assert parse(parse_qsl(query.address(page=1).removeprefix("?"))).page == 1
    assert Query().address() == "?"
    assert query.narrowed
    assert not parse([("page", "2"), ("sort", "time"), ("study", "s")]).narrowed


def test_runs_in_studies_are_counted_beside() -> None:
    assert find(SNAPSHOT, parse([("q", "beta")])).in_studies == 1
    assert find(SNAPSHOT, parse([])).in_studies == 1
    assert find(SNAPSHOT, parse([("study", "*")])).in_studies == 0


def test_facets_count_values() -> None:
    facets = SNAPSHOT.list_facets()
    assert facets["host"] == [("a", 2), ("b", 1)]
    assert dict(facets["label"]) == {"batch=64": 1, "gpu=": 1, "batch=128": 1}
    assert dict(facets["study"]) == {"s": 1}


@every_row(
    ("command", "wanted"),
    [
        (("python3.11", "-u", "train.py", "--x"), "train.py"),
        (("/venv/bin/python", "-m", "joulelab.workloads.resnet", "a=1"), "joulelab.workloads.resnet"),
        (("env", "A=1", "torchrun", "--nproc=2", "dir/run.py"), "run.py"),
        (("/opt/bin/burn",), "burn"),
        (("python",), "python"),
        ((), ""),
    ],
)
def test_programs_are_named_without_their_interpreters(command: tuple[str, ...], wanted: str) -> None:
    assert name_program(command) == wanted


def test_a_search_that_takes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_table, "STEPS_AT_ONCE", 1)
    monkeypatch.setattr(run_table, "SEARCH_S", -1.0)
    for pairs in ([("q", "alpha")], [("label", "batch")]):
        with pytest.raises(ConfigError, match="takes too long"):
            found(*pairs)
    monkeypatch.setattr(run_table, "SEARCH_S", 600.0)
    assert found(("q", "alpha")) == ["run1"], "the words of a search that was given up are looked for again"
