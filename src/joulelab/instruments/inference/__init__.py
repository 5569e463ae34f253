"""Count the tokens and requests of an inference server from its Prometheus endpoint: work beside power.

The counters of an inference server are its work, so that energy per token needs no change to clients. Names of metrics
are in `presets/`, one TOML file for each kind of server; the right one is found by the names that the server shows.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from joulelab.core.errors import ConfigError, ReadFailed, Unavailable
from joulelab.core.spec import Spec, Stream
from joulelab.instruments import wall
from joulelab.instruments.http import Auth, HttpClient, reach
from joulelab.instruments.inference.server_metrics import (
    COUNTERS,
    STATES,
    ServerPreset,
    find_preset,
    list_presets,
    load_preset,
    read_exposition,
)
from joulelab.instruments.settings import check_keys, read_choice, seconds, text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from joulelab.core.errors import JoulelabError
    from joulelab.core.spec import Meter
    from joulelab.instruments.inference.server_metrics import ShownSample

SUMMARY = "tokens and requests of an inference server (vLLM, SGLang, TGI, llama.cpp, Triton): work, no power"
PRIVILEGE = "none, or the server's API key"
TRIED = "the simulated server and answers in the form of five servers; not on a real one"
DEFAULT = False
SECRETS = ("token",)
CONFIG = {
    "address": "the server: http://HOST:PORT (its path is /metrics)",
    "preset": "vllm, sglang, tgi, llamacpp or triton; found by its metrics if left out",
    "token": "API key, if the server asks for one",
    "period_s": "seconds between readings (1)",
    "timeout_s": "seconds to wait for an answer (5)",
    "label": wall.COMMON["label"],
    "feeds": "not used: it has no power",
    "parts": "not used: it has no power",
}
WORK = "work"  # the quantity of a counter that is work: the analysis divides energy by it
SCOPE = "server"
QUANTITIES = {"running": "requests running", "waiting": "requests waiting", "cache_use": "use of the KV cache"}


def make_plan_item(url: str) -> dict[str, Any]:
    """Return the meter of a server as an entry of `RunOptions.also`."""
    return {"meter": "inference", "name": "inference", "config": {"address": url}, "paced": False}


def check(config: Mapping[str, Any]) -> None:
    """Check an entry before a run. Raises ConfigError."""
    check_keys("inference", config, CONFIG)
    label = wall.label_of(config)
    _read_url(config)
    for key in ("period_s", "timeout_s"):
        seconds(label, config, key, 1.0)
    read_choice(label, config, "preset", (None, *list_presets()))


def open_meter(config: Mapping[str, Any], tap: Callable[[HttpClient], HttpClient] | None = None) -> Meter:
    """Read the server once. Raises ReadFailed, Denied, Unavailable, ConfigError, MissingDependency.

    `tap` stands between the meter and the server, to write down the answers.
    """
    check(config)
    label = wall.label_of(config)
    base_url, path = _read_url(config)
    token = text(label, config, "token")
    auth = Auth() if token is None else Auth("bearer", password=token)
    client = HttpClient(base_url, auth=auth, timeout_s=seconds(label, config, "timeout_s", 5.0), label=label)
    client = tap(client) if tap else client
    try:
        shown = read_exposition(client.get_text(path), label)
        named = text(label, config, "preset")
        preset = _choose_preset(shown, named, label)
        return InferenceMeter(client, path, label, preset, seconds(label, config, "period_s", 1.0))
    except BaseException:
        client.close()
        raise


class InferenceMeter:
    """Read the counters and states of one server, all by one request."""

    def __init__(self, client: HttpClient, path: str, label: str, preset: ServerPreset, period_s: float) -> None:
        self._client, self._path, self._label, self._preset = client, path, label, preset
        counters = [Spec(name, WORK, "1", "counter", update_s=period_s) for name in COUNTERS]
        states = [Spec(name, QUANTITIES[name], "1") for name in STATES]
        channels = (*counters, *states)
        self._stream = Stream("server", "work", SCOPE, period_s, channels, device=client.base_url, model=preset.server)

    def streams(self) -> Sequence[Stream]:
        """Return the one stream."""
        return (self._stream,)

    def read(self, stream: Stream) -> Sequence[float]:  # noqa: ARG002 there is one
        """Return counters and states, NaN for those that the server does not show. Raises ReadFailed, Denied."""
        try:
            shown = read_exposition(self._client.get_text(self._path), self._label)
        except Unavailable as error:  # a server that starts again may not have the page yet
            raise ReadFailed(error.what, where=self._label, why=error.why, code="read-failed.server-error") from error
        row = [self._preset.read_channel(spec.name, shown) for spec in self._stream.channels]
        if all(map(math.isnan, row)):
            what, why = "the server shows none of its counters", f"none of {self._preset.server}"
            raise ReadFailed(what, where=self._label, why=why, next="it is tried again", code="read-failed.no-sample")
        return row

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


def diagnose(config: Mapping[str, Any], error: JoulelabError) -> list[str]:
    """Explain why a server did not open: probe name and port, and word the error."""
    try:
        base_url, path = _read_url(config)
    except ConfigError as wrong:
        return [str(wrong)]
    found = reach(base_url, seconds(wall.label_of(config), config, "timeout_s", 5.0))
    return found if found[-1].endswith(".") else [*found, f"It answers, but not with metrics at {path}: {error}"]


def _choose_preset(shown: Sequence[ShownSample], named: str | None, label: str) -> ServerPreset:
    """Return the preset of a server, by its name or by the metrics of the server. Raises Unavailable."""
    preset = find_preset(shown) if named is None else load_preset(named)
    if preset is not None and preset.is_shown_by(shown):
        return preset
    names = sorted({sample.name for sample in shown})
    what = "the server shows no counters of tokens" if named is None else f"the server is not that of preset {named}"
    why = f"it has {len(names)} metrics" + (f": {', '.join(names[:4])} ..." if names else "")
    advice = "switch its metrics on (SGLang: --enable-metrics, llama.cpp: --metrics), or check the port (Triton: 8002)"
    raise Unavailable(what, where=label, why=why, next=advice, code="unavailable.no-series")


def _read_url(config: Mapping[str, Any]) -> tuple[str, str]:
    """Return the base address and the path of the metrics. Raises ConfigError."""
    parts = urlsplit(wall.read_server_url(config, 8000))
    path = parts.path.rstrip("/").removesuffix("/v1").removesuffix("/metrics")
    return f"{parts.scheme}://{parts.netloc}", f"{path}/metrics"
