"""The served language model: OpenAI's protocol, vLLM's metrics, the truth of its energy, caps and flaws."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from click.testing import CliRunner
from tests.waiting import until

from joulelab.core.clock import monotonic_ns
from joulelab.twin.commands import command
from joulelab.twin.llm_model import EnginePlace, LlmParameters, LlmRequest, simulate_requests
from joulelab.twin.model import H100, Node
from joulelab.twin.servers import llm
from joulelab.twin.servers.server_process import ServerProcess
from joulelab.twin.truth import Truth

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.system

NODE = Node(gpus=(H100,) * 2, packages=1)
FAST: dict[str, Any] = {"fixed_s": 0.002, "most_running": 16}


@contextlib.contextmanager
def serve(folder: Path, **settings: Any) -> Iterator[tuple[httpx.Client, Truth]]:
    with (
        Truth.create(folder / "truth", NODE, room=1 << 16) as truth,
        llm.serve(truth, folder / "llm", llm.LlmSettings(**{**FAST, **settings})) as served,
        httpx.Client(base_url=served.facts["url"], trust_env=False, timeout=60) as client,
    ):
        yield client, truth


def read_stream(client: httpx.Client, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the events of a stream; its last one has to be the end."""
    with client.stream("POST", path, json={**body, "stream": True}) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def read_metric(client: httpx.Client, name: str) -> float:
    text = client.get("/metrics").text
    return sum(float(value) for value in re.findall(rf"^vllm:{name}(?:\{{.*\}})? (\S+)$", text, re.MULTILINE))


def ask(client: httpx.Client, **body: Any) -> httpx.Response:
    return client.post("/v1/completions", json={"prompt": "x" * 40, "max_tokens": 4, **body})


def test_it_answers_as_openai_does(tmp_path: Path) -> None:
    with serve(tmp_path, cached_share=0.5) as (client, _):
        model = client.get("/v1/models").json()["data"][0]["id"]
        assert client.get("/health").status_code == 200
        whole = ask(client, model=model).json()
        assert whole["object"] == "text_completion"
        assert whole["choices"][0]["text"].split() == ["twin"] * 4
        assert whole["choices"][0]["finish_reason"] == "length"
        assert whole["usage"]["prompt_tokens"] == 10
        assert whole["usage"]["completion_tokens"] == 4
        assert whole["usage"]["prompt_tokens_details"] == {"cached_tokens": 5}
        tokens = {"prompt": [5, 6, 7], "max_tokens": 3, "stream_options": {"include_usage": True}}
        events = read_stream(client, "/v1/completions", tokens)
        assert [event["choices"][0]["finish_reason"] for event in events[:-1]] == [None, None, "length"]
        assert events[-1]["choices"] == []
        assert events[-1]["usage"]["total_tokens"] == 6
        talk = {"messages": [{"role": "user", "content": "12345678"}], "max_completion_tokens": 2}
        chat = client.post("/v1/chat/completions", json=talk).json()
        assert chat["choices"][0]["message"] == {"role": "assistant", "content": " twin twin"}
        assert (chat["object"], chat["usage"]["prompt_tokens"]) == ("chat.completion", 2)
        events = read_stream(client, "/v1/chat/completions", talk)
        deltas = [event["choices"][0]["delta"] for event in events]
        assert deltas == [{"role": "assistant", "content": ""}, {"content": " twin"}, {"content": " twin"}]
        wrong = [
            client.post("/v1/completions", content=b"{"), ask(client, prompt={}), ask(client, max_tokens=0),
            ask(client, n=2), ask(client, stream_options=3), client.post("/v1/chat/completions", json={}),
        ]  # fmt: skip
        assert [answer.status_code for answer in wrong] == [400] * len(wrong)
        assert all(answer.json()["error"]["message"] for answer in wrong)
        assert client.get("/v1/other").status_code == 404


