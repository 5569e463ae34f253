"""Jobs of a node get their part of its devices, by CPU time of their groups and loads of their processes."""

from __future__ import annotations

import math

import pytest

from joulelab.agent.collect import Seen
from joulelab.agent.job_split import BLOCK_CELLS, JobSplit
from joulelab.agent.metrics import samples
from joulelab.analysis.job_shares import NOBODY
from joulelab.core.clock import NS
from joulelab.instruments.job_use import OTHER, GpuProcesses, JobUseReader, UseReading

GPU, CPU, WALL = ("gpu:0", "nvml"), ("cpu:0", "rapl"), ("node.ac", "bmc")
LIMITS = {"gpu:0": 700.0}


class Processes(GpuProcesses):
    """Give fixed loads in place of NVML."""

    def __init__(self, loads):
        super().__init__()
        self._loads = loads

    def read_loads(self):
        return self._loads


def run_split(split, seconds, *, first=0, jobs=("1", "2"), gpu=None, cpu=(4.0, 2.0), other=0.0, skip=()):
    """Let jobs use 4 and 2 CPUs, and the GPU for half and a fifth of the time."""
    loads = {"1": 0.5, "2": 0.2} if gpu is None else gpu
    for t in range(first, first + seconds + 1):
        if t in skip:
            continue
        used = {job: rate * t for job, rate in zip(("1", "2"), cpu, strict=True) if job in jobs}
        use = UseReading(used, sum(cpu) * t + other * t, 16, {"gpu:0": loads} if loads else {})
        totals = {GPU: 490.0 * t, CPU: (50 + 5 * (sum(cpu) + other)) * t, WALL: 900.0 * t}
        split.take(t * NS, totals, LIMITS, use, jobs)


def sum_scope(split, key):
    return math.fsum(share.energy_j for (_, where), share in split.shares.items() if where == key)


def test_the_shares_of_a_scope_add_up_to_its_energy():
    split = JobSplit()
    run_split(split, BLOCK_CELLS, other=1.0)
    assert sum_scope(split, GPU) == pytest.approx(490 * BLOCK_CELLS)
    assert sum_scope(split, CPU) == pytest.approx(85 * BLOCK_CELLS)
    assert sum_scope(split, WALL) == 0  # which part of the rest of a node a job caused is not known
    one, two, other = (split.shares[name, CPU] for name in ("1", "2", OTHER))
    assert one.energy_j > two.energy_j > other.energy_j > 0
    assert one.low_j <= (20 + 50 / 3) * BLOCK_CELLS <= one.high_j
    assert split.shares["1", GPU].energy_j > split.shares["2", GPU].energy_j > split.shares[NOBODY, GPU].energy_j == 0
    run_split(split, BLOCK_CELLS, first=BLOCK_CELLS)
    assert sum_scope(split, GPU) == pytest.approx(490 * 2 * BLOCK_CELLS)


def test_a_block_ends_when_a_job_ends_and_its_shares_can_be_dropped():
    split = JobSplit()
    run_split(split, 10)
    assert split.is_open
    assert not split.shares
    run_split(split, 1, first=11, jobs=())
    assert not split.is_open
    assert sum_scope(split, GPU) == pytest.approx(4900)
    split.forget_jobs(["1"])
    assert {name for name, _ in split.shares} == {"1", OTHER, NOBODY}


def test_a_long_pause_is_not_divided_and_unknown_use_is_nobodys():
    split = JobSplit()
    run_split(split, 100, skip=range(11, 91), gpu={"77": 0.3})
    run_split(split, 1, first=101, jobs=())
    assert sum_scope(split, CPU) == pytest.approx(80 * 19)
    assert split.shares[OTHER, GPU].energy_j == pytest.approx(490 * 19)  # of a job that Slurm does not list
    split = JobSplit()
    for t in range(BLOCK_CELLS + 1):
        split.take(t * NS, {CPU: 80.0 * t}, {}, UseReading({}, 1.0 * t, 16), ["1"])
    assert split.shares[NOBODY, CPU].energy_j == pytest.approx(80 * BLOCK_CELLS)
    assert split.shares["1", CPU].high_j == pytest.approx(80 * BLOCK_CELLS)


def test_a_power_at_rest_is_remembered():
    split = JobSplit()
    for first, load in ((0, {"1": 0.0}), (BLOCK_CELLS, None)):
        run_split(split, BLOCK_CELLS, first=first, gpu=load)
    assert split.shares["1", GPU].low_j > 0


def test_metrics_show_share_and_bounds():
    split = JobSplit()
    run_split(split, BLOCK_CELLS)
    found = samples(Seen(0, [], [], [], [], split.shares))["joulelab_job_share_joules_total"]
    low, middle, high = (found["1", "gpu:0", "nvml", end] for end in ("low", "share", "high"))
    assert low <= middle <= high


def test_use_is_read_by_control_group(tmp_path):
    proc, groups = tmp_path / "proc", tmp_path / "cgroup"
    for path, text in {
        proc / "stat": "cpu  100 0 100 1000 0 0 0 0 0 0\n",
        proc / "10/cgroup": "0::/system.slice/slurmstepd.scope/job_123/step_0/user/task_0\n",
        proc / "11/cgroup": "5:memory:/slurm/uid_7/job_124/step_batch\n1:name=systemd:/\n",
        proc / "12/cgroup": "0::/user.slice\n",
        groups / "system.slice/slurmstepd.scope/job_123/cpu.stat": "usage_usec 2500000\nuser_usec 1\n",
        groups / "cpu,cpuacct/slurm/uid_7/job_124/cpuacct.usage": "1500000000\n",
        groups / "system.slice/slurmstepd.scope/job_125/cpu.stat": "nr_periods 0\n",
    }.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    loads = {"gpu:0": {10: 0.5, 11: 0.25, 12: 0.1, 99: 0.1}, "gpu:1": {}}
    reader = JobUseReader(Processes(loads), proc, groups)
    found = reader.read_use(["123", "124", "125", "126"])
    assert found.cpu_s == {"123": 2.5, "124": 1.5}
    assert found.gpu_loads == {"gpu:0": {"123": 0.5, "124": 0.25, OTHER: 0.2}, "gpu:1": {}}
    assert found.machine_s == pytest.approx(2.0)
    (groups / "system.slice/slurmstepd.scope/job_123/cpu.stat").unlink()
    assert reader.read_use(["123"]).cpu_s == {}
    assert JobUseReader(None, proc, groups).read_use([]).gpu_loads == {}
