"""Hold checks and notes against the catalogue of messages: each has a message, and gives all of its fields."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulelab.report.messages.catalogue import CHECK, STUDY, find_message
from joulelab.report.messages.wording import list_fields

if TYPE_CHECKING:
    from joulelab.analysis.result import Check
    from joulelab.analysis.study_cells import Note


def assert_check_worded(check: Check) -> None:
    """Fail if a check has no message, another status, or lacks a value that its message needs."""
    message = find_message(CHECK, check.code)
    assert message is not None, check
    assert check.status in message.status, check
    given = {"run", *check.numbers, *check.texts, *(["scope"] if check.scope else [])}
    assert list_fields(message.text, required=True) | list_fields(message.next, required=True) <= given, check


def assert_note_worded(note: Note, subject: str = STUDY) -> None:
    """Fail if a note has no message, or lacks a value that its message needs."""
    message = find_message(subject, note.code)
    assert message is not None, note
    required = list_fields(message.text, required=True) | list_fields(message.next, required=True)
    assert required <= {*note.numbers, *note.texts}, note
