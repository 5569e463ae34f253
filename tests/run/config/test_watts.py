"""Rated and planned power of the node, and what supplies give: strict, by host, and kept with the run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from joulelab.run.config.meter_choice import choose_meters
from joulelab.run.run_options import RunOptions

if TYPE_CHECKING:
    from tests.run.config.conftest import Places


def test_watts_are_read_and_later_files_win(places: Places) -> None:
    places.write("system", '[node]\nrated_w = 10200\nplanned_w = 6500\n[supply]\nrack = 17300\n"node.ac" = 11000\n')
    places.write("user", '[node]\nplanned_w = 6000.5\n[supply]\n"phase:pdu1.2" = 3680\n')
    config = places.load()
    config.check()
    assert config.node == {"rated_w": 10200.0, "planned_w": 6000.5}
    assert config.supply == {"rack": 17300.0, "node.ac": 11000.0, "phase:pdu1.2": 3680.0}


@pytest.mark.parametrize(("pattern", "applies"), [('"node07"', True), ('["gpu*", "node0?"]', True), ('"gpu*"', False)])
def test_they_are_for_the_hosts_that_are_named(places: Places, pattern: str, applies: bool) -> None:
    places.write("user", f"[node]\nnode = {pattern}\nrated_w = 700\n")
    config = places.load()
    config.check()
    assert config.node == ({"rated_w": 700.0} if applies else {})


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("[node]\nrated = 5\n", 2, "unknown key 'rated' in [node]; did you mean 'rated_w'?"),
        ('[node]\nrated_w = "5 kW"\n', 2, "rated_w is '5 kW'; give a number of watts above 0"),
        ("[node]\nplanned_w = 0\n", 2, "planned_w is 0"),
        ("[node]\nplanned_w = true\n", 2, "planned_w is true"),
        ("[node]\nplanned_w = inf\n", 2, "planned_w is inf"),
        ("[node]\nnode = 7\nrated_w = 5\n", 2, "node is 7"),
        ("node = 7\n", 1, "node is 7; write it as a table: [node]"),
        ("supply = 7\n", 1, "supply is 7; write it as a table: [supply]"),
        ("[supply]\nrakc = 5\n", 2, "there is no such scope"),
        ("[supply]\nrack = -1\n", 2, "rack is -1"),
        ("[supply]\nnode.ac = 5\n", 2, 'in quotation marks: "node.ac" = 11000'),
    ],
)
def test_what_is_wrong_is_told_with_its_line(places: Places, text: str, line: int, said: str) -> None:
    file = places.write("user", text)
    config = places.load()
    (problem,) = config.problems
    assert said in str(problem)
    assert str(problem).startswith(f"{file}:{line}:")
    assert not config.node
    assert not config.supply


@pytest.mark.parametrize("entry", ["", '[meters.pdu1]\nmeter = "INSTRUMENT"\naddress = "low"\nwatts = 7\n'])
def test_a_run_keeps_what_is_known_of_its_node(places: Places, entry: str) -> None:
    places.write("user", f"[node]\nrated_w = 10200\n{entry}")
    chosen = choose_meters(places.load(), {})
    assert RunOptions(runs=Path()).with_meters(chosen).to_json()["node"] == {"rated_w": 10200.0}
    assert "node" not in RunOptions(runs=Path()).to_json()
