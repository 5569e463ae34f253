"""Draw power over time: a small SVG that stands in any page, and a line of blocks for terminals. Pure."""

from __future__ import annotations

import html
from dataclasses import dataclass

from joulelab.report import format as fmt

BLOCKS = "▁▂▃▄▅▆▇█"
# Room for the figures at the left and below, and the size of the curve itself.
LEFT, BELOW, WIDTH, HEIGHT = 58, 18, 420, 70
TEXT = 'fill="currentColor" font-family="sans-serif" font-size="11"'


@dataclass(frozen=True, slots=True)
class PowerPicture:
    """Hold mean powers (W) over stretches of equal length (s), the first of which begins at `start_s`."""

    watts: tuple[float, ...]
    step_s: float
    start_s: float = 0.0

    @property
    def end_s(self) -> float:
        """Return when the last stretch ends, in s."""
        return self.start_s + self.step_s * len(self.watts)

    @property
    def highest(self) -> float:
        """Return the largest power, in W."""
        return max(self.watts)

    @property
    def mean(self) -> float:
        """Return the mean power, in W."""
        return sum(self.watts) / len(self.watts)

    def coarser(self, most: int) -> PowerPicture:
        """Return a curve of at most so many stretches, each the mean of some of these."""
        every = -(-len(self.watts) // most)
        groups = [self.watts[k : k + every] for k in range(0, len(self.watts), every)]
        return PowerPicture(tuple(sum(g) / len(g) for g in groups), self.step_s * every, self.start_s)


def draw_blocks(curve: PowerPicture, most: int = 48) -> str:
    """Return a line of blocks, from 0 W to the largest power, and what they reach from and to."""
    coarse = curve.coarser(most)
    top = max(curve.highest, 1e-9)
    levels = (round(min(max(w / top, 0.0), 1.0) * (len(BLOCKS) - 1)) for w in coarse.watts)
    return f"{''.join(BLOCKS[level] for level in levels)}  {describe_power(curve)}"


def describe_power(curve: PowerPicture) -> str:
    """Return what a curve shows, in words, for those who do not see it."""
    low, high = (fmt.format_watts(w) for w in (min(curve.watts), curve.highest))
    return f"{low} to {high} in {fmt.format_duration(curve.end_s - curve.start_s)}"


def draw_svg(curve: PowerPicture, title: str) -> str:
    """Return an SVG picture; its colours are those of the text around it, so that dark pages can be read as well."""
    top = max(curve.highest, 1e-9)
    said = html.escape(f"{title}: {describe_power(curve)}")
    bottom, right = HEIGHT + 6, LEFT + WIDTH
    path = _draw_steps(curve, top)
    mean_y = bottom - HEIGHT * curve.mean / top
    size = f'width="{right + 8}" height="{bottom + BELOW}" viewBox="0 0 {right + 8} {bottom + BELOW}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{said}" {size} style="max-width:100%">',
        f"<title>{said}</title>",
        f'<path d="{path} L{right} {bottom} L{LEFT} {bottom} Z" fill="currentColor" fill-opacity="0.15"/>',
        f'<path d="{path}" fill="none" stroke="currentColor" stroke-width="1.5" stroke-linejoin="round"/>',
        f'<path d="M{LEFT} {bottom} H{right}" stroke="currentColor" stroke-opacity="0.5"/>',
        f'<path d="M{LEFT} {mean_y:.1f} H{right}" stroke="currentColor" stroke-opacity="0.6" stroke-dasharray="4 4"/>',
        _draw_text(LEFT - 4, 12, fmt.format_watts(curve.highest), "end"),
        _draw_text(LEFT - 4, bottom, "0 W", "end"),
        _draw_text(LEFT, bottom + 13, fmt.format_duration(curve.start_s), "start"),
        _draw_text(right, bottom + 13, fmt.format_duration(curve.end_s), "end"),
        _draw_text((LEFT + right) / 2, bottom + 13, f"dashed: mean, {fmt.format_watts(curve.mean)}", "middle"),
        "</svg>",
    ]
    return "".join(parts)


def _draw_steps(curve: PowerPicture, top: float) -> str:
    """Return the curve as steps: a mean power holds over its whole stretch."""
    bottom, width = HEIGHT + 6, WIDTH / len(curve.watts)
    levels = [bottom - HEIGHT * min(max(w / top, 0.0), 1.0) for w in curve.watts]
    moves = [f"V{y:.1f} H{LEFT + width * (k + 1):.1f}" for k, y in enumerate(levels)]
    return f"M{LEFT} {levels[0]:.1f} {' '.join(moves)}"


def _draw_text(x: float, y: float, said: str, anchor: str) -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}" {TEXT}>{html.escape(said)}</text>'
