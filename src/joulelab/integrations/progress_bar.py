"""Paint the progress of a loop on one line of a terminal: how far, how fast, at what power, at how many joules."""

from __future__ import annotations

import contextlib
import os
import threading
from typing import TYPE_CHECKING, TextIO

from joulelab.report import format as fmt

if TYPE_CHECKING:
    from joulelab.analysis.live_energy import LiveFigures

USUAL_WIDTH = 100  # where nobody tells how wide the terminal is
BLOCKS = 20
OLD_S = 2.0  # figures that are older than this say so
ERASE = "\r\x1b[K"


class BarLine:
    """Hold which bar stands in the last line of a terminal: loops, their threads and late lines share it."""

    def __init__(self) -> None:
        # One thread may come twice: what collects garbage ends loops that were left, in the midst of anything.
        self._lock = threading.RLock()
        self._bar: ProgressBar | None = None

    def paint(self, bar: ProgressBar, text: str) -> None:
        """Let a bar stand in the line, unless it has been taken away for good."""
        with self._lock:
            if not bar.over:
                self._bar = bar
                bar.write(ERASE + text)

    def erase(self, bar: ProgressBar) -> None:
        """Take a bar away for good: what others print now stays."""
        with self._lock:
            bar.over = True
            if self._bar is bar:
                self._bar = None
                bar.write(ERASE)

    def line(self, bar: ProgressBar, text: str) -> None:
        """Print a line of its own; only a bar that stands there gives way, and is painted again soon."""
        with self._lock:
            taken = self._bar is not None and self._bar.stream is bar.stream
            self._bar = None if taken else self._bar
            bar.write(f"{ERASE if taken else ''}{text}\n")


class ProgressBar:
    """Paint one loop; figures of the node are those of one rank times `ranks`. Never raises into the loop."""

    def __init__(
        self, screen: BarLine, stream: TextIO, title: str, unit: str, total: int | None, *, ranks: int = 1
    ) -> None:
        self.stream, self.over = stream, False
        self._screen, self._title, self._unit, self._total, self._ranks = screen, title, unit, total, ranks
        self._one = unit.removesuffix("s")

    def paint(self, seconds: float, batches: int, samples: float, now: LiveFigures | None) -> None:
        """Paint how far the loop is, over what was painted before."""
        parts = [self._rate(seconds, batches, samples)]
        if now is not None and "measured" in now.energy:
            parts.append(self._mean(seconds, now))
            # Both up to now: what was counted since the last readings is left out by its share of the time.
            per = self._per(samples * min(now.seconds / seconds, 1.0) if seconds else 0.0, now)
            parts += [per] if per else []
        text = f"{self._title}: {self._far(batches)} {', '.join(parts)}, {self._left(seconds, batches)}"
        self._screen.paint(self, fmt.shorten_end(text, self._width() - 1))

    def erase(self) -> None:
        """Take the bar away."""
        self._screen.erase(self)

    def finish(self, seconds: float, batches: int, samples: float, now: LiveFigures | None) -> None:
        """Print the line that stays, wherever the terminal is by then."""
        parts = [
            fmt.format_duration(seconds),
            f"{fmt.format_amount(samples * self._ranks)} {self._unit}" if samples else "",
        ]
        parts += ["" if samples else f"{fmt.format_amount(batches)} batches", self._rate(seconds, batches, samples)]
        if now is not None and "measured" in now.energy:
            energy = now.energy["measured"]
            parts += [self._per(samples, now, wide=True), fmt.format_watts(energy.value / max(now.seconds, 1e-9))]
            parts.append(fmt.format_quantity(energy.value, energy.expanded, "J", estimate=now.estimate))
        else:
            parts.append("energy not measured")
        ranks = f" ({self._ranks} ranks taken as alike)" if self._ranks > 1 else ""
        self._screen.line(self, f"{self._title}: {', '.join(p for p in parts if p)}{ranks}")

    @staticmethod
    def _mean(seconds: float, now: LiveFigures) -> str:
        """Return the mean power of the loop, and up to when where that is long ago: readings come seldom."""
        age = seconds - now.seconds
        mean = f"mean {fmt.format_watts(now.energy['measured'].value / max(now.seconds, 1e-9))}"
        return f"{mean} until {fmt.format_rough_duration(age)} ago" if age >= OLD_S else mean

    def _far(self, batches: int) -> str:
        if not self._total:
            return f"{batches}"
        share = min(batches / self._total, 1.0)
        done = round(share * BLOCKS)
        return f"{share * 100:3.0f} % |{'█' * done}{'·' * (BLOCKS - done)}| {batches}/{self._total}"

    def _left(self, seconds: float, batches: int) -> str:
        if not self._total or not batches:
            return f"{fmt.format_rough_duration(seconds)} so far"
        return f"{fmt.format_rough_duration(seconds * max(self._total - batches, 0) / batches)} left"

    def _rate(self, seconds: float, batches: int, samples: float) -> str:
        done, unit = (samples * self._ranks, self._unit) if samples else (batches, "batches")
        return f"{fmt.format_rate(done / seconds)} {unit}/s" if seconds > 0 else f"- {unit}/s"

    def _per(self, samples: float, now: LiveFigures, *, wide: bool = False) -> str:
        if not samples:
            return ""
        per = now.energy["measured"] * (1 / (samples * self._ranks))
        if wide:
            return fmt.format_quantity(per.value, per.expanded, f"J/{self._one}", estimate=now.estimate)
        return f"{'~' if now.estimate else ''}{fmt.format_rough(per.value, f'J/{self._one}')}"

    def _width(self) -> int:
        try:
            return os.get_terminal_size(self.stream.fileno()).columns or USUAL_WIDTH
        except (OSError, ValueError, AttributeError):
            return USUAL_WIDTH

    def write(self, text: str) -> None:
        """Write to the terminal, which may be gone."""
        with contextlib.suppress(OSError, ValueError):  # a terminal that is gone, a stream that was closed
            try:
                self.stream.write(text)
            except UnicodeEncodeError:
                self.stream.write(text.encode("ascii", "replace").decode())
            self.stream.flush()
