"""Turn a Prometheus entry into queries, and what the server has into streams."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from joulelab.core import scope as scopes
from joulelab.core.errors import ConfigError
from joulelab.core.spec import Accuracy, Spec, Stream
from joulelab.core.text import suggest_name
from joulelab.instruments import wall
from joulelab.instruments.http import Auth, HttpClient, plain_fingerprint
from joulelab.instruments.prometheus.api import Api
from joulelab.instruments.prometheus.presets import HOSTS, PRESETS
from joulelab.instruments.prometheus.query import UNITS, Query, filled, narrowed, parse_query
from joulelab.instruments.settings import check_keys, seconds, text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joulelab.instruments.prometheus.api import Series

CONFIG = wall.COMMON | {
    "address": "the server: http://host:9090, with its path where it has one",
    "preset": "an exporter whose metrics are known: " + ", ".join(PRESETS),
    "match": 'labels that narrow a preset: instance="node07:9400"',
    "queries": "any PromQL as a channel: [{query, scope, unit, kind, ...}]",
    "user": "for basic authentication",
    "password": "for basic authentication",
    "token": "for bearer authentication",
    "verify": "false, or the file of your CA, for https",
    "fingerprint": "SHA-256 of the server's certificate, instead of verify",
    "step_s": "steps of what is not a plain selector (1 live, 15 afterwards)",
    "lookback_s": "how far back the newest sample may lie (120)",
    "stale_s": "how far apart the samples behind one value of an expression may lie (60)",
    "update_s": "how often the instrument behind the exporter renews its value, if you know better",
    "modulus_j": "where the counters wrap, in J (RAPL: max_energy_range_uj / 1e6)",
    "host": "the node that a series is of, by its labels: {instance}; for imports of several nodes",
    "nodes": "only these nodes (of host), for imports",
    "job": "a Slurm job that the agents saw: its nodes and its interval, for imports",
    "search_days": "how far back a job is looked for (31)",
}
SECRETS = ("password", "token")
LIMIT_B = 64_000_000
# Channels that meters of a node have as well: called the same, they are shown the same.
QUANTITIES = {"load": "utilisation", "busy": "CPU load", "cap_enforced_w": "cap"}
Key = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Settings:
    """Hold what an entry asks for."""

    label: str
    config: Mapping[str, Any]
    queries: tuple[Query, ...]
    preset: str
    lookback_s: float
    stale_s: float
    timeout_s: float
    step_s: float | None
    host: str
    match: str = ""
    nodes: tuple[str, ...] = ()
    job: str = ""
    search_days: float = 31.0

    def host_of(self, labels: Mapping[str, str], where: str) -> str:
        """Return the node that a series is of: without its port. Raises ConfigError for a label that it lacks."""
        named = filled(self.host, labels, where)
        return named[1:].partition("]")[0] if named.startswith("[") else named.partition(":")[0]

    def is_wanted(self, host: str) -> bool:
        """Return whether a node is one of those that are asked for."""
        return not self.nodes or any(self.is_node(host, node) for node in self.nodes)

    @staticmethod
    def is_node(host: str, node: str) -> bool:
        """Return whether a host is a node that may be named without its domain."""
        return host == node or host.startswith(f"{node}.")

    def only(self, nodes: Sequence[str]) -> Settings:
        """Return settings that ask for some nodes only: in the selectors where the host is one label."""
        label = re.fullmatch(r"\{(\w+)\}", self.host)
        if not nodes or label is None:
            return replace(self, nodes=tuple(nodes))
        listed = "|".join(re.escape(node) for node in nodes)
        found = f"{label[1]}=~" + json.dumps(f"\\[?(?:{listed})(?:[].:].*)?")
        # An expression that somebody wrote may hold selectors anywhere: what it gives is sorted out afterwards.
        queries = tuple(replace(q, query=_narrowed(q, found)) if q.plain or self.preset else q for q in self.queries)
        match = f"{self.match}, {found}" if self.match else found
        return replace(self, nodes=tuple(nodes), queries=queries, match=match)

    def step_ms(self, default_s: float) -> int:
        """Return the step of expressions in ms."""
        return max(round((self.step_s or default_s) * 1000), 1)


def settings_of(config: Mapping[str, Any]) -> Settings:
    """Check an entry. Raises ConfigError that says what fits."""
    check_keys("prometheus", config, CONFIG)
    label = wall.label_of(config)
    preset = text(label, config, "preset")
    _base_url(config)
    _auth(config)
    job, nodes = _text_of(config, "job"), _nodes(config)
    host = text(label, config, "host") or HOSTS.get(preset or "", "{instance}" if job or nodes else "")
    asked = Settings(
        label,
        config,
        tuple(_queries(config, preset, f"meter {label}")),
        preset or "",
        seconds(label, config, "lookback_s", 120.0),
        seconds(label, config, "stale_s", 60.0),
        seconds(label, config, "timeout_s", 5.0),
        seconds(label, config, "step_s", 1.0) if "step_s" in config else None,
        host,
        text(label, config, "match") or "",
        job=job,
        search_days=seconds(label, config, "search_days", 31.0),
    )
    return asked.only(nodes)


def _text_of(config: Mapping[str, Any], key: str) -> str:
    """Return a text that may be written as a number: a job's id."""
    given = config.get(key, "")
    if isinstance(given, int) and not isinstance(given, bool):
        return str(given)
    return text(wall.label_of(config), config, key) or ""


