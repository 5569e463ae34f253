"""Find joulelab's commands by name: a file of this folder, or `commands.py` of an app; imported when it is called.

Outside packages add commands by the entry-point group `joulelab.commands`.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

import click

from joulelab.cli import INTERRUPTED_CODE
from joulelab.core.errors import ConfigError, JoulelabError
from joulelab.core.version import __version__

if TYPE_CHECKING:
    from joulelab.run.child_process import ChildProcess

# What `joulelab --help` says of each command, so that it imports none of them. A test holds it against the commands.
COMMANDS = {
    "run": "Measure the energy of a command or a notebook.",
    "show": "Show the energy of a run, finished or still running.",
    "watch": "Watch a run that goes on, or this node: power, energy so far, GPUs, meters.",
    "ls": "List the runs: age, duration, energy, end, command.",
    "compare": "Compare two runs, with the interval of the difference.",
    "report": "Write a report of a run, several runs or a study: one HTML file.",
    "figure": "Draw figures of a run, several runs or a study, for papers.",
    "mark": "Mark a phase, work or a fact from a script that is being measured.",
    "cap": "Measure a command under power caps, then restore the original caps.",
    "sweep": "Run a command with every combination of caps, GPU counts and settings; find the best.",
    "study": "Run a study from a file: workloads x node types x settings, repeated.",
    "reproduce": "Run a paper's study on its twin, in virtual time; print published beside reproduced.",
    "plan": "Plan with what was measured: racks, cost, carbon, when to run.",
    "workload": "Run the models of the studies, or your own, measured; list and describe them.",
    "tune": "Find the best power cap for a command with few trials.",
    "meters": "List the meters of this machine, and how to get those that are missing.",
    "doctor": "Test each meter for a few seconds, and explain how to repair it.",
    "serve": "Show runs and studies in the browser.",
    "twin": "Serve a simulated node that NVML and RAPL tools take for a real one.",
    "export": "Write the readings of a run as CSV, Parquet or JSON.",
    "query": "Query all runs with SQL.",
    "verify": "Check that the files of runs are unchanged.",
    "messages": "List every check and note by its code: severity, text, next step.",
    "import": "Make a run from measurements of other programs.",
    "agent": "Export this node's meters to Prometheus until SIGTERM or Ctrl-C.",
    "capd": "Set power caps for users without root: a daemon that runs as root.",
}
# Commands of apps: the lab reaches an app by its name only.
APPS = {
    "agent": "joulelab.agent.commands",
    "plan": "joulelab.plan.commands",
    "reproduce": "joulelab.papers.commands",
    "serve": "joulelab.dashboard.commands",
    "twin": "joulelab.twin.commands",
    "workload": "joulelab.workloads.commands",
}
GROUP = "joulelab.commands"
# These do not put back caps that were left behind: they deal with that themselves, or see another machine.
LOOK_AWAY = ("agent", "cap", "capd", "mark", "twin")
OWN_FAILURE = 125
# Their exit code is the workload's, so their own failures have one that is seldom a workload's.
RUNNING = ("run", "cap")
# What a command of a group says by the context's `meta` if it is one of those.
RUNS_WORKLOAD = "joulelab.runs_workload"
SIGPIPE_CODE = 141


class CommandGroup(click.Group):
    """Find commands by name, and import only the one that is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 click's signature
        """Return the names in the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 click's signature
        """Return a command, None where there is none of that name."""
        if cmd_name not in COMMANDS:
            return _load_outside(cmd_name)
        command: click.Command = importlib.import_module(APPS.get(cmd_name, f"joulelab.cli.{cmd_name}")).command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; an unknown one names the nearest."""
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            import difflib

            from joulelab.cli.parameters import UsageError

            known = [*COMMANDS, *_list_outside()]
            near = difflib.get_close_matches(args[0], known, n=1, cutoff=0.5)
            advice = f"did you mean `joulelab {near[0]}`?" if near else f"there are {', '.join(known)}"
            raise UsageError("no-such-command", f"there is no command {args[0]!r}; {advice}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """List the commands from the table, and those of outside packages."""
        outside = {name: f"From the package {package}." for name, package in _list_outside().items()}
        with formatter.section("Commands"):
            formatter.write_dl([*COMMANDS.items(), *outside.items()])

    def invoke(self, ctx: click.Context) -> Any:
        """Call the command; say what failed in one line, and leave with the code that fits."""
        try:
            return super().invoke(ctx)
        except JoulelabError as error:
            click.echo(f"joulelab: {error}", err=True)
            _print_json_error(error, ctx)
            usual = 2 if isinstance(error, ConfigError) else 1
            running = ctx.invoked_subcommand in RUNNING or ctx.meta.get(RUNS_WORKLOAD)
            ctx.exit(OWN_FAILURE if running else usual)
        except BrokenPipeError:
            _close_output()
            ctx.exit(SIGPIPE_CODE)


def _list_outside() -> dict[str, str]:
    """Return the commands of outside packages by name, each with its package."""
    from importlib.metadata import entry_points

    points = sorted(entry_points(group=GROUP))
    return {p.name: p.dist.name if p.dist else p.value for p in points if p.name not in COMMANDS}


def _load_outside(name: str) -> click.Command | None:
    """Return a command of an outside package, None where no package has it."""
    from importlib.metadata import entry_points

    for point in entry_points(group=GROUP, name=name):
        try:
            command = point.load()
        except Exception as error:
            raise _refuse_package(name, f"{type(error).__name__}: {error}") from error
        if not isinstance(command, click.Command):
            raise _refuse_package(name, f"{point.value} is not a click command")
        return command
    return None


def _refuse_package(name: str, why: str) -> ConfigError:
    what, then = "its package is broken", "update or remove that package"
    return ConfigError(what, where=f"command {name}", why=why, next=then, code="config.broken-package")


@click.group(cls=CommandGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="joulelab %(version)s")
@click.pass_context
def commands(ctx: click.Context) -> None:
    """Measure what a command costs in energy, and say how far to trust the figure.

    joulelab run -- python train.py
    """
    if ctx.invoked_subcommand not in LOOK_AWAY:
        from joulelab.control.leftovers import restore_at_start

        restore_at_start(os.environ, lambda said: click.echo(f"joulelab: {said}", err=True))


def run_commands(words: list[str], early: list[ChildProcess]) -> int:
    """Run a command line and return the exit code; `early` is a recorder that waits for whoever takes it."""
    try:
        code = commands.main(args=words, prog_name="joulelab", standalone_mode=False, obj=early)
        sys.stdout.flush()
    except click.ClickException as error:
        _print_usage_error(error)
        asked = "--json" in (words[: words.index("--")] if "--" in words else words)
        _print_json_error(error, error.ctx if isinstance(error, click.UsageError) else None, asked=asked)
        # Any other code could be taken for the workload's.
        running = words[:2] == ["workload", "run"] or (words[:1] and words[0] in RUNNING)
        return OWN_FAILURE if running else error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED_CODE
    except BrokenPipeError:
        _close_output()
        return SIGPIPE_CODE
    except OSError as error:
        if error.filename:
            _print_json_error(error, None, asked="--json" in words)
        _close_output()
        what = f"{error.filename} cannot be used" if error.filename else "the output cannot be written"
        click.echo(f"joulelab: {what} ({error.strerror or error})", err=True)
        return 1
    return code if isinstance(code, int) else 0


def _print_json_error(
    error: JoulelabError | click.ClickException | OSError, ctx: click.Context | None, *, asked: bool = False
) -> None:
    """Print an error on standard output where `--json` was given; `asked` decides where options were not read."""
    from joulelab.cli.output import describe_error, print_json
    from joulelab.cli.parameters import JSON_ASKED

    if asked if ctx is None else ctx.meta.get(JSON_ASKED, asked):
        # One line: some commands print an object per line until they fail.
        print_json({"error": describe_error(error)}, one_line=True)


def _close_output() -> None:
    """Throw the rest of our output away: whoever read it has gone, and the interpreter still wants to flush."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _print_usage_error(error: click.ClickException) -> None:
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        error.show()
        return
    path = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "joulelab"
    text = error.format_message()
    usage = isinstance(error, click.UsageError) and "`joulelab" not in text
    click.echo(f"joulelab: {text}" + (f"; see `{path} --help`" if usage else ""), err=True)
