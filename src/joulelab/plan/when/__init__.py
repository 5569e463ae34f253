"""Choose when a job runs, at which caps and with which pauses; run or submit it by that plan."""

import signal


def _load_numpy() -> None:
    """Load numpy while signals are blocked: its threads keep the mask.

    A signal for the job of `--run` would otherwise reach such a thread, and end joulelab instead of being forwarded.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        import numpy  # noqa: F401, ICN001
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_load_numpy()
