"""Set the power limits of CPU packages through the kernel's powercap tree (RAPL).

The long-term limit is the cap. The short-term limit is lowered with it, to between 1 and 1.2 times the cap, or bursts
would go on as before; `enabled` is switched on. All three are restored. Values are read back: the kernel rounds, and
may clip.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from joulelab.core.errors import JoulelabError, Refused, Unavailable
from joulelab.core.setting import SetterFamily, Setting, SettingLimits
from joulelab.instruments.rapl import ROOT, cpu_facts, scope_of
from joulelab.instruments.rapl.powercap import Constraint, Zone, constraints, mirrors, read_value, write_value, zones

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Literal

_LONG, _SHORT, _ENABLED = "long_term_w", "short_term_w", "enabled"
_BURST = 1.2
# Most kernels do not report the lowest limit; below a tenth of the rated power a machine hardly responds.
_LOWEST_SHARE = 0.1
# Registers that were never set show some kilowatts.
_NO_LIMIT_W = 3000.0


def open_setters(environ: Mapping[str, str]) -> SetterFamily:
    """Open the powercap tree: one setter per CPU package. Raises Unavailable."""
    root = Path(environ.get("JOULELAB_POWERCAP") or ROOT)
    packages = [zone for zone in zones(root) if zone.kind == "package"]
    if not packages:
        why = f"{root} holds no package" if root.is_dir() else f"{root} does not exist"
        advice, code = "sudo modprobe intel_rapl_msr (bare metal only)", "unavailable.no-package"
        raise Unavailable("there is no CPU package to cap", where="powercap", why=why, next=advice, code=code)
    model = cpu_facts(Path("/proc/cpuinfo")).model if str(root) == ROOT else ""
    opened = SetterFamily()
    for zone in packages:
        scope, _ = scope_of(zone, platform=False)
        limits = constraints(zone)
        if "long_term" in limits:
            opened.setters.append(PackageCap(scope, model, zone, limits, _find_mirrors(root, zone)))
        else:
            opened.missing.append((scope, "powercap: the kernel shows no long-term limit (AMD CPUs have none)"))
    return opened


def _find_mirrors(root: Path, zone: Zone) -> list[Constraint]:
    return [found["long_term"] for other in mirrors(root, zone) if "long_term" in (found := constraints(other))]


class PackageCap:
    """Limit the power of one CPU package; a setting is {"long_term_w", "short_term_w", "enabled"}, not always all."""

    kind: Literal["power"] = "power"

    def __init__(
        self, scope: str, model: str, zone: Zone, limits: Mapping[str, Constraint], others: list[Constraint]
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
            raise Refused(what, where="powercap", next="see joulelab cap status", code=code)
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

    def _write_value(self, key: str, value: float) -> None:
        path, scale = self._files[key]
        write_value(path, round(value * scale))

    def default(self) -> Setting | None:
        """Return None: the limits after the next boot are not known."""
        return None
