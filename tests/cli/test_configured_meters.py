"""Commands with a configuration: run, meters, meters --add, doctor; and no secret anywhere."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tomllib
from typing import TYPE_CHECKING

import pytest
from tests.cli.entry import JOULELAB
from tests.rows import every_row
from tests.run.config.conftest import INSTRUMENT
from tests.run.config.instrument import RIGHT
from tests.waiting import until

from joulelab.cli import meters as adding
from joulelab.cli.doctor import remove_own_advice
from joulelab.run.config.meter_choice import SECRET_SOURCES
from joulelab.store.run_folder import list_runs, read_meta

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Call, Fail

FAST = ["--meter", "pdu1", "--no-meter", "host"]


def joulelab(tmp_path: Path, *words: str, code: int = 0, **environ: str) -> subprocess.CompletedProcess[str]:
    clean = dict(os.environ)
    clean |= {"JOULELAB_RUNS": "runs", "COLUMNS": "80", "XDG_CONFIG_HOME": str(tmp_path / "home"), **environ}
    done = subprocess.run([*JOULELAB, *words], env=clean, capture_output=True, text=True, cwd=tmp_path, timeout=300)
    assert done.returncode == code, done.stderr
    return done


def configure(tmp_path: Path, more: str = "", name: str = "pdu1") -> Path:
    """Write a project's file with one entry."""
    path = tmp_path / "joulelab.toml"
    base = f'[meters.{name}]\nmeter = "{INSTRUMENT}"\naddress = "here"\npassword = {{ env = "PW" }}\n'
    path.write_text(base + more)
    return path


def assert_no_secret(folder: Path, *texts: str) -> None:
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert len(files) > 1
    for path in files:
        assert RIGHT.encode() not in path.read_bytes(), path
    for text in texts:
        assert RIGHT not in text


@pytest.mark.system
def test_a_run_reads_configured_meters_and_keeps_no_secret(tmp_path: Path) -> None:
    configure(tmp_path, "outlets = [1, 2]\nwatts = 70\n[run]\ntail_s = 0.1\n")
    done = joulelab(tmp_path, "run", *FAST, "--", "sleep", "0.4", PW=RIGHT)
    assert "the whole node at the wall" in done.stderr
    (run,) = list_runs(tmp_path / "runs")
    assert (run / "results.json").is_file()
    assert_no_secret(run, done.stdout, done.stderr)
    options = read_meta(run)["options"]
    assert options["configured"] == [{"name": "pdu1", "meter": INSTRUMENT, "feeds": "node.ac"}]
    assert options["tail_s"] == 0.1
    assert "here" not in json.dumps(options)
    shown = joulelab(tmp_path, "show", "--json", run.name)
    found = {s["scope"]: s["mean_w"]["value"] for s in json.loads(shown.stdout)["scopes"]}
    assert found["node.ac"] == pytest.approx(140, rel=0.01)
    exported = joulelab(tmp_path, "export", run.name, "--to", "json", "-o", "out")
    assert_no_secret(tmp_path / "out", shown.stdout, exported.stdout)


@pytest.mark.system
def test_a_meter_that_talks_too_much_is_not_stored(tmp_path: Path) -> None:
    configure(tmp_path, "leak = true\n")
    done = joulelab(tmp_path, "run", *FAST, "--json", "--", "sleep", "0.1", PW=RIGHT)
    (run,) = list_runs(tmp_path / "runs")
    assert_no_secret(run, done.stdout, done.stderr)
    assert any("***" in path.read_text() for path in run.rglob("events*.jsonl"))
    for command in (["doctor", "pdu1"], ["meters", "pdu1"], ["meters", "pdu1", "--json"]):
        said = joulelab(tmp_path, *command, code=int(command[0] == "doctor"), PW=RIGHT)
        assert_no_secret(run, said.stdout, said.stderr)
        assert "***" in said.stdout


