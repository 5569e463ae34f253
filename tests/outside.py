"""Keep tests away from whoever runs them: their configuration, state, runs, caches and home."""

from __future__ import annotations

import importlib.util
import itertools
import os
import shutil
import subprocess
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
# What this shell, a job, a launcher of ranks or a proxy told the person: names begin so, in either case.
FOREIGN = (
    *("JOULELAB_", "SLURM", "XDG_", "WANDB_", "MLFLOW_", "HF_", "CUDA_VISIBLE", "ROCR_VISIBLE", "HIP_VISIBLE"),
    *("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "WORLD_SIZE", "MASTER_", "OMPI_", "PMI_", "MPI_LOCAL"),
    *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "FORCE_COLOR", "CLICOLOR"),
)

CACHE = ROOT / ".pytest_cache" / "home"
MEMORY = "/dev/shm"
ROOM = 2 << 30

_numbers = itertools.count()


def make_folder() -> Path:
    """Make the folder of all temporary files, in memory where there is room.

    Tests sync thousands of small files: on a busy disk they would mostly wait. `--basetemp` keeps what tests wrote.
    """
    try:
        found = os.statvfs(MEMORY)
        has_room = found.f_bavail * found.f_frsize > ROOM and not found.f_flag & os.ST_NOEXEC
    except OSError:
        has_room = False
    # A short name: the names of sockets have room for 107 characters.
    return Path(
        tempfile.mkdtemp(prefix="jt-", dir=MEMORY if has_room and os.access(MEMORY, os.W_OK) else None)
    ).resolve()


_base = make_folder()
_base.chmod(0o711)  # some tests become other users
os.environ["TMPDIR"] = tempfile.tempdir = str(_base)


def redirect(home: Path) -> dict[str, str]:
    """Return the variables that put everything a user has into one folder. Caches of compiled code are shared."""
    return {
        "HOME": str(home),
        "XDG_CONFIG_HOME": str(home / "config"),
        "XDG_DATA_HOME": str(home / "data"),
        "XDG_STATE_HOME": str(home / "state"),
        "XDG_RUNTIME_DIR": str(home / "runtime"),
        "XDG_CACHE_HOME": str(CACHE),
        "MPLCONFIGDIR": str(CACHE / "matplotlib"),
        "JOULELAB_ETC": str(home / "etc"),
        "JOULELAB_STATE": str(home / "machine"),
        "JOULELAB_LOCKS": str(home / "machine" / "caps"),
        "JOULELAB_CAPD": str(home / "capd.sock"),
    }


def find_fonts() -> None:
    """Let matplotlib list the machine's fonts once, which starts a process: in a quick test it may not."""
    folder = CACHE / "matplotlib"
    if importlib.util.find_spec("matplotlib") and not list(folder.glob("fontlist*")):
        words = [sys.executable, "-c", "import matplotlib.font_manager"]
        subprocess.run(words, env=os.environ | {"MPLCONFIGDIR": str(folder)}, check=True)


def make_home() -> Path:
    """Make a folder that stands for somebody's home."""
    home = _base / f"home{next(_numbers)}"
    home.mkdir()
    (home / "work").mkdir()
    return home


def watch_places(event: str, arguments: tuple[Any, ...]) -> None:
    """Fail a test that opens a file of the person who runs it."""
    if event == "open" and isinstance(arguments[0], str) and arguments[0].startswith(REAL_PLACES):
        pytest.fail(f"A test opens {arguments[0]}, which is not the test's own.")


def pytest_configure(config: pytest.Config) -> None:
    """Prepare once what the workers share."""
    if not hasattr(config, "workerinput"):
        find_fonts()


@pytest.hookimpl(trylast=True)  # coverage looks for its settings in the folder where it starts
def pytest_sessionstart(session: pytest.Session) -> None:
    """Redirect everything before the first test: fixtures of modules and sessions see this."""
    if session.config.pluginmanager.hasplugin("dsession"):  # xdist's workers start where this process is
        return
    for name in [name for name in os.environ if name.upper().startswith(FOREIGN)]:
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
