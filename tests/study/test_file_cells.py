"""The matrix of a study file: every combination once, whatever the order of its tables."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from joulelab.run.config.toml_writing import format_toml
from joulelab.study.study_file import read_study

if TYPE_CHECKING:
    from pathlib import Path

    from joulelab.study.matrix import PlannedCell

NAMES = ("cap", "batch", "rate")
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
    knobs = {name: draw(SETS) for name in NAMES if draw(st.booleans())}
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
