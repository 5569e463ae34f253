"""Values that cannot be right are refused when the configuration is read, with their place, before anything starts."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from tests.rows import every_row

from joulelab.core.errors import ConfigError
from joulelab.core.text import suggest_name
from joulelab.instruments import find_meter, wall

if TYPE_CHECKING:
    from pathlib import Path

    from tests.run.config.conftest import Places

SNMP = '[meters.x]\nmeter = "snmp"\naddress = "10.0.0.5"\ncommunity = { env = "C" }\n'
MODBUS = '[meters.x]\nmeter = "modbus"\naddress = "10.0.0.5"\n'
PROMETHEUS = '[meters.x]\nmeter = "prometheus"\naddress = "http://h:9090"\n'
REDFISH = '[meters.x]\nmeter = "redfish"\nuser = "u"\npassword = { env = "P" }\n'
IPMI = '[meters.x]\nmeter = "ipmi"\naddress = "10.0.0.5"\nuser = "u"\npassword = { env = "P" }\n'
PLUG = '[meters.x]\nmeter = "plug"\naddress = "10.0.0.5"\n'
ANALYZER = '[meters.x]\nmeter = "analyzer"\n'
SLURM = '[meters.x]\nmeter = "slurm"\n'
FILE = '[meters.x]\nmeter = "file"\npath = "later.csv"\n'
COLUMN = 'columns = [{ column = "w", scope = "node.ac", unit = "W" }]\n'


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        (MODBUS + 'profile = "janitsa"\n', 4, "did you mean 'janitza'?"),
        (MODBUS, 1, "neither profile nor registers are given"),
        (MODBUS + 'profile = "xerus"\noutlets = "three"\n', 5, "outlets"),
        (PROMETHEUS + 'preset = "ipmmi"\n', 4, "did you mean 'ipmi'?"),
        (PROMETHEUS + 'queries = [{ query = "up", scop = "node.ac" }]\n', 4, "did you mean 'scope'?"),
        (PROMETHEUS + 'queries = [{ query = "up", scope = "nodeac" }]\n', 4, "did you mean 'node.ac'?"),
        (PROMETHEUS + 'query = "up"\n', 4, "did you mean 'queries'?"),
        (PROMETHEUS + 'preset = "ipmi"\nverify = 3\n', 5, "verify is 3"),
        (PROMETHEUS + 'preset = "ipmi"\nfingerprint = "ab"\n', 5, "fingerprint is not a SHA-256"),
        (PROMETHEUS.replace("h:9090", "[h:9090") + 'preset = "ipmi"\n', 3, "address is not a server's"),
        (REDFISH, 1, "no address is given"),
        (REDFISH + 'address = "h"\nsources = ["nde"]\n', 6, "did you mean 'node'?"),
        (REDFISH + 'address = "h"\nauth = "digest"\n', 6, "session, basic or none"),
        (REDFISH + 'address = "h"\nfingerprint = "x"\n', 6, "fingerprint is not a SHA-256"),
        (SNMP.replace('address = "10.0.0.5"\n', ""), 1, "no address is given"),
        (SNMP.replace('community = { env = "C" }\n', ""), 1, "no login is given"),
        (SNMP + 'vendor = "raritann"\n', 5, "did you mean 'raritan'?"),
        (SNMP + "outlets = [-3]\n", 5, "outlets is [-3]"),
        (SNMP + 'period_s = "fast"\n', 5, "period_s is 'fast'"),
        (SNMP + "period_s = -1\n", 5, "period_s is -1"),
        (SNMP + "timeout_s = 0\n", 5, "timeout_s is 0"),
        (SNMP + 'gain = "1%"\n', 5, "give a fraction: 0.01 for 1 %"),
        (SNMP + "gain = -0.5\n", 5, "gain is -0.5"),
        (SNMP + "gain = 5\n", 5, "gain is 5"),
        (SNMP + "offset_w = -1\n", 5, "0 or more"),
        (SNMP + 'feeds = "nodeac"\n', 5, "did you mean 'node.ac'?"),
        (SNMP + 'feeds = "rak"\n', 5, "did you mean 'rack'?"),
        (SNMP + 'feeds = "gpu:"\n', 5, "did you mean 'gpu:N'?"),
        (SNMP + 'feeds = "node"\n', 5, "there is no such scope"),
        (SNMP + "feeds = 3\n", 5, "feeds is 3"),
        (SNMP + "parts = true\n", 5, "parts is True"),
        (IPMI + 'sources = ["dcmy"]\n', 6, "sources has 'dcmy'"),
        (IPMI + 'sources = [{ source = "dcmi", feeds = "nodeac" }]\n', 6, "did you mean 'node.ac'?"),
        (IPMI.replace('user = "u"\n', ""), 1, "no user is given"),
        (IPMI + "cipher = 4\n", 6, "give 3, or leave it out"),
        (IPMI.replace('address = "10.0.0.5"\n', 'command = []\n'), 3, "command is []"),
        (PLUG, 1, "no kind is given"),
        (PLUG + 'kind = "shely"\n', 4, "give one of shelly, tasmota"),
        (PLUG + 'kind = "tasmota"\nvia = "mqtt"\n', 5, "with a topic"),
        (PLUG + 'kind = "shelly"\nperiod_s = 0.1\n', 5, "plugs are slow"),
        (ANALYZER, 1, "no resource is given"),
        (ANALYZER + 'resource = "TCIP::h::INSTR"\n', 3, "use one of"),
        (SLURM + 'job = "12x"\n', 3, "job is '12x'"),
        (SLURM + "attempt = 0\n", 3, "give a number from 1"),
        (SLURM + "nodes = [3]\n", 3, "give names of nodes"),
        (FILE.replace('path = "later.csv"\n', ""), 1, "no path is given"),
        (FILE + 'preset = "wandbb"\n', 4, "did you mean 'wandb'?"),
        (FILE + COLUMN.replace("scope", "scop"), 4, "did you mean 'scope'?"),
        (FILE + COLUMN.replace("node.ac", "nodeac"), 4, "did you mean 'node.ac'?"),
        (FILE + COLUMN.replace('"W"', '"Wats"'), 4, "the unit of 'w' is 'Wats'"),
        (FILE + 'time = { colum = "t" }\n', 4, "did you mean 'column'?"),
        (FILE + 'time = { column = "t", format = "unix_mss" }\n', 4, "did you mean 'unix_ms'?"),
        (FILE + 'decimal = "x"\n', 4, "decimal is 'x'"),
        ('[meters.rapl]\nperiod_s = "fast"\n', 2, "period_s is 'fast'"),
        ('[meters.nvml]\ndevices = "all"\n', 2, "devices is 'all'"),
    ],
)  # fmt: skip
def test_a_value_that_cannot_be_right(places: Places, text: str, line: int, said: str) -> None:
    path = places.write("project", text)
    config = places.load()
    (problem,) = config.problems
    assert config.entries == []
    assert said in str(problem)
    assert str(problem).startswith(f"{path}:{line}: ")


@pytest.mark.parametrize(
    "text",
    [
        SNMP + 'outlets = [3, "node07 a"]\nfeeds = "node.ac"\ngain = 0.01\n',
        SNMP.replace("community", "privacy_password") + 'user = "u"\npassword = { env = "P" }\n',
        SNMP + 'feeds = "gpu:0"\n',
        MODBUS + 'profile = "janitza"\n',
        PROMETHEUS + 'queries = [{ query = "p", scope = "gpu:{n}" }, { query = "t", unit = "degC", scope = "node" }]\n',
        REDFISH + 'address = "http://h:8000"\n',
        IPMI + 'sources = ["dcmi", { source = "sensor:CPU Power", feeds = "cpu:0" }]\n',
        '[meters.x]\nmeter = "ipmi"\n',
        PLUG + 'kind = "tasmota"\nvia = "mqtt"\ntopic = "t"\n',
        ANALYZER + 'resource = "TCPIP::10.0.0.5::INSTR"\n',
        SLURM + 'job = "self"\n',
        FILE + COLUMN + 'time = "t"\n',
        FILE + 'columns = [{ column = "c", scope = "node", unit = "C" }]\n',
    ],
)  # fmt: skip
def test_what_can_be_right_is_taken_without_its_secrets(places: Places, text: str) -> None:
    places.write("project", text)
    config = places.load()
    config.check()
    assert [e.name for e in config.entries] == ["x"]


def test_entries_of_other_hosts_and_those_switched_off_are_not_checked(places: Places) -> None:
    places.write("project", SNMP + 'gain = "much"\nnode = "other"\n' + PLUG.replace("x]", "y]") + "enabled = false\n")
    places.load().check()


SECRET = "calvin-and-hobbes"


@pytest.mark.parametrize(
    ("meter", "key", "value"),
    [
        ("redfish", "address", f"https://root:{SECRET}@10.0.0.1"),
        ("redfish", "address", f"root:{SECRET}@10.0.0.1"),
        ("prometheus", "address", f"http://root:{SECRET}#@h:9090"),
        ("snmp", "address", f"{SECRET}@10.0.0.1"),
        ("plug", "address", f"root:{SECRET}@10.0.0.1"),
        ("analyzer", "resource", f"TCPIP::root:{SECRET}@10.0.0.1::INSTR"),
        ("file", "path", f"https://root:{SECRET}@host/power.csv"),
    ],
)
def test_a_login_in_an_address_is_refused_and_not_shown(places: Places, meter: str, key: str, value: str) -> None:
    path = places.write("project", f'[meters.x]\nmeter = "{meter}"\n{key} = "{value}"\n')
    config = places.load()
    (problem,) = config.problems
    assert str(problem).startswith(f"{path}:3: {key} holds a login")
    assert SECRET not in str(problem)
    assert SECRET not in repr(config)


@every_row("meter", ["redfish", "prometheus", "snmp", "modbus", "ipmi", "plug", "analyzer"])
def test_a_meter_that_is_opened_directly_refuses_it_too(meter: str) -> None:
    key = "resource" if meter == "analyzer" else "address"
    config = {key: f"http://root:{SECRET}@127.0.0.1:9", "label": "x"}
    config |= {"plug": {"kind": "shelly"}, "redfish": {"auth": "none"}, "prometheus": {"preset": "ipmi"}}.get(meter, {})
    with pytest.raises(ConfigError, match="holds a login") as refused:
        find_meter(meter).open_meter(config)
    assert SECRET not in str(refused.value)


def test_a_module_of_ones_own_is_asked(places: Places) -> None:
    module = places.project.parent / "own.py"
    module.write_text(
        "from joulelab.core.errors import ConfigError\n"
        "CONFIG = {'colour': '', 'pin': ''}\nSECRETS = ('pin',)\n"
        "def open_meter(config): raise AssertionError\n"
        "def check(config):\n"
        "    assert config['label'] == 'x' and isinstance(config['pin'], str) and config['pin'] != '1234'\n"
        "    if config['colour'] == 'odd': 1 / 0\n"
        "    if config['colour'] != 'red': raise ConfigError('colour is wrong', next='paint it red')\n"
    )
    entry = '[meters.x]\nmeter = "own.py"\npin = "1234"\ncolour = "COLOUR"\n'
    places.write("project", entry.replace("COLOUR", "red"))
    places.load().check()
    path = places.write("project", entry.replace("COLOUR", "blue"))
    assert [str(p) for p in places.load().problems] == [f"{path}:4: colour is wrong; paint it red"]
    places.write("project", entry.replace("COLOUR", "odd"))
    assert "ZeroDivisionError" in str(places.load().problems[0])


@pytest.mark.system
def test_checking_loads_no_client_library(tmp_path: Path) -> None:
    config = tmp_path / "joulelab.toml"
    entries = (
        SNMP, MODBUS + 'profile = "janitza"\n', PROMETHEUS + 'preset = "ipmi"\n', REDFISH + 'address = "h"\n', IPMI,
        PLUG + 'kind = "shelly"\n', ANALYZER + 'resource = "TCPIP::h::INSTR"\n', SLURM, FILE + COLUMN,
    )  # fmt: skip
    config.write_text("".join(text.replace("[meters.x]", f"[meters.x{n}]") for n, text in enumerate(entries)))
    code = (
        "import sys\nfrom joulelab.run.config.configuration import load_config\nfrom pathlib import Path\n"
        f"c = load_config({{'JOULELAB_ETC': '/no'}}, 'h', named=Path('{config}'), cwd='{tmp_path}')\n"
        "c.check()\nassert len(c.entries) == 9\n"
        "print(sorted({'httpx', 'pysnmp', 'pymodbus', 'pyvisa', 'paho', 'numpy', 'duckdb'} & set(sys.modules)))"
    )
    bare = {k: v for k, v in os.environ.items() if not k.startswith("COV")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=bare)
    assert done.stdout.strip() == "[]", done.stderr


def test_names_that_begin_alike_are_nearer() -> None:
    assert suggest_name("query", ["user", "queries"]).startswith("did you mean 'queries'?")
    assert suggest_name("zzz", ["a", "b"]) == "valid: a, b"


def test_an_accuracy_without_a_reference_is_assumed() -> None:
    from joulelab.core.spec import Accuracy

    default = Accuracy("datasheet", 0.03, shared="x", reference="sheet")
    assert wall.stated({"reference": "unused"}, default) == default
    bare, known = (wall.stated({"gain": 0.01} | more, default) for more in ({}, {"reference": "certificate"}))
    assert (bare.source, bare.gain, bare.shared) == ("assumed", 0.01, "x")
    assert (known.source, known.reference) == ("calibrated", "certificate")
