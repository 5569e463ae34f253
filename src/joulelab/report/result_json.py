"""Describe results as plain data for `--json`, the dashboard and files: codes and numbers as well as sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from joulelab.report.messages import word_check, word_lag, word_notes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from joulelab.analysis.cell_metrics import StudySummary
    from joulelab.analysis.result import Result
    from joulelab.analysis.results_file import ResultHead
    from joulelab.analysis.study_cells import Note
    from joulelab.study.tuning.tuning_result import TuningResult


def describe_result(result: Result) -> dict[str, Any]:
    """Describe the result of a run; checks have their `message` and `next` step, lags say `why` they are poor."""
    plain = result.to_json()
    for row, check in zip(plain["checks"], result.checks, strict=True):
        worded = word_check(check)
        row |= {"message": worded.text, "next": worded.next}
    for row, lag in zip(plain["lags"], result.lags, strict=True):
        row |= {"why": word_lag(lag), "code": lag.why}
    return plain


def describe_head(head: ResultHead) -> dict[str, Any]:
    """Describe the head of a run for lists; `problem` is the message of a failed check, `check` its name."""
    failed = head.failed_check
    problem = {"problem": None if failed is None else word_check(failed).text}
    return head.to_json() | problem | {"check": None if failed is None else failed.name}


def describe_summary(summary: StudySummary, more_notes: Iterable[Note] = ()) -> dict[str, Any]:
    """Describe the figures of a study; `notes` are sentences, `messages` the codes and numbers of the same notes."""
    plain = summary.to_json()
    notes = (*summary.notes, *more_notes)
    messages = [{"code": note.code, "numbers": dict(note.numbers)} for note in notes]
    return plain | {"notes": word_notes(notes), "messages": messages}


def describe_tuning(result: TuningResult) -> dict[str, Any]:
    """Describe the outcome of tuning, with its notes as sentences."""
    return result.to_json() | {"notes": word_notes(result.notes)}
