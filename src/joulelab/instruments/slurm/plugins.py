"""Know what Slurm's energy plugins measure, how often they look, and what that makes of an energy's accuracy."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from joulelab.core.spec import Accuracy

if TYPE_CHECKING:
    from collections.abc import Mapping

# Taken where no key of the configuration tells: the default of Slurm's own sampling.
USUAL_S = 30.0
_NODE_GAIN = 0.05
_OWN_PACE = ("ipmi", "xcc")


@dataclass(frozen=True, slots=True)
class Plugin:
    """Describe an energy plugin: its scope on a node, what that covers, and how far it may be off (None: unknown)."""

    name: str
    scope: str
    covers: str
    gain: float | None = None

    @property
    def parts(self) -> tuple[str, ...]:
        """Return the families of scopes on a node that add up to what it covers."""
        return {"slurm.rapl": ("cpu", "dram"), "slurm.gpu": ("gpu",)}.get(self.scope, (self.scope,))

    def accuracy(self, quantum: float) -> Accuracy:
        """Return the accuracy of a reading with steps of `quantum` (J or W)."""
        shared = f"slurm:{self.name}"
        if self.gain is None:
            why = f"Slurm's plugin {self.name}: {self.covers}; nobody states its accuracy"
            return Accuracy("unknown", quantum=quantum, shared=shared, reference=why)
        why = f"Slurm's plugin {self.name}: {self.covers}; no figure is published, {self.gain:.0%} is taken"
        return Accuracy("assumed", self.gain, quantum=quantum, shared=shared, reference=why)


_PLUGINS = (
    Plugin("pm_counters", "node.dc", "the node as Cray's board meter counts it", _NODE_GAIN),
    Plugin("xcc", "node.dc", "the node as Lenovo's BMC counts it, behind shared supplies on SD650", _NODE_GAIN),
    Plugin("ipmi", "node.ac", "the BMC sensors that the administrators chose, usually the supplies' input", _NODE_GAIN),
    Plugin("ibmaem", "node.ac", "the node as IBM's energy manager counts it", _NODE_GAIN),
    Plugin("rapl", "slurm.rapl", "CPU packages and DRAM only, neither GPUs nor the rest of the node"),
    Plugin("gpu", "slurm.gpu", "the GPUs only, not the rest of the node"),
    Plugin("none", "node.dc", "nothing: energy is not accounted"),
)


@dataclass(frozen=True, slots=True)
class Sampling:
    """Hold how a cluster accounts energy: the plugin, seconds between its looks, and whether that was told.

    `node_s` is how often the controller asks nodes for their power, 0 where it does not.
    """

    plugin: Plugin
    frequency_s: float
    told: bool
    node_s: float
    private: bool = False

    @property
    def edge_s(self) -> float:
        """Return how far an edge may be off: one look, and the part of a second that Slurm's times do not have."""
        return self.frequency_s + 1.0


def plugin_of(value: str) -> Plugin:
    """Return the plugin that AcctGatherEnergyType names; it may be several, or one that is not known here."""
    name = value.strip().removeprefix("acct_gather_energy/") or "none"
    if name in ("(null)", "(none)"):
        name = "none"
    known = next((plugin for plugin in _PLUGINS if plugin.name == name), None)
    return known or Plugin(name, "node.dc", "what it covers is not known here")


def sampling_of(settings: Mapping[str, str]) -> Sampling:
    """Return how energy is accounted, from `scontrol show config`."""
    plugin = plugin_of(settings.get("AcctGatherEnergyType", ""))
    node_s = _seconds(settings.get("AcctGatherNodeFreq", ""))
    looks = max(node_s, _energy_part(settings.get("JobAcctGatherFrequency", "")))
    told = looks > 0
    if plugin.name in _OWN_PACE:
        # They read the BMC at a pace of their own, whatever the other keys say; an empty acct_gather.conf is not shown.
        own = _seconds(settings.get("EnergyIPMIFrequency", ""))
        looks, told = max(looks, own or USUAL_S), own > 0
    private = "jobs" in settings.get("PrivateData", "").replace(" ", "").split(",")
    return Sampling(plugin, looks or USUAL_S, told, node_s, private)


def _energy_part(value: str) -> float:
    """Return N of `task=30,energy=N`, 0 where it is not there."""
    match = re.search(r"(?:^|,)\s*energy=(\d{1,6})\b", value)
    return float(match[1]) if match else 0.0


def _seconds(value: str) -> float:
    match = re.match(r"\s*(\d{1,6})\b", value)
    return float(match[1]) if match else 0.0
