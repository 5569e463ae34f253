"""Every help page, of the lab and of the apps: plain English, 80 columns, an example that can be typed, --json."""

from __future__ import annotations

import copy
import json
import re
import shlex

import click
import pytest
from tests.rows import every_row

from joulelab.cli.group import commands, run_commands

WIDTH = 80
# Words of a private dialect that a stranger does not understand at once; write the noun instead.
DIALECT = re.compile(
    r"\b(told|tells?|said|says?|nobody|somebody|heard?|hears?|so (?:many|much|long|often)|what (?:is|was|are|were)|"
    r"is none|how far|of it)\b",
    re.IGNORECASE,
)
# Commands that print nothing a program could read, each with the reason.
WITHOUT_JSON: dict[str, str] = {}


def list_commands(
    command: click.Command, path: str, context: click.Context | None = None
) -> list[tuple[str, click.Context]]:
    """Return the path and the context of a command and of all commands below it."""
    # A copy: click keeps the help option of whoever asked first, with the names of that context.
    command = copy.copy(command)
    command._help_option = None
    own = click.Context(
        command,
        parent=context,
        info_name=path.rpartition(" ")[2],
        terminal_width=WIDTH,
        help_option_names=["-h", "--help"],
    )
    found = [(path, own)]
    if isinstance(command, click.Group):
        for name in command.list_commands(own):
            below = command.get_command(own, name)
            assert below is not None, name
            if not below.hidden:
                found += list_commands(below, f"{path} {name}", own)
    return found


EVERY = dict(list_commands(commands, "joulelab"))


def find_examples(context: click.Context) -> list[str]:
    """Return the examples of a help page, with the lines that a backslash continues joined."""
    _, _, text = (context.command.epilog or "").partition("Examples:\n")
    return [line.strip() for line in text.replace("\\\n", " ").splitlines() if line.strip()]


@every_row("path", EVERY)
def test_a_help_page_fits_into_80_columns(path: str) -> None:
    text = EVERY[path].get_help()
    assert max(map(len, text.splitlines())) <= WIDTH
    assert "\\b" not in text


@every_row("path", EVERY)
def test_a_help_page_is_in_plain_english(path: str) -> None:
    assert DIALECT.findall(EVERY[path].get_help()) == []


@every_row("path", EVERY)
def test_the_first_sentence_fits_into_the_list_of_commands(path: str) -> None:
    first = (EVERY[path].command.help or "").split("\n\n")[0]
    assert first.endswith(".")
    assert len(first) <= WIDTH - 10
    assert "..." not in EVERY[path].command.get_short_help_str(WIDTH)


@every_row("path", EVERY)
def test_a_help_page_has_examples_of_itself(path: str) -> None:
    examples = find_examples(EVERY[path])
    assert examples
    assert all(example.startswith("joulelab ") for example in examples)
    assert path == "joulelab" or all(f"{example} ".startswith(f"{path} ") for example in examples)


@every_row("path", EVERY)
def test_the_options_of_examples_exist(path: str) -> None:
    for example in find_examples(EVERY[path]):
        words = shlex.split(example.partition(" > ")[0])
        words = words[: words.index("--")] if "--" in words else words
        named = max((p for p in EVERY if f"{' '.join(words)} ".startswith(f"{p} ")), key=len)
        known = {option for p in EVERY[named].command.params for option in (*p.opts, *p.secondary_opts)}
        used = {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)}
        assert used <= known | {"-h", "--help", "--pause"}, example  # --pause is the notebook's


@every_row("path", EVERY)
def test_every_option_has_a_help_text(path: str) -> None:
    options = [p for p in EVERY[path].command.params if isinstance(p, click.Option) and not p.hidden]
    assert [option.opts for option in options if not (option.help or "")[:1].isupper()] == []


@every_row("path", [path for path, own in EVERY.items() if not isinstance(own.command, click.Group)])
def test_every_command_prints_json_on_request(path: str) -> None:
    options = {option for parameter in EVERY[path].command.params for option in parameter.opts}
    assert ("--json" in options) != (path in WITHOUT_JSON)


@pytest.mark.parametrize("path", [path for path, own in EVERY.items() if not isinstance(own.command, click.Group)])
def test_a_usage_error_of_every_command_is_json_on_request(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*path.split()[1:], "--no-such-option", "--json"]
    assert run_commands(words) in (2, 125)
    out, err = capsys.readouterr()
    error = json.loads(out)["error"]
    assert list(error) == ["code", "what", "where", "why", "next"]
    assert (error["code"], error["where"], error["next"]) == ("usage", path, f"{path} --help")
    assert "--no-such-option" in error["what"]
    assert err.startswith("joulelab: ")
    assert f"`{path} --help`" in err
