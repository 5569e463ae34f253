"""The messages of `joulelab doctor` about the quality of a meter: code -> (status, text, next step)."""

from __future__ import annotations

MESSAGES: dict[str, tuple[str, str, str]] = {
    "meter.refresh-differs": (
        "note",
        "{scope} {channel} has a new value every {refresh_s:s}, but uncertainties assume every {declared_s:s}",
        "",
    ),
    "meter.slow-reading": (
        "warning",
        "{scope} {channel}: one reading takes {reading_s:s}",
        "set a period that is longer than one reading",
    ),
    "meter.unchanged": (
        "warning",
        "{scope} {channel} did not change: the device is idle, or the meter does not work",
        "repeat the test while the device is busy",
    ),
    "meter.late-readings": (
        "warning",
        "this machine is busy, so readings start {late_s:s} late",
        "leave one CPU core free",
    ),
    "meter.readings-failed": (
        "warning",
        "{failed:reading} failed: {error}",
        "joulelab doctor {meter} --for 60s",
    ),
}
