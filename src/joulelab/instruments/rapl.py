"""Measure CPU packages, DRAM, cores and the platform by RAPL, and cap packages, through the kernel's powercap tree.

- The counters behind RAPL have 32 bits. The kernel shows `register * unit` and, as `max_energy_range_uj`, that of the
  largest register value, so a counter wraps one unit later.
- A package that MSR and MMIO show counts once, as do dies that mirror their package's counter (AMD Zen 1 and 2); dies
  with counters of their own are `cpu:0/die:1`. `psys` contains packages and DRAM.
- The cap of a package is its long-term limit. The short-term limit is lowered with it, to between 1 and 1.2 times the
  cap, or bursts would go on as before; `enabled` is switched on. All three are restored. Values are read back: the
  kernel rounds, and may clip.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import time
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulelab.core.clock import NS, monotonic_ns
from joulelab.core.errors import Denied, DeviceLost, JoulelabError, MeterError, ReadFailed, Refused, Unavailable
from joulelab.core.setting import GET_PERMISSION, SetterFamily, Setting, SettingLimits
from joulelab.core.spec import Accuracy, Spec, Stream
from joulelab.instruments.hooks import Missing
from joulelab.instruments.settings import check_keys, seconds, text
from joulelab.instruments.sysfs import GONE, FileMeter, OpenFile, read_number, read_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Literal

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
_QUANTUM_J = 61e-6
_REGISTER = 2**32
_STUDIES = "Desrochers, Paradis, Weaver (MEMSYS 2016); Khan et al., RAPL in Action (2018)"
_FOLDER = re.compile(r"intel-rapl(?:-mmio)?(?::\d+)+")
_PACKAGE = re.compile(r"package-(?P<package>\d+)(?:-die-(?P<die>\d+))?$")

_LONG, _SHORT, _ENABLED = "long_term_w", "short_term_w", "enabled"
_BURST = 1.2
# Most kernels do not report the lowest limit; below a tenth of the rated power a machine hardly responds.
_LOWEST_SHARE = 0.1
# Registers that were never set show some kilowatts.
_NO_LIMIT_W = 3000.0


# ---- zones


@dataclass(frozen=True, slots=True)
class Zone:
    """Describe one zone: `name` as the kernel gives it, its package and die, and where its counter wraps (J)."""

    path: Path
    name: str
    package: int | None = None
    die: int | None = None
    modulus_j: float | None = None

    @property
    def kind(self) -> str:
        """Return package, core, uncore, dram, psys, or the name that a newer kernel gives it."""
        return "package" if self.name.startswith("package-") else self.name

    @property
    def part(self) -> tuple[str, int | None, int | None]:
        """Return the part of the machine: two interfaces may show the same one."""
        return self.kind, self.package, self.die


@dataclass(frozen=True, slots=True)
class ZoneLimit:
    """Name the file of one limit (uW), and the lowest and highest that the kernel reports (W); 0 if it does not."""

    path: Path
    lowest_w: float = 0.0
    highest_w: float = 0.0


def list_zones(root: Path) -> list[Zone]:
    """List all zones of a powercap tree: those by MSR before those by MMIO, packages before their parts."""
    try:
        folders = [path for path in root.iterdir() if _FOLDER.fullmatch(path.name)]
    except OSError:
        return []
    names = {path.name: read_text(path / "name") or "" for path in folders}
    found = []
    for path in sorted(folders, key=lambda p: (_is_mmio(p), [int(n) for n in p.name.split(":")[1:]])):
        name, holder = names[path.name], names.get(":".join(path.name.split(":")[:2]), "")
        match = _PACKAGE.match(name) or _PACKAGE.match(holder)
        package = int(match["package"]) if match else None
        die = int(match["die"]) if match and match["die"] is not None else None
        if name:
            modulus_j = compute_modulus_j(read_number(path / "max_energy_range_uj"))
            found.append(Zone(path, name, package, die, modulus_j))
    return found


def find_zones(root: Path) -> list[Zone]:
    """Return the zones of a powercap tree in their order; a part that two interfaces show is listed once."""
    found: dict[tuple[object, ...], Zone] = {}
    for zone in list_zones(root):
        # MSR, which sorts first, has the subzones.
        if zone.part not in found:
            found[zone.part] = zone
        elif not _is_mmio(zone.path):
            found[*zone.part, zone.path.name] = zone
    return list(found.values())


def find_limits(zone: Zone) -> dict[str, ZoneLimit]:
    """Return the limits of a zone by name (long_term, short_term, peak_power): kernels number them as they like."""
    found = {}
    for name in sorted(zone.path.glob("constraint_*_name")):
        stem = name.name.removesuffix("_name")
        path = zone.path / f"{stem}_power_limit_uw"
        if path.exists():
            ends = (read_number(zone.path / f"{stem}_{end}_power_uw") or 0 for end in ("min", "max"))
            found[read_text(name) or stem] = ZoneLimit(path, *(max(end, 0) / 1e6 for end in ends))
    return found


def compute_modulus_j(max_range_uj: int | None) -> float | None:
    """Return where a counter wraps (J), from the largest value that it shows (uJ): one unit of its register later.

    That is 61 uJ for the unit of most Intel parts.
    """
    if not max_range_uj or max_range_uj < 0:
        return None  # some kernels show 0
    return (max_range_uj + max(1.0, max_range_uj / (_REGISTER - 1))) / 1e6


def _is_mmio(path: Path) -> bool:
    return path.name.startswith("intel-rapl-mmio")


# ---- the meter


@dataclass(frozen=True, slots=True)
class CpuFacts:
    """Hold the facts that decide how accurate RAPL is: vendor, model, and whether SGX may blur the energy."""

    vendor: str = ""
    model: str = ""
    sgx: bool = False


def read_cpu_facts(cpuinfo: Path) -> CpuFacts:
    """Read vendor, model and flags of the first CPU."""
    facts: dict[str, str] = {}
    for line in (read_text(cpuinfo) or "").split("\n\n", 1)[0].splitlines():
        key, _, value = line.partition(":")
        facts[key.strip()] = value.strip()
    has_sgx = "sgx" in facts.get("flags", "").split()
    return CpuFacts(facts.get("vendor_id", ""), facts.get("model name", ""), has_sgx)


def open_meter(
    config: Mapping[str, Any],
    *,
    now: Callable[[], int] = monotonic_ns,
    pause: Callable[[float], None] = time.sleep,
) -> Meter:
    """Open the powercap tree and watch its counters for a moment. Raises Unavailable, Denied, ConfigError."""
    check_keys("rapl", config, CONFIG)
    periods_s = seconds("rapl", config, "period_s", 0.1), seconds("rapl", config, "slow_period_s", 1.0)
    root = Path(text("rapl", config, "root", ROOT) or ROOT)
    zones = find_zones(root)
    if not zones:
        why = f"{root} holds no intel-rapl zone"
        if not root.is_dir():
            why = f"{root} does not exist: a virtual machine or container, no RAPL, or its kernel module is not loaded"
        advice = "on bare metal, load the kernel module: sudo modprobe intel_rapl_msr"
        raise Unavailable("there are no RAPL zones", where="rapl", why=why, next=advice, code="unavailable.no-zone")
    cpu = read_cpu_facts(Path("/proc/cpuinfo")) if str(root) == ROOT else CpuFacts()
    return RaplMeter(zones, root, periods_s, cpu, lambda files: watch_steps_s(files, now=now, pause=pause))


def list_fixes(root: str = ROOT, python: str = "/usr/bin/python3") -> list[tuple[str, str]]:
    """Return the ways to grant read access, as (effect, command), the narrowest first."""
    group = f"sudo groupadd -f energy; sudo usermod -aG energy $USER; sudo chgrp energy {root}/intel-rapl*/energy_uj; "
    runs = 'RUN+="/bin/chgrp energy /sys%p/energy_uj", RUN+="/bin/chmod g+r /sys%p/energy_uj"'
    rule = f'SUBSYSTEM=="powercap", ACTION=="add", {runs}'
    return [
        ("for one group, until the next boot", group + f"sudo chmod g+r {root}/intel-rapl*/energy_uj; newgrp energy"),
        ("for that group, for good", f"echo '{rule}' | sudo tee /etc/udev/rules.d/70-joulelab-rapl.rules"),
        ("for every user, until the next boot", GRANT.format(root=root)),
        ("for one interpreter, which may then read any file", f"sudo setcap cap_dac_read_search=ep {python}"),
    ]


class RaplMeter(FileMeter):
    """Read the counter of each zone (J) and the cap of each package (W)."""

    def __init__(
        self,
        zones: Sequence[Zone],
        root: Path,
        periods_s: tuple[float, float],
        cpu: CpuFacts,
        watch_steps: Callable[[Sequence[OpenFile]], Sequence[float]],
    ) -> None:
        """Open every zone that can be read. Raises Denied, Unavailable if none can."""
        super().__init__("rapl")
        errors: list[MeterError] = []
        opened: list[tuple[Zone, OpenFile]] = []
        for zone in zones:
            try:
                file = self._open_file(zone.path / "energy_uj")
                file.read_number()  # a file may open and still refuse
                opened.append((zone, file))
            except MeterError as error:
                errors.append(error)
                self._missing.append(
                    Missing(zone.name, error.what, error.why or "", GRANT.format(root=root), error.code)
                )
        try:
            if not opened:
                raise _explain_unreadable(errors, root)
            has_psys = any(zone.kind == "psys" for zone, _ in opened)
            counted = self._remove_mirrors(opened)
            for (zone, file), update_s in zip(counted, watch_steps([file for _, file in counted]), strict=True):
                self._add_counter(describe_stream(zone, (periods_s[0], update_s), cpu, has_psys=has_psys), zone, file)
                if zone.kind == "package":
                    self._add_cap(zone, periods_s[1], has_psys=has_psys)
        except MeterError:  # one failed just now: the whole is opened again later
            self.close()
            raise

    def _remove_mirrors(self, opened: list[tuple[Zone, OpenFile]]) -> list[tuple[Zone, OpenFile]]:
        """Keep only the first die of packages whose dies all show the package's counter (AMD Zen 1 and 2)."""
        dies: dict[int | None, list[tuple[int, OpenFile]]] = {}
        for zone, file in opened:
            if zone.kind == "package" and zone.die is not None:
                dies.setdefault(zone.package, []).append((zone.die, file))
        first = {
            package: members[0][0]
            for package, members in dies.items()
            if len(members) > 1 and all(_is_mirror(members[0][1], file) for _, file in members[1:])
        }
        kept: list[tuple[Zone, OpenFile]] = []
        for zone, file in opened:
            if zone.package not in first or zone.die is None:
                kept.append((zone, file))
            elif zone.die == first[zone.package]:
                kept.append((replace(zone, die=None), file))
            else:
                why = f"die {zone.die} shows the same counter as die {first[zone.package]}"
                self._missing.append(Missing(zone.path.name, "it is not counted twice", why))
        return kept

    def _add_counter(self, stream: Stream, zone: Zone, file: OpenFile) -> None:
        if stream.name in self._readers:
            what = f"a second {stream.name} is not read"
            self._missing.append(Missing(zone.name, what, "which part each one covers is not known"))
        else:
            self._put(stream, lambda: (file.read_number() / 1e6,))

    def _add_cap(self, zone: Zone, period_s: float, *, has_psys: bool) -> None:
        """Watch the cap of a package, if it has one: it may be changed, by us or by others."""
        limit = find_limits(zone).get("long_term")
        scope, parent = name_scope(zone, has_psys=has_psys)
        if limit is None or f"{scope}.state" in self._readers:
            return
        try:
            file = self._open_file(limit.path)
        except MeterError as error:
            self._missing.append(Missing.from_error(f"{scope} cap", error))
            return
        cap = replace(CAP, limits=(limit.lowest_w, limit.highest_w)) if limit.highest_w > 0 else CAP
        stream = Stream(f"{scope}.state", "state", scope, period_s, (cap,), parent, device=zone.path.name)
        self._put(stream, lambda: (file.read_number() / 1e6,))


