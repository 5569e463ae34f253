"""Measure CPU packages, DRAM, cores and the platform by RAPL, through the kernel's powercap tree."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulelab.core.clock import NS, monotonic_ns
from joulelab.core.errors import Denied, MeterError, Unavailable
from joulelab.core.spec import Accuracy, Spec, Stream
from joulelab.instruments.hooks import Missing
from joulelab.instruments.rapl.powercap import Zone, constraints, zones
from joulelab.instruments.settings import check_keys, seconds, text
from joulelab.instruments.sysfs import OpenFile, read_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from joulelab.core.spec import Meter

SUMMARY = "CPU packages, DRAM, cores, platform: energy counters; caps (RAPL by powercap)"
PRIVILEGE = "read access to energy_uj: root, or an administrator's rule"
TRIED = "trees of files and the simulated node; not on hardware"
ROOT = "/sys/class/powercap"
CONFIG = {
    "period_s": "seconds between readings (0.1)",
    "slow_period_s": "seconds between readings of the caps (1)",
    "root": f"the powercap tree ({ROOT})",
}
# The kernel refuses the counters to users since CVE-2020-8694: they let one user watch another's work.
GRANT = "sudo chmod a+r {root}/intel-rapl*/energy_uj"
CAP = Spec("cap_requested_w", "cap", "W")
_STEP_S = 0.001
_STUDIES = "Desrochers, Paradis, Weaver (MEMSYS 2016); Khan et al., RAPL in Action (2018)"


def open_meter(
    config: Mapping[str, Any],
    *,
    now: Callable[[], int] = monotonic_ns,
    pause: Callable[[float], None] = time.sleep,
) -> Meter:
    """Open the powercap tree and watch its counters for a moment. Raises Unavailable, Denied, ConfigError."""
    check_keys("rapl", config, CONFIG)
    period_s = seconds("rapl", config, "period_s", 0.1)
    root = Path(text("rapl", config, "root", ROOT) or ROOT)
    found = zones(root)
    if not found:
        raise Unavailable(
            "there are no RAPL zones",
            where="rapl",
            why=_why_none(root),
            next="sudo modprobe intel_rapl_msr (bare metal only), or try the simulated node: joulelab twin",
        )
    cpu = cpu_facts(Path("/proc/cpuinfo")) if str(root) == ROOT else CpuFacts()
    periods_s = period_s, seconds("rapl", config, "slow_period_s", 1.0)
    return RaplMeter(found, root, periods_s, cpu, lambda files: steps_s(files, now=now, pause=pause))


def fixes(root: str = ROOT, python: str = "/usr/bin/python3") -> list[tuple[str, str]]:
    """Return the ways to grant read access, as (what it does, command), the narrowest first."""
    group = f"sudo groupadd -f energy; sudo usermod -aG energy $USER; sudo chgrp energy {root}/intel-rapl*/energy_uj; "
    runs = 'RUN+="/bin/chgrp energy /sys%p/energy_uj", RUN+="/bin/chmod g+r /sys%p/energy_uj"'
    rule = f'SUBSYSTEM=="powercap", ACTION=="add", {runs}'
    return [
        ("for one group, until the next boot", group + f"sudo chmod g+r {root}/intel-rapl*/energy_uj; newgrp energy"),
        ("for that group, for good", f"echo '{rule}' | sudo tee /etc/udev/rules.d/70-joulelab-rapl.rules"),
        ("for every user, until the next boot", GRANT.format(root=root)),
        ("for one interpreter, which may then read any file", f"sudo setcap cap_dac_read_search=ep {python}"),
    ]


@dataclass(frozen=True, slots=True)
class CpuFacts:
    """Hold what decides how far RAPL is to be trusted: vendor, model, and whether SGX may blur the energy."""

    vendor: str = ""
    model: str = ""
    sgx: bool = False


def cpu_facts(cpuinfo: Path) -> CpuFacts:
    """Read vendor, model and flags of the first CPU."""
    facts: dict[str, str] = {}
    for line in (read_text(cpuinfo) or "").split("\n\n", 1)[0].splitlines():
        key, _, value = line.partition(":")
        facts[key.strip()] = value.strip()
    return CpuFacts(
        facts.get("vendor_id", ""), facts.get("model name", ""), sgx="sgx" in facts.get("flags", "").split()
    )


class RaplMeter:
    """Read each zone's counter in J; a zone that may not be read is told by `missing`."""

    def __init__(
        self,
        found: Sequence[Zone],
        root: Path,
        periods_s: tuple[float, float],
        cpu: CpuFacts,
        watch_steps: Callable[[Sequence[OpenFile]], Sequence[float]],
    ) -> None:
        """Open every zone that can be read. Raises Denied, Unavailable where none can."""
        self._files: dict[str, OpenFile] = {}
        self._streams: list[Stream] = []
        self._missing: list[Missing] = []
        errors: list[MeterError] = []
        opened: list[tuple[Zone, OpenFile]] = []
        for zone in found:
            try:
                opened.append((zone, _checked(zone)))
            except MeterError as error:
                errors.append(error)
                self._missing.append(Missing(zone.name, error.what, error.why or "", GRANT.format(root=root)))
        if not opened:
            raise _none_readable(errors, root)
        platform = any(zone.kind == "psys" for zone, _ in opened)
        try:
            kept = self._without_mirrors(opened)
            for (zone, file), update_s in zip(kept, watch_steps([file for _, file in kept]), strict=True):
                self._add(zone, file, (periods_s[0], update_s), cpu, platform=platform)
                if zone.kind == "package":
                    self._add_cap(zone, periods_s[1], platform=platform)
        except MeterError:  # one failed just now: the whole is opened again later
            for _, file in opened:
                file.close()
            raise

    def streams(self) -> Sequence[Stream]:
        """Return one stream per zone, and one for the cap of each package."""
        return self._streams

    def read(self, stream: Stream) -> Sequence[float]:
        """Return the counter in J, or the cap in W. Raises ReadFailed, Denied, DeviceLost."""
        return (self._files[stream.name].number() / 1e6,)

    def missing(self) -> Sequence[Missing]:
        """Return zones that may not be read, or that show what another shows."""
        return self._missing

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()

    def _without_mirrors(self, opened: list[tuple[Zone, OpenFile]]) -> list[tuple[Zone, OpenFile]]:
        """Keep only the first die of packages whose dies all show the package's counter (AMD Zen 1 and 2)."""
        whole = _mirrored(opened)
        kept: list[tuple[Zone, OpenFile]] = []
        for zone, file in opened:
            if zone.package not in whole or zone.die is None:
                kept.append((zone, file))
            elif zone.die == whole[zone.package]:
                kept.append((replace(zone, die=None), file))
            else:
                file.close()
                why = f"die {zone.die} shows the same counter as die {whole[zone.package]}"
                self._missing.append(Missing(zone.path.name, "it is not counted twice", why))
        return kept

    def _add(self, zone: Zone, file: OpenFile, times_s: tuple[float, float], cpu: CpuFacts, *, platform: bool) -> None:
        stream = stream_of(zone, times_s, cpu, platform=platform)
        if stream.name in self._files:
            file.close()
            self._missing.append(
                Missing(zone.name, f"a second {stream.name} is not read", "what each one holds is not known")
            )
            return
        self._files[stream.name] = file
        self._streams.append(stream)

    def _add_cap(self, zone: Zone, period_s: float, *, platform: bool) -> None:
        """Watch the cap of a package, where it has one: it may be changed, by us or by others."""
        limit = constraints(zone).get("long_term")
        scope, parent = scope_of(zone, platform=platform)
        name = f"{scope}.state"
        if limit is None or name in self._files:
            return
        try:
            self._files[name] = OpenFile(limit.path, "rapl", 32)
        except MeterError as error:
            self._missing.append(Missing(f"{scope} cap", error.what, error.why or ""))
            return
        cap = replace(CAP, limits=(limit.lowest_w, limit.highest_w)) if limit.highest_w > 0 else CAP
        self._streams.append(Stream(name, "state", scope, period_s, (cap,), parent, device=zone.path.name))


