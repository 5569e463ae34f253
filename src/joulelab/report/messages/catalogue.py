"""Find the message of a code, and list all messages: those of the lab, of apps and of instrument families."""

from __future__ import annotations

import functools
import importlib
from dataclasses import dataclass
from pathlib import Path

import joulelab
from joulelab.report.messages import check_messages, study_messages, verify_messages

ROOT = Path(joulelab.__file__).parent
CHECK, LAG, STUDY, COMPARISON = "check", "lag", "study", "comparison"


@dataclass(frozen=True, slots=True)
class Message:
    """Hold one entry of a catalogue; `text` and `next` have fields, `subject` is `check`, `study` or the like.

    A code is unique within its subject.
    """

    code: str
    subject: str
    status: str
    text: str
    next: str = ""


def list_messages() -> list[Message]:
    """List all messages by subject, those of the lab first."""
    return [*_list_own().values(), *_list_others().values()]


def find_message(subject: str, code: str) -> Message | None:
    """Return the message of a code: of the lab itself, else of an app or an instrument family."""
    own = _list_own().get((subject, code))
    return own or next((m for m in _list_others().values() if m.code == code), None)


@functools.cache
def _list_own() -> dict[tuple[str, str], Message]:
    return (
        _read_entries(CHECK, check_messages.MESSAGES)
        | _read_entries(CHECK, verify_messages.MESSAGES)
        | _read_entries(LAG, check_messages.LAG_MESSAGES)
        | _read_entries(STUDY, study_messages.MESSAGES)
        | _read_entries(COMPARISON, study_messages.COMPARISON_MESSAGES)
    )


@functools.cache
def _list_others() -> dict[tuple[str, str], Message]:
    """Read every `messages.py` of apps and instrument families."""
    found: dict[tuple[str, str], Message] = {}
    for path in sorted([*ROOT.glob("*/messages.py"), *ROOT.glob("instruments/*/messages.py")]):
        parts = path.relative_to(ROOT).with_suffix("").parts
        if parts[0] != "cli":  # the command that prints them
            module = importlib.import_module(".".join(("joulelab", *parts)))
            found |= _read_entries(parts[-2], module.MESSAGES)
    return found


def _read_entries(subject: str, entries: dict[str, tuple[str, str, str]]) -> dict[tuple[str, str], Message]:
    return {(subject, code): Message(code, subject, *entry) for code, entry in entries.items()}
