from __future__ import annotations

import importlib.util
import json
import math
import re
import resource
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import pytest
from tests.report.synthetic import make_run
from tests.rows import every_row

from joulelab.cli import main
from joulelab.cli.group import APPS, COMMANDS, SECTIONS, commands, run_commands
from joulelab.cli.output import print_json
from joulelab.core.errors import ConfigError, RecorderError
from joulelab.core.version import __version__
from joulelab.plan.commands import COMMANDS as PLANS
from joulelab.plan.commands import command as plan
from joulelab.run.child_process import ChildProcess
from joulelab.run.notebook import OPTIONS as NOTEBOOK_OPTIONS

if TYPE_CHECKING:
    from tests.cli.conftest import Call

SCRIPT = [sys.executable, "-c", "from joulelab.cli import main; main()"]


def test_a_closed_stdout_is_no_defect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)  # what Python makes of >&-
    monkeypatch.setattr(sys, "stderr", None)
    assert run_commands(["site", "--list", "germany"]) == 0
    sys.stdout.close()
    sys.stderr.close()


def cpu_s(*command: str) -> float:
    """Return the least CPU time of several starts: the others were disturbed."""
    best = 9.0
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        best = min(best, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return best


@pytest.mark.parametrize(("words", "code"), [(["ls"], 1), (["run", "--", "true"], 125)])
def test_an_exception_that_nothing_expects_is_a_defect(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], code: int
) -> None:
    monkeypatch.setattr("joulelab.control.leftovers.restore_at_start", lambda *_: {}["no"])
    assert run_commands([words[0], "--json", *words[1:]]) == code
    out, err = capsys.readouterr()
    assert json.loads(out)["error"]["code"] == "defect"
    assert "Traceback" in err


@pytest.mark.campaign  # test_nothing_heavy_is_imported is why
def test_help_and_import_are_quick() -> None:
    """Against what any Python needs to start: a busy machine is slow in both."""
    bare = cpu_s(sys.executable, "-c", "pass")
    assert cpu_s(*SCRIPT, "--help") < 6 * bare + 0.1
    assert cpu_s(sys.executable, "-c", "import joulelab") < 2 * bare + 0.05


