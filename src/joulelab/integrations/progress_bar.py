"""Paint the progress of a loop on one line of a terminal: share done, rate, power, joules per sample."""

from __future__ import annotations

import contextlib
import os
import threading
from typing import TYPE_CHECKING, TextIO

from joulelab.report import format as fmt

if TYPE_CHECKING:
    from joulelab.analysis.live_energy import LiveFigures

USUAL_WIDTH = 100  # where the terminal has no known width
BLOCKS = 20
OLD_S = 2.0  # older figures are shown with their age
ERASE = "\r\x1b[K"


class BarLine:
    """Hold the bar in the last line of a terminal, which loops, their threads and late lines share."""

    def __init__(self) -> None:
        # Reentrant: the garbage collector may end an abandoned loop at any point of this thread.
        self._lock = threading.RLock()
        self._bar: ProgressBar | None = None

    def paint(self, bar: ProgressBar, text: str) -> None:
        """Show a bar in the line, unless it has been removed."""
        with self._lock:
            if not bar.over:
                self._bar = bar
                bar.write(ERASE + text)

    def erase(self, bar: ProgressBar) -> None:
        """Remove a bar: later output of others stays."""
        with self._lock:
            bar.over = True
            if self._bar is bar:
                self._bar = None
                bar.write(ERASE)

    def print_line(self, bar: ProgressBar, text: str) -> None:
        """Print a line that stays; a bar in its place is erased and painted again soon."""
        with self._lock:
            taken = self._bar is not None and self._bar.stream is bar.stream
            self._bar = None if taken else self._bar
            bar.write(f"{ERASE if taken else ''}{text}\n")


class ProgressBar:
    """Paint one loop; the work of the node is that of one rank times `ranks`. Raises nothing into the loop."""

    def __init__(
        self, line: BarLine, stream: TextIO, title: str, unit: str, total: int | None, *, ranks: int = 1
    ) -> None:
        self.stream, self.over = stream, False
        self._line, self._title, self._unit, self._total, self._ranks = line, title, unit, total, ranks
        self._one = unit.removesuffix("s")

    def paint(self, seconds: float, batches: int, samples: float, now: LiveFigures | None) -> None:
        """Paint the state of the loop over the bar before."""
        parts = [self._describe_rate(seconds, batches, samples)]
        if now is not None and "measured" in now.energy and now.energy["measured"].is_resolved:
            parts.append(self._describe_power(seconds, now))
            # Samples since the last readings are left out, by their share of the time.
            per = self._describe_energy(samples * min(now.seconds / seconds, 1.0) if seconds else 0.0, now)
            parts += [per] if per else []
        done, rest = self._describe_share(batches), self._describe_rest(seconds, batches)
        text = f"{self._title}: {done} {', '.join(parts)}, {rest}"
        self._line.paint(self, fmt.shorten_end(text, self._find_width() - 1))

    def erase(self) -> None:
        """Remove the bar."""
        self._line.erase(self)

    def finish(self, seconds: float, batches: int, samples: float, now: LiveFigures | None) -> None:
        """Print the last line, which stays."""
        parts = [
            fmt.format_duration(seconds),
            f"{fmt.format_amount(samples * self._ranks)} {self._unit}" if samples else "",
        ]
        parts += [
            "" if samples else f"{fmt.format_amount(batches)} batches",
            self._describe_rate(seconds, batches, samples),
        ]
        if now is not None and "measured" in now.energy:
            energy = now.energy["measured"]
            if energy.is_resolved:
                parts.append(self._describe_energy(samples, now, wide=True))
                parts.append(fmt.format_watts(energy.value / max(now.seconds, 1e-9)))
            parts.append(fmt.format_quantity(energy, "J", estimate=now.estimate))
        else:
            parts.append("energy not measured")
        ranks = f" ({self._ranks} ranks taken as alike)" if self._ranks > 1 else ""
        self._line.print_line(self, f"{self._title}: {', '.join(p for p in parts if p)}{ranks}")

    @staticmethod
    def _describe_power(seconds: float, now: LiveFigures) -> str:
        """Return the mean power of the loop, with its age where the last readings are old."""
        age = seconds - now.seconds
        mean = f"mean {fmt.format_watts(now.energy['measured'].value / max(now.seconds, 1e-9))}"
        return f"{mean} until {fmt.format_rough_duration(age)} ago" if age >= OLD_S else mean

    def _describe_share(self, batches: int) -> str:
        if not self._total:
            return f"{batches}"
        share = min(batches / self._total, 1.0)
        done = round(share * BLOCKS)
        return f"{share * 100:3.0f} % |{'█' * done}{'·' * (BLOCKS - done)}| {batches}/{self._total}"

    def _describe_rest(self, seconds: float, batches: int) -> str:
        if not self._total or not batches:
            return f"{fmt.format_rough_duration(seconds)} so far"
        return f"{fmt.format_rough_duration(seconds * max(self._total - batches, 0) / batches)} left"

    def _describe_rate(self, seconds: float, batches: int, samples: float) -> str:
        done, unit = (samples * self._ranks, self._unit) if samples else (batches, "batches")
        return f"{fmt.format_rate(done / seconds)} {unit}/s" if seconds > 0 else f"- {unit}/s"

    def _describe_energy(self, samples: float, now: LiveFigures, *, wide: bool = False) -> str:
        if not samples:
            return ""
        per = now.energy["measured"] * (1 / (samples * self._ranks))
        if wide:
            return fmt.format_quantity(per, f"J/{self._one}", estimate=now.estimate)
        return f"{'~' if now.estimate else ''}{fmt.format_rough(per.value, f'J/{self._one}')}"

    def _find_width(self) -> int:
        try:
            return os.get_terminal_size(self.stream.fileno()).columns or USUAL_WIDTH
        except (OSError, ValueError, AttributeError):
            return USUAL_WIDTH

    def write(self, text: str) -> None:
        """Write to the terminal; errors are ignored."""
        with contextlib.suppress(OSError, ValueError):  # the terminal is gone, or the stream is closed
            try:
                self.stream.write(text)
            except UnicodeEncodeError:
                self.stream.write(text.encode("ascii", "replace").decode())
            self.stream.flush()
