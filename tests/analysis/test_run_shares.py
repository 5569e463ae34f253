"""The part of a run on a node that others use: shown only then, the truth within its bounds, every row counted."""

from __future__ import annotations

import numpy as np
import pytest
from tests.analysis.folders import Folder, counter, gpu, power, state
from tests.analysis.virtual import ns

from joulelab.analysis.analyse import analyse_run
from joulelab.analysis.work_channels import WORK_QUANTITY
from joulelab.core.spec import Spec, Stream
from joulelab.report.run_summary import list_answer_facts

FINE, SECONDS = np.arange(0.0, 40.05, 0.1), np.arange(0.0, 40.5, 1.0)
START, END = 5.0, 35.0
IDLE_W, RUN_W, OTHER_W = 70.0, 300.0, 120.0  # caused by the run, and by others, while each uses the GPU
RUNS = (FINE >= START) & (FINE < END)
MACHINE = (Spec("busy", "CPU load", "1"), Spec("cpu_s", "CPU time", "s", "counter"))
TREE = (Spec("cpu_s", "CPU time", "s", "counter"),)


def integrate(watts):
    return np.append(0.0, np.cumsum(watts[:-1]) * 0.1)


def add_gpu(folder, index=0, *, others=0.2, own=0.5, known=True, cap=700.0):
    """Add a GPU that the run uses for a share `own` of the time, and others for a share `others`."""
    watts = IDLE_W + RUNS * own * RUN_W / 0.5 + others * OTHER_W / 0.2
    folder.add("nvml", gpu(index), FINE, integrate(watts), watts)
    names = ("load", "workload_load", "others_load", "cap_enforced_w")
    inside = (SECONDS > START) & (SECONDS < END)
    shares = [np.where(inside & known, share, np.nan) for share in (own, others)]
    load = np.where(inside, own, 0.0) + others
    return folder.add("nvml", state(index, *names), SECONDS, load, *shares, np.full(SECONDS.size, cap))


def add_cpus(folder, *, own=4.0, others=2.0, parent=None, measured=True):
    """Add two packages and their memory on 16 CPUs; the run uses `own` CPUs, others use `others`."""
    powers = (("cpu:0", 50.0, 5.0), ("cpu:1", 50.0, 5.0), ("dram:0", 10.0, 1.0))
    for scope, idle_w, unit_w in powers if measured else ():
        folder.add("rapl", counter(scope, parent), FINE, integrate(idle_w + unit_w * (RUNS * own + others)))
    inside = np.clip(SECONDS - START, 0, END - START)
    total = others * SECONDS + own * inside
    share = np.diff(total, prepend=0.0) / 16
    folder.add("host", Stream("machine", "machine", "host", 1.0, MACHINE), SECONDS, share, total)
    tree = np.where((SECONDS > START) & (SECONDS < END), own * inside, np.nan)
    return folder.add("host", Stream("tree", "tree", "workload", 1.0, TREE, "host"), SECONDS, tree)


def find_share(folder, start=START, end=END, **more):
    result = analyse_run(folder.close(start, end, **more).open())
    return next((check for check in result.checks if check.code == "shared-node"), None), result


def test_a_run_that_has_the_node_for_itself_has_no_share(tmp_path):
    assert find_share(add_cpus(add_gpu(Folder(tmp_path), others=0.0), others=0.02))[0] is None
    assert find_share(add_gpu(Folder(tmp_path), known=False))[0] is None
    assert find_share(Folder(tmp_path).add("nvml", gpu(0), FINE, integrate(RUNS * 100.0), RUNS * 100.0))[0] is None
    assert find_share(add_gpu(Folder(tmp_path)), START, START + 3)[0] is None
    assert find_share(add_cpus(Folder(tmp_path), others=0.02))[0] is None
    tokens = Stream("server", "server", "server", 1.0, (Spec("output_tokens", WORK_QUANTITY, "1", "counter"),))
    served = add_gpu(Folder(tmp_path)).add("inference", tokens, SECONDS, 10.0 * SECONDS)
    assert find_share(served)[0] is None, "others are the server that did the work"


def test_a_shared_gpu_is_divided_and_rows_add_up(tmp_path):
    folder = add_gpu(add_gpu(Folder(tmp_path)), 1, own=0.0, others=0.0)
    folder.event(1.0, "process", scope="gpu:0", host="node1", pids=[7])
    folder.event(5.1, "process", scope="gpu:0", host="node1", pids=[7, 42])
    folder.event(1.0, "process", scope="gpu:1", host="node1", pids=[])
    folder.event(5.0, "workload", pid=41).event(5.5, "tree", pids=[42])
    check, result = find_share(folder)
    found = check.numbers
    assert found["node_j"] == pytest.approx(result.energy.value)
    assert found["energy_j"] + found["others_j"] + found["nobody_j"] == pytest.approx(found["node_j"])
    assert found["nobody_j"] == pytest.approx(IDLE_W * 30, rel=0.02)  # the second GPU was idle
    true_j = 30 * (RUN_W + IDLE_W / 2)
    assert found["low_j"] <= true_j <= found["high_j"]
    assert found["energy_j"] == pytest.approx(true_j, rel=0.3)
    assert check.texts == {"rule": "equal"}
    (line,) = [text for label, text in list_answer_facts(result, 80) if label == "share"]
    assert "this run: " in line
    assert "divided equally" in line
    assert not any("shared node" in text for label, text in list_answer_facts(result, 80) if label == "note")


