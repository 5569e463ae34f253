"""Build truth files, and run readers of them in processes of their own, as LD_LIBRARY_PATH wants it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from joulelab.core.errors import MissingDependency
from joulelab.twin.servers import nvml
from joulelab.twin.truth import Truth

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from joulelab.twin.model import Node
    from joulelab.twin.profile import Profile

SRC = Path(__file__).parents[2] / "src"


@pytest.fixture(scope="session")
def library() -> Path:
    try:
        return nvml.build_library()
    except MissingDependency as error:
        pytest.skip(str(error))


@dataclass
class Twin:
    truth: Truth
    environment: Mapping[str, str]
    children: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(self, code: str, *arguments: object) -> subprocess.Popen[str]:
        """Start Python code that sees the twin; it prints one JSON object."""
        text = "import json, sys, time\nimport pynvml as n\nn.nvmlInit()\n" + textwrap.dedent(code)
        pipe = subprocess.PIPE
        words = [sys.executable, "-c", text, *map(str, arguments)]
        child = subprocess.Popen(words, env=self.environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        self.children.append(child)
        return child

    def run(self, code: str, *arguments: object) -> Any:
        return finish(self.start(code, *arguments))


def finish(child: subprocess.Popen[str], text: str | None = None) -> Any:
    out, err = child.communicate(text, timeout=120)
    assert child.returncode == 0, err
    return json.loads(out)


@pytest.fixture
def make_twin(library: Path, tmp_path: Path) -> Iterator[Callable[..., Twin]]:
    made: list[Twin] = []

    def make(node: Node | None = None, profiles: Mapping[str, Profile] | None = None, **options: Any) -> Twin:
        path = tmp_path / f"truth{len(made)}"
        environment = os.environ | {
            "JOULELAB_TWIN": str(path),
            "LD_LIBRARY_PATH": str(library.parent),
            "PYTHONPATH": str(SRC),
        }
        made.append(Twin(Truth.create(path, node, profiles=profiles, **options), environment))
        return made[-1]

    yield make
    for twin in made:
        for child in twin.children:
            child.kill()
            child.communicate()
        twin.truth.close()
