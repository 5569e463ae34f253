from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner
from tests.rows import every_row

from joulelab.core.errors import ConfigError, MissingDependency, Unavailable
from joulelab.twin import nodefile, profile
from joulelab.twin.commands import _Signals
from joulelab.twin.flaws import Counter
from joulelab.twin.model import H100, Node
from joulelab.twin.servers.server_process import strip_twin
from joulelab.twin.truth import Truth
from joulelab.twin.twin_server import TwinServer

if TYPE_CHECKING:
    import click

SRC = Path(__file__).parents[2] / "src"
SMALL = Node(gpus=(H100,), packages=1)


def no_compiler() -> Path:
    raise MissingDependency("no NVML", why="no C compiler")


def test_everything_is_served_and_nothing_is_left(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    inherited = {"LD_LIBRARY_PATH": "/opt/lib"}
    library = tmp_path_factory.mktemp("built") / "libnvidia-ml.so.1"
    library.touch()
    server = TwinServer(
        SMALL, follow=True, load=lambda: 0.5, directory=tmp_path, library=lambda: library, inherited=inherited
    )
    threads = set(threading.enumerate())
    with server:
        assert set(server.environment) == {"JOULELAB_TWIN", "JOULELAB_STATE", "LD_LIBRARY_PATH", "JOULELAB_POWERCAP"}
        assert Path(server.environment["JOULELAB_STATE"]).is_dir()
        assert server.environment["LD_LIBRARY_PATH"].endswith(":/opt/lib")
        assert (Path(server.environment["JOULELAB_POWERCAP"]) / "intel-rapl:0" / "energy_uj").exists()
        with Truth(Path(server.environment["JOULELAB_TWIN"])) as other:
            assert other.node == SMALL
        assert server.missing is None
        assert {one.name for one in set(threading.enumerate()) - threads} == {"twin-driver", "twin-powercap"}
    assert list(tmp_path.iterdir()) == []
    assert not set(threading.enumerate()) - threads


def test_without_a_compiler_the_rest_is_served(tmp_path: Path) -> None:
    with TwinServer(SMALL, directory=tmp_path, library=no_compiler) as server:
        assert set(server.environment) == {"JOULELAB_TWIN", "JOULELAB_STATE", "JOULELAB_POWERCAP"}
        assert "no C compiler" in str(server.missing)


def test_a_failed_start_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError), TwinServer(SMALL, profiles={"gpus": profile.constant(1)}, directory=tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ConfigError, match="either"):
        TwinServer(SMALL, profiles={"gpu": profile.constant(1)}, follow=True)


NODE = """
name = "mine"
packages = 1
psys = true
spread = 0.0
seed = 7

[[gpu]]
model = "a100"
count = 2
max_w = 380
flaws = { gain_error = 0.03, counter = "seen" }

[[gpu]]
model = "rtx3090"

[cpu]
max_w = 200

[supply]
rated_w = 3000
load = [0.2, 1.0]
efficiency = [0.9, 0.95]

[powercap]
period_s = 0.05
gain = { "cpu:0" = 1.02 }

[profiles]
gpu = "square:period_s=0.35"
"cpu:0" = "constant:level=0.3"
"""


def test_a_node_file(tmp_path: Path) -> None:
    (tmp_path / "node.toml").write_text(NODE)
    found = nodefile.find_node(str(tmp_path / "node.toml"))
    assert [gpu.name for gpu in found.node.gpus] == ["NVIDIA A100-SXM4-80GB"] * 2 + ["NVIDIA GeForce RTX 3090"]
    assert found.node.gpus[0].max_w == 380
    assert found.node.gpus[0].flaws.power_window_s == 0.025
    assert found.node.gpus[0].flaws.counter is Counter.SEEN
    assert found.node.cpu.max_w == 200
    assert found.node.supply.load == (0.2, 1.0)
    assert found.powercap.gain == {"cpu:0": 1.02}
    assert set(found.profiles) == {"gpu", "cpu:0"}


