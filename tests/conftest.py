"""Start all tests alike: who ignores signals for us (nohup, a background job), or has state, must not matter."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import signal
import site
import sys
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from joulelab.twin.twin_server import TwinServer

pytest_plugins = ("tests.tiers", "tests.outside")

# The same examples in every run: what fails was broken by the change. Campaigns draw new ones.
settings.register_profile(
    "same", deadline=None, derandomize=True, max_examples=30, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("campaign", deadline=None, max_examples=300, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))

# A few workers on two cores: a pool of threads for each small matrix makes all of them slower.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

for number in (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGCHLD,
    signal.SIGUSR1,
    signal.SIGUSR2,
):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


INSTALLED = frozenset(site.getsitepackages())

# Processes that tests start are traced only where these do: tracing about doubles what each needs. Control lives in
# processes; what else runs in one is run by tests of its own layer too. The tests themselves are traced
# but for those of UNTRACED that are slow: the quick tier runs the same code, or nearly all of it.
TRACED = ("tests/control/", "tests/core/", "tests/recorder/test_owner.py", "tests/recorder/test_process.py")
UNTRACED = tuple(
    f"tests/{folder}/"
    for folder in (
        "analysis",
        "browser",
        "campaign",
        "contracts",
        "docs",
        "hostile",
        "papers",
        "release",
        "report",
        "serving",
        "store",
        "study",
    )
)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Leave processes untraced that a test marked `no_cover`, or not TRACED, starts."""
    untraced = not item.nodeid.startswith(TRACED) or item.get_closest_marker("no_cover") is not None
    kept = os.environ.pop("COVERAGE_PROCESS_CONFIG", None) if untraced else None
    try:
        with pause_tracing(item.nodeid.startswith(UNTRACED) and item.get_closest_marker("system") is not None):
            return (yield)
    finally:
        if kept is not None:
            os.environ["COVERAGE_PROCESS_CONFIG"] = kept


@contextlib.contextmanager
def pause_tracing(is_paused: bool) -> Iterator[None]:
    """Trace nothing of this thread for a while; the tracer itself stays, and with it that of processes.

    A test marked `no_cover` ends the tracer and starts another: then that one stays, or nothing is traced any more.
    """
    tracer = sys.gettrace() if is_paused else None
    if tracer is not None:
        sys.settrace(None)
    try:
        yield
    finally:
        if tracer is not None and sys.gettrace() is None:
            sys.settrace(tracer)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Collect system tests untraced: tracing the imports of frameworks takes ten seconds of each worker.

    The quick tier, which is traced whole, imports nearly all modules of joulelab; processes that are traced do too.
    """
    with pause_tracing(session.config.option.markexpr.startswith("system")), set_aside_collected():
        return (yield)


@contextlib.contextmanager
def set_aside_collected() -> Iterator[None]:
    """Keep modules and tests out of garbage collection: all stay to the end, and each full pass takes 0.6 s."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_unconfigure() -> None:
    """Let modules be collected at the end: libraries complain about what is left."""
    gc.unfreeze()


@pytest.fixture(scope="session", autouse=True)
def look_once_for_entry_points() -> Iterator[None]:
    """Read the entry points of installed packages once; those of folders that tests make are read each time."""
    from joulelab.core import entry_points

    look = entry_points._may_have_group
    look_once = functools.cache(look)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            entry_points,
            "_may_have_group",
            lambda folder, header: (look_once if folder in INSTALLED else look)(folder, header),
        )
        yield


@pytest.fixture
def twin() -> Iterator[Callable[..., TwinServer]]:
    """Serve a simulated node, or skip where no C compiler is found."""
    from joulelab.twin.twin_server import TwinServer

    with contextlib.ExitStack() as stack:

        def start(*arguments: Any, **options: Any) -> TwinServer:
            server = stack.enter_context(TwinServer(*arguments, **options))
            if server.missing is not None:
                pytest.skip(str(server.missing))
            return server

        yield start
