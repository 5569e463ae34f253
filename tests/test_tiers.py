"""The quick tier refuses what takes time, in every thread; skips are listed by reason."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = pytest.mark.system

ROOT = Path(__file__).parents[1]
TESTS = """
import asyncio, os, socket, subprocess, sys, threading, time
import pytest

def test_sleeps():
    time.sleep(0.001)

def test_starts_a_process():
    subprocess.run(["true"])

def test_forks():
    try:
        os.fork()
    except Exception:  # the refusal is none
        pass

def test_connects():
    socket.create_connection(("127.0.0.1", 9))

def test_serves():
    socket.socket(socket.AF_UNIX).bind("name")

def test_imports_a_framework():
    import torch

def test_imports_a_framework_by_name():
    pytest.importorskip("playwright")

def test_hides_a_sleep_in_a_thread():
    thread = threading.Thread(target=time.sleep, args=(0.001,))
    thread.start()
    thread.join()

def test_swallows_the_refusal():
    try:
        time.sleep(0.001)
    except BaseException:
        pass

def test_waits_in_a_loop_of_asyncio():
    async def wait():
        await asyncio.sleep(0.001)
    asyncio.run(wait())

def test_may_use_pairs_and_pipes():
    one, other = socket.socketpair()
    with one, other:
        one.sendall(b"x")
        assert other.recv(1) == b"x"
    for end in os.pipe():
        os.close(end)
    asyncio.run(asyncio.sleep(0))
    time.sleep(0)

@pytest.mark.system
def test_may_do_all_of_it():
    time.sleep(0.001)
    subprocess.run(["true"], check=True)

@pytest.mark.parametrize("n", [1, 2])
def test_skips(n):
    pytest.skip("there is no moon")
"""


def run_pytest(folder: Path, text: str, *options: str) -> str:
    (folder / "test_some.py").write_text(textwrap.dedent(text))
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n    system: x\n    campaign: x\n")
    words = [sys.executable, "-m", "pytest", "-p", "tests.tiers", "-p", "tests.outside", "-p", "no:randomly", *options]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=300).stdout


def test_a_quick_test_cannot_take_time(tmp_path: Path) -> None:
    out = run_pytest(tmp_path, TESTS, "-v")
    results = {
        line.split("::")[1].split()[0]: line.split()[1] for line in out.splitlines() if "::" in line and "%]" in line
    }
    passed = {name for name, result in results.items() if result == "PASSED"}
    assert passed == {"test_may_use_pairs_and_pipes", "test_may_do_all_of_it"}
    assert len([name for name, result in results.items() if result == "FAILED"]) == 10
    for what in ("sleeps 0.001 s", "starts a process (os.fork)", "uses the network", "imports torch"):
        assert f"A quick test {what}" in out
    assert "2 there is no moon (test_some.py)" in out


def test_files_of_other_tiers_are_not_even_imported_in_the_quick_one(tmp_path: Path) -> None:
    text = "import pytest\n\npytestmark = pytest.mark.system\n\nraise RuntimeError('imported')\n"
    assert "imported" in run_pytest(tmp_path, text)
    assert "no tests ran" in run_pytest(tmp_path, text, "-m", "not system and not campaign")
