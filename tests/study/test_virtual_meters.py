"""Meters in virtual time: what each family believes is its own, what it shows is the twin's; jobs of a cluster too."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from tests.study.virtual_study import NODE, write

from joulelab.core.clock import NS
from joulelab.core.errors import ConfigError
from joulelab.store.documents import read_json
from joulelab.study.results import load_trial
from joulelab.study.slots import State, read_slot
from joulelab.twin.nodefile import parse_node
from joulelab.twin.timeline import RunTimes, lay_out_run
from joulelab.twin.virtual import read_truth, run_twin_study
from joulelab.twin.virtual.meters import READERS, Bench, check_meters, find_gain, read_meters
from joulelab.twin.workload_progress import RunRequest

if TYPE_CHECKING:
    from pathlib import Path

    from joulelab.twin.virtual.meters import Measured

METERS = """
[meters.pdu]
family = "snmp"
ask_s = 20
gain_sd = 0.002
options = { outlets = [1, 2, 3, 4] }
[meters.inlet]
family = "modbus"
ask_s = 2
options = { profile = "sdm630" }
[meters.bmc]
family = "ipmi"
options = { sources = ["dcmi", "xcc"] }
[meters.rapl]
family = "rapl"
ask_s = 0.5
"""


def bench_of(
    text: str, *, period_s: float | None = None, slot: int = 5, study: int = 0
) -> tuple[Bench, dict[str, Measured]]:
    described = parse_node(NODE + text, "node")
    ask = RunRequest({}, (0, 1))
    timeline = lay_out_run(described.node, described.workloads["train"], ask, RunTimes(1000 * NS), seed=slot)
    bench = Bench(timeline, ask, slot, period_s, study)
    return bench, {each.meter: each for each in read_meters(bench, described.meters)}


def test_meters_read_their_points() -> None:
    bench, found = bench_of(METERS)
    a, b = bench.timeline.start_ns, bench.timeline.end_ns
    mean_w = bench.timeline.energy("node.ac", a, b) / (b - a) * NS
    cords = found["pdu"].rows
    assert [rows.stream.scope for rows in cords] == [f"outlet:pdu.{n}" for n in (1, 2, 3, 4)]
    assert {rows.stream.sums for rows in cords} == {"node.ac"}
    assert np.diff(cords[0].t0_ns).tolist() == [20 * NS] * (len(cords[0].t0_ns) - 1)
    (inlet,) = found["inlet"].rows
    inside = (inlet.t0_ns > a + 2 * NS) & (inlet.t1_ns < b)
    names = [c.name for c in inlet.stream.channels]
    assert inlet.values[inside, names.index("power_w")].mean() == pytest.approx(mean_w, rel=0.05)
    assert [rows.stream.scope for rows in found["bmc"].rows] == ["node.ac", "node.dc"]
    cpu = found["rapl"].rows[0]
    rise = np.interp([a, b], cpu.t0_ns, cpu.values[:, 0])
    assert cpu.stream.scope == "cpu:0"
    assert rise[1] - rise[0] == pytest.approx(bench.timeline.energy("cpu:0", a, b), rel=0.01)


GAINS = """
[meters.nvml]
family = "nvml"
ask_s = 0.5
gain_sd = 0.03
[meters.pdu]
family = "snmp"
ask_s = 2
gain_sd = 0.03
options = { outlets = [1, 2] }
[meters.pdu2]
family = "snmp"
ask_s = 2
gain_sd = 0.03
options = { outlets = [1, 2] }
"""


def gains_of(**seeds: int) -> dict[str, float]:
    """Return by how much each device is off what it would show without an error of gain."""
    _, found = bench_of(GAINS, **seeds)
    _, plain = bench_of(GAINS.replace("0.03", "0.0"), **seeds)
    gains = {}
    for name, measured in found.items():
        for rows, true in zip(measured.rows, plain[name].rows, strict=True):
            names = [c.name for c in rows.stream.channels]
            shown = [name for name in ("power_instant_w", "power_w") if name in names]
            if shown:
                k = names.index(shown[0])
                gains[f"{name}/{rows.stream.scope}"] = float(rows.values[:, k].sum() / true.values[:, k].sum()) - 1
    return gains


@pytest.mark.system  # pure, and slow
def test_every_device_has_its_own_gain_that_is_the_same_in_all_slots_of_a_study() -> None:
    first, again, other = gains_of(study=1), gains_of(study=1, slot=6), gains_of(study=2)
    assert len(first) == 2 + 2 + 2
    assert len({round(gain, 3) for gain in first.values()}) == len(first)
    assert again == {device: pytest.approx(gain, abs=2e-3) for device, gain in first.items()}
    assert sum(abs(other[device] - gain) > 4e-3 for device, gain in first.items()) >= len(first) - 1
    drawn = [gain for study in range(12) for gain in gains_of(study=study).values()]
    assert 0.02 < float(np.std(drawn)) < 0.04
    bench, _ = bench_of(GAINS, study=1)
    both = [bench.draw_gain("pdu", parse_node(NODE + GAINS, "node").meters["pdu"], f"outlet:pdu.{n}") for n in (1, 2)]
    assert find_gain(bench, "pdu", parse_node(NODE + GAINS, "node").meters["pdu"]) == pytest.approx(sum(both) / 2)


def test_a_silent_meter_leaves_a_gap() -> None:
    text = '[meters.inlet]\nfamily = "modbus"\noptions = { profile = "sdm630" }\n'
    _, found = bench_of(text + "flaws = { silent_at_s = 3, silent_for_s = 4 }\n")
    (rows,) = found["inlet"].rows
    assert np.diff(rows.t0_ns).max() >= 4 * NS
    assert [event["event"] for event in found["inlet"].events] == ["gap", "gap-end"]


def test_the_period_of_the_study_is_that_of_meters_without_their_own() -> None:
    text = '[meters.nvml]\nfamily = "nvml"\nask_s = 0.2\n'
    for period_s, more, each in ((None, "", 0.2), (0.5, "", 0.5), (0.5, "options = { period_s = 0.1 }\n", 0.1)):
        _, found = bench_of(text + more, period_s=period_s)
        assert np.diff(found["nvml"].rows[0].t0_ns)[0] == round(each * NS)


def test_wrong_options_are_refused() -> None:
    for text, told in (
        ('family = "modbus"\noptions = { profile = "none" }', "no profile 'none'"),
        ('family = "analyzer"\noptions = { model = "WT9" }', "no analyzer 'WT9'"),
        ('family = "ipmi"\noptions = { sources = ["psu"] }', "a twin has no psu"),
    ):
        with pytest.raises(ConfigError, match=told):
            bench_of(f"[meters.x]\n{text}\n")
    for text, told in (("{ plugin = 'abacus' }", "no plugin 'abacus'"), ("{ often = 3 }", "unknown key 'often'")):
        with pytest.raises(ConfigError, match=told):
            check_meters(parse_node(f"[meters.x]\nfamily = 'slurm'\noptions = {text}\n", "node").meters)
    assert "slurm" not in READERS


@pytest.mark.system
def test_what_a_cluster_accounts_comes_by_the_code_of_real_ones(tmp_path: Path) -> None:
    meters = '[meters.job]\nfamily = "slurm"\npoint = "node.dc"\noptions = { frequency_s = 10 }\n'
    meters += '[meters.nvml]\nfamily = "nvml"\nask_s = 0.5\n'
    study = run_twin_study(
        write(tmp_path, repeats=2, caps="[260]", meters=meters), str(tmp_path / "node.toml"), tmp_path / "out"
    )
    jobs = set()
    for slot in sorted((tmp_path / "out").glob("cells/*/r0*")):
        job = read_json(slot / "job.json")
        told, truth = job["accounting"], read_truth(slot)["energy_j"]["node.dc"]
        assert told["covers"] == ["node.dc"]
        assert told["frequency_s"] == 10
        # The last look may be 10 s back, and the job is longer than the workload: idle before it, a second after.
        most_w = 2 * truth / read_truth(slot)["time_s"]
        assert abs(told["energy_j"] - truth) < 16 * most_w
        assert told["energy_j"] != pytest.approx(truth, rel=1e-6)
        assert load_trial(read_slot(slot)).energies[f"job@slurm-{job['job']}"].value > 0
        assert read_json(slot / "claim.json")["job"] == job["job"]
        jobs.add(job["job"])
    assert len(jobs) == 4
    assert State.DONE == "done"
    assert study.name == "tiny"


def test_gpus_show_clock_and_heat_as_a_served_twin_does() -> None:
    described = parse_node(NODE + '[meters.nvml]\nfamily = "nvml"\n', "node")
    ask = RunRequest({}, (0,), {0: 120.0})
    timeline = lay_out_run(described.node, described.workloads["train"], ask, RunTimes(1000 * NS), seed=1)
    (nvml,) = read_meters(Bench(timeline, ask, 1), described.meters)
    for gpu in (0, 1):
        (rows,) = (r for r in nvml.rows if r.stream.scope == f"gpu:{gpu}" and r.stream.table == "state")
        at = {c.name: rows.values[:, k] for k, c in enumerate(rows.stream.channels)}
        board, (_, given) = described.node.get_board(gpu), timeline.curve(f"gpu:{gpu}")
        wanted = timeline.wanted_w(gpu, rows.t0_ns)
        mhz = board.sm_mhz(wanted, given.watts(rows.t0_ns), timeline.load(gpu, rows.t0_ns))
        assert at["sm_clock_hz"] == pytest.approx(1e6 * mhz, abs=0.51e6)
        mean_w = (given.joules(rows.t0_ns) - given.joules(rows.t0_ns - 5 * NS)) / 5
        assert at["temperature_c"] == pytest.approx(board.compute_celsius(mean_w), abs=0.51)
        held = (wanted > 120.0) & (gpu == 0)
        assert ((at["throttle"] == 4) == held).all()
        assert held.any() == (gpu == 0)
        assert (mhz[held] < board.sm_max_mhz).all()
        assert set(mhz[~held]) <= {board.sm_max_mhz, board.sm_idle_mhz}
        assert at["sm_clock_hz"][0] == at["sm_clock_hz"][-1] == 1e6 * board.sm_idle_mhz
