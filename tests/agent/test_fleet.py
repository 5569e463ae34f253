"""Two twins, their agents, and a real Prometheus: one node is ill in every way and fires, the healthy one is quiet."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.instruments.timeseries import OPENER, free_port, program, running
from tests.waiting import until

from joulelab.twin import nodefile, profile
from joulelab.twin.model import H100, Node, Supply
from joulelab.twin.twin_server import TwinServer

pytestmark = pytest.mark.system

pytest.importorskip("prometheus_client", reason="pip install 'joulelab[agent]'")
PACKAGING = Path(__file__).parents[2] / "packaging"
SUPPLIES = '[node]\nrated_w = {rated}\nplanned_w = {planned}\n[supply]\n"node.ac" = {supply}\nrack = {supply}\n'
GONE = '[meters.gone]\nmeter = "snmp"\naddress = "127.0.0.2:9"\ncommunity = "public"\ntimeout_s = 0.2\n'
ILL = {
    "JoulelabAgentDown", "JoulelabSupplyNearLimit", "JoulelabSupplyExceeded", "JoulelabRackNearLimit",
    "JoulelabPhasesOutOfBalance", "JoulelabMeterSilent", "JoulelabCapNotEnforced", "JoulelabCapOverridden",
    "JoulelabNodeAbovePlan", "JoulelabTrapCritical", "JoulelabTrap",
}  # fmt: skip
SET_CAP = (
    "import pynvml as n; n.nvmlInit(); n.nvmlDeviceSetPowerManagementLimit(n.nvmlDeviceGetHandleByIndex(0), 250000)"
)


def twin(stack, node, level):
    server = stack.enter_context(TwinServer(node, profiles={"gpu": profile.constant(level)}, wall={"pdu": {}}))
    if server.missing or server.wall.missing:
        pytest.skip(str(server.missing or server.wall.missing["pdu"]))
    return server


@contextlib.contextmanager
def agent(folder, server, more):
    """Run an agent that sees a twin; gives a function that waits for what it says of itself."""
    folder.mkdir()
    entries = Path(server.environment["JOULELAB_CONFIG"]).read_text()
    (folder / "joulelab.toml").write_text(f"{entries}\n{more}")
    listen = f"127.0.0.1:{free_port()}"
    words = [sys.executable, "-m", "joulelab", "agent", "--listen", listen, "--traps", "127.0.0.1:0", "--json"]
    words += ["--every", "0.5s", "--config", str(folder / "joulelab.toml"), "--slurm-node", "n1"]
    slurm = folder / "bin"
    slurm.mkdir()
    (slurm / "squeue").write_text("#!/bin/sh\necho '77|ann|physics|gpu|2026-11-16T10:00:00|16|1'\n")
    (slurm / "squeue").chmod(0o755)
    environ = os.environ | server.environment | {"PATH": f"{slurm}:{os.environ['PATH']}"}
    with (folder / "log").open("wb") as log:
        child = subprocess.Popen(words, env=environ, stdout=subprocess.PIPE, stderr=log, text=True)

    def said():
        line = child.stdout.readline()
        assert line, (folder / "log").read_text()
        return SimpleNamespace(**json.loads(line), log=folder / "log")

    try:
        yield listen, said
        child.terminate()
        assert child.wait(120) == 0, (folder / "log").read_text()
    finally:
        child.kill()
        child.communicate()


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fleet")
    binary = program("prometheus")
    if shutil.which("snmptrap") is None:
        pytest.skip("snmptrap is not installed: apt install snmp")
    well = Node(gpus=(H100,) * 2, supply=Supply(cords=(0.34, 0.33, 0.33)))
    ill = nodefile.change_flaws(Node(), ("gpu:0.unenforced_caps=true", "gpu:1.outside_cap_w=400"))
    with contextlib.ExitStack() as stack:
        sick = twin(stack, ill, 1.0)
        watts = SUPPLIES.format(rated=10200, planned=3000, supply=5000)
        at_ill, bad = stack.enter_context(agent(folder / "ill", sick, GONE + watts))
        healthy = twin(stack, well, 0.6)
        watts = SUPPLIES.format(rated=4000, planned=3000, supply=4000)
        at_well, good = stack.enter_context(agent(folder / "well", healthy, watts))
        address = f"http://127.0.0.1:{free_port()}"
        write_config(folder, {"well": (at_well, "r1"), "ill": (at_ill, "r2"), "gone": ("127.0.0.1:9", "r3")})
        command = [binary, f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}"]
        command += [f"--web.listen-address={address.removeprefix('http://')}", "--log.level=error"]
        stack.enter_context(running(command, f"{address}/-/ready", folder / "prometheus.log"))
        subprocess.run([sys.executable, "-c", SET_CAP], env=os.environ | sick.environment, check=True, timeout=120)
        found = SimpleNamespace(address=address, healthy=healthy, sick=sick, good=good(), bad=bad())
        for number in ("276", "274"):
            words = ["snmptrap", "-m", "", "-v1", "-c", "x", f"127.0.0.1:{found.bad.traps[1]}", ".1.3.6.1.4.1.318"]
            words += ["127.0.0.1", "6", number, ""]
            subprocess.run(words, env=os.environ | {"SNMP_PERSISTENT_DIR": str(folder), "MIBS": ""}, check=True)
        yield found


def write_config(folder, targets):
    """Write Prometheus's configuration, and the rules with their times shortened: minutes are tenths of seconds."""
    text = re.sub(r"\b(\d+)m\b", lambda m: f"{int(m[1]) * 250}ms", (PACKAGING / "alerts.yml").read_text())
    assert "[1250ms]" in text
    # Two readings in each window.
    (folder / "alerts.yml").write_text(re.sub(r"\[\d+ms\]", "[4s]", text))
    jobs = [{"targets": [at], "labels": {"instance": name, "rack": rack}} for name, (at, rack) in targets.items()]
    config = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "500ms"},
        "rule_files": [str(folder / "alerts.yml")],
        "scrape_configs": [{"job_name": "joulelab", "static_configs": jobs}],
    }
    (folder / "prometheus.yml").write_text(json.dumps(config))