def _nodes(config: Mapping[str, Any]) -> list[str]:
    given = config.get("nodes", [])
    listed = given.split(",") if isinstance(given, str) else given
    if not isinstance(listed, list) or not all(isinstance(node, str) and node.strip() for node in listed):
        where = f"meter {wall.label_of(config)}"
        raise ConfigError(f"nodes is {given!r}", where=where, next='give names: nodes = ["node01", "node02"]')
    return [node.strip() for node in listed]


def check_settings(config: Mapping[str, Any]) -> None:
    """Check all of an entry that can be checked without its server. Raises ConfigError."""
    asked = settings_of(config)
    _verify(config)
    pin = text(asked.label, config, "fingerprint")
    if pin is not None:
        plain_fingerprint(pin, asked.label)
    seconds(asked.label, config, "modulus_j", 1.0)
    for query in asked.queries:
        also = wall.STATES_OF if query.kind == "state" else ()
        wall.check_scope(query.scope, f"meter {asked.label}", also=also)


def _verify(config: Mapping[str, Any]) -> bool | str:
    verify = config.get("verify", True)
    if not isinstance(verify, bool | str):
        where = f"meter {wall.label_of(config)}"
        raise ConfigError(f"verify is {verify!r}", where=where, next="give false, or a file's path")
    return verify


def api_of(asked: Settings) -> Api:
    """Return the way to the server; nothing is sent yet. Raises ConfigError, MissingDependency."""
    config = asked.config
    verify = _verify(config)
    client = HttpClient(
        _base_url(config),
        auth=_auth(config),
        timeout_s=asked.timeout_s,
        verify=verify,
        fingerprint=text(asked.label, config, "fingerprint"),
        label=asked.label,
        limit_b=LIMIT_B,
    )
    return Api(client, asked.label)


def _base_url(config: Mapping[str, Any]) -> str:
    label = wall.label_of(config)
    wall.refuse_login(config)
    given = (text(label, config, "address") or "").strip()
    advice = 'set address = "http://HOST:9090"'
    if not given:
        raise ConfigError("no address is given", where=f"meter {label}", next=advice)
    if "://" not in given:
        given = f"http://{given}"
    try:
        parts = urlsplit(given)
        good = parts.scheme in ("http", "https") and parts.hostname and not parts.query and parts.port != 0
    except ValueError:  # brackets that do not close, a port that is no number
        good = False
    if not good:
        raise ConfigError("address is not a server's", where=f"meter {label}", next=advice)
    return given.rstrip("/")


