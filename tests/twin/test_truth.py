from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulelab.core.errors import ConfigError
from joulelab.twin import profile, truth_file
from joulelab.twin.flaws import Flaws
from joulelab.twin.model import A100, H100, Node, Supply, find_gpu_model
from joulelab.twin.power_curves import limit_segments
from joulelab.twin.truth import Truth
from joulelab.twin.truth_file import Instance, Process

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NS = 10**9
START = 50 * NS
SMALL = Node(gpus=(H100, A100), packages=1, spread=0.0)
_number = itertools.count()


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Truth]:
    def build(node: Node = SMALL, **options: Any) -> Truth:
        return Truth.create(tmp_path / f"truth{next(_number)}", node, **({"start_ns": START} | options))

    return build


def sampled(truth: Truth, point: str, a_ns: int, b_ns: int, n: int = 200_001) -> float:
    t_ns = np.linspace(a_ns, b_ns, n).astype(np.int64)
    return float(np.trapezoid(truth.power(point, t_ns), t_ns)) / NS


def test_points_add_up(make: Callable[..., Truth]) -> None:
    truth = make(profiles={"gpu": profile.ramp(4), "cpu": profile.square(0.7, 0.4)})
    a, b = START + NS // 3, START + 7 * NS
    leaves = [leaf for leaf in truth.leaves if not leaf.startswith("core")]
    assert truth.energy("node.dc", a, b) == pytest.approx(sum(truth.energy(leaf, a, b) for leaf in [*leaves, "fans"]))
    others = ("cpu:0", "dram:0", "host", "fans")
    assert truth.energy("psys", a, b) == pytest.approx(sum(truth.energy(p, a, b) for p in others))
    assert truth.energy("core:0", a, b) < truth.energy("cpu:0", a, b)
    for point in truth.points:
        assert truth.energy(point, a, b) == pytest.approx(sampled(truth, point, a, b), rel=2e-5), point


def test_ac_follows_the_efficiency(make: Callable[..., Truth]) -> None:
    supply = Supply(rated_w=4000, standby_w=10, load=(0.1, 0.5, 1.0), efficiency=(0.8, 0.95, 0.9))
    truth = make(Node(gpus=(H100,), packages=0, spread=0, supply=supply))
    dc, ac = truth.power("node.dc", START), truth.power("node.ac", START)
    assert dc == 70 + 450
    assert ac == pytest.approx(500 + (dc - 400) * (2000 / 0.95 - 500) / (2000 - 400))
    assert truth.power("node.ac", START) > dc


@pytest.mark.parametrize("cap", [200, 350, 699])
def test_caps_clip_from_when_they_are_set(make: Callable[..., Truth], cap: float) -> None:
    truth = make(profiles={"gpu": profile.ramp(4)})
    whole = truth.energy("gpu:0", START, START + 6 * NS)
    truth.energy("node.ac", START, START + 6 * NS)
    at = START + 3 * NS + 123_456_789
    truth.set_cap(0, cap, at)
    assert truth.energy("gpu:0", START, at) == pytest.approx(70 * 3.123456789 + 630 / 8 * 3.123456789**2)
    assert truth.energy("gpu:0", at, START + 6 * NS) == pytest.approx(
        sampled(truth, "gpu:0", at, START + 6 * NS), rel=1e-5
    )
    assert truth.power("gpu:0", START + 6 * NS) == cap
    assert truth.energy("gpu:0", START, START + 6 * NS) < whole
    ac = truth.energy("node.ac", START, START + 6 * NS)
    with Truth(truth.path) as again:
        assert again.caps(0, at) == (cap, cap)
        assert again.energy("node.ac", START, START + 6 * NS) == pytest.approx(ac)


