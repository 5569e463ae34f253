"""Jobs and containers of a node get their part of its devices, by CPU time of their groups and loads of processes."""

from __future__ import annotations

import math

import pytest
from tests.rows import every_row

from joulelab.agent.collect import Seen
from joulelab.agent.job_split import BLOCK_CELLS, LINGER_NS, MOST_OWNERS, JobSplit
from joulelab.agent.metrics import samples
from joulelab.analysis.job_shares import NOBODY
from joulelab.core.clock import NS
from joulelab.instruments.job_use import OTHER, GpuProcesses, GpuUse, JobUseReader, UseReading, find_owner

GPU, CPUS, WALL = ("gpu:0", "nvml"), ("cpu", "rapl"), ("node.ac", "bmc")
LIMITS = {"gpu:0": 700.0}
CONTAINER = "3f2a" * 16
POD = "0a1b2c3d-0000-4444-8888-0123456789ab"
POD_SLICE = f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{POD.replace('-', '_')}.slice"


class Processes(GpuProcesses):
    """Give fixed loads in place of NVML."""

    def __init__(self, gpus):
        super().__init__()
        self.gpus = gpus

    def read_gpus(self):
        return self.gpus


def run_split(
    split,
    seconds,
    *,
    first=0,
    jobs=("1", "2"),
    gpu=None,
    cpu=(4.0, 2.0),
    other=0.0,
    skip=(),
    containers=(),
    reserved=None,
):
    """Let jobs use 4 and 2 CPUs, and the GPU for half and a fifth of the time."""
    loads = {"1": 0.5, "2": 0.2} if gpu is None else gpu
    named = [*jobs, *containers]
    for t in range(first, first + seconds + 1):
        if t in skip:
            continue
        used = {owner: rate * t for owner, rate in zip(("1", "2", *containers), cpu, strict=True) if owner in named}
        on_gpu = {"gpu:0": frozenset(loads)}
        machine_s = sum(cpu) * t + other * t
        use = UseReading(used, machine_s, 16, {"gpu:0": loads} if loads else {}, on_gpu, frozenset(containers))
        watts = 50 + 5 * (sum(cpu) + other)
        totals = {GPU: 490.0 * t, ("cpu:0", "rapl"): watts * t, ("cpu:1", "rapl"): 30.0 * t, WALL: 900.0 * t}
        split.take(t * NS, totals, LIMITS, use, dict.fromkeys(jobs) | (reserved or {}))


def sum_scope(split, key):
    return math.fsum(share.energy_j for (_, where), share in split.shares.items() if where == key)


def test_the_shares_of_a_scope_add_up_to_its_energy():
    split = JobSplit()
    run_split(split, BLOCK_CELLS, other=1.0)
    assert sum_scope(split, GPU) == pytest.approx(490 * BLOCK_CELLS)
    assert sum_scope(split, CPUS) == pytest.approx(115 * BLOCK_CELLS), "packages are one device"
    assert {key for _, key in split.shares} == {GPU, CPUS}, "which part of the rest of a node a job caused is not known"
    one, two, other = (split.shares[name, CPUS] for name in ("1", "2", OTHER))
    assert one.energy_j > two.energy_j > other.energy_j > 0
    assert one.low_j <= (20 + 80 / 3) * BLOCK_CELLS <= one.high_j
    assert split.shares["1", GPU].energy_j > split.shares["2", GPU].energy_j > 0
    assert split.shares[NOBODY, GPU].energy_j == pytest.approx(0, abs=1e-6)
    assert split.shares[OTHER, GPU].energy_j == 0
    run_split(split, BLOCK_CELLS, first=BLOCK_CELLS)
    assert sum_scope(split, GPU) == pytest.approx(490 * 2 * BLOCK_CELLS)