def test_processes_that_a_service_starts_are_not_called_others(tmp_path):
    folder = add_gpu(Folder(tmp_path, command=["sudo", "/usr/bin/docker", "run", "--gpus", "all", "x"]), own=0.0)
    check, result = find_share(folder)
    assert check is None
    (check,) = (check for check in result.checks if check.code == "shared-node.elsewhere")
    assert (check.numbers["low_j"], check.numbers["high_j"]) == (0.0, pytest.approx(result.energy.value))


def test_a_measured_idle_power_narrows_the_bounds(tmp_path):
    quiet = np.where(FINE < 5, 0.0, 1.0)
    widths = []
    for has_idle in (False, True):
        folder = Folder(tmp_path)
        watts = IDLE_W + RUNS * RUN_W + quiet * OTHER_W
        folder.add("nvml", gpu(0), FINE, integrate(watts), watts)
        names, inside = ("load", "workload_load", "others_load"), (SECONDS > START) & (SECONDS < END)
        shares = (np.where(inside, share, np.nan) for share in (0.5, 0.2))
        folder.add("nvml", state(0, *names), SECONDS, np.where(SECONDS <= 5, 0.0, 0.7), *shares)
        if has_idle:
            folder.event(5.0, "idle", **{"from": ns(0.5), "to": ns(4.5)})
        found = find_share(folder)[0].numbers
        assert found["low_j"] <= 30 * (RUN_W + IDLE_W / 2) <= found["high_j"]
        widths.append(found["high_j"] - found["low_j"])
    assert widths[1] < widths[0]
    noisy = add_gpu(Folder(tmp_path)).event(5.0, "idle", **{"from": ns(0.5), "to": ns(4.5)})
    found = find_share(noisy)[0].numbers  # others were there before: that power is not idle
    assert found["low_j"] <= 30 * (RUN_W + IDLE_W / 2) <= found["high_j"]


def test_cpus_are_divided_by_cpu_time(tmp_path):
    check, result = find_share(add_cpus(Folder(tmp_path)).event(END, "workload-end", user_s=119.0, system_s=1.0))
    found = check.numbers
    assert found["node_j"] == pytest.approx(result.energy.value)
    true_j = 30 * (4 * 11 + 110 / 2)
    assert found["low_j"] <= true_j <= found["high_j"]
    assert found["energy_j"] == pytest.approx(true_j, rel=0.1)
    assert found["idle_j"] <= found["energy_j"]


def test_the_rest_of_a_node_follows_its_parts(tmp_path):
    folder = add_cpus(add_gpu(Folder(tmp_path)))
    watts = 250 + IDLE_W + RUNS * RUN_W + OTHER_W + 110 + 11 * (2 + RUNS * 4.0) + 0.1 * RUNS * RUN_W
    folder.add("bmc", power("node.ac"), FINE, watts)
    check, result = find_share(folder)
    found = check.numbers
    assert found["node_j"] == pytest.approx(result.energy.value)
    assert found["low_j"] <= 30 * (1.1 * RUN_W + 44 + (250 + IDLE_W + 110) / 2) <= found["high_j"]


def test_a_run_without_gpu_has_a_part_of_a_node_whose_cpus_are_not_measured(tmp_path):
    """A BMC measures the node, NVML its GPU, which others use: the CPUs are in the rest."""
    folder = add_cpus(add_gpu(Folder(tmp_path), own=0.0, others=0.8), measured=False)
    folder.add("bmc", power("node.ac"), FINE, 250 + IDLE_W + 4 * OTHER_W + 11 * (2 + RUNS * 4.0))
    check, result = find_share(folder)
    found = check.numbers
    assert found["node_j"] == pytest.approx(result.energy.value)
    assert found["low_j"] <= 30 * (44 + 250 / 2) <= found["high_j"]
    assert found["energy_j"] > 0.1 * 30 * 250
    assert found["high_j"] < 30 * 400, "the GPU is not among it"
    alone = add_cpus(Folder(tmp_path), measured=False).add("bmc", power("node.ac"), FINE, 250 + 11 * (2 + RUNS * 4.0))
    found = find_share(alone)[0].numbers
    assert found["low_j"] <= 30 * (44 + 250 / 2) <= found["high_j"]
    simulated = add_gpu(Folder(tmp_path, environment={"JOULELAB_TWIN": "1"}), own=0.0, others=0.8)
    simulated.add("bmc", power("node.ac"), FINE, 250 + IDLE_W + 4 * OTHER_W + 0 * FINE)
    found = find_share(simulated)[0].numbers
    assert found["low_j"] <= 30 * 250 / 2 <= found["high_j"], "a run is always on its node"


