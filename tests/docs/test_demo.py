"""Hold the demo to what it promises: each part shows what it says, failures are told, Ctrl-C leaves nothing behind."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "examples" / "demo.py"
REDIRECTION = " \\\n    > "  # before the file of an output that is too long to read


def load() -> Any:
    """Return the demo as a module."""
    spec = importlib.util.spec_from_file_location("demo", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["demo"] = module
    spec.loader.exec_module(module)
    return module


demo = load()


@dataclass
class Place:
    """A folder of its own, and a mark in the environment of all that is started there."""

    folder: Path
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def environment(self) -> dict[str, str]:
        clean = dict(os.environ)
        return clean | {"TMPDIR": str(self.folder), "DEMO_MARK": self.mark, "NO_COLOR": "1", "TERM": "dumb"}

    def start(self, *words: str, columns: int = 100, **streams: Any) -> subprocess.Popen[str]:
        words = (sys.executable, str(SCRIPT), "--results", str(self.folder / "results"), *words)
        pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True} | streams
        environ = self.environment | {"COLUMNS": str(columns)}
        return subprocess.Popen(words, env=environ, start_new_session=True, **pipes)

    def left(self) -> list[str]:
        """Return what is still there: processes, and folders of twins."""
        return [*map(str, self.folder.glob("joulelab-twin-*")), *map(str, self.processes())]

    def processes(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get("DEMO_MARK") == self.mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def is_left_clean(self) -> bool:
        until(lambda: not self.left(), "nothing left")
        return True


@pytest.fixture
def place() -> Iterator[Place]:
    # Sockets lie in there: their paths must be short.
    folder = Path(tempfile.mkdtemp(prefix="jd-"))
    place = Place(folder)
    yield place
    for process in place.processes():  # of a test that failed
        with contextlib.suppress(psutil.Error):
            process.kill()
    shutil.rmtree(folder, ignore_errors=True)


def is_wide(text: str, columns: int = 100) -> list[str]:
    return [line for line in text.splitlines() if len(line) > columns and "joulelab: " not in line]


def check_measured(text: str, here: Any) -> None:
    labels = ["cpu (2)", "memory (2)", "node (wall)", *(["gpu (8)"] if here.nvml else [])]
    for label in labels:
        assert re.search(rf"^{re.escape(label)} +([\d.]+ ± [\d.]+|too short) ", text, re.MULTILINE), label
    assert "covers     the whole node at the wall" in text
    assert re.search(r"^answer +The simulated job used [\d.]+ ± [\d.]+ kJ", text, re.MULTILINE)


@pytest.mark.system
def test_a_load_is_measured_by_all_meters_of_the_node_in_one_table(place: Place) -> None:
    ran = place.start("measure", "--load", "1")
    text, _ = ran.communicate(timeout=300)
    assert ran.returncode == 0, text
    check_measured(text, demo.Machine.examine())
    results = place.folder / "results" / "1"
    run = next((results / "runs").iterdir())
    assert f"joulelab show {run} --all" in text
    assert "simulated" in text
    assert not is_wide(text.replace(str(results), "joulelab-demo/1"))
    assert place.is_left_clean(), place.left()


@pytest.mark.system
@pytest.mark.skipif(not demo.Machine.examine().nvml, reason="no C compiler: apt install gcc libc6-dev")
def test_ctrl_c_in_the_middle_leaves_nothing_behind(place: Place) -> None:
    ran = place.start("sweep", "reproduce")
    results = place.folder / "results" / "1"
    try:
        until(lambda: list(results.glob("caps/cells/*/*/*/*/marks/*")), "a job of the sweep")
        assert len(place.left()) > 5  # the twin, the sweep, a slot's recorder and job, and the demo itself
    finally:
        ran.send_signal(signal.SIGINT)  # to the demo alone, as a supervisor would
    text, _ = ran.communicate(timeout=300)
    assert ran.returncode == 130, text
    assert "ended     by SIGINT in part 1" in text
    assert "2 of 2" not in text
    assert place.is_left_clean(), place.left()


@pytest.mark.campaign
@pytest.mark.timeout(600)
def test_the_whole_demo_with_every_part(place: Place) -> None:
    ran = place.start()
    text, _ = ran.communicate(timeout=580)
    assert ran.returncode == 0, text
    here = demo.Machine.examine()
    check_measured(text, here)
    if here.nvml:
        assert re.search(r"^answer +A cap of \d+ W per GPU saves [\d.]+ ± [\d.]+ % of the energy", text, re.MULTILINE)
        assert re.search(r"^ +260\* +\d", text, re.MULTILINE)
    assert "too short" not in text
    assert re.search(r"^answer +Yes for \d+ of \d+ measured figures", text, re.MULTILINE)
    count = 3 if here.nvml else 2
    labels = [len(re.findall(rf"^{label:<10}\S", text, re.MULTILINE)) for label in ("question", "answer", "next")]
    assert labels == [3, count, count + 1]
    assert not is_wide(text.replace(str(place.folder / "results" / "1"), "joulelab-demo/1"))
    assert place.is_left_clean(), place.left()


def parts_of(*programs: str) -> list[Any]:
    return [demo.Part(f"part{k}", "a title", (program,)) for k, program in enumerate(programs)]


@pytest.mark.system
def test_a_part_that_fails_is_told_and_the_others_go_on(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    chosen = parts_of("sh -c 'exit 3'", "no-such-program", "echo still here")
    chosen.insert(1, demo.Part("without", "a title", ("echo never",), missing="there is no compiler"))
    assert demo.show_parts(chosen, demo.PartRunner(), os.environ, str(tmp_path)) == 1
    text = capfd.readouterr().out
    assert "failed    part0: exit code 3" in text
    assert "left out  there is no compiler" in text
    assert "\nnever" not in text
    assert "failed    part1: no-such-program: No such file or directory" in text
    assert "\nstill here" in text
    assert text.index("still here") < text.index("simulated") < text.rindex("failed    part0")
    assert demo.show_parts(parts_of("true"), demo.PartRunner(), os.environ, str(tmp_path)) == 0


@pytest.mark.system
def test_what_is_to_be_tried_instead_is_tried(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    less = demo.Part("less", "a title", ("echo with less",))
    asked: list[str] = []
    more = demo.Part("more", "a title", ("false",), find_substitute=lambda why: asked.append(why) or less)
    assert demo.show_parts([more], demo.PartRunner(), os.environ, str(tmp_path)) == 0
    text = capfd.readouterr().out
    assert asked == ["exit code 1"]
    assert "failed    more: exit code 1; again without it" in text
    assert "\nwith less" in text
    none = demo.Part("none", "a title", ("false",), find_substitute=lambda _: None)
    assert demo.show_parts([none], demo.PartRunner(), os.environ, str(tmp_path)) == 1


@pytest.mark.system
def test_a_server_that_does_not_start_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pymodbus.py").write_text("raise ImportError('libgone.so: cannot open shared object file')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    lacking = demo.find_missing_servers(demo.Machine(servers=["redfish", "modbus"]))
    assert lacking == {"modbus": "it did not start (ImportError: libgone.so: cannot open shared object file)"}


def test_a_server_that_does_not_start_is_left_out(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "find_missing_servers", lambda _: {"analyzer": "it did not start"})
    every = demo.list_parts(demo.Machine(servers=["analyzer"]), "out")[0]
    assert "--meter rapl --meter analyzer -- python" in " ".join(every.words)
    assert every.find_substitute("exit code 1") is None  # what was measured failed by itself
    less = every.find_substitute(demo.NO_SUCH_METER)
    assert capfd.readouterr().out.split() == ["without", "analyzer:", "it", "did", "not", "start"]
    assert "--meter rapl -- python" in " ".join(less.words)
    assert less.find_substitute is None


@pytest.mark.system
def test_a_meter_that_is_not_there_ends_a_run_as_the_demo_expects(place: Place) -> None:
    part = demo.Part("run", "a title", (f"joulelab run --runs {place.folder} --meter gone", "true"))
    assert demo.PartRunner().run_part(part, place.environment | demo.make_environment()) == demo.NO_SUCH_METER


@pytest.mark.system
def test_a_part_that_hangs_is_ended_with_all_it_started(place: Place) -> None:
    part = demo.Part("hangs", "a title", ("sh -c 'sleep 900 & wait'",))
    assert "did not end" in demo.PartRunner().run_part(part, place.environment, limit_s=0.3)
    assert place.is_left_clean(), place.left()


def test_a_signal_before_a_part_starts_none(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    shown = demo.PartRunner()
    shown.take_signal(signal.SIGTERM, None)
    assert demo.show_parts(parts_of("echo began"), shown, os.environ, str(tmp_path)) == 143
    assert "\nbegan" not in capfd.readouterr().out


def test_without_a_compiler_or_libraries_the_rest_is_shown() -> None:
    measure, sweep, reproduce = demo.list_parts(demo.Machine(nvml=False, servers=["analyzer"]), "out")
    assert "--serve analyzer" in measure.typed
    assert "--meter rapl --meter analyzer" in " ".join(measure.words)
    assert "nvml" not in measure.typed
    assert "C compiler" in sweep.missing
    assert measure.missing is reproduce.missing is None
    bare = demo.list_parts(demo.Machine(nvml=False), "out")[0]
    assert "--serve" not in bare.typed


@pytest.mark.system
def test_commands_can_be_typed_as_they_are_shown() -> None:
    for part in demo.list_parts(demo.Machine(servers=list(demo.SERVERS)), "joulelab-demo/12"):
        assert part.typed.startswith("$ joulelab ")
        assert not is_wide(part.typed)
        typed = subprocess.run(
            ["sh", "-c", f"set -- {part.typed[2:].partition(REDIRECTION)[0]}; printf '%s\\n' \"$@\""],
            capture_output=True,
            text=True,
            check=True,
        )
        assert typed.stdout.split("\n")[:-1] == part.words


@pytest.mark.system
def test_a_folder_that_cannot_be_written_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "results").write_text("no folder")
    ran = Place(tmp_path).start("measure")
    text, _ = ran.communicate(timeout=300)
    assert ran.returncode == 2
    assert text == f"demo: no folder for results in {tmp_path}/results (Not a directory); choose --results\n"


@pytest.mark.system
def test_nothing_runs_on_once_nobody_reads(place: Place) -> None:
    ran = place.start("reproduce", stderr=subprocess.PIPE)
    assert ran.stdout is not None
    assert ran.stderr is not None
    while "$ joulelab reproduce" not in ran.stdout.readline():
        pass
    until(lambda: len(place.processes()) > 1)
    ran.stdout.close()
    with ran.stderr:
        said = ran.stderr.read()
    assert ran.wait(120) == 128 + signal.SIGPIPE
    assert said.endswith("demo: ended, with all that was started: nobody reads its output\n")
    assert "Traceback" not in said
    assert place.is_left_clean(), place.left()


@pytest.mark.parametrize(("columns", "used"), [(200, 100), (80, 80), (20, 60)])
def test_lines_are_as_wide_as_the_terminal(
    columns: int, used: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    demo.print_rule("a title")
    assert len(capsys.readouterr().out.strip()) == used
    assert demo.make_environment()["COLUMNS"] == str(used)
    typed = "\n".join(
        part.typed for part in demo.list_parts(demo.Machine(servers=list(demo.SERVERS)), "joulelab-demo/1")
    )
    assert not is_wide(typed, used)
    assert used == 100 or is_wide(typed, used // 2)
    demo.print_labelled("label", "word " * 60)
    assert not is_wide(capsys.readouterr().out, used)


@pytest.mark.parametrize(("load", "told"), [(1e6, True), (0.0, False)])
def test_a_busy_machine_is_told(
    load: float, told: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr(sys, "argv", ["demo.py", "--results", str(tmp_path)])
    monkeypatch.setattr(demo, "show_parts", lambda *_: 0)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    assert demo.main() == 0
    assert ("this machine is busy" in capsys.readouterr().out) is told


@pytest.mark.system  # pure, and slow
def test_what_a_run_says_comes_next_can_be_typed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from click.testing import CliRunner

    from joulelab.cli.show import command

    monkeypatch.delenv("JOULELAB_RUNS", raising=False)
    kept = next(path for path in (ROOT / "examples" / "runs").iterdir() if (path / "run.json").exists())
    store = tmp_path / "joulelab-runs"
    elsewhere = tmp_path / "my runs" / kept.name
    shutil.copytree(kept, elsewhere)
    shutil.copytree(kept, store / kept.name)
    monkeypatch.chdir(tmp_path)
    by_path = f"joulelab show 'my runs/{kept.name}' --all"
    for given, expected in (
        (f"my runs/{kept.name}", by_path),
        (f"joulelab-runs/{kept.name}", f"joulelab show {kept.name} --all"),
        (kept.name, f"joulelab show {kept.name} --all"),
    ):
        shown = CliRunner().invoke(command, [given])
        assert expected in shown.output
        typed = re.search(r"^more +joulelab show (.*?)(?: +#.*)?$", shown.output, re.MULTILINE)
        assert typed is not None
        again = CliRunner().invoke(command, typed[1])
        assert re.search(r"^gpu:0\S* +by nvml", again.output, re.MULTILINE)


def test_each_demo_has_a_folder_of_its_own(tmp_path: Path) -> None:
    assert demo.make_results_folder(tmp_path / "a") == str(tmp_path / "a" / "1")
    assert demo.make_results_folder(tmp_path / "a") == str(tmp_path / "a" / "2")


def test_make_demo_installs_what_its_servers_need() -> None:
    import tomllib

    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = re.search(r"\[(.+)\]", extras["demo"][0])
    assert named is not None
    needed = " ".join(word for extra in named[1].split(",") for word in extras[extra])
    assert all(library.replace("_", "-") in needed for library, _ in demo.SERVERS.values())
    assert "matplotlib" in needed
