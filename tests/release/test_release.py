"""The wheel has all that joulelab needs at run time, and it runs in an environment of its own.

The quick way takes the dependencies from the environment of the tests, by their path: the editable joulelab is not seen
there. The campaign installs them from the package index, into an empty environment.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from joulelab.core.version import __version__

pytestmark = pytest.mark.system

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "joulelab"
# Files beside Python that joulelab reads when it runs.
DATA = (".c", ".csv", ".css", ".h", ".ipynb", ".js", ".svg", ".toml")


def run_tool(*words: str | Path, cwd: Path, fails: str = "") -> str:
    """Run a program without the variables of this environment; skip where its failure begins with `fails`."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("COVERAGE", "PYTHON", "JOULELAB"))}
    environ = {**kept, "HOME": str(cwd), "COLUMNS": "80", "NO_COLOR": "1"}
    done = subprocess.run(
        [str(word) for word in words], cwd=cwd, env=environ, capture_output=True, text=True, timeout=900, check=False
    )
    if fails and fails in done.stderr:
        pytest.skip(f"{fails}: {words[0]}")
    assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build wheel and sdist as `make dist` does."""
    folder = tmp_path_factory.mktemp("dist")
    run_tool(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT, cwd=folder)
    return folder


def test_the_wheel_has_code_and_data_and_no_tests(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    assert wheel.name == f"joulelab-{__version__}-py3-none-any.whl"
    names = set(zipfile.ZipFile(wheel).namelist())
    files = [path for path in SOURCE.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    wanted = {path.relative_to(SOURCE.parent).as_posix() for path in files if path.suffix in (*DATA, ".py")}
    assert wanted - names == set()
    beside = {f"joulelab/{path.relative_to(ROOT).as_posix()}" for path in (ROOT / "studies").glob("*.toml")}
    assert beside
    assert beside <= names
    assert "joulelab/packaging/alerts.yml" in names
    assert {name.partition("/")[0] for name in names} == {"joulelab", f"joulelab-{__version__}.dist-info"}
    assert not [name for name in names if name.rpartition("/")[2].startswith("test_")]


def test_the_sdist_can_be_built_and_tested(built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "LICENSE", "Makefile", "mkdocs.yml", "docs/index.md", "tests/tiers.py"} <= names
    assert not [name for name in names if name.startswith((".venv", ".docs-site", "joulelab-runs"))]


def make_environment(folder: Path) -> Path:
    """Make a virtual environment; return the folder of its programs."""
    venv.create(folder, with_pip=False, symlinks=True)
    return folder / "bin"


def use_installed(programs: Path, folder: Path) -> None:
    """Type what a new user types first: help, lists, a published study in virtual time, a run on a twin."""
    joulelab = programs / "joulelab"
    assert run_tool(joulelab, "--version", cwd=folder).strip() == f"joulelab {__version__}"
    assert "joulelab run -- python train.py" in run_tool(joulelab, "--help", cwd=folder)
    place = run_tool(programs / "python", "-c", "import joulelab; print(joulelab.__file__)", cwd=folder)
    assert programs.parent in Path(place.strip()).parents
    assert "gdansk-rtx6000" in run_tool(joulelab, "twin", "--list", cwd=folder)
    assert "groups:" in run_tool(joulelab, "agent", "--print", "alerts", cwd=folder)
    assert "within tolerance" in " ".join(run_tool(joulelab, "reproduce", "bnl", "--no-figures", cwd=folder).split())
    if shutil.which("cc"):
        twin = (joulelab, "twin", "--gpus", "1", "--", joulelab, "run", "--name", "first", "--", "sleep", "1")
        run_tool(*twin, cwd=folder)
        assert "gpu" in run_tool(joulelab, "show", "first", cwd=folder)


def test_the_wheel_runs_with_the_dependencies_of_this_environment(built: Path, tmp_path: Path) -> None:
    programs = make_environment(tmp_path / "env")
    (wheel,) = built.glob("*.whl")
    pip = (sys.executable, "-m", "pip", "--python", programs / "python", "install", "--no-deps", "--no-index")
    run_tool(*pip, wheel, cwd=tmp_path)
    (packages,) = (tmp_path / "env" / "lib").glob("python*/site-packages")
    # A path in a .pth file: the .pth files of that folder are not read, so the editable joulelab stays out.
    (packages / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    use_installed(programs, tmp_path)


@pytest.mark.campaign
def test_the_wheel_installs_into_an_empty_environment(built: Path, tmp_path: Path) -> None:
    programs = make_environment(tmp_path / "env")
    (wheel,) = built.glob("*.whl")
    pip = (sys.executable, "-m", "pip", "--python", programs / "python", "install", "--disable-pip-version-check")
    run_tool(*pip, wheel, cwd=tmp_path, fails="No matching distribution found")
    use_installed(programs, tmp_path)
