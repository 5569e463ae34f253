from __future__ import annotations

import csv
import json
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from tests.study.bench import environment, is_alive
from tests.waiting import until

from joulelab.core.errors import MissingDependency
from joulelab.study.slots import read_slot
from joulelab.twin.model import RTX6000, Node
from joulelab.twin.servers import nvml
from joulelab.twin.twin_server import TwinServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.cli.conftest import Call, Fail

pytestmark = pytest.mark.system

LIMIT_S = 300.0
FILE = """
name = "mine"
repeats = 1
seed = 4
reference = { node = "all" }

[knobs]
n = [1]

[workloads.train]
command = "sh -c 'echo samples: {n}00'"
work = 'samples: (\\d+)'

[workloads.predict]
command = ["sh", "-c", "test ! -e fail || { echo no data >&2; exit 3; }", "{n}"]
nodes = ["all"]

[nodes.all]
[nodes.cpu-mix]
uses = "cpu"
"""
# On one type of node, without repeats of what the whole file shows.
SHORT = FILE.partition("[nodes.cpu-mix]")[0]


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return environment(tmp_path)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "study.toml"
    file.write_text(FILE)
    return file


def start(file: Path, environ: dict[str, str], verb: str, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "joulelab", "study", verb, str(file), *words]
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}
    return subprocess.Popen(command, cwd=file.parent, env=environ, text=True, start_new_session=True, **pipes)


def untraced(environ: dict[str, str]) -> dict[str, str]:
    """Return the environment of what another test traces."""
    return {name: value for name, value in environ.items() if name != "COVERAGE_PROCESS_CONFIG"}


def study(file: Path, environ: dict[str, str], verb: str, *words: str, code: int = 0) -> tuple[str, str]:
    process = start(file, environ, verb, *words)
    out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == code, out + err
    return out, err


def test_a_study_is_planned_run_and_reported_and_goes_on_when_its_file_is_edited(
    file: Path, environ: dict[str, str]
) -> None:
    out, err = study(file, environ, "plan", "--all")
    assert out.count(" to run\n") == 3
    assert out.splitlines()[-1].startswith("3 of 3 slots")
    assert err.count("joulelab: ") == 1  # no power meter can be read here
    studies = file.parent / "joulelab-studies"
    assert not studies.exists(), "a plan writes nothing"

    out, err = study(file, environ, "run", "--no-figures")
    assert "joulelab-studies/mine" in err
    assert "train, cpu-mix, n 1 (r01)" in err
    rows = list(csv.DictReader((studies / "mine" / "slots.csv").read_text().splitlines()))
    assert len(rows) == 3
    assert {row["state"] for row in rows} == {"done"}
    places = {("train", "all"), ("train", "cpu-mix"), ("predict", "all")}
    assert {(row["workload"], row["node"]) for row in rows} == places

    assert json.loads(study(file, environ, "status", "--json")[0])["slots"] == {"done": 3}
    assert study(file, environ, "status")[0].startswith("mine: 3 ")
    told = json.loads(study(file, environ, "plan", "--json")[0])
    assert (told["left_s"], len(told["slots"])) == (None, 3)
    assert all(slot["expected_s"] > 0 for slot in told["slots"])
    before = {path: path.stat().st_mtime_ns for path in studies.glob("mine/cells/*/*/claim.json")}
    study(file, environ, "run", "--no-figures")
    assert {path: path.stat().st_mtime_ns for path in studies.glob("mine/cells/*/*/claim.json")} == before
    edit_and_go_on(file, untraced(environ))


def edit_and_go_on(file: Path, environ: dict[str, str]) -> None:
    """Edit the file of a study that is done: cells that did not change are kept."""
    text = FILE.replace("n = [1]", "n = [1, 2]").replace("seed = 4\n", "")
    file.write_text(text.replace("[workloads.predict]", "[workloads.other]"))
    out, _ = study(file, environ, "plan", "--all")
    states = [line.rsplit("  ", 1)[1] for line in out.splitlines()[:-1] if " train" in line]
    assert sorted(state.split()[0] for state in states) in (["about"] * 2 + ["done"] * 2, ["done"] * 2 + ["to"] * 2)
    assert "4 of 6 slots" in out
    study(file, environ, "run", "--no-figures")
    rest = file.parent / "joulelab-studies" / "mine" / "scaling.csv"
    rest.write_text("of an earlier report")
    out, _ = study(file, environ, "report", "--no-figures", "--format", "json")
    assert not rest.exists()
    cells = json.loads(out)["cells"]
    assert {(cell["knobs"]["workload"], cell["knobs"]["n"]) for cell in cells} == {
        (workload, n) for workload in ("train", "other") for n in (1, 2)
    }
    assert [cell["n"] for cell in cells] == [1] * 6