@pytest.mark.system
@pytest.mark.parametrize("words", [["--help"], ["mark", "--help"], ["mark", "x"], ["run", "--help"]])
def test_nothing_heavy_is_imported(words: list[str]) -> None:
    heavy = "{'numpy', 'duckdb', 'rich', 'msgspec', 'psutil', 'pynvml', 'importlib.metadata'} & set(sys.modules)"
    code = f"import sys\nfrom joulelab.cli import main\ntry: main({words!r})\nexcept SystemExit: print({heavy})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("run", "--pause TIME waits between cells, --out FILE writes a copy with outputs, --kernel NAME"),
        ("tune", "Name the study, or with --online the run."),
        ("tune", "[default: below half of the caps, a quarter of the pairs; with --online 10]"),
        ("tune", r"'tokens: (\d+)'; the group is the number, the last match counts."),
        ("sweep", r"'tokens: (\d+)'; the group is the number, the last match counts."),
        ("watch", "Save the measurement of this node as a run (otherwise it is deleted)."),
        ("doctor", "Test all meters that a run would read, and show how to fix problems."),
        ("show", "Show what each uncertainty is made of."),
        ("show", "Show all phases, with the energy of each kind of device."),
        ("show", "Show whole devices (main), or their parts too (all)."),
        ("study run", "Run everything that is not done yet, then print the results."),
        ("study run", "Run on this simulated node instead of real ones"),
        ("cap", "Limit the clocks of the GPUs; use it if a GPU refuses power caps."),
        ("cap", "WATTS, or PERCENT of the default cap, applies to each GPU."),
        ("ls", "outcome"),
    ],
)
def test_the_help_says_what_an_option_does(words: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_commands([*words.split(), "--help"]) == 0
    assert said in " ".join(capsys.readouterr().out.split())


def test_the_help_of_run_names_every_option_of_a_notebook(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_commands(["run", "--help"]) == 0
    text = capsys.readouterr().out
    assert [option for option in NOTEBOOK_OPTIONS if option not in text] == []


def test_messages_are_about_results() -> None:
    assert "messages" in SECTIONS["Results"]


@every_row("name", COMMANDS)
def test_the_table_of_help_texts_is_that_of_the_commands(name: str) -> None:
    context = click.Context(commands)
    found = commands.get_command(context, name)
    assert found is not None
    assert (found.help or "").split("\n\n")[0].replace("\n", " ") == COMMANDS[name].replace("\n", " ")
    for each in inner(found):
        assert "--json" in {option for parameter in each.params for option in parameter.opts}


def inner(command: click.Command) -> list[click.Command]:
    """Return the commands of a group, and of groups in it."""
    if not isinstance(command, click.Group):
        return [command]
    context = click.Context(command)
    found = [command.get_command(context, name) for name in command.list_commands(context)]
    assert found
    return [one for each in found if each is not None for one in inner(each)]


@every_row("name", PLANS)
def test_the_table_of_plans_is_that_of_the_commands(name: str) -> None:
    found = plan.get_command(click.Context(plan), name)
    assert found is not None
    assert (found.help or "").split("\n\n")[0].replace("\n", " ") == PLANS[name]


def test_every_module_of_a_command_is_listed() -> None:
    folder = Path(sys.modules["joulelab.cli"].__file__ or "").parent
    texts = {p.stem: p.read_text() for p in folder.glob("*.py")}
    for name, module in APPS.items():
        spec = importlib.util.find_spec(module)
        texts[name] = Path(spec.origin).read_text() if spec and spec.origin else ""
    defines = {name for name, text in texts.items() if re.search(r'^@click.(command|group)\(\s*"', text, re.MULTILINE)}
    assert defines == set(COMMANDS)


def test_help_lists_the_commands(call: Call) -> None:
    text = call("--help").output
    assert all(name in text for name in COMMANDS)
    assert call("--version").output == f"joulelab {__version__}\n"


def test_a_wrong_command_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["shwo"])
    assert ended.value.code == 2
    assert "`joulelab show`" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["zzz"])
    assert ", ".join(COMMANDS) in capsys.readouterr().err