def stream_of(zone: Zone, times_s: tuple[float, float], cpu: CpuFacts, *, platform: bool) -> Stream:
    """Return the stream of a zone's counter; `times_s` are how often it is read, and how often it steps."""
    scope, parent = scope_of(zone, platform=platform)
    spec = Spec("energy_j", "energy", "J", "counter", times_s[1], modulus=zone.modulus_j, accuracy=accuracy(zone, cpu))
    return Stream(scope, "energy", scope, times_s[0], (spec,), parent, device=zone.path.name, model=cpu.model)


def scope_of(zone: Zone, *, platform: bool) -> tuple[str, str | None]:
    """Return the scope of a zone and the scope that holds it; `platform` says whether psys is measured."""
    top = "psys" if platform else None
    number = zone.package if zone.package is not None else 0
    suffix = f"{number}" if zone.die is None else f"{number}/die:{zone.die}"
    match zone.kind:
        case "package":
            return f"cpu:{suffix}", top
        case "dram":
            return f"dram:{suffix}", top
        case "psys":
            return "psys", None
        case kind:
            return f"{kind}:{suffix}", f"cpu:{suffix}"


def accuracy(zone: Zone, cpu: CpuFacts) -> Accuracy:
    """Return how far a zone may be off; no vendor publishes it."""
    shared, quantum = f"rapl:{zone.kind}:{cpu.model}", 61e-6
    if cpu.vendor == "AuthenticAMD":
        why = "AMD publishes none; Zen 2 looks modelled, not measured, and misses DRAM and data (arXiv 2108.00808)"
        if zone.kind == "core":
            why += "; powercap shows the register of one core"
        return Accuracy("unknown", quantum=quantum, shared=shared, reference=why)
    if cpu.sgx:
        why = "SGX is on: energy filtering may distort readings by up to 50 % (Intel)"
        return Accuracy("unknown", quantum=quantum, shared=shared, reference=why)
    if zone.kind == "psys":
        return Accuracy(
            "unknown", quantum=quantum, shared=shared, reference="what psys covers is up to the board maker"
        )
    why = f"Intel publishes none; 5 % taken for parts that measure at their regulators; {_STUDIES}"
    return Accuracy("assumed", 0.05, quantum=quantum, shared=shared, reference=why)


