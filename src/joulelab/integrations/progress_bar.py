"""Show the progress of a loop: as a bar in one line of a terminal, elsewhere as lines that `grep ^joulelab:` finds."""

from __future__ import annotations

import contextlib
import os
import threading
from typing import TYPE_CHECKING, TextIO

from joulelab.core.text import name_one
from joulelab.report import format as fmt
from joulelab.report.footprint_text import word_footprint
from joulelab.report.run_summary import format_energy
from joulelab.site.footprint import compute_footprint

if TYPE_CHECKING:
    from joulelab.analysis.live_energy import LiveFigures
    from joulelab.site.footprint import Site

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
    """Show one loop; the work of the node is that of one rank times `ranks`. Raises nothing into the loop.

    It is painted in the last line of a terminal, or with `is_log` printed line by line.
    """

    def __init__(
        self,
        line: BarLine,
        stream: TextIO,
        title: str,
        unit: str,
        total: int | None,
        *,
        ranks: int = 1,
        is_log: bool = False,
    ) -> None:
        self.stream, self.over = stream, False
        self._line, self._title, self._unit, self._total, self._ranks = line, title, unit, total, ranks
        self._one, self._is_log = name_one(unit), is_log

    def show(self, seconds: float, batches: int, samples: float, now: LiveFigures | None) -> None:
        """Show the state of the loop: over the bar before, or in a line of its own."""
        parts = [self._describe_rate(seconds, batches, samples)]
        energy = now.energy.get("measured") if now is not None else None
        if now is not None and energy is not None and energy.is_resolved:
            parts.append(self._describe_power(seconds, now))
            # Samples since the last readings are left out, by their share of the time.
            per = self._describe_price(samples * min(now.seconds / seconds, 1.0) if seconds else 0.0, now)
            parts += [per] if per else []
            parts += [f"{fmt.format_rough(energy.value, 'J')} so far"] if self._is_log else []
        text = f"{self._describe_share(batches)} {', '.join(parts)}, {self._describe_rest(seconds, batches)}"
        if self._is_log:
            self._print(text)
        else:
            self._line.paint(self, fmt.shorten_end(f"{self._title}: {text}", self._find_width() - 1))

    def erase(self) -> None:
        """Remove the bar."""
        self._line.erase(self)

    def finish(
        self, seconds: float, batches: int, samples: float, now: LiveFigures | None, site: Site | None = None
    ) -> None:
        """Print the last line, which stays: energy, time, power, cost and CO2e, energy per sample, work."""
        energy = now.energy.get("measured") if now is not None else None
        took = fmt.format_duration(seconds)
        if now is None or energy is None:
            parts = ["energy not measured (`joulelab meters` lists what is missing)", f"it took {took}"]
        elif not energy.is_resolved:
            parts = [f"energy: {fmt.word_unresolved(energy)}", f"it took {took}"]
        else:
            mean = energy / max(now.seconds, 1e-9)
            watts = fmt.format_watts(mean.value, mean.expanded)
            late = seconds - now.seconds >= OLD_S
            time = f"the first {fmt.format_duration(now.seconds)} of {took}" if late else took
            parts = [f"{format_energy(energy, estimate=now.estimate)} in {time}, {watts} on average"]
            if site is not None and not site.is_empty:
                parts.append(word_footprint(compute_footprint(energy, site), is_estimate=now.estimate))
            parts += [self._describe_price(samples, now, wide=True)] if samples and not late else []
        done, unit = (samples * self._ranks, self._unit) if samples else (batches, "batches")
        ranks = f" ({self._ranks} ranks taken as alike)" if self._ranks > 1 else ""
        parts.append(f"{fmt.format_amount(done)} {unit}, {self._describe_rate(seconds, batches, samples)}{ranks}")
        self._print("; ".join(parts))

    def _print(self, text: str) -> None:
        self._line.print_line(self, f"{'joulelab: ' if self._is_log else ''}{self._title}: {text}")

    @staticmethod
    def _describe_power(seconds: float, now: LiveFigures) -> str:
        """Return the mean power of the loop, with its age where the last readings are old."""
        age = seconds - now.seconds
        mean = now.energy["measured"] / max(now.seconds, 1e-9)
        text = f"mean {fmt.format_watts(mean.value, mean.expanded)}"
        return f"{text} until {fmt.format_rough_duration(age)} ago" if age >= OLD_S else text

    def _describe_share(self, batches: int) -> str:
        if not self._total:
            return f"{batches} batches," if self._is_log else f"{batches}"
        share = min(batches / self._total, 1.0)
        if self._is_log:
            return f"{share * 100:.0f} % ({batches} of {self._total} batches),"
        done = round(share * BLOCKS)
        return f"{share * 100:3.0f} % |{'█' * done}{'·' * (BLOCKS - done)}| {batches}/{self._total}"

    def _describe_rest(self, seconds: float, batches: int) -> str:
        if not self._total or not batches:
            return f"{fmt.format_rough_duration(seconds)} so far"
        return f"{fmt.format_rough_duration(seconds * max(self._total - batches, 0) / batches)} left"

    def _describe_rate(self, seconds: float, batches: int, samples: float) -> str:
        done, unit = (samples * self._ranks, self._unit) if samples else (batches, "batches")
        return f"{fmt.format_rate(done / seconds)} {unit}/s" if seconds > 0 else f"- {unit}/s"

    def _describe_price(self, samples: float, now: LiveFigures, *, wide: bool = False) -> str:
        """Return the energy of a sample, `wide` with its interval."""
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
