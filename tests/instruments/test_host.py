from __future__ import annotations

import math
import os
import subprocess
import sys
import time

import pytest
from tests.waiting import until

from joulelab.core.errors import ConfigError, DeviceLost, Unavailable
from joulelab.instruments import host

BUSY = "import time\nwhile time.process_time() < 0.5: pass\n"


def streams(meter):
    return {s.name: s for s in meter.streams()}


@pytest.mark.system  # pure, and slow
def test_reads_the_machine():
    meter = host.open_meter({})
    stop = time.monotonic() + 0.3
    while time.monotonic() < stop:
        pass
    row = dict(zip([c.name for c in host.MACHINE], meter.read(streams(meter)["machine"]), strict=True))
    assert 0.1 / (os.cpu_count() or 1) < row["busy"] <= 1
    assert 1e6 < row["memory_used_b"] < 1e13
    assert row["load1"] >= 0
    for name in ("disk_read_b", "disk_written_b", "net_received_b", "net_sent_b"):
        assert math.isnan(row[name]) or row[name] >= 0
    meter.close()
    meter.close()


@pytest.mark.system
def test_the_tree_is_nan_before_a_workload_and_counts_children_that_ended():
    meter = host.open_meter({"slow_period_s": 0.5})
    tree = streams(meter)["tree"]
    assert (tree.scope, tree.parent, tree.period_s) == ("workload", "host", 0.5)
    assert all(math.isnan(v) for v in meter.read(tree))
    run = f"subprocess.run([sys.executable, '-c', {BUSY!r}])"
    parent = f"import subprocess, sys\n{run}\nprint('done', flush=True)\nsys.stdin.read()"
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", parent], stdin=pipe, stdout=pipe, text=True) as workload:
        meter.set_workload(workload.pid)
        until(lambda: meter.read(tree)[4] == 2, "the child of the workload", most_s=0.01)
        assert workload.stdout
        workload.stdout.readline()
        cpu_s, memory_b, read_b, written_b, count = meter.read(tree)
        assert count == 1
        assert 0.45 < cpu_s < 60
        assert memory_b > 1e6
        assert read_b >= 0
        assert written_b >= 0
    after = meter.read(tree)
    assert after[0] >= cpu_s  # what was counted stays counted
    assert (after[1], after[4]) == (0, 0)
    meter.close()


@pytest.mark.system
def test_a_workload_that_was_never_seen_is_nan():
    meter = host.open_meter({})
    with subprocess.Popen(["true"]) as gone:
        pass
    meter.set_workload(gone.pid)
    assert all(math.isnan(v) for v in meter.read(streams(meter)["tree"]))


def test_without_proc_it_says_so(tmp_path):
    with pytest.raises(Unavailable) as error:
        host.open_meter({"proc": str(tmp_path)})
    assert error.value.next
    with pytest.raises(ConfigError, match="give a string"):
        host.open_meter({"proc": 3})


def test_a_file_that_vanishes_is_a_typed_error(tmp_path):
    for name, content in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    meter = host.open_meter({"proc": str(tmp_path), "sys": str(tmp_path)})
    (tmp_path / "meminfo").unlink()
    with pytest.raises(DeviceLost, match="meminfo is gone"):
        meter.read(streams(meter)["machine"])


FILES = {
    "stat": "cpu  1 2 3 4 5 6 7 8 9 10\n",
    "meminfo": "MemTotal: 10 kB\nMemFree: 3 kB\nMemAvailable: 4 kB\n",
    "diskstats": "",
    "net/dev": "a\nb\n",
    "loadavg": "0.5 0.4 0.3 1/100 1234\n",
}
