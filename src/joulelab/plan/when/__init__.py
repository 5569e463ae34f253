"""Choose when a job runs, at which caps and with which pauses; run or submit it by that plan."""

from joulelab.run.signal_forwarding import hold_signals

# A signal for the job of `--run` would otherwise reach a thread of numpy, and end joulelab instead of being forwarded.
with hold_signals():
    import numpy  # noqa: F401, ICN001
