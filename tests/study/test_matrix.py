"""Cells: every combination once, whatever the order of knobs and tables; the order of slots."""

from __future__ import annotations

import itertools
import json
import math
import random
from dataclasses import dataclass
from graphlib import CycleError
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from joulelab.core.errors import ConfigError
from joulelab.run.config.toml_writing import format_toml
from joulelab.study.folder import Plan
from joulelab.study.knobs import Condition, Knob, find_reference
from joulelab.study.matrix import (
    Combinations,
    PlannedCell,
    Workload,
    hash_workload,
    make_cells,
    order_block,
    order_slots,
)
from joulelab.study.study_file import read_study

if TYPE_CHECKING:
    from pathlib import Path


NAMES = ("cap", "gpus", "batch", "lr")
TEXTS = st.lists(st.integers(1, 40).map(str), min_size=1, max_size=4, unique=True)
KNOBS = st.dictionaries(st.sampled_from(NAMES), TEXTS)


def made(knobs: dict[str, list[str]]) -> list[PlannedCell]:
    command = ("train", *(f"{{{name}}}" for name in sorted(knobs)))
    return make_cells(Workload(command), [Knob.parse(name, ",".join(texts)) for name, texts in knobs.items()])


@settings(max_examples=40)
@given(KNOBS)
def test_every_combination_is_one_cell(knobs: dict[str, list[str]]) -> None:
    found = made(knobs)
    assert len(found) == math.prod(len(texts) for texts in knobs.values())
    assert len({cell.key for cell in found}) == len(found)
    for cell in found:
        again = PlannedCell.from_json(json.loads(json.dumps(cell.to_json())))
        assert (again, again.key) == (cell, cell.key)
        assert cell.make_argv() == ["train", *(cell.knobs[name].text for name in sorted(knobs))]


@pytest.mark.system  # pure, and slow
@settings(max_examples=40)
@given(KNOBS, st.randoms())
def test_identity_does_not_depend_on_order(knobs: dict[str, list[str]], random: object) -> None:
    names = list(knobs)
    random.shuffle(names)  # type: ignore[attr-defined]
    other = {name: list(reversed(knobs[name])) for name in names}
    assert {cell.key for cell in made(knobs)} == {cell.key for cell in made(other)}


def test_identity_is_what_defines_a_cell() -> None:
    (base,) = make_cells(Workload(("train",)), [Knob.parse("cap", "100")])
    others = [
        make_cells(Workload(("train", "-v")), [Knob.parse("cap", "100")]),
        make_cells(Workload(("train",), name="other"), [Knob.parse("cap", "100")]),
        make_cells(Workload(("train",), node_type="gpu4"), [Knob.parse("cap", "100")]),
        make_cells(Workload(("train",), phases=("train",)), [Knob.parse("cap", "100")]),
        make_cells(Workload(("train",)), [Knob.parse("cap", "100%")]),
        make_cells(Workload(("train",)), [Knob.parse("clock", "100")]),
        make_cells(Workload(("train",)), []),
    ]
    assert len({base.key, *(cell.key for found in others for cell in found)}) == len(others) + 1
    assert make_cells(Workload(("train",)), [Knob.parse("cap", "100.0W")])[0].key == base.key
    # Results on disk are found by it: a change of the identity loses them all.
    assert base.key == "d55dd6796c02"
    assert hash_workload(base.workload) == hash_workload(others[4][0].workload)


def test_a_command_that_is_no_text_has_an_identity() -> None:
    (cell,) = make_cells(Workload(("train", "\udcff")), [])
    assert len(cell.key) == 12
    assert cell.label == "(no knob)"


def test_wrong_knobs_are_refused() -> None:
    with pytest.raises(ConfigError, match="twice"):
        make_cells(Workload(("a", "{b}")), [Knob.parse("b", "1"), Knob.parse("b", "2")])
    with pytest.raises(ConfigError, match="cannot name a knob"):
        Knob.parse("2b", "1")
    with pytest.raises(ConfigError, match="1000000 cells x 1 = 1000000 slots are too many"):
        make_cells(Workload(("a", "{b}", "{c}")), [Knob.parse("b", "1:1000:1"), Knob.parse("c", "1:1000:1")])


