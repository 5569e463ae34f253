"""The catalogue has a message for every code, every message is used, and each can be written with what checks give."""

from __future__ import annotations

import ast
import json
import re
import sys
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click
import pytest
from click.testing import CliRunner
from tests.analysis.test_codes import CHECKS, NOTES
from tests.codes import list_given_codes, list_strings, read_trees
from tests.rows import every_row

from joulelab.analysis.energy_gate import GateReason
from joulelab.analysis.result import Check
from joulelab.analysis.study_cells import Note
from joulelab.cli.cap import VERBS
from joulelab.cli.group import commands
from joulelab.cli.messages import command
from joulelab.report.messages import Message, list_messages, word_check, word_note
from joulelab.report.messages import catalogue as catalogue_module
from joulelab.report.messages.wording import FIELD, OPTIONAL, fill_text, list_fields

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "messages.md"
LONGEST = 200
MESSAGES = list_messages()
# Warnings and failures without a next step, and why there is none.
WITHOUT_NEXT = {
    "check-failed": "the check itself has one",
    "clock-stepped": "energies are not affected",
    "counter-reset": "it is over, and the energy is corrected",
    "different-data.pair": "both cells are as they are",
    "ending.killed": "it is over",
    "keeper": "it was repaired at once",
    "paused": "it is over, and readings continued",
    "simulated-differ": "both runs are as they are",
    "source": "the source words its own problem",
}
# Values for the fields that are names; numbers are made by their unit.
NAMES = {"scope": "gpu:0-7 of node07", "cells": 12, "names": ("cap=100 W gpus=8", "cap=120 W gpus=8"), "what": "x"}


def test_every_code_has_a_message_and_every_message_a_code() -> None:
    remarks = {"simulated", "executor", "other-twin"}  # of studies, made in report
    assert {m.code for m in MESSAGES if m.subject == "check"} == {*CHECKS.split()}
    tuned = {code for code in list_given_codes("study", "replace") if code.startswith("warnings.")}
    gathered = {s for s in list_strings("study") if re.fullmatch(r"(phase|work)-missing|precision-missed\..+", s)}
    gathered |= list_given_codes("study", "Note")
    assert {m.code for m in MESSAGES if m.subject == "study"} == {*NOTES.split()} | tuned | remarks | gathered
    reasons = set(get_args(GateReason)) - {"", "too-short"}  # the latter is of single tests, not of groups of runs
    gates = {"gate-above", "gate-above.possible", "gate-not-above", "gate-undecided.no-energy"}
    gates |= {f"gate-undecided.{reason}" for reason in reasons}  # put together from decision and reason
    compared = list_given_codes("report", "Note") - remarks | gates
    assert {m.code for m in MESSAGES if m.subject == "comparison"} == compared


@every_row("message", MESSAGES)
def test_a_message_is_short_plain_and_has_a_next_step(message: Message) -> None:
    for text in (message.text, *_split_alternatives(message.next)):
        assert len(_fill(text)) <= LONGEST, _fill(text)
        assert not re.search(r"[{}\[\]]", _fill(text)), _fill(text)
    assert set(re.findall(r"note|warning|failed", message.status)), message.status
    if message.status != "note" and not message.next:
        assert message.code in WITHOUT_NEXT
    else:
        assert message.code not in WITHOUT_NEXT
    # Whole sentences; checks and lags stand after a name.
    if message.subject in ("study", "comparison", "plan", "serving"):
        assert message.text[-1] in ".]}"
    else:
        assert not message.text.endswith(".")


def _split_alternatives(text: str) -> list[str]:
    """Return a text without its optional parts, and each of these alone."""
    return [OPTIONAL.sub("", text), *(part[1] for part in OPTIONAL.finditer(text))]


