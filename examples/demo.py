"""Show joulelab on a simulated node, in about a minute and without a GPU, root or a network: `make demo`.

Each part asks a question, runs a command that can be typed again, and gives the answer and the next commands.
`python examples/demo.py [measure] [sweep] [reproduce]` shows some of the parts. A part that fails does not stop the
others; the exit code is then 1. Ctrl-C ends all that was started.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import importlib.util
import json
import os
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from joulelab.core.errors import JoulelabError
from joulelab.twin.servers import nvml

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import FrameType

ROOT = Path(__file__).resolve().parents[1]
LEAST, MOST, LABEL = 60, 100, 10  # columns
BLANK = "\N{NO-BREAK SPACE}"
PARTS = ("measure", "sweep", "reproduce")
# A part that takes longer has failed; one that was told to end gets so long for it (s).
PART_S, END_S = 900.0, 20.0
# So long a part may import what it needs before it is ended because nobody reads it: it can then end in good order (s).
START_S = 2.0
# So long the job of part 1 works (s): long enough that no figure of it is uncertain because of its ends.
LOAD_S = 8.0
# Of that job: its speed on one GPU, on 8 GPUs that lose 3 % with each doubling. A step of 0.334 s is not in step with
# the GPUs' sensors, which measure every 0.1 s.
STEPS_PER_S = 0.41 * 8 * 0.97**3
SHOWN_FIGURES = (
    "best by energy",
    "training time",
    "speed-up of 4 GPUs at 260 W",
)  # of the paper: how their labels begin
# How `joulelab run` ends where one of its meters is not there.
NO_SUCH_METER = "exit code 125"
# The server of the twin's wall meter, the library that reads it, and its entry. BMC and PDU are too slow for a demo.
SERVERS = {"analyzer": ("pyvisa_py", "analyzer")}


def width() -> int:
    """Return how wide to print: as the terminal, but neither too narrow to read nor too wide; in columns."""
    return min(max(shutil.get_terminal_size((80, 24)).columns, LEAST), MOST)


@dataclass(frozen=True, slots=True)
class Part:
    """Hold a part: its title, the question that it answers, and its programs, each of which runs the next one.

    `missing` is why it cannot be shown here; `instead` finds a part to show where this one fails, by how it failed.
    `answer` reads the answer from the results, in lines; `hints` are the next commands, each with a remark. The output
    goes to the file `saved`, if it is too long to read here.
    """

    name: str
    title: str
    programs: tuple[str, ...]
    missing: str | None = None
    instead: Callable[[str], Part | None] | None = None
    question: str = ""
    answer: Callable[[], list[str]] | None = None
    hints: Callable[[], list[tuple[str, str]]] | None = None
    saved: str = ""

    @property
    def words(self) -> list[str]:
        """Return the command line."""
        return shlex.split(" -- ".join(self.programs))

    @property
    def typed(self) -> str:
        """Return the command line as one would type it, each program on a line of its own."""
        lines: list[str] = []
        for k, program in enumerate(self.programs):
            text = program + (f"{BLANK}--" if k < len(self.programs) - 1 else "")
            kept = re.sub(r"(--[a-z-]+) (?!-)", rf"\1{BLANK}", text)  # an option and its value stay together
            wrapped = textwrap.wrap(kept, width() - 6, break_on_hyphens=False, subsequent_indent="    ")
            lines += [f"    {line.replace(BLANK, ' ')}" for line in wrapped]
        return "$ " + " \\\n".join(lines).lstrip() + (f" \\\n    > {self.saved}" if self.saved else "")


@dataclass(slots=True)
class Here:
    """Tell what of the demo this machine can do: `left_out` says what is missing, and why."""

    nvml: bool = True
    servers: list[str] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)

    @property
    def twin(self) -> str:
        """Return the command that serves the simulated node."""
        serve = f" --serve {','.join(self.servers)}" if self.servers else ""
        return f"joulelab twin --gpus 8 --gpu-model h100 --idle{serve}"

    @classmethod
    def look(cls) -> Here:
        """Look for a C compiler (the twin's NVML library is built here) and the libraries."""
        here = cls()
        try:
            nvml.build_library()
        except (JoulelabError, OSError, subprocess.SubprocessError) as error:
            here.nvml, here.left_out["GPUs by NVML"] = False, str(error)
        for server, (library, _) in SERVERS.items():
            if importlib.util.find_spec(library) is None:
                here.left_out[server] = f"{library} is not installed; `make demo` installs it"
            else:
                here.servers.append(server)
        return here


def parts(here: Here, results: str, load_s: float = LOAD_S) -> list[Part]:
    """Return all parts in their order; their results go to a folder. `load_s`: how long the job of part 1 works, in s.

    The meters are named, so that none of this machine is read, whatever its joulelab.toml says.
    """
    return [measure(here, results, load_s), sweep(here, results), reproduce(results)]


def measure(here: Here, results: str, load_s: float) -> Part:
    """Return the part that measures; where a server did not start, it is tried once more without that one."""
    meters = [*(["nvml"] if here.nvml else []), "rapl", *(SERVERS[name][1] for name in here.servers)]
    read = " ".join(f"--meter {name}" for name in meters)
    steps = max(round(load_s * STEPS_PER_S), 1)
    programs = (
        here.twin,
        f"joulelab run --runs {results}/runs --name demo --idle 2s --tail 2s {read}",
        f"python -m joulelab.twin.job --gpus 8 --work {steps} --speed 0.41 --batch 4096 --load 0.8",
    )

    def with_fewer(why: str) -> Part | None:
        if why != NO_SUCH_METER or not here.servers:
            return None
        lacking = not_served(here)
        for name, reason in lacking.items():
            say("without", f"{name}: {reason}")
        fewer = replace(here, servers=[name for name in here.servers if name not in lacking])
        return replace(measure(fewer, results, load_s), instead=None)

    def find_run() -> Path:
        return max((ROOT / results / "runs").glob("*-*"))

    def answer() -> list[str]:
        from joulelab.analysis.results_file import load_result
        from joulelab.report import format as fmt
        from joulelab.report.run_summary import describe_coverage, format_energy

        result = load_result(find_run())
        energy, gpus = result.energy, result.group("gpu")
        if energy is None:
            return ["Nothing was measured."]
        per = result.per_work().get("samples")
        lines = [
            f"The job used {format_energy(energy)} in {fmt.format_duration(result.duration_s)}"
            + (f", which is {fmt.format_quantity(per, 'J/sample')}." if per is not None else "."),
            f"This covers {describe_coverage(result)}.",
        ]
        if gpus is not None and energy.value > 0 and len(result.groups) > 1:
            lines.append(f"The GPUs used {100 * gpus.energy.value / energy.value:.0f} % of it.")
        return lines

    def list_hints() -> list[tuple[str, str]]:
        run = f"{results}/runs/{find_run().name}"
        return [
            (f"joulelab show {run} --budget", "the parts of each ±"),
            ("joulelab meters", "the meters of this machine"),
            ("joulelab run -- python train.py", "measure your own job"),
        ]

    return Part(
        "measure",
        "measure a job",
        programs,
        None,
        with_fewer,
        "How much energy does a training job use on a node with 8 H100 GPUs?",
        answer,
        list_hints,
    )


def sweep(here: Here, results: str) -> Part:
    """Return the part that looks for the best power cap."""
    read = "--meter nvml --meter rapl --no-figures"
    programs = (
        "joulelab twin --gpus 8 --gpu-model rtx6000 --idle",
        f"joulelab sweep --studies {results} --name caps --cap 140,200,260 --repeat 3 --goal energy {read}",
        "python -m joulelab.twin.job --gpus 8 --work 450 --speed 23",
    )

    def answer() -> list[str]:
        from joulelab.report import format as fmt

        with (ROOT / results / "caps" / "results.csv").open() as file:
            rows = list(csv.DictReader(file))
        best = next((row for row in rows if "energy" in row["best_for"].split()), None)
        if best is None:
            return ["No cap is best."]
        cap = float(best["knob_cap"])
        if cap == max(float(row["knob_cap"]) for row in rows):
            return [f"{cap:.0f} W, the default, needs the least energy."]
        gain, loss = ((100 * float(best[name]), 100 * float(best[f"{name}_expanded"])) for name in ("gain", "loss"))
        slower = f"{fmt.format_interval(*loss)} % longer than at the default of 260 W."
        if loss[1] > abs(loss[0]) / 2:
            slower = "longer, but other programs disturb it: how much longer is not certain."
        saved = f"A cap of {cap:.0f} W per GPU saves {fmt.format_interval(*gain)} % of the energy."
        return [saved, f"The job takes {slower}"]

    def list_hints() -> list[tuple[str, str]]:
        return [
            (f"joulelab sweep --report --studies {results} --name caps --all", "all tables of this sweep"),
            ("joulelab sweep --cap 60%:100%:10% -- python train.py", "your own job and GPUs"),
        ]

    missing = None if here.nvml else "caps are set by NVML, which the twin has only with a C compiler"
    question = "Which power cap needs the least energy on 8 RTX 6000 GPUs, and how much slower is the job then?"
    return Part("sweep", "find the best power cap", programs, missing, None, question, answer, list_hints)


def reproduce(results: str) -> Part:
    """Return the part that repeats a paper in virtual time; its runs are not kept, they would be 240 MB."""
    saved = f"{results}/gdansk.txt"

    def answer() -> list[str]:
        (path,) = (ROOT / results).glob("reproduce-gdansk-*/figures.csv")
        with path.open() as file:
            rows = [row for row in csv.DictReader(file) if row["strict"] == "True"]
        hits = sum(row["verdict"] == "hit" for row in rows)
        measured = "figures that were measured, and not used to adjust the simulation"
        lines = [f"Yes, for {hits} of {len(rows)} {measured}. Some of them:"]
        for row in (one for one in rows if one["label"].startswith(SHOWN_FIGURES)):
            ours = f"{float(row['reproduced']):.3g} {row['unit']}".strip()
            here = f"{ours} here{'' if row['verdict'] == 'hit' else ' (too far off)'}"
            lines.append(
                f"- {row['label']}: {float(row['published']):g} {row['unit']}".rstrip() + f" in the paper, {here}"
            )
        return lines

    def list_hints() -> list[tuple[str, str]]:
        return [
            (f"less {saved}", "all figures, with reasons for misses"),
            ("joulelab reproduce gdansk --set gpu.idle_w=30", "with another GPU"),
        ]

    programs = (f"joulelab reproduce gdansk --no-keep --no-figures --studies {results}",)
    question = (
        "A paper of 2023 (Gdansk University of Technology) trained on up to 8 GPUs at 17 power caps, 680 runs in all. "
        "Does the simulated node give the same figures?"
    )
    return Part("reproduce", "repeat a paper", programs, None, None, question, answer, list_hints, saved)


def not_served(here: Here) -> dict[str, str]:
    """Start the twin once more, for no time, to see which servers do not start, and why."""
    try:
        words = [*shlex.split(here.twin), "--for", "0", "--json"]
        done = subprocess.run(words, env=environment(), capture_output=True, timeout=END_S * 3, check=True)
        told: dict[str, str] = json.loads(done.stdout)["not_served"]
    except (OSError, subprocess.SubprocessError, ValueError, KeyError) as error:
        return dict.fromkeys(here.servers, f"the twin cannot be asked ({type(error).__name__})")
    # Its log went with that twin: the error says enough.
    kept = {name: re.sub(r"; while the twin runs, .*", "", why) for name, why in told.items() if name in here.servers}
    return {name: why.removeprefix(f"twin {name}: ") for name, why in kept.items()}


class Shown:
    """Run parts one after the other, and end the one that runs when we are told to end."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._until = 0.0

    def note(self, number: int, _: FrameType | None) -> None:
        """Take a signal: what runs gets it as from a terminal, all of it at once."""
        self.signal = self.signal or number
        self._end()

    def run(self, part: Part, environ: Mapping[str, str], limit_s: float = PART_S) -> str | None:
        """Run a part; return what went wrong. Raises BrokenPipeError where nobody reads what we print."""
        if is_unread():
            raise BrokenPipeError
        began = time.monotonic()
        # A session of its own: Ctrl-C reaches us alone, and we pass it on, whether a terminal or a process sent it.
        try:
            with open(ROOT / part.saved, "wb") if part.saved else contextlib.nullcontext() as output:
                child = subprocess.Popen(
                    part.words,
                    cwd=ROOT,
                    env=environ,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    start_new_session=True,
                )
        except OSError as error:
            return f"{error.filename or part.words[0]}: {error.strerror}"
        self._until, self._child = began + limit_s, child
        if self.signal is not None:
            self._end()
        while child.poll() is None and time.monotonic() < self._until:
            time.sleep(0.02)
            if self.signal is None and time.monotonic() > began + START_S and is_unread():
                self.note(signal.SIGPIPE, None)
        self._child = None
        if child.poll() is not None:
            return None if child.returncode == 0 else f"exit code {child.returncode}"
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        return f"it did not end within {limit_s:.0f} s"

    def _end(self) -> None:
        if self._child is not None and self._child.poll() is None:
            self._until = min(self._until, time.monotonic() + END_S)
            os.killpg(self._child.pid, signal.SIGINT)


def is_unread() -> bool:
    """Return whether what we print goes to a pipe that nobody reads any more (`| head -1`)."""
    with contextlib.suppress(OSError, ValueError):
        asked = select.poll()
        asked.register(sys.stdout.fileno(), 0)
        return any(event & select.POLLERR for _, event in asked.poll(0))
    return False


def say(label: str, text: str) -> None:
    """Print a labelled line, wrapped beside its label."""
    lines = textwrap.wrap(text, width() - LABEL, break_on_hyphens=False, break_long_words=False)
    for k, line in enumerate(lines):
        print(f"{'' if k else label:<{LABEL}}{line}")


def rule(text: str) -> None:
    """Print a line that parts what comes from what was before."""
    print(f"\n── {text} ".ljust(width() + 1, "─"))


def show(chosen: Sequence[Part], shown: Shown, environ: Mapping[str, str], results: str) -> int:
    """Run parts and say how they went; return the exit code."""
    began, wrong = time.monotonic(), {}
    for number, part in enumerate(chosen, 1):
        rule(f"{number} of {len(chosen)}: {part.title}")
        if part.question:
            say("question", part.question)
        if part.missing is not None:
            say("left out", part.missing)
            continue
        why = attempt(part, shown, environ)
        if shown.signal is not None:
            name = signal.Signals(shown.signal).name
            say("ended", f"by {name} in part {number}, and all that was started with it; results so far: {results}")
            return 128 + shown.signal
        if why is not None:
            wrong[part.name] = why
            say("failed", f"{part.name}: {why}")
            continue
        print()
        for k, line in enumerate(part.answer() if part.answer else ()):
            say("" if k else "answer", line)
        if part.hints:
            print("\n".join(beside(part.hints(), "next")))
    rule(f"done in {time.monotonic() - began:.0f} s")
    conclude(results)
    for name, why in wrong.items():
        say("failed", f"{name}: {why}; the others are complete")
    return 1 if wrong else 0


def attempt(part: Part, shown: Shown, environ: Mapping[str, str]) -> str | None:
    """Print a part's command and run it, and what is to be tried instead if it fails; return what went wrong."""
    print(part.typed + "\n", flush=True)
    why = None if shown.signal is not None else shown.run(part, environ)
    if why is None or shown.signal is not None or part.instead is None:
        return why
    less = part.instead(why)
    if less is None or shown.signal is not None:
        return why
    say("failed", f"{part.name}: {why}; again with what is there")
    print()
    return attempt(less, shown, environ)


def conclude(results: str) -> None:
    """Print where results are, and that nothing was measured on this machine."""
    say("simulated", "the nodes, their meters, caps and jobs; no power of this machine was read")
    made = sorted(path.name for path in (ROOT / results).iterdir())
    say("results", f"{results}: {', '.join(made) or 'none'}")
    say("next", "source .venv/bin/activate, then type one of the commands above")


def beside(hints: Sequence[tuple[str, str]], label: str = "") -> list[str]:
    """Return lines of commands with remarks in one column; the remark of a long command is above it."""
    room = width() - LABEL - 3 - max(len(why) for _, why in hints)
    column = max((len(command) for command, _ in hints if len(command) <= room), default=0)
    lines = []
    for command, why in hints:
        lines += [f"{command:<{column}} # {why}"] if len(command) <= column else [f"# {why}", command]
    return [f"{'' if k else label:<{LABEL}}{line}" for k, line in enumerate(lines)]


def fresh(parent: Path) -> str:
    """Make a new folder for the results, and return its path, from the clone if it is in there."""
    number = 1
    while True:
        folder = parent / str(number)
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            number += 1
        else:
            return str(folder.relative_to(ROOT) if folder.is_relative_to(ROOT) else folder)


def environment() -> dict[str, str]:
    """Return what the parts see: our programs, the width, and no settings of joulelab."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    environ = {key: value for key, value in os.environ.items() if not key.startswith("JOULELAB_")}
    return environ | {"PATH": path, "COLUMNS": str(width())}


def arguments() -> argparse.Namespace:
    """Return what was asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--results", type=Path, default=ROOT / "joulelab-demo", help="folder for results")
    parser.add_argument(
        "--load", type=float, default=LOAD_S, metavar="SECONDS", help="how long the job of part 1 works"
    )
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], metavar="PART", help=", ".join(PARTS))
    return parser.parse_args()


def main() -> int:
    """Show the parts that are asked for, all unless told otherwise; return the exit code."""
    given = arguments()
    shown = Shown()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, shown.note)
    try:
        results = fresh(given.results.absolute())
    except OSError as error:
        print(f"demo: no folder for results in {given.results} ({error.strerror}); choose --results", file=sys.stderr)
        return 2
    here = Here.look()
    for what, why in here.left_out.items():
        say("without", f"{what}: {why}")
    if os.getloadavg()[0] > len(os.sched_getaffinity(0)):
        say("note", "this machine is busy: it will take longer, and each ± will be wider")
    chosen = [part for part in parts(here, results, given.load) if part.name in (given.parts or PARTS)]
    return show(chosen, shown, environment(), results)


def piped() -> int:
    """Show all this, and end where nobody reads it any more; what ran has ended before we print again."""
    try:
        return main()
    except BrokenPipeError:
        print("demo: ended, and all that was started: nobody reads what it prints", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    sys.exit(piped())
