"""Read the text of a Prometheus endpoint, and find tokens, requests and queues in it by presets of servers."""

from __future__ import annotations

import math
import re
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from joulelab.core.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PRESETS = Path(__file__).parent / "presets"
COUNTERS = ("output_tokens", "prompt_tokens", "requests")
STATES = ("running", "waiting", "cache_use")
MOST_LINES = 200_000
_LABEL = re.compile(r'\s*([A-Za-z_][A-Za-z0-9_]*)\s*=\s*"((?:\\.|[^"\\])*)"\s*(?:,|$)')
_SAMPLE = re.compile(r"([A-Za-z_:][A-Za-z0-9_:]*)\s*(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?\s*")
_SELECTOR = re.compile(r"([A-Za-z_:][A-Za-z0-9_:]*)(?:\{(\w+)=(\w+)\})?")
_ESCAPES = {"\\n": "\n", '\\"': '"', "\\\\": "\\"}


class ShownSample(NamedTuple):
    """Hold one line of a Prometheus endpoint."""

    name: str
    labels: Mapping[str, str]
    value: float


def read_exposition(text: str, label: str) -> list[ShownSample]:
    """Return the samples of the text format of Prometheus; lines of HELP and TYPE are left out.

    Raises Unavailable for a text that is none.
    """
    found = []
    for number, line in enumerate(text.splitlines()):
        if not line.strip() or line.startswith("#"):
            continue
        sample = _read_sample(line)
        if sample is None or number > MOST_LINES:
            what, code = "the answer is not that of a Prometheus endpoint", "unavailable.not-prometheus"
            why, advice = f"line {number + 1} begins with {line[:40]!r}", "check port and path"
            raise Unavailable(what, where=label, why=why, next=advice, code=code)
        found.append(sample)
    return found


def _read_sample(line: str) -> ShownSample | None:
    match = _SAMPLE.fullmatch(line)
    if match is None:
        return None
    name, inside, number = match.groups()
    labels: dict[str, str] = {}
    place = 0
    while inside and place < len(inside.rstrip()):
        pair = _LABEL.match(inside, place)
        if pair is None:
            return None
        labels[pair[1]] = re.sub(r"\\.", lambda escape: _ESCAPES.get(escape[0], escape[0]), pair[2])
        place = pair.end()
    try:
        return ShownSample(name, labels, float(number))
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class ServerPreset:
    """Hold the metrics of one kind of server: names by channel, in the order in which they are looked for.

    A name may select one value of a label: `nv_trt_llm_request_metrics{request_type=active}`.
    """

    name: str
    server: str
    metrics: Mapping[str, Sequence[str]]

    def is_shown_by(self, samples: Sequence[ShownSample]) -> bool:
        """Return whether a server shows at least one of the metrics."""
        names = {sample.name for sample in samples}
        return any(_SELECTOR.fullmatch(metric)[1] in names for each in self.metrics.values() for metric in each)  # type: ignore[index]

    def read_channel(self, channel: str, samples: Sequence[ShownSample]) -> float:
        """Return a channel: the sum over models and replicas, the highest value for shares; NaN if it is not shown."""
        for metric in self.metrics.get(channel, ()):
            name, label, wanted = _SELECTOR.fullmatch(metric).groups()  # type: ignore[union-attr]
            values = [s.value for s in samples if s.name == name and (label is None or s.labels.get(label) == wanted)]
            known = [value for value in values if math.isfinite(value)]
            if known:
                return max(known) if channel == "cache_use" else math.fsum(known)
        return math.nan


@cache
def list_presets() -> tuple[str, ...]:
    """Return the names of all presets."""
    return tuple(sorted(path.stem for path in PRESETS.glob("*.toml")))


@cache
def load_preset(name: str) -> ServerPreset:
    """Return a preset by one of the names of `list_presets`."""
    table = tomllib.loads((PRESETS / f"{name}.toml").read_text(encoding="utf-8"))
    metrics = {channel: tuple(table["metrics"].get(channel, ())) for channel in (*COUNTERS, *STATES)}
    return ServerPreset(name, table["server"], metrics)


def find_preset(samples: Sequence[ShownSample]) -> ServerPreset | None:
    """Return the preset whose metrics a server shows, None if there is none."""
    presets = (load_preset(name) for name in list_presets())
    return next((preset for preset in presets if preset.is_shown_by(samples)), None)
