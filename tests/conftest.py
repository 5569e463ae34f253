"""Start all tests alike: who ignores signals for us (nohup, a background job), or has state, must not matter."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from joulelab.twins.serve import TwinServer

# A busy machine makes single examples slow; the time limit of each test stands.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")

# The state of instruments is kept away from that of whoever runs the tests.
os.environ.setdefault("XDG_STATE_HOME", tempfile.mkdtemp(prefix="joulelab-tests-state-"))

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


@pytest.fixture
def twin() -> Iterator[Callable[..., TwinServer]]:
    """Serve a simulated node, or skip where no C compiler is found."""
    from joulelab.twins.serve import TwinServer

    with contextlib.ExitStack() as stack:

        def start(*arguments: Any, **options: Any) -> TwinServer:
            server = stack.enter_context(TwinServer(*arguments, **options))
            if server.missing is not None:
                pytest.skip(str(server.missing))
            return server

        yield start