@pytest.mark.parametrize("form", ["text", "markdown", "latex", "csv", "json"])
def test_a_report_comes_in_several_forms(small: Path, call: Call, form: str) -> None:
    studies = small.parent / "joulelab-studies"
    out = call("study", "report", small, "--studies", studies, "--no-figures", "--format", form).stdout
    assert {"text": "±", "markdown": "| ", "latex": "\\toprule", "csv": ",", "json": '"statistics"'}[form] in out
    if form == "json":
        assert json.loads(out)["study"] == "small"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("small") / "small.toml"
    file.write_text('repeats = 2\n[knobs]\nn = [1, 2]\n[workloads.w]\ncommand = "sleep 0.0{n}"\n')
    study(file, untraced(environment(file.parent)), "run", "--no-figures")
    return file


def test_failed_slots_are_kept_said_and_retried_on_request(file: Path, environ: dict[str, str]) -> None:
    file.write_text(SHORT)
    (file.parent / "fail").touch()
    _, err = study(file, environ, "run", "--no-figures", code=1)
    assert "1 of 2 slots" in err
    assert "--retry" in err
    out, _ = study(file, environ, "status")
    for text in (out, err):
        assert all(part in text for part in ("predict, all, n 1 (r01)", "exit code 3", "no data"))
    (file.parent / "fail").unlink()
    study(file, environ, "run", "--no-figures", code=1)
    study(file, environ, "run", "--no-figures", "--retry")
    kept = list((file.parent / "joulelab-studies" / "mine").glob("cells/*/r0?.failed-1"))
    assert len(kept) == 1


@pytest.mark.campaign  # study/test_sweeping.py: two sweeps of one study share the work
def test_two_runs_of_one_study_do_not_clash(file: Path, environ: dict[str, str]) -> None:
    file.write_text(SHORT.replace("n = [1]", "n = [1, 2]"))
    both = [start(file, environ, "run", "--no-figures") for _ in range(2)]
    for process in both:
        out, err = process.communicate(timeout=LIMIT_S)
        assert process.returncode == 0, out + err
    slots = list((file.parent / "joulelab-studies" / "mine").glob("cells/*/r0?"))
    assert len(slots) == 4
    assert all(len(list(slot.glob("*/run.json"))) == 1 for slot in slots)
    assert {str(read_slot(slot).state) for slot in slots} == {"done"}


@pytest.mark.campaign  # study/test_sweeping.py: what is cut off is kept and run again
def test_interrupted_it_says_so_and_goes_on(file: Path, environ: dict[str, str]) -> None:
    # What comes after the first slot waits for the interrupt.
    hold = "if test -e first -a ! -e go; then exec sleep 600; fi; touch first"
    file.write_text(f'repeats = 3\nname = "mine"\n[workloads.w]\ncommand = ["sh", "-c", "{hold}"]\n')
    process = start(file, environ, "run", "--no-figures")
    studies = file.parent / "joulelab-studies" / "mine"
    until(lambda: list(studies.glob("cells/*/r0?/*/end.json")))
    out, _ = study(file, environ, "status", "--json")
    told = json.loads(out)
    assert sum(told["slots"].values()) == 3
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130
    assert " of 3 slots" in err
    claims = [json.loads(path.read_text()) for path in studies.glob("cells/*/*/claim.json")]
    assert not any(is_alive(claim["pid"]) for claim in claims)
    (file.parent / "go").touch()
    study(file, environ, "run", "--no-figures")


@pytest.fixture
def moved(small: Path) -> Iterator[Path]:
    """Move the file of the study that others read, for one test."""
    text = small.read_text()
    there = small.rename(small.with_name("small-2.toml"))
    there.write_text('name = "small"\n' + text)
    yield there
    there.unlink()
    small.write_text(text)


