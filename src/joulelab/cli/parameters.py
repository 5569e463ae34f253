"""Hold the options that several commands share, and the kinds of values they take."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from joulelab.core.duration import read_seconds
from joulelab.core.errors import ConfigError, JoulelabError

if TYPE_CHECKING:
    from collections.abc import Callable

F = TypeVar("F", bound="Callable[..., Any]")
# Key of a context's `meta`: whether `--json` was given.
JSON_ASKED = "joulelab.json_asked"


class UsageError(click.UsageError):
    """Report options that do not fit together; `code` is stable, whatever the text is."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = f"usage.{code}"


class Duration(click.ParamType[float]):
    """Take a time of at least so many s: `10`, `10s`, `500ms`, `2m`, `1h`; the value is in s."""

    name = "time"

    def __init__(self, least: float = 0.0) -> None:
        self.least = least

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return seconds."""
        try:
            return read_seconds(value, self.least)
        except ConfigError as error:
            self.fail(f"{error.what}; {error.next}", param, ctx)


class Pair(click.ParamType[tuple[str, str]]):
    """Take `key=value`."""

    name = "key=value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        """Return key and value."""
        if isinstance(value, tuple):
            return value
        key, equals, rest = str(value).partition("=")
        if not equals or not key.strip():
            self.fail(f"{value!r} is no pair; write it as key=value", param, ctx)
        return key.strip(), rest


class Amount(click.ParamType[tuple[str, float]]):
    """Take `samples=64`: a name and a number."""

    name = "name=number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, float]:
        """Return name and number."""
        if isinstance(value, tuple):
            return value
        key, _, number = str(value).partition("=")
        try:
            amount = float(number)
        except ValueError:
            amount = float("nan")
        if not key.strip() or not 0 <= amount < float("inf"):
            self.fail(f"{value!r} is no amount; write it as samples=64", param, ctx)
        return key.strip(), amount


def runs_option(function: F) -> F:
    """Add `--runs DIR`."""
    return click.option(
        "--runs",
        type=click.Path(path_type=Path),
        envvar="JOULELAB_RUNS",
        default="joulelab-runs",
        show_default=True,
        metavar="DIR",
        help="Store of runs (JOULELAB_RUNS).",
    )(function)


def studies_option(function: F) -> F:
    """Add `--studies DIR`."""
    return click.option(
        "--studies",
        type=click.Path(path_type=Path),
        envvar="JOULELAB_STUDIES",
        default="joulelab-studies",
        show_default=True,
        metavar="DIR",
        help="Store of studies (JOULELAB_STUDIES).",
    )(function)


def config_option(function: F) -> F:
    """Add `--config FILE`."""
    return click.option(
        "--config",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Configuration to read on top of the usual ones (JOULELAB_CONFIG).",
    )(function)


def json_option(function: F) -> F:
    """Add `--json`."""
    return add_json_option("Print JSON instead of a table.")(function)


def add_json_option(text: str) -> Callable[[F], F]:
    """Add `--json` with a help text of its own."""

    def note(context: click.Context, _option: click.Parameter, value: bool) -> bool:
        context.meta[JSON_ASKED] = value
        return value

    return click.option("--json", "as_json", is_flag=True, is_eager=True, callback=note, help=text)


def handle(run: Path) -> str:
    """Return how a run is named in commands: by its id, or by its path where it is not in the usual store."""
    context = click.get_current_context()
    by_hand = context.get_parameter_source("runs") is click.core.ParameterSource.COMMANDLINE
    usual = not by_hand and run.parent.resolve() == Path(context.params["runs"]).resolve()
    return run.name if usual else shlex.quote(str(run))


def say(text: str) -> None:
    """Say something beside what a command prints."""
    click.echo(f"joulelab: {text}", err=True)


def describe_error(error: JoulelabError | click.ClickException | OSError) -> dict[str, Any]:
    """Return code, what, where, why and next of an error, as `--json` prints it; `mistakes` are its parts, if any."""
    if not isinstance(error, JoulelabError) and isinstance(error.__cause__, JoulelabError):
        error = error.__cause__
    if isinstance(error, JoulelabError):
        parts = [describe_error(part) for part in getattr(error, "mistakes", ())]
        named = {key: getattr(error, key) for key in ("code", "what", "where", "why", "next")}
        return named | ({"mistakes": parts} if parts else {})
    if isinstance(error, OSError):
        where = str(error.filename) if error.filename else None
        return {"code": "system", "what": "a system call failed", "where": where, "why": error.strerror, "next": None}
    where = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "joulelab"
    code = getattr(error, "code", "usage")
    return {"code": code, "what": error.format_message(), "where": where, "why": None, "next": f"{where} --help"}


def print_json(data: Any, *, one_line: bool = False) -> None:
    """Print plain data as JSON on standard output, whole or not at all."""
    text = json.dumps(data, indent=None if one_line else 1, ensure_ascii=False, default=str, allow_nan=False)
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