def describe_stream(zone: Zone, times_s: tuple[float, float], cpu: CpuFacts, *, has_psys: bool) -> Stream:
    """Return the stream of a zone's counter; `times_s` are how often it is read, and how often it steps."""
    scope, parent = name_scope(zone, has_psys=has_psys)
    accuracy = describe_accuracy(zone, cpu)
    spec = Spec("energy_j", "energy", "J", "counter", times_s[1], modulus=zone.modulus_j, accuracy=accuracy)
    return Stream(scope, "energy", scope, times_s[0], (spec,), parent, device=zone.path.name, model=cpu.model)


def name_scope(zone: Zone, *, has_psys: bool) -> tuple[str, str | None]:
    """Return the scope of a zone and the scope that contains it; `has_psys`: the platform is measured, too."""
    number = f"{zone.package or 0}" if zone.die is None else f"{zone.package or 0}/die:{zone.die}"
    top = "psys" if has_psys else None
    known = {"package": (f"cpu:{number}", top), "dram": (f"dram:{number}", top), "psys": ("psys", None)}
    return known.get(zone.kind, (f"{zone.kind}:{number}", f"cpu:{number}"))


def describe_accuracy(zone: Zone, cpu: CpuFacts) -> Accuracy:
    """Return the accuracy of a zone; no vendor publishes one."""
    gain, why = 0.0, ""
    if cpu.vendor == "AuthenticAMD":
        why = "AMD publishes none; Zen 2 looks modelled, not measured, and misses DRAM and data (arXiv 2108.00808)"
        why += "; powercap shows the register of one core" if zone.kind == "core" else ""
    elif cpu.sgx:
        why = "SGX is on: energy filtering may distort readings by up to 50 % (Intel)"
    elif zone.kind == "psys":
        why = "the board maker decides which parts psys covers"
    else:
        gain = 0.05
        why = f"Intel publishes none; 5 % taken for parts that measure at their regulators; {_STUDIES}"
    shared = f"rapl:{zone.kind}:{cpu.model}"
    return Accuracy("assumed" if gain else "unknown", gain, quantum=_QUANTUM_J, shared=shared, reference=why)