def test_a_study_whose_file_was_moved_goes_on_and_another_of_its_name_does_not(
    moved: Path, call: Call, fail: Fail, tmp_path: Path
) -> None:
    folder = moved.parent / "joulelab-studies"
    studies = ("--studies", str(folder))
    link = tmp_path / "link.toml"
    link.symlink_to(moved)
    call("study", "run", link, "--no-figures", *studies)
    copied = tmp_path / "other.toml"
    copied.write_text(moved.read_text())
    failure = fail("study", "run", copied, "--no-figures", *studies)
    assert failure.kind == "config"
    assert 'name = "small-2"' in failure.stderr
    before = (folder / "small" / "slots.csv").read_text()
    for verb in ("plan", "status", "report"):
        call("study", verb, copied, *studies, code=2)
    assert (folder / "small" / "slots.csv").read_text() == before


def test_what_is_wrong_is_told_before_anything_runs(
    file: Path, call: Call, fail: Fail, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("JOULELAB_STATE", "JOULELAB_POWERCAP", "COLUMNS"):
        monkeypatch.setenv(name, environ[name])
    file.write_text(FILE.replace("repeats = 1", "repeat = 1").replace("uses =", "use =").replace("{n}00", "{m}00"))
    failure = fail("study", "run", file)
    assert failure.code == "config.several"
    assert [one["code"] for one in failure.mistakes] == ["config.unknown-key", "config", "config.unknown-key"]
    assert all(text in failure.what for text in ("repeat", "repeats", "use", "uses", "{m}"))
    file.write_text(FILE.replace("n = [1]", "n = [1]\ncap = [100]\n").replace('uses = "cpu"', ""))
    planned = json.loads(call("study", "plan", file, "--json", code=2).stdout)
    assert planned["error"]["code"] == "config.several"
    assert "study.toml:9: knob cap on all: " in planned["error"]["what"]
    assert [slot["state"] for slot in planned["slots"]] == ["free"] * 3
    text = call("study", "plan", file, code=2)
    assert planned["error"]["what"].replace("; joulelab meters", "\n-> joulelab meters") in text.stderr
    assert "3 of 3 slots to run" in text.stdout
    for line, name in (('scope = "node.ac"', "'node.ac'"), ('meters = ["nvml"]', "nvml")):
        file.write_text(f"{line}\n{FILE}")
        failure = fail("study", "run", file)
        assert failure.kind == "config"
        assert name in failure.what
    assert not (file.parent / "joulelab-studies").exists()
    failure = fail("study", "status", file, code=1)
    assert failure.code == "store.not-run-yet"
    assert "joulelab study run " in str(failure.next)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[TwinServer]:
    try:
        nvml.build_library()
    except MissingDependency as error:
        pytest.skip(str(error))
    with TwinServer(Node(gpus=(RTX6000,) * 2, packages=1), directory=tmp_path) as server:
        yield server


def test_gpus_that_the_workload_is_not_shown_are_metered_as_idle(served: TwinServer, tmp_path: Path) -> None:
    environ = environment(tmp_path, served.environment)
    file = tmp_path / "mix.toml"
    file.write_text(
        'repeats = 1\nmeters = ["nvml"]\n[workloads.w]\n'
        'command = ["sh", "-c", "echo shown: $CUDA_VISIBLE_DEVICES; sleep 0.2"]\n'
        '[nodes.gpu]\n[nodes.cpu-mix]\nuses = "cpu"\nenvironment = { MINE = "1" }\n'
    )
    study(file, environ, "run", "--no-figures")
    rows = list(csv.DictReader((tmp_path / "joulelab-studies" / "mix" / "slots.csv").read_text().splitlines()))
    by_node = {row["node"]: row for row in rows}
    assert by_node["cpu-mix"]["idle"] == "gpu:0 gpu:1"
    assert float(by_node["cpu-mix"]["idle_energy_j"]) == pytest.approx(float(by_node["cpu-mix"]["energy_j"]))
    shown = {
        json.loads((path.parent / "slot.json").read_text())["node_type"]: path.read_text()
        for path in tmp_path.glob("joulelab-studies/mix/cells/*/r01/out.txt")
    }
    assert shown["cpu-mix"] == "shown: -1\n"
    assert "-1" not in shown["gpu"]
