"""The codes of errors of caps: programs rely on them, so a changed one is noticed here."""

from __future__ import annotations

import re
from pathlib import Path

import joulelab

ROOT = Path(joulelab.__file__).parent
SETTERS = [ROOT / "instruments" / name for name in ("nvml/setter.py", "rapl.py", "amdsmi.py")]
FILES = [*(ROOT / "control").glob("*.py"), *SETTERS, ROOT / "core" / "setting.py"]
CODES = """
config.bad-range config.cannot-listen config.capd-running config.duplicate-device config.message-too-long
config.no-pause config.no-users config.not-a-number config.not-a-request config.number-of-devices
config.socket-place-taken
config.unknown-device config.unknown-group config.unknown-user config.unreadable config.untrusted
denied.cap denied.clock-record denied.counters denied.gpu denied.library denied.limit denied.read-only
error.capd-failed error.capd-no-answer error.capd-unavailable error.job-ended error.keeper-died error.keeper-failed
error.keeper-not-started error.no-answer error.no-guard error.other-process
missing-dependency.broken-package
read-failed.clock-record read-failed.gpu read-failed.limit read-failed.no-cap
refused.changed-elsewhere refused.clock-record refused.clocks-not-allowed refused.device-busy
refused.device-not-allowed refused.hidden-process refused.leftover-cap refused.leftover-elsewhere refused.locked
refused.no-cap refused.no-default refused.no-space refused.not-kept refused.not-restored refused.not-supported
refused.out-of-range refused.state-not-shared refused.state-not-writable refused.state-untrusted
refused.too-many-clients refused.unknown-limit refused.unknown-user refused.value-not-allowed
store.damaged store.other-schema store.unreadable
unavailable.broken-library unavailable.no-driver unavailable.no-gpu unavailable.no-library
unavailable.no-package unavailable.no-zone unavailable.unreadable-zones
"""


def test_codes_stay_as_they_are():
    known = "config|denied|error|missing-dependency|read-failed|refused|store|unavailable"
    pattern = re.compile(rf'f?"((?:{known})\.[a-z{{}}-]+)"')
    found = {code for file in FILES for code in pattern.findall(file.read_text())}
    found = found - {"config.unknown-{kind}"} | {"config.unknown-user", "config.unknown-group"}
    assert sorted(found) == sorted(CODES.split())
