"""How well the load keeps its times: requests per second of a few tokens, client and server on one core each.

python -m benchmarks serving_load --seconds 20 --guidellm VENV/bin/guidellm --tokenizer FOLDER

A send is late if it comes more than 10 ms after its time. The peer runs on the same core as our client, after it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from joulelab.serving.load_steps import LATE_S, find_percentile
from joulelab.serving.other_records import read_records
from joulelab.serving.request_records import Request, read_requests
from joulelab.twin.model import H100, Node
from joulelab.twin.servers.server_process import ServerProcess
from joulelab.twin.truth import Truth

if TYPE_CHECKING:
    from collections.abc import Callable

# A fast server, so that the client is what is measured.
SERVER = {"fixed_s": 0.004, "most_running": 256, "decode_s": 0.0, "prefill_s": 0.0, "context_s": 0.0}
PROMPT_TOKENS = 32


def main() -> None:
    """Print the share of late sends and the CPU time of client and server."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, default=200.0)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--guidellm", help="guidellm of an environment of its own, to compare with")
    parser.add_argument("--tokenizer", help="folder of a tokenizer for guidellm's texts")
    given = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        parser.error("this needs two cores")
    load = ", ".join(f"{one:.1f}" for one in os.getloadavg())
    print(
        f"{given.rate:g} requests/s of {given.tokens} output tokens, {given.seconds:g} s; load of the machine: {load}"
    )
    for name, make in (("joulelab", run_joulelab), ("guidellm", run_guidellm)):
        if name == "guidellm" and given.guidellm is None:
            continue
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            with Truth.create(folder / "truth", Node(gpus=(H100,), packages=1), room=1 << 20):
                server = ServerProcess("llm", folder / "truth", folder / "llm", flaws=SERVER)
                os.sched_setaffinity(0, {cores[1]})  # children inherit it
                with server:
                    os.sched_setaffinity(0, {cores[0]})
                    words, read = make(given, str(server.served.facts["url"]), folder)
                    before = time.monotonic()
                    user_s = run_client(words, folder / "log")
                    seconds = time.monotonic() - before
                os.sched_setaffinity(0, set(cores))
            report(name, read(), given, user_s, seconds)


def run_joulelab(given: argparse.Namespace, url: str, folder: Path) -> tuple[list[str], Callable[[], list[Request]]]:
    """Return our command, and a function that reads its requests."""
    out = folder / "requests.jsonl"
    lengths = ["--prompt-tokens", str(PROMPT_TOKENS), "--output-tokens", str(given.tokens)]
    words = ["serving", "load", "--url", url, "--rate", f"{given.rate:g}", "--warmup", "3", *lengths]
    times = ["--duration", f"{given.seconds:g}", "-q", "--out", str(out)]
    return [sys.executable, "-m", "joulelab", *words, *times], lambda: list(read_requests(out))


def run_guidellm(given: argparse.Namespace, url: str, folder: Path) -> tuple[list[str], Callable[[], list[Request]]]:
    """Return guidellm's command, and a function that reads its requests."""
    out = folder / "report.json"
    words = [
        given.guidellm, "run", "--backend", f"kind=openai_http,target={url},model=twin-llm",
        "--profile", f"kind=poisson,rate={given.rate:g}",
        "--constraint", f"kind=max_duration,seconds={given.seconds + 3:g}",
        "--tokenizer", f"kind=hf_auto,model={given.tokenizer}",
        "--data", f"kind=synthetic_text,prompt_tokens={PROMPT_TOKENS},output_tokens={given.tokens}",
        "--output", f"kind=json,path={out}", "--disable-console-interactive",
    ]  # fmt: skip
    return words, lambda: list(read_records(out).requests)


def run_client(words: list[str], log: Path) -> float:
    """Run a client and return its CPU time, with that of its processes, in s."""
    with log.open("w") as file:
        child = subprocess.Popen(words, stdout=file, stderr=file, env=os.environ | {"HF_HUB_OFFLINE": "1"})
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        sys.exit(f"{words[0]} failed:\n{log.read_text()[-2000:]}")
    return usage.ru_utime + usage.ru_stime


def report(name: str, requests: list[Request], given: argparse.Namespace, cpu_s: float, seconds: float) -> None:
    """Print the figures of one client; the first 3 s are its warm-up."""
    begin_ns = min(one.due_ns for one in requests) + 3 * 10**9
    there = [one for one in requests if begin_ns <= one.due_ns < begin_ns + given.seconds * 1e9]
    late = [one.late_s for one in there]
    waits = [one.ttft_s for one in there if one.ttft_s is not None]
    if not waits:
        why = {f"{one.status} {one.detail}" for one in requests if one.status != "ok"}
        sys.exit(f"{name} got no answers after its warm-up: {len(requests)} requests; {'; '.join(sorted(why)[:5])}")
    figures = {
        "requests": len(there),
        "sent_per_s": round(len(there) / given.seconds, 1),
        "ok": sum(one.status == "ok" for one in there),
        "late_share": round(sum(one > LATE_S for one in late) / len(late), 4),
        "late_p50_ms": round(1000 * find_percentile(late, 50), 2),
        "late_p99_ms": round(1000 * find_percentile(late, 99), 2),
        "ttft_p50_ms": round(1000 * find_percentile(waits, 50), 1),
        "ttft_p99_ms": round(1000 * find_percentile(waits, 99), 1),
        "client_cpu_s": round(cpu_s, 1),
        "client_wall_s": round(seconds, 1),
        "client_cpu_ms_per_request": round(1000 * cpu_s / len(requests), 2),
    }
    print(f"{name:9} {json.dumps(figures)}", flush=True)


if __name__ == "__main__":
    main()
