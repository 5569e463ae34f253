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
LEAST_WIDTH, USUAL_WIDTH, MOST_WIDTH, LABEL_WIDTH = 60, 80, 100, 10  # columns
BLANK = "\N{NO-BREAK SPACE}"
# A space inside a figure: before ±, behind it, before % or a unit. Lines do not break there.
INSIDE_FIGURE = re.compile(r"(?<=[\d±]) (?=[\d±%(]|[kMm]?[JW]\b|s\b)")
PARTS = ("measure", "sweep", "reproduce")
PART_S = 900.0  # a part that takes longer has failed
END_S = 20.0  # a part that got a signal has this time to end
START_S = 2.0  # a part whose output nobody reads gets its signal after this time: it has then loaded its modules
NO_SUCH_METER = "exit code 125"  # the end of `joulelab run` if one of its meters is missing
# The simulated wall meter: its server, the library that reads it, its entry. BMC and PDU are too slow for a demo.
SERVERS = {"analyzer": ("pyvisa_py", "analyzer")}
LOAD_S = 8.0  # the job of part 1 works this long
# Speed of that job: 0.41 steps/s on one GPU, on 8 GPUs that lose 3 % with each doubling. The step of 0.334 s does not
# repeat at the rate of the GPUs' sensors, which measure every 0.1 s.
STEPS_PER_S = 0.41 * 8 * 0.97**3
CAPS_W, DEFAULT_CAP_W = (140, 200, 260), 260
# Figures of the paper that the demo lists: label in the table of figures, words here.
PAPER_FIGURES = {
    "best by energy, 8 GPUs: cap": "cap with the least energy, 8 GPUs",
    "training time, 2 GPUs at 260 W": "training time, 2 GPUs at 260 W",
    "training time, 1 GPU at 170 W": "training time, 1 GPU at 170 W",
    "speed-up of 4 GPUs at 260 W": "speed-up of 4 GPUs at 260 W",
}


def find_width() -> int:
    """Return the width of the output in columns: that of the terminal within limits, 80 without a terminal."""
    return min(max(shutil.get_terminal_size((USUAL_WIDTH, 24)).columns, LEAST_WIDTH), MOST_WIDTH)


@dataclass(frozen=True, slots=True)
class Part:
    """Hold a part: title, question, and its programs, each of which runs the next one.

    `read_answer` reads the answer from the results, in sentences; `list_hints` gives next steps, each with its command.
    `missing` is why the part cannot be shown; `find_substitute` returns a smaller part by the error of this one. The
    output goes to the file `saved` if it is too long to read here.
    """

    name: str
    title: str
    programs: tuple[str, ...]
    question: str = ""
    read_answer: Callable[[], list[str]] = list
    list_hints: Callable[[], list[tuple[str, str]]] = list
    missing: str | None = None
    find_substitute: Callable[[str], Part | None] | None = None
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
            wrapped = textwrap.wrap(kept, find_width() - 6, break_on_hyphens=False, subsequent_indent="    ")
            lines += [f"    {line.replace(BLANK, ' ')}" for line in wrapped]
        return "$ " + " \\\n".join(lines).lstrip() + (f" \\\n    > {self.saved}" if self.saved else "")


@dataclass(slots=True)
class Machine:
    """Hold the abilities of this machine for the demo; `left_out` names what is missing, and why."""

    nvml: bool = True
    servers: list[str] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)

    @property
    def twin(self) -> str:
        """Return the command that serves the simulated node."""
        serve = f" --serve {','.join(self.servers)}" if self.servers else ""
        return f"joulelab twin --gpus 8 --gpu-model h100 --idle{serve}"

    @classmethod
    def examine(cls) -> Machine:
        """Look for a C compiler, which builds the twin's NVML library, and for the libraries."""
        machine = cls()
        try:
            nvml.build_library()
        except (JoulelabError, OSError, subprocess.SubprocessError) as error:
            machine.nvml, machine.left_out["GPUs by NVML"] = False, str(error)
        for server, (library, _) in SERVERS.items():
            if importlib.util.find_spec(library) is None:
                machine.left_out[server] = f"{library} is not installed; `make demo` installs it"
            else:
                machine.servers.append(server)
        return machine


