"""Load devices step by step: `python -m joulelab.calibration.staircase PLAN`, the workload of `joulelab calibrate`.

Each step has a level for every device: 0 is idle, 1 is the full load. Levels between are power caps where they may be
set, else smaller problems of the burn workload. Steps are phases of the run (`calibrate`), so that any run with such
phases can be fitted again.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import random
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from joulelab.core.errors import ConfigError, JoulelabError
from joulelab.core.process_identity import RUN_VARIABLE
from joulelab.run.signal_forwarding import ENDING_SIGNALS
from joulelab.run.workload_registry import make_reference_command

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import FrameType

PHASE = "calibrate"
LEVELS = (0.25, 0.5, 0.75, 1.0)
CHECK_LEVELS, FEWEST_CHECKS = LEVELS[1::2], 3  # of a check, and how often each at least
IDLE_EVERY = 5  # steps with a load between two idle steps
SIZES = {0.25: 512, 0.5: 1024, 0.75: 2048, 1.0: 8192}  # of the matrices of burn, where caps may not be set
LATE_S = 60.0  # a load that outlives this process ends by itself after the step and this time
STOP_S = 10.0
LOOK_S = 0.2


@dataclass(frozen=True, slots=True)
class StaircasePlan:
    """Hold the devices, a row of levels for each step, seconds of a step, and how levels are made.

    `caps` are lowest and usual cap (W) of each device that takes caps. `words` is a command with {gpu}, {level} and
    {seconds} instead of burn.
    """

    devices: tuple[str, ...]
    steps: tuple[tuple[float, ...], ...]
    step_s: float
    caps: dict[str, tuple[float, float]] = field(default_factory=dict)
    words: tuple[str, ...] = ()

    @property
    def duration_s(self) -> float:
        """Return how long all steps take."""
        return self.step_s * len(self.steps)

    def to_json(self) -> str:
        """Return the plan as one word of a command."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> StaircasePlan:
        """Read a plan. Raises ConfigError."""
        try:
            found: dict[str, Any] = json.loads(text)
            caps = {scope: (float(low), float(high)) for scope, (low, high) in found["caps"].items()}
            steps = tuple(tuple(map(float, row)) for row in found["steps"])
            return cls(tuple(found["devices"]), steps, float(found["step_s"]), caps, tuple(found["words"]))
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            what, then = "this is no plan of a staircase", "joulelab calibrate"
            raise ConfigError(what, where="staircase", why=str(error), next=then, code="config.staircase") from None


def plan_steps(count: int, repeats: int, seed: int, levels: Sequence[float] = LEVELS) -> tuple[tuple[float, ...], ...]:
    """Return a row of levels for each step, in random order, with idle steps at the begin, the end and in between.

    Every device has every level `repeats` times and is idle as often as not. Several devices change independently: so
    each can be told from the others, and all of them take as many steps as one.
    """
    draw = random.Random(seed)  # noqa: S311 - not a secret
    columns = []
    for _ in range(count):
        column = (
            [level for level in levels for _ in range(repeats)] if count == 1 else _draw_column(draw, levels, repeats)
        )
        draw.shuffle(column)
        columns.append(column)
    rows = [tuple(row) for row in zip(*columns, strict=True)]
    idle = (0.0,) * count
    every = 1 if count == 1 else IDLE_EVERY
    made = [idle]
    for k, row in enumerate(rows, 1):
        made += [row, idle] if k % every == 0 or k == len(rows) else [row]
    return tuple(made)


def plan_check(count: int, repeats: int, seed: int) -> tuple[tuple[float, ...], ...]:
    """Return the steps of a check: two levels, `repeats` times each, or as often as the fit of all devices needs."""
    # A device uses up two steps (gain, and a part of bend and drift), the rest of the node and the fit itself 8.5; four
    # steps of each repeat have a load, and one in six is idle.
    needed = math.ceil((8.5 + 2 * count - 1) / (4 * (1 + 1 / IDLE_EVERY)))
    return plan_steps(count, max(repeats, needed, FEWEST_CHECKS), seed, CHECK_LEVELS)


def choose_step_s(update_s: float, *, has_command: bool, is_check: bool = False) -> float:
    """Return the length of a step (s) by the time between updates of the reference, or its window if that is longer.

    10 of them are used; about 5 are left out, in which the reference shows the steps before and after, too. burn needs
    some seconds until its load is steady; a command of the user has to start faster. A check needs no long
    steps: the drift with temperature is known.
    """
    return max(15.0 if has_command else 30.0 if is_check else 40.0, (5.0 if has_command else 15.0) + 15 * update_s)


def _draw_column(draw: random.Random, levels: Sequence[float], repeats: int) -> list[float]:
    loads = [level for level in levels for _ in range(repeats)]
    draw.shuffle(loads)
    return loads + [0.0] * len(loads)


def make_load_words(plan: StaircasePlan, scope: str, level: float) -> list[str]:
    """Return the command that loads a device. Raises ConfigError, MissingDependency."""
    number = scope.partition(":")[2]
    seconds = math.ceil(plan.step_s + LATE_S)
    if plan.words:
        fields = {"{gpu}": number, "{level}": f"{level:g}", "{seconds}": str(seconds)}
        return [_fill_word(word, fields) for word in plan.words]
    size = "auto" if scope in plan.caps else str(SIZES[level])
    return make_reference_command(
        ["burn", f"seconds={seconds}", "device=cuda", "processes=1", f"size={size}", "check=0"]
    )


