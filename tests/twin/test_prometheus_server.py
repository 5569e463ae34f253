"""The twin's exporters, judged by promtool, and the real Prometheus that scrapes them, read by the meter."""

from __future__ import annotations

import contextlib
import math
import os
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from tests.waiting import until

from joulelab.core.clock import NS, monotonic_ns, read_utc_ns
from joulelab.core.errors import Denied
from joulelab.instruments import open_meter
from joulelab.instruments import prometheus as meter_module
from joulelab.twin import profile
from joulelab.twin.model import Node
from joulelab.twin.servers import prometheus
from joulelab.twin.servers.server_process import ServerProcess
from joulelab.twin.truth import Truth

pytestmark = pytest.mark.system

OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@pytest.fixture(scope="module")
def truth(tmp_path_factory):
    path = tmp_path_factory.mktemp("truth") / "truth"
    begin = monotonic_ns() - 100 * NS
    with Truth.create(path, Node(), profiles={"gpu": profile.constant(0.5)}, start_ns=begin) as made:
        yield made


def page(served, exporter, timeout=60):
    try:
        with OPENER.open(f"{served.facts['exporters']}/{exporter}/metrics", timeout=timeout) as answer:
            return answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            raise LookupError(error.code) from None


def values(text, metric):
    found = re.findall(rf"^{metric}\{{(.*)\}} (\S+)$", text, re.MULTILINE)
    return {labels: float(value) for labels, value in found}


@contextlib.contextmanager
def exporters(truth, tmp_path, **flaws):
    made = prometheus.PrometheusFlaws(child=False, **flaws)
    with prometheus.serve(truth, tmp_path, made, 0) as served:
        yield served


def test_each_exporter_speaks_in_its_own_units(truth, tmp_path):
    with exporters(truth, tmp_path) as served:
        now = monotonic_ns()
        watts = truth.power("node.ac", now)
        assert list(values(page(served, "ipmi"), "ipmi_dcmi_power_consumption_watts").values()) == [round(watts)]
        gpus = values(page(served, "dcgm"), "DCGM_FI_DEV_POWER_USAGE")
        assert len(gpus) == 8
        assert sum(gpus.values()) == pytest.approx(sum(truth.power(f"gpu:{n}", now) for n in range(8)), abs=0.1)
        counted = values(page(served, "dcgm"), "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION")
        first = next(value for labels, value in counted.items() if 'gpu="0"' in labels)
        low, high = (truth.energy("gpu:0", truth.start_ns, t) for t in (now - 3 * NS, monotonic_ns()))
        assert low <= first / 1000 <= high
        pdu = page(served, "snmp")
        assert sum(values(pdu, "st4OutletActivePower").values()) == pytest.approx(watts, abs=4)
        assert list(values(pdu, "rPDU2DeviceStatusPower").values()) == [round(watts / 10)]
        joules = sum(values(page(served, "node"), "node_rapl_package_joules_total").values())
        kepler = values(page(served, "kepler"), "kepler_node_cpu_joules_total")
        times = (now - 5 * NS, monotonic_ns())
        low, high = (sum(truth.energy(f"cpu:{n}", truth.start_ns, t) for n in (0, 1)) for t in times)
        assert low <= joules <= high
        assert low <= next(v for k, v in kepler.items() if "package" in k) <= high
        micro = values(page(served, "scaphandre"), "scaph_host_power_microwatts")
        leaves = [f"{family}:{n}" for family in ("cpu", "dram") for n in (0, 1)]
        assert sum(micro.values()) / 1e6 == pytest.approx(sum(truth.power(leaf, now) for leaf in leaves), abs=0.1)
        with pytest.raises(LookupError, match="404"):
            page(served, "nonesuch")


def test_promtool_reads_every_page(truth, tmp_path):
    tool = shutil.which("promtool")
    if tool is None:
        pytest.skip("promtool is not installed: apt install prometheus")
    with exporters(truth, tmp_path) as served:
        for name in prometheus.EXPORTERS:
            text = page(served, name)
            done = subprocess.run([tool, "check", "metrics"], input=text, capture_output=True, text=True, timeout=120)
            assert "error while linting" not in done.stderr, done.stderr
            assert done.returncode in (0, 3), done.stderr  # 3: names that its style would not choose