def test_a_gpu_inside_a_node_whose_processes_are_not_known_may_be_anybodys(tmp_path):
    """AMD, or MIG: its energy is not divided like that of the CPUs."""
    folder = add_cpus(add_gpu(Folder(tmp_path), own=0.9, others=0.0, known=False))
    gpu_w = IDLE_W + RUNS * 0.9 * RUN_W / 0.5
    folder.add("bmc", power("node.ac"), FINE, 250 + gpu_w + 110 + 11 * (2 + RUNS * 4.0))
    found = find_share(folder)[0].numbers
    cpu_j = 30 * (44 + 110 / 2 + 250 / 2)
    assert found["nobody_j"] >= 0.99 * 30 * (IDLE_W + 540)
    assert found["low_j"] <= cpu_j <= cpu_j + 30 * (IDLE_W + 540) <= found["high_j"]


def test_energy_whose_use_is_not_known_is_left_out_and_said_so(tmp_path):
    folder = add_gpu(Folder(tmp_path, environment={"JOULELAB_TWIN": "1"}))  # its CPUs are not those of this machine
    check, result = find_share(add_cpus(folder))
    assert check.texts["covers"] == "gpu:0"
    assert check.numbers["node_j"] < result.energy.value
    folder = add_gpu(add_cpus(Folder(tmp_path), others=0.0), known=False)
    assert find_share(folder)[0] is None
    folder = Folder(tmp_path).add("nvml", gpu(0), FINE, integrate(RUNS * 100.0), RUNS * 100.0)
    folder.add("nvml", state(0, "workload_load", "others_load"), [6.0, 7.0], [0.5, 0.5], [0.5, 0.5])  # hardly read
    assert find_share(folder)[0] is None


def test_gaps_and_missing_limits_widen_the_bounds_only(tmp_path):
    folder = Folder(tmp_path)
    watts = IDLE_W + RUNS * RUN_W + OTHER_W
    folder.add("rocm", counter("gpu:0"), FINE, integrate(watts))
    inside = (SECONDS > START) & (SECONDS < END) & ((SECONDS < 15) | (SECONDS > 25))
    columns = [np.where(inside, share, np.nan) for share in (0.5, 0.2)]
    folder.add("rocm", state(0, "workload_load", "others_load"), SECONDS, *columns)
    found = find_share(folder)[0].numbers
    assert found["nobody_j"] > 5 * 400
    assert found["low_j"] <= 30 * (RUN_W + IDLE_W / 2) <= found["high_j"]


def test_an_accounted_job_beside_others_has_a_part_by_cpu_time(tmp_path):
    jobs = [
        {"job": "1", "from_s": 0.0, "to_s": 30.0, "cpus": 8, "cpu_s": 60.0},
        {"job": "2", "from_s": -10.0, "to_s": 15.0, "cpus": 24, "cpu_s": 350.0},
    ]
    for joules, count in ((9000.0, 1), (0.0, 0)):
        folder = Folder(tmp_path).add("slurm", counter("job"), [START, END], [0.0, joules])
        folder.event(START, "shared-jobs", meter="slurm", job="1", jobs=jobs)
        result = analyse_run(folder.close(START, END, outcome="imported").open())
        found = [check.numbers for check in result.checks if check.code == "shared-node.accounted"]
        assert len(found) == count
    result = analyse_run(add_job(tmp_path, jobs))
    (numbers,) = (check.numbers for check in result.checks if check.code == "shared-node.accounted")
    assert (numbers["jobs"], numbers["low_j"], numbers["high_j"]) == (1, 0.0, pytest.approx(9000))
    # 2 of 16 CPUs were used, 8 of 32 reserved in the first half; then it was alone.
    assert numbers["energy_j"] == pytest.approx(4500 * 1.125)
    assert numbers["reserved_j"] == pytest.approx(4500 * 1.25)
    assert any(label == "share" for label, _ in list_answer_facts(result, 80))
    for own_s, other_s in ((60.0, None), (0.0, 0.0)):  # it still runs, or the cluster does not gather CPU time
        result = analyse_run(add_job(tmp_path, [jobs[0] | {"cpu_s": own_s}, jobs[1] | {"cpu_s": other_s}]))
        (numbers,) = (check.numbers for check in result.checks if check.code == "shared-node.accounted")
        assert "energy_j" not in numbers
        assert numbers["reserved_j"] == pytest.approx(4500 * 1.25)
        (line,) = [text for label, text in list_answer_facts(result, 80) if label == "share"]
        assert "CPU time" not in line


def add_job(tmp_path, jobs):
    folder = Folder(tmp_path).add("slurm", counter("job"), [START, END], [0.0, 9000.0])
    folder.event(START, "shared-jobs", meter="slurm", job="1", jobs=jobs)
    return folder.close(START, END, outcome="imported").open()