@pytest.mark.system
@pytest.mark.parametrize(
    ("more", "environ", "named"),
    [
        ("", {}, ("PW",)),
        ('adress = "x"\n', {"PW": RIGHT}, ("joulelab.toml:5:", "'adress'", "'address'")),
        ("[runn]\n", {"PW": RIGHT}, ("joulelab.toml:5:", "'runn'", "'run'")),
        ("x = \n", {"PW": RIGHT}, ("joulelab.toml:5:", "TOML")),
        ('feeds = "nodeac"\n', {"PW": RIGHT}, ("joulelab.toml:5:", "feeds", "'nodeac'", "'node.ac'")),
        ('period_s = "fast"\n', {"PW": RIGHT}, ("joulelab.toml:5:", "period_s", "'fast'")),
        ('[meters.b]\nmeter = "plug"\naddress = "h"\n', {"PW": RIGHT}, ("joulelab.toml:5:", "kind")),
    ],
)
def test_a_wrong_configuration_costs_its_meter_and_never_the_command(
    tmp_path: Path, more: str, environ: dict[str, str], named: tuple[str, ...]
) -> None:
    """The command ends with its own code; what is not measured is told once, and recorded in the run."""
    configure(tmp_path, more)
    done = joulelab(tmp_path, "run", "-q", "--", "sh", "-c", "touch started; exit 7", code=7, **environ)
    (warning,) = done.stderr.splitlines()
    assert all(name in warning for name in named), warning
    assert (tmp_path / "started").exists()
    (run,) = list_runs(tmp_path / "runs")
    shown = json.loads(joulelab(tmp_path, "show", "--json", run.name, **environ).stdout)
    assert any(m["status"] == "failed" and m["what"] and m["what"] in warning for m in shown["missing"])
    assert all(m["code"].startswith("config") for m in shown["missing"] if m["status"] == "failed")


@pytest.mark.system
def test_a_run_stores_all_mistakes_of_an_entry_with_their_codes(tmp_path: Path) -> None:
    configure(tmp_path, 'adress = "x"\nfeedz = "node.ac"\n')
    joulelab(tmp_path, "run", "-q", "--", "true", PW=RIGHT)
    (run,) = list_runs(tmp_path / "runs")
    shown = json.loads(joulelab(tmp_path, "show", "--json", run.name, PW=RIGHT).stdout)
    mistakes = [(m["code"], m["what"].split("'")[1]) for m in shown["missing"] if m["meter"] == "pdu1"]
    assert mistakes == [("config.unknown-key", "adress"), ("config.unknown-key", "feedz")]


@pytest.mark.system
@pytest.mark.parametrize(("name", "environ"), [("fifo", {"JOULELAB_CONFIG": "fifo"}), ("joulelab.toml", {})])
def test_a_fifo_for_a_configuration_is_not_waited_for(tmp_path: Path, name: str, environ: dict[str, str]) -> None:
    os.mkfifo(tmp_path / name)
    done = joulelab(tmp_path, "run", "-q", "--", "sh", "-c", "exit 7", code=7, **environ)
    (warning,) = done.stderr.splitlines()
    assert f" {tmp_path / name}: " in warning
    assert "FIFO" in warning


@pytest.mark.system
def test_a_slow_meter_is_waited_for_and_a_dead_one_is_not(tmp_path: Path) -> None:
    slow = f'[meters.pdu2]\nmeter = "{INSTRUMENT}"\naddress = "dead"\npassword = {{ env = "PW" }}\nfeeds = "rack"\n'
    configure(tmp_path, "opens_in_s = 1.5\n" + slow)
    done = joulelab(tmp_path, "run", *FAST, "--meter", "pdu2", "--json", "--", "sleep", "0.3", PW=RIGHT)
    data = json.loads(done.stdout)
    (node,) = [s for s in data["scopes"] if s["scope"] == "node.ac"]
    assert node["mean_w"]["value"] == pytest.approx(100, rel=0.05)
    (run,) = list_runs(tmp_path / "runs")
    lines = [json.loads(line) for path in run.rglob("events*.jsonl") for line in path.read_text().splitlines()]
    assert {e["status"] for e in lines if e["event"] == "meter" and e["meter"] == "pdu2"} == {"failed"}


@pytest.mark.system
def test_a_named_file_is_read_and_others_meters_are_refused(tmp_path: Path) -> None:
    configure(tmp_path).rename(tmp_path / "mine.toml")
    done = joulelab(tmp_path, "run", "--json", *FAST, "--", "true", code=125, PW=RIGHT)
    assert json.loads(done.stdout)["error"]["code"] == "config.unknown-meter"
    assert "'pdu1'" in done.stderr
    joulelab(tmp_path, "run", "-q", "--config", "mine.toml", *FAST, "--", "true", PW=RIGHT)
    joulelab(tmp_path, "run", "-q", *FAST, "--", "true", PW=RIGHT, JOULELAB_CONFIG="mine.toml")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("JOULELAB_CONFIG", raising=False)
    monkeypatch.setenv("PW", RIGHT)
    return tmp_path


