"""Say who may cap what through capd: read its configuration, strictly."""

from __future__ import annotations

import fnmatch
import grp
import os
import pwd
import re
import tomllib
from typing import TYPE_CHECKING

import msgspec

from joulelab.control.lease import value_text
from joulelab.core.errors import ConfigError
from joulelab.core.setting import OutOfBounds
from joulelab.instruments import nearest
from joulelab.store.safe_files import read_regular

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from joulelab.core.setting import Limits, Setter

CONFIG = "/etc/joulelab/capd.toml"
EVERYBODY = "*"
# A device may tell its limits to a milliwatt only.
SLACK_W = 1e-3
# No device takes more than some times its default: 50 is meant as per cent.
MOST_SHARE = 5.0
# The next number means nobody to the kernel.
MOST_ID = (1 << 32) - 2


class Allow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Let some users and groups cap some devices within a range; W, or shares of a device's default."""

    users: list[str | int] = []
    groups: list[str | int] = []
    devices: tuple[str, ...] = ("*",)
    lowest_w: float | None = None
    highest_w: float | None = None
    lowest_share: float | None = None
    highest_share: float | None = None
    clocks: bool = False


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    allow: list[Allow] = []


class Policy:
    """Answer who may what; root may everything that a device takes."""

    def __init__(self, allow: list[Allow] | None = None, *, where: str = CONFIG) -> None:
        """Resolve the names. Raises ConfigError for a user or group that is not there, and for ranges that are none."""
        self._where = where
        self._entries = [(one, _uids(one, where, k), _gids(one, where, k)) for k, one in enumerate(allow or [])]

    def knows(self, uid: int, gids: Collection[int]) -> bool:
        """Return whether a user may ask anything at all."""
        return uid == 0 or bool(self._of(uid, gids))

    def check(self, uid: int, gids: Collection[int], setter: Setter, value: float, limits: Limits) -> None:
        """Refuse what a user may not. Raises OutOfBounds with what is allowed."""
        if uid == 0:
            return
        fitting = [one for one in self._of(uid, gids) if _fits(one, setter)]
        if not fitting:
            raise OutOfBounds(
                "you may not cap it", where=setter.scope, why=f"{self._where} does not allow it", next=_ASK
            )
        if setter.kind == "clocks":
            if not any(one.clocks for one in fitting):
                why = f"{self._where} does not say clocks = true"
                raise OutOfBounds("you may not lock its clocks", where=setter.scope, why=why, next=_ASK)
            return
        ranges = [_range(one, limits) for one in fitting]
        if not any(low - SLACK_W <= value <= high + SLACK_W for low, high in ranges):
            allowed = ", ".join(f"{low:.6g} to {high:.6g} W" for low, high in ranges)
            what = f"you may not set {value_text(value, 'W')}"
            raise OutOfBounds(
                what, where=setter.scope, why=f"{self._where} allows {allowed}", next=f"ask for {allowed}"
            )

    def _of(self, uid: int, gids: Collection[int]) -> list[Allow]:
        return [one for one, uids, own in self._entries if uids is None or uid in uids or own & set(gids)]


_ASK = "ask the administrator of this machine"


def load(path: Path) -> Policy:
    """Read the configuration. Raises ConfigError with the nearest right name."""
    try:
        status = path.stat()
        content = tomllib.loads(read_regular(path).decode())
    except OSError as error:
        then = "create it, or name another with --config; packaging/capd.toml is an example"
        raise ConfigError("cannot read the configuration", where=str(path), why=error.strerror, next=then) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError("not a TOML file", where=str(path), why=str(error), next="correct that line") from None
    if status.st_uid not in (0, os.geteuid()) or status.st_mode & 0o022:
        why, then = "others than root can write it", f"sudo chown root {path}; sudo chmod go-w {path}"
        raise ConfigError("the configuration cannot be trusted", where=str(path), why=why, next=then)
    try:
        file = msgspec.convert(content, _File)
    except msgspec.ValidationError as error:
        raise _explained(str(error), str(path)) from None
    return Policy(file.allow, where=str(path))


