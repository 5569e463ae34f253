"""Group the steps of a training into blocks, which become phases; their number stays small for any length.

A block is a single step at first, later as many whole steps as take 2 % of all time spent in steps: fifty blocks for
fifty steps, about five hundred for a million.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

BLOCKS = 50  # a block is written when it lasted this part of the time spent in steps


@dataclass(slots=True)
class StepBlock:
    """Hold steps that follow each other, by number, with their time span (monotonic ns) and the work done in them."""

    first: int
    start_ns: int
    last: int = 0
    end_ns: int = 0
    amounts: dict[str, float] = field(default_factory=dict)

    def add(self, number: int, t_ns: int, amounts: Mapping[str, float]) -> None:
        """Add one step."""
        self.last, self.end_ns = number, t_ns
        for name, amount in amounts.items():
            self.amounts[name] = self.amounts.get(name, 0.0) + amount


class _PhaseSteps:
    """Hold the steps of one phase: the begin of the next step, the open block, names of phases inside steps."""

    __slots__ = ("block", "inner", "next_ns", "stepped")

    def __init__(self, next_ns: int | None) -> None:
        self.next_ns = next_ns
        self.block: StepBlock | None = None
        self.stepped = False
        self.inner: tuple[str, ...] = ()


class StepGrouper:
    """Number the steps of a process, and group those of each phase into blocks. Not thread-safe."""

    def __init__(self) -> None:
        self._done = 0
        self._spent_ns = 0
        self._around: dict[str | None, _PhaseSteps] = {}

    def step(self, phase: str | None, t_ns: int, amounts: Mapping[str, float]) -> list[StepBlock]:
        """End a step and return the finished blocks. A step whose begin is unknown is only counted."""
        self._done += 1
        around = self._around.get(phase)
        if around is None:
            around = self._around[phase] = _PhaseSteps(None)
        around.stepped, since, around.next_ns = True, around.next_ns, t_ns
        if since is None:
            return []
        self._spent_ns += t_ns - since
        whole = []
        block = around.block
        if block is not None and (t_ns - since) * BLOCKS >= self._spent_ns:
            whole.append(block)  # this step is long enough for a block of its own
            block = None
        if block is None:
            block = around.block = StepBlock(self._done, since)
        block.add(self._done, t_ns, amounts)
        if (t_ns - block.start_ns) * BLOCKS >= self._spent_ns:
            whole.append(block)
            around.block = None
        return whole

    def begin(self, name: str, phase: str | None, parent: str | None, t_ns: int) -> Sequence[StepBlock]:
        """Begin a phase; return the block of steps that it ends, if any.

        A phase that was also in the first step (forward, backward) is part of a step; any other (a validation) is not.
        """
        self._around[phase] = _PhaseSteps(t_ns)
        around = self._around.get(parent)
        if around is None:
            around = self._around[parent] = _PhaseSteps(None)
        if name in around.inner:
            return ()
        if not around.stepped:
            around.inner += (name,)
            return ()
        return self._break(around, None)

    def end(self, phase: str | None, parent: str | None, t_ns: int) -> Sequence[StepBlock]:
        """End a phase; return its block. If it was not part of a step, the next step begins now."""
        ended, around = self._around.pop(phase, None), self._around.get(parent)
        if around is not None and around.stepped and around.next_ns is None:
            around.next_ns = t_ns
        return () if ended is None or ended.block is None else self._break(ended, None)

    def switch(self, t_ns: int) -> list[StepBlock]:
        """Begin another phase of the process itself; return the block of the previous one."""
        around = self._around.setdefault(None, _PhaseSteps(None))
        return self._break(around, t_ns)

    def rest(self) -> list[tuple[str | None, StepBlock]]:
        """Return the unfinished blocks with their phases; the next step begins a new block."""
        found = [(phase, around.block) for phase, around in self._around.items() if around.block is not None]
        for phase, _ in found:
            self._around[phase].block = None
        return found

    def _break(self, around: _PhaseSteps, next_ns: int | None) -> list[StepBlock]:
        block, around.block, around.next_ns = around.block, None, next_ns
        return [] if block is None else [block]
