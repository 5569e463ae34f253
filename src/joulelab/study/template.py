"""Put the values of knobs into a command: `{gpus}` is a placeholder, every other brace stays as it is."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from joulelab.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

KNOB_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# `${HOME}` is the shell's.
_BRACED = re.compile(r"(?<!\$)(?P<open>\{+)(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?P<close>\}+)")
# Knobs that joulelab sets itself: they need not be in the command.
OWN_KNOBS = ("cap", "cpu_cap", "clock", "gpus")


def list_placeholders(command: Sequence[str]) -> list[str]:
    """Return the names of the placeholders of a command, each once, in order."""
    found = (m for word in command for m in _BRACED.finditer(word) if _count_braces(m) == 1)
    return list(dict.fromkeys(m["name"] for m in found))


def fill_command(command: Sequence[str], texts: Mapping[str, str]) -> list[str]:
    """Return the command with values in place of its placeholders; `{{name}}` becomes `{name}`."""

    def put(match: re.Match[str]) -> str:
        depth = _count_braces(match)
        before = match["open"][: len(match["open"]) - depth]
        after = match["close"][: len(match["close"]) - depth]
        if depth == 1:
            return f"{before}{texts[match['name']]}{after}"
        return f"{before}{'{' * (depth - 1)}{match['name']}{'}' * (depth - 1)}{after}"

    return [_BRACED.sub(put, word) for word in command]


def check_command(command: Sequence[str], knobs: Collection[str]) -> None:
    """Refuse a placeholder without a knob, and a knob that nothing depends on. Raises ConfigError."""
    named = list_placeholders(command)
    for name in named:
        if name not in knobs:
            add = f"add --{name.replace('_', '-')}" if name in OWN_KNOBS else f"add --set {name}=VALUES"
            raise ConfigError(
                f"the placeholder {{{name}}} has no knob",
                where="command",
                why=f"knobs: {', '.join(knobs)}" if knobs else "there is no knob",
                next=f"{_suggest_near(name, knobs)}{add}, or write {{{{{name}}}}} for a literal {{{name}}}",
            )
    for name in knobs:
        if name not in named and name not in OWN_KNOBS:
            there = ", ".join(f"{{{other}}}" for other in named)
            raise ConfigError(
                f"the knob {name} is not in the command",
                where=f"--set {name}",
                why=f"placeholders: {there}" if named else "the command has no placeholder",
                next=f"{_suggest_near(name, named)}put {{{name}}} where its value belongs",
            )


def _count_braces(match: re.Match[str]) -> int:
    return min(len(match["open"]), len(match["close"]))


def _suggest_near(name: str, valid: Collection[str]) -> str:
    import difflib

    close = difflib.get_close_matches(name, list(valid), n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}? or " if close else ""