@every_row(
    ("text", "says"),
    [
        ("nam = 'x'", "did you mean 'name'"),
        ("[cpu]\nmax = 3", "did you mean 'max_w'"),
        ("[[gpu]]\nmodel = 'h200'", "h100"),
        ("[[gpu]]\ncaunt = 2", "did you mean 'count'"),
        ("[[gpu]]\ncount = 'two'", "give a whole number from 1 to 64"),
        ("[[gpu]]\nmodel = 3", "there is no GPU model '3'"),
        ("[[gpu]]\nflaws = { gain = 1 }", "did you mean 'gain_error'"),
        ("[[gpu]]\nidle_w = 'low'", "2: idle_w is 'low'; give a number"),
        ("[[gpu]]\nidle_w = 900", "not below full load"),
        ("gpu = 3", r"\[\[gpu\]\]"),
        ("cpu = 3", r"write it as a table: \[cpu\]"),
        ("packages = 'two'", "1: packages is 'two'; give a whole number"),
        ("[powercap]\nperiod = 1", "did you mean 'period_s'"),
        ("[profiles]\ngpu = 3", "2: gpu is 3; give a text, in quotes"),
        ("[profiles]\ngpu = 'sqare:period_s=1'", "did you mean 'square'"),
        ("= 3", "not a TOML file"),
    ],
)
def test_wrong_node_files_are_explained(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "node.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=says):
        nodefile.find_node(str(path))


def test_a_missing_node_file() -> None:
    with pytest.raises(ConfigError, match="there is no such node file"):
        nodefile.find_node("/nonexistent.toml")


def test_flaws_as_text() -> None:
    node = nodefile.change_flaws(
        Node(gpus=(H100, H100)), ["gain_error=0.02", "gpu:1.counter=none", "gpu:0.lost_at_s=3", "refuse_caps=true"]
    )
    assert [gpu.flaws.gain_error for gpu in node.gpus] == [0.02, 0.02]
    assert [gpu.flaws.counter for gpu in node.gpus] == [Counter.TRUE, Counter.NONE]
    assert [gpu.flaws.lost_at_s for gpu in node.gpus] == [3.0, None]
    assert all(gpu.flaws.refuse_caps for gpu in node.gpus)
    assert nodefile.change_flaws(node, ["lost_at_s=none"]).gpus[0].flaws.lost_at_s is None
    for wrong in (
        "gain_error",
        "gpu.gain_error=1",
        "gpu:x.gain_error=1",
        "gain_error=much",
        "cpu:0.gain_error=1",
        "gpu:5.gain_error=1",
    ):
        with pytest.raises(ConfigError):
            nodefile.change_flaws(node, [wrong])


def command() -> click.Command:
    from joulelab.twin.commands import command as made

    return made


@pytest.mark.system
def test_the_command_prints_what_to_export(library: Path) -> None:
    done = CliRunner().invoke(command(), ["--gpus", "1", "--gpu-model", "a100", "--for", "0"])
    assert done.exit_code == 0, done.output
    assert "1 x NVIDIA A100-SXM4-80GB" in done.output
    assert "export LD_LIBRARY_PATH=" in done.output
    facts = json.loads(CliRunner().invoke(command(), ["--gpus", "1", "--for", "0", "--json"]).output)
    assert facts["pid"] == os.getpid()
    assert facts["missing"] is None
    assert not Path(facts["directory"]).exists()


@every_row(
    ("arguments", "says"),
    [
        (["--gpu-model", "h10"], "h100"),
        (["--profile", "sqare:period_s=1"], "square"),
        (["--profile", "gpus=constant:level=1"], "did you mean 'gpu'"),
        (["--flaw", "gain=1"], "gain_error"),
        (["--node", "/nonexistent.toml"], "there is no such node file"),
        (["--load", "--profile", "constant:level=1"], "exclude"),
        (["--for", "1", "--", "true"], "exclude"),
    ],
)
def test_the_command_explains_what_is_wrong(arguments: list[str], says: str) -> None:
    done = CliRunner().invoke(command(), arguments)
    assert done.exit_code == 2
    assert says in done.output


@pytest.mark.system
def test_a_command_that_does_not_exist_is_127_as_in_shells() -> None:
    done = CliRunner().invoke(command(), ["--gpus", "1", "--", "/nonexistent/command"])
    assert done.exit_code == 127
    assert "No such file" in done.output


@pytest.mark.parametrize("flaw", ["gain_error=nan", "noise_w=-5", "latency_s=inf"])
def test_a_flaw_that_is_no_number_is_refused(flaw: str) -> None:
    done = CliRunner().invoke(command(), ["--gpus", "1", "--flaw", flaw, "--", "true"])
    assert done.exit_code == 2
    assert flaw.split("=", maxsplit=1)[0] in done.output


RUN = "from joulelab.twin.commands import command; command(prog_name='twin')"


@pytest.mark.system
def test_a_command_sees_the_twin_and_its_exit_code_passes(library: Path) -> None:
    look = "import pynvml as n; n.nvmlInit(); h = n.nvmlDeviceGetHandleByIndex(1); "
    look += "print(n.nvmlDeviceGetCount(), n.nvmlDeviceGetPowerUsage(h)); raise SystemExit(7)"
    profiles = ["--profile", "constant:level=0.5", "--profile", "gpu:1=constant:level=333,unit=W"]
    words = [
        sys.executable,
        "-c",
        RUN,
        "--gpus",
        "3",
        *profiles,
        "--",
        sys.executable,
        "-c",
        look,
    ]
    done = subprocess.run(words, env=os.environ | {"PYTHONPATH": str(SRC)}, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (7, "3 333000\n"), done.stderr


@pytest.mark.system
@pytest.mark.parametrize("inner", [[], ["--", "sh", "-c", "echo it runs; exec sleep 600"]])
def test_a_signal_ends_it_cleanly(library: Path, tmp_path: Path, inner: list[str]) -> None:
    words = [sys.executable, "-c", RUN, "--gpus", "1", "--json", *inner]
    environment = os.environ | {"PYTHONPATH": str(SRC), "TMPDIR": str(tmp_path)}
    with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        facts = json.loads(child.stdout.readline())
        assert Path(facts["directory"]).exists()
        assert not inner or child.stdout.readline() == "it runs\n"
        child.send_signal(signal.SIGTERM)
        assert child.wait(120) == (128 + signal.SIGTERM if inner else 0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.system
def test_a_signal_that_comes_while_the_command_is_started_reaches_it() -> None:
    with _Signals() as signals:
        signal.raise_signal(signal.SIGTERM)
        with subprocess.Popen(["sleep", "600"]) as child:
            signals.follow_command(child)
            assert child.wait(120) == -signal.SIGTERM


def broken(monkeypatch: pytest.MonkeyPatch, folder: Path, module: str, text: str) -> None:
    """Put a module before that of the same name, for all that is started."""
    (folder / f"{module}.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(folder))


@pytest.mark.system
@pytest.mark.parametrize(
    ("server", "module", "text", "kind", "said"),
    [
        ("modbus", "pymodbus", "raise ImportError('libgone.so: no such file')", Unavailable, "did not start .*libgone"),
        ("redfish", "ssl", "raise ImportError(\"No module named '_ssl'\")", Unavailable, "did not start .*_ssl"),
        ("redfish", "ssl", "import gone_library", MissingDependency, "needs gone_library .*; pip install gone_library"),
        ("pdu", "secrets", "import gone_library", MissingDependency, r"pip install 'joulelab\[snmp\]'"),
        ("analyzer", "socketserver", "raise SystemExit", Unavailable, "no answer .*server.log"),
    ],
)
def test_a_server_that_cannot_start_says_why_in_one_line(
    server: str,
    module: str,
    text: str,
    kind: type[Exception],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    broken(monkeypatch, tmp_path, module, text)
    with TwinServer(SMALL, directory=tmp_path, library=no_compiler, wall={server: {}}) as twin:
        assert twin.wall is not None
        assert isinstance(twin.wall.missing[server], kind)
        told = str(twin.wall.missing[server])
        log = twin.wall.servers[server].log.read_text()
    assert re.search(rf"^twin {server}: .*{said}", told), told
    assert "\n" not in told
    assert ("Traceback" in log) is (text != "raise SystemExit")
    assert capfd.readouterr() == ("", "")


def test_servers_keep_the_libraries_of_the_user_but_not_those_of_twins(tmp_path: Path) -> None:
    (tmp_path / "truth").touch()
    inherited = {"LD_LIBRARY_PATH": f"/opt/a:{tmp_path}/lib:/opt/b", "JOULELAB_TWIN": "x", "HOME": "/h"}
    assert strip_twin(inherited) == {"LD_LIBRARY_PATH": "/opt/a:/opt/b", "HOME": "/h"}
    assert strip_twin({"LD_LIBRARY_PATH": f"{tmp_path}/lib"}) == {}
    assert strip_twin({}) == {}


@pytest.mark.system
def test_a_server_gets_the_library_path_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/needed")
    with TwinServer(SMALL, directory=tmp_path, library=no_compiler, wall={"analyzer": {}}) as twin:
        assert twin.wall is not None
        assert not twin.wall.missing
        pid = twin.wall.servers["analyzer"].pid
        assert b"LD_LIBRARY_PATH=/opt/needed\0" in Path(f"/proc/{pid}/environ").read_bytes()