def list_parts(machine: Machine, results: str, load_s: float = LOAD_S) -> list[Part]:
    """Return all parts in their order; `results` is their folder, `load_s` the time that the job of part 1 works.

    The meters are named, so that none of this machine is read, whatever its joulelab.toml says.
    """
    return [
        make_measure_part(machine, results, load_s),
        make_sweep_part(machine, results),
        make_reproduce_part(results),
    ]


def make_measure_part(machine: Machine, results: str, load_s: float) -> Part:
    """Return the part that measures a job; if a server does not start, its substitute works without that server."""
    meters = [*(["nvml"] if machine.nvml else []), "rapl", *(SERVERS[name][1] for name in machine.servers)]
    read = " ".join(f"--meter {name}" for name in meters)
    steps = max(round(load_s * STEPS_PER_S), 1)

    def find_substitute(error: str) -> Part | None:
        if error != NO_SUCH_METER or not machine.servers:
            return None
        missing = find_missing_servers(machine)
        for name, reason in missing.items():
            print_labelled("without", f"{name}: {reason}")
        fewer = replace(machine, servers=[name for name in machine.servers if name not in missing])
        return replace(make_measure_part(fewer, results, load_s), find_substitute=None)

    def find_run() -> Path:
        return max((ROOT / results / "runs").glob("*-*"))

    def read_answer() -> list[str]:
        from joulelab.analysis.results_file import load_result
        from joulelab.report import format as fmt
        from joulelab.report.run_summary import describe_coverage, format_energy

        result = load_result(find_run())
        energy, gpus, per_sample = result.energy, result.group("gpu"), result.per_work().get("samples")
        if energy is None:
            return ["Nothing was measured."]
        each = "" if per_sample is None else f", or {fmt.format_quantity(per_sample, 'J')} for each sample"
        lines = [f"The simulated job used {format_energy(energy)} in {fmt.format_duration(result.duration_s)}{each}."]
        lines.append(f"This covers {describe_coverage(result)}.")
        if gpus is not None and machine.servers:
            share = fmt.format_quantity(100 * (gpus.energy / energy), "%")
            lines.append(f"The GPUs used {share} of it.")
        return lines

    def list_hints() -> list[tuple[str, str]]:
        return [
            ("See which errors each ± is made of:", f"joulelab show {results}/runs/{find_run().name} --budget"),
            ("List the meters of this machine:", "joulelab meters"),
            ("Measure your own job:", "joulelab run -- python train.py"),
        ]

    return Part(
        name="measure",
        title="measure a job",
        programs=(
            machine.twin,
            f"joulelab run --runs {results}/runs --name demo --idle 2s --tail 1s {read}",
            f"python -m joulelab.twin.job --gpus 8 --work {steps} --speed 0.41 --batch 4096 --load 0.8",
        ),
        question="How much energy does a training job use on a node with 8 H100 GPUs?",
        read_answer=read_answer,
        list_hints=list_hints,
        find_substitute=find_substitute,
    )


