"""Find joulelab's commands by name: a file of this folder, or `commands.py` of an app; imported when called.

Other packages add commands by the entry-point group `joulelab.commands`.
"""

from __future__ import annotations

import importlib
import itertools
import os
import sys
from typing import Any

import click

from joulelab.cli import INTERRUPTED_CODE
from joulelab.cli.output import describe_error, print_json, print_notice
from joulelab.cli.parameters import JSON_ASKED, UsageError, format_examples
from joulelab.core.entry_points import list_entry_points
from joulelab.core.errors import ConfigError, JoulelabError, explain_defect
from joulelab.core.text import find_near_name
from joulelab.core.version import __version__

# The help of each command by section, so that `joulelab --help` imports none. A test compares it with the commands.
SECTIONS = {
    "Measure": {
        "run": "Measure the energy of a command or a notebook.",
        "watch": "Watch power and energy live, of a run or of this node.",
        "serving": "Measure the energy of inference servers, per token and request.",
        "mark": "Mark a phase, work or a fact from within a measured script.",
        "import": "Make a run from measurements of other programs.",
        "join": "Join the runs of the nodes of one job into one run.",
    },
    "Results": {
        "show": "Show the energy of a run, finished or still running.",
        "ls": "List the runs: age, duration, energy, outcome, command.",
        "compare": "Compare two runs or two groups of runs.",
        "gate": "Fail if energy is significantly above a baseline, for CI.",
        "report": "Write a report of a run, several runs or a study: one HTML file.",
        "figure": "Draw figures of a run, several runs or a study, for papers.",
        "cite": "Print a methods paragraph for a paper, and the citation of joulelab.",
        "statement": "State energy and CO2e of runs: model card, BoAmps, SCI or text.",
        "query": "Query all runs with SQL.",
        "export": "Write the readings of a run as CSV, Parquet or JSON.",
        "verify": "Check runs and the figures of others.",
        "dashboard": "Show runs and studies in the browser.",
        "messages": "List every check and note by its code: status, text, next step.",
    },
    "Power caps": {
        "cap": "Measure a command under power caps, then restore the caps.",
        "sweep": "Measure a command at every cap and setting, and find the best.",
        "tune": "Find the best power cap for a command with few trials.",
        "capd": "Set power caps for users without root, as a daemon.",
    },
    "Studies and plans": {
        "study": "Run a study from a file: workloads x node types x settings.",
        "workload": "Run, list and describe reference workloads: the models of the studies.",
        "reproduce": "Repeat a published study on a simulated node, and compare.",
        "plan": "Plan racks, cost, carbon and start times from measurements.",
    },
    "Meters": {
        "meters": "List the meters of this machine and those that are missing.",
        "doctor": "Test all meters that a run would read, and show how to fix problems.",
        "calibrate": "Measure gain and offset of meters against a better one.",
        "calibrations": "List, add and remove the calibrations of this machine's meters.",
        "site": "Set or show the site: carbon intensity, price of electricity, PUE.",
        "twin": "Simulate a node whose GPUs and CPUs other tools can read.",
        "agent": "Export the meters of this node to Prometheus.",
    },
}
COMMANDS = {name: text for section in SECTIONS.values() for name, text in section.items()}
# Commands of apps. The lab imports no app, except here by name.
APPS = {
    "agent": "joulelab.agent.commands",
    "calibrate": "joulelab.calibration.commands",
    "calibrations": "joulelab.calibration.calibration_list",
    "dashboard": "joulelab.dashboard.commands",
    "plan": "joulelab.plan.commands",
    "reproduce": "joulelab.papers.commands",
    "serving": "joulelab.serving.commands",
    "twin": "joulelab.twin.commands",
    "workload": "joulelab.workloads.commands",
}
ALIASES = {"serve": "dashboard"}  # earlier names, not in the help
ENTRY_POINTS = "joulelab.commands"
EXAMPLES = format_examples(
    "joulelab run -- python train.py",
    "joulelab show last",
    "joulelab meters",
    "joulelab COMMAND --help",
)
# Commands that do not restore left-over caps: they do it themselves, or see a simulated machine.
RESTORE_NO_CAPS = ("agent", "cap", "capd", "mark", "twin")
OWN_FAILURE = 125
# Commands that return the workload's exit code; their own failures return 125, which workloads seldom do.
RUNNING = ("run", "cap")
# Commands whose exit code 1 is an answer: all that fails returns 2.
DECIDING = ("gate",)
# Key of a context's `meta`: set by a subcommand that returns the workload's exit code.
RUNS_WORKLOAD = "joulelab.runs_workload"
SIGPIPE_CODE = 141