@pytest.fixture
def no_recorder(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError("a quick test starts no process")

    monkeypatch.setattr("joulelab.run.child_process.start_recorder", refuse)


@pytest.mark.parametrize(
    ("words", "code"), [(["--format", "json"], "config.no-such-file"), (["--jsn", "--format=json"], "usage")]
)
def test_an_error_is_json_where_the_format_of_the_output_is(words: list[str], code: str, capsys: Any) -> None:
    assert run_commands(["study", "report", "none.toml", *words]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == code
    assert run_commands(["study", "report", "none.toml", "--format", "csv"]) == 2
    assert capsys.readouterr().out == ""


@pytest.mark.usefixtures("no_recorder")
@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [
        (["show", "nothere", "--json"], 1, {"code": "not-a-run.unknown", "next": "joulelab ls"}),
        (["show", "--runs", "none", "--json"], 1, {"code": "not-a-run.none-yet", "next": "joulelab run -- COMMAND"}),
        (["query", "selct", "--json"], 2, {"code": "config.query-syntax"}),
        (["compare", "last", "last", "--json"], 2, {"code": "usage.same-run", "where": "joulelab compare"}),
        (["ls", "more", "--json"], 2, {"code": "usage", "next": "joulelab ls --help"}),
        (["ls", "--jsn", "--json"], 2, {"code": "usage"}),
        (["twin", "--node", "nowhere", "--json"], 2, {"code": "config"}),
        (["export", "last", "-o", "-", "--json"], 2, {"code": "usage.several-files"}),
        (["shwo", "--json"], 2, {"code": "usage.no-such-command", "where": "joulelab"}),
        (["run", "--json"], 125, {"code": "usage.no-command"}),
        (["run", "--json", "--meter", "nvlm", "--", "true"], 125, {"code": "config.unknown-meter"}),
        (["run", "--json", "--idle", "3x", "--", "true"], 125, {"code": "usage"}),
        (["run", "--json", "--rated-cpu", "65", "--", "true"], 125, {"code": "usage.needs-estimate"}),
        (["sweep", "--json", "--repeat-max", "9", "--", "true"], 2, {"code": "usage.needs-until"}),
        (["run", "--json", "--period", "1us", "--", "true"], 125, {"code": "usage.period"}),
    ],
)
def test_an_error_is_json_on_request_and_a_sentence_beside_it(
    words: list[str], code: int, expected: dict[str, str], runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    make_run(runs, gpus=0)
    monkeypatch.setenv("JOULELAB_RUNS", str(runs))
    assert run_commands(words) == code
    out, err = capsys.readouterr()
    error = json.loads(out)["error"]
    assert list(error) == ["code", "what", "where", "why", "next"]
    assert error.items() >= expected.items()
    assert err.startswith("joulelab: ")
    assert len(err.splitlines()) == (2 if str(error["next"]).startswith("joulelab ") and "\n-> " in err else 1)
    assert error["what"] in err
    assert run_commands([word for word in words if word != "--json"]) == code
    assert capsys.readouterr().out == ""


@pytest.mark.usefixtures("no_recorder")
def test_the_json_option_of_a_workload_is_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_commands(["run", "--meter", "nvlm", "--", "true", "--json"]) == 125
    assert run_commands(["run", "--meter", "nvlm", "true", "--json"]) == 125
    assert capsys.readouterr().out == ""


@pytest.mark.usefixtures("no_recorder")
def test_own_failures_of_run_are_125(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RecorderError("no recorder", why="no Python")

    monkeypatch.setattr("joulelab.run.run_command.run_command", fail)
    assert run_commands(["run", "--", "true"]) == 125
    assert capsys.readouterr().err == f"joulelab: {RecorderError('no recorder', why='no Python')}\n"


@pytest.mark.system
def test_a_recorder_that_is_not_needed_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    started = []

    class Watched(ChildProcess):
        def __init__(self, *command: Any, **options: Any) -> None:
            super().__init__(*command, **options)
            started.append(self.pid)

    monkeypatch.setattr("joulelab.run.child_process.ChildProcess", Watched)
    with pytest.raises(SystemExit):
        main(["run", "--meter", "no-such-meter", "--", "true"])
    assert len(started) == 1
    assert not Path(f"/proc/{started[0]}").exists()
    for words in (["run", "--no-such-option", "--", "true"], ["run", "--help"], ["run"], ["ls", "--help"]):
        with pytest.raises(SystemExit):
            main(words)
    assert len(started) == 1


def test_bad_input_is_2(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ConfigError("wrong")

    monkeypatch.setattr("joulelab.store.run_folder.list_runs", fail)
    with pytest.raises(SystemExit) as ended:
        main(["ls"])
    assert ended.value.code == 2


@pytest.mark.system
def test_a_reader_that_leaves_is_no_fault(runs: Path) -> None:
    for _ in range(3):
        make_run(runs, gpus=0, cpus=0)
    command = f"{' '.join(SCRIPT[:1])} -c 'from joulelab.cli import main; main()' ls --json --runs {runs} | true"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True)
    assert done.returncode in (0, 141)  # 0 where the pipe took everything before its reader left
    assert done.stderr == ""


def test_without_words_the_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 2
    shown = capsys.readouterr()
    assert "Examples:" in shown.out + shown.err


def test_an_interrupt_is_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("joulelab.store.run_folder.list_runs", interrupt)
    with pytest.raises(SystemExit) as ended:
        main(["ls"])
    assert ended.value.code == 130


def test_an_interrupt_while_it_loads_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted:
        def find_spec(self, name: str, *_: object) -> None:
            if name == "joulelab.cli.group":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "joulelab.cli.group", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Interrupted(), *sys.meta_path])
    with pytest.raises(SystemExit) as left:
        main(["ls"])
    assert left.value.code == 130


def test_json_is_printed_whole_or_not_at_all(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="JSON"):
        print_json({"good": 1, "bad": math.nan})
    assert capsys.readouterr().out == ""
    print_json({"good": 1})
    assert capsys.readouterr().out == '{\n "good": 1\n}\n'
