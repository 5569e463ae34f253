"""The walk of a run in docs/design.md: its files and functions exist, and each thread calls them in this order."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.cli.entry import JOULELAB

from joulelab.twin import profile
from joulelab.twin.model import Node

if TYPE_CHECKING:
    from collections.abc import Callable

    from joulelab.twin.twin_server import TwinServer

ROOT = Path(__file__).parents[2]
STEP = re.compile(r"^\d+\. `([\w/]+\.py)` `([\w.]+)`: ", re.MULTILINE)


def read_steps() -> list[tuple[str, str]]:
    text = (ROOT / "docs" / "design.md").read_text()
    section = text.partition("## 3. ")[2].partition("\n## ")[0]
    return [(file, name) for file, name in STEP.findall(section)]


def list_functions(file: str) -> set[str]:
    tree = ast.parse((ROOT / "src" / "joulelab" / file).read_text())
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    methods = {f"{c.name}.{f.name}" for c in classes for f in c.body if isinstance(f, ast.FunctionDef)}
    return methods | {f.name for f in tree.body if isinstance(f, ast.FunctionDef)}


def test_every_file_and_function_exists() -> None:
    steps = read_steps()
    assert len(steps) >= 15
    assert [step for step in steps if step[1] not in list_functions(step[0])] == []


@pytest.mark.system
@pytest.mark.no_cover
def test_each_thread_calls_them_in_this_order(twin: Callable[..., TwinServer], tmp_path: Path) -> None:
    server = twin(Node(), profiles={"gpu": profile.constant(0.5)})
    log = tmp_path / "walk.jsonl"
    environ = dict(os.environ) | server.environment
    environ |= {"WALK_STEPS": json.dumps(read_steps()), "WALK_FILE": str(log), "JOULELAB_RUNS": str(tmp_path / "runs")}
    environ |= {"PYTHONPATH": str(Path(__file__).parent / "trace")}
    for words in (
        ["run", "--meter", "nvml", "--", "sleep", "1"],
        ["show", "last"],
        ["report", "last", "-o", "page.html"],
    ):
        subprocess.run([*JOULELAB, *words], env=environ, cwd=tmp_path, check=True, timeout=300, capture_output=True)
    steps, called = read_steps(), sorted(json.loads(text) for text in log.read_text().splitlines())
    assert {(file, name) for *_, file, name in called} == set(steps)
    met: set[tuple[str, str]] = set()
    for process in dict.fromkeys(pid for _, pid, *_ in called):  # processes and threads go on beside each other
        by_thread: dict[int, list[tuple[str, str]]] = {}
        for _, pid, thread, file, name in called:
            if pid == process and (file, name) not in met:
                by_thread.setdefault(thread, []).append((file, name))
        for first in by_thread.values():
            assert first == sorted(first, key=steps.index)
        met |= {step for first in by_thread.values() for step in first}
