"""Write checks and notes as English sentences, and merge checks that are alike in several scopes."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from joulelab.analysis.result import Check
from joulelab.core.text import escape_unprintable
from joulelab.report import format as fmt
from joulelab.report.messages.catalogue import CHECK, LAG, STUDY, Message, find_message

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from joulelab.analysis.result import Lag
    from joulelab.analysis.study_cells import Note

MOST_NAMED = 4  # names of a list that are written out
MOST_HOSTS = 3
EXACT_DIGITS = 7
ORDER = {"failed": 0, "warning": 1, "note": 2}
GAPS, CAUSES_OF_GAPS = "gaps", ("ending", "recorder", "paused", "disk")  # names of checks
FIELD = re.compile(r"\{(\w+)(?:~(\w+))?(?::([^}]+))?\}")
OPTIONAL = re.compile(r"\[([^\[\]]*)\]")
# Programs with which the command of a next step begins.
PROGRAMS = (
    *("joulelab", "sudo", "pip install", "python -m", "apt install", "nvidia-smi", "amd-smi", "chronyc", "df", "dmesg"),
    *("keyring set", "sacct", "scontrol", "sinfo", "systemctl", "chmod", "squeue"),
)
COMMAND = re.compile(rf"(?:^|(?<=: ))(?:(?:{'|'.join(PROGRAMS)})(?: [^`]*)?|export [A-Z_]+=[^`]*)$")
RUN = "RUN"  # stands for a run whose name is not known
STORED = "stored"  # the sentence of a check in a file of an older version, which has nothing else
Value = str | float | tuple[str, ...] | Check


@dataclass(frozen=True, slots=True)
class WordedCheck:
    """Hold a check as people read it: `text` says what is wrong, `next` the command to type or the step to take."""

    code: str
    name: str
    status: str
    text: str
    next: str = ""


def word_check(check: Check, run: str = RUN) -> WordedCheck:
    """Write one check as a sentence and its next step; `run` is the name of the run in commands."""
    message = find_message(CHECK, check.code) or Message(check.code, CHECK, check.status, "[{scope}: ]{facts}")
    values: dict[str, Value] = {"run": run, **check.numbers, **check.texts}
    if check.scope:
        values["scope"] = _join_places(check.scope.split(", "))
    values.setdefault(
        "facts", ", ".join(f"{name} {value}" for name, value in values.items() if name not in ("run", "scope"))
    )
    text = check.texts.get(STORED) or fill_text(message.text, values)
    return WordedCheck(check.code, check.name, check.status, text, fill_text(message.next, values).strip())


def word_checks(checks: Iterable[Check], run: str = RUN) -> list[WordedCheck]:
    """Write the checks that are not ok, the worst first; equal checks of several scopes become one line.

    The cause of gaps stands above them.
    """
    alike: dict[tuple[object, ...], list[Check]] = {}
    for check in checks:
        if check.status != "ok":
            # Alike but for figures: idle power that drifted by 101 W here and 103 W there.
            texts = tuple((name, re.sub(r"\d+(\.\d+)?", "#", text)) for name, text in check.texts.items())
            alike.setdefault((check.code, check.status, texts, tuple(check.numbers)), []).append(check)
    worded = [_merge_checks(members, run) for members in alike.values()]
    gaps = min((ORDER[each.status] for each in worded if each.name == GAPS), default=len(ORDER))

    def rank_check(each: WordedCheck) -> tuple[int, bool]:
        is_cause = gaps < len(ORDER) and each.name in CAUSES_OF_GAPS
        return min(ORDER[each.status], gaps) if is_cause else ORDER[each.status], not is_cause

    return sorted(worded, key=rank_check)


def word_note(note: Note | str, subject: str = STUDY) -> str:
    """Write a note of a study or a comparison as one or two sentences; a text stays as it is."""
    if isinstance(note, str):
        return note
    message = find_message(subject, note.code)
    if message is None:
        return f"{note.code}: {dict(note.numbers)}"
    values: dict[str, Value] = {**note.numbers, **note.texts}
    return " ".join(filter(None, (fill_text(part, values) for part in (message.text, message.next))))


def word_lag(lag: Lag) -> str:
    """Write why the lag of a stream was not corrected; empty if the lag was corrected."""
    message = find_message(LAG, lag.why)
    return lag.why if message is None else fill_text(message.text, lag.numbers)


def word_notes(notes: Iterable[Note | str], subject: str = STUDY) -> list[str]:
    """Write notes as sentences."""
    return [word_note(note, subject) for note in notes]


def set_command_apart(text: str) -> str:
    """Put the command at the end of a next step on a line of its own, after `->`; a sentence stays a sentence.

    `Make room: df -h` becomes two lines, `Make room:` and `-> df -h`.
    """
    found = COMMAND.search(text)
    if found is None:
        return text
    return f"{text[: found.start()].strip()}\n-> {found[0]}".lstrip("\n")


def add_next_step(text: str, next_step: str | None) -> str:
    """Return a text with its next step on lines of their own."""
    if not next_step:
        return text
    lines = set_command_apart(next_step)
    return f"{text}\n{lines[:1].upper()}{lines[1:]}"


def join_next_step(text: str) -> str:
    """Return a text and the lines of its next step as one paragraph."""
    return text.replace(":\n-> ", ": ").replace("\n-> ", ". Next: ").replace("\n", ". ")


def list_fields(text: str, *, required: bool = False) -> set[str]:
    """List the fields of a text; without those of optional parts if `required`."""
    text = OPTIONAL.sub("", text) if required else text
    return {name for match in FIELD.finditer(text) for name in match.groups()[:2] if name}


def _merge_checks(members: Sequence[Check], run: str) -> WordedCheck:
    first = members[0]
    if len(members) == 1:
        return word_check(first, run)
    if not first.scope:
        worded = word_check(first, run)
        return replace(worded, text=f"{worded.text} ({len(members)} times)")
    if all((c.numbers, c.texts) == (first.numbers, first.texts) for c in members):
        return word_check(replace(first, scope=", ".join(check.scope for check in members)), run)
    worded = word_check(first, run)
    others = _join_places([scope for check in members[1:] for scope in check.scope.split(", ")])
    return replace(worded, text=f"{worded.text}; similar: {others}")


def fill_text(text: str, values: Mapping[str, Value]) -> str:
    """Fill in the fields of a text; optional parts that lack a value are left out."""
    text = OPTIONAL.sub(lambda part: part[1] if list_fields(part[1]) <= values.keys() else "", text)
    text = text.replace(":, ", ": ")  # the first part of a list was left out
    return FIELD.sub(lambda field: _format_field(field, values), text)


def _format_field(field: re.Match[str], values: Mapping[str, Value]) -> str:
    name, upper, unit = field.groups()
    texts = [_format_value(values.get(each, "?"), unit) for each in (name, upper) if each]
    if len(texts) == 1 or texts[0] == texts[1]:
        return texts[0]
    number, _, shown_unit = texts[0].rpartition(" ")
    low = number if number and texts[1].endswith(f" {shown_unit}") else texts[0]
    return f"{low} to {texts[1]}"


def _format_value(value: Value, unit: str | None) -> str:
    if isinstance(value, str):
        return escape_unprintable(value)
    if isinstance(value, Check):
        return word_check(value).text
    if isinstance(value, tuple):
        more = f" and {len(value) - MOST_NAMED} more" if len(value) > MOST_NAMED else ""
        return "; ".join(map(escape_unprintable, value[:MOST_NAMED])) + more
    if unit and unit.startswith("="):
        return f"{fmt.format_plain(value, EXACT_DIGITS)} {unit[1:]}".rstrip()
    sign = "+" if unit and unit.startswith("+") and value > 0 else ""
    match (unit or "").removeprefix("+"):
        case "":
            return fmt.format_amount(round(value, 1)) if abs(value) < 100 else fmt.format_amount(round(value))
        case "%":
            return f"{sign}{_format_share(value)}"
        case "W" if 10 <= abs(value) < 1e4:
            return f"{sign}{value:,.0f} W"
        case "W" | "J" as symbol:
            return f"{sign}{fmt.format_rough(value, symbol)}"
        case "s" if abs(value) < 100:
            return f"{sign}{fmt.format_rough(value, 's', 2)}"
        case "s":
            return f"{sign}{fmt.format_duration(value)}"
        case noun:
            return f"{fmt.format_amount(value)} {noun if value == 1 else _form_plural(noun)}"


def _format_share(share: float) -> str:
    """Return a share of one in percent, with two digits: `52 %`, `5.2 %`, `0.52 %`."""
    size = abs(share) * 100
    decimals = 0 if size >= 9.95 or size == 0 else 1 if size >= 0.995 else 2
    return f"{share * 100:.{decimals}f} %"


def _form_plural(noun: str) -> str:
    return f"{noun}es" if noun.endswith("s") else f"{noun}s"


def _join_places(scopes: Sequence[str]) -> str:
    """Return a short list of scopes, grouped by host: `gpu:0-7, node.ac of n1; gpu:0 of n2, n3 and 2 more`."""
    if len(scopes) == 1:
        return scopes[0]
    by_host: dict[str, list[str]] = {}
    for scope in scopes:
        host, slash, inside = scope.partition("/")
        known = bool(slash) and ":" not in host  # else it is a part of a device: gpu:0/mig:1
        by_host.setdefault(host if known else "", []).append(inside if known else scope)
    alike: dict[str, list[str]] = {}
    for host, inner in by_host.items():
        alike.setdefault(fmt.join_scopes(inner), []).append(host)
    return "; ".join(some if hosts == [""] else f"{some} of {_join_hosts(hosts)}" for some, hosts in alike.items())


def _join_hosts(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_HOSTS} more" if len(names) > MOST_HOSTS else ""
    return ", ".join(names[:MOST_HOSTS]) + more
