"""No test reads or writes what belongs to the person who runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.outside import HOME, REAL_PLACES, ROOT

from joulelab.control.leftovers import get_caps_folder
from joulelab.instruments.analyzer.setup import get_state_folder
from joulelab.run.config.config_files import get_system_file, get_user_file, list_config_files
from joulelab.study.slots import list_lock_files
from joulelab.twin.servers.nvml import cache_directory
from joulelab.workloads.data.source import get_cache_folder


def test_everything_of_a_user_is_in_the_tests_own_home(own_home: Path) -> None:
    configuration = [get_user_file(os.environ), get_system_file(os.environ)]
    state = [Path(get_caps_folder(os.environ)), get_state_folder(), list_lock_files(os.environ)[0]]
    for path in [*configuration, *state, Path.home(), Path.cwd()]:
        assert path.is_relative_to(own_home)
    for path in (cache_directory(), get_cache_folder("data")):
        assert path.is_relative_to(ROOT / ".pytest_cache")
    assert not own_home.is_relative_to(HOME / ".config")
    assert list_config_files(os.environ) == ([], [])


def test_a_file_of_the_person_cannot_be_opened() -> None:
    for place in REAL_PLACES:
        with pytest.raises(pytest.fail.Exception, match="not the test's own"):
            open(f"{place}/joulelab.toml")  # noqa: SIM115 it is not opened


def test_no_test_sees_the_home_of_another(own_home: Path) -> None:
    assert list(own_home.iterdir()) == [own_home / "work"]


@pytest.mark.system
def test_a_meter_that_is_added_is_added_to_the_tests_own_configuration(own_home: Path) -> None:
    words = [sys.executable, "-m", "joulelab", "meters", "--add", "estimate", "--user"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (own_home / "config" / "joulelab" / "joulelab.toml").exists()