def make_sweep_part(machine: Machine, results: str) -> Part:
    """Return the part that looks for the best power cap."""
    caps = ",".join(map(str, CAPS_W))
    options = f"--studies {results} --name caps --cap {caps} --repeat 3 --goal energy"

    def read_answer() -> list[str]:
        from joulelab.report import format as fmt

        with (ROOT / results / "caps" / "results.csv").open() as file:
            rows = list(csv.DictReader(file))
        best = next((row for row in rows if "energy" in row["best_for"].split()), None)
        if best is None or float(best["knob_cap"]) == DEFAULT_CAP_W:
            return [f"No cap saves energy against the default of {DEFAULT_CAP_W} W."]
        gain, loss = ((100 * float(best[name]), 100 * float(best[f"{name}_expanded"])) for name in ("gain", "loss"))
        saving = f"saves {fmt.format_interval(*gain)} % of the energy of GPUs and CPUs"
        lines = [f"A cap of {float(best['knob_cap']):.0f} W per GPU {saving}. {describe_loss(*loss)}"]
        for row in (row for row in rows if "energy" in row["not_told_apart_for"].split()):
            slower = describe_loss(100 * float(row["loss"]), 100 * float(row["loss_expanded"]))
            lines.append(f"{float(row['knob_cap']):.0f} W may save as much (no significant difference). {slower}")
        return lines

    def list_hints() -> list[tuple[str, str]]:
        report = f"joulelab sweep --report --studies {results} --name caps --all"
        own = "joulelab sweep --cap 60%:100%:10% -- python train.py"
        return [("See all tables of this sweep:", report), ("Find the best cap for your own job:", own)]

    return Part(
        name="sweep",
        title="find the best power cap",
        programs=(
            "joulelab twin --gpus 8 --gpu-model rtx6000 --idle",
            f"joulelab sweep {options} --meter nvml --meter rapl --no-figures",
            "python -m joulelab.twin.job --gpus 8 --work 360 --speed 23",
        ),
        question="Which power cap needs the least energy on 8 RTX 6000 GPUs, and how much slower is the job then?",
        read_answer=read_answer,
        list_hints=list_hints,
        missing=None if machine.nvml else "caps are set by NVML, which the twin has only with a C compiler",
    )


def describe_loss(percent: float, reach: float) -> str:
    """Say how much longer the job takes than at the default cap; `reach` is the half-width of the interval."""
    from joulelab.report import format as fmt

    if 2 * reach < abs(percent):  # not `20 ± 20 %`
        return (
            f"The job then takes {fmt.format_interval(percent, reach)} % longer than at {DEFAULT_CAP_W} W, the default."
        )
    return f"The job then takes up to {percent + reach:.0f} % longer than at {DEFAULT_CAP_W} W, the default."


def make_reproduce_part(results: str) -> Part:
    """Return the part that repeats a paper in virtual time; its runs are not kept, they would be 240 MB."""
    saved = f"{results}/gdansk.txt"

    def read_answer() -> list[str]:
        (path,) = (ROOT / results).glob("reproduce-gdansk-*/figures.csv")
        with path.open() as file:
            rows = [row for row in csv.DictReader(file) if row["strict"] == "True"]
        misses = [row for row in rows if row["verdict"] != "hit"]
        hits = f"Yes for {len(rows) - len(misses)} of {len(rows)} measured figures"
        far = f"No number of the simulation was chosen to fit them. {saved} has the limits and the reasons."
        lines = [f"{hits}. {far}" + (" Four of them, and those that are too far off:" if misses else " Four of them:")]
        for row in (row for row in rows if row["label"] in PAPER_FIGURES or row in misses):
            paper, here = (f"{float(row[name]):.4g} {row['unit']}".strip() for name in ("published", "reproduced"))
            mark = " (too far off)" if row in misses else ""
            lines.append(f"- {PAPER_FIGURES.get(row['label'], row['label'])}: {paper} in the paper, {here} here{mark}")
        return lines

    def list_hints() -> list[tuple[str, str]]:
        other = "joulelab reproduce gdansk --set gpu.idle_w=30"
        return [("Read all figures:", f"less {saved}"), ("Repeat it with a GPU that needs 30 W when idle:", other)]

    return Part(
        name="reproduce",
        title="repeat a paper",
        programs=(f"joulelab reproduce gdansk --no-keep --no-figures --studies {results}",),
        question="A paper of 2023 (Gdansk University of Technology) trained on up to 8 GPUs at 17 power caps, in 680 "
        "runs. Does a simulation of its node give the same figures? (680 simulated runs, in virtual time.)",
        read_answer=read_answer,
        list_hints=list_hints,
        saved=saved,
    )


