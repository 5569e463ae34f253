"""The meter `inference` reads the counters of five kinds of servers from their Prometheus text."""

from __future__ import annotations

import math

import pytest

from joulelab.core.errors import ConfigError, MeterError, ReadFailed, Unavailable
from joulelab.instruments import inference
from joulelab.instruments.inference.server_metrics import COUNTERS, STATES, find_preset, list_presets, read_exposition

NAN = math.nan
# In the form of the servers' own documents; the values are ours.
TEXTS = {
    "vllm": """
# HELP vllm:prompt_tokens_total Number of prefill tokens processed.
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{engine="0",model_name="m"} 120.0
vllm:generation_tokens_total{engine="0",model_name="m"} 30.0
vllm:request_success_total{engine="0",finished_reason="stop",model_name="m"} 2.0
vllm:request_success_total{engine="0",finished_reason="length",model_name="m"} 1.0
vllm:num_requests_running{engine="0",model_name="m"} 4.0
vllm:num_requests_waiting{engine="0",model_name="m"} 1.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
""",
    "sglang": """
sglang:prompt_tokens_total{model_name="m"} 1.2e+02
sglang:generation_tokens_total{model_name="m"} 30
sglang:num_requests_total{is_streaming="true"} 3
sglang:num_running_reqs{model_name="m"} 4
sglang:num_queue_reqs{model_name="m"} 1
sglang:token_usage{model_name="m"} 0.25
""",
    "tgi": """
tgi_request_input_length_sum 120
tgi_request_generated_tokens_sum 30
tgi_request_success{method="generate"} 3
tgi_batch_current_size 4
tgi_queue_size 1 1700000000000
""",
    "llamacpp": """
llamacpp:prompt_tokens_total 120
llamacpp:tokens_predicted_total 30
llamacpp:requests_processing 4
llamacpp:requests_deferred 1
""",
    "triton": """
nv_inference_request_success{model="tensorrt_llm",version="1"} 3
nv_inference_request_success{model="ensemble",version="1"} 3
nv_llm_input_token_len_sum{model="tensorrt_llm",response_metric_type="total_input_tokens",version="1"} 120
nv_llm_output_token_len_sum{model="tensorrt_llm",response_metric_type="total_output_tokens",version="1"} 30
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="waiting",version="1"} 1
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="active",version="1"} 4
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction",model="tensorrt_llm",version="1"} 0.25
""",
}
WHOLE = [30.0, 120.0, 3.0, 4.0, 1.0, 0.25]
MISSING = {"tgi": {"cache_use"}, "llamacpp": {"requests", "cache_use"}}


def test_each_server_is_known_by_its_metrics():
    assert set(TEXTS) == set(list_presets())
    wrong = []
    for name, text in TEXTS.items():
        samples = read_exposition(text, "server")
        preset = find_preset(samples)
        row = {channel: preset.read_channel(channel, samples) for channel in (*COUNTERS, *STATES)}
        expected = dict(zip((*COUNTERS, *STATES), WHOLE, strict=True)) | dict.fromkeys(MISSING.get(name, ()), NAN)
        if preset.name != name or any(not (row[k] == v or (v != v and row[k] != row[k])) for k, v in expected.items()):
            wrong.append((name, preset.name, row))
    assert not wrong


def test_labels_may_hold_any_text_and_other_answers_are_refused():
    (sample,) = read_exposition('x_total{a="{\\"b\\",c}",d="e"} 3\n', "server")
    assert sample == ("x_total", {"a": '{"b",c}', "d": "e"}, 3.0)
    for text in ("<html>", '"# HELP llamacpp:prompt_tokens_total"', "x_total{a=b} 1", "x_total one"):
        with pytest.raises(Unavailable):
            read_exposition(text, "server")


class StubClient:
    """Answer as an HttpClient does, from a list of texts or errors."""

    def __init__(self, *answers: str | MeterError) -> None:
        self.answers, self.base_url, self.is_closed = list(answers), "http://h:1", False

    def get_text(self, path: str) -> str:
        assert path == "/metrics"
        answer = self.answers.pop(0)
        if isinstance(answer, MeterError):
            raise answer
        return answer

    def close(self) -> None:
        self.is_closed = True


def open_stub(*answers: str | MeterError, **config: object):
    client = StubClient(*answers)
    return client, inference.open_meter({"address": "http://h:1/v1", **config}, tap=lambda _: client)


def test_one_request_fills_a_row_and_a_server_that_restarts_is_a_gap():
    gone = Unavailable("it has no /metrics", where="h", why="HTTP 404", next="wait")
    client, meter = open_stub(TEXTS["vllm"], TEXTS["vllm"], gone, "up 1\n", TEXTS["vllm"].replace("30.0", "2.0"))
    (stream,) = meter.streams()
    assert (stream.scope, stream.model) == ("server", "vLLM")
    assert {c.name for c in stream.channels if c.quantity == "work" and c.kind == "counter"} == set(COUNTERS)
    assert meter.read(stream) == WHOLE
    for _ in range(2):
        with pytest.raises(ReadFailed):
            meter.read(stream)
    assert meter.read(stream)[0] == 2.0
    meter.close()
    assert client.is_closed


def test_servers_without_counters_and_wrong_settings_are_refused():
    for answer, config in (("up 1\n", {}), (TEXTS["tgi"], {"preset": "vllm"})):
        with pytest.raises(Unavailable) as caught:
            open_stub(answer, **config)
        assert caught.value.code == "unavailable.no-series"
    for config in ({}, {"address": "ftp://h"}, {"address": "http://u:p@h"}, {"address": "h", "preset": "x"}):
        with pytest.raises(ConfigError):
            inference.check(config)
