"""A run in virtual time: its points add up, caps hold, spans tell what is done, a seed gives the same."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from joulelab.core.errors import ConfigError
from joulelab.twin import power_curves, profile
from joulelab.twin.model import RTX6000, Cpu, Node
from joulelab.twin.timeline import RunTimes, Timeline, lay_out_run
from joulelab.twin.truth import Truth
from joulelab.twin.workload_progress import RunRequest, Stage, WorkloadModel

NS = 10**9
GPU = replace(RTX6000, active_w=60.0)
NODE = Node(gpus=(GPU,) * 2, packages=1, spread=0.0, cpu=Cpu(idle_w=40, awake_w=60, max_w=160))
STAGES = (
    Stage(name="set-up", seconds=10, cpu=0.5),
    Stage(name="epoch", each="epoch", samples=600, rate=20, busy=0.9, intensity=0.8, cpu=0.2, memory=0.5),
    Stage(name="rest", each="epoch", seconds=5, awake=0.0),
)
QUIET = WorkloadModel(stages=STAGES, epochs=2, parameters={})
NOISY = replace(QUIET, time_scatter=0.02, power_scatter=0.03)


def run(model: WorkloadModel = QUIET, ask: RunRequest | None = None, seed: int = 1, node: Node = NODE) -> Timeline:
    return lay_out_run(node, model, ask or RunRequest({}, (0,)), RunTimes(100 * NS, 7.0, 3.0), seed)


def watts(found: Timeline, point: str, *seconds: float) -> list[float]:
    share, curve = found.curve(point)
    return list(share * curve.watts(100 * NS + np.rint(np.array(seconds) * NS).astype(np.int64)))


def test_when_what_is_done() -> None:
    found = run()
    assert (found.begin_ns, found.start_ns, found.end_ns, found.close_ns) == (93 * NS, 100 * NS, 180 * NS, 183 * NS)
    told = [(span.name, span.epoch, span.start_ns // NS, span.end_ns // NS, span.samples) for span in found.spans]
    assert told == [
        ("set-up", None, 100, 110, 0), ("epoch", 1, 110, 140, 600), ("rest", 1, 140, 145, 0),
        ("epoch", 2, 145, 175, 600), ("rest", 2, 175, 180, 0),
    ]  # fmt: skip


def test_every_leaf_draws_what_its_stage_asks_for() -> None:
    found, epoch_w = run(), 18 + 0.9 * (42 + 0.8 * 200)
    moments = (-3, 5, 20, 42, 82)
    assert watts(found, "gpu:0", *moments) == pytest.approx([18, 18, epoch_w, 18, 18])
    assert watts(found, "gpu:1", *moments) == pytest.approx([18] * len(moments))
    assert watts(found, "cpu:0", *moments) == pytest.approx([40, 60 + 50, 60 + 20, 40, 40])
    assert watts(found, "core:0", -3, 5) == pytest.approx([25, 25 + 0.85 * 70])
    assert watts(found, "dram:0", -3, 20) == pytest.approx([14, 14 + 0.5 * 46])
    assert watts(found, "host", -3, 20) == pytest.approx([250, 250 + 0.9 * 0.8 / 2 * 150])


def test_points_add_up_as_those_of_a_truth_file(tmp_path) -> None:
    found = run(NOISY, RunRequest({}, (0, 1), {0: 150.0, 1: 150.0}))
    a, b = found.begin_ns, found.close_ns
    leaves = power_curves.list_heating_leaves(NODE.list_leaves())
    assert found.energy("node.dc", a, b) == pytest.approx(sum(found.energy(p, a, b) for p in [*leaves, "fans"]))
    assert found.energy("psys", a, b) == pytest.approx(
        sum(found.energy(p, a, b) for p in ("cpu:0", "dram:0", "host", "fans"))
    )
    cords = range(1, len(NODE.supply.cords) + 1)
    assert found.energy("node.ac", a, b) == pytest.approx(sum(found.energy(f"outlet:{n}", a, b) for n in cords))
    # The same leaves in a truth file have the same fans and supply.
    with Truth.create(tmp_path / "t", NODE, profiles={"gpu": profile.constant(0.0)}, start_ns=a - NS) as truth:
        for leaf in NODE.list_leaves():
            curve = found.curve(leaf)[1]
            truth.append(leaf, curve.t_ns, curve.watts(curve.t_ns), curve.watts(curve.t_ns))
        for point in truth.points:
            assert truth.energy(point, a, b) == pytest.approx(found.energy(point, a, b), rel=1e-9), point
    with pytest.raises(ConfigError, match=r"did you mean 'node\.ac'"):
        found.curve("node.acc")


def test_a_cap_holds_the_power_and_takes_time() -> None:
    free, capped = run(), run(ask=RunRequest({}, (0,), {0: 120.0}))
    assert watts(capped, "gpu:0", 20) == [120]
    wanted = 18 + 0.9 * (42 + 0.8 * 200)
    slower = 1 + 0.035 * ((120 / wanted) ** -4 - 1)
    assert (capped.end_ns - capped.start_ns) / NS == pytest.approx(20 + 60 * slower)
    assert capped.energy("fans", 110 * NS, 130 * NS) <= free.energy("fans", 110 * NS, 130 * NS)


def test_a_locked_clock_takes_dynamic_power_and_time_but_no_more_than_the_clock() -> None:
    wanted = 18 + 0.9 * (42 + 0.8 * 200)
    for mhz, slower in ((1680, GPU.compute_stretch((18 + 0.64 * (wanted - 18)) / wanted)), (1050, 2.0)):
        found = run(ask=RunRequest({}, (0,), clocks={0: mhz}))
        assert watts(found, "gpu:0", 20) == pytest.approx([18 + (mhz / 2100) ** 2 * (wanted - 18)])
        assert (found.end_ns - found.start_ns) / NS == pytest.approx(20 + 60 * slower)
    both = run(ask=RunRequest({}, (0,), caps={0: 100.0}, clocks={0: 1680}))
    assert watts(both, "gpu:0", 20) == [100], "the stronger one counts"
    assert both.end_ns == run(ask=RunRequest({}, (0,), caps={0: 100.0})).end_ns


def test_a_cap_of_the_cpus_takes_power_and_time_of_what_they_do() -> None:
    stages = (Stage(samples=600, rate=20, cpu=0.8), Stage(samples=60, host_rate=6, cpu=0.8), Stage(seconds=5, cpu=0.8))
    model, ask = WorkloadModel(stages=stages, epochs=1, parameters={}), RunRequest({}, cpu_caps={0: 100.0})
    free, capped = run(model, RunRequest({})), run(model, ask)
    assert watts(free, "cpu:0", 10) == pytest.approx([140])
    assert watts(capped, "cpu:0", 10, 55) == pytest.approx([100, 100])
    assert watts(capped, "core:0", 10) == pytest.approx([25 + 0.85 * 60])
    assert (free.end_ns - free.start_ns) / NS == pytest.approx(45)
    assert (capped.end_ns - capped.start_ns) / NS == pytest.approx(40 * (100 / 60) ** 0.5 + 5)
    on_gpu = run(model, replace(ask, gpus=(0,)))
    assert (on_gpu.end_ns - on_gpu.start_ns) / NS == pytest.approx(30 + 10 * (100 / 60) ** 0.5 + 5)
    assert watts(run(model, replace(ask, cpu_caps={0: 1.0})), "cpu:0", 10) == pytest.approx([40 + 120 / 16])


def test_a_seed_gives_the_same_and_another_one_not() -> None:
    def told(seed: int) -> tuple[int, float]:
        found = run(NOISY, seed=seed)
        return found.end_ns, found.energy("node.ac", found.start_ns, found.end_ns)

    assert told(4) == told(4)
    runs = np.array([told(seed) for seed in range(40)])
    took, joules = (runs[:, 0] - 100 * NS) / NS, runs[:, 1]
    assert took.std() / took.mean() == pytest.approx(0.02, rel=0.4)
    assert took.mean() == pytest.approx(80, rel=0.01)
    assert len(set(joules)) == 40


def test_flutter_keeps_the_mean() -> None:
    fluttering = replace(STAGES[1], flutter=0.05, flutter_s=0.1)
    found, calm = run(replace(QUIET, stages=(fluttering,))), run(replace(QUIET, stages=STAGES[1:2]))
    share, curve = found.curve("gpu:0")
    assert share == 1
    seen = curve.watts(np.arange(found.start_ns, found.end_ns, NS // 10))
    assert (seen - 18).std() / (seen - 18).mean() == pytest.approx(0.05, rel=0.15)
    assert found.energy("gpu:0", 100 * NS, 160 * NS) == pytest.approx(
        calm.energy("gpu:0", 100 * NS, 160 * NS), rel=0.01
    )


def test_a_cold_chip_draws_less() -> None:
    cold = replace(NODE, gpus=(replace(GPU, cold=0.1, warm_up_s=10.0),) * 2)
    first, later = watts(run(node=cold, model=replace(QUIET, stages=STAGES[1:2])), "gpu:0", 0.1, 55)
    full = 0.9 * (42 + 0.8 * 200)
    assert first == pytest.approx(18 + 0.9 * full)
    assert later == pytest.approx(18 + full, rel=0.01)


def test_nothing_to_do_is_refused() -> None:
    with pytest.raises(ConfigError, match="nothing to do"):
        run(WorkloadModel(stages=(Stage(on="cpu", seconds=3),), epochs=1, parameters={}))
