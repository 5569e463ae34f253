"""Write notebooks as their files are, and run them in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import psutil

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

RUNNER = (sys.executable, "-m", "joulelab.run.notebook")
LIMIT_S = 240


def code(source: str, *tags: str) -> dict[str, Any]:
    metadata = {"tags": list(tags)} if tags else {}
    lines = source.splitlines(keepends=True)
    return {"cell_type": "code", "metadata": metadata, "source": lines, "outputs": [], "execution_count": None}


def text(source: str) -> dict[str, Any]:
    return {"cell_type": "markdown", "metadata": {}, "source": source}


def book(*cells: dict[str, Any], kernel: str = "python3", language: str = "python") -> dict[str, Any]:
    metadata = {"kernelspec": {"name": kernel, "display_name": kernel, "language": language}}
    return {"nbformat": 4, "nbformat_minor": 4, "metadata": metadata, "cells": list(cells)}


def write(path: Path, notebook: dict[str, Any]) -> Path:
    path.write_text(json.dumps(notebook))
    return path


def environment(folder: Path, **more: str) -> dict[str, str]:
    """Return an environment in which nothing is recorded, and the kernel keeps its own files in the test's folder."""
    kept = dict(os.environ)
    return {**kept, "IPYTHONDIR": str(folder / "ipython"), "JUPYTER_NO_CONFIG": "1", **more}


def run(file: Path, *words: str | Path, code: int = 0, **more: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [*RUNNER, str(file), *map(str, words)],
        env=environment(file.parent, **more),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == code, done.stderr
    return done


def start(file: Path, *words: str | Path, **more: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    words = (*RUNNER, str(file), *map(str, words))
    return subprocess.Popen(words, env=environment(file.parent, **more), stdout=pipe, stderr=pipe, text=True)


def wait_for(condition: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < until, f"waited in vain for {what}"
        time.sleep(0.05)


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def printed(notebook: Path, number: int) -> str:
    """Return what the Nth code cell of a copy printed."""
    cells = [c for c in json.loads(notebook.read_text())["cells"] if c["cell_type"] == "code"]
    return "".join("".join(o["text"]) for o in cells[number - 1]["outputs"] if o["output_type"] == "stream")
