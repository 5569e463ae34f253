"""Find the cheapest times, pauses and caps of a job as a mixed-integer program, solved by HiGHS. Arrays only.

Time is cut into slots, each with a rate (cost per J). In a slot the job may be in several modes (speed and power of a
cap) one after the other. The node belongs to the job from its start to its end; in pauses it draws `pause_w`.

Each slot is in one state: the job has not started, starts (late in the slot), is held, ends (early in the slot), starts
and ends, or is over. The states are a path through the slots, so that they are whole numbers in nearly all corners of
the linear program: only the amount of work ties the slots together. Where a restart costs time or energy, a held slot
is more exactly one in which the job runs through, pauses throughout, resumes, goes to pause, or both: then no pause can
hide within a slot. Pauses and waiting at a negative rate count as free in the choice: a plan does not hold a node to be
paid for idling.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from joulelab.core.errors import ConfigError, MissingDependency

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.analysis.readings import Floats, Ints

MOST_SLOTS = 3_000
TIME_LIMIT_S = 60.0
GAP = 1e-4  # a plan that costs at most this share more than the optimum is accepted
TILT = 1e-6  # share of the mean rate that the last slot costs more: of two equal plans the earlier one is found
DUST = 1e-5  # share of a slot that is rounding of the solver
FEASIBLE = 2  # of HiGHS: a solution was found
INSTALL = 'python -m pip install "joulelab[plan]"'


@dataclass(frozen=True, slots=True)
class JobModes:
    """Hold the speeds (1: without a cap) and powers (W) of a job, the fastest last."""

    speeds: Floats
    powers_w: Floats


@dataclass(frozen=True, slots=True)
class RestartCost:
    """Hold the cost of going on after a pause: time (s) at full power without work, and energy (J) on top of it."""

    time_s: float = 0.0
    energy_j: float = 0.0

    def __bool__(self) -> bool:
        return self.time_s > 0 or self.energy_j > 0


NO_RESTART = RestartCost()


@dataclass(frozen=True, slots=True)
class SlotSolution:
    """Hold the time (s) in each mode by slot, restarts in that of the fastest, and which slots begin with a restart.

    `cost` is the objective as rate x J, `gap` the share by which a cheaper plan may still exist, `price` the cost of
    one more second of work at full speed.
    """

    seconds: Floats
    restarts: Ints
    cost: float
    gap: float
    price: float


def find_cheapest_slots(
    rates: Floats,
    lengths_s: Floats,
    work_s: float,
    modes: JobModes,
    pause_w: float,
    *,
    wait_w: float = 0.0,
    restart: RestartCost | None = None,
    gap: float = GAP,
    time_limit_s: float = TIME_LIMIT_S,
) -> SlotSolution:
    """Return the cheapest way to do work (s at full speed) in slots, by their rates (per J) and lengths (s).

    `wait_w` is the power of the node until the job starts. Raises ConfigError if the time is too short,
    MissingDependency without HiGHS.
    """
    if work_s > float(modes.speeds.max() * lengths_s.sum()) * (1 + 1e-9):
        raise ConfigError("the deadline is too early", next="give a later deadline", code="config.deadline")
    restart = restart or NO_RESTART
    program = _Program()
    scale = float(np.abs(rates).max() * modes.powers_w.max() * lengths_s.mean()) or 1.0
    tilted = rates + TILT * np.abs(rates).mean() * np.linspace(0.0, 1.0, len(rates))
    costs = _SlotCosts.compute(tilted / scale, lengths_s, work_s, modes, pause_w, wait_w, restart)
    if restart:
        columns = _add_restart_states(program, costs)
    elif pause_w or wait_w:
        columns = _add_held_states(program, costs)
    else:
        columns = _Columns((program.add_columns(costs.run),))  # then first and last slots do not matter
        program.add_rows(-np.inf, 1.0, (columns.runs[0], 1.0))
    work = np.concatenate([lengths_s[:, None] * modes.speeds / work_s] * len(columns.runs))
    work_row = program.add_rows(1.0, 1.0, (np.concatenate(columns.runs).reshape(1, -1), work.reshape(1, -1)))
    values, left, price = program.solve(work_row, gap, time_limit_s)
    seconds: Floats = np.add.reduce([values[run] for run in columns.runs]) * lengths_s[:, None]
    again = np.add.reduce([values[column] for column in columns.restarts]) if columns.restarts else np.zeros(len(rates))
    restarts = np.rint(again).astype(int)
    seconds[:, -1] += restarts * restart.time_s
    seconds[seconds < DUST * lengths_s[:, None]] = 0.0
    cost = float(np.concatenate(program.costs) @ values) * scale
    return SlotSolution(seconds, restarts, cost, left, price * scale / work_s)


@dataclass(frozen=True, slots=True)
class _SlotCosts:
    """Hold costs by slot: of running through in each mode, pausing, waiting until it and in it, and of a restart.

    `again` is the share of a slot that a restart takes, `room` the share of the work that fits into it, `none` zeros.
    """

    run: Floats
    pause: Floats
    until: Floats
    wait: Floats
    restart: Floats
    again: Floats
    room: Floats

    @property
    def none(self) -> Floats:
        return np.zeros(len(self.pause))

    @classmethod
    def compute(
        cls,
        rates: Floats,
        lengths_s: Floats,
        work_s: float,
        modes: JobModes,
        pause_w: float,
        wait_w: float,
        restart: RestartCost,
    ) -> _SlotCosts:
        paid = np.maximum(rates, 0.0) * lengths_s
        until = np.append(0.0, np.cumsum(paid * wait_w))[:-1]
        again = rates * (modes.powers_w.max() * restart.time_s + restart.energy_j)
        run = (rates * lengths_s)[:, None] * modes.powers_w
        room = lengths_s * modes.speeds.max() / work_s
        return cls(run, paid * pause_w, until, paid * wait_w, again, restart.time_s / lengths_s, room)


@dataclass(frozen=True, slots=True)
class _Columns:
    """Hold the columns of shares of slots in which the job runs (slot x mode), and of slots with a restart."""

    runs: Sequence[Ints]
    restarts: Sequence[Ints] = ()


def _add_held_states(program: _Program, costs: _SlotCosts) -> _Columns:
    """Add slots in which the job starts, is held (runs and pauses as it likes), ends, or starts and ends."""
    start = program.add_columns(costs.until + costs.wait, is_whole=True)
    end, both = program.add_columns(costs.none, is_whole=True), program.add_columns(costs.until, is_whole=True)
    started, ended = _add_window(program, costs, [start], [end], both)
    run, pause = program.add_columns(costs.run), program.add_columns(costs.pause)
    run_first, run_last = program.add_columns(costs.run - costs.wait[:, None]), program.add_columns(costs.run)
    program.add_rows(0.0, 0.0, (run[1:], 1.0), (pause[1:], 1.0), (started[:-1], -1.0), (ended[1:], 1.0))
    program.add_rows(0.0, 0.0, (np.append(run[0], [pause[0], end[0]])[None], 1.0))
    program.add_rows(-np.inf, 0.0, (run_first, 1.0), (start, -1.0))
    program.add_rows(-np.inf, 0.0, (run_last, 1.0), (end, -1.0), (both, -1.0))
    return _Columns((run, run_first, run_last))


def _add_restart_states(program: _Program, costs: _SlotCosts) -> _Columns:
    """Add slots that the job runs through or pauses throughout, and those in which it starts, resumes, leaves or ends.

    A name is what happens at the two ends of the slot: `start_leave` is a slot in which the job starts (late, after
    waiting) and goes to pause. Those with one word go on in the next slot (`start`, `resume`) or come from the last
    (`leave`, `end`).
    """
    through, paused = program.add_columns(costs.none, is_whole=True), program.add_columns(costs.pause, is_whole=True)
    start, start_leave = (program.add_columns(costs.until + costs.wait, is_whole=True) for _ in range(2))
    start_end = program.add_columns(costs.until, is_whole=True)
    end, leave = (program.add_columns(costs.none, is_whole=True) for _ in range(2))
    resume, resume_end, resume_leave = (program.add_columns(costs.restart, is_whole=True) for _ in range(3))
    _add_window(program, costs, [start, start_leave], [end, resume_end], start_end)
    run, run_part, run_last = (program.add_columns(costs.run) for _ in range(3))
    run_first, pause_part = program.add_columns(costs.run - costs.wait[:, None]), program.add_columns(costs.pause)
    left = costs.again - 1.0  # of a slot that begins with a restart
    program.add_rows(0.0, 0.0, (run, 1.0), (through, -1.0))
    program.add_rows(
        0.0, 0.0, (run_part, 1.0), (pause_part, 1.0), (leave, -1.0), (resume, left), (resume_leave, left)
    )  # fmt: skip
    program.add_rows(-np.inf, 0.0, (run_first, 1.0), (start, -1.0), (start_leave, -1.0))
    program.add_rows(-np.inf, 0.0, (run_last, 1.0), (end, -1.0), (start_end, -1.0), (resume_end, left))
    # The job runs across the edge of two slots, or is in a pause there.
    into, out_of = (through, end, leave), (through, start, resume)
    program.add_rows(0.0, 0.0, *((one[:-1], 1.0) for one in out_of), *((one[1:], -1.0) for one in into))
    wakes, sleeps = (paused, resume, resume_end, resume_leave), (paused, leave, start_leave, resume_leave)
    program.add_rows(0.0, 0.0, *((one[:-1], 1.0) for one in sleeps), *((one[1:], -1.0) for one in wakes))
    outside = [one[:1] for one in (*into, *wakes)] + [one[-1:] for one in (*out_of, *sleeps)]
    program.add_rows(0.0, 0.0, (np.unique(np.concatenate(outside))[None], 1.0))
    too_short = np.flatnonzero(left > 0)
    program.add_rows(0.0, 0.0, (np.concatenate([one[too_short] for one in wakes[1:]])[None], 1.0))
    return _Columns((run, run_part, run_first, run_last), wakes[1:])


def _add_window(
    program: _Program, costs: _SlotCosts, starts: Sequence[Ints], ends: Sequence[Ints], single: Ints
) -> tuple[Ints, Ints]:
    """Let the job start once and end once, in one slot (`single`) or in two between which the work has room.

    Returns whether it has started, and whether it has ended, in each slot or before.
    """
    program.add_rows(1.0, 1.0, (np.concatenate([*starts, single])[None], 1.0))
    program.add_rows(1.0, 1.0, (np.concatenate([*ends, single])[None], 1.0))
    found = []
    for events in (starts, ends):
        since = program.add_columns(costs.none)  # whole because the events are
        program.add_rows(0.0, 0.0, (since[1:], 1.0), (since[:-1], -1.0), *((one[1:], -1.0) for one in events))
        program.add_rows(0.0, 0.0, (since[:1], 1.0), *((one[:1], -1.0) for one in events))
        found.append(since)
    started, ended = found
    # A job that ends in a slot has started early enough: this makes the bounds of the linear program tight.
    room = np.append(0.0, np.cumsum(costs.room))
    latest = np.searchsorted(room, room[1:] - 1 + 1e-9, side="right") - 1
    early, places = latest < 0, np.arange(len(single))
    fits = ~early & (latest < places)
    program.add_rows(-np.inf, 0.0, (ended[fits], 1.0), (started[latest[fits]], -1.0))
    program.add_rows(0.0, 0.0, (np.append(ended[early], single[latest < places])[None], 1.0))
    return started, ended


class _Program:
    """Collect columns from 0 to 1 and rows of a program, and let HiGHS minimise its cost."""

    def __init__(self) -> None:
        self.costs: list[Floats] = []
        self._whole: list[Any] = []
        self._entries: list[tuple[Ints, Ints, Floats]] = []
        self._bounds: list[tuple[float, float]] = []
        self._count = 0

    def add_columns(self, costs: Floats, *, is_whole: bool = False) -> Ints:
        """Add a column for each cost; return their numbers in the same shape."""
        columns = np.arange(self._count, self._count + costs.size).reshape(costs.shape)
        self._count += costs.size
        self.costs.append(costs.ravel())
        self._whole.append(np.full(costs.size, is_whole))
        return columns

    def add_rows(self, low: float, high: float, *terms: tuple[Ints, Floats | float]) -> int:
        """Add rows that bound sums of columns x factors; each term is a column, or several, per row.

        Returns the number of the first.
        """
        first, count = len(self._bounds), len(terms[0][0])
        if not count or not terms[0][0].size:
            return first
        for columns, factors in terms:
            wide = columns.reshape(count, -1)
            factor = np.asarray(factors, dtype=float)
            factor = factor.reshape(count, -1) if factor.ndim else factor
            rows = np.repeat(np.arange(first, first + count), wide.shape[1])
            self._entries.append((rows, wide.ravel(), np.broadcast_to(factor, wide.shape).ravel()))
        self._bounds += [(low, high)] * count
        return first

    def solve(self, row: int, gap: float, time_limit_s: float) -> tuple[Floats, float, float]:
        """Return the values of all columns, the share that is not proven, and the cost of more of one row.

        Raises ConfigError where no plan is found in time, MissingDependency without HiGHS.
        """
        highspy = _import_highs()
        solver = highspy.Highs()
        for option, value in {
            "output_flag": False, "mip_rel_gap": gap, "mip_abs_gap": 1e-9, "time_limit": time_limit_s, "threads": 1,
            "mip_allow_restart": False,
        }.items():  # fmt: skip
            solver.setOptionValue(option, value)
        whole = np.concatenate(self._whole)
        solver.passModel(self._build(highspy, whole))
        solver.run()
        status, info = solver.getModelStatus(), solver.getInfo()
        if info.primal_solution_status != FEASIBLE:
            raise ConfigError(
                "no plan was found", why=f"the solver reports: {solver.modelStatusToString(status)}",
                next="give longer slots (--slot 1h), a later deadline, or fewer caps (--cap)", code="config.no-plan",
            )  # fmt: skip
        values: Floats = np.array(solver.getSolution().col_value)
        # The price of work is the dual of the linear program with the states as they are.
        places = np.flatnonzero(whole).astype(np.int32)
        if not len(places):
            return values, 0.0, float(solver.getSolution().row_dual[row])
        fixed = np.rint(values[places])
        solver.changeColsIntegrality(len(places), places, np.zeros(len(places), dtype=np.uint8))
        solver.changeColsBounds(len(places), places, fixed, fixed)
        solver.run()
        if solver.getModelStatus() == highspy.HighsModelStatus.kOptimal:
            values = np.array(solver.getSolution().col_value)
        missing = max(info.objective_function_value - info.mip_dual_bound, 0.0)
        left = missing / max(abs(info.objective_function_value), 0.01)  # 1: the dearest slot at full power
        return values, float(left), float(solver.getSolution().row_dual[row])

    def _build(self, highspy: Any, whole: Any) -> Any:
        rows, columns, factors = (np.concatenate(part) for part in zip(*self._entries, strict=True))
        order = np.lexsort((columns, rows))
        low, high = np.array(self._bounds).T
        made = highspy.HighsLp()
        made.num_col_, made.num_row_ = self._count, len(self._bounds)
        made.col_cost_ = np.concatenate(self.costs)
        made.col_lower_, made.col_upper_ = np.zeros(self._count), np.ones(self._count)
        made.row_lower_, made.row_upper_ = low, high
        made.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        made.a_matrix_.start_ = np.searchsorted(rows[order], np.arange(len(self._bounds) + 1)).astype(np.int32)
        made.a_matrix_.index_, made.a_matrix_.value_ = columns[order].astype(np.int32), factors[order]
        kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
        made.integrality_ = [kinds[int(one)] for one in whole] if whole.any() else []
        return made


def _import_highs() -> Any:
    try:
        import highspy
    except ImportError as error:
        raise MissingDependency(
            "the solver HiGHS is not installed", why=f"cannot import highspy: {error}", next=INSTALL
        ) from None
    return highspy
