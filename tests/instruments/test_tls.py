"""Certificates that are wrong and servers that stall in the handshake, against what we read over HTTPS."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import hashlib
import http.server
import ipaddress
import socket
import ssl
import threading
from typing import TYPE_CHECKING, Any

import pytest
from tests.codes import raises_code

from joulelab.core.errors import ReadFailed
from joulelab.instruments import redfish
from joulelab.instruments.http import HttpClient
from joulelab.serving.load_client import Endpoint, LoadClient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.system


def make_certificate(file: Path, *, days: int = 1, address: str = "127.0.0.1") -> str:
    """Write a key and a self-signed certificate for an address that is valid for so many days; return its SHA-256."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key, now = ec.generate_private_key(ec.SECP256R1()), dt.datetime.now(dt.UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "a device")])
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=30))
        .not_valid_after(now + dt.timedelta(days=days))
        .add_extension(names, critical=False)
        .sign(key, hashes.SHA256())
    )
    plain = serialization.NoEncryption()
    secret = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    file.write_bytes(secret + made.public_bytes(serialization.Encoding.PEM))
    return hashlib.sha256(made.public_bytes(serialization.Encoding.DER)).hexdigest()


class Answering(http.server.BaseHTTPRequestHandler):
    """Answer everything with an empty object, and note that something was asked."""

    asked: list[str] = []  # noqa: RUF012 one server at a time

    def do_GET(self) -> None:
        self.asked.append(self.path)
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


@contextlib.contextmanager
def serve_tls(file: Path) -> Iterator[str]:
    """Serve HTTPS with a certificate; give the address."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)

    class Server(http.server.ThreadingHTTPServer):
        def get_request(self) -> tuple[socket.socket, Any]:
            connection, address = super().get_request()
            return context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False), address

        def handle_error(self, *_: Any) -> None:
            """Print nothing: clients refuse certificates here."""

    Answering.asked.clear()
    with Server(("127.0.0.1", 0), Answering) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"https://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def stall(_: socket.socket) -> None:
    """Take the greeting of a client, and say nothing."""


def dribble(connection: socket.socket) -> None:
    """Begin the answer to a greeting, one byte at a time and without end: a record of 16 kB."""
    connection.sendall(b"\x16\x03\x03\x40\x00\x02\x00\x3f\xfc\x03\x03")
    with contextlib.suppress(OSError):
        while not ENDED.wait(0.05):
            connection.sendall(b"\0")


def hang_up(connection: socket.socket) -> None:
    """Close at once."""
    connection.close()


ENDED = threading.Event()


@contextlib.contextmanager
def serve_handshake(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """Take connections and let a function answer the greeting of TLS; give the address."""
    ENDED.clear()
    kept = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listening.accept()
                    kept.append(connection)
                    threading.Thread(target=answer, args=(connection,), daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        yield f"https://127.0.0.1:{listening.getsockname()[1]}"
        ENDED.set()
        listening.shutdown(socket.SHUT_RDWR)
    for connection in kept:
        connection.close()


@pytest.mark.parametrize(
    ("days", "address", "why"),
    [
        (1, "127.0.0.1", "self.signed"),
        (-1, "127.0.0.1", "expired|self.signed"),
        (1, "127.0.0.2", "self.signed|mismatch"),
    ],
)
def test_a_certificate_that_nobody_vouches_for_is_refused_before_anything_is_asked(
    tmp_path: Path, days: int, address: str, why: str
) -> None:
    file = tmp_path / "device.pem"
    shown = make_certificate(file, days=days, address=address)
    with serve_tls(file) as url:
        with HttpClient(url, timeout_s=60) as client, raises_code("denied.certificate") as caught:
            client.get_json("/")
        assert shown in str(caught.value.next), "the error tells how to trust it"
        assert not Answering.asked
        with HttpClient(url, timeout_s=60, fingerprint=shown) as client:
            assert client.get_json("/") == {}
        with HttpClient(url, timeout_s=60, fingerprint="0" * 64) as client, raises_code("denied.certificate"):
            client.get_json("/")
        trusted = HttpClient(url, timeout_s=60, verify=str(file))
        if (days, address) == (1, "127.0.0.1"):
            assert trusted.get_json("/") == {}
        else:  # our own authority does not excuse an old certificate, or that of another machine
            with raises_code("denied.certificate") as caught:
                trusted.get_json("/")
            assert "expired" in str(caught.value) if days < 0 else "mismatch" in str(caught.value)
        trusted.close()


@pytest.mark.parametrize("answer", [stall, dribble, hang_up])
def test_a_server_that_stalls_in_the_handshake_does_not_hold_up_a_meter(answer: Callable[..., None]) -> None:
    with serve_handshake(answer) as url:
        for options in ({}, {"verify": False}, {"fingerprint": "0" * 64}):
            with HttpClient(url, timeout_s=0.3, **options) as client, pytest.raises(ReadFailed):  # type: ignore[arg-type]
                client.get_json("/")
        config = {"label": "bmc", "address": url.removeprefix("https://"), "user": "u", "password": "p"}
        with pytest.raises(ReadFailed):
            redfish.open_meter(config | {"timeout_s": 0.3})


def test_a_load_does_not_wait_for_a_server_that_stalls_in_the_handshake() -> None:
    async def prepare(url: str) -> None:
        async with LoadClient(Endpoint(url, timeout_s=0.3)) as client:
            await client.prepare()

    with serve_handshake(stall) as url, pytest.raises(ReadFailed):
        asyncio.run(asyncio.wait_for(prepare(url), 120))
