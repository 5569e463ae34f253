"""Lay out an answer of planning: the recommendation, a table, at most three notes, and the command that explains it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from joulelab.report.messages import set_command_apart, word_notes
from joulelab.report.terminal import BLANK_LINE, TextLine, list_facts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.analysis.study_cells import Note
    from joulelab.report.tables import Table
    from joulelab.report.terminal import TextBlock

SUBJECT = "plan"
MOST_NOTES = 3  # without --why
WHY = "--why"


def lay_out_answer(
    sentences: Sequence[str],
    tables: Sequence[Table],
    notes: Sequence[Note] = (),
    *,
    is_explained: bool,
    reasons: Sequence[TextBlock] = (),
    next_commands: Sequence[str] = (),
) -> list[TextBlock]:
    """Return the blocks of an answer: the most important notes; with --why (`is_explained`) all notes and reasons."""
    blocks: list[TextBlock] = [TextLine(sentence) for sentence in sentences]
    for table in tables:
        blocks += [BLANK_LINE, table]
    shown = notes if is_explained else notes[:MOST_NOTES]
    lines = [("note", set_command_apart(text)) for text in word_notes(shown, SUBJECT)]
    if not is_explained and (len(notes) > MOST_NOTES or reasons):
        left = len(notes) - len(shown)
        more = [f"{left} more {'note' if left == 1 else 'notes'}"] if left else []
        more += ["how this was computed"] if reasons else []
        lines.append(("why", f"the same command with {WHY}: {' and '.join(more)}"))
    lines += [("next", command) for command in next_commands]
    if lines:
        blocks += [BLANK_LINE, list_facts(lines)]
    if is_explained and reasons:
        blocks += [BLANK_LINE, *reasons]
    return blocks


def describe_notes(notes: Sequence[Note]) -> dict[str, Any]:
    """Return notes for `--json`: their sentences as `notes`, their codes and numbers as `messages`."""
    return {
        "notes": word_notes(notes, SUBJECT),
        "messages": [{"code": note.code, "numbers": dict(note.numbers)} for note in notes],
    }
