"""Words for what runtime x rated power would have said."""

from __future__ import annotations

import pytest

from joulelab.analysis.result import Rated, RatedResult
from joulelab.core.quantity import Quantity
from joulelab.report.rated import power_told, told


def made(
    *watts: float, seconds: float = 600.0, measured: Quantity | None = None, unknown: tuple[str, ...] = ()
) -> RatedResult:
    devices = tuple(Rated("node1", f"gpu:{k}", w, "told") for k, w in enumerate(watts))
    return RatedResult(devices, seconds, measured, unknown)


def test_one_kind_of_gpu_is_told_once_and_others_are_added() -> None:
    known = Quantity(1.8e6, {"gain": 5e4})
    assert told(made(700.0, 700.0, 350.5, measured=known)) == (
        "(2 x 700 W + 350.5 W) x 10.0 min = 1.05 MJ (0.292 kWh): 0.584 ± 0.032 times what was measured (told)"
    )
    assert power_told(made(10200.0)) == "10 200 W"


def test_what_is_not_known_is_said_with_how_to_tell_it() -> None:
    how = "is not recorded; to tell it: rated_w = WATTS below [node] of joulelab.toml"
    assert told(made(unknown=("node.ac",))) == f"unknown: the rated power of node.ac {how}"
    several = made(unknown=tuple(f"cpu:{k}" for k in range(6)))
    assert "cpu:0, cpu:1, cpu:2, cpu:3 and 2 more" in told(several)
    assert told(made()) == "none: no energy was measured that it could be compared with"
    assert " times what gpu used (" in told(made(700.0, measured=Quantity(1e5), unknown=("cpu:0",)))


def test_what_the_workload_was_not_shown_is_named() -> None:
    rated = RatedResult((Rated("node1", "gpu:0", 260.0, "told"),), 600.0, Quantity(78e3), unused=("gpu:1",))
    words = "2.000 ± 0 times what gpu used (told; without gpu:1, not shown to the workload)"
    assert told(rated) == f"260 W x 10.0 min = 156 kJ: {words}"


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (made(5.0, seconds=2.0, measured=Quantity(4.0, known=False)), "5 W x 2.00 s = 10.0 J: 2.500 ± ? times"),
        (made(5600.0, seconds=86_400.0, measured=Quantity(4e8)), "x 24.0 h = 484 MJ (134 kWh): 1.210 ± 0 times"),
        (made(1e6, seconds=86_400.0, measured=Quantity(1e10, {"x": 4e9})), "= 86.4 GJ (24000 kWh): 8.64 ± 6.9 times"),
        (made(700.0, seconds=1234.5, measured=Quantity(1e5, {"x": 2e3})), "x 20.6 min = 864 kJ (0.240 kWh): 8.64 ±"),
    ],
)
def test_numbers_are_told_in_the_units_of_their_size(result: RatedResult, words: str) -> None:
    assert words in told(result)
