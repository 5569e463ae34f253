"""Read an entry of `joulelab.toml`: the server, how to log in, the queries, and the nodes or the job of an import."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from joulelab.core.errors import ConfigError
from joulelab.instruments import wall
from joulelab.instruments.http import Auth, HttpClient, plain_fingerprint
from joulelab.instruments.prometheus.client import PrometheusClient
from joulelab.instruments.prometheus.queries import Query, fill_labels, list_presets, load_preset, parse_query
from joulelab.instruments.settings import check_keys, seconds, text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

CONFIG = wall.COMMON | {
    "address": "the server: http://host:9090, with its path where it has one",
    "preset": "an exporter with known metrics: " + ", ".join(list_presets()),
    "match": 'labels that narrow a preset: instance="node07:9400"',
    "queries": "any metric as a channel: [{query, scope, unit, kind, ...}]",
    "user": "for basic authentication",
    "password": "for basic authentication",
    "token": "for bearer authentication",
    "verify": "false, or the file of your CA, for https",
    "fingerprint": "SHA-256 of the server's certificate, instead of verify",
    "lookback_s": "the largest age of the newest sample (120)",
    "stale_s": "the largest age of a reading in a scrape of an agent (60)",
    "update_s": "how often the instrument behind the exporter renews its value, if you know better",
    "modulus_j": "where the counters wrap, in J (RAPL: max_energy_range_uj / 1e6)",
    "host": "the node of a series, by its labels: {instance}; for imports of several nodes",
    "nodes": "only these nodes (of host), for imports",
    "job": "a Slurm job that the agents saw: its nodes and its interval, for imports",
    "search_days": "how far back a job is searched (31)",
}
SECRETS = ("password", "token")
LIMIT_B = 64_000_000


@dataclass(frozen=True, slots=True)
class PrometheusSettings:
    """Hold the checked settings of an entry."""

    label: str
    config: Mapping[str, Any]
    queries: tuple[Query, ...]
    preset: str
    lookback_s: float
    stale_s: float
    timeout_s: float
    host: str
    match: str = ""
    nodes: tuple[str, ...] = ()
    job: str = ""
    search_days: float = 31.0

    @property
    def where(self) -> str:
        """Return the place of the entry, for errors."""
        return f"meter {self.label}"

    def find_host(self, labels: Mapping[str, str]) -> str:
        """Return the node of a series, without its port. Raises ConfigError for a label that it lacks."""
        named = fill_labels(self.host, labels, self.where)
        return named[1:].partition("]")[0] if named.startswith("[") else named.partition(":")[0]

    def is_wanted(self, host: str) -> bool:
        """Return whether a node is one of those of the import."""
        return not self.nodes or any(is_node(host, node) for node in self.nodes)

    def choose_nodes(self, nodes: Sequence[str]) -> PrometheusSettings:
        """Return settings for some nodes only: in the selectors, too, if the host is one label."""
        label = re.fullmatch(r"\{(\w+)\}", self.host)
        if not nodes or label is None:
            return replace(self, nodes=tuple(nodes))
        listed = "|".join(re.escape(node) for node in nodes)
        found = f"{label[1]}=~" + json.dumps(f"\\[?(?:{listed})(?:[].:].*)?")
        queries = tuple(query.narrow(found) for query in self.queries)
        match = f"{self.match}, {found}" if self.match else found
        return replace(self, nodes=tuple(nodes), queries=queries, match=match)


def is_node(host: str, node: str) -> bool:
    """Return whether a host is a node; its name may lack the domain."""
    return host == node or host.startswith(f"{node}.")


def read_settings(config: Mapping[str, Any]) -> PrometheusSettings:
    """Check an entry. Raises ConfigError with valid values."""
    check_keys("prometheus", config, CONFIG)
    label = wall.label_of(config)
    where = f"meter {label}"
    wall.read_server_url(config, 9090)
    _read_auth(config)
    _read_trust(config)
    seconds(label, config, "modulus_j", 1.0)
    job = str(config["job"]) if type(config.get("job")) is int else text(label, config, "job") or ""
    nodes = config.get("nodes", [])
    nodes = nodes.split(",") if isinstance(nodes, str) else nodes
    if not isinstance(nodes, list) or not all(isinstance(node, str) and node.strip() for node in nodes):
        advice = 'give names: nodes = ["node01", "node02"]'
        raise ConfigError(f"nodes is {config['nodes']!r}", where=where, next=advice, code="config.wrong-value")
    queries, host = _read_queries(config, where)
    for query in queries:
        for scope in (query.scope, *(set(query.models.values()) - {"unknown"})):
            wall.check_scope(scope, where, also=wall.STATES_OF if query.kind == "state" else ())
    settings = PrometheusSettings(
        label,
        config,
        queries,
        preset=text(label, config, "preset") or "",
        lookback_s=seconds(label, config, "lookback_s", 120.0),
        stale_s=seconds(label, config, "stale_s", 60.0),
        timeout_s=seconds(label, config, "timeout_s", 5.0),
        host=text(label, config, "host") or host or ("{instance}" if job or nodes else ""),
        match=text(label, config, "match") or "",
        job=job,
        search_days=seconds(label, config, "search_days", 31.0),
    )
    return settings.choose_nodes([node.strip() for node in nodes])


def open_client(settings: PrometheusSettings) -> PrometheusClient:
    """Return a client of the server; nothing is sent yet. Raises ConfigError, MissingDependency."""
    verify, fingerprint = _read_trust(settings.config)
    client = HttpClient(
        wall.read_server_url(settings.config, 9090),
        auth=_read_auth(settings.config),
        timeout_s=settings.timeout_s,
        verify=verify,
        fingerprint=fingerprint,
        label=settings.label,
        limit_b=LIMIT_B,
    )
    return PrometheusClient(client, settings.label)


def _read_trust(config: Mapping[str, Any]) -> tuple[bool | str, str | None]:
    """Return the key `verify`, and the pinned fingerprint of the server's certificate."""
    label, verify = wall.label_of(config), config.get("verify", True)
    if not isinstance(verify, bool | str):
        advice = "give false, or a file's path"
        raise ConfigError(f"verify is {verify!r}", where=f"meter {label}", next=advice, code="config.wrong-value")
    pin = text(label, config, "fingerprint")
    return verify, None if pin is None else plain_fingerprint(pin, label)


