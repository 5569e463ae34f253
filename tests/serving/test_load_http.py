"""Loads over HTTP: the simulated server from end to end, its flaws, and `transformers serve` with a tiny model."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from tests.waiting import until

from joulelab.analysis.results_file import load_result
from joulelab.serving.request_records import Request, list_requests, read_requests
from joulelab.store.run_folder import find_run
from joulelab.store.run_reader import open_run
from joulelab.twin.model import H100, Node
from joulelab.twin.servers.server_process import ServerProcess
from joulelab.twin.truth import Truth

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.system

JOULELAB = (sys.executable, "-m", "joulelab")
QUICK = ("--warmup", "0.2", "--output-tokens", "8", "--prompt-tokens", "20")


def run(*words: str, **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*JOULELAB, *words], capture_output=True, text=True, env=os.environ, timeout=300, **more)


@contextlib.contextmanager
def serve(folder: Path, **flaws: Any) -> Iterator[str]:
    folder.mkdir()
    with (
        Truth.create(folder / "truth", Node(gpus=(H100,), packages=1), room=1 << 16),
        ServerProcess("llm", folder / "truth", folder / "llm", flaws={"fixed_s": 0.002, **flaws}) as process,
    ):
        yield str(process.served.facts["url"])


def load(url: str, folder: Path, *words: str) -> tuple[subprocess.CompletedProcess[str], list[Request]]:
    out = folder / "requests.jsonl"
    ended = run("serving", "load", "--url", url, *QUICK, *words, "--json", "--out", str(out))
    return ended, list(read_requests(out))


def test_a_measured_load_has_the_energy_of_its_tokens(tmp_path: Path) -> None:
    words = ["serving", "measure", "--rate", "4,16", *QUICK, "--duration", "1.5", "--idle", "0.5s", "--label", "team=a"]
    goal = ["--goal", "j_per_output_token@ttft_p99<30s", "--json"]
    ended = run("twin", "--gpus", "1", "--llm", "--", *JOULELAB, *words, *goal, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stdout)
    slow, fast = told["windows"]
    assert (slow["title"], fast["title"], told["goal"]["best"]) == ("rate 4", "rate 16", "rate 16")
    assert slow["scopes"]["gpu"]["per_unit"]["output_token"]["value"] > 0
    folder = find_run(tmp_path / "joulelab-runs", "last")
    with open_run(folder) as opened:
        requests = list_requests(opened.marks())
    assert {one.status for one in requests} == {"ok"}
    assert {(one.output_tokens, one.chunks, one.labels["team"]) for one in requests} == {(8, 8, "a")}
    result = load_result(folder)
    assert result.work["output_tokens"] == pytest.approx(8 * len(requests))
    assert result.work["requests"] == len(requests)
    counted = {channel.name: channel.total for channel in result.work_channels}["output_tokens"]
    # The server counts the request that asked for its abilities, too; the edges of the count are uncertain.
    assert abs(counted.value - 8 * len(requests)) <= (counted.expanded or 0.0) + 8
    assert [phase.name for phase in result.phases] == ["rate", "warm-up", "steady", "drain"] * 2
    assert result.facts["requests_failed"] == 0
    assert run("verify", str(folder)).returncode == 0


def test_failing_servers_mark_requests_and_nothing_hangs(tmp_path: Path) -> None:
    rows: list[tuple[str, dict[str, Any], tuple[str, ...], set[str]]] = [
        ("refuse", {"refuse_share": 0.3, "fail_share": 0.25, "usage": False}, (), {"ok", "refused"}),
        (
            "stall",
            {"stall_share": 0.5, "break_share": 0.2},
            ("--timeout", "0.5", "--allow-failed"),
            {"ok", "stalled", "broken"},
        ),
    ]
    for name, flaws, words, expected in rows:
        with serve(tmp_path / name, **flaws) as url:
            ended, requests = load(url, tmp_path / name, "--rate", "20", "--duration", "1.5", "--drain", "20", *words)
        assert ended.returncode == (0 if "--allow-failed" in words else 1), ended.stderr
        assert ("exit code 1, or 0 with --allow-failed" in ended.stderr) is ("--allow-failed" not in words)
        assert {one.status for one in requests} == expected
        if name == "refuse":
            assert {one.detail[:3] for one in requests if one.status == "refused"} == {"429", "500"}
            assert {(one.detail, one.output_tokens) for one in requests if one.status == "ok"} == {("no-usage", 8)}
    with serve(tmp_path / "die", die_after=15) as url:
        ended, requests = load(url, tmp_path / "die", "--concurrency", "4", "--duration", "10m")
    assert ended.returncode == 1
    assert json.loads(ended.stdout)["stopped"] == "server-gone"
    assert "the server is gone" in ended.stderr
    assert sum(one.status == "ok" for one in requests) >= 10
    ended = run("serving", "load", "--url", url, "--rate", "1")
    assert (ended.returncode, "does not answer" in ended.stderr) == (1, True)


def test_an_interrupted_load_keeps_its_requests(tmp_path: Path) -> None:
    out = tmp_path / "requests.jsonl"
    with serve(tmp_path / "s") as url:
        words = ["serving", "load", "--url", url, "--rate", "20", *QUICK, "--duration", "10m", "--out", str(out)]
        process = subprocess.Popen([*JOULELAB, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        until(lambda: httpx.get(f"{url}/twin/truth", trust_env=False).json()["requests"][10:], "requests")
        process.send_signal(signal.SIGINT)
        _, problems = process.communicate(timeout=60)
    assert (process.returncode, "interrupted" in problems) == (130, True)
    assert len([one for one in read_requests(out) if one.status == "ok"]) >= 10


MAKE_MODEL = """
import sys
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
letters = Tokenizer(models.BPE())
letters.pre_tokenizer, letters.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
alphabet = pre_tokenizers.ByteLevel.alphabet()
letters.train_from_iterator(["a"], trainers.BpeTrainer(special_tokens=["<s>", "</s>"], initial_alphabet=alphabet))
tokenizer = PreTrainedTokenizerFast(tokenizer_object=letters, bos_token="<s>", eos_token="</s>")
tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
tokenizer.save_pretrained(sys.argv[1])
sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
config = LlamaConfig(vocab_size=len(tokenizer), bos_token_id=0, eos_token_id=1, **sizes)
LlamaForCausalLM(config).save_pretrained(sys.argv[1])
"""


@pytest.mark.campaign
@pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("transformers", "fastapi", "uvicorn", "openai")),
    reason="transformers[serving] is not installed",
)
def test_transformers_serve_answers_the_load(tmp_path: Path) -> None:
    model = tmp_path / "tiny"
    subprocess.run([sys.executable, "-c", MAKE_MODEL, str(model)], check=True, capture_output=True, timeout=300)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = ["-m", "transformers.cli.transformers", "serve", str(model), "--device", "cpu", "--port", str(port)]
    log = (tmp_path / "log").open("w")
    process = subprocess.Popen(
        [sys.executable, *words], stdout=log, stderr=log, env=os.environ | {"HF_HUB_OFFLINE": "1"}
    )
    url = f"http://127.0.0.1:{port}"

    def is_up() -> bool:
        with contextlib.suppress(httpx.TransportError):
            return httpx.get(f"{url}/health", trust_env=False).status_code == 200
        return process.poll() is not None

    try:
        until(is_up, "transformers serve", 180)
        ended, requests = load(url, tmp_path, "--model", str(model), "--rate", "4", "--duration", "2")
    finally:
        process.kill()
        process.wait()
        log.close()
    assert ended.returncode == 0, ended.stderr + (tmp_path / "log").read_text()
    assert len(requests) >= 5
    assert {one.status for one in requests} == {"ok"}
    assert {one.output_tokens for one in requests if one.detail == ""} <= set(range(1, 9))
    assert all(one.prompt_tokens and one.prompt_tokens >= 60 for one in requests)