def test_caps_from_outside_and_forgotten(make: Callable[..., Truth]) -> None:
    node = SMALL.with_flaws(0, outside_cap_w=500, outside_cap_at_s=2.0, forget_cap_at_s=4.0)
    truth = make(node, profiles={"gpu": profile.constant(1.0)})
    truth.set_cap(0, 300, START + NS)
    expected = [(0.5, 700, 700, 700), (1.5, 300, 300, 300), (3, 300, 300, 300), (5, 700, 500, 500)]
    for seconds, requested, enforced, watts in expected:
        t_ns = START + round(seconds * NS)
        assert truth.caps(0, t_ns) == (requested, enforced)
        assert truth.power("gpu:0", t_ns) == watts
    assert truth.energy("gpu:0", START, START + 6 * NS) == pytest.approx(700 + 3 * 300 + 2 * 500)
    truth.set_cap(0, 250, START + 5 * NS)
    assert truth.caps(0, START + 6 * NS) == (250, 250)
    truth.set_cap(0, 650, START + 3 * NS)  # what was set for later is dropped
    assert truth.energy("gpu:0", START, START + 6 * NS) == pytest.approx(700 + 2 * 300 + 500 + 2 * 500)


segments = st.lists(st.tuples(st.integers(1, 2 * NS), st.floats(0, 800), st.floats(0, 800)), min_size=1, max_size=12)
caps = st.lists(st.tuples(st.integers(0, 12 * NS), st.integers(200, 700)), max_size=4)
moments = st.integers(-NS, 20 * NS)