def find_missing_servers(machine: Machine) -> dict[str, str]:
    """Start the twin again, for no time; return the servers that do not start, with the reasons."""
    try:
        words = [*shlex.split(machine.twin), "--for", "0", "--json"]
        done = subprocess.run(words, env=make_environment(), capture_output=True, timeout=END_S * 3, check=True)
        missing: dict[str, str] = json.loads(done.stdout)["not_served"]
    except (OSError, subprocess.SubprocessError, ValueError, KeyError) as error:
        return dict.fromkeys(machine.servers, f"the twin does not answer ({type(error).__name__})")
    # The log of that twin is gone; the error itself is enough.
    reasons = {name: re.sub(r"; while the twin runs, .*", "", why) for name, why in missing.items()}
    return {name: why.removeprefix(f"twin {name}: ") for name, why in reasons.items() if name in machine.servers}


class PartRunner:
    """Run parts one after the other; a signal ends the part that runs."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._until = 0.0

    def take_signal(self, number: int, _: FrameType | None) -> None:
        """Pass a signal on to all processes of the part that runs, as a terminal would."""
        self.signal = self.signal or number
        self._end_child()

    def run_part(self, part: Part, environ: Mapping[str, str], limit_s: float = PART_S) -> str | None:
        """Run a part; return its error. Raises BrokenPipeError if nobody reads the output."""
        if is_output_closed():
            raise BrokenPipeError
        began = time.monotonic()
        try:
            with contextlib.ExitStack() as stack:
                output = stack.enter_context((ROOT / part.saved).open("wb")) if part.saved else None
                # A session of its own: Ctrl-C reaches only us, and we pass it on, whoever sent it.
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
            self._end_child()
        while child.poll() is None and time.monotonic() < self._until:
            time.sleep(0.02)
            if self.signal is None and time.monotonic() > began + START_S and is_output_closed():
                self.take_signal(signal.SIGPIPE, None)
        self._child = None
        if child.poll() is not None:
            return None if child.returncode == 0 else f"exit code {child.returncode}"
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        return f"it did not end within {limit_s:.0f} s"

    def _end_child(self) -> None:
        if self._child is not None and self._child.poll() is None:
            self._until = min(self._until, time.monotonic() + END_S)
            os.killpg(self._child.pid, signal.SIGINT)


def is_output_closed() -> bool:
    """Return whether our output goes to a pipe that nobody reads any more (`| head -1`)."""
    with contextlib.suppress(OSError, ValueError):
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        return any(event & select.POLLERR for _, event in poll.poll(0))
    return False


def print_labelled(label: str, text: str) -> None:
    """Print a labelled paragraph, wrapped beside its label; figures are not broken."""
    room = find_width() - LABEL_WIDTH
    kept = INSIDE_FIGURE.sub(BLANK, text)
    lines = textwrap.wrap(kept, room, break_on_hyphens=False, break_long_words=False)
    for k, line in enumerate(lines):
        print(f"{'' if k else label:<{LABEL_WIDTH}}{line.replace(BLANK, ' ')}")


def print_rule(text: str) -> None:
    """Print the line above a part."""
    print(f"\n── {text} ".ljust(find_width() + 1, "─"))


def print_answer(part: Part) -> None:
    """Print the answer of a part, and the next steps with their commands."""
    print()
    for k, sentence in enumerate(part.read_answer()):
        print_labelled("" if k else "answer", sentence)
    for k, (step, command) in enumerate(part.list_hints()):
        print_labelled("" if k else "next", step)
        print(f"{'':<{LABEL_WIDTH + 2}}{command}")


def show_parts(chosen: Sequence[Part], runner: PartRunner, environ: Mapping[str, str], results: str) -> int:
    """Run parts and print how they went; return the exit code."""
    began, errors = time.monotonic(), {}
    for number, part in enumerate(chosen, 1):
        print_rule(f"{number} of {len(chosen)}: {part.title}")
        print_labelled("question", part.question)
        if part.missing is not None:
            print_labelled("left out", part.missing)
            continue
        error = try_part(part, runner, environ)
        if runner.signal is not None:
            name = signal.Signals(runner.signal).name
            print_labelled("ended", f"by {name} in part {number}, with all that was started; results so far: {results}")
            return 128 + runner.signal
        if error is None:
            print_answer(part)
        else:
            errors[part.name] = error
            print_labelled("failed", f"{part.name}: {error}")
    print_rule(f"done in {time.monotonic() - began:.0f} s")
    print_labelled("simulated", "the nodes, their meters, caps and jobs; no power of this machine was read")
    made = sorted(path.name for path in (ROOT / results).iterdir())
    print_labelled("results", f"{results}: {', '.join(made) or 'none'}")
    print_labelled("next", "source .venv/bin/activate, then type one of the commands above")
    for name, error in errors.items():
        print_labelled("failed", f"{name}: {error}; the others are complete")
    return 1 if errors else 0


def try_part(part: Part, runner: PartRunner, environ: Mapping[str, str]) -> str | None:
    """Print a part's command and run it, or its substitute if it fails; return the error."""
    print(part.typed + "\n", flush=True)
    error = None if runner.signal is not None else runner.run_part(part, environ)
    if error is None or runner.signal is not None or part.find_substitute is None:
        return error
    smaller = part.find_substitute(error)
    if smaller is None or runner.signal is not None:
        return error
    print_labelled("failed", f"{part.name}: {error}; again without it")
    print()
    return try_part(smaller, runner, environ)


