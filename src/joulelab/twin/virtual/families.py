"""Name the families of meters that virtual time knows, and how each is read: `Spec`s are the family's own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from joulelab.core.errors import ConfigError
from joulelab.instruments import rapl, wall
from joulelab.instruments.ipmi.settings import PowerSource
from joulelab.instruments.ipmi.settings import read_settings as read_ipmi_settings
from joulelab.instruments.ipmi.streams import StreamFactory
from joulelab.instruments.modbus.settings import read_settings as read_modbus_settings
from joulelab.instruments.settings import check_keys, seconds
from joulelab.twin.flaws import PanelFlaws
from joulelab.twin.virtual import gpus, panels
from joulelab.twin.virtual.pdu_streams import list_pdu_streams

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from joulelab.twin.flaws import MountedMeter
    from joulelab.twin.virtual.bench import Bench, Measured

    Reader = Callable[[Bench, str, MountedMeter], Measured]

NODE = ("node.ac", "node.dc")
RAPL_STEP_S = 0.001
RAPL_MODULUS_J = 262_143.328850


def _entry(name: str, mounted: MountedMeter) -> dict[str, Any]:
    """Return the entry of joulelab.toml that the twin's file stands for."""
    feeds = {"feeds": mounted.point} if mounted.point in NODE else {}
    return {"label": name, "period_s": mounted.ask_s, **feeds, **mounted.options}


def _modbus(bench: Bench, name: str, mounted: MountedMeter) -> Measured:
    settings = read_modbus_settings({"address": "twin", **_entry(name, mounted)})
    mains = [plan for plan in settings.plans if plan.table == "power"]
    streams = [settings.make_stream(plan, dict.fromkeys(plan.registers, 1.0)) for plan in mains]
    return panels.polled(bench, name, mounted, streams)


def _snmp(bench: Bench, name: str, mounted: MountedMeter) -> Measured:
    return panels.polled(bench, name, mounted, list_pdu_streams(_entry(name, mounted)))


def _ipmi(bench: Bench, name: str, mounted: MountedMeter) -> Measured:
    """Read a BMC: DCMI's power, or what `sources` names of dcmi and xcc."""
    config = _entry(name, mounted)
    settings = read_ipmi_settings(config)
    sources = settings.sources or (PowerSource("dcmi", wall.feeds_of(config, "node.ac")),)
    factory, streams = StreamFactory(config, settings, "twin", 0), []
    for source in sources:
        if source.kind == "xcc":
            streams.append(factory.make_energy("xcc", source))
        elif source.kind == "dcmi":
            streams.append(factory.make_power("dcmi", source, 1.0))
        else:
            raise ConfigError(f"a twin has no {source.kind}", where=f"[meters.{name}]", next="sources: dcmi, xcc")
    return panels.polled(bench, name, mounted, streams, [source.feeds for source in sources])


def _rapl(bench: Bench, name: str, mounted: MountedMeter) -> Measured:
    """Read the counters of CPU packages and their memory."""
    check_keys(name, mounted.options, rapl.CONFIG)
    period_s = seconds(name, mounted.options, "period_s", bench.period_s or mounted.ask_s)
    flaws = mounted.flaws
    if flaws.period_s == PanelFlaws().period_s:
        flaws = replace(flaws, period_s=RAPL_STEP_S)
    cpu, streams = rapl.CpuFacts("GenuineIntel", "twin"), []
    for package in range(bench.timeline.node.packages):
        for zone in (f"package-{package}", "dram"):
            where = Path(f"intel-rapl:{package}" if zone != "dram" else f"intel-rapl:{package}:0")
            one = rapl.Zone(where, zone, package, None, RAPL_MODULUS_J)
            streams.append(rapl.describe_stream(one, (period_s, RAPL_STEP_S), cpu, has_psys=False))
    mounted = replace(mounted, flaws=flaws)
    return panels.polled(bench, name, mounted, streams, [stream.scope for stream in streams])


def gain_of(bench: Bench, name: str, mounted: MountedMeter) -> float:
    """Return by how much a node's meter is wrong as a whole: the mean over its outlets, which share alike."""
    outlets = list_pdu_streams(_entry(name, mounted)) if mounted.family == "snmp" else ()
    return fmean(bench.gain(name, mounted, device) for device in [one.scope for one in outlets] or [mounted.point])


READERS: Mapping[str, Reader] = {
    "nvml": gpus.read,
    "analyzer": panels.analyzer,
    "modbus": _modbus,
    "snmp": _snmp,
    "ipmi": _ipmi,
    "rapl": _rapl,
}
