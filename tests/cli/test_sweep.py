"""The command `sweep`: what it plans, refuses, runs on a served twin, and shows."""

from __future__ import annotations

import csv
import json
import os
import signal
import sys
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import click
import pytest
from tests.study.bench import claims, environment, finish, is_alive, start, sweep, wait_for

from joulelab.cli.study_driver import describe_event
from joulelab.cli.sweep import GROUPS, STUDY_KEYS, command
from joulelab.core.clock import monotonic_ns
from joulelab.core.errors import MissingDependency
from joulelab.store.run_reader import open_run
from joulelab.study.drive import SlotEvent
from joulelab.study.matrix import LOCAL, PlannedCell, Workload
from joulelab.study.slots import read_slot
from joulelab.study.study_file import StudyKeys
from joulelab.twin.model import RTX6000, Node
from joulelab.twin.servers import nvml
from joulelab.twin.twin_server import TwinServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.cli.conftest import Call, Fail

JOB = (sys.executable, "-m", "joulelab.twin.job", "--speed", "20")


def test_a_dry_run_shows_every_slot_and_makes_nothing(call: Call, tmp_path: Path) -> None:
    words = ("--set", "n=1:3:1", "--set", "mode=a,b", "--repeat", "2", "--seed", "7", "--dry-run")
    shown = call("sweep", *words, "--all", "--", "true", "{n}", "{mode}").stdout.splitlines()
    assert {line.split(maxsplit=2)[2] for line in shown[:6]} == {
        f"n {n}, mode {m}  to run" for n in (1, 2, 3) for m in "ab"
    }
    assert shown[11].startswith("12 ")
    short = call("sweep", *words, "--", "true", "{n}", "{mode}")
    lines = short.stdout.splitlines()
    assert [line.split() for line in lines if line.split()[1:2] == ["a"]] == [[str(n), "a", "2"] for n in (1, 2, 3)]
    assert " ".join(short.stdout.split()).endswith("none like them has run yet; seed 7")
    assert max(map(len, lines)) <= 80
    assert "--seed" in short.stderr  # it moves to study files
    data = json.loads(call("sweep", *words, "--json", "--", "true", "{n}", "{mode}").stdout)
    assert (data["seed"], len(data["slots"]), data["unknown"], data["left_s"]) == (7, 12, 12, None)
    first = data["slots"][0]
    assert first["command"] == ["true", str(first["knobs"]["n"]), first["knobs"]["mode"]]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "code", "where"),
    [
        (("--cap", "100:260:10"), "usage.no-command", "joulelab sweep"),
        (("--cap", "lots", "--", "true"), "config", "--cap"),
        (("--set", "cap=100", "--", "true"), "config.own-option", "--set cap"),
        (("--set", "n=1", "--", "true"), "config", "--set n"),
        (("--", "true", "{gpu}"), "config", "command"),
        (("--set", "n=1", "--goal", "edd", "--", "true", "{n}"), "config", None),
        (("--set", "n=1", "--reference", "n=2", "--", "true", "{n}"), "config", "--reference"),
        (("--set", "n=1", "--work", "tokens", "--", "true", "{n}"), "config", "--work"),
        (("--set", "n=1", "--cool", "soon", "--", "true", "{n}"), "usage", "joulelab sweep"),
        (("--set", "n=1", "--cool", "45C", "--", "true", "{n}"), "config", "--cool"),
        (("--set", "n=1", "--meter", "nvlm", "--", "true", "{n}"), "config", "meters"),
        (("--set", "n=1", "--name", "../x", "--", "true", "{n}"), "config", "--name"),
        (("--gpus", "1", "--", "true"), "config", "--gpus"),
        (("--report",), "usage.no-name", "joulelab sweep"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    fail: Fail, tmp_path: Path, words: tuple[str, ...], code: str, where: str | None
) -> None:
    failure = fail("sweep", *words)
    assert failure.code == code or (failure.kind == code == "config")
    assert failure.where == where
    assert not (tmp_path / "joulelab-studies").exists()


def test_a_report_of_nothing_says_so(fail: Fail) -> None:
    assert fail("sweep", "--report", "--name", "x", code=1).kind == "store"


@pytest.mark.system
def test_work_time_and_results_of_a_plain_command(
    call: Call, fail: Fail, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JOULELAB_STUDIES", str(tmp_path / "mine"))
    environ = environment(tmp_path, {"JOULELAB_STUDIES": str(tmp_path / "mine")})
    script = "echo '{\"tokens\": {n}}'; sleep 0.0{n}"
    command = ("--", "sh", "-c", script)
    words = ("--set", "n=1,2", "--repeat", "1", "--cool", "100ms", "--idle", "100ms", "--meter", "host")
    _, err = sweep(tmp_path, environ, *words, "--work", r'"tokens": (\d+)', "--name", "w", "--no-figures", *command)
    assert " mine/w" in err
    report = ("sweep", "--report", "--name", "w", "--no-figures")
    data = json.loads(call(*report, "--json", "--reference", "n=2").stdout)
    assert [cell["knobs"] for cell in data["cells"]] == [{"n": 1}, {"n": 2}]
    assert [slot["work_tokens"] for slot in data["slots"]] == [1.0, 2.0]
    assert all(slot["cooled"] == "time" and slot["cooled_s"] >= 0.1 for slot in data["slots"])
    assert data["cells"][1]["loss"]["value"] == 0
    assert "samples" in call(*report, "--work", r"samples: (\d+)").stdout
    assert r"\toprule" in call(*report, "--format", "latex").stdout
    assert fail(*report, "--goal", "time@f1>=0.9").code == "config.goal-quality"
    figures = tmp_path / "mine" / "w" / "figures"
    figures.mkdir()
    assert "the figures stay as they are" in call(*report[:-1], "--goal", "time").stderr
    assert not list(figures.iterdir())


@pytest.fixture
def twin(tmp_path: Path) -> Iterator[TwinServer]:
    try:
        nvml.build_library()
    except MissingDependency as error:
        pytest.skip(str(error))
    with TwinServer(Node(gpus=(RTX6000,) * 3, packages=1, spread=0.0), directory=tmp_path) as served:
        yield served


def caps(twin: TwinServer) -> list[float]:
    return [twin.truth.caps(gpu, monotonic_ns())[0] for gpu in range(3)]


def events(run: Path, name: str) -> list[dict[str, Any]]:
    with open_run(run) as opened:
        return [dict(line) for line in opened.events() if line.get("event") == name]


@pytest.mark.campaign  # studies are killed in test_study_kills.py, by the same engine
def test_a_sweep_of_caps_and_gpus_survives_kills(twin: TwinServer, tmp_path: Path) -> None:
    environ = environment(tmp_path, {**twin.environment, "CUDA_VISIBLE_DEVICES": "2,0"})
    found = caps(twin)
    study = tmp_path / "joulelab-studies" / "tw"
    words = ("--cap", "60%,90%", "--gpus", "1,2", "--repeat", "2", "--goal", "edp", "--goal", "eds:2", "--name", "tw")
    words = (*words, "--reference", "cap=90%", "--cool", "60C", "--", *JOB, "--gpus", "{gpus}", "--work", "10")

    driver = start(tmp_path, environ, *words)
    wait_for(lambda: caps(twin) != found)
    driver.kill()  # the driver: its slot goes on, and the next one waits for it
    driver.communicate(timeout=30)

    driver = start(tmp_path, environ, *words)
    wait_for(lambda: list(study.glob("cells/*/r01/*/end.json")))
    wait_for(lambda: caps(twin) == found)
    live = wait_for(lambda: [c for c in claims(study) if read_slot(c["slot"]).state == "live" and caps(twin) != found])
    for claim in live:
        os.kill(claim["pid"], signal.SIGKILL)  # a slot: its keeper puts back, the driver tries it again
    out, _ = finish(driver)

    assert caps(twin) == found
    assert not any(is_alive(c["pid"]) for c in claims(study))
    slots = sorted(c["slot"] for c in claims(study))
    assert len(slots) == 8
    assert {read_slot(slot).state for slot in slots} == {"done"}
    assert len(list(study.glob("cells/*/r0?/*/end.json"))) == 8
    for slot in slots:
        check_caps(slot)
    assert "gpus=2" in out
    assert "edp" in out
    rows = list(csv.DictReader((study / "results.csv").read_text().splitlines()))
    assert [(row["knob_cap"], row["knob_gpus"], row["n"]) for row in rows] == [
        ("0.6", "1", "2"), ("0.6", "2", "2"), ("0.9", "1", "2"), ("0.9", "2", "2"),
    ]  # fmt: skip
    shares = [float(row["idle_energy_share"]) for row in csv.DictReader((study / "slots.csv").read_text().splitlines())]
    assert all(0.02 < share < 0.9 for share in shares)  # one GPU is never visible
    assert {p.name for p in (study / "figures").glob("*.svg")} >= {"energy.svg", "time.svg", "edp.svg"}
    assert len(list(study.glob("cells/*/*.interrupted-*"))) == len(live)


def check_caps(slot: Path) -> None:
    """Hold a slot against what its run recorded: caps on exactly its GPUs, in its order, and put back."""
    cell = json.loads((slot.parent / "cell.json").read_text())
    used = ["gpu:2", "gpu:0"][: cell["knobs"]["gpus"]["value"]]
    run = read_slot(slot).run
    assert run is not None
    assert [e["scope"] for e in events(run, "cap-set")] == used
    assert {e["asked"] for e in events(run, "cap-set")} <= {156.0, 234.0}
    assert {(e["scope"], e["outcome"]) for e in events(run, "cap-restored")} == {(scope, "restored") for scope in used}
    shown = json.loads((run / "run.json").read_text())["environment"]["CUDA_VISIBLE_DEVICES"]
    assert shown == ",".join(["2", "0"][: len(used)])


@pytest.mark.campaign
def test_caps_that_are_not_enforced_are_not_named_best(call: Call, twin: TwinServer, tmp_path: Path) -> None:
    for gpu in range(3):
        twin.truth.change_flaws(gpu, unenforced_caps=True)
    environ = environment(tmp_path, twin.environment)
    words = ("--cap", "100,260", "--gpus", "1", "--repeat", "1", "--name", "tw", "--no-figures", "--meter", "nvml")
    job = ("--", *JOB, "--work", "30")
    out, _ = sweep(tmp_path, environ, *words, *job)
    assert "100!" in out
    assert "best for energy  260 W" in out
    data = json.loads(call("sweep", "--report", "--name", "tw", "--no-figures", "--json").stdout)
    assert {cell["knobs"]["cap"]: cell["uncapped"] for cell in data["cells"]} == {100.0: 1, 260.0: 0}
    assert {best["cell"] for best in data["best"]} == {c["key"] for c in data["cells"] if not c["uncapped"]}
    # A GPU that is visible and does nothing is idle: here two of three.
    assert all(0.02 < slot["idle_energy_share"] < 0.9 for slot in data["slots"])

    out, _ = sweep(tmp_path, environ, *words[2:4], "--repeat", "1", *words[6:], *job)
    assert "no cap" in out
    assert "None" not in out


@pytest.mark.campaign
def test_the_work_that_is_named_is_what_is_compared_by(
    call: Call, fail: Fail, twin: TwinServer, tmp_path: Path
) -> None:
    environ = environment(tmp_path, twin.environment)
    words = (
        "--set",
        "batch=16,64",
        "--gpus",
        "1,2",
        "--repeat",
        "1",
        "--name",
        "tw",
        "--no-figures",
        "--meter",
        "nvml",
    )
    job = ("--", *JOB, "--gpus", "{gpus}", "--work", "10", "--batch", "{batch}")
    out, err = sweep(tmp_path, environ, *words, "--work", r"samples: (\d+)", *job)
    assert ", per sample" in out
    assert "scaling.csv" in err
    rows = list(csv.DictReader((tmp_path / "joulelab-studies" / "tw" / "results.csv").read_text().splitlines()))
    assert {row["compared_per"] for row in rows} == {"samples"}
    assert {row["time_s_expanded"] for row in rows} == {""}  # one run each
    gains = [float(row["gain"]) for row in rows if row["knob_batch"] == "64" and row["knob_gpus"] == "1"]
    assert gains[0] > 0
    scaled = list(csv.DictReader((tmp_path / "joulelab-studies" / "tw" / "scaling.csv").read_text().splitlines()))
    assert [(row["knob_batch"], row["gpus"]) for row in scaled] == [
        ("16", "1.0"), ("16", "2.0"), ("64", "1.0"), ("64", "2.0"),
    ]  # fmt: skip
    assert "steps" in call("sweep", "--report", "--name", "tw", "--no-figures", "--per", "steps").stdout
    failure = fail("sweep", "--report", "--name", "tw", "--reference", "batch=7")
    assert (failure.kind, failure.where) == ("config", "--reference")
    assert "16, 64" in str(failure.why)


@pytest.mark.system
def test_caps_that_are_refused_stop_the_sweep(twin: TwinServer, tmp_path: Path) -> None:
    environ = environment(tmp_path, twin.environment)
    words = ("--gpus", "1", "--name", "tw", "--no-figures")
    for gpus, cap, kind, named in (
        ("1", "90:260:10", "refused", ("gpu:0", "90 W", "100 W", "260 W")),
        ("4", "200", "config", ("3 GPUs",)),
    ):
        out, err = sweep(tmp_path, environ, "--json", *words, "--gpus", gpus, "--cap", cap, "--", *JOB, code=2)
        assert json.loads(out)["error"]["code"].startswith(kind)
        assert all(name in err for name in named), err
    twin.truth.change_flaws(0, refuse_caps=True)
    _, err = sweep(tmp_path, environ, *words, "--cap", "150:260:10", "--", *JOB, code=1)
    assert "0 of 36 slots" in err
    assert [p.name for p in tmp_path.glob("joulelab-studies/tw/cells/*/r*")] == ["r01.refused-1"]
    twin.truth.change_flaws(0, refuse_caps=False)
    assert caps(twin) == [260.0] * 3


def test_options_that_moved_to_study_files_are_hidden_work_and_name_a_key_that_exists(call: Call) -> None:
    parameters = {parameter.name: parameter for parameter in command.params if isinstance(parameter, click.Option)}
    keys = {key.partition(" ")[0] for _, key in STUDY_KEYS.values()} - {"cpu_cap", "work_sum"}
    assert keys <= {field.name for field in fields(StudyKeys)}
    assert all(parameters[name].hidden and option in parameters[name].opts for name, (option, _) in STUDY_KEYS.items())
    shown = [option for option in parameters.values() if not option.hidden]
    assert len(shown) <= 19
    assert {option.name for option in shown} == {name for group in GROUPS.values() for name in group}
    words = ("--set", "n=1,2", "--idle", "1s", "--no-meter", "nvml", "--dry-run", "--", "true", "{n}")
    (line,) = [line for line in call("sweep", *words).stderr.splitlines() if "--write" in line]
    assert "--idle, --no-meter" in line
    assert "(idle, no_meters)" in line


def test_a_slot_that_cannot_be_analysed_is_not_simply_done(tmp_path: Path) -> None:
    cell = PlannedCell(Workload(("true",), "w", LOCAL), {})
    event = SlotEvent("done", cell, tmp_path / "r01", finished=1, total=9, details={"problems": ["Defect: x"]})
    assert describe_event(event) == "[1/9] w (r01): done, but not analysed; Defect: x"