def _fill(text: str) -> str:
    """Write a text with typical values, its optional parts included."""
    numbers = {"%": 0.456, "+%": -0.0456, "W": 1234.5, "+W": -12.3, "J": 12345.0, "s": 12.3, "+s": -7200.0}
    values: dict[str, Any] = {}
    for name, upper, unit in (field.groups() for field in FIELD.finditer(text)):
        for each in filter(None, (name, upper)):
            values[each] = numbers.get(unit, 12) if unit else NAMES.get(each, "energy_j")
    return fill_text(text, values)


# Commands that messages name.

COMMAND = re.compile(r"joulelab (?=[a-z])([^.,;()`]*)")
PROSE = {"was"}  # what joulelab itself did
ARGUMENTS = {"{meter}": "pdu1", "{scope}": "pdu1", "{doctor}": "pdu1"}  # RUN and METER are names as they are


@every_row("message", MESSAGES)
def test_the_commands_of_a_message_can_be_typed(message: Message) -> None:
    for text in (message.text, *_split_alternatives(message.next)):
        for found in COMMAND.finditer(text):
            words = [ARGUMENTS.get(word, word) for word in found[1].split()]
            if words[0] not in PROSE:
                _parse_command(words)


def _parse_command(words: list[str]) -> None:
    """Parse the words of a command as if they were typed, without calling it. Raises click.UsageError."""
    found: click.Command | None = commands
    context = click.Context(commands)
    while isinstance(found, click.Group):
        name, found, words = found.resolve_command(context, words)
        assert found is not None, name
        if isinstance(found, click.Group):
            context = click.Context(found, info_name=name, parent=context)
    assert found is not None
    found.make_context(found.name, words, parent=context).close()
    if found.name == "cap":  # it takes any words, and looks at them when it is called
        assert words[0] in VERBS, words


@every_row(
    "words", ["shew RUN", "show RUN --scopes", "show RUN --scope all", "cap stat", "compare", "show RUN lists it"]
)
def test_a_command_that_cannot_be_typed_is_noticed(words: str) -> None:
    with pytest.raises((click.UsageError, AssertionError)):
        _parse_command(words.split())


# What the source gives to its checks and notes.

FOUND_BEFORE = {"check_calibrations": "judge_use"}  # checks of codes and numbers that another function found


def _list_given_names() -> Iterator[tuple[str, str, set[str]]]:
    """Yield subject, code and the names of all values in reach of the function that makes a check or a note."""
    functions = {
        node.name: _read_function(node)
        for tree in read_trees("analysis")
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
    }
    for kind, subject in (("Check", "check"), ("Note", "study")):
        for name, (_, calls) in functions.items():
            if kind in calls:
                strings = _reach_strings(name, functions, set())
                strings |= _reach_strings(FOUND_BEFORE[name], functions, set()) if name in FOUND_BEFORE else set()
                for code in strings & {m.code for m in MESSAGES if m.subject == subject}:
                    yield subject, code, strings


def _read_function(function: ast.FunctionDef) -> tuple[set[str], set[str]]:
    """Return the strings of a function, and the names that it calls."""
    nodes = list(ast.walk(function))
    strings = {n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)}
    called = [n.func for n in nodes if isinstance(n, ast.Call)]
    return strings, {f.id if isinstance(f, ast.Name) else getattr(f, "attr", "") for f in called}


def _reach_strings(name: str, functions: dict[str, tuple[set[str], set[str]]], seen: set[str]) -> set[str]:
    seen.add(name)
    strings, calls = functions[name]
    found = set(strings)
    for called in calls - seen:
        if called in functions and called not in seen:
            found |= _reach_strings(called, functions, seen)
    return found


def test_every_field_of_a_message_is_given_by_the_source() -> None:
    given: dict[tuple[str, str], set[str]] = {}
    for subject, code, names in _list_given_names():
        given.setdefault((subject, code), {"scope"}).update(names)
    lacking = {
        (m.subject, m.code): fields
        for m in MESSAGES
        if m.subject in ("check", "study") and not m.code.startswith("pooled.")  # their names are put together
        if (m.subject, m.code) in given
        if (fields := (list_fields(m.text) | list_fields(m.next)) - given[m.subject, m.code] - {"run"})
    }
    assert not lacking
    known = {m.code for m in MESSAGES if m.subject == "check" and not m.code.startswith("throttled.")}
    assert {code for subject, code in given if subject == "check"} >= known


