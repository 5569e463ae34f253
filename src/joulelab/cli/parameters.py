"""Define the option types and options that several commands share."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from joulelab.core.errors import ConfigError
from joulelab.core.text import read_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

F = TypeVar("F", bound="Callable[..., Any]")
# Keys of a context's `meta`: whether `--json` was given; the words after `--`.
JSON_ASKED = "joulelab.json_asked"
WORDS_AFTER_DASHES = "joulelab.words_after_dashes"
OPTION_WIDTH = 28  # of help pages with groups


class UsageError(click.UsageError):
    """Report options that do not fit together; `code` is stable, the text may change."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = f"usage.{code}"


class SplitCommand(click.Command):
    """Leave the words after `--` unparsed, in the context's `meta`: they are a command with its own options."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the words before `--`."""
        at = args.index("--") if "--" in args else len(args)
        ctx.meta[WORDS_AFTER_DASHES] = tuple(args[at + 1 :])
        return super().parse_args(ctx, args[:at])


class GroupedCommand(click.Command):
    """Print the options of a command in groups: title -> names of parameters; the last group has all others too."""

    def __init__(self, *args: Any, groups: Mapping[str, Sequence[str]], **given: Any) -> None:
        super().__init__(*args, **given)
        self.groups = groups

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, all groups with the same width."""
        options = [parameter for parameter in self.get_params(ctx) if isinstance(parameter, click.Option)]
        found = {option.name or "": record for option in options if (record := option.get_help_record(ctx))}
        width = min(max(len(names) for names, _ in found.values()), OPTION_WIDTH)
        last = list(self.groups)[-1]
        others = [name for name in found if not any(name in names for names in self.groups.values())]
        for title, names in self.groups.items():
            rows = [found[name] for name in (*names, *(others if title == last else ())) if name in found]
            if rows:
                with formatter.section(title):
                    formatter.write_dl([(names.ljust(width), text) for names, text in rows])


class Duration(click.ParamType[float]):
    """Take a time of at least `least` s: `10`, `10s`, `500ms`, `2m`, `1h`; the value is in s."""

    name = "time"

    def __init__(self, least: float = 0.0) -> None:
        self.least = least

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Convert a text such as `500ms` to seconds."""
        try:
            return read_seconds(value, self.least)
        except ConfigError as error:
            self.fail(f"{error.what}; {error.next}", param, ctx)