def test_more_slots_than_a_study_holds_are_refused_before_they_are_made() -> None:
    workload, knobs = Workload(("a", "{b}")), [Knob.parse("b", "1:1000:1")]
    with pytest.raises(ConfigError, match=r"1000 cells x 101 = 101000 slots are too many .*; give fewer values"):
        make_cells(workload, knobs, repeats=101)
    assert len(make_cells(workload, knobs, repeats=100)) == 1000
    (one,) = make_cells(Workload(("a",)), [])
    with pytest.raises(ConfigError, match="1 cell x 1000000 = 1000000 slots"):
        Plan([one], repeats=1_000_000)


def test_a_reference_is_one_of_the_values() -> None:
    knobs = [Knob.parse("cap", "100:260:10"), Knob.parse("batch", "32,64")]
    assert find_reference({"cap": "260", "batch": "32"}, knobs) == {"cap": 260.0, "batch": 32}
    for pairs, said in (
        ({"cap": "265"}, "there are 100 W"),
        ({"cap": "100,200"}, "there are"),
        ({"cop": "1"}, "knobs: cap"),
    ):
        with pytest.raises(ConfigError, match=said):
            find_reference(pairs, knobs)


def test_a_knob_may_depend_on_one_that_depends_on_another() -> None:
    first, second, third = (Knob.parse(name, "1,2") for name in ("a", "b", "c"))
    chain = [
        Knob("c", third.values, Condition(knobs={"b": frozenset({"2"})})),
        Knob("b", second.values, Condition(knobs={"a": frozenset({"2"})})),
        first,
    ]
    every = Combinations(chain).list_combinations("w", "n")
    found = [" ".join(f"{n}{v.text}" for n, v in (each or {}).items()) for each in every]
    assert found == ["a1", "b1 a2", "c1 b2 a2", "c2 b2 a2"]
    assert Combinations(chain).max_count == 3 * 3 * 2
    with pytest.raises(CycleError):
        Combinations([*chain[:2], Knob("a", first.values, Condition(knobs={"c": frozenset({"1"})}))])


KEYS = st.lists(st.text("abcdef0123456789", min_size=12, max_size=12), min_size=1, max_size=20, unique=True)


@pytest.mark.system  # pure, and slow
@settings(max_examples=40)
@given(KEYS, st.integers(0, 2**32), st.integers(1, 6))
def test_every_block_has_every_cell_once(keys: list[str], seed: int, repeats: int) -> None:
    slots = order_slots(keys, seed, repeats)
    assert slots == order_slots(list(reversed(keys)), seed, repeats)
    for n in range(repeats):
        part = slots[n * len(keys) : (n + 1) * len(keys)]
        assert {repeat for _, repeat in part} == {n + 1}
        assert sorted(key for key, _ in part) == sorted(keys)


@settings(max_examples=40)
@given(KEYS, st.integers(0, 2**32), st.data())
def test_more_cells_and_repeats_keep_the_order(keys: list[str], seed: int, data: st.DataObject) -> None:
    some = data.draw(st.lists(st.sampled_from(keys), unique=True, min_size=1))
    assert [key for key in order_block(keys, seed, 1) if key in some] == order_block(some, seed, 1)
    assert order_slots(keys, seed, 3)[: 2 * len(keys)] == order_slots(keys, seed, 2)


def test_blocks_and_seeds_differ() -> None:
    keys = [f"{n:012x}" for n in range(30)]
    assert len({tuple(order_block(keys, seed, n)) for seed in range(5) for n in range(5)}) == 25
    # Each cell comes early and late: the mean place of all is the middle, within five standard deviations.
    places = [order_block(keys, seed, 1).index(keys[0]) for seed in range(400)]
    assert abs(sum(places) / len(places) - 14.5) < 5 * 8.66 / 20


DRAWN_KNOBS = ("cap", "batch", "rate")
SETS = st.lists(st.integers(1, 9), min_size=1, max_size=3, unique=True)