def _explained(text: str, where: str) -> ConfigError:
    """Return msgspec's complaint in our words: the nearest right key, or where the wrong value stands."""
    place = re.search(r" - at `\$\.?(.*?)`", text)
    here = f"{where}: {place[1]}" if place and place[1] else where
    wrong = re.search(r"unknown field `(.*?)`", text)
    if wrong:
        names = Allow.__struct_fields__ if place and place[1] else _File.__struct_fields__
        return ConfigError(f"unknown key {wrong[1]!r}", where=here, next=nearest(wrong[1], list(names)))
    return ConfigError("a value is of the wrong kind", where=here, why=text.partition(" - at")[0])


def _uids(one: Allow, where: str, number: int) -> set[int] | None:
    here = f"{where}: allow[{number}]"
    if not one.users and not one.groups:
        raise ConfigError("it names nobody", where=here, next='give users = ["..."] or groups = ["..."]')
    _check_range(one, here)
    if EVERYBODY in one.users:
        return None
    return {_id(u, "user", here) for u in one.users}


def _gids(one: Allow, where: str, number: int) -> set[int]:
    return {_id(g, "group", f"{where}: allow[{number}]") for g in one.groups}


def _id(name: str | int, what: str, where: str) -> int:
    if isinstance(name, int):
        if not 0 <= name <= MOST_ID:
            raise ConfigError(f"there is no {what} {name}", where=where, next=f"give a number from 0 to {MOST_ID}")
        return name
    try:
        return pwd.getpwnam(name).pw_uid if what == "user" else grp.getgrnam(name).gr_gid
    except (KeyError, ValueError):
        known = [u.pw_name for u in pwd.getpwall()] if what == "user" else [g.gr_name for g in grp.getgrall()]
        near = nearest(name, known).partition(" valid: ")[0]
        then = near if near.startswith("did you mean") else f"name a {what} of this machine"
        raise ConfigError(f"there is no {what} {name!r}", where=where, next=then) from None


def _check_range(one: Allow, where: str) -> None:
    for low, high, unit in ((one.lowest_w, one.highest_w, "w"), (one.lowest_share, one.highest_share, "share")):
        for key, value in ((f"lowest_{unit}", low), (f"highest_{unit}", high)):
            if value is not None and not 0 <= value < float("inf"):
                raise ConfigError(f"{key} is {value:g}", where=where, next="give a number, 0 or more")
            if value is not None and unit == "share" and value > MOST_SHARE:
                then = "give a share of the default: 0.5 is half of it"
                raise ConfigError(f"{key} is {value:g}", where=where, why=f"more than {MOST_SHARE:g}", next=then)
        if low is not None and high is not None and low > high:
            then = "swap them"
            raise ConfigError(
                f"lowest_{unit} is above highest_{unit}", where=where, why=f"{low:g} > {high:g}", next=then
            )


def _fits(one: Allow, setter: Setter) -> bool:
    names = (setter.scope, setter.device, setter.device.removesuffix(".clocks"))
    return any(fnmatch.fnmatchcase(name, pattern) for name in names for pattern in one.devices)


def _range(one: Allow, limits: Limits) -> tuple[float, float]:
    """Return what an entry allows for a device (W); shares of a default that is not told allow nothing."""
    low, high = one.lowest_w or 0.0, limits.highest if one.highest_w is None else one.highest_w
    low = max(low, limits.lowest)
    if one.lowest_share is not None or one.highest_share is not None:
        default = limits.default or 0.0
        low = max(low, (one.lowest_share or 0.0) * default)
        high = min(
            high, default * (float("inf") if one.highest_share is None and default else one.highest_share or 0.0)
        )
    return low, min(high, limits.highest)