def steps_s(
    files: Sequence[OpenFile],
    watch_s: float = 0.03,
    *,
    now: Callable[[], int] = monotonic_ns,
    pause: Callable[[float], None] = time.sleep,
) -> list[float]:
    """Return how often each counter steps (s), watched for a moment: about 1 ms is documented, not promised."""
    changes: list[list[int]] = [[] for _ in files]
    last = [file.number() for file in files]
    end = now() + round(watch_s * NS)
    while (seen_ns := now()) < end:
        for index, file in enumerate(files):
            count = file.number()
            if count != last[index]:
                last[index] = count
                changes[index].append(seen_ns)
        pause(_STEP_S / 2)
    return [_median_gap_s(times) or watch_s for times in changes]


def _median_gap_s(times: Sequence[int]) -> float | None:
    gaps = sorted(after - before for before, after in pairwise(times))
    return max(_STEP_S, gaps[len(gaps) // 2] / NS) if gaps else None


def _checked(zone: Zone) -> OpenFile:
    """Open a zone's counter and read it once: a file may open and still refuse."""
    file = OpenFile(zone.path / "energy_uj", "rapl", 32)
    try:
        file.number()
    except MeterError:
        file.close()
        raise
    return file


def _mirrored(opened: Sequence[tuple[Zone, OpenFile]]) -> dict[int | None, int]:
    """Return the packages whose dies all show one counter, with the number of their first die."""
    dies: dict[int | None, list[tuple[int, OpenFile]]] = {}
    for zone, file in opened:
        if zone.kind == "package" and zone.die is not None:
            dies.setdefault(zone.package, []).append((zone.die, file))
    return {
        package: members[0][0]
        for package, members in dies.items()
        if len(members) > 1 and all(_mirrors(members[0][1], file) for _, file in members[1:])
    }


def _mirrors(first: OpenFile, second: OpenFile) -> bool:
    """Tell whether two files show one counter: then a reading of one lies between two readings of the other."""
    for _ in range(2):  # once more, in case it wrapped just now
        before, between, after = first.number(), second.number(), first.number()
        if 0 < before <= between <= after:
            return True
    return False


def _none_readable(errors: Sequence[MeterError], root: Path) -> MeterError:
    denied = next((error for error in errors if isinstance(error, Denied)), None)
    if denied is None:
        return Unavailable(
            "no RAPL zone can be read", where="rapl", why=str(errors[0]), next="run joulelab doctor rapl"
        )
    advice = f"run joulelab doctor rapl, or let every user read it until the next boot: {GRANT.format(root=root)}"
    why = f"permission denied for user {os.geteuid()}: kernels keep the counters for root since CVE-2020-8694"
    return Denied("RAPL is there but may not be read", where="rapl", why=why, next=advice)


def _why_none(root: Path) -> str:
    if not root.is_dir():
        return f"{root} does not exist: a virtual machine or container, no RAPL, or its kernel module is not loaded"
    return f"{root} holds no intel-rapl zone"
