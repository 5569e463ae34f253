from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

import pytest
from tests.instruments.analyzer_bench import Bench
from tests.remote.child import Meter, children

from joulelab.core.clock import NS, monotonic_ns
from joulelab.twin import profile
from joulelab.twin.model import Node
from joulelab.twin.servers._scpi import AnalyzerFlaws
from joulelab.twin.servers.analyzer import serve
from joulelab.twin.truth import Truth

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path


@pytest.fixture(autouse=True)
def state_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep the state of instruments away from that of whoever runs the tests."""
    home = tmp_path_factory.mktemp("state")
    monkeypatch.setenv("XDG_STATE_HOME", str(home))
    return home


@pytest.fixture
def remote() -> Iterator[Callable[..., Meter]]:
    """Open a meter in another process with more environment."""
    with children() as start:

        def opened(
            name: str, config: Mapping[str, Any] | None = None, /, *, without_override: bool = False, **environment: str
        ) -> Meter:
            environment |= {"WITHOUT_OVERRIDE": "1"} if without_override else {}
            path = tuple(filter(None, [environment.pop("PYTHONPATH", "")]))
            return Meter(start("meter", name, json.dumps(dict(config or {})), environment=environment, path=path))

        yield opened


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Truth]:
    """Hold what truly happens on a node under half of its load; modules with a node of their own define their own."""
    path = tmp_path_factory.mktemp("node") / "truth"
    start = monotonic_ns() - 10 * NS  # the first updates of its instruments have come
    with Truth.create(path, Node(), profiles={"gpu": profile.constant(0.5)}, start_ns=start) as truth:
        yield truth


@pytest.fixture
def bench(truth: Truth, tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    """Serve an analyzer in this process; return how to open meters and links to it."""
    with contextlib.ExitStack() as stack:

        def start(**flaws: Any) -> Bench:
            made = AnalyzerFlaws(**flaws)
            return Bench(stack, stack.enter_context(serve(truth, tmp_path, made, 0)), made)

        yield start