def watch_steps_s(
    files: Sequence[OpenFile],
    watch_s: float = 0.03,
    *,
    now: Callable[[], int] = monotonic_ns,
    pause: Callable[[float], None] = time.sleep,
) -> list[float]:
    """Return how often each counter steps (s), watched for a moment: about 1 ms is documented, not promised."""
    changes: list[list[int]] = [[] for _ in files]
    last = [file.read_number() for file in files]
    end = now() + round(watch_s * NS)
    while (seen_ns := now()) < end:
        for index, file in enumerate(files):
            count = file.read_number()
            if count != last[index]:
                last[index] = count
                changes[index].append(seen_ns)
        pause(_STEP_S / 2)
    gaps = [sorted(after - before for before, after in pairwise(times)) for times in changes]
    return [max(_STEP_S, one[len(one) // 2] / NS) if one else watch_s for one in gaps]


def _is_mirror(first: OpenFile, second: OpenFile) -> bool:
    """Return whether two files show one counter: then a reading of one lies between two readings of the other."""
    for _ in range(2):  # once more, in case it wrapped just now
        before, between, after = first.read_number(), second.read_number(), first.read_number()
        if 0 < before <= between <= after:
            return True
    return False


def _explain_unreadable(errors: Sequence[MeterError], root: Path) -> MeterError:
    if not any(isinstance(error, Denied) for error in errors):
        what, why, code = "no RAPL zone can be read", str(errors[0]), "unavailable.unreadable-zones"
        return Unavailable(what, where="rapl", why=why, next="joulelab doctor rapl", code=code)
    advice = f"run joulelab doctor rapl, or let every user read it until the next boot: {GRANT.format(root=root)}"
    why = f"permission denied for user {os.geteuid()}: kernels keep the counters for root since CVE-2020-8694"
    return Denied("RAPL is there but may not be read", where="rapl", why=why, next=advice, code="denied.counters")


# ---- the setter


def open_setters(environ: Mapping[str, str]) -> SetterFamily:
    """Open the powercap tree: one setter per CPU package. Raises Unavailable."""
    root = Path(environ.get("JOULELAB_POWERCAP") or ROOT)
    packages = [zone for zone in find_zones(root) if zone.kind == "package"]
    if not packages:
        why = f"{root} holds no package" if root.is_dir() else f"{root} does not exist"
        advice, code = "sudo modprobe intel_rapl_msr (bare metal only)", "unavailable.no-package"
        raise Unavailable("there is no CPU package to cap", where="powercap", why=why, next=advice, code=code)
    model = read_cpu_facts(Path("/proc/cpuinfo")).model if str(root) == ROOT else ""
    family = SetterFamily()
    for zone in packages:
        scope, _ = name_scope(zone, has_psys=False)
        limits = find_limits(zone)
        if "long_term" in limits:
            same = [find_limits(other) for other in list_zones(root) if other.part == zone.part and other != zone]
            others = [found["long_term"] for found in same if "long_term" in found]
            family.setters.append(PackageCap(scope, model, zone, limits, others))
        else:
            family.missing.append((scope, "powercap: the kernel shows no long-term limit (AMD CPUs have none)"))
    return family


class PackageCap:
    """Limit the power of one CPU package; a setting is {"long_term_w", "short_term_w", "enabled"}, not always all."""

    kind: Literal["power"] = "power"

    def __init__(
        self, scope: str, model: str, zone: Zone, limits: Mapping[str, ZoneLimit], others: list[ZoneLimit]
    ) -> None:
        """Take a zone with its limits; `others` are the limits of other interfaces to the same package."""
        self.device = f"powercap-{zone.path.name}"
        self.scope = scope
        self.model = model
        self._long = limits["long_term"]
        self._others = others
        names = {_LONG: "long_term", _SHORT: "short_term"}
        self._files = {key: (limits[name].path, 1e6) for key, name in names.items() if name in limits}
        if (zone.path / "enabled").exists():
            self._files[_ENABLED] = zone.path / "enabled", 1.0
        self._burst_w = 0.0  # the highest short-term limit seen: the original one

    def limits(self) -> SettingLimits:
        """Return the range; the default is the rated power. Raises Denied, ReadFailed, DeviceLost."""
        rated = self._long.highest_w
        now_w = read_value(self._long.path) / 1e6
        highest = max(rated, now_w if now_w < _NO_LIMIT_W else 0.0) or _NO_LIMIT_W
        return SettingLimits(self._long.lowest_w or _LOWEST_SHARE * (rated or highest), highest, rated or None, "W")

    def get(self) -> Setting:
        """Return the limits. Raises Denied, ReadFailed, DeviceLost."""
        setting = {key: read_value(path) / scale for key, (path, scale) in self._files.items()}
        self._burst_w = max(self._burst_w, setting.get(_SHORT, 0.0))
        return setting

    def enforced(self) -> float | None:
        """Return the lowest long-term limit of all interfaces to the package (W), None if limits are off."""
        if not self.get().get(_ENABLED, 1.0):
            return None
        return min(read_value(one.path) for one in (self._long, *self._others)) / 1e6

    def setting(self, value: float) -> Setting:
        """Return the setting for a cap (W). Raises Refused, Denied, ReadFailed, DeviceLost."""
        now = self.get()
        self.limits().check_value(value, self.scope)
        setting = dict(now) | {_LONG: value}
        if now.get(_SHORT):  # 0 is a limit that is not used
            setting[_SHORT] = max(value, min(self._burst_w, _BURST * value))
        if _ENABLED in now:
            setting[_ENABLED] = 1.0
        return setting

    def set(self, setting: Setting) -> None:
        """Write the changed values, the short-term limit never below the long; all or none. Raises Denied, Refused."""
        now = self.get()
        if extra := ", ".join(sorted(setting.keys() - now.keys())):
            what, code = f"{self.scope} has no {extra}", "refused.unknown-limit"
            raise Refused(what, where="powercap", next="joulelab cap status", code=code)
        order = [_LONG, _SHORT] if setting[_LONG] <= now[_LONG] else [_SHORT, _LONG]
        changed = [key for key in (*order, _ENABLED) if key in setting and setting[key] != now[key]]
        try:
            for key in changed:
                self._write_value(key, setting[key])
        except JoulelabError:
            for key in reversed(changed):
                with contextlib.suppress(JoulelabError):  # the first error is raised
                    self._write_value(key, now[key])
            raise

    def default(self) -> Setting | None:
        """Return None: the limits after the next boot are not known."""
        return None

    def _write_value(self, key: str, value: float) -> None:
        path, scale = self._files[key]
        write_value(path, round(value * scale))


def read_value(path: Path) -> int:
    """Return the number in a file of a zone. Raises Denied, DeviceLost, ReadFailed."""
    with contextlib.closing(OpenFile(path, "powercap", 32)) as file:
        return file.read_number()


def write_value(path: Path, number: int) -> None:
    """Write a number in one call. Raises Denied, Refused (locked, out of range), DeviceLost, ReadFailed."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    except OSError as error:
        raise explain_write_error(error, path, is_opening=True) from error
    content = f"{number}\n".encode()
    try:
        os.write(descriptor, content)
        # Only a plain file has a rest to cut; if it were cut before the write, a kill would leave an empty file.
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, len(content))
    except OSError as error:
        raise explain_write_error(error, path, is_opening=False) from error
    finally:
        os.close(descriptor)


def explain_write_error(error: OSError, path: Path, *, is_opening: bool) -> JoulelabError:
    """Return joulelab's error for a limit that cannot be written: a lock refuses the write, a mode the opening."""
    what, where, on_host = f"{path} cannot be written", "powercap", "run it, or capd, on the host"
    why, user = os.strerror(error.errno) if error.errno else str(error), os.geteuid()
    if error.errno == errno.EROFS:
        why += ": sysfs is mounted read-only, as in most containers"
        return Denied(what, where=where, why=why, next=on_host, code="denied.read-only")
    if error.errno in (errno.EIO, errno.ENODATA, errno.EACCES, errno.EPERM):
        if not is_opening:
            why, advice = (
                f"{why}: the firmware has locked its limits",
                "unlock the power limits in the firmware's setup",
            )
            return Refused(what, where=where, why=why, next=advice, code="refused.locked")
        why += f": user {user} is not root, and only root may set limits" if user else ": this container may not"
        return Denied(what, where=where, why=why, next=GET_PERMISSION if user else on_host, code="denied.limit")
    if error.errno in (errno.EINVAL, errno.ERANGE, errno.EOVERFLOW):
        why, advice = f"{why}: out of range", "see the range: joulelab cap status"
        return Refused(what, where=where, why=why, next=advice, code="refused.out-of-range")
    if error.errno in GONE:
        return DeviceLost(what, where=where, why=why, next="joulelab doctor rapl", code="device-lost.limit")
    return ReadFailed(what, where=where, why=why, next="see dmesg for intel_rapl", code="read-failed.limit")
