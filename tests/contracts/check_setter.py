"""Check the setters of one family, in a process of its own: `python check_setter.py FAMILY`; prints JSON, or fails.

What the machine offers comes by the environment: JOULELAB_POWERCAP, the simulated node's library, stubs.
"""

from __future__ import annotations

import json
import math
import os
import sys
from typing import TYPE_CHECKING, Any

from joulelab.control import setters
from joulelab.core.errors import JoulelabError, MeterError, Refused
from joulelab.core.setting import Setter, is_same_setting

if TYPE_CHECKING:
    from collections.abc import Callable

UNITS = {"power": "W", "clocks": "Hz"}
ENDS = ("_w", "_hz", "enabled")


def main() -> None:
    family = sys.argv[1]
    opened = attempt(lambda: setters.load_family(family).open_setters(os.environ))
    if isinstance(opened, JoulelabError):
        assert isinstance(opened, MeterError), repr(opened)
        assert opened.what, "an error says what"
        assert opened.why, "an error says why"
        assert opened.next, "an error says what to do next"
        print(json.dumps({"error": type(opened).__name__}))
        return
    again = setters.load_family(family).open_setters(os.environ)
    assert [s.device for s in again.setters] == [s.device for s in opened.setters], "opened twice, it is the same"
    again.close()
    again.close()
    assert all(scope and why for scope, why in opened.missing)
    devices = [setter.device for setter in opened.setters]
    assert len(set(devices)) == len(devices), "devices are unique"
    for setter in opened.setters:
        check(setter)
    opened.close()
    heavy = sorted({"numpy", "duckdb", "psutil", "rich", "msgspec", "click"} & set(sys.modules))
    assert not heavy, f"a setter imports {heavy}"
    print(json.dumps({"setters": len(devices)}))


def check(setter: Setter) -> None:
    assert setter.device, "lock and journal go by it"
    assert "/" not in setter.device, "it is a file's name"
    assert not setter.device.startswith("."), "it is a file's name"
    assert setter.scope
    assert UNITS[setter.kind] == setter.limits().unit
    limits = setter.limits()
    assert 0 < limits.lowest < limits.highest
    assert limits.default is None or limits.lowest <= limits.default <= limits.highest
    found = setter.get()
    check_setting(found)
    assert is_same_setting(found, setter.get())
    if (default := setter.default()) is not None:
        check_setting(default)
    for value in (limits.lowest / 2, limits.highest * 2, -1.0, 0.0, math.nan, math.inf):
        refuse(setter, value)
    assert is_same_setting(setter.get(), found), "what is refused changes nothing"
    for value in (limits.lowest, (limits.lowest + limits.highest) / 2, limits.highest):
        asked = setter.setting(value)
        check_setting(asked)
        setter.set(asked)
        assert is_same_setting(setter.get(), asked), "what is set is read back"
        assert is_same_setting(setter.setting(value), asked), "asked again, it is the same"
        enforced = setter.enforced()
        assert enforced is None or math.isclose(enforced, value, rel_tol=0.003, abs_tol=0.5)
        setter.set(asked)  # twice is harmless
    setter.set(found)
    assert is_same_setting(setter.get(), found), "what was found can be put back"


def check_setting(setting: Any) -> None:
    assert all(isinstance(key, str) and key.endswith(ENDS) and math.isfinite(v) for key, v in setting.items())
    assert is_same_setting(json.loads(json.dumps(dict(setting))), setting), "it survives a journal"


def refuse(setter: Setter, value: float) -> None:
    error = attempt(lambda: setter.setting(value))
    assert isinstance(error, Refused), f"{value} was not refused"
    assert setter.limits().text in str(error), "a refusal tells the range"
    assert error.next


def attempt(action: Callable[[], Any]) -> Any:
    """Return what an action returns, or the typed error that it raises."""
    try:
        return action()
    except JoulelabError as error:
        return error


if __name__ == "__main__":
    main()