# Wording.


def test_optional_parts_are_left_out_and_unknown_codes_are_shown() -> None:
    assert word_check(Check("gaps", "failed", "gpu:0", {"lost_share": 0.5})).text == (
        "gpu:0: no readings in 50 % of the time"
    )
    worded = word_check(Check("from.elsewhere", "warning", "gpu:0", {"power_w": 5.0}))
    assert (worded.name, worded.text, worded.next) == ("from", "gpu:0: power_w 5.0", "")
    stored = Check("gaps", "warning", texts={"stored": "gpu:0: 5% of the time without readings"})
    assert word_check(stored).text == "gpu:0: 5% of the time without readings"
    assert word_note("a sentence") == "a sentence"
    assert word_note(Note("strange", {"runs": 2})) == "strange: {'runs': 2}"


def test_texts_of_files_cannot_move_the_cursor() -> None:
    assert "\x1b" not in word_check(Check("source", "warning", "log", texts={"what": "\x1b[31mred"})).text


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ({"energy_low_share": 0.001, "energy_high_share": 0.02}, "energy 0.10 % to 2.0 %"),
        ({"energy_low_share": 0.02, "energy_high_share": 0.02}, "energy 2.0 % (12 degrees"),
    ],
)
def test_a_range_of_equal_ends_is_one_value(numbers: dict[str, float], words: str) -> None:
    freedom = {"energy_low_freedom": 12, "energy_high_freedom": 12}
    assert words.replace(" % to", " to") in word_note(Note("pooled.all", numbers | freedom))


def test_a_list_may_lack_its_first_part() -> None:
    numbers = {
        f"time_{end}_{name}": value for end in ("low", "high") for name, value in (("share", 0.028), ("freedom", 4))
    }
    assert word_note(Note("pooled.all", numbers)).endswith("over all cells: time 2.8 % (4 degrees of freedom).")


def test_messages_of_apps_are_found_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "messages.py").touch()
    module = types.ModuleType("joulelab.demo.messages")
    module.MESSAGES = {"rack-full": ("failed", "{scope}: full", "remove {nodes:node}")}  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "joulelab.demo.messages", module)
    monkeypatch.setattr(catalogue_module, "ROOT", tmp_path)
    catalogue_module._list_others.cache_clear()
    try:
        worded = word_check(Check("rack-full", "failed", "rack 3", {"nodes": 1}))
        assert (worded.text, worded.next) == ("rack 3: full", "remove 1 node")
        assert list_messages()[-1].subject == "demo"
    finally:
        catalogue_module._list_others.cache_clear()


# joulelab messages.


def call(*words: str) -> str:
    found = CliRunner().invoke(command, words, env={"COLUMNS": "80"})
    assert found.exit_code == 0, found.output
    return found.output


def test_the_page_of_messages_is_what_the_command_prints() -> None:
    assert PAGE.read_text() == call("--markdown"), "joulelab messages --markdown > docs/reference/messages.md"


def test_the_command_lists_all_messages_or_those_of_a_code() -> None:
    every = call()
    assert all(m.code in every for m in MESSAGES)
    assert max(map(len, every.splitlines())) <= 80
    assert [m["code"] for m in json.loads(call("recorder", "--json"))] == ["recorder.died", "recorder.stuck"]
    assert json.loads(call("keeper", "--json"))[0].keys() == {"code", "subject", "status", "text", "next"}
    assert "cap.vanished" not in call("cap.left")
    unknown = CliRunner().invoke(command, ["cap.lefd"])
    assert (unknown.exit_code, "the nearest is 'cap.left'" in unknown.output) == (2, True)
    assert CliRunner().invoke(command, ["--json", "--markdown"]).exit_code == 2
