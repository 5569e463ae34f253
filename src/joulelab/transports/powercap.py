"""List the energy zones of the kernel's powercap tree (RAPL), each once."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from joulelab.transports.sysfs import read_number, read_text

if TYPE_CHECKING:
    from pathlib import Path

_DIRECTORY = re.compile(r"(?P<control>intel-rapl(?:-mmio)?)(?P<numbers>(?::\d+)+)$")
_PACKAGE = re.compile(r"package-(?P<package>\d+)(?:-die-(?P<die>\d+))?$")
# The energy registers behind RAPL have 32 bits.
_REGISTER = 2**32


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
