"""Print the catalogue of messages: `joulelab messages`."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from joulelab.cli.output import measure_terminal, print_json
from joulelab.cli.parameters import UsageError, format_examples, json_option

if TYPE_CHECKING:
    from joulelab.report.messages import Message
    from joulelab.report.tables import Table

TITLES = {
    "check": "Checks of a run",
    "lag": "Why the lag of a meter was not corrected",
    "study": "Notes beside the figures of a study",
    "comparison": "Notes beside a comparison of two runs",
    "instruments": "Findings of `joulelab doctor` about a meter",
}
PAGE = """\
# Messages

Checks of a run and notes beside its figures, by their codes. Codes do not change; the texts may. `--json` has the code
and the numbers of each message beside its text.

In braces are the values that a message is given; parts in square brackets are left out where a value is missing.
"""
GENERATED = "<!-- made by `joulelab messages --markdown` -->"


@click.command("messages", epilog=format_examples("joulelab messages", "joulelab messages cap --json"))
@click.argument("codes", metavar="[CODE]...", nargs=-1)
@click.option("--markdown", "as_markdown", is_flag=True, help="Print the page docs/reference/messages.md.")
@json_option
def command(codes: tuple[str, ...], as_markdown: bool, as_json: bool) -> None:
    """List every check and note by its code: status, text, next step.

    A CODE without its part after the dot names all of its cases: `joulelab messages cap`.
    """
    from joulelab.report.messages import list_messages

    if as_markdown and as_json:
        raise UsageError("exclusive", "--markdown and --json exclude each other")
    every = list_messages()
    chosen = [m for m in every if not codes or m.code in codes or m.code.partition(".")[0] in codes]
    known = {name for message in every for name in (message.code, message.code.partition(".")[0])}
    for code in codes:
        if code not in known:
            import difflib

            near = difflib.get_close_matches(code, sorted(known), 1)
            advice = f"; the nearest is {near[0]!r}" if near else "; `joulelab messages` lists all"
            raise UsageError("unknown-message", f"no message has the code {code!r}{advice}")
    if as_json:
        print_json([asdict(message) for message in chosen])
        return
    from joulelab.report.tables import write_markdown, write_terminal

    subjects = dict.fromkeys(message.subject for message in chosen)
    if as_markdown:
        tables = [_make_wide_table(subject, chosen) for subject in subjects]
        sys.stdout.write("\n".join([f"{PAGE}\n{GENERATED}\n", *(write_markdown(table) for table in tables)]))
    else:
        tables = [_make_narrow_table(subject, chosen) for subject in subjects]
        sys.stdout.write("\n\n".join(write_terminal(table, measure_terminal()) for table in tables) + "\n")
    sys.stdout.flush()


def _make_wide_table(subject: str, messages: list[Message]) -> Table:
    from joulelab.report.tables import make_table

    rows = [(m.code, m.status, m.text, m.next) for m in messages if m.subject == subject]
    title = TITLES.get(subject, f"Messages of {subject}")
    return make_table(("code", "status", "message", "next step"), rows, left=range(4), title=title)


def _make_narrow_table(subject: str, messages: list[Message]) -> Table:
    """Make a table for a terminal: the status below the code, the next step below the text."""
    from joulelab.report.messages import add_next_step
    from joulelab.report.tables import make_table

    chosen = [m for m in messages if m.subject == subject]
    rows = [(f"{m.code}\n  {m.status}", add_next_step(m.text, m.next)) for m in chosen]
    return make_table(("code", "message"), rows, left=range(2), title=TITLES.get(subject, f"Messages of {subject}"))