def make_results_folder(parent: Path) -> str:
    """Make a new folder for the results, and return its path, relative if it is in the clone."""
    number = 1
    while True:
        folder = parent / str(number)
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            number += 1
        else:
            return str(folder.relative_to(ROOT) if folder.is_relative_to(ROOT) else folder)


def make_environment() -> dict[str, str]:
    """Return the environment of the parts: our programs, the width, and no settings of joulelab."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    environ = {key: value for key, value in os.environ.items() if not key.startswith("JOULELAB_")}
    return environ | {"PATH": path, "COLUMNS": str(find_width())}


def parse_arguments() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--results", type=Path, default=ROOT / "joulelab-demo", help="folder for results")
    parser.add_argument(
        "--load", type=float, default=LOAD_S, metavar="SECONDS", help="how long the job of part 1 works"
    )
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], metavar="PART", help=", ".join(PARTS))
    return parser.parse_args()


def main() -> int:
    """Show the parts that are asked for, or all; return the exit code."""
    given = parse_arguments()
    runner = PartRunner()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, runner.take_signal)
    try:
        results = make_results_folder(given.results.absolute())
    except OSError as error:
        print(f"demo: no folder for results in {given.results} ({error.strerror}); choose --results", file=sys.stderr)
        return 2
    machine = Machine.examine()
    print_labelled(
        "simulated", "`joulelab twin` serves nodes, meters and jobs; joulelab reads them as it reads real ones"
    )
    for what, why in machine.left_out.items():
        print_labelled("without", f"{what}: {why}")
    if os.getloadavg()[0] > len(os.sched_getaffinity(0)):
        print_labelled("note", "this machine is busy: the demo takes longer, and each ± is wider")
    chosen = [part for part in list_parts(machine, results, given.load) if part.name in (given.parts or PARTS)]
    return show_parts(chosen, runner, make_environment(), results)


def run_main() -> int:
    """Run the demo, and end it if nobody reads its output any more; all that was started has ended then."""
    try:
        return main()
    except BrokenPipeError:
        print("demo: ended, with all that was started: nobody reads its output", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    sys.exit(run_main())
