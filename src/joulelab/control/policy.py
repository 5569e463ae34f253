"""Decide who may cap which device through capd, from its configuration."""

from __future__ import annotations

import fnmatch
import grp
import os
import pwd
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from joulelab.control.lease import format_value
from joulelab.core.errors import ConfigError
from joulelab.core.setting import OutOfBounds
from joulelab.core.text import suggest_name
from joulelab.core.toml_reading import Mistakes, parse_toml, read_table
from joulelab.store.safe_files import read_regular

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from joulelab.core.setting import Setter, SettingLimits

CONFIG = "/etc/joulelab/capd.toml"
EVERY_USER = "*"
ASK_ADMINISTRATOR = "ask the administrator of this machine"
# Some devices report their limits in whole milliwatts.
SLACK_W = 1e-3
# No device takes more than a few times its default: 50 would mean per cent.
MAX_SHARE = 5.0
# The kernel uses the next number for "no user".
MAX_ID = (1 << 32) - 2


@dataclass(frozen=True, slots=True)
class AllowRule:
    """Allow some users and groups to cap some devices within a range, in W or as shares of a device's default."""

    users: list[str | int] = field(default_factory=list)
    groups: list[str | int] = field(default_factory=list)
    devices: tuple[str, ...] = ("*",)
    lowest_w: float | None = None
    highest_w: float | None = None
    lowest_share: float | None = None
    highest_share: float | None = None
    clocks: bool = False

    def covers_device(self, setter: Setter) -> bool:
        """Return whether one of the patterns fits the scope or the UUID of a device."""
        names = (setter.scope, setter.device, setter.device.removesuffix(".clocks"))
        return any(fnmatch.fnmatchcase(name, pattern) for name in names for pattern in self.devices)

    def get_range_w(self, limits: SettingLimits) -> tuple[float, float]:
        """Return the lowest and highest cap (W) for a device; shares of an unknown default allow nothing."""
        low, high = self.lowest_w or 0.0, limits.highest if self.highest_w is None else self.highest_w
        low = max(low, limits.lowest)
        if self.lowest_share is not None or self.highest_share is not None:
            default = limits.default or 0.0
            low = max(low, (self.lowest_share or 0.0) * default)
            unlimited = self.highest_share is None and default
            high = min(high, default * (float("inf") if unlimited else self.highest_share or 0.0))
        return low, min(high, limits.highest)

    def check_ranges(self, where: str) -> None:
        """Raise ConfigError for a limit that makes no sense."""
        pairs = ((self.lowest_w, self.highest_w, "w"), (self.lowest_share, self.highest_share, "share"))
        code = "config.bad-range"
        for low, high, unit in pairs:
            for key, value in ((f"lowest_{unit}", low), (f"highest_{unit}", high)):
                if value is not None and not 0 <= value < float("inf"):
                    raise ConfigError(f"{key} is {value:g}", where=where, next="give a number, 0 or more", code=code)
                if value is not None and unit == "share" and value > MAX_SHARE:
                    why, advice = f"more than {MAX_SHARE:g}", "give a share of the default: 0.5 is half of the default"
                    raise ConfigError(f"{key} is {value:g}", where=where, why=why, next=advice, code=code)
            if low is not None and high is not None and low > high:
                what, why = f"lowest_{unit} is above highest_{unit}", f"{low:g} > {high:g}"
                raise ConfigError(what, where=where, why=why, next="swap them", code=code)


@dataclass(frozen=True, slots=True)
class _PolicyFile:
    allow: list[AllowRule] = field(default_factory=list)


