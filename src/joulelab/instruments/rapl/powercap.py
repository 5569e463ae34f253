"""List the energy zones of the kernel's powercap tree (RAPL), each once, and read and write their limits."""

from __future__ import annotations

import contextlib
import errno
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from joulelab.core.errors import Denied, DeviceLost, JoulelabError, ReadFailed, Refused
from joulelab.instruments.sysfs import failure, read_number, read_text

if TYPE_CHECKING:
    from pathlib import Path

_DIRECTORY = re.compile(r"(?P<control>intel-rapl(?:-mmio)?)(?P<numbers>(?::\d+)+)$")
_PACKAGE = re.compile(r"package-(?P<package>\d+)(?:-die-(?P<die>\d+))?$")
_CONSTRAINT = re.compile(r"constraint_(\d+)_name$")
# The energy registers behind RAPL have 32 bits.
_REGISTER = 2**32
_LOCKED = frozenset({errno.EIO, errno.ENODATA, errno.EACCES, errno.EPERM})
_RANGE = frozenset({errno.EINVAL, errno.ERANGE, errno.EOVERFLOW})
_GONE = frozenset({errno.ENOENT, errno.ENODEV, errno.ENXIO})


@dataclass(frozen=True, slots=True)
class Zone:
    """Describe one zone: `name` as the kernel gives it, the package and die that hold it, where it wraps (J)."""

    path: Path
    name: str
    package: int | None = None
    die: int | None = None
    modulus_j: float | None = None

    @property
    def kind(self) -> str:
        """Return package, core, uncore, dram, psys, or what a newer kernel calls it."""
        return "package" if self.name.startswith("package-") else self.name


@dataclass(frozen=True, slots=True)
class Constraint:
    """Name the file of one limit (uW), and the lowest and highest that the kernel tells (W); 0 where it does not."""

    path: Path
    lowest_w: float = 0.0
    highest_w: float = 0.0


def zones(root: Path) -> list[Zone]:
    """Return the zones below a powercap root, in their order, those that two interfaces show taken once."""
    found: dict[tuple[object, ...], Zone] = {}
    for path in sorted(_directories(root), key=_order):
        zone = _zone(path, root)
        # The same package is often shown by MSR and by MMIO; MSR, which sorts first, has the subzones.
        key = (zone.kind, zone.package, zone.die) if zone is not None else ()
        if zone is not None and not (key in found and _is_mmio(path)):
            found[key if key not in found else (*key, path.name)] = zone
    return list(found.values())


def mirrors(root: Path, zone: Zone) -> list[Zone]:
    """Return the zones by which another interface limits the same package: the lower limit is in force."""
    others = (_zone(path, root) for path in _directories(root) if path.name != zone.path.name)
    alike = (zone.kind, zone.package, zone.die)
    return [other for other in others if other is not None and (other.kind, other.package, other.die) == alike]


def constraints(zone: Zone) -> dict[str, Constraint]:
    """Return the limits of a zone by name (long_term, short_term, peak_power): kernels number them as they like."""
    found = {}
    try:
        names = sorted(path for path in zone.path.iterdir() if _CONSTRAINT.match(path.name))
    except OSError:
        return {}
    for path in names:
        stem = path.name.removesuffix("_name")
        if (zone.path / f"{stem}_power_limit_uw").exists():
            lowest, highest = (read_number(zone.path / f"{stem}_{end}_power_uw") or 0 for end in ("min", "max"))
            limit = zone.path / f"{stem}_power_limit_uw"
            found[read_text(path) or stem] = Constraint(limit, max(lowest, 0) / 1e6, max(highest, 0) / 1e6)
    return found


def read_value(path: Path) -> int:
    """Return the number in a file of a zone. Raises Denied, DeviceLost, ReadFailed."""
    try:
        content = path.read_text()
        return int(content)
    except OSError as error:
        raise failure(error, path, "powercap") from error
    except ValueError as error:
        raise ReadFailed(f"{path} does not hold a number", where="powercap", why=repr(content[:40])) from error


