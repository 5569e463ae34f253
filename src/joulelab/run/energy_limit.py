"""Stop a workload at an amount of energy, money or CO2e: `joulelab run --stop-at 2kWh -- CMD`.

1. `parse_limit` reads `train=5EUR` and returns joules, by the price of the site.
2. `LimitLedger` counts the energy of the run and of its phases, and finds out when 80 % and 100 % of a limit are used.
3. `LimitGuard` follows the live run in a thread; the supervisor calls it to send the signal.
4. `remaining` is for the workload: it reads the file that the guard writes.

Counted is the middle value of everything that the meters of the run measure, not the upper end of its interval: a limit
would otherwise depend on the accuracy of the meters. Money and CO2e are this energy times the PUE and the rate of the
site. Only readings end a job: while a meter is silent, the limit is not watched, and the command goes on.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import threading
import time
from collections import deque
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from joulelab.core.clock import NEVER_NS, NS, monotonic_ns
from joulelab.core.errors import ConfigError, WorkloadError
from joulelab.core.process_identity import RUN_VARIABLE
from joulelab.core.quantity import J_PER_KWH

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from joulelab.run.recording import RunRecording
    from joulelab.run.workload_process import WorkloadEnd
    from joulelab.site.footprint import Site

ENERGY_UNITS_J = {
    "J": 1.0, "kJ": 1e3, "MJ": 1e6, "GJ": 1e9,
    "Wh": 3600.0, "kWh": J_PER_KWH, "MWh": 1e3 * J_PER_KWH, "wh": 3600.0, "kwh": J_PER_KWH,
}  # fmt: skip
MASS_UNITS_G = {"g": 1.0, "kg": 1e3, "t": 1e6}
ADVICE = "write it as 2kWh, 500kJ, 5EUR or 300g (CO2e); for one phase as train=1kWh"
NEAR_SHARE = 0.8
LOST_S = 10.0  # without readings for this long, a limit is not watched
FIRST_S = 1.0  # the workload's first moments are its own
EVERY_S = 1.0
CLOSE_S, CLOSE_EVERY_S = 5.0, 0.1  # so near to a limit, the energy is read this often
SHARE = 0.01  # of one core, except near to a limit
TRIES = 3  # a file that is just being created may fail to be read once or twice
FILE = "limit.json"
FRESH_S = 0.1  # a workload that asks more often gets the same answer
THEN_COMMAND = 'exec </dev/null; eval "$1"'
THEN_VARIABLE = "JOULELAB_WORKLOAD_PID"  # only the command of --then and its children have it
SURVIVE_S = 0.5  # processes that end with the command do so within this time
MOST_PIDS = 5


# Limits ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EnergyLimit:
    """Hold a limit as it was typed (`amount`, `unit`), in joules, and the name of the phase it is for (None: all)."""

    amount: float
    unit: str
    joules: float
    phase: str | None = None

    @property
    def name(self) -> str:
        """Return the limit as text: `2 kWh`, `300 g CO2e`."""
        return f"{self.amount:,.6g} {self.unit}{' CO2e' if self.unit in MASS_UNITS_G else ''}"


def parse_limit(text: str, site: Site | None) -> EnergyLimit:
    """Read a limit; money and CO2e become joules by price, carbon intensity and PUE of the site. Raises ConfigError."""
    phase, equals, amount_text = text.rpartition("=")
    amount, unit = _read_amount(amount_text, text)
    if equals and not phase.strip():
        raise _refuse_limit(text, "the name of the phase is missing")
    name = phase.strip() if equals else None
    if unit in ENERGY_UNITS_J:
        shown = {"wh": "Wh", "kwh": "kWh"}.get(unit, unit)
        return EnergyLimit(amount, shown, amount * ENERGY_UNITS_J[unit], name)
    if unit in MASS_UNITS_G:
        if site is None or not site.g_per_kwh:
            raise _refuse_rate(text, "CO2e", "no carbon intensity is set", "joulelab site --zone DE")
        kwh = amount * MASS_UNITS_G[unit] / (site.g_per_kwh * site.pue)
        return EnergyLimit(amount, unit, kwh * J_PER_KWH, name)
    if site is None or not site.price:
        raise _refuse_rate(text, "money", "no price is set", f"joulelab site --price 0.30{unit}")
    if site.currency != unit:
        why = f"the price of the site is in {site.currency}; currencies are not converted"
        raise _refuse_rate(text, unit, why, f"give the limit in {site.currency}")
    return EnergyLimit(amount, unit, amount / (site.price * site.pue) * J_PER_KWH, name)


def _read_amount(text: str, whole: str) -> tuple[float, str]:
    """Return number and unit of an amount: of energy, CO2e, or a currency of three letters."""
    import re

    from joulelab.site.site_settings import CURRENCY_SIGNS

    plain = text.strip()
    plain = plain[1:] + plain[0] if plain[:1] in CURRENCY_SIGNS else plain
    match = re.fullmatch(r"(\d+\.?\d*(?:e\d+)?|\.\d+)\s*([^\W\d_]+|[€$£¥])\s*(?:CO2e?)?", plain)
    if match is None:
        why = "no unit is given" if re.fullmatch(r"[\d.]+", plain) else None
        raise _refuse_limit(whole, why)
    amount, unit = float(match[1]), CURRENCY_SIGNS.get(match[2], match[2])
    unit = unit.removesuffix("CO") if unit.removesuffix("CO") in MASS_UNITS_G else unit  # gCO2e
    if unit not in ENERGY_UNITS_J and unit not in MASS_UNITS_G:
        if re.fullmatch(r"[A-Za-z]{3}", unit) is None or unit.lower().endswith("wh"):
            milli = "; m is milli: write MWh" if match[2] == "mWh" else ""
            raise _refuse_limit(whole, f"{match[2]!r} is no unit of energy, money or CO2e{milli}")
        unit = unit.upper()
    if not 0 < amount < math.inf:
        raise _refuse_limit(whole, "a limit is above zero")
    return amount, unit


def _refuse_limit(text: str, why: str | None) -> ConfigError:
    return ConfigError(f"{text!r} is not a limit", where="--stop-at", why=why, next=ADVICE, code="config.limit")


def _refuse_rate(text: str, kind: str, why: str, then: str) -> ConfigError:
    what = f"a limit of {kind} cannot be watched"
    return ConfigError(what, where=f"--stop-at {text}", why=why, next=then, code="config.limit-rate")


@dataclass(frozen=True, slots=True)
class LimitAction:
    """Hold what happens at a limit: a signal for the workload, or a shell command; and the time until SIGKILL."""

    signal: int | None = signal.SIGTERM
    command: str = ""
    grace_s: float | None = None

    @property
    def name(self) -> str:
        """Return the name of the signal, or the command without its secrets: it is stored and printed."""
        if self.signal is not None:
            return signal.Signals(self.signal).name
        from joulelab.store.redact import redact_command  # loaded only where a command is given

        return redact_command([self.command])[0]


def read_action(then: str | None, grace_s: float | None) -> LimitAction:
    """Return the action of `--then SIGNAL|CMD`; SIGTERM without it. Raises ConfigError for an empty text."""
    if then is None:
        return LimitAction(grace_s=grace_s)
    word = then.strip()
    if not word:
        advice = "name a signal or a command: --then SIGUSR1"
        raise ConfigError("--then is empty", next=advice, code="config.limit-action")
    import re

    known = {name.removeprefix("SIG"): number for name, number in signal.Signals.__members__.items()}
    found = known.get(word.upper().removeprefix("SIG"))
    if found is None and (word.isdigit() or re.fullmatch(r"SIG[A-Z0-9+-]+", word)):
        advice = "name a signal as SIGUSR1, or a command: --then 'touch stop'"
        raise ConfigError(f"--then: there is no signal {word!r}", next=advice, code="config.limit-action")
    return LimitAction(found, "" if found else word, grace_s)


# Counting --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EnergyReading:
    """Hold the energy (J) of a run from its start to now, `elapsed_s` after it; None if it is not known now.

    `spans` are begin and end (s from the start; inf = open) of recent phases by name, `covers` the counted scopes.
    """

    elapsed_s: float
    energy_j: float | None
    power_w: float = math.nan
    spans: Mapping[str, Sequence[tuple[float, float]]] = field(default_factory=dict)
    covers: tuple[str, ...] = ()

    @property
    def is_known(self) -> bool:
        """Return whether every counted meter gives readings now."""
        return self.energy_j is not None and math.isfinite(self.energy_j) and math.isfinite(self.power_w)


class EnergySource(Protocol):
    """Define what the guard reads."""

    def read(self) -> EnergyReading:
        """Return the energy up to now. Raises OSError, StoreError."""

    def close(self) -> None:
        """Release the run."""


NewsCode = Literal["watching", "near", "reached", "lost", "found", "killed"]


@dataclass(frozen=True, slots=True)
class LimitNews:
    """Hold one event of a limit: used energy (J), time since the start (s), and the expected time left (s)."""

    code: NewsCode
    limit: EnergyLimit
    used_j: float = 0.0
    elapsed_s: float = 0.0
    left_s: float | None = None
    covers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RemainingLimit:
    """Hold the rest of the limit that is reached first: share of one, amount in its unit, joules, seconds.

    `seconds` is at the power of now, None if it is unknown. `is_watched` is False while meters give no readings; the
    other values are then those of the last reading. `then` is the signal or the command of the limit.
    """

    limit: str
    share: float
    amount: float
    unit: str
    joules: float
    seconds: float | None = None
    phase: str | None = None
    is_reached: bool = False
    is_watched: bool = True
    then: str = "SIGTERM"


class LimitLedger:
    """Count the energy of a run and of phases against limits; `add` returns what happened since the last reading."""

    def __init__(self, limits: Sequence[EnergyLimit]) -> None:
        self.limits = tuple(limits)
        self.used_j = [0.0] * len(self.limits)
        self.reached: EnergyLimit | None = None
        self.is_watched = True
        self._known = EnergyReading(0.0, 0.0, 0.0)
        self._is_begun = False
        self._near: set[int] = set()

    @property
    def phases(self) -> list[str]:
        """Return the names of the phases that have a limit."""
        return [limit.phase for limit in self.limits if limit.phase is not None]

    def add(self, reading: EnergyReading) -> list[LimitNews]:
        """Count up to a reading. After the first limit that is reached, there is no more news of limits."""
        if not reading.is_known:
            if not self.is_watched or reading.elapsed_s - self._known.elapsed_s < LOST_S:
                return []
            self.is_watched = False
            return [LimitNews("lost", self.limits[0], self.used_j[0], reading.elapsed_s)]
        news = []
        if not self._is_begun:
            began_s, covers = reading.elapsed_s, reading.covers
            news += [LimitNews("watching", limit, 0.0, began_s, covers=covers) for limit in self.limits]
            self._is_begun = self.is_watched = True
        if not self.is_watched:
            self.is_watched = True
            news.append(LimitNews("found", self.limits[0], self.used_j[0], reading.elapsed_s))
        self._count(reading)
        return news + list(self._judge(reading))

    def _count(self, reading: EnergyReading) -> None:
        before, self._known = self._known, reading
        assert reading.energy_j is not None
        assert before.energy_j is not None
        added_j = reading.energy_j - before.energy_j
        for k, limit in enumerate(self.limits):
            if limit.phase is None:
                self.used_j[k] = reading.energy_j
            else:
                spans = reading.spans.get(limit.phase, ())
                self.used_j[k] += added_j * find_overlap(spans, before.elapsed_s, reading.elapsed_s)

    def _judge(self, reading: EnergyReading) -> Iterable[LimitNews]:
        if self.reached is not None:
            return
        for k, limit in enumerate(self.limits):
            used = self.used_j[k]
            if used >= limit.joules:
                self.reached = limit
                yield LimitNews("reached", limit, used, reading.elapsed_s)
                return
            if used >= NEAR_SHARE * limit.joules and k not in self._near:
                self._near.add(k)
                yield LimitNews("near", limit, used, reading.elapsed_s, self._find_left_s(k))

    def find_rest(self) -> RemainingLimit:
        """Return the rest of the limit with the smallest share left."""
        k = min(range(len(self.limits)), key=lambda k: 1 - self.used_j[k] / self.limits[k].joules)
        limit = self.limits[k]
        joules = max(limit.joules - self.used_j[k], 0.0)
        share = joules / limit.joules
        is_reached = self.reached is not None
        return RemainingLimit(
            limit.name,
            0.0 if is_reached else share,
            0.0 if is_reached else share * limit.amount,
            limit.unit,
            0.0 if is_reached else joules,
            0.0 if is_reached else self._find_left_s(k),
            limit.phase,
            is_reached,
            self.is_watched,
        )

    def find_next_s(self) -> float:
        """Return the time in which a limit may be reached at the power of now, in s; inf if that is not known."""
        return min((left for k in range(len(self.limits)) if (left := self._find_left_s(k)) is not None), default=1e9)

    def _find_left_s(self, k: int) -> float | None:
        limit, power_w = self.limits[k], self._known.power_w
        is_open = limit.phase is None or any(
            end > self._known.elapsed_s for _, end in self._known.spans.get(limit.phase, ())
        )
        if not is_open or not self.is_watched or not power_w > 0:
            return None
        return max(limit.joules - self.used_j[k], 0.0) / power_w


def find_overlap(spans: Iterable[tuple[float, float]], since: float, to: float) -> float:
    """Return the share of a time span that is covered by other spans, which may overlap each other."""
    if to <= since:
        return 0.0
    covered, reached = 0.0, since
    for begin, end in sorted(spans):
        low, high = max(begin, reached), min(end, to)
        if high > low:
            covered += high - low
            reached = high
    return covered / (to - since)


# The guard -------------------------------------------------------------------------------------------------------


class LimitGuard:
    """Watch the limits of a run while its workload runs; a failure here never reaches the workload.

    `follow` opens the energy of a run: its folder, that of its first host, the start (monotonic ns), names of phases.
    `report` gets the news, in the thread of the supervisor. Poll `fds` until `due_ns`, and call `serve`.
    """

    def __init__(
        self,
        limits: Sequence[EnergyLimit],
        action: LimitAction,
        *,
        follow: Callable[[Path, Path, int, Sequence[str]], EnergySource],
        report: Callable[[LimitNews], None],
    ) -> None:
        self.ledger, self.action = LimitLedger(limits), action
        self.due_ns = NEVER_NS
        self._follow, self._report = follow, report
        self._recording: RunRecording | None = None
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._over = threading.Event()
        self._file_lock = threading.Lock()
        self._news: deque[LimitNews] = deque()
        self._environ: Mapping[str, str] = {}
        self._mask: Iterable[int] = ()
        self._command_pid = 0

    @property
    def fds(self) -> Sequence[int]:
        """Return the file descriptors to poll."""
        return () if self._over.is_set() else (self._bell,)

    def prepare(self, recording: RunRecording) -> None:
        """Store the limits, and let the workload find them; before it starts."""
        self._recording = recording
        for limit in self.ledger.limits:
            recording.event("limit", limit=limit.name, limit_j=limit.joules, phase=limit.phase, then=self.action.name)
        self._publish()

    def begin(self, start_ns: int, environ: Mapping[str, str], mask: Iterable[int]) -> None:
        """Start to watch, just after the start of the workload, and return at once."""
        recording, self._environ, self._mask = self._recording, environ, mask
        if recording is None or recording.run is None:
            self._handle(LimitNews("lost", self.ledger.limits[0]), lambda _: None)
            return
        given = (recording.run, recording.folder, start_ns)
        threading.Thread(target=self._watch, args=given, name="joulelab-limit", daemon=True).start()

    def serve(self, send: Callable[[int], None]) -> None:
        """Handle the news of the thread: store them, report them, and at the limit send the signal."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._bell)
        while self._news:
            self._handle(self._news.popleft(), send)
        if self._command_pid:
            from joulelab.run.workload_process import poll_workload

            ended = poll_workload(self._command_pid)[0]
            if ended is not None:
                self._command_pid = 0
                self._report_command(ended)
        if monotonic_ns() >= self.due_ns:
            self.due_ns = NEVER_NS
            reached = self.ledger.reached or self.ledger.limits[0]
            self._handle(LimitNews("killed", reached), lambda _: None)
            send(signal.SIGKILL)

    def end(self) -> None:
        """Watch no more: the workload has ended."""
        self._over.set()
        self.due_ns = NEVER_NS
        if self.ledger.reached is not None and self.action.signal is not None:
            self._report_survivors()
        path = self._find_file()
        if path is not None:
            with self._file_lock, contextlib.suppress(OSError):
                path.unlink()

    def _report_survivors(self) -> None:
        """Report processes that outlive the command: the signal went to the command alone, as to a script's shell."""
        run = None if self._recording is None else self._recording.environment().get(RUN_VARIABLE)
        if self._recording is None or run is None:
            return
        until = time.monotonic() + SURVIVE_S
        while (pids := list_processes_of_run(run)) and time.monotonic() < until:
            time.sleep(SURVIVE_S / 10)
        if pids:
            named = " ".join(map(str, pids[:MOST_PIDS])) + (" ..." if len(pids) > MOST_PIDS else "")
            many = f"{len(pids)} processes" if len(pids) > 1 else "a process"
            text = f"{many} of the command went on after the limit, and its later energy is not counted"
            self._recording.report_problem(f"{text}: kill {named} (in a shell script, start the program by exec)")

    def _handle(self, news: LimitNews, send: Callable[[int], None]) -> None:
        limit, recording = news.limit, self._recording
        if recording is not None and news.code != "watching":
            numbers = {"limit_j": limit.joules, "used_j": news.used_j, "elapsed_s": news.elapsed_s}
            recording.event(f"limit-{news.code}", limit=limit.name, phase=limit.phase, **numbers, then=self.action.name)
        if news.code == "reached":
            self._act(send)
        with contextlib.suppress(Exception):  # a message that cannot be printed stops nothing
            self._report(news)

    def _act(self, send: Callable[[int], None]) -> None:
        if self.action.grace_s is not None:
            self.due_ns = monotonic_ns() + round(self.action.grace_s * NS)
        if self.action.signal is not None:
            send(self.action.signal)
        else:
            self._start_command()

    def _start_command(self) -> None:
        from joulelab.run.workload_process import start_workload

        assert self._recording is not None
        pid = self._recording.workload_pid
        environ = {**self._environ, **self._recording.environment(), THEN_VARIABLE: str(pid or "")}
        words = ["/bin/sh", "-c", THEN_COMMAND, "joulelab", self.action.command]
        try:
            self._command_pid = start_workload(words, environ, self._mask)
        except WorkloadError as error:
            self._recording.report_problem(f"the command of --then did not start: {error}")

    def _report_command(self, ended: WorkloadEnd) -> None:
        if self._recording is not None and (ended.exit_code or ended.signal):
            how = f"exit {ended.exit_code}" if ended.signal is None else signal.Signals(ended.signal).name
            text = f"the command of --then failed ({how}): it may not have stopped anything"
            self._recording.report_problem(text)

    def _watch(self, run: Path, folder: Path, start_ns: int) -> None:
        failed, is_first = 0, True
        if self._over.wait(FIRST_S):
            return
        try:
            with contextlib.closing(self._follow(run, folder, start_ns, self.ledger.phases)) as source:
                while not self._over.is_set():
                    began = time.thread_time()
                    try:
                        self._add(source.read())
                        failed = 0
                    except Exception:
                        failed += 1
                        if failed == TRIES:
                            raise
                    cost_s = 0.0 if is_first else time.thread_time() - began  # the first read takes all from the start
                    is_first = False
                    is_close = self.ledger.find_next_s() < CLOSE_S and self.ledger.reached is None
                    self._over.wait(CLOSE_EVERY_S if is_close else max(EVERY_S, cost_s / SHARE))
        except Exception as error:  # noqa: BLE001 - the command goes on
            self.ledger.is_watched = False
            if self._recording is not None:
                self._recording.event("limit-failed", error=f"{type(error).__name__}: {error}")
            self._ring([LimitNews("lost", self.ledger.limits[0], self.ledger.used_j[0])])

    def _add(self, reading: EnergyReading) -> None:
        news = self.ledger.add(reading)
        self._publish()  # before the signal: the workload may ask why it came
        self._ring(news)

    def _ring(self, news: Sequence[LimitNews]) -> None:
        if news and not self._over.is_set():
            self._news.extend(news)
            os.eventfd_write(self._bell, 1)

    def _find_file(self) -> Path | None:
        run = None if self._recording is None else self._recording.run
        return None if run is None else run / FILE

    def _publish(self) -> None:
        from joulelab.store.safe_files import replace_file

        path, rest = self._find_file(), asdict(self.ledger.find_rest()) | {"then": self.action.name}
        with self._file_lock, contextlib.suppress(OSError):  # a full disk
            if path is not None and not self._over.is_set():
                replace_file(path, json.dumps(rest).encode(), sync=False)


