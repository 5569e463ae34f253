"""What core promises to those who build on it: standard library only, light, and interfaces that fit on a screen."""

from __future__ import annotations

import ast
import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

import joulelab.core
from joulelab.core import version
from joulelab.core.spec import Meter, Spec, Stream

FILES = sorted(Path(joulelab.core.__file__).parent.glob("*.py"))


def imported(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            found.add(node.module or "")
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
def test_core_needs_nothing_but_the_standard_library(path):
    outside = {n for n in imported(path) if n.split(".")[0] not in sys.stdlib_module_names}
    inside_functions = {"msgspec"} if path.name == "toml_reading.py" else set()  # and not loaded with it: see below
    assert all(n.startswith("joulelab.core") for n in outside - inside_functions)


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
def test_files_can_be_held_in_the_head(path):
    text = path.read_text()
    assert len(text.splitlines()) < 400
    tree = ast.parse(text)
    assert ast.get_docstring(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            assert (node.end_lineno or 0) - node.lineno < 40, node.name


CORE = [f"joulelab.core.{p.stem}" for p in FILES if p.stem != "__init__"]
RECORDER = [f"joulelab.recorder.{p.stem}" for p in (FILES[0].parents[1] / "recorder").glob("[!_]*.py")]
HEAVY = {"numpy", "duckdb", "rich", "click", "msgspec", "psutil", "pynvml", "asyncio", "multiprocessing"}


@pytest.mark.system
@pytest.mark.parametrize("names", [CORE, RECORDER, ["joulelab"]], ids=["core", "recorder", "joulelab"])
def test_importing_it_loads_nothing_heavy(names):
    code = f"import sys, {', '.join(names)}; print(*sys.modules)"
    environment = {k: v for k, v in os.environ.items() if not k.startswith("COV")}  # coverage loads what it watches
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    out = ran.stdout.split()
    assert set(names) <= set(out)
    assert not HEAVY & set(out)


def test_a_meter_is_three_methods():
    public = [n for n, f in vars(Meter).items() if inspect.isfunction(f) and not n.startswith("_")]
    assert public == ["streams", "read", "close"]
    assert all(inspect.getdoc(getattr(Meter, n)) for n in public)


def test_a_plain_class_is_a_meter():
    class Thermometer:
        def streams(self):
            return [Stream("room", "room", "host", 1.0, (Spec("temperature_c", "temperature", "degC"),))]

        def read(self, stream):
            return [21.5 for _ in stream.channels]

        def close(self):
            pass

    meter: Meter = Thermometer()
    (stream,) = meter.streams()
    assert len(meter.read(stream)) == len(stream.channels)
    meter.close()
    meter.close()


def test_the_version_is_one():
    assert [int(p) for p in version.__version__.split(".")] >= [0, 1, 0]
