"""The messages of `joulelab doctor` about the quality of a meter: code -> (severity, text, next step)."""

# ruff: noqa: E501  one line is one text: easy to find and to edit

from __future__ import annotations

MESSAGES: dict[str, tuple[str, str, str]] = {
    "meter.refresh-differs": (
        "note",
        "{scope} {channel} refreshes every {refresh_s:s} instead of {declared_s:s}; uncertainties assume {declared_s:s}",
        "",
    ),
    "meter.slow-reading": (
        "warning",
        "{scope} {channel}: one reading takes {reading_s:s}",
        "set a longer period than that",
    ),
    "meter.unchanged": (
        "warning",
        "{scope} {channel} did not change: the device is idle, or the meter does not work",
        "repeat it under load",
    ),
    "meter.late-readings": ("warning", "this machine is busy: readings start {late_s:s} late", "leave a core free"),
    "meter.readings-failed": ("warning", "{failed:reading} failed: {error}", "joulelab doctor {meter} --for 60s"),
}
