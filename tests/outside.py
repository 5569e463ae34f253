"""Keep tests away from whoever runs them: their configuration, state, runs, caches and home."""

from __future__ import annotations

import itertools
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
HOME = Path.home()  # of the person, before it is redirected
REAL_PLACES = (
    *(str(HOME / name / "joulelab") for name in (".config", ".local/state", ".cache", ".local/share")),
    str(ROOT / "joulelab-runs"),
    str(ROOT / "joulelab-studies"),
    "/etc/joulelab",
    "/var/lib/joulelab",
    "/run/joulelab",
)
FOREIGN = ("JOULELAB_", "SLURM", "XDG_", "WANDB_", "MLFLOW_", "HF_", "CUDA_VISIBLE", "ROCR_VISIBLE", "HIP_VISIBLE")

_numbers = itertools.count()
_base = Path(tempfile.mkdtemp(prefix="joulelab-tests-")).resolve()


def redirect(home: Path) -> dict[str, str]:
    """Return the variables that put everything a user has into one folder. Caches of compiled code are shared."""
    cache = ROOT / ".pytest_cache" / "home"
    return {
        "HOME": str(home),
        "XDG_CONFIG_HOME": str(home / "config"),
        "XDG_DATA_HOME": str(home / "data"),
        "XDG_STATE_HOME": str(home / "state"),
        "XDG_RUNTIME_DIR": str(home / "runtime"),
        "XDG_CACHE_HOME": str(cache),
        "MPLCONFIGDIR": str(cache / "matplotlib"),
        "JOULELAB_ETC": str(home / "etc"),
        "JOULELAB_STATE": str(home / "machine"),
        "JOULELAB_CAPD": str(home / "capd.sock"),
    }


def make_home() -> Path:
    """Make a folder that stands for somebody's home."""
    home = _base / str(next(_numbers))
    (home / "work").mkdir(parents=True)
    return home


def watch_places(event: str, arguments: tuple[Any, ...]) -> None:
    """Fail a test that opens a file of the person who runs it."""
    if event == "open" and isinstance(arguments[0], str) and arguments[0].startswith(REAL_PLACES):
        pytest.fail(f"A test opens {arguments[0]}, which is not the test's own.")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Redirect everything before the first test: fixtures of modules and sessions see this."""
    if session.config.pluginmanager.hasplugin("dsession"):  # xdist's workers start where this process is
        return
    for name in [name for name in os.environ if name.startswith(FOREIGN)]:
        del os.environ[name]
    home = make_home()
    os.environ.update(redirect(home))
    os.chdir(home / "work")
    sys.addaudithook(watch_places)


def pytest_unconfigure() -> None:
    """Remove the folders of all tests."""
    os.chdir(ROOT)
    shutil.rmtree(_base, ignore_errors=True)


@pytest.fixture(autouse=True)
def own_home(monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give each test a home, a configuration, a state and a working folder of its own."""
    home = make_home()
    for name, value in redirect(home).items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(home / "work")
    return home