def query(fleet, expression):
    with OPENER.open(
        f"{fleet.address}/api/v1/query?{urllib.parse.urlencode({'query': expression})}", timeout=120
    ) as answer:
        found = json.loads(answer.read())
    assert found["status"] == "success", found
    return found["data"]["result"]


def firing(fleet):
    with OPENER.open(f"{fleet.address}/api/v1/alerts", timeout=120) as answer:
        alerts = json.loads(answer.read())["data"]["alerts"]
    return [a for a in alerts if a["state"] == "firing"]


def test_every_alert_fires_on_the_ill_node_and_none_on_the_healthy_one(fleet):
    def all_fire():
        found = firing(fleet)
        return found if {a["labels"]["alertname"] for a in found} == ILL else None

    found = until(all_fire, fleet.bad.log.read_text())
    rules = set(re.findall(r"alert: (\w+)", (PACKAGING / "alerts.yml").read_text()))
    assert rules == ILL, "each alert there is was seen"
    late = ("JoulelabAgentDown", "JoulelabMeterSilent")  # a busy machine may be late with the answers of either node
    by_name = {a["labels"]["alertname"]: a for a in found if a["labels"].get("instance") != "well"}
    assert {a["labels"].get("instance") for a in found if a["labels"]["alertname"] not in late} - {None} == {"ill"}
    assert "gone" in {a["labels"]["instance"] for a in found if a["labels"]["alertname"] == late[0]}
    assert by_name["JoulelabRackNearLimit"]["labels"]["rack"] == "r2"
    assert "gone" in {a["labels"]["meter"] for a in found if a["labels"]["alertname"] == late[1]}
    assert by_name["JoulelabCapNotEnforced"]["labels"]["scope"] == "gpu:0"
    assert by_name["JoulelabCapOverridden"]["labels"]["scope"] == "gpu:1"
    assert by_name["JoulelabTrapCritical"]["annotations"]["summary"] == "pdu1: overload "
    others = f'alertname!~"{"|".join(late)}"'
    assert query(fleet, f'ALERTS{{instance="well", {others}}} or ALERTS{{rack="r1", {others}}}') == []
    until(lambda: query(fleet, 'ALERTS{instance="well", alertstate="firing"}') == [], "a healthy node without alerts")


def scraped(url):
    """Return every sample of one scrape by its name and labels."""
    with OPENER.open(url, timeout=120) as answer:
        lines = answer.read().decode().splitlines()
    return {key: float(value) for key, value in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))}


