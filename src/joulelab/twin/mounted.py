"""Describe a meter that is mounted on a node in virtual time: its family, where it sits, what it gets wrong."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - node files are converted by these types
from dataclasses import dataclass, field
from typing import Any

from joulelab.twin.panel import PanelFlaws


@dataclass(frozen=True, slots=True, kw_only=True)
class Mounted:
    """Hold a meter: its family (`analyzer`, `nvml`), the point it reads, how often it is asked (s), and its flaws.

    `gain_sd` is the relative standard deviation of the gains of such instruments: that of this one is drawn from the
    node's seed and added to `gain_error` of its flaws. `options` are what a user would write in joulelab.toml.
    """

    family: str = ""
    point: str = "node.ac"
    ask_s: float = 1.0
    gain_sd: float = 0.0
    flaws: PanelFlaws = field(default_factory=PanelFlaws)
    options: Mapping[str, Any] = field(default_factory=dict)
