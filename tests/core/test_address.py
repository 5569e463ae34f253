from __future__ import annotations

import pytest

from joulelab.core.text import is_loopback


@pytest.mark.parametrize(
    ("host", "is_local"),
    [("localhost", True), ("127.0.0.2", True), ("[::1]", True), ("0.0.0.0", False), ("node07", False)],
)
def test_only_addresses_of_this_machine_are_loopback(host: str, is_local: bool) -> None:
    assert is_loopback(host) is is_local
