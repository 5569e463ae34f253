"""Print the help and the default output of every command, 80 columns wide: `python -m tests.docs.all_output > FILE`.

Everything runs on simulated nodes, in a folder of its own. What breaks a rule of output is listed on standard error;
then the exit code is 1. `--help-only` leaves the outputs out.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tests.cli.test_help import EVERY, WIDTH

from joulelab.report.messages import wording
from joulelab.report.tables import measure_text

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
WALL_RUN = "examples/runs/20261116-010031-d59a"
LATEST_S = 240.0
# Each line is typed in the folder in which the lines before left their runs and studies.
TYPED = """
joulelab
joulelab --version
joulelab meters
joulelab doctor
joulelab site
joulelab site --zone DE --price 0.30EUR --pue 1.2 --file joulelab.toml
joulelab site --list united
joulelab twin --list
joulelab twin --show 2xrtx6000
joulelab twin 2xrtx6000 -- joulelab meters
joulelab twin 2xrtx6000 -- joulelab doctor --for 1s
joulelab twin 2xrtx6000 -- joulelab run --name first -- sleep 2
joulelab twin 2xrtx6000 -- joulelab run --idle 1s --name second -- sleep 3
joulelab twin 8xh100 -- joulelab run --name node -- sleep 2
joulelab twin 2xrtx6000 -- joulelab run --name short -- true
joulelab twin 2xrtx6000 -- joulelab watch --once
joulelab run --name dark -- true
joulelab show
joulelab show first
joulelab show node
joulelab show node --budget
joulelab ls
joulelab compare first second
joulelab compare first node
joulelab compare examples/runs/20261118-015240-beb3 examples/runs/20261116-010031-d59a
joulelab report first second
joulelab figure list first
joulelab figure power first
joulelab cite
joulelab cite first
joulelab query "SELECT * FROM runs"
joulelab export first
joulelab verify first second
joulelab mark load -v
joulelab import csv examples/import/power.csv
joulelab join first second
joulelab twin 2xrtx6000 --idle -- joulelab cap status
joulelab twin 2xrtx6000 --idle -- joulelab cap 170 -- python -m joulelab.twin.job --gpus 2 --work 20
joulelab cap restore
joulelab twin 2xrtx6000 --idle -- joulelab sweep --cap 160,260 --dry-run -- python -m joulelab.twin.job --work 20
joulelab study plan caps.toml
joulelab study run caps.toml --no-figures
joulelab study status caps.toml
joulelab study report caps.toml --no-figures
joulelab report caps.toml
joulelab cite caps.toml
joulelab workload ls
joulelab workload info burn
joulelab workload run burn --preset smoke --print
joulelab reproduce gdansk --no-figures
joulelab plan rack --supply 70kW --rated 10.2kW --margin 27% --nodes 5 --max 8.48kW
joulelab plan rack WALL --supply 70kW --rated 10.2kW --margin 27%
joulelab plan rack WALL --supply 70kW --rated 10.2kW --margin 27% --why
joulelab plan cost WALL
joulelab plan cost WALL --tariff 0.32EUR --intensity table:US --pue 1.3±0.05 --statement
joulelab plan cost caps --work samples=1000000 --nodes 2
joulelab plan when WALL --intensity examples/plans/week.csv --from 2026-11-16T17:00Z --deadline 48h
joulelab plan queue --plan examples/plans/queue.toml --draws 20
joulelab plan cooling --node bnl-h100 --inlet 27
joulelab plan cooling WALL --node bnl-h100 --fan-rpm 13000
joulelab plan rates list
joulelab plan rates check table:DE
joulelab plan rates check examples/plans/week.csv
joulelab messages cap
joulelab capd --config capd.toml
joulelab dashboard --port 0
joulelab shwo
joulelab show nothing
joulelab run
joulelab plan rack last
"""
ENDED_BY_CTRL_C = ("joulelab dashboard", "joulelab agent --port")
NOTE = re.compile(r"^(?:note|warning|failed|problem)\b")
MOST_NOTES = 3
# Listings, files for other programs, and explanations that were asked for.
MANY_NOTES = re.compile(r"joulelab messages|--why|--print|--all|--help")
# A word that a shell finds; a sentence does not begin with one.
PROGRAMS = {"setfacl", "setcap", "printf", "export", *(name.split()[0] for name in wording.PROGRAMS)}
EXPONENT = re.compile(r"(?<![\w.:/=-])\d+(?:\.\d+)?e[+-]?\d+\b")
CUT = re.compile(r"…|(?<=\w)\.\.\.(?=\w)")
# Names of variables, which the shell replaces: `$HOME`.
PROMPT = re.compile(r"(?:^|\s)(?:->|\$) +(\S+)")


def list_help() -> Iterator[tuple[str, str]]:
    """Yield the command and the text of every help page."""
    for path, context in EVERY.items():
        yield f"{path} --help", context.get_help()


def find_violations(command: str, text: str) -> list[str]:
    """List what is wrong with an output: wide lines, cut values, many notes, exponents, prose in place of a command."""
    found = []
    is_help = command.endswith("--help")
    for line in text.splitlines():
        # A message for a log is one line, which a terminal wraps; a path that is longer than a line is not broken.
        is_whole = line.startswith("joulelab: ") or " " not in line.strip()
        if measure_text(line) > WIDTH and not is_whole and "--print" not in command:
            found.append(f"wider than {WIDTH} columns ({measure_text(line)}): {line.strip()}")
        if not is_help and CUT.search(line.rstrip("…") if command == "joulelab ls" else line):
            found.append(f"cut: {line.strip()}")
        if not is_help and EXPONENT.search(line):
            found.append(f"exponent: {line.strip()}")
        for word in PROMPT.findall(line):
            if word.strip("`\"'").rpartition("/")[2] not in PROGRAMS:
                found.append(f"prose in place of a command: {line.strip()}")
    places = [line.find("± ?") for line in text.splitlines()]
    if any(place >= 0 and place == below for place, below in itertools.pairwise(places)):
        found.append("unknown uncertainty in every cell of a column, not in its heading")
    notes = sum(1 for line in text.splitlines() if NOTE.match(line))
    if notes > MOST_NOTES and not MANY_NOTES.search(command):
        found.append(f"{notes} notes")
    return found


def type_command(command: str, folder: Path) -> str:
    """Run a command as a person would, and return everything that it prints; Ctrl-C ends a server."""
    beside = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("JOULELAB_", "XDG_"))}
    environ |= {"COLUMNS": str(WIDTH), "NO_COLOR": "1", "TERM": "dumb", "PATH": beside, "HOME": str(folder / ".home")}
    process = subprocess.Popen(
        ["sh", "-c", command.replace("WALL", WALL_RUN)],
        cwd=folder,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    waits_s = 6.0 if command.startswith(ENDED_BY_CTRL_C) else LATEST_S
    try:
        text, _ = process.communicate(timeout=waits_s)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGINT)
        text, _ = process.communicate(timeout=LATEST_S)
    return text.replace(str(folder), "~")


def list_outputs() -> Iterator[tuple[str, str]]:
    """Yield every command of TYPED with its output, in one temporary folder."""
    researcher = (ROOT / "docs" / "quick-start" / "researcher.md").read_text()
    study = re.search(r"caps.toml <<'END'\n(.*?)END\n", researcher, re.DOTALL)
    assert study is not None
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        (folder / ".home").mkdir()
        (folder / "caps.toml").write_text(study[1])
        for linked in ("studies", "examples"):
            (folder / linked).symlink_to(ROOT / linked)
        for command in TYPED.strip().splitlines():
            yield command.replace("WALL", WALL_RUN), type_command(command, folder)


def main() -> int:
    """Print everything, and list the violations on standard error."""
    parts = [*list_help()]
    found = [(command, wrong) for command, text in parts for wrong in find_violations(command, text)]
    for command, text in parts:
        sys.stdout.write(f"$ {command}\n{text.rstrip()}\n\n")
    if "--help-only" not in sys.argv[1:]:
        for command, text in list_outputs():
            sys.stdout.write(f"$ {command}\n{text.rstrip()}\n\n")
            sys.stdout.flush()
            parts.append((command, text))
            found += [(command, wrong) for wrong in find_violations(command, text)]
    for command, wrong in found:
        sys.stderr.write(f"{command}: {wrong}\n")
    sys.stderr.write(f"{len(parts)} outputs, {len(found)} violations\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