class CapPolicy:
    """Decide by the rules of a configuration; root may set every cap that a device takes."""

    def __init__(self, rules: list[AllowRule] | None = None, *, where: str = CONFIG) -> None:
        """Resolve the names. Raises ConfigError for unknown users and groups, and for ranges that make no sense."""
        self._where = where
        self._rules: list[tuple[AllowRule, set[int] | None, set[int]]] = []  # with users (None: every) and groups
        for k, rule in enumerate(rules or []):
            here = f"{where}: allow[{k}]"
            if not rule.users and not rule.groups:
                advice, code = 'give users = ["..."] or groups = ["..."]', "config.no-users"
                raise ConfigError("the rule names no users and no groups", where=here, next=advice, code=code)
            rule.check_ranges(here)
            uids = None if EVERY_USER in rule.users else {_resolve_id(u, "user", here) for u in rule.users}
            self._rules.append((rule, uids, {_resolve_id(g, "group", here) for g in rule.groups}))

    def knows_user(self, uid: int, gids: Collection[int]) -> bool:
        """Return whether a rule names a user; the others are not served."""
        return uid == 0 or bool(self._find_rules(uid, gids))

    def check_request(
        self, uid: int, gids: Collection[int], setter: Setter, value: float, limits: SettingLimits
    ) -> None:
        """Raise OutOfBounds, with the allowed range, for a cap that a user may not set."""
        if uid == 0:
            return
        rules = [rule for rule in self._find_rules(uid, gids) if rule.covers_device(setter)]
        scope, advice = setter.scope, ASK_ADMINISTRATOR
        if not rules:
            why, code = f"no rule in {self._where} allows it", "refused.device-not-allowed"
            raise OutOfBounds("you may not cap it", where=scope, why=why, next=advice, code=code)
        if setter.kind == "clocks":
            if not any(rule.clocks for rule in rules):
                why, code = f"no rule in {self._where} has clocks = true", "refused.clocks-not-allowed"
                raise OutOfBounds("you may not lock its clocks", where=scope, why=why, next=advice, code=code)
            return
        ranges = [rule.get_range_w(limits) for rule in rules]
        if not any(low - SLACK_W <= value <= high + SLACK_W for low, high in ranges):
            allowed = ", ".join(f"{low:.6g} to {high:.6g} W" for low, high in ranges)
            what, why = f"you may not set {format_value(value, 'W')}", f"{self._where} allows {allowed}"
            advice, code = f"ask for {allowed}", "refused.value-not-allowed"
            raise OutOfBounds(what, where=scope, why=why, next=advice, code=code)

    def _find_rules(self, uid: int, gids: Collection[int]) -> list[AllowRule]:
        return [rule for rule, uids, own in self._rules if uids is None or uid in uids or own & set(gids)]


def _resolve_id(name: str | int, kind: str, where: str) -> int:
    code = f"config.unknown-{kind}"
    if isinstance(name, int):
        if not 0 <= name <= MAX_ID:
            advice = f"give a number from 0 to {MAX_ID}"
            raise ConfigError(f"there is no {kind} {name}", where=where, next=advice, code=code)
        return name
    try:
        return pwd.getpwnam(name).pw_uid if kind == "user" else grp.getgrnam(name).gr_gid
    except (KeyError, ValueError):
        known = [u.pw_name for u in pwd.getpwall()] if kind == "user" else [g.gr_name for g in grp.getgrall()]
        near = suggest_name(name, known).partition(" valid: ")[0]
        advice = near if near.startswith("did you mean") else f"name a {kind} of this machine"
        raise ConfigError(f"there is no {kind} {name!r}", where=where, next=advice, code=code) from None


def read_policy(path: Path) -> CapPolicy:
    """Read the configuration. Raises ConfigError with the line of each mistake and the nearest right name."""
    where = str(path)
    try:
        status, data = path.stat(), read_regular(path)
    except OSError as error:
        advice = "create it, or name another with --config; packaging/capd.toml is an example"
        what, code = "cannot read the configuration", "config.unreadable"
        raise ConfigError(what, where=where, why=error.strerror, next=advice, code=code) from None
    text, content = parse_toml(data, path)
    if status.st_uid not in (0, os.geteuid()) or status.st_mode & 0o022:
        what, why = "the configuration cannot be trusted", "users other than root can write it"
        advice, code = f"sudo chown root {path}; sudo chmod go-w {path}", "config.untrusted"
        raise ConfigError(what, where=where, why=why, next=advice, code=code)
    mistakes = Mistakes(path, text)
    file = read_table(_PolicyFile, content, mistakes)
    mistakes.check()
    assert file is not None  # else there is a mistake
    return CapPolicy(file.allow, where=where)
