"""`joulelab dashboard`: what it prints, refuses, and how it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import httpx
import pytest

from joulelab.core.errors import ConfigError
from joulelab.dashboard import commands as serve

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Fail

TOKEN = "a-token-of-my-own-choice"


def start(*words: str | Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "joulelab", "serve", *map(str, words), "--port", "0"]
    environ = dict(os.environ)
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ)


def address(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    found = re.search(r"https?://\S+", line)
    assert found, line
    return found[0]


@pytest.mark.system
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_until_it_is_told_to_end(tmp_path: Path, number: signal.Signals) -> None:
    process = start(tmp_path)
    try:
        url = address(process)
        assert url.startswith("http://127.0.0.1:")
        assert httpx.get(url, timeout=120).status_code == 200
        process.send_signal(number)
        out, err = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 0
    assert "Traceback" not in err
    assert "token" not in out


@pytest.mark.system
def test_elsewhere_it_makes_a_token_and_says_what_lacks(tmp_path: Path) -> None:
    process = start(tmp_path, "--host", "0.0.0.0", "--json")
    try:
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        url, token = told["url"].replace("0.0.0.0", "127.0.0.1"), told["token"]
        assert told["runs"] == str(tmp_path)
        assert len(token) >= 32
        assert httpx.get(f"{url}api/runs", timeout=120).status_code == 401
        bearer = {"Authorization": f"Bearer {token}"}
        assert httpx.get(f"{url}api/runs", headers=bearer, timeout=120).status_code == 200
        process.terminate()
        _, err = process.communicate(timeout=120)
    finally:
        process.kill()
    assert "without TLS" in err
    assert token not in err


@pytest.mark.system
def test_with_a_certificate_it_is_https(tmp_path: Path) -> None:
    cert, key, file = tmp_path / "cert.pem", tmp_path / "key.pem", tmp_path / "token"
    made = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "2",
    ]
    subprocess.run(
        [*made, "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", cert],
        check=True,
        capture_output=True,
    )
    file.write_text(TOKEN)
    file.chmod(0o600)
    process = start(tmp_path, "--tls-cert", cert, "--tls-key", key, "--token-file", file)
    try:
        url = address(process)
        assert url.startswith("https://")
        import ssl

        trusted = ssl.create_default_context(cafile=str(cert))
        entered = httpx.post(f"{url}login", data={"token": TOKEN}, verify=trusted, timeout=120)
        assert "Secure" in entered.headers["set-cookie"]
        process.terminate()
        out, err = process.communicate(timeout=120)
    finally:
        process.kill()
    assert TOKEN not in out + err
    assert "without TLS" not in err


@pytest.mark.system
@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("nowhere",), "nowhere"),
        ((".", "--token", "short"), "token"),
        ((".", "--token", TOKEN, "--token-file", "f"), "--token"),
        ((".", "--tls-cert", "c.pem"), "--tls-key"),
        ((".", "--tls-cert", "c.pem", "--tls-key", "k.pem"), "c.pem"),
        ((".", "--token-file", "none"), "none"),
        ((".", "--host", "no.such.host.invalid", "--token", TOKEN), "no.such.host.invalid"),
        ((".", "--studies", "none"), "none"),
    ],
)
def test_what_cannot_be_is_refused(fail: Fail, words: tuple[str, ...], named: str) -> None:
    failure = fail("dashboard", *words, "--port", "0")
    assert failure.kind in ("config", "usage")
    assert named in failure.stderr


def test_folders_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("JOULELAB_RUNS", raising=False)
    runs, studies = tmp_path / "p" / "joulelab-runs", tmp_path / "p" / "joulelab-studies"
    runs.mkdir(parents=True)
    assert serve._stores(tmp_path / "p", None) == (runs, studies)
    assert serve._stores(runs, None) == (runs, studies)
    assert serve._stores(runs, runs) == (runs, runs)
    assert [str(path) for path in serve._stores(None, None)] == ["joulelab-runs", "joulelab-studies"]
    monkeypatch.setenv("JOULELAB_RUNS", str(runs))
    assert serve._stores(None, None)[0] == runs
    with pytest.raises(ConfigError):
        serve._stores(tmp_path / "q", None)


def test_what_is_missing_is_named(fail: Fail, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    failure = fail("dashboard", tmp_path, code=1)
    assert failure.code == "missing-dependency"
    assert 'pip install "joulelab[dashboard]"' in str(failure.next)
