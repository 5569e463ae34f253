"""The names of a server, and the connections that have to go when there are too many."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.rows import every_row

from joulelab.core.http_guard import ConnectionTable, HostNames, name_peer

if TYPE_CHECKING:
    import pytest


@every_row(
    ("header", "ours"),
    [
        *((name, True) for name in ("localhost", "localhost:8080", "LOCALHOST:1", "127.0.0.1", "127.0.0.1:80")),
        *((name, True) for name in ("[::1]:8080", "[::1]", "127.1.2.3", "localhost.")),
        *((name, False) for name in ("", "evil.example", "evil.example:8080", "10.0.0.1", "localhost.evil.example")),
        *((name, False) for name in ("127.0.0.1.evil.example", "[::1", "[::1]x", "localhost:x", "localhost:80:80")),
        *((name, False) for name in ("evil@localhost", "localhost/", "0.0.0.0", "[fe80::1]", "localhost,evil.example")),
    ],
)
def test_loopback_goes_by_its_own_names(header: str, ours: bool) -> None:
    assert HostNames("127.0.0.1").is_called(header) is ours


def test_elsewhere_addresses_and_names_of_the_machine_and_given_ones_are_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "node01.cluster")
    monkeypatch.setattr("socket.getfqdn", lambda: "node01.cluster.example")
    names = HostNames("0.0.0.0", ["lab.example"])
    for ours in ("10.1.2.3:8080", "Lab.Example:8080", "node01:9797", "node01.cluster", "node01.cluster.example"):
        assert names.is_called(ours), ours
    assert not names.is_called("evil.example")


@every_row(
    ("address", "peer"),
    [
        ("10.0.0.9", "10.0.0.9"),
        ("2001:db8::5", "2001:db8::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::ffff:10.0.0.9", "10.0.0.9"),
        ("?", "?"),
    ],
)
def test_the_addresses_of_an_ipv6_network_are_one_peer(address: str, peer: str) -> None:
    assert name_peer(address) == peer


def test_the_oldest_waiting_connection_of_a_peer_with_too_many_goes() -> None:
    table: ConnectionTable[str] = ConnectionTable(most=100, most_waiting=3)
    assert [table.add(f"a{k}", "A") for k in range(3)] == [None] * 3
    table.begin_work("a0")
    assert table.add("a3", "A") is None, "a request that is being answered does not wait"
    table.begin_waiting("a0")
    table.begin_waiting("a0")
    assert table.add("a4", "A") == "a1"
    assert table.add("b0", "B") is None, "others are left alone"
    table.remove("a1")
    table.begin_work("a1")
    table.begin_waiting("a1")
    assert len(table) == 5, "a connection that is gone stays gone"


def test_with_too_many_in_all_one_of_the_peer_with_most_goes() -> None:
    table: ConnectionTable[str] = ConnectionTable(most=4, most_waiting=100)
    for k in range(3):
        table.add(f"a{k}", "A")
    table.add("b0", "B")
    assert table.add("c0", "C") == "a0"
    for busy in ("a1", "a2", "b0", "c0"):
        table.begin_work(busy)
    assert table.add("d0", "D") == "d0", "nothing waits but the new one"
    table.remove("a1")
    assert table.add("d1", "D") is None
    assert len(table) == 4
