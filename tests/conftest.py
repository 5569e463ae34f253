"""Start all tests alike: who ignores signals for us (nohup, a background job), or has state, must not matter."""

from __future__ import annotations

import os
import signal
import tempfile

from hypothesis import HealthCheck, settings

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