def test_its_counters_and_its_truth_are_those_of_the_requests(tmp_path: Path) -> None:
    with serve(tmp_path, answer_tokens=6) as (client, truth):
        begin_ns = monotonic_ns()
        threads = [
            threading.Thread(target=ask, args=(client,), kwargs={"max_tokens": n, "ignore_eos": n % 2 == 0})
            for n in range(1, 9)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        told = client.get("/twin/truth").json()
        end_ns = monotonic_ns()
        outputs = sorted(line["output_tokens"] for line in told["requests"])
        assert outputs == [1, 2, 3, 4, 5, 6, 6, 8]
        assert read_metric(client, "generation_tokens_total") == sum(outputs)
        assert read_metric(client, "prompt_tokens_total") == 80
        assert read_metric(client, "request_success_total") == 8
        assert read_metric(client, "time_to_first_token_seconds_count") == 8
        assert read_metric(client, "num_requests_running") == read_metric(client, "num_requests_waiting") == 0
        for point, parts in (("gpu:0", ("prefill_j", "decode_j")), ("node.ac", ("wall_prefill_j", "wall_decode_j"))):
            idle_w = truth.power(point, truth.start_ns)
            above_j = truth.energy(point, begin_ns, end_ns) - idle_w * (end_ns - begin_ns) * 1e-9
            assert sum(line[part] for line in told["requests"] for part in parts) == pytest.approx(above_j, rel=1e-6)
        lines = (tmp_path / "llm" / llm.TRUTH).read_text().splitlines()
        assert [json.loads(line) for line in lines] == told["requests"]
        client.post("/v1/completions", json={"prompt": [1, 2, 3], "max_tokens": 5}, headers={"X-Request-Id": "mine"})
        last = client.get("/twin/truth").json()["requests"][-1]
        alone = LlmRequest(0.0, 3, 5)
        simulate_requests(LlmParameters(**FAST), EnginePlace(NODE, 1).gpu, [alone])
        assert (last["request_id"], last["id"]) == ("mine", "cmpl-mine")
        assert last["prefill_j"] == pytest.approx(alone.prefill_j)
        assert last["decode_j"] == pytest.approx(alone.decode_j + alone.base_j)


def test_a_cap_makes_it_slower_and_a_client_that_goes_is_dropped(tmp_path: Path) -> None:
    costly = {"decode_j": 1.0, "prefill_s": 0.0, "context_s": 0.0, "context_j": 0.0}
    with serve(tmp_path, **costly) as (client, truth):
        ask(client, max_tokens=20)
        truth.set_cap(0, 200.0)
        ask(client, max_tokens=20)
        with client.stream("POST", "/v1/completions", json={"prompt": "a", "stream": True, "max_tokens": 5000}) as gone:
            next(gone.iter_lines())
        until(lambda: len(client.get("/twin/truth").json()["requests"]) == 3)
        free, held, dropped = client.get("/twin/truth").json()["requests"]
        times = [one["last_s"] - one["first_s"] for one in (free, held)]
        assert times[1] > 1.5 * times[0]
        assert max(truth.power("gpu:0", int(one["last_s"] * 1e9) - 1000) for one in (held, dropped)) <= 200.001
        assert not dropped["is_done"]
        assert ask(client).status_code == 200


def test_flaws_happen(tmp_path: Path) -> None:
    shares = {"refuse_share": 0.25, "fail_share": 0.125}
    (tmp_path / "a").mkdir()
    with serve(tmp_path / "a", **shares, usage=False) as (client, _):
        answers = [ask(client) for _ in range(8)]
        assert [answer.status_code for answer in answers].count(429) == 2
        assert [answer.status_code for answer in answers].count(500) == 0  # that of the eighth is due at the ninth
        assert ask(client).status_code == 500
        assert all("usage" not in answer.json() for answer in answers)
    for name, error in (
        ("stall_share", httpx.ReadTimeout),
        ("break_share", (httpx.RemoteProtocolError, httpx.ReadError)),
    ):
        (tmp_path / name).mkdir()
        with serve(tmp_path / name, **{name: 1.0}) as (client, _):
            came: list[str] = []
            with pytest.raises(error), client.stream(
                "POST", "/v1/completions", json={"prompt": "a", "stream": True, "max_tokens": 9}, timeout=1
            ) as answer:  # fmt: skip
                came.extend(answer.iter_lines())
            assert sum(line.startswith("data:") for line in came) <= 2


def test_its_counters_fall_when_it_resets_them(tmp_path: Path) -> None:
    for reset_s in (0.5, 5.0, 60.0):  # a busy machine may miss the first times
        begin_ns = monotonic_ns()
        (tmp_path / str(reset_s)).mkdir()
        with serve(tmp_path / str(reset_s), reset_at_s=reset_s) as (client, _):
            ask(client)
            assert read_metric(client, "generation_tokens_total") in (0, 4)
            if monotonic_ns() - begin_ns < reset_s * 1e9:
                until(lambda: read_metric(client, "generation_tokens_total") == 0)
                ask(client)
                assert read_metric(client, "generation_tokens_total") == 4
                return
    pytest.fail("the server did not answer within a minute")


def test_it_dies_after_some_requests_and_the_node_idles(tmp_path: Path) -> None:
    with Truth.create(tmp_path / "truth", NODE) as truth:
        process = ServerProcess("llm", tmp_path / "truth", tmp_path / "llm", flaws={**FAST, "die_after": 2})
        with process, httpx.Client(base_url=process.served.facts["url"], trust_env=False, timeout=60) as client:
            assert [ask(client).status_code for _ in range(2)] == [200, 200]
            with pytest.raises(httpx.TransportError):
                ask(client)
            idle_w = truth.power("gpu:0", truth.start_ns)
            until(lambda: truth.power("gpu:0", monotonic_ns()) == pytest.approx(idle_w), "idle")


def test_the_command_serves_it_beside_the_meters(tmp_path: Path) -> None:
    code = "import os, httpx; print(httpx.get(os.environ['JOULELAB_LLM_URL'] + '/health', trust_env=False).status_code)"
    words = [sys.executable, "-m", "joulelab", "twin", "--llm", "--llm-set", "gpus=2,fixed_s=0.01", "--gpus", "2", "--"]
    ended = subprocess.run([*words, sys.executable, "-c", code], capture_output=True, text=True, env=os.environ)
    assert (ended.returncode, ended.stdout.strip()) == (0, "200"), ended.stderr
    assert "http://127.0.0.1:" in ended.stderr
    runner, wrong = CliRunner(), []
    for options in (["gpus=9"], ["decode=1"], ["fixed_s=0"], ["fail_share=2"], ["gpus"], ["gpus=one"]):
        answer = runner.invoke(command, ["--gpus", "2", "--llm-set", *options, "--for", "0"])
        if answer.exit_code != 2 or "llm" not in answer.output:
            wrong.append((options, answer.output))
    assert not wrong