class Precision(click.ParamType[float]):
    """Take a precision such as `1%`; the value is a share of one."""

    name = "percent"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Convert a text such as `1%` to a share."""
        if isinstance(value, float):
            return value
        from joulelab.study.folder import parse_precision

        try:
            return parse_precision(value)
        except ConfigError as error:
            self.fail(f"{error.what}; {error.next}", param, ctx)


UNTIL_OPTIONS = (
    click.option(
        "--until",
        type=Precision(),
        metavar="PERCENT",
        help="Repeat until the mean energy of a cell is this precise (95 %, between repeats): 1%.",
    ),
    click.option(
        "--repeat-max",
        type=click.IntRange(min=1),
        metavar="N",
        help="At most N runs per cell with --until.  [default: 20]",
    ),
)


def read_until(until: float | None, repeat_max: int | None, default: float | None = None) -> dict[str, Any]:
    """Return the fields of a plan that `--until` and `--repeat-max` set; `default` is the precision of a study file."""
    if repeat_max is not None and until is None and default is None:
        raise UsageError("needs-until", "--repeat-max is only for --until; add --until 1%")
    return {name: value for name, value in (("until", until), ("repeat_max", repeat_max)) if value is not None}


class KeyValue(click.ParamType[tuple[str, str]]):
    """Take `key=value`."""

    name = "key=value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        """Return key and value."""
        if isinstance(value, tuple):
            return value
        key, equals, rest = str(value).partition("=")
        if not equals or not key.strip():
            self.fail(f"{value!r} is not of the form key=value", param, ctx)
        return key.strip(), rest


class Amount(click.ParamType[tuple[str, float]]):
    """Take `samples=64`: a name and a number of at least 0."""

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
            self.fail(f"{value!r} is not a name and a number; write it as samples=64", param, ctx)
        return key.strip(), amount


def format_examples(*commands: str) -> str:
    """Return the end of a help page: commands to copy, one per line."""
    return "\b\nExamples:\n" + "\n".join(f"  {command}" for command in commands)


def runs_option(function: F) -> F:
    """Add `--runs DIR`."""
    return _add_folder_option("runs", "JOULELAB_RUNS")(function)


def studies_option(function: F) -> F:
    """Add `--studies DIR`."""
    return _add_folder_option("studies", "JOULELAB_STUDIES")(function)


def _add_folder_option(name: str, variable: str) -> Callable[[F], F]:
    return click.option(
        f"--{name}",
        type=click.Path(path_type=Path),
        envvar=variable,
        default=f"joulelab-{name}",
        show_default=True,
        metavar="DIR",
        help=f"Folder of the {name}; also set by {variable}.",
    )


def config_option(function: F) -> F:
    """Add `--config FILE`."""
    return click.option(
        "--config",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Read this configuration too; also set by JOULELAB_CONFIG.",
    )(function)


def add_format_option(*formats: str, text: str = "Output format.", metavar: str | None = None) -> Callable[[F], F]:
    """Add `--format`, which is stored as `form`: text, the formats of documents, and these."""
    from joulelab.report.tables import DOCUMENT_FORMATS

    choice = click.Choice(("text", *DOCUMENT_FORMATS, *formats))
    return click.option("--format", "form", type=choice, default="text", show_default=True, metavar=metavar, help=text)


def json_option(function: F) -> F:
    """Add `--json`."""
    return add_json_option("Print JSON instead of text.")(function)


def add_json_option(text: str) -> Callable[[F], F]:
    """Add `--json` with another help text."""

    def store_flag(context: click.Context, _option: click.Parameter, value: bool) -> bool:
        context.meta[JSON_ASKED] = context.meta.get(JSON_ASKED, False) or value
        return value

    return click.option("--json", "as_json", is_flag=True, is_eager=True, callback=store_flag, help=text)


def store_format(context: click.Context, _option: click.Parameter, value: str) -> str:
    """Print errors as JSON too, where an option `--format json` asks for it."""
    context.meta[JSON_ASKED] = context.meta.get(JSON_ASKED, False) or value == "json"
    return value


METER_OPTIONS = (
    click.option("--meter", "meters", multiple=True, metavar="NAME", help="Read only this meter or kind; repeatable."),
    click.option("--no-meter", "without", multiple=True, metavar="NAME", help="Do not read this meter; repeatable."),
    config_option,
    click.option("--estimate", is_flag=True, help="Add an estimate: load x rated power, marked as estimate."),
    click.option(
        "--rated-cpu",
        type=click.FloatRange(min=0, min_open=True),
        metavar="W",
        help="Rated power of all CPUs together, for --estimate.",
    ),
)
RUN_OPTIONS = (
    click.option("--label", "labels", multiple=True, type=KeyValue(), help="Attach a label; repeatable."),
    click.option("--period", type=Duration(), help="Time between power readings.  [default: 0.1s]"),
    click.option("--idle", type=Duration(), help="Measure idle power this long before the command."),
    click.option(
        "--tail",
        type=Duration(),
        help="Keep recording this long after the command, for slow meters.  [default: 0.3s]",
    ),
    *METER_OPTIONS,
    click.option(
        "--capture",
        type=click.Path(path_type=Path, dir_okay=False),
        metavar="FILE",
        help="Copy the command's output to this file.",
    ),
    click.option(
        "-o",
        "--output",
        type=click.Path(path_type=Path, dir_okay=False),
        metavar="FILE",
        help="Write the result as JSON to this file too.",
    ),
    click.option("-q", "--quiet", is_flag=True, help="Do not print the result."),
    json_option,
    runs_option,
)


def hide_options(*options: Callable[[F], F]) -> tuple[Callable[[F], F], ...]:
    """Return options that still work, but are not in the help."""

    def hide(option: Callable[[F], F]) -> Callable[[F], F]:
        def add(function: F) -> F:
            made = option(function)
            made.__click_params__[-1].hidden = True  # type: ignore[attr-defined]  # where click collects options
            return made

        return add

    return tuple(hide(option) for option in options)


def add_run_options(
    function: Callable[..., None], *, name_help: str = "Name the run, to find it again."
) -> Callable[..., None]:
    """Add the options of `joulelab run`."""
    name_option = click.option("--name", metavar="NAME", help=name_help)
    return add_options((name_option, *RUN_OPTIONS))(function)


def add_options(options: tuple[Callable[..., Any], ...]) -> Callable[[F], F]:
    """Add several options, in this order in the help."""

    def add(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return add


def name_run(run: Path) -> str:
    """Return how to name a run in commands: its id, or its path if it is not in the usual folder."""
    context = click.get_current_context()
    is_typed = context.get_parameter_source("runs") is click.core.ParameterSource.COMMANDLINE
    is_usual = not is_typed and run.parent.resolve() == Path(context.params["runs"]).resolve()
    return run.name if is_usual else shlex.quote(str(run))