class CommandGroup(click.Group):
    """Find commands by name, and import only the one that is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 click's signature
        """Return the names in the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 click's signature
        """Return a command, None if it is unknown."""
        cmd_name = ALIASES.get(cmd_name, cmd_name)
        if cmd_name not in COMMANDS:
            return _load_outside(cmd_name)
        command: click.Command = importlib.import_module(APPS.get(cmd_name, f"joulelab.cli.{cmd_name}")).command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; the error for an unknown one suggests the nearest name."""
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            known = [*COMMANDS, *_list_outside()]
            near = find_near_name(args[0], known)
            advice = f"did you mean `joulelab {near}`?" if near else f"there are {', '.join(known)}"
            raise UsageError("no-such-command", f"unknown command {args[0]!r}; {advice}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """List the commands by section, then those of other packages."""
        outside = {name: f"From the package {package}." for name, package in _list_outside().items()}
        width = max(map(len, [*COMMANDS, *outside]))
        for title, section in {**SECTIONS, "Other packages": outside}.items():
            if section:
                with formatter.section(title):
                    formatter.write_dl([(f"{name:<{width}}", text) for name, text in section.items()])

    def invoke(self, ctx: click.Context) -> Any:
        """Call the command; print an error in one line and exit with its code."""
        try:
            return super().invoke(ctx)
        except JoulelabError as error:
            print_notice(str(error))
            _print_json_error(error, ctx)
            usual = 2 if isinstance(error, ConfigError) or ctx.invoked_subcommand in DECIDING else 1
            running = ctx.invoked_subcommand in RUNNING or ctx.meta.get(RUNS_WORKLOAD)
            ctx.exit(OWN_FAILURE if running else usual)
        except BrokenPipeError:
            _close_output()
            ctx.exit(SIGPIPE_CODE)


def _list_outside() -> dict[str, str]:
    """Return the commands of other packages by name, each with its package."""
    points = sorted(list_entry_points(ENTRY_POINTS))
    return {p.name: p.dist.name if p.dist else p.value for p in points if p.name not in COMMANDS}


def _load_outside(name: str) -> click.Command | None:
    """Return a command of another package, None if no package has it."""
    for point in (point for point in list_entry_points(ENTRY_POINTS) if point.name == name):
        try:
            command = point.load()
        except Exception as error:
            raise _refuse_package(name, f"{type(error).__name__}: {error}") from error
        if not isinstance(command, click.Command):
            raise _refuse_package(name, f"{point.value} is not a click command")
        return command
    return None


def _refuse_package(name: str, why: str) -> ConfigError:
    return ConfigError(
        "its package is broken",
        where=f"command {name}",
        why=why,
        next="update or remove that package",
        code="config.broken-package",
    )


@click.group(cls=CommandGroup, epilog=EXAMPLES, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="joulelab %(version)s")
@click.pass_context
def commands(ctx: click.Context) -> None:
    """Measure the energy of a command, with its uncertainty."""
    if ctx.invoked_subcommand not in RESTORE_NO_CAPS:
        from joulelab.control.leftovers import restore_at_start

        restore_at_start(os.environ, print_notice)


def run_commands(words: list[str]) -> int:
    """Run a command line and return the exit code."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # the shell closed it: >&-
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 open until the end
    own = words[: words.index("--")] if "--" in words else words  # the words after it are the workload's
    asked = "--json" in own or "--format=json" in own or ("--format", "json") in itertools.pairwise(own)
    is_online = own[:1] == ["tune"] and "--online" in own
    is_running = is_online or own[:2] == ["workload", "run"] or own[:1] in [[name] for name in RUNNING]
    is_deciding = own[:1] in [[name] for name in DECIDING]
    # Another code could be mistaken for that of the workload, or for an answer.
    own_failure = OWN_FAILURE if is_running else 2 * is_deciding
    try:
        code = commands.main(args=words, prog_name="joulelab", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        _print_usage_error(error, own)
        _print_json_error(error, error.ctx if isinstance(error, click.UsageError) else None, asked=asked)
        return own_failure or error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED_CODE
    except BrokenPipeError:
        _close_output()
        return SIGPIPE_CODE
    except OSError as error:
        if error.filename:
            _print_json_error(error, None, asked=asked)
        _close_output()
        what = f"cannot use {error.filename}" if error.filename else "cannot write the output"
        print_notice(f"{what} ({error.strerror or error})")
        return 2 if is_deciding else 1
    except Exception as error:  # noqa: BLE001 a defect: its traceback belongs to the report
        import traceback

        traceback.print_exception(error)
        defect = explain_defect(error)
        print_notice(str(defect))
        _print_json_error(defect, None, asked=asked)
        return own_failure or 1
    return code if isinstance(code, int) else 0


def _print_json_error(
    error: JoulelabError | click.ClickException | OSError, ctx: click.Context | None, *, asked: bool = False
) -> None:
    """Print an error as JSON if `--json` was given; `asked` decides if the options could not be parsed."""
    if asked if ctx is None else ctx.meta.get(JSON_ASKED, asked):
        # One line: some commands print one JSON object per line.
        print_json({"error": describe_error(error)}, one_line=True)


def _close_output() -> None:
    """Discard the rest of our output: its reader is gone, and the interpreter would fail to flush it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _print_usage_error(error: click.ClickException, words: list[str]) -> None:
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        error.show()
        return
    text = error.format_message()
    if isinstance(error, click.UsageError) and "`joulelab" not in text:
        page = f"`{error.ctx.command_path if error.ctx else _find_command_path(words)} --help`"
        text += f" See {page}." if text.endswith((".", "?")) else f"; see {page}"
    print_notice(text)


def _find_command_path(words: list[str]) -> str:
    """Return the command that words call, with its group; click does not name it if an option lacks its argument."""
    path = "joulelab"
    command: click.Command = commands
    for word in words:
        found = command.get_command(click.Context(command), word) if isinstance(command, click.Group) else None
        if found is None:
            break
        path, command = f"{path} {word}", found
    return path
