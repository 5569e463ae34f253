"""The guide to analysis: every constant of the code is on it with its value, and every name on it exists."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path
from typing import Any

from benchmarks.constants import FACTORS, OF_NODES, OF_ONE_DEVICE

ROOT = Path(__file__).parents[2]
ANALYSIS = ROOT / "src" / "joulelab" / "analysis"
PAGE = ROOT / "docs" / "explanation" / "analysis.md"
ROW = re.compile(r"^\| `(\w+\.[A-Z_\d]+)` \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)
MOVED_ROW = re.compile(r"^\| `(\w+\.[A-Z_\d]+)` \| (\S+) \|[^|]+\|[^|]+\| (\S+) \|[^|]+\|[^|]+\|$", re.MULTILINE)
MODULES = sorted(path.stem for path in ANALYSIS.glob("*.py") if path.stem != "__init__")


def is_numeric(value: object) -> bool:
    if isinstance(value, (tuple, dict)):
        parts = value.values() if isinstance(value, dict) else value
        return bool(value) and all(map(is_numeric, parts))
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def list_constants() -> dict[str, Any]:
    """Return the numeric constants that the modules of analysis define, by module and name; caches begin empty."""
    found = {}
    for name in MODULES:
        module = importlib.import_module(f"joulelab.analysis.{name}")
        for node in ast.parse((ANALYSIS / f"{name}.py").read_text()).body:
            if not isinstance(node, (ast.Assign, ast.AnnAssign)) or (
                isinstance(node.value, ast.Dict) and not node.value.keys
            ):
                continue
            given = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in (part for each in given for part in ast.walk(each) if isinstance(part, ast.Name)):
                value = getattr(module, target.id, None)
                if is_numeric(value):
                    found[f"{name}.{target.id}"] = value
    return found


def format_value(value: Any) -> str:
    """Return a constant as the page has it: `0.25`, `0.6, 1.6` or `gpu: 2, cpu: 1`."""
    if isinstance(value, dict):
        return ", ".join(f"{key}: {format_value(part)}" for key, part in value.items())
    if isinstance(value, tuple):
        return ", ".join(map(format_value, value))
    return f"{value:.8g}" if isinstance(value, float) else f"{value}"


def test_every_constant_is_on_the_page_with_its_value() -> None:
    rows = ROW.findall(PAGE.read_text())
    assert len({name for name, *_ in rows}) == len(rows)
    on_page = {name: value for name, value, *_ in rows}
    assert on_page == {name: format_value(value) for name, value in list_constants().items()}


def test_every_constant_has_a_meaning_and_an_origin() -> None:
    assert [row for row in ROW.findall(PAGE.read_text()) if min(map(len, row[2:])) < 4] == []


def test_moved_constants_have_their_present_value() -> None:
    constants, moved = list_constants(), MOVED_ROW.findall(PAGE.read_text())
    assert [name for name, *_ in moved] == [*OF_ONE_DEVICE, *OF_NODES]
    for name, *values in moved:
        value = constants[name]
        assert values == [f"{type(value)(value * factor):g}" for factor in FACTORS], name


def list_names() -> list[str]:
    text = PAGE.read_text()
    named = re.findall(rf"`((?:{'|'.join(MODULES)})\.(?!py`)[\w.]+)`", text)
    return sorted(set(named))


def is_in_code(name: str) -> bool:
    module, *parts = name.split(".")
    found: Any = importlib.import_module(f"joulelab.analysis.{module}")
    for part in parts:
        found = getattr(found, part, None)
    return found is not None


def test_every_name_on_the_page_exists() -> None:
    assert len(list_names()) > 150
    assert [name for name in list_names() if not is_in_code(name)] == []


def test_every_file_on_the_page_exists() -> None:
    text = PAGE.read_text()
    files = set(re.findall(r"`([\w/]+\.py)`", text))
    bases = (ANALYSIS, ROOT / "src" / "joulelab", ROOT)
    assert [file for file in sorted(files) if not any((base / file).is_file() for base in bases)] == []
    links = set(re.findall(r"\]\(([^)#]+)", text))
    assert [link for link in sorted(links) if not (PAGE.parent / link).is_file()] == []


def test_every_module_is_on_the_page() -> None:
    assert set(MODULES) - {name.partition(".")[0] for name in list_names()} == set()


def test_every_term_has_its_place() -> None:
    made = {"unseen", "in-step"}
    for path in ANALYSIS.glob("*.py"):
        made |= set(re.findall(r'f"([a-z]+):\{', path.read_text())) - {"scope", "other"}  # of traces
    section = PAGE.read_text().partition("## Where each term is made")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (`.+?) \|", section, re.MULTILINE)
    assert {term for cell in cells for term in re.findall(r"`([\w-]+)`", cell)} == made