def test_energy_and_power_are_the_twins_own(fleet):
    read = 'joulelab_meter_last_reading_timestamp_seconds{meter="nvml"}'
    until(lambda: 'joulelab_meter_up{meter="pdu1"}' in scraped(fleet.good.url), "the PDU is not read")
    until(lambda: read in scraped(fleet.good.url), "no GPU is read")
    first = scraped(fleet.good.url)
    last = until(lambda: (now := scraped(fleet.good.url)).get(read, 0.0) > first[read] + 5.0 and now, "no time passes")
    for scope in ("gpu:0", "gpu:1"):
        (key,) = (k for k in last if k.startswith("joulelab_energy_joules_total") and f'scope="{scope}"' in k)
        watts = (last[key] - first[key]) / (last[read] - first[read])
        assert watts == pytest.approx(fleet.healthy.truth.power(scope, time.monotonic_ns()), rel=0.1)
    (power,) = (v for k, v in last.items() if k.startswith("joulelab_power_watts") and 'scope="node.ac"' in k)
    assert power == pytest.approx(fleet.healthy.truth.power("node.ac", time.monotonic_ns()), rel=0.02)


def test_the_job_of_the_node_has_its_energy(fleet):
    until(lambda: query(fleet, 'joulelab_job_energy_joules_total{instance="well", scope="gpu:0"} > 100'), "no energy")
    (job,) = query(fleet, 'joulelab_slurm_job_info{instance="well", slurm_job="77"}')  # a real Slurm may have others
    expected = {"user": "ann", "account": "physics", "partition": "gpu"}
    assert {key: job["metric"][key] for key in expected} == expected
    assert query(fleet, "joulelab_job_shared_seconds_total > 0") == []


def test_every_query_of_the_dashboard_has_data(fleet):
    panels = [p for p in json.loads((PACKAGING / "grafana.json").read_text())["panels"] if p["type"] != "row"]
    assert len(panels) > 15
    asked = [(p["title"], t["expr"]) for p in panels for t in p["targets"]]
    for title, expression in asked:
        filled = expression.replace("$instance", ".+").replace("$__rate_interval", "6s").replace("$__range", "30s")
        assert "$" not in filled
        until(lambda filled=filled: query(fleet, filled), f"{title}: {filled}")


def test_names_and_labels_are_conventional_and_few(fleet):
    tool = program("promtool")
    until(lambda: query(fleet, 'joulelab_meter_up{instance="ill", meter="pdu1"} == 1'), "the PDU is not read")
    with OPENER.open(fleet.bad.url, timeout=120) as answer:
        text = answer.read()
    done = subprocess.run([tool, "check", "metrics"], input=text, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr + done.stdout
    lines = [line for line in text.decode().splitlines() if not line.startswith("#")]
    assert 100 < len(lines) < 400, "an 8-GPU node with a PDU: some hundred series, whatever happens"
    assert len(set(lines)) == len(lines)


@pytest.mark.campaign
def test_victoria_metrics_scrapes_it_too(fleet, tmp_path):
    binary = program("victoria-metrics")
    target = {"targets": [fleet.good.url.split("/")[2]], "labels": {"instance": "well"}}
    jobs = [{"job_name": "joulelab", "scrape_interval": "500ms", "static_configs": [target]}]
    (tmp_path / "scrape.yml").write_text(json.dumps({"scrape_configs": jobs}))
    at = f"127.0.0.1:{free_port()}"
    words = [binary, f"-storageDataPath={tmp_path / 'data'}", f"-httpListenAddr={at}", "-memory.allowedBytes=60MB"]
    words += [f"-promscrape.config={tmp_path / 'scrape.yml'}", "-search.latencyOffset=0s", "-retentionPeriod=1"]
    with running(words, f"http://{at}/health", tmp_path / "log"):
        server = SimpleNamespace(address=f"http://{at}")
        asked = 'rate(joulelab_energy_joules_total{instance="well", scope="gpu:0"}[4s]) > 0'
        (found,) = until(lambda: query(server, asked), "nothing was scraped")
        assert found["metric"]["meter"] == "nvml"
        assert len(query(server, 'count by (__name__) ({__name__=~"joulelab_.+"})')) >= 15
