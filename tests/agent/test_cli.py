"""The command: files for operators are printed and right, mistakes are told, the documentation names every metric."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.instruments.timeseries import program

from joulelab.agent.commands import FILES, Address, command, packaged
from joulelab.agent.metrics import METRICS, table
from joulelab.cli.group import COMMANDS

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("what", list(FILES))
def test_files_for_operators_are_printed(what):
    done = CliRunner().invoke(command, ["--print", what])
    assert done.exit_code == 0
    assert done.output == (ROOT / "packaging" / FILES[what]).read_text()
    assert packaged(FILES[what]).exists()


@pytest.mark.system
def test_rules_are_right():
    tool = program("promtool")
    for words in (["check", "rules", "alerts.yml"], ["test", "rules", "alerts_test.yml"]):
        done = subprocess.run([tool, *words], cwd=ROOT / "packaging", capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr
    tested = (ROOT / "packaging" / "alerts_test.yml").read_text()
    for name in re.findall(r"alert: (\w+)", (ROOT / "packaging" / "alerts.yml").read_text()):
        assert f"alertname: {name}\n" in tested, f"{name} is seen firing by no test"


@pytest.mark.system
def test_the_unit_is_right(tmp_path):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    unit = (ROOT / "packaging" / "joulelab-agent.service").read_text()
    started = re.search(r"^ExecStart=(\S+) (.*)$", unit, re.MULTILINE)
    assert started is not None
    file = tmp_path / "joulelab-agent.service"
    file.write_text(unit.replace(started[1], "/bin/true"))
    done = subprocess.run(["systemd-analyze", "verify", file], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    context = command.make_context("agent", started[2].split()[1:])  # its options are those of the command
    assert context.params["listen"] == ("127.0.0.1", 9797)


def test_metrics_of_rules_and_dashboard_are_those_there_are():
    for name in FILES.values():
        for metric in re.findall(r"joulelab_[a-z_]+", (ROOT / "packaging" / name).read_text()):
            assert metric in METRICS, f"{name}: {metric}"
    json.loads((ROOT / "packaging" / "grafana.json").read_text())


def test_names_follow_the_conventions():
    for name, (kind, labels, told) in METRICS.items():
        assert name.startswith("joulelab_")
        assert name.endswith("_total") == (kind == "counter"), name
        assert told.endswith("."), name
        assert len(labels) <= 5


def test_the_documentation_lists_every_metric():
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    rows = re.findall(r"^\| `(joulelab_\w+)` \| (\w+) \| (.*?) \| (.*) \|$", page, re.MULTILINE)
    assert [(n, k, labels.replace("`", ""), told) for n, k, labels, told in rows] == list(table())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--listen", "nowhere"], "is not an address"),
        (["--listen", "127.0.0.1:70000"], "is not an address"),
        (["--tls-key", "k"], "need --tls-cert"),
        (["--every", "1ms"], "0.05"),
    ],
)
def test_mistakes_are_told(words, said):
    done = CliRunner().invoke(command, words)
    assert done.exit_code == 2
    assert said in done.output


def test_addresses():
    convert = Address().convert
    assert convert(":9797", None, None) == ("0.0.0.0", 9797)
    assert convert("[::1]:9797", None, None) == ("::1", 9797)
    assert convert("localhost:1", None, None) == ("127.0.0.1", 1)
    assert "agent" in COMMANDS