@dataclass
class Drawn:
    """Hold a study as it was drawn: plain data, from which a file and the expected cells are made."""

    knobs: dict[str, list[int]]
    whens: dict[str, dict[str, Any]]
    workloads: dict[str, list[str]]
    nodes: list[str]
    skips: list[dict[str, Any]]

    def text(self, order: random.Random) -> str:
        blocks = []
        for name, values in self.knobs.items():
            when = f"when = {format_toml(self.whens[name])}\n" if name in self.whens else ""
            blocks.append(f"[knobs.{name}]\nvalues = {format_toml(values)}\n{when}")
        for name, nodes in self.workloads.items():
            # A notebook or a command could use them all; a word for each knob would need every cell to have it.
            placeholders = " ".join(f"{{{knob}}}" for knob in self.always)
            blocks.append(
                f"[workloads.{name}]\ncommand = {format_toml(f'run {placeholders}')}\nnodes = {format_toml(nodes)}\n"
            )
        blocks += [f"[nodes.{name}]\nuses = 'gpu'\n" for name in self.nodes]
        order.shuffle(blocks)
        skips = ["[[skip]]\n" + "".join(f"{k} = {format_toml(v)}\n" for k, v in skip.items()) for skip in self.skips]
        order.shuffle(skips)
        return "repeats = 1\n" + "".join([*skips, *blocks])

    @property
    def always(self) -> list[str]:
        return sorted(name for name in self.knobs if name not in self.whens)

    def expected(self) -> set[tuple[Any, ...]]:
        found = set()
        for workload, nodes in self.workloads.items():
            for node in nodes:
                for values in itertools.product(*(self.knobs[name] for name in self.always)):
                    cell: dict[str, Any] = {
                        "workload": workload,
                        "node": node,
                        **dict(zip(self.always, values, strict=True)),
                    }
                    for more in self._with_conditional(cell, sorted(self.whens)):
                        if not any(self._holds(skip, more) for skip in self.skips):
                            found.add(tuple(sorted(more.items())))
        return found

    def _with_conditional(self, cell: dict[str, Any], names: list[str]) -> list[dict[str, Any]]:
        if not names:
            return [cell]
        values = self.knobs[names[0]] if self._holds(self.whens[names[0]], cell) else [None]
        return [
            more
            for value in values
            for more in self._with_conditional(cell if value is None else {**cell, names[0]: value}, names[1:])
        ]

    @staticmethod
    def _holds(condition: dict[str, Any], cell: dict[str, Any]) -> bool:
        return all(cell.get(key) in (value if isinstance(value, list) else [value]) for key, value in condition.items())


@st.composite
def studies(draw: st.DrawFn) -> Drawn:
    nodes = ["a", "b", "c"][: draw(st.integers(1, 3))]
    named = st.lists(st.sampled_from(nodes), min_size=1, unique=True)
    workloads = {name: draw(named) for name in ("train", "serve")[: draw(st.integers(1, 2))]}
    knobs = {name: draw(SETS) for name in DRAWN_KNOBS if draw(st.booleans())}
    if draw(st.booleans()):
        knobs["clock"] = draw(SETS)  # joulelab's own: cells may have it or not
    drawn = Drawn(knobs, {}, workloads, nodes, [])

    def condition(keys: list[str]) -> dict[str, Any]:
        there = {"workload": list(workloads), "node": nodes, **knobs}
        chosen = draw(st.lists(st.sampled_from(keys), min_size=1, max_size=2, unique=True))
        each = {key: st.sampled_from(there[key]) | st.lists(st.sampled_from(there[key]), min_size=1) for key in chosen}
        return {key: draw(strategy) for key, strategy in each.items()}

    if "clock" in knobs and draw(st.booleans()):
        drawn.whens["clock"] = condition(["workload", "node", *(name for name in knobs if name != "clock")])
    drawn.skips = [condition(["workload", "node", *knobs]) for _ in range(draw(st.integers(0, 2)))]
    return drawn


def plain(cell: PlannedCell) -> tuple[Any, ...]:
    knobs = {name: int(value.text) for name, value in cell.knobs.items()}
    return tuple(sorted({"workload": cell.workload.name, "node": cell.workload.node_type, **knobs}.items()))


@pytest.mark.system  # pure, and slow
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(drawn=studies(), seed=st.integers(0, 2**16))
def test_cells_are_the_product_without_what_is_skipped(tmp_path: Path, drawn: Drawn, seed: int) -> None:
    expected = drawn.expected()
    if not expected:
        return  # said elsewhere
    file = tmp_path / "s.toml"
    keys = []
    for order in (random.Random(seed), random.Random(seed + 1)):
        file.write_text(drawn.text(order), encoding="utf-8")
        cells = read_study(file).plan.cells
        assert len(cells) == len(expected)
        assert {plain(cell) for cell in cells} == expected
        keys.append({cell.key for cell in cells})
        assert len(keys[-1]) == len(expected)
    assert keys[0] == keys[1]