def write_value(path: Path, number: int) -> None:
    """Write a number in one call. Raises Denied, Refused (locked, out of range), DeviceLost, ReadFailed."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    except OSError as error:
        raise unwritten(error, path, opening=True) from error
    text = f"{number}\n".encode()
    try:
        os.write(descriptor, text)
        with contextlib.suppress(
            OSError
        ):  # only a plain file has a rest; cut before the write, a kill would leave none
            os.ftruncate(descriptor, len(text))
    except OSError as error:
        raise unwritten(error, path, opening=False) from error
    finally:
        os.close(descriptor)


def unwritten(error: OSError, path: Path, *, opening: bool) -> JoulelabError:
    """Return joulelab's error for a limit that cannot be written: a lock refuses the write, a mode the opening."""
    what, where = f"{path} cannot be written", "powercap"
    why = os.strerror(error.errno) if error.errno else str(error)
    if error.errno == errno.EROFS:
        why += ": sysfs is mounted read-only, as in most containers"
        return Denied(what, where=where, why=why, next="run it, or capd, on the host")
    if opening and error.errno in _LOCKED:
        user = os.geteuid()
        why += ": this container may not" if user == 0 else f": user {user} is not root, and only root may set limits"
        then = "run it, or capd, on the host" if user == 0 else "run it as root, or ask for capd: sudo joulelab capd"
        return Denied(what, where=where, why=why, next=then)
    if error.errno in _LOCKED:
        why += ": the firmware has locked its limits"
        return Refused(what, where=where, why=why, next="unlock them in the firmware's setup (power limit lock)")
    if error.errno in _RANGE:
        return Refused(what, where=where, why=f"{why}: out of range", next="joulelab cap status tells the range")
    if error.errno in _GONE:
        return DeviceLost(what, where=where, why=why, next="run joulelab doctor rapl")
    return ReadFailed(what, where=where, why=why, next="see dmesg for intel_rapl")


def modulus_j(max_range_uj: int | None) -> float | None:
    """Return where a counter wraps (J), from the largest value that it shows (uJ).

    The kernel shows `register * unit` of a 32-bit register and, as its range, that of the largest register value, so
    the counter wraps one unit later: at range + range / (2^32 - 1), 61 uJ more for the unit of most Intel parts.
    """
    if not max_range_uj or max_range_uj < 0:
        return None  # some kernels show 0, which says nothing
    return (max_range_uj + max(1.0, max_range_uj / (_REGISTER - 1))) / 1e6


def _directories(root: Path) -> list[Path]:
    """Return zone directories, found beside each other (/sys/class/powercap) or below each other."""
    try:
        entries = list(root.iterdir())
    except OSError:
        return []
    flat = {path.name: path for path in entries if _DIRECTORY.match(path.name)}
    waiting = [path for path in entries if path.name.startswith("intel-rapl") and path.is_dir()]
    while waiting:
        parent = waiting.pop()
        try:
            below = [path for path in parent.iterdir() if _DIRECTORY.match(path.name) and path.name not in flat]
        except OSError:
            continue
        flat |= {path.name: path for path in below}
        waiting += below
    return list(flat.values())


def _order(path: Path) -> tuple[bool, list[int]]:
    return _is_mmio(path), [int(n) for n in path.name.split(":")[1:]]


def _is_mmio(path: Path) -> bool:
    return path.name.startswith("intel-rapl-mmio")


def _zone(path: Path, root: Path) -> Zone | None:
    name = read_text(path / "name")
    if not name:
        return None
    holder = _PACKAGE.match(name) or _PACKAGE.match(_holder_name(path, root))
    package = int(holder["package"]) if holder else None
    die = int(holder["die"]) if holder and holder["die"] is not None else None
    return Zone(path, name, package, die, modulus_j(read_number(path / "max_energy_range_uj")))


def _holder_name(path: Path, root: Path) -> str:
    """Return the name of the zone that holds a subzone: `intel-rapl:0` for `intel-rapl:0:1`."""
    top = ":".join(path.name.split(":")[:2])
    for candidate in (root / top, path.parent):
        if candidate.name == top and candidate != path:
            return read_text(candidate / "name") or ""
    return ""
