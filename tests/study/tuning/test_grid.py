"""The caps that tuning chooses from."""

from __future__ import annotations

import pytest
from tests.study.tuning.two_gpus import STATUS, device

from joulelab.control.client import CapStatus
from joulelab.core.errors import ConfigError, Refused
from joulelab.study.tuning.grid import make_grid
from joulelab.study.tuning.search import Setting


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