def test_all_is_divided_until_the_last_job_has_ended_and_shown_for_a_while():
    split = JobSplit()
    run_split(split, 10)
    assert split.is_open
    assert not split.shares
    assert not split.is_due(10 * NS + NS // 2)
    run_split(split, 0, first=11, jobs=())
    assert not split.is_open
    assert sum_scope(split, GPU) == pytest.approx(4900 + 490)
    assert split.shares[NOBODY, CPUS].energy_j == pytest.approx(110), "its CPU time in the last cell is not known"
    assert split.shares["1", CPUS].high_j >= 110
    run_split(split, 5, first=12, jobs=())
    assert sum_scope(split, GPU) == pytest.approx(5390)
    split.forget_owners(10 * NS + LINGER_NS)
    assert {name for name, _ in split.shares} == {"1", "2", OTHER, NOBODY}
    split.forget_owners(11 * NS + LINGER_NS)
    assert {name for name, _ in split.shares} == {OTHER, NOBODY}
    for number in range(2 * MOST_OWNERS):
        split.take((20 + number) * NS, {}, {}, UseReading({}, 0.0, 1), {str(number + 1): None})
    split.forget_owners(2 * MOST_OWNERS * NS)
    assert len(split._seen_ns) == MOST_OWNERS


def test_a_job_that_comes_later_begins_with_no_cpu_time():
    split = JobSplit()
    for t in range(BLOCK_CELLS + 1):
        used = {"1": 4.0 * t} | ({"2": 2.0 * (t - 10)} if t > 10 else {})
        use = UseReading(used, sum(used.values()), 16)
        split.take(t * NS, {("cpu:0", "rapl"): 100.0 * t}, {}, use, dict.fromkeys(used))
    run_split(split, 0, first=BLOCK_CELLS + 1, jobs=())
    assert split.shares[NOBODY, CPUS].energy_j == pytest.approx(0, abs=1e-6), "no cell is lost"
    old = JobSplit()
    for t in range(3):  # a group that was there long before it could be read
        used = {"1": 4.0 * t} | ({"2": 1e4} if t else {})
        old.take(t * NS, {("cpu:0", "rapl"): 100.0 * t}, {}, UseReading(used, 1e4 + 4.0 * t, 16), dict.fromkeys(used))
    old.take(3 * NS, {("cpu:0", "rapl"): 300.0}, {}, UseReading({}, 1e4 + 12, 16), {})
    assert old.shares["2", CPUS].energy_j < 150


def test_a_long_pause_is_not_divided_and_unknown_use_is_nobodys():
    split = JobSplit()
    run_split(split, 100, skip=range(11, 91), gpu={"77": 0.3})
    run_split(split, 0, first=101, jobs=(), gpu={"77": 0.3})
    assert sum_scope(split, CPUS) == pytest.approx(110 * 20)
    assert split.shares[OTHER, GPU].energy_j == pytest.approx(490 * 20)  # of a job that Slurm does not list
    split = JobSplit()
    for t in range(BLOCK_CELLS + 1):
        split.take(t * NS, {("cpu:0", "rapl"): 80.0 * t}, {}, UseReading({}, 1.0 * t, 16), {"1": None})
    assert split.shares[NOBODY, CPUS].energy_j == pytest.approx(80 * BLOCK_CELLS)
    assert split.shares["1", CPUS].high_j == pytest.approx(80 * BLOCK_CELLS)


def test_who_left_a_gpu_pays_no_more_idle_power():
    """A process of root that ran for a moment does not get half of the idle power for ever."""
    split = JobSplit()
    run_split(split, BLOCK_CELLS, jobs=("1",), cpu=(4.0, 0.0), gpu={"1": 0.5, OTHER: 0.1})
    before = split.shares[OTHER, GPU].energy_j
    assert before > 0
    run_split(split, BLOCK_CELLS - 1, first=BLOCK_CELLS + 1, jobs=("1",), cpu=(4.0, 0.0), gpu={"1": 0.5})
    run_split(split, 0, first=2 * BLOCK_CELLS + 1, jobs=(), cpu=(4.0, 0.0), gpu={})
    two = split.shares[OTHER, GPU].energy_j - before
    assert two <= 490 * 0.5, "only the cell in which it left"


def test_containers_have_shares_if_they_do_something():
    split, names = JobSplit(), ("docker-3f2a3f2a3f2a", f"pod-{POD}")
    run_split(
        split, BLOCK_CELLS, jobs=("1",), cpu=(4.0, 0.0, 3.0, 0.01), containers=names, gpu={"1": 0.5, names[1]: 0.1}
    )
    busy, idle = names
    assert sum_scope(split, CPUS) == pytest.approx((80 + 5 * 7.01) * BLOCK_CELLS)
    assert split.shares["1", CPUS].energy_j > split.shares[busy, CPUS].energy_j > 0
    assert (idle, CPUS) not in split.shares
    assert (busy, GPU) not in split.shares
    assert split.shares[idle, GPU].energy_j > 0
    found = samples(Seen(0, [], [], [], [], split.shares))["joulelab_job_share_joules_total"]
    assert ("", busy, "cpu", "rapl", "share") in found
    assert ("1", "", "cpu", "rapl", "low") in found
    assert (OTHER, "", "cpu", "rapl", "high") in found


def test_idle_power_of_cpus_by_reserved_cpus():
    shares = {}
    for rule in ("equal", "reserved"):
        split = JobSplit(1.0, rule)
        run_split(split, BLOCK_CELLS, reserved={"1": 12.0, "2": 2.0})
        shares[rule] = {name: split.shares[name, CPUS] for name in ("1", "2", NOBODY)}
        assert sum_scope(split, CPUS) == pytest.approx(110 * BLOCK_CELLS)
    assert shares["equal"]["1"].idle_j == pytest.approx(shares["equal"]["2"].idle_j)
    assert shares["reserved"]["1"].idle_j == pytest.approx(6 * shares["reserved"]["2"].idle_j)
    assert shares["reserved"][NOBODY].energy_j == pytest.approx(shares["reserved"]["2"].idle_j)


def test_a_power_at_rest_is_remembered():
    split = JobSplit()
    for first, load in ((0, {"1": 0.0}), (BLOCK_CELLS, None)):
        run_split(split, BLOCK_CELLS, first=first, gpu=load)
    assert split.shares["1", GPU].low_j > 0


def test_metrics_show_share_and_bounds():
    split = JobSplit()
    run_split(split, BLOCK_CELLS)
    found = samples(Seen(0, [], [], [], [], split.shares))["joulelab_job_share_joules_total"]
    low, middle, high = (found["1", "", "gpu:0", "nvml", end] for end in ("low", "share", "high"))
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
    gpus = {
        "gpu:0": GpuUse({10: 0.5, 11: 0.25, 12: 0.1}, (10, 11, 12, 99)),
        "gpu:1": GpuUse({}, ()),
        "gpu:2": GpuUse({10: 0.5, 99: 0.1}, (10, 99)),  # whose process 99 was is not known
    }
    processes = Processes(gpus)
    reader = JobUseReader(processes, proc, groups)
    found = reader.read_use(["123", "124", "125", "126"], {})
    assert found.cpu_s == {"123": 2.5, "124": 1.5}
    assert found.gpu_loads == {"gpu:0": {"123": 0.5, "124": 0.25, OTHER: 0.1}, "gpu:1": {}}
    assert found.on_gpu == {"gpu:0": {"123", "124", OTHER}, "gpu:1": set()}
    assert found.machine_s == pytest.approx(2.0)
    (groups / "system.slice/slurmstepd.scope/job_123/cpu.stat").unlink()
    (proc / "10/cgroup").unlink()
    processes.gpus = {"gpu:0": GpuUse({10: 0.5}, ())}
    found = reader.read_use(["123"], {})
    assert found.cpu_s == {}
    assert found.gpu_loads == {"gpu:0": {"123": 0.5}}, "a process that ended belongs to who had it"
    assert reader.read_use([], {}).gpu_loads == {"gpu:0": {"123": 0.5}}
    assert JobUseReader(None, proc, groups).read_use([], {}).gpu_loads == {}


@every_row(
    ("path", "owner"),
    [
        ("0::/system.slice/slurmstepd.scope/job_123/step_0/user/task_0", "123"),
        ("0::/system.slice/n1_slurmstepd.scope/job_7", "7"),
        ("4:memory:/process\n3:freezer:/slurm_n1/uid_0/job_8/step_batch\n1:cpu:/", "8"),
        (f"0::/system.slice/slurmstepd.scope/job_9/libpod-{CONTAINER}.scope", "9"),
        ("0::/user.slice/job_5", OTHER),
        ("0::/slurm/uid_7/job_0", OTHER),
        (f"0::/system.slice/docker-{CONTAINER}.scope", "docker-3f2a3f2a3f2a"),
        (f"5:cpuacct:/docker/{CONTAINER}\n0::/", "docker-3f2a3f2a3f2a"),
        (f"0::/../docker-{CONTAINER}.scope", "docker-3f2a3f2a3f2a"),
        (f"0::/machine.slice/libpod-{CONTAINER}.scope/container", "podman-3f2a3f2a3f2a"),
        (f"0::/machine.slice/libpod-conmon-{CONTAINER}.scope", OTHER),
        (f"0::/{POD_SLICE}/cri-x.scope", f"pod-{POD}"),
        (f"0::/kubepods.slice/kubepods-pod{POD.replace('-', '_')}.slice/docker-{CONTAINER}.scope", f"pod-{POD}"),
        (f"2:cpuacct:/kubepods/besteffort/pod{POD}/{CONTAINER}", f"pod-{POD}"),
        (f"2:cpuacct:/kubepods/pod{'0a' * 16}/{CONTAINER}", f"pod-{'0a' * 16}"),
        ("0::/system.slice/docker.service", OTHER),
        ("0::/", OTHER),
    ],
)
def test_control_groups_name_jobs_pods_and_containers(path, owner):
    assert find_owner(f"{path}\n".encode()) == owner


def test_containers_are_found_in_control_groups_of_both_versions(tmp_path):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/stat").write_text("cpu  100 0 100 1000 0 0 0 0 0 0\n")
    two, one = tmp_path / "v2", tmp_path / "v1"
    for path, text in {
        two / f"system.slice/docker-{CONTAINER}.scope/cpu.stat": "usage_usec 2500000\n",
        two
        / f"user.slice/user-7.slice/user@7.service/user.slice/libpod-{'b' * 64}.scope/cpu.stat": "usage_usec 500000\n",
        two / f"machine.slice/libpod-conmon-{'c' * 64}.scope/cpu.stat": "usage_usec 9\n",
        two / POD_SLICE / "cpu.stat": "nr 0\n",
        two / "system.slice/docker.service/cpu.stat": "usage_usec 9\n",
        one / f"cpuacct/docker/{CONTAINER}/cpuacct.usage": "1500000000\n",
        one / f"cpuacct/kubepods/besteffort/pod{POD}/cpuacct.usage": "250000000\n",
    }.items():
        path.parent.mkdir(parents=True)
        path.write_text(text)
    for root, expected in (
        (two, {"docker-3f2a3f2a3f2a": 2.5, f"podman-{'b' * 12}": 0.5}),
        (one, {"docker-3f2a3f2a3f2a": 1.5, f"pod-{POD}": 0.25}),
    ):
        reader = JobUseReader(None, tmp_path / "proc", root)
        found = reader.read_use([], reader.list_containers())
        assert found.cpu_s == expected
        assert found.containers == {*expected, f"pod-{POD}"}
