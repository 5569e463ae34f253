"""Serve a node's BMC by Redfish: HTTPS with a certificate of its own, sessions and basic auth, one maker's tree."""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import json
import secrets
import ssl
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from joulelab.core.clock import NS, monotonic_ns, read_utc_ns
from joulelab.core.errors import MissingDependency
from joulelab.twin.servers._http import FlawedHandler, serve_handler
from joulelab.twin.servers._redfish_trees import ROOT, SESSIONS, RedfishFlaws, RedfishReadings, build_tree
from joulelab.twin.servers.server_process import ServiceInfo, keep_file, run_server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from joulelab.twin.truth import Truth

USER = "reader"
FLAWS = RedfishFlaws()


@contextlib.contextmanager
def serve(truth: Truth, directory: Path, flaws: RedfishFlaws, port: int) -> Iterator[ServiceInfo]:
    """Serve the BMC; the entry pins its certificate, which is a file of the directory, made once."""
    password = keep_file(directory / "password", lambda: secrets.token_urlsafe(12).encode()).decode()
    shown = RedfishReadings(truth, flaws)
    service = RedfishService(shown, password)
    certificate = directory / "bmc.pem"
    keep_file(certificate, _make_certificate)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    handler = type("RedfishHandler", (_RedfishHandler,), {"panel": shown.panels["node.ac"], "service": service})
    with serve_handler(handler, port, context) as at:
        entry = {
            "meter": "redfish",
            "address": f"127.0.0.1:{at}",
            "user": USER,
            "password": {"file": str((directory / "password").resolve())},
            "fingerprint": make_fingerprint(certificate),
            "feeds": "node.ac",
            "period_s": 1.0,
        }
        facts = {"vendor": flaws.vendor, "certificate": str(certificate)}
        yield ServiceInfo({"redfish": entry}, ports={"redfish": at}, facts=facts)


class RedfishService:
    """Hold the sessions and the tree; check credentials."""

    def __init__(self, shown: RedfishReadings, password: str) -> None:
        self._shown = shown
        self._password = password
        self._tree = build_tree(shown.flaws.vendor, shown)
        self._sessions: dict[str, tuple[str, int]] = {}
        self._count = 0

    def is_known(self, token: str | None, basic: str | None) -> bool:
        """Return whether a session's token or basic credentials are valid now."""
        if self._shown.flaws.refuse:
            return False
        if token is not None:
            session = self._sessions.get(token)
            return session is not None and monotonic_ns() - session[1] < self._shown.flaws.session_s * NS
        if basic is None or not basic.startswith("Basic "):
            return False
        try:
            user, _, password = base64.b64decode(basic[6:]).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            return False
        return self._is_login_right(user, password)

    def log_in(self, body: bytes) -> tuple[int, Any, dict[str, str]]:
        """Open a session."""
        try:
            login = json.loads(body)
            right = self._is_login_right(login["UserName"], login["Password"])
        except (ValueError, KeyError, TypeError):
            return 400, _make_error("MalformedJSON"), {}
        if not right or self._shown.flaws.refuse:
            return 401, _make_error("ResourceAtUriUnauthorized"), {}
        self._count += 1
        token, place = secrets.token_hex(16), f"{SESSIONS}/{self._count}"
        self._sessions[token] = place, monotonic_ns()
        return 201, {"@odata.id": place, "UserName": USER}, {"X-Auth-Token": token, "Location": place}

    def log_out(self, path: str) -> tuple[int, Any, dict[str, str]]:
        """End a session."""
        ended = [token for token, (place, _) in self._sessions.items() if place == path]
        for token in ended:
            del self._sessions[token]
        return (204, None, {}) if ended else (404, _make_error("ResourceMissingAtURI"), {})

    def get_resource(self, path: str, query: str) -> tuple[int, Any, dict[str, str]]:
        """Return a resource; with `$expand` the members replace their links."""
        if path == SESSIONS:
            return 200, {"Members": [{"@odata.id": place} for place, _ in self._sessions.values()]}, {}
        whole = f"{path}?{query}"
        body = self._tree.get(whole if whole in self._tree else path)
        if body is None:
            return 404, _make_error("ResourceMissingAtURI"), {}
        found = body()
        if query.startswith("$expand=") and "Members" in found and "ProtocolFeaturesSupported" in self._tree[ROOT]():
            found = found | {"Members": [self._tree[row["@odata.id"]]() for row in found["Members"]]}
        return 200, found, {}

    def _is_login_right(self, user: str, password: str) -> bool:
        return user == USER and secrets.compare_digest(password.encode(), self._password.encode())


class _RedfishHandler(FlawedHandler):
    service: RedfishService

    def make_response(self, method: str, body: bytes) -> tuple[int, Any, dict[str, str]]:
        path, _, query = unquote(self.path).partition("?")
        path = path.rstrip("/") or "/"
        if method == "POST" and path == SESSIONS:
            return self.service.log_in(body)
        if method == "GET" and path in (ROOT, "/redfish"):
            return self.service.get_resource(ROOT, query)
        if not self.service.is_known(self.headers.get("X-Auth-Token"), self.headers.get("Authorization")):
            return 401, _make_error("NoValidSession"), {}
        flaws = self.panel.flaws
        assert isinstance(flaws, RedfishFlaws)
        if flaws.error_share > 0 and (monotonic_ns() * 0x9E3779B97F4A7C15 % (1 << 64)) / (1 << 64) < flaws.error_share:
            return 500, _make_error("InternalError"), {}
        if method == "DELETE":
            return self.service.log_out(path)
        return (
            self.service.get_resource(path, query) if method == "GET" else (405, _make_error("ActionNotSupported"), {})
        )


def make_fingerprint(certificate: Path) -> str:
    """Return the SHA-256 of a certificate in PEM."""
    text = certificate.read_text()
    begin = text.index("-----BEGIN CERTIFICATE-----")
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(text[begin:].strip())).hexdigest()


def _make_certificate() -> bytes:
    """Return a key and a self-signed certificate for loopback, in PEM. Raises MissingDependency."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError as error:
        raise MissingDependency(
            "cryptography is not installed", why="the BMC needs a certificate", next="pip install cryptography"
        ) from error
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "bmc.twin")])
    now = datetime.fromtimestamp(read_utc_ns() / NS, UTC)
    alternatives = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1")), x509.DNSName("localhost")])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=30))
        .add_extension(alternatives, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    plain = serialization.NoEncryption()
    secret = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    return secret + made.public_bytes(serialization.Encoding.PEM)


def _make_error(code: str) -> dict[str, Any]:
    return {"error": {"code": f"Base.1.18.{code}", "message": code}}


if __name__ == "__main__":
    run_server(serve, FLAWS)
