"""The messages of `joulelab serving` about the division of energy among requests: code -> (status, text, next step)."""

# ruff: noqa: E501  one line is one text: easy to find and to edit

from __future__ import annotations

MESSAGES: dict[str, tuple[str, str, str]] = {
    "too-few-windows": (
        "note",
        "The energy is divided by time alone: the load filled only {windows:window}, too few to find what a token needs.",
        "Measure for a longer time, such as --duration 2m.",
    ),
    "slow-meter": (
        "note",
        "The energy is divided by time alone: the meter has a new value only every {update_s:s}.",
        "Choose the scope of a faster meter: --scope gpu.",
    ),
    "no-usage": (
        "note",
        "The energy is divided by time alone: the tokens of {unknown} of {requests:request} are not known.",
        "The server must report them at the end of each answer (stream_options.include_usage).",
    ),
    "idle.fitted": (
        "note",
        "The idle power is fitted, because the run has no idle time: its error is part of the intervals.",
        "Record some: --idle 30s.",
    ),
    "failed-requests": (
        "note",
        "{failed} of {requests:request} did not end well; the energy that they used is theirs.",
        "",
    ),
}