def test_flaws_show(truth, tmp_path):
    watts = truth.power("node.ac", monotonic_ns())
    with exporters(truth, tmp_path, gain_error=0.1, quantum_w=10.0) as served:
        shown = next(iter(values(page(served, "ipmi"), "ipmi_dcmi_power_consumption_watts").values()))
        assert shown == pytest.approx(1.1 * watts, abs=6)
        assert shown % 10 == 0
    with exporters(truth, tmp_path, latency_s=0.2) as served:
        begin = time.monotonic()
        page(served, "ipmi")
        assert time.monotonic() - begin >= 0.2
    with exporters(truth, tmp_path, silent_at_s=0.0) as served, pytest.raises(OSError, match="closed"):
        page(served, "ipmi")
    with exporters(truth, tmp_path, garble_at_s=0.0) as served, pytest.raises(UnicodeDecodeError):
        page(served, "ipmi")
    with exporters(truth, tmp_path, refuse=True) as served, pytest.raises(LookupError, match="401"):
        page(served, "ipmi")


@pytest.fixture(scope="module")
def twin(truth, tmp_path_factory):
    """Run the whole server as a process, with a log-in."""
    if shutil.which("prometheus") is None:
        pytest.skip("prometheus is not installed: apt install prometheus")
    folder = tmp_path_factory.mktemp("server")
    with ServerProcess("prometheus", truth.path, folder, flaws={"login": True, "scrape_s": 0.5}) as process:
        yield process


def entry(process):
    """Return the entry as the configuration would resolve it."""
    found = dict(process.served.entries["prom"])
    password = Path(found["password"]["file"])
    assert password.stat().st_mode & 0o777 == 0o600
    del found["meter"]
    return found | {"label": "prom", "password": password.read_text().strip()}


def test_the_entry_reads_the_twin_live_and_afterwards(truth, twin):
    watts = round(truth.power("node.ac", monotonic_ns()))
    with contextlib.closing(open_meter("prometheus", entry(twin))) as meter:
        (stream,) = meter.streams()
        assert stream.scope == "node.ac"
        seen, begin = set(), read_utc_ns()

        def read():
            value, age_s = meter.read(stream)
            assert value == watts
            assert age_s >= 0
            seen.add(round(read_utc_ns() / NS - age_s, 1))
            return len(seen) >= 3

        until(read, "new samples come")
    end = read_utc_ns()
    with contextlib.closing(meter_module.open_archive(entry(twin))) as archive:
        (fetched,) = archive.fetch(begin, end)
        assert {row[2][0] for row in fetched.rows} == {watts}
    with contextlib.closing(open_meter("prometheus", entry(twin) | {"preset": "dcgm", "match": 'job="dcgm"'})) as meter:
        assert [s.scope for s in meter.streams()] == [f"gpu:{n}" for n in range(8)]
        stream = meter.streams()[3]
        energy_j, power_w, _ = until(lambda: all(map(math.isfinite, (read := meter.read(stream))[:2])) and read)
        assert power_w == pytest.approx(truth.power("gpu:3", monotonic_ns()), abs=0.01)
        now = truth.energy("gpu:3", truth.start_ns, monotonic_ns())
        assert now - 60 * power_w < energy_j < now + 1


def test_a_wrong_password_is_denied(twin):
    with pytest.raises(Denied) as caught:
        open_meter("prometheus", entry(twin) | {"password": "not the one"})
    assert "not the one" not in str(caught.value)


def test_the_child_dies_with_a_server_that_is_killed(truth, tmp_path):
    if shutil.which("prometheus") is None:
        pytest.skip("prometheus is not installed: apt install prometheus")
    process = ServerProcess("prometheus", truth.path, tmp_path / "server", flaws={"refuse": True})
    with process:
        child = process.served.facts["child"]
        assert Path(f"/proc/{child}/comm").read_text().strip() == "prometheus"
        with pytest.raises(Denied):  # no log-in is right
            open_meter("prometheus", entry(process))
        process.kill()
        until(lambda: not is_alive(child), "prometheus ends")


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_without_the_program_the_exporters_are_served(truth, tmp_path):
    with exporters(truth, tmp_path) as served:
        assert served.entries == {}
        assert served.ports["exporters"] > 0
        assert os.listdir(tmp_path) == []  # noqa: PTH208