def list_processes_of_run(run: str, proc: Path = Path("/proc")) -> list[int]:
    """Return the visible processes that inherited the variable of a run, without the command of `--then`."""
    wanted, own = f"{RUN_VARIABLE}={run}".encode(), f"{THEN_VARIABLE}=".encode()
    found = []
    for entry in proc.iterdir():
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            names = (entry / "environ").read_bytes().split(b"\0") if entry.name.isdigit() else []
            if wanted in names and not any(name.startswith(own) for name in names):
                found.append(int(entry.name))
    return sorted(found)


# The workload ----------------------------------------------------------------------------------------------------

_answer: tuple[float, RemainingLimit | None] = (-math.inf, None)


def remaining(*, is_fresh: bool = False) -> RemainingLimit | None:
    """Return what is left of the limit of this run (`joulelab run --stop-at`); None without a limit.

    Cheap enough to be called at every step: the answer is at most a second or two old. `is_fresh` reads the file even
    if that was done a moment ago. Never raises.
    """
    global _answer
    now = time.monotonic()
    if is_fresh or now - _answer[0] >= FRESH_S:
        _answer = (now, _read_rest(os.environ.get(RUN_VARIABLE)))
    return _answer[1]


def _read_rest(run: str | None) -> RemainingLimit | None:
    if not run:
        return None
    try:
        return RemainingLimit(**json.loads((Path(run) / FILE).read_bytes()))
    except (OSError, ValueError, TypeError):
        return None  # no limit, or the run has ended