def _auth(config: Mapping[str, Any]) -> Auth:
    label = wall.label_of(config)
    secret = {key: config.get(key) for key in SECRETS}
    for key, value in secret.items():
        if value is not None and not isinstance(value, str):
            raise ConfigError(
                f"{key} is no text", where=f"meter {label}", next="give { env = NAME } or { file = PATH }"
            )
    user, password, token = text(label, config, "user"), secret["password"], secret["token"]
    if token is not None and (user is not None or password is not None):
        raise ConfigError("both a token and a password are given", where=f"meter {label}", next="give one of them")
    if (user is None) != (password is None):
        raise ConfigError("user and password belong together", where=f"meter {label}", next="give both")
    if token is not None:
        return Auth("bearer", password=token)
    return Auth("basic", user, password) if user is not None and password is not None else Auth()


def _queries(config: Mapping[str, Any], preset: str | None, where: str) -> list[Query]:
    own, match = config.get("queries"), text(where, config, "match")
    if (preset is None) == (own is None):
        what = "both preset and queries are given" if preset else "neither preset nor queries are given"
        raise ConfigError(what, where=where, next=f'set preset = "ipmi" ({", ".join(PRESETS)}), or queries = [...]')
    feeds = wall.feeds_of(config, "node.ac")
    found: list[Query] = []
    if preset is not None:
        if preset not in PRESETS:
            raise ConfigError(f"there is no preset {preset!r}", where=where, next=suggest_name(preset, list(PRESETS)))
        for row in PRESETS[preset]:
            query = parse_query(row, feeds, where)
            scope = feeds if query.scope == "node.ac" else query.scope
            found.append(replace(query, scope=scope, query=_narrowed(query, match or ""), group=preset))
    elif match is not None:
        raise ConfigError("match goes with a preset", where=where, next="write the labels into the queries")
    elif not isinstance(own, list) or not own:
        raise ConfigError("queries is no list", where=where, next='give queries = [{query = "...", scope = "..."}]')
    else:
        found = [replace(parse_query(row, feeds, where), group=str(n)) for n, row in enumerate(own, 1)]
    if "update_s" in config:
        update_s = seconds(where, config, "update_s", 1.0)
        found = [replace(query, update_s=update_s) for query in found]
    return found


def _narrowed(query: Query, match: str) -> str:
    if query.plain:
        return narrowed(query.query, match)
    head, _, inner = query.query.rpartition("(")  # of the presets, all expressions end in "(selector)"
    return f"{head}({narrowed(inner.removesuffix(')'), match)})" if inner else query.query


@dataclass(slots=True)
class Group:
    """Hold the series that make one stream: by channel, the query's number and the series' labels.

    An agent tells the `gain` of its meter, how long a value may be old (`update_s`), and the times of scrapes (ns) at
    which the meter had not been read for long (`stale`); `notes` say what was left out for that.
    """

    scope: str
    parent: str
    host: str
    meter: str = ""
    members: dict[str, tuple[int, Key]] = field(default_factory=dict)
    gain: float | None = None
    update_s: float | None = None
    stale: frozenset[int] = frozenset()
    notes: tuple[str, ...] = ()


def grouped(asked: Settings, found: Sequence[Series]) -> list[Group]:
    """Return the streams that the series of all queries make. Raises ConfigError where two series are one scope."""
    groups: dict[tuple[str, ...], Group] = {}
    where = f"meter {asked.label}"
    for number, (query, series) in enumerate(zip(asked.queries, found, strict=True)):
        for key in sorted(series):
            labels = {"label": asked.label} | dict(key)
            scope = filled(query.scope, labels, where)
            host, meter = asked.host_of(labels, where), filled(query.meter, labels, where)
            parent = filled(query.parent, labels, where)
            group = groups.setdefault((query.group, host, meter, scope), Group(scope, parent, host, meter))
            if query.name in group.members:
                other, taken = group.members[query.name]
                if other == number or not asked.preset:
                    raise _twice(where, scope, dict(taken), dict(key))
                continue  # an exporter's older and newer name for one thing: the first counts
            group.members[query.name] = number, key
    return sorted(groups.values(), key=lambda g: (g.host, scopes.rank_scope(g.scope)))