@settings(max_examples=20, deadline=None)
@given(segments, caps, moments, moments, moments, st.integers(0, 11))
def test_energy_is_a_difference_of_one_curve(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[tuple[int, float, float]],
    changes: list[tuple[int, int]],
    a: int,
    b: int,
    c: int,
    split: int,
) -> None:
    at = START + np.cumsum([row[0] for row in rows] + [NS])
    start = [row[1] for row in rows] + [100.0]
    end = [row[2] for row in rows] + [100.0]
    times = sorted(changes)
    path = tmp_path_factory.mktemp("truth")
    with (
        Truth.create(path / "a", SMALL, start_ns=START, room=64) as whole,
        Truth.create(path / "b", SMALL, start_ns=START, room=64) as grown,
    ):
        whole.append("gpu:0", at, start, end)
        for t_ns, cap in times:
            whole.set_cap(0, cap, START + t_ns)
        one, two, three = (START + t for t in (a, b, c))
        joules = whole.energy("gpu:0", one, three)
        assert joules == pytest.approx(whole.energy("gpu:0", one, two) + whole.energy("gpu:0", two, three), abs=1e-6)
        assert whole.energy("gpu:0", np.array([one]), np.array([three]))[0] == joules
        # Grown step by step, with readings in between, the curve is the same.
        split = min(split, len(rows) - 1)
        halves = [slice(0, split), slice(split, None)]
        for half, some in zip(halves, (times[: len(times) // 2], times[len(times) // 2 :]), strict=True):
            if half.stop != 0:
                more_end = [*end[half][:-1], start[half][-1]] if half.stop else end[half]
                grown.append("gpu:0", at[half], start[half], more_end)
            grown.energy("node.ac", one, three)
            for t_ns, cap in some:
                grown.set_cap(0, cap, START + t_ns)
            grown.energy("node.ac", one, three)
        if split == 0 or start[split - 1] == end[split - 1]:
            assert grown.energy("gpu:0", one, three) == pytest.approx(joules, abs=1e-5)
            assert grown.energy("node.ac", one, three) == pytest.approx(whole.energy("node.ac", one, three), abs=1e-5)


def test_long_scripts_stay_cheap(make: Callable[..., Truth], monkeypatch: pytest.MonkeyPatch) -> None:
    """What is known of the past is not computed again: only the last segment and the new one are."""
    truth, computed = make(room=20_000), list[int]()

    def count(*arguments: Any) -> Any:
        made = limit_segments(*arguments)
        computed.append(len(made.t_ns))
        return made

    monkeypatch.setattr("joulelab.twin.truth.limit_segments", count)
    t_ns = START + np.arange(1, 15_001) * 50_000_000
    watts = np.tile([100.0, 650.0, 300.0], 5_000)
    truth.append("gpu:0", t_ns, watts, watts)
    truth.energy("gpu:0", START, int(t_ns[-1]))
    assert computed == [15_001]
    for i in range(50):
        truth.append("gpu:0", int(t_ns[-1]) + (i + 1) * NS, 100 + i, 100 + i)
        truth.energy("gpu:0", START, int(t_ns[-1]) + (i + 2) * NS)
    assert max(computed[1:]) <= 2
    assert truth.energy("gpu:0", int(t_ns[0]), int(t_ns[-1])) == pytest.approx(float(np.sum(watts[:-1])) * 0.05)


def test_play_after_the_fact(make: Callable[..., Truth]) -> None:
    truth = make()
    truth.append_profiles({"gpu:1": profile.square(1, 0.5, 100, 300, unit="W")}, START + 2 * NS, 3.0)
    assert truth.energy("gpu:1", START, START + 2 * NS) == pytest.approx(2 * 58)
    assert truth.energy("gpu:1", START + 2 * NS, START + 5 * NS) == pytest.approx(600)
    assert truth.power("gpu:1", START + 9 * NS) == 100
    with pytest.raises(ConfigError, match="already written"):
        truth.append_profiles({}, START + 3 * NS, 1.0)


def test_what_is_wrong_is_refused(make: Callable[..., Truth], tmp_path: Path) -> None:
    truth = make(room=4)
    with pytest.raises(ConfigError, match=r"gpu:0"):
        truth.power("gpu:9", START)
    with pytest.raises(ConfigError, match="within 200 to 700 W"):
        truth.set_cap(0, 100)
    with pytest.raises(ConfigError, match="no GPU 7"):
        truth.set_cap(7, 300)
    with pytest.raises(ConfigError, match="the last is constant"):
        truth.append("gpu:0", START + NS, 1.0, 2.0)
    with pytest.raises(ConfigError, match="no room"):
        truth.append("gpu:0", START + np.arange(1, 9), np.ones(8), np.ones(8))
    with pytest.raises(ConfigError, match="there already"):
        Truth.create(truth.path, SMALL)
    with pytest.raises(ConfigError, match="valid:"):
        Truth.create(tmp_path / "x", SMALL, profiles={"core:0": profile.constant(1)})
    with pytest.raises(ConfigError, match="64 processes"):
        truth.set_processes(0, [Process(pid=1, memory_bytes=1)] * 65)
    with pytest.raises(ConfigError, match="MIG"):
        make(Node(gpus=(find_gpu_model("rtx 3090"),))).set_instances(0, [Instance()])
    for content in (b"", b"short", bytes(10_000)):
        (tmp_path / "other").write_bytes(content)
        with pytest.raises(ConfigError, match="not a truth file"):
            Truth(tmp_path / "other")
    other = bytearray(truth.path.read_bytes())
    at = (truth_file.HEADER.fields or {})["layout"][1]
    other[at : at + 4] = b"\0\0\0\0"
    (tmp_path / "other").write_bytes(other)
    with pytest.raises(ConfigError, match="another version"):
        Truth(tmp_path / "other")


def test_flaws_come_back_as_they_went_in(make: Callable[..., Truth]) -> None:
    flaws = Flaws(
        gain_error=0.02, lost_at_s=3.5, fail_at_s=1.0, fail_for_s=2.0, outside_cap_w=300, outside_cap_at_s=1.0
    )
    truth = make(Node(gpus=(H100,)).with_flaws(gain_error=0.02, lost_at_s=3.5))
    assert truth.read_flaws(0).gain_error == 0.02
    truth.change_flaws(0, **{name: getattr(flaws, name) for name in Flaws.__dataclass_fields__})
    assert truth.read_flaws(0) == flaws
    assert truth.count_seconds(START + NS) == 1.0


def test_presets_and_nodes() -> None:
    assert find_gpu_model("RTX 6000").max_cap_w == 260
    assert find_gpu_model("NVIDIA H100 80GB HBM3") is H100
    with pytest.raises(ConfigError, match="h100"):
        find_gpu_model("h10")
    node = Node(gpus=(H100, A100), spread=0.05)
    assert node.range_w("gpu:0")[1] != 700
    assert Node(gpus=(H100,), spread=0.0).range_w("gpu:0") == (70, 700)
    with pytest.raises(ConfigError, match="gain_error"):
        node.with_flaws(gain=1)
    with pytest.raises(ConfigError, match="no GPU 2"):
        node.with_flaws(2, gain_error=1)
    for wrong in (
        {"load": (0.1,), "efficiency": (0.9, 0.8)},
        {"load": (0.5, 0.1), "efficiency": (0.9, 0.8)},
        {"load": (0.5,), "efficiency": (1.1,)},
    ):
        with pytest.raises(ConfigError):
            Supply(**wrong)