def _read_auth(config: Mapping[str, Any]) -> Auth:
    label = wall.label_of(config)
    user, password, token = (config.get(key) for key in ("user", *SECRETS))
    mistake = advice = ""
    if not all(value is None or isinstance(value, str) for value in (password, token)):
        mistake, advice = "a password or token is not text", "give { env = NAME } or { file = PATH }"
    elif token is not None and (user is not None or password is not None):
        mistake, advice = "both a token and a password are given", "give one of them"
    elif (user is None) != (password is None):
        mistake, advice = "user and password belong together", "give both"
    if mistake:
        raise ConfigError(mistake, where=f"meter {label}", next=advice, code="config.login")
    if token is not None:
        return Auth("bearer", password=token)
    return Auth() if user is None else Auth("basic", text(label, config, "user") or "", password or "")


def _read_queries(config: Mapping[str, Any], where: str) -> tuple[tuple[Query, ...], str]:
    """Return the queries, and the template of their host. Raises ConfigError."""
    label = wall.label_of(config)
    preset, own, match = text(label, config, "preset"), config.get("queries"), text(label, config, "match")
    host = mistake = advice = ""
    if (preset is None) == (own is None):
        mistake = "both preset and queries are given" if preset else "neither preset nor queries are given"
        advice = f'set preset = "ipmi" ({", ".join(list_presets())}), or queries = [...]'
    elif preset is None and match is not None:
        mistake, advice = "match goes with a preset", "write the labels into the queries"
    elif preset is None and (not isinstance(own, list) or not own):
        mistake, advice = "queries is not a list", 'give queries = [{query = "...", scope = "..."}]'
    if mistake:
        raise ConfigError(mistake, where=where, next=advice, code="config.queries")
    if preset is not None:
        found, host = load_preset(preset, where)
        found = [query.narrow(match or "") for query in found]
    else:
        found = [parse_query(row, where, number) for number, row in enumerate(own or [])]
    feeds = wall.feeds_of(config, "node.ac")
    found = [replace(query, scope=query.scope or feeds) for query in found]
    if "update_s" in config:
        found = [replace(query, update_s=seconds(label, config, "update_s", 1.0)) for query in found]
    return tuple(found), host