def _twice(where: str, scope: str, one: Mapping[str, str], two: Mapping[str, str]) -> ConfigError:
    differ = sorted(k for k in one.keys() | two.keys() if one.get(k) != two.get(k)) or ["nothing"]
    shown = ", ".join(f"{k}: {one.get(k)!r} and {two.get(k)!r}" for k in differ[:4])
    advice = f"narrow the query (match = '{differ[0]}=\"{one.get(differ[0], '')}\"'), or put the label into the scope"
    return ConfigError(f"two series are both {scope}", where=where, why=f"they differ in {shown}", next=advice)


def stream_of(asked: Settings, group: Group, cords: int, period_s: float, *, live: bool) -> Stream:
    """Return the stream of a group; `cords` are those of its node, 0 where they are not to be added up."""
    queries = {name: asked.queries[number] for name, (number, _) in group.members.items()}
    channels = [_spec(asked, query, group, live=live) for query in queries.values()]
    if live:
        channels.append(Spec("age_s", "age", "s"))
    table = "_".join(sorted(name.rpartition("_")[0] or name for name in queries))
    feeds, parts = "", 0
    if scopes.find_family(group.scope) == "outlet" and cords:
        feeds = wall.feeds_of(asked.config, "node.ac")
        parts = max(int(asked.config.get("parts") or 1), cords)
    told = next(iter(queries.values()))
    how = "raw samples" if all(q.plain for q in queries.values()) else "an expression, evaluated at steps"
    several = f"{told.group}" if not asked.preset and len(asked.queries) > 1 else group.meter if live else ""
    return Stream(
        f"{group.scope} {several}".rstrip(),
        table,
        group.scope,
        period_s,
        tuple(channels),
        group.parent or feeds or None,
        device=_device(dict(group.members[told.name][1])),
        model=f"Prometheus: {told.query} ({how})",
        sums=feeds,
        parts=parts,
    )


def _device(labels: Mapping[str, str]) -> str:
    return next((labels[k] for k in ("UUID", "uuid", "device", "instance") if labels.get(k)), "")


def _spec(asked: Settings, query: Query, group: Group, *, live: bool) -> Spec:
    si, _, quantity, _ = UNITS[query.unit]
    update_s = query.update_s if group.update_s is None or "update_s" in asked.config else group.update_s
    if query.kind == "state":
        return Spec(query.name, QUANTITIES.get(query.name, quantity), si, update_s=update_s)
    modulus = None if query.modulus is None else query.modulus * query.factor
    if query.kind == "counter" and "modulus_j" in asked.config:
        modulus = seconds(asked.label, asked.config, "modulus_j", 1.0)
    reference = query.reference or "the entry states none"
    if not query.plain:
        reference += "; evaluated at steps, times are those of the samples behind it"
    gain = query.gain or None if group.gain is None else group.gain
    default = Accuracy(
        "unknown" if gain is None else "assumed",
        gain or 0.0,
        quantum=query.quantum * query.factor,
        shared=f"{group.meter or asked.label}:{scopes.find_family(group.scope)}",
        reference=reference,
    )
    accuracy = wall.stated(asked.config, default)
    return Spec(
        query.name,
        quantity,
        si,
        query.kind,
        update_s,
        query.window_s if query.kind == "power" else None,
        modulus=modulus,
        accuracy=accuracy,
        # When a sample was scraped is known; how old the value was by then is not.
        lag_s=update_s if live else 0.0,
    )
