"""The caps that tuning chooses from."""

from __future__ import annotations

import pytest
from tests.rows import every_row
from tests.study.tuning.two_gpus import STATUS, device

from joulelab.control.client import CapStatus
from joulelab.core.errors import ConfigError, Refused
from joulelab.study.tuning.grid import make_grid
from joulelab.study.tuning.search import Setting, choose_budget


def test_the_usual_grid_is_the_range_of_the_gpus_in_round_steps() -> None:
    usual = make_grid(STATUS, ["gpu:0", "gpu:1"], None).settings
    assert usual == [Setting(float(w)) for w in range(100, 261, 10)]
    odd = CapStatus([device(lowest=125.0, highest=450.0, default=366.0)])
    grid = make_grid(odd, ["gpu:0"], None)
    assert (grid.settings[0].cap_w, grid.reference.cap_w) == (125.0, 366.0)
    assert 12 <= len(grid.settings) <= 20
    wide = make_grid(CapStatus([device(lowest=200.0, highest=700.0, default=700.0)]), ["gpu:0"], None)
    assert {one.cap_w for one in wide.settings} == {200.0, 700.0} | {float(w) for w in range(225, 700, 25)}


def test_a_share_is_of_the_default_and_asked_for_as_a_share() -> None:
    grid = make_grid(STATUS, ["gpu:0", "gpu:1"], "50%:100%:25%")
    assert [one.cap_w for one in grid.settings] == [130.0, 195.0, 260.0]
    assert grid.labels[Setting(195.0)] == "75% (195 W)"
    assert [(w.device, w.value, w.unit) for w in grid.make_requests(Setting(195.0))] == [
        ("gpu:0", 0.75, "share"),
        ("gpu:1", 0.75, "share"),
    ]


def test_clocks_make_a_grid_of_their_own_or_one_of_pairs() -> None:
    alone = make_grid(STATUS, ["gpu:0"], None, "900:2100:600")
    assert alone.settings == [Setting(None, mhz * 1e6) for mhz in (900, 1500, 2100)]
    assert alone.write_command(Setting(None, 900e6), "train") == "joulelab cap --clock 900 -- train"
    pairs = make_grid(STATUS, ["gpu:0", "gpu:1"], "100,260", "900:2100:600")
    assert len(pairs.settings) == 6
    assert pairs.reference == Setting(260.0, 2100e6)
    low = Setting(100.0, 900e6)
    assert pairs.labels[low] == "100 W, 900 MHz"
    assert pairs.write_command(low, "train") == "joulelab cap --clock 900 100 -- train"
    assert [(r.device, r.value, r.unit) for r in pairs.make_requests(low)] == [
        ("gpu:0", 100.0, "W"),
        ("gpu:1", 100.0, "W"),
        ("gpu:0", 900e6, "Hz"),
        ("gpu:1", 900e6, "Hz"),
    ]
    assert [(knob.name, len(knob.values)) for knob in pairs.knobs] == [("cap", 2), ("clock", 3)]
    for cap, clock, where in ((None, "100:900:400", "--clock"), ("90,260", "900", "--cap"), (None, "900", "--clock")):
        with pytest.raises((Refused, ConfigError)) as caught:
            make_grid(STATUS, ["gpu:0"], cap, clock)
        assert caught.value.where == where
    with pytest.raises(Refused, match="cannot be locked"):
        make_grid(CapStatus([device()]), ["gpu:0"], None, "900,1200")


@every_row(
    ("count", "budget"), [(2, 2), (3, 2), (4, 2), (5, 2), (6, 2), (7, 3), (8, 3), (9, 4), (13, 6), (17, 7), (40, 15)]
)
def test_small_grids_have_a_budget_below_half_of_their_points(count: int, budget: int) -> None:
    assert choose_budget([Setting(100.0 + n) for n in range(count)]) == budget
    assert budget < count / 2 or count < 5
    pairs = [Setting(100.0 + n, 1e9 + m) for n in range(count) for m in range(4)]
    assert choose_budget(pairs) == max(2, min(count, 24))


@pytest.mark.parametrize(
    ("scopes", "text", "kind", "said"),
    [
        (["gpu:0"], "90:260:10", Refused, "takes 100 to 260 W"),
        (["gpu:0"], "200", ConfigError, "nothing to choose from"),
        (["gpu:0", "gpu:2"], None, Refused, "gpu:2 cannot be capped"),
        (["gpu:0"], "x", ConfigError, "cannot be read"),
    ],
)
def test_a_grid_that_cannot_be_is_refused(
    scopes: list[str], text: str | None, kind: type[Exception], said: str
) -> None:
    with pytest.raises(kind, match=said):
        make_grid(STATUS, scopes, text)
