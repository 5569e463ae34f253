"""Files are found and merged in order; what is wrong is told with its place and the nearest right name."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from tests.run.config.conftest import INSTRUMENT, Places

from joulelab.run.config.config_files import explain_distrust, find_project_file

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ENTRY = '[meters.pdu1]\nmeter = "INSTRUMENT"\naddress = "low"\nwatts = 7\n'


def test_later_files_win_key_by_key(places: Places) -> None:
    places.write("system", ENTRY + "[run]\nperiod_s = 1\ntail_s = 2\n")
    places.write("user", '[meters.pdu1]\naddress = "user"\n[run]\nperiod_s = 0.5\n')
    places.write("project", '[meters.pdu1]\naddress = "project"\nfeeds = "rack"\n')
    places.write("named", '[meters.pdu1]\naddress = "named"\n')
    config = places.load()
    config.check()
    (entry,) = config.entries
    assert entry.settings == {"address": "named", "watts": 7, "feeds": "rack"}
    assert (entry.name, entry.meter, entry.feeds) == ("pdu1", INSTRUMENT, "rack")
    assert str(entry.source) == f"{places.system}:1"
    assert str(entry.sources["address"]) == f"{places.named}:2"
    assert config.run == {"period_s": 0.5, "tail_s": 2.0}
    assert config.files == [places.system, places.user, places.project, places.named]


def test_an_option_takes_the_place_of_the_variable(places: Places, tmp_path: Path) -> None:
    places.write("named", ENTRY)
    other = tmp_path / "other.toml"
    other.write_text(ENTRY.replace("INSTRUMENT", INSTRUMENT).replace("pdu1", "pdu2"))
    assert [e.name for e in places.load(named=other).entries] == ["pdu2"]


def test_the_same_file_is_read_once(places: Places) -> None:
    places.write("project", ENTRY)
    places.environ["JOULELAB_CONFIG"] = str(places.project)
    assert places.load().files == [places.project]


@pytest.mark.system
def test_without_files_nothing_is_loaded(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom joulelab.run.config.configuration import load_config\nfrom pathlib import Path\n"
        f"c = load_config({{'XDG_CONFIG_HOME': '{tmp_path}', 'JOULELAB_ETC': '/no'}}, 'h', cwd='{tmp_path}')\n"
        "assert not c.files and not c.entries\n"
        "print(sorted({'tomllib', 'difflib', 'joulelab.run.config.meter_entries', 'keyring'} & set(sys.modules)))"
    )
    bare = {k: v for k, v in os.environ.items() if not k.startswith("COV")}  # coverage reads a TOML file itself
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=bare)
    assert done.stdout.strip() == "[]", done.stderr


def test_a_file_that_was_named_has_to_be_there(places: Places) -> None:
    places.environ["JOULELAB_CONFIG"] = str(places.named)
    (problem,) = places.load().problems
    assert str(places.named) in str(problem)
    assert "there is no such configuration file" in str(problem)


def test_entries_are_switched_off_and_on(places: Places) -> None:
    places.write("system", ENTRY + ENTRY.replace("pdu1", "pdu2"))
    places.write(
        "user", "[meters.pdu1]\nenabled = false\n[meters.pdu2]\nenabled = false\n[meters.rapl]\nenabled = false\n"
    )
    places.write("project", "[meters.pdu2]\nenabled = true\n")
    config = places.load()
    config.check()
    assert [e.name for e in config.entries] == ["pdu2"]
    assert config.off == ["rapl"]


@pytest.mark.parametrize(
    ("pattern", "applies"),
    [
        ('"node07"', True),
        ('"node07.cluster"', True),
        ('"node0[1-7]"', True),
        ('"NODE07"', True),
        ('"node08"', False),
        ('"*.other"', False),
        ('["a", "node*"]', True),
        ("[]", False),
    ],
)
def test_an_entry_is_for_some_hosts(places: Places, pattern: str, applies: bool) -> None:
    places.write("project", ENTRY + f"node = {pattern}\n")
    config = places.load()
    config.check()
    assert bool(config.entries) is applies


def test_an_entry_for_another_host_need_not_work_here(places: Places) -> None:
    places.write("project", '[meters.x]\nmeter = "not_installed_here"\nnode = "other"\n')
    places.load().check()


def test_a_usual_meter_is_set_up_by_its_name(places: Places) -> None:
    places.write("project", "[meters.rapl]\nperiod_s = 0.5\n")
    config = places.load()
    config.check()
    (entry,) = config.entries
    assert (entry.meter, entry.usual, entry.settings, entry.feeds) == ("rapl", True, {"period_s": 0.5}, "")


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("[meter.pdu1]\n", 1, "did you mean 'meters'?"),
        ("\n[run]\nperiod = 1\n", 3, "did you mean 'period_s'?"),
        ("[run]\nidle_s = -1\n", 2, "give a number of seconds"),
        ("[run]\nperiod_s = 0\n", 2, "0.001 or more"),
        ("[run]\ntail_s = true\n", 2, "give a number of seconds"),
        (ENTRY + 'adress = "x"\n', 5, "did you mean 'address'?"),
        (ENTRY + 'label = "x"\n', 5, "unknown key 'label'"),
        (ENTRY + 'enabled = "no"\n', 5, "give true or false"),
        (ENTRY + "node = 7\n", 5, "give a host's name or a pattern"),
        ('# a\n\n[meters.x]\nmeter = "rapll"\n', 4, "did you mean 'rapl'?"),
        ('[meters.x]\nmetr = "rapl"\n', 1, "did you mean 'meter' instead of 'metr'?"),
        ('[meters.x]\naddress = "y"\n', 1, "entry x has no key 'meter'"),
        ("[meters.x]\nmeter = 3\n", 2, "meter is 3; give a name"),
        ('[meters.rapl]\nmeter = "host"\n', 1, "is the name of a built-in meter"),
        ('[meters."a b"]\nmeter = "rapl"\n', 1, "cannot be the name of an entry"),
        ('[meters.x]\nmeter = "gone.py"\n', 2, "there is no such file"),
        ('[meters.x]\nmeter = "json"\n', 2, "there is no meter 'json'"),
        ('[meters.x]\nmeter = "json.decoder"\n', 2, "it has neither open_meter"),
        ('[meters.x]\nmeter = "no.such"\n', 2, "cannot be loaded"),
        ("a = \n", 1, "Invalid value, at character 5"),
        ("meters = 3\n", 1, "meters is 3; write it as a table: [meters]"),
        ("[meters]\nx = 3\n", 2, "x is 3; write it as a table: [meters.x]"),
        ("rated_w = 3\n", 1, "unknown key 'rated_w' in the file; it belongs to [node]"),
        ("[run]\nrated_w = 3\n", 2, "unknown key 'rated_w' in [run]; it belongs to [node]"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(places: Places, text: str, line: int | None, said: str) -> None:
    path = places.write("project", text)
    (problem,) = places.load().problems
    where = f"{path}:{line}" if line else str(path)
    assert str(problem).startswith(f"{where}: ")
    assert said in str(problem)


@pytest.mark.parametrize("text", ["raise SystemExit(3)", "no python", "import no_such_module"])
def test_a_meter_file_that_cannot_be_loaded_costs_its_meter_only(places: Places, text: str) -> None:
    (places.project.parent / "mine.py").write_text(text)
    places.write("project", ENTRY + '[meters.mine]\nmeter = "mine.py"\n')
    config = places.load()
    assert [e.name for e in config.entries] == ["pdu1"]
    (problem,) = config.lost["mine"]
    assert problem.next == "correct its module, or write enabled = false"


def test_all_mistakes_of_an_entry_are_told_at_once(places: Places) -> None:
    """A run that is started again after each corrected key would cost an afternoon."""
    path = places.write("user", ENTRY + "adress = 1\ncord = 3\n")
    places.write("project", "[meters.pdu1]\nnode = 7\nwats = 8\n[run]\nidle = 1\ntail_s = 'x'\n")
    config = places.load()
    assert [(str(p).partition(": ")[0], p.code) for p in config.problems] == [
        (f"{places.project}:5", "config.unknown-key"),
        (f"{places.project}:6", "config.wrong-value"),
        (f"{places.project}:2", "config.wrong-value"),
        (f"{places.project}:3", "config.unknown-key"),
        (f"{path}:5", "config.unknown-key"),
        (f"{path}:6", "config.wrong-value"),
    ]
    assert config.lost == {"pdu1": config.problems[2:]}


def test_what_is_right_is_kept_beside_what_is_wrong(places: Places) -> None:
    places.write("user", "a = ")
    places.write("project", ENTRY + '[meters.pdu2]\nmeter = "INSTRUMENT"\nadress = "x"\n')
    config = places.load()
    assert [e.name for e in config.entries] == ["pdu1"]
    assert len(config.problems) == 2


def test_a_broken_module_is_a_problem_of_its_entry(places: Places) -> None:
    (places.project.parent / "bad.py").write_text("1 / 0\n")
    places.write("project", '[meters.x]\nmeter = "bad.py"\n')
    (problem,) = places.load().problems
    assert "ZeroDivisionError" in str(problem)


def test_a_file_that_is_not_utf8(places: Places) -> None:
    places.project.write_bytes(b'[meters.x]\nmeter = "\xff"\n')
    (problem,) = places.load().problems
    assert "UTF-8" in str(problem)


@pytest.mark.parametrize("place", ["system", "user", "project", "named"])
@pytest.mark.parametrize(
    ("make", "said"),
    [
        (os.mkfifo, "cannot read the configuration file (it is a FIFO, not a regular file)"),
        (os.mkdir, "cannot read the configuration file (it is a folder, not a regular file)"),
        (lambda path: path.symlink_to("gone"), "there is no such configuration file (it is a link to nothing)"),
    ],
)
def test_only_regular_files_are_read(places: Places, place: str, make: Callable[[Path], None], said: str) -> None:
    """A FIFO would be waited for; nothing else that has the name of a configuration is ignored without a word."""
    path: Path = getattr(places, place)
    make(path)
    if place == "named":
        places.environ["JOULELAB_CONFIG"] = str(path)
    config = places.load()
    ((file, problem),) = config.unread.items()
    assert (file, config.problems) == (path, [problem])
    assert str(problem).startswith(f"{path}: {said}; ")


def test_a_file_that_others_may_write_is_used_only_if_it_is_named(places: Places) -> None:
    places.write("project", ENTRY)
    places.project.chmod(0o666)
    config = places.load()
    assert config.entries == []
    assert "every user may write it" in config.warnings[0]
    assert f"JOULELAB_CONFIG={places.project}" in config.warnings[0]
    places.environ["JOULELAB_CONFIG"] = str(places.project)
    assert [e.name for e in places.load().entries] == ["pdu1"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_file_of_another_user_is_not_trusted(places: Places) -> None:
    places.write("project", ENTRY)
    os.chown(places.project, 12345, 12345)
    assert "belongs to another user" in (explain_distrust(places.project, {}) or "")
    assert explain_distrust(places.project, {"SUDO_UID": "12345"}) is None


def test_the_nearest_project_file_counts(places: Places, tmp_path: Path) -> None:
    places.write("project", ENTRY)
    assert find_project_file(str(places.cwd)) == places.project
    near = places.cwd / "joulelab.toml"
    near.write_text("")
    assert find_project_file(str(places.cwd)) == near


def test_cords_are_counted_over_entries_of_one_scope(places: Places) -> None:
    def entry(name: str, more: str) -> str:
        return f'[meters.{name}]\nmeter = "INSTRUMENT"\naddress = "{name}"\n{more}\n'

    text = (
        entry("a", "outlets = [3, 4]")
        + entry("b", 'outlets = [1]\nfeeds = "node.ac"')
        + entry("bmc", 'feeds = "node.ac"')
        + entry("c", 'cord = true\nfeeds = "rack"')
        + entry("d", 'cord = true\nfeeds = "rack"')
        + entry("e", "outlets = [1]\nenabled = false")
        + entry("f", 'outlets = [1]\nnode = "other"')
    )
    places.write("project", text)
    config = places.load()
    config.check()
    assert {e.name: e.parts for e in config.entries} == {"a": 3, "b": 3, "bmc": 0, "c": 2, "d": 2}
    assert config.warnings == []


def test_an_outlet_in_two_entries_is_told(places: Places) -> None:
    places.write("project", (ENTRY + "outlets = [3]\n") + (ENTRY + "outlets = [3, 4]\n").replace("pdu1", "pdu2"))
    (warning,) = places.load().warnings
    assert "outlets 3 of one address is in pdu1 and pdu2" in warning
