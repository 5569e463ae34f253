"""Bend pyghmi's session to one caller each, chosen ciphers and logins that never block; used in one thread only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyghmi.ipmi.private import session as framing

if TYPE_CHECKING:
    from collections.abc import Callable

    from joulelab.instruments.ipmi.lan import Account

SHA1 = 1


class LanSession(framing.Session):  # type: ignore[misc]
    """Log in on a BMC and call `done` with what came of it; nothing here waits."""

    def __new__(cls, *_: object) -> LanSession:
        """Make a session of its own: pyghmi would share one between callers, and mix up their answers."""
        made: LanSession = object.__new__(cls)
        return made

    def __init__(self, address: str, account: Account, done: Callable[[dict[str, Any]], object]) -> None:
        self._cipher = account.cipher
        # A socket that has no other session with this BMC: answers are told apart by socket and sender.
        self.forbidsock = [
            session.socket
            for handlers in framing.Session.bmc_handlers.values()
            for session in handlers.values()
            if isinstance(session, LanSession) and (session.bmc, session.port) == (address, account.port)
        ]
        # Names as bytes: with texts pyghmi 1.6 forgets to remove the session from its list of beginners.
        super().__init__(
            address, account.user.encode(), account.password.encode(), port=account.port, onlogon=done,
            privlevel=account.privilege, keepalive=False,
        )  # fmt: skip

    def _initsession(self) -> None:
        super()._initsession()
        if self._cipher == 3:
            self.attemptedhash = SHA1

    def _got_rmcp_response(self, data: bytearray) -> Any:
        if self._cipher == 17 and len(data) > 1 and data[1] != 0 and data[0] == self.rmcptag:
            self.onlogon({"error": "no match of cipher suites"})
            return -9
        return super()._got_rmcp_response(data)

    def _req_priv_level(self) -> None:
        """Ask for the privilege without waiting for the answer, which pyghmi would do."""
        self.logged = 1
        self.logoutexpiry = None
        self.maxtimeout = 4
        self.logontries = 1

        def granted(answer: dict[str, Any]) -> None:
            self.incommand = False
            self.logging = False
            self.logontries = 0  # a session that is lost is opened anew by its owner, not by pyghmi, which would wait
            if answer.get("code", 0xFF):
                self.logged = 0
                timed_out = "error" in answer
                self.onlogon({"error": "timeout" if timed_out else "privilege not granted"})
            else:
                self.onlogon({"success": True})

        self.logging = False  # raw_command waits for a login that goes on
        self.raw_command(netfn=0x6, command=0x3B, data=[self.privlevel], callback=granted)
        self.logging = True

    def drop(self) -> None:
        """Leave the BMC and all of pyghmi's lists."""
        self.incommand = False
        self.logging = False
        if not self.broken:
            self._mark_broken("dropped")
        for handlers in framing.Session.bmc_handlers.values():
            for port in [port for port, session in handlers.items() if session is self]:
                del handlers[port]
        for address in [a for a, handlers in framing.Session.bmc_handlers.items() if not handlers]:
            del framing.Session.bmc_handlers[address]
