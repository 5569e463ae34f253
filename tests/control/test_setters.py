from __future__ import annotations

from types import SimpleNamespace

import pytest

from joulelab.control import setters
from joulelab.core.errors import Denied, Unavailable
from joulelab.core.setting import SetterFamily


def test_a_family_that_fails_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = []

    def open_or_raise(error: BaseException | None) -> SimpleNamespace:
        def open_setters(_: object) -> SetterFamily:
            if error is not None:
                raise error
            return SetterFamily(on_close=lambda: closed.append("good"))

        return SimpleNamespace(open_setters=open_setters)

    found: dict[str, BaseException | None] = {
        "good": None,
        "absent": Unavailable("none here"),
        "denied": Denied("not allowed"),
        "broken": ValueError("a bug"),
    }
    monkeypatch.setattr(setters, "list_families", lambda: list(found))
    monkeypatch.setattr(setters, "load_family", lambda name: open_or_raise(found[name]))
    with setters.open_all_setters({}) as inventory:
        assert [name for name, _ in inventory.absent] == ["absent"]
        assert [name for name, _ in inventory.missing] == ["denied", "broken"]
        assert not closed
    assert closed == ["good"]
    found["broken"] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        setters.open_all_setters({})
    assert closed == ["good", "good"]