@pytest.mark.system
def test_meters_lists_entries_with_their_file(call: Call, here: Path) -> None:
    path = configure(here, "outlets = [1, 2]\n")
    text = call("meters", "pdu1").output
    assert "outlet:pdu1.1,2" in text
    assert f"{path}:1" in text
    assert RIGHT not in text
    (data,) = json.loads(call("meters", "pdu1", "--json").stdout)
    assert (data["meter"], data["module"], data["feeds"]) == ("pdu1", INSTRUMENT, "node.ac")
    assert (data["status"], data["source"]) == ("open", f"{path}:1")
    assert data["channels"][0]["scope"] == "outlet:pdu1.1"


@pytest.mark.system
def test_meters_says_what_is_wrong_with_an_entry(call: Call, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configure(here)
    for password, status in (("wrong-password", "denied"), (None, "failed")):
        monkeypatch.setenv("PW", password) if password else monkeypatch.delenv("PW")
        text = call("meters", "pdu1", "--json").stdout
        (row,) = json.loads(text)
        assert row["status"] == status
        assert row["what"] in " ".join(call("meters", "pdu1").output.split())
        assert "wrong-password" not in text


WRONG = '[meters.pdu2]\nmeter = "snmp"\nadress = "x"\n[runn]\n'


def test_a_wrong_entry_costs_meters_and_doctor_that_row_only(call: Call, here: Path) -> None:
    path = here / "joulelab.toml"
    archive = INSTRUMENT.replace("instrument", "archive")
    path.write_text(f'[meters.log]\nmeter = "{archive}"\npath = "x"\n{WRONG}')
    rows = {row["meter"]: row for row in json.loads(call("meters", "--json").stdout)}
    assert {"host", "nvml"} < rows.keys()
    assert [rows[name]["status"] for name in ("log", "pdu2", "configuration")] == ["open", "failed", "failed"]
    assert rows["pdu2"]["what"].startswith(f"{path}:6: ")
    assert "'address'" in rows["pdu2"]["next"]
    assert rows["configuration"]["what"].startswith(f"{path}:7: ")
    assert "snmp" not in rows
    assert [row["meter"] for row in json.loads(call("meters", "snmp", "--json").stdout)] == ["configuration", "pdu2"]
    looked = json.loads(call("doctor", "log", "pdu2", "--json", code=1).stdout)
    assert {row["meter"]: row["status"] for row in looked} == {
        "log": "open",
        "configuration": "failed",
        "pdu2": "failed",
    }
    assert f"{path}:6: " in " ".join(call("doctor", "log", "pdu2", code=1).output.split())
    path.write_text(path.read_text().replace("[runn]\n", ""))
    assert "pdu2" not in call("doctor", "log").output
    assert json.loads(call("doctor", "snmp", "--json", code=1).stdout)[0]["meter"] == "pdu2"


def test_a_file_that_is_no_toml_is_a_row_of_meters_and_doctor(call: Call, fail: Fail, here: Path) -> None:
    path = here / "joulelab.toml"
    path.write_text("x =\n")
    for command, code in (("meters", 0), ("doctor", 1)):
        rows = json.loads(call(command, "file", "pdu1", "--json", code=code).stdout)
        assert [(row["meter"], row["status"]) for row in rows] == [
            ("file", "not configured"),
            ("configuration", "failed"),
            ("pdu1", "failed"),
        ]
        assert rows[1]["what"].startswith(f"{path}:1: ")
        assert str(path) in rows[2]["why"]
    assert fail(*ADD).code.startswith("config")


def test_doctor_names_the_line_at_which_ones_own_meter_fails(call: Call, here: Path) -> None:
    file = here / "w.py"
    file.write_text("def open_meter(config):\n    return 1 / 0\n")
    (row,) = json.loads(call("doctor", str(file), "--json", code=1).stdout)
    assert (row["what"], row["why"]) == ("ZeroDivisionError: division by zero", f"{file}, line 2")
    assert row["next"] == "correct that line"


def test_doctor_prints_that_a_file_is_not_trusted(call: Call, here: Path) -> None:
    configure(here).chmod(0o666)
    assert f"{here / 'joulelab.toml'}" in call("doctor", "file", code=1).output


def doctor(call: Call) -> tuple[str, str, str, list[str]]:
    """Return what doctor finds out about pdu1: the status, the code, what to do, and what a closer look found."""
    text = call("doctor", "pdu1", "--for", "0.2", "--json", code=1).stdout
    assert RIGHT not in text
    assert "wrong-password" not in text
    (row,) = json.loads(text)
    printed = call("doctor", "pdu1", "--for", "0.2", code=1).output.replace("-> ", "")
    assert row["next"][1:] in " ".join(printed.split())  # with a capital, its command on a line of its own
    return row["status"], row["code"], row["next"], row["found"]


@pytest.mark.system
def test_doctor_tells_the_mistakes_apart(call: Call, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configure(here, "watts = 5\n")
    (row,) = json.loads(call("doctor", "pdu1", "--for", "0.2", "--json").stdout)
    assert (row["status"], row["code"], row["power"]) == ("open", "", True)
    configure(here, "outlets = [9]\n")
    assert doctor(call)[:3] == ("unavailable", "unavailable", "choose 1 to 8")
    monkeypatch.setenv("PW", "wrong-password")
    configure(here)
    assert doctor(call) == ("denied", "denied", "ask its owner", ["it is alive: Denied with ***"])
    path = configure(here)
    path.write_text(path.read_text().replace("here", "dead"))
    *told, (found,) = doctor(call)
    assert told == ["unavailable", "read-failed", "is it on?"]
    assert "port 161" in found
    monkeypatch.delenv("PW")
    assert doctor(call)[0] == "failed"
    (data,) = json.loads(call("doctor", "pdu1", "--json", code=1).stdout)
    assert data["settings"]["password"] == "*** (env PW)"


@pytest.mark.system
def test_doctor_examines_entries_beside_the_usual_meters(
    call: Call, fail: Fail, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = configure(here)
    off = "".join(f"[meters.{name}]\nenabled = false\n" for name in ("nvml", "rapl", "amdsmi", "cray", "hwmon"))
    path.write_text(path.read_text() + off + "[meters.off]\nenabled = false\n")
    data = json.loads(call("doctor", "--for", "0.05", "--json").stdout)
    assert [r["meter"] for r in data] == ["host", "pdu1"]
    monkeypatch.delenv("PW")  # a missing secret is a problem of the configuration
    data = json.loads(call("doctor", "--for", "0.05", "--json", code=1).stdout)
    assert [(r["meter"], r["status"]) for r in data] == [("host", "open"), ("pdu1", "failed")]
    assert fail("doctor", "off").code == "config.unused-entry"


ADD = ("meters", "--add", INSTRUMENT, "address=here", "password=env:PW")


@pytest.mark.system
def test_a_meter_is_added_after_it_was_read(call: Call, here: Path) -> None:
    text = call(*ADD, "--name", "pdu1", "outlets=1,2", "watts=7.5", "feeds=rack").output
    assert "outlet:pdu1.1  power_w  7.5 W" in text
    file = here / "home" / "joulelab" / "joulelab.toml"
    assert str(file) in text
    assert RIGHT not in text + file.read_text()
    ((name, entry),) = tomllib.loads(file.read_text())["meters"].items()
    assert name == "pdu1"
    assert entry == {
        "meter": INSTRUMENT,
        "address": "here",
        "password": {"env": "PW"},
        "outlets": [1, 2],
        "watts": 7.5,
        "feeds": "rack",
    }
    assert "outlet:pdu1.1,2" in call("meters", "pdu1").output


@pytest.mark.system
def test_what_was_written_is_kept_and_names_are_not_taken_twice(call: Call, fail: Fail, here: Path) -> None:
    path = here / "joulelab.toml"
    path.write_text("# mine\n")
    call(*ADD)
    call(*ADD)
    assert list(tomllib.loads(path.read_text())["meters"]) == ["instrument1", "instrument2"]
    assert path.read_text().startswith("# mine\n")
    assert fail(*ADD, "--name", "instrument1").code == "config.name-taken"
    call(*ADD, "--name", "instrument1", "--replace", "watts=3")
    assert tomllib.loads(path.read_text())["meters"]["instrument1"]["watts"] == 3
    assert fail(*ADD, "--name", "instrument1", "--replace", "--user").code == "config.other-file"
    data = json.loads(call(*ADD, "--file", here / "else.toml", "--json").stdout)
    assert data["file"] == str(here / "else.toml")
    assert data["readings"][0]["value"] == 100


@pytest.mark.system
def test_an_entry_is_added_beside_a_wrong_one_and_replaces_it(call: Call, here: Path) -> None:
    path = here / "joulelab.toml"
    path.write_text(WRONG)
    assert "pdu2" in call(*ADD, "--name", "pdu1").stderr
    assert "pdu2" not in call(*ADD, "--name", "pdu2", "--replace").output.replace("meters.pdu2", "")
    assert {entry["meter"] for entry in tomllib.loads(path.read_text())["meters"].values()} == {INSTRUMENT}


@pytest.mark.system
def test_a_meter_that_does_not_read_is_not_written(call: Call, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PW", "wrong-password")
    done = call(*ADD, "--json", code=1)
    told = json.loads(done.stdout)
    assert (told["error"]["code"], told["error"]["next"]) == ("denied", "ask its owner")
    assert told["found"] == ["it is alive: Denied with ***"]
    assert all(text in done.stderr for text in (told["error"]["what"], *told["found"]))
    assert "wrong-password" not in done.output + call(*ADD, code=1).output
    assert not (here / "home").exists()


@pytest.mark.system
@pytest.mark.parametrize(
    ("words", "code", "example"),
    [
        (["address=here"], "config.missing-key", "address=here password=env:INSTRUMENT1_PASSWORD`"),
        (["password=env:PW"], "config.missing-key", "password=env:PW address=...`"),
        (["address=here", f"password={RIGHT}"], "config.secret-in-plain-text", "password=env:NAME"),
        (["address=here", "password=env:PW", "adress=x"], "config.unknown-key", "'address'"),
        (["here"], "usage.no-pair", "address=..."),
        (["address=here", "password=env:PW", "--name", "a b"], "config.name", "-"),
        (["--file", "x", "--user"], "usage.exclusive", "--user"),
    ],
)
def test_wrong_words_are_refused_with_an_example(
    fail: Fail, here: Path, words: list[str], code: str, example: str
) -> None:
    failure = fail("meters", "--add", INSTRUMENT, *words)
    assert failure.code == code
    assert example in failure.stderr
    assert RIGHT not in failure.stderr


def test_options_of_add_need_it(fail: Fail) -> None:
    assert fail("meters", "--name", "x").code == "usage.needs-add"
    assert fail("meters", "--user").code == "usage.needs-add"


@pytest.mark.system
def test_missing_keys_are_asked_for_at_a_terminal(call: Call, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter(["here", "env:PW"])
    asked: list[str] = []

    def prompt(question: str, **_: object) -> str:
        asked.append(question)
        return next(answers)

    class Terminal:
        stdin = type("Stdin", (), {"isatty": staticmethod(lambda: True)})

    monkeypatch.setattr(adding, "sys", Terminal)
    monkeypatch.setattr(adding.click, "prompt", prompt)
    call("meters", "--add", INSTRUMENT)
    assert [question.split()[0] for question in asked] == ["address", "password"]
    assert all(kind in asked[1] for kind in SECRET_SOURCES)
    assert (here / "home" / "joulelab" / "joulelab.toml").is_file()


CHOOSING = """
from joulelab.core.errors import ConfigError
from tests.run.config.instrument import Pretended
from joulelab.instruments import wall
SUMMARY, PRIVILEGE, TRIED, DEFAULT = "a choice", "none", "nothing", False
CONFIG = wall.COMMON | {"chassis": "a box", "sensor": "a sensor", "watts": "power"}
def open_meter(config):
    if "sensor" in config:
        return Pretended(config)
    error = ConfigError("two powers: choose a sensor", code="config.several-powers")
    error.choices = (("5 W", {"chassis": "1", "sensor": "a"}), ("6 W", {"chassis": "1", "sensor": "b"}))
    raise error
"""


def test_choices_are_offered_by_number_at_a_terminal(call: Call, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "choosing.py").write_text(CHOOSING)

    class Terminal:
        stdin = type("Stdin", (), {"isatty": staticmethod(lambda: True)})

    monkeypatch.setattr(adding, "sys", Terminal)
    monkeypatch.setattr(adding.click, "prompt", lambda _, **options: options["type"].max)
    call("meters", "--add", "choosing.py", "--file", "chosen.toml")
    (entry,) = tomllib.loads((here / "chosen.toml").read_text())["meters"].values()
    assert (entry["chassis"], entry["sensor"]) == ("1", "b")


@pytest.mark.system
def test_a_signal_ends_the_wait_for_slow_meters(tmp_path: Path) -> None:
    configure(tmp_path, "opens_in_s = 600.0\n")
    environ = dict(os.environ)
    environ |= {"JOULELAB_RUNS": "runs", "XDG_CONFIG_HOME": str(tmp_path / "home"), "PW": RIGHT}
    process = subprocess.Popen([*JOULELAB, "run", *FAST, "--", "touch", "started"], env=environ, cwd=tmp_path)
    until(lambda: list(tmp_path.glob("runs/*/*/events.run.jsonl")))
    process.terminate()
    assert process.wait(120) == -signal.SIGTERM
    assert not (tmp_path / "started").exists()


def test_archives_are_opened_and_listed(call: Call, here: Path) -> None:
    archive = INSTRUMENT.replace("instrument", "archive")
    path = here / "joulelab.toml"
    path.write_text(f'[meters.log]\nmeter = "{archive}"\npath = "x"\n')
    (data,) = json.loads(call("meters", "log", "--json").stdout)
    assert (data["status"], data["channels"]) == ("open", [])
    assert json.loads(call("doctor", "log", "--json").stdout)[0]["status"] == "open"
    path.write_text(path.read_text().replace('"x"', '"gone"'))
    assert json.loads(call("doctor", "log", "--json", code=1).stdout)[0]["code"] == "unavailable"
    assert json.loads(call("meters", "--add", archive, "path=y", "--json").stdout)["readings"] == []
    for command, code in (("meters", 0), ("doctor", 1)):
        for name, key in (("snmp", "address"), ("file", "path")):
            advice = f"joulelab meters --add {name} {key}=..."
            (row,) = json.loads(call(command, name, "--json", code=code).stdout)
            assert (row["status"], row["next"]) == ("not configured", advice)
            assert f"-> {advice}" in call(command, name, code=code).output


def test_doctor_suggests_entries_first_and_knows_archives(fail: Fail, here: Path) -> None:
    configure(here)
    for wrong, nearest in (("pdu2", "pdu1"), ("fil", "file")):
        failure = fail("doctor", wrong)
        assert failure.code == "config.unknown-meter"
        assert failure.next is not None
        assert failure.next.index(f"'{nearest}'") < failure.next.index(" pdu1, ") < failure.next.rindex("file")


@every_row(
    ("advice", "left"),
    [
        ("run joulelab doctor with its name", ""),
        ("run joulelab doctor, which tells the cause apart", ""),
        ("run joulelab doctor pdu1: it tries other units, functions and addresses", ""),
        ("run joulelab doctor rapl, or let every user read it: chmod", "let every user read it: chmod"),
        ("it is tried again; see joulelab doctor nvml", "it is tried again"),
        ("ask for read access, or run as root: joulelab doctor nvml", "ask for read access, or run as root"),
        ("pdu1: refused (why); run joulelab doctor with its name", "pdu1: refused (why)"),
        ("is it on?", "is it on?"),
    ],
)
def test_doctor_does_not_send_to_itself(advice: str, left: str) -> None:
    assert remove_own_advice(advice) == left


def test_what_a_run_would_refuse_is_not_added(fail: Fail, here: Path) -> None:
    words = ("meters", "--add", INSTRUMENT, "--name", "new", "address=here", "password=env:PW")
    assert "'node.ac'" in str(fail(*words, "feeds=nodeac").next)
    failure = fail("meters", "--add", "redfish", "address=https://root:calvin@h", "password=env:PW")
    assert failure.code == "config.login-in-address"
    assert "calvin" not in str(failure)
    assert not (here / "home").exists()