def _fill_word(word: str, fields: dict[str, str]) -> str:
    for name, value in fields.items():
        word = word.replace(name, value)
    return word


class StaircaseStopped(Exception):
    """Ends a staircase; holds the number of the signal that asked for it."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class StopRequest:
    """Note a signal that asks to end, or the death of the process that records the staircase.

    Steps look at it, so no signal comes between the start of a load and its end. Ignored signals stay ignored.
    """

    def __init__(self) -> None:
        self._number = 0
        self._parent = os.getppid()
        for number in ENDING_SIGNALS:
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._note_signal)

    def _note_signal(self, number: int, _: FrameType | None) -> None:
        self._number = self._number or number

    def check(self) -> None:
        """Raise StaircaseStopped if the staircase has to end."""
        if self._number:
            raise StaircaseStopped(self._number)
        if os.getppid() != self._parent:
            raise StaircaseStopped(signal.SIGHUP)


class StaircaseRun:
    """Run a plan in this process; raises JoulelabError if a load fails, StaircaseStopped if it is asked to end."""

    def __init__(self, plan: StaircasePlan, stop: StopRequest) -> None:
        self.plan = plan
        self._stop = stop
        self._loads: list[tuple[str, subprocess.Popen[bytes], Any]] = []

    def run(self) -> None:
        """Go through all steps; loads end and caps are restored in any case."""
        import joulelab

        with contextlib.ExitStack() as stack:
            stack.callback(self._stop_loads)
            set_caps = stack.enter_context(self._hold_caps())
            for number, levels in enumerate(self.plan.steps):
                loads = " ".join(f"{d}={level:g}" for d, level in zip(self.plan.devices, levels, strict=True))
                self._stop.check()
                set_caps(levels)
                with joulelab.phase(PHASE, n=number, loads=loads):
                    self._run_step(levels)
                self._stop_loads()

    @contextlib.contextmanager
    def _hold_caps(self) -> Iterator[Any]:
        """Give a function that sets the caps of a step; it does nothing if there are none."""
        if not self.plan.caps:
            yield lambda levels: None  # noqa: ARG005
            return
        from joulelab.control.client import CapRequest, Caps

        with Caps(os.environ, who={"command": "joulelab calibrate"}, guarded=True) as caps:

            def set_caps(levels: Sequence[float]) -> None:
                wanted = []
                for scope, level in zip(self.plan.devices, levels, strict=True):
                    if scope in self.plan.caps and level:
                        low, high = self.plan.caps[scope]
                        wanted.append(CapRequest(scope, low + level * (high - low)))
                caps.serve()
                if wanted:
                    caps.set(wanted)

            try:
                yield set_caps
            finally:
                for outcome in caps.release():
                    if outcome.outcome in ("left", "failed"):
                        sys.stderr.write(f"joulelab: {outcome.message}\n")

    def _run_step(self, levels: Sequence[float]) -> None:
        end = time.monotonic() + self.plan.step_s
        for scope, level in zip(self.plan.devices, levels, strict=True):
            if level:
                self._start_load(scope, level)
        while (left := end - time.monotonic()) > 0:
            self._stop.check()
            time.sleep(min(LOOK_S, left))
            for scope, process, log in self._loads:
                if process.poll() is not None:
                    raise self._explain_end(scope, process, log)

    def _start_load(self, scope: str, level: float) -> None:
        words = make_load_words(self.plan, scope, level)
        number = scope.partition(":")[2]
        # The load is part of this step: it marks no phases of its own.
        environ = {key: value for key, value in os.environ.items() if key != RUN_VARIABLE}
        environ |= {"CUDA_VISIBLE_DEVICES": number, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        log = tempfile.TemporaryFile()  # noqa: SIM115 it is read when the load fails
        try:
            process = subprocess.Popen(
                words,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,
            )
        except OSError as error:
            what, why = f"the load of {scope} does not start", f"{shlex.join(words)}: {error.strerror}"
            raise ConfigError(what, why=why, next="give another: --command", code="config.load") from error
        self._loads.append((scope, process, log))

    @staticmethod
    def _explain_end(scope: str, process: subprocess.Popen[bytes], log: Any) -> JoulelabError:
        log.seek(0)
        lines = log.read().decode(errors="replace").strip().splitlines() or ["it printed no reason"]
        code = "config.load-ended"
        what, then = f"the load of {scope} ended before its step", "run it by hand: joulelab workload run burn"
        return ConfigError(what, where=f"exit code {process.returncode}", why=lines[-1], next=then, code=code)

    def _stop_loads(self) -> None:
        loads, self._loads = self._loads, []
        for _, process, _ in loads:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        for _, process, log in loads:
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            log.close()


def main(words: Sequence[str]) -> int:
    """Run the plan in the first word; return 0, 1 if a load failed, 2 for a wrong plan, 128 + N after signal N."""
    stop = StopRequest()
    try:
        StaircaseRun(StaircasePlan.from_json(words[0] if words else ""), stop).run()
    except JoulelabError as error:
        sys.stderr.write(f"joulelab: {error}\n")
        return 2 if error.code == "config.staircase" else 1
    except StaircaseStopped as stopped:
        return 128 + stopped.number
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
