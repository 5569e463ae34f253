"""Measure a node through its BMC by Redfish: whole node, supplies, GPUs, CPUs, inlet and fans; or a shelf or PDU."""

from __future__ import annotations

import time
from dataclasses import replace
from math import isnan
from typing import TYPE_CHECKING, Any

from joulelab.core.clock import NS, monotonic_ns
from joulelab.core.errors import ConfigError, JoulelabError, ReadFailed, Unavailable
from joulelab.core.text import suggest_name
from joulelab.instruments import wall
from joulelab.instruments.http import SERVER_DOWN, Auth, HttpClient, plain_fingerprint
from joulelab.instruments.redfish import doctor, values
from joulelab.instruments.redfish.plan import SOURCES, Plan, Wanted, plan_readings
from joulelab.instruments.redfish.walk import ROOT, Walker, find_link
from joulelab.instruments.settings import check_keys, number, seconds, text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from joulelab.core.spec import Meter, Stream
    from joulelab.instruments.hooks import Missing

SUMMARY = "node, supplies, GPUs, CPUs, inlet and fans, or a power shelf or PDU, through the BMC (Redfish)"
PRIVILEGE = "an account of the BMC that may read (ReadOnly)"
TRIED = "recordings of seven services and the simulated node; not on hardware"
CONFIG = wall.COMMON | {
    "address": "BMC: HOST, HOST:PORT, or http://HOST:PORT without TLS (port 443)",
    "user": "account of the BMC",
    "password": "its password",
    "auth": "session, basic or none (session)",
    "chassis": "Id of the chassis that is the node, if the service has several; or Id of a PDU",
    "sensor": "Id or Name of the sensor that is the node's power, if none is certain; the error lists them",
    "sources": f"parts to read, some of {', '.join(SOURCES)} (all)",
    "gpus": "numbers of the GPUs in the order of their modules, if they differ from 0, 1, ...",
    "verify": "true, false, or the path of a CA file (true)",
    "fingerprint": "SHA-256 of the BMC's certificate, to trust it alone",
}
DEFAULT = False
SECRETS = ("password",)
PERIOD_S, LEAST_PERIOD_S, TIMEOUT_S = 1.0, 0.5, 5.0
# An answer serves all its streams for this long; the same stream is not asked for again sooner.
FRESH_NS = NS // 10


def check(config: Mapping[str, Any]) -> None:
    """Check an entry before a run. Raises ConfigError."""
    check_keys("redfish", config, CONFIG)
    label = wall.label_of(config)
    _read_wanted(config, label)
    _read_access(config)
    pin = text(label, config, "fingerprint")
    if pin is not None:
        plain_fingerprint(pin, label)


def open_meter(config: Mapping[str, Any], tap: Callable[[HttpClient], HttpClient] | None = None) -> Meter:
    """Log in, walk the service and plan the readings. Raises ReadFailed, Denied, Unavailable, ConfigError.

    `tap` stands between the meter and the service, to write down the answers.
    """
    check_keys("redfish", config, CONFIG)
    label = wall.label_of(config)
    wanted = _read_wanted(config, label)
    client = tap(open_client(config)) if tap else open_client(config)
    try:
        found, missing = plan_readings(Walker(client.get_json, read_root(client)), wanted)
    except JoulelabError as error:
        client.close()
        error.where = error.where or label
        raise
    return RedfishMeter(client, found, missing)


def open_client(config: Mapping[str, Any]) -> HttpClient:
    """Return a client for the configured BMC; nothing is sent yet. Raises ConfigError, MissingDependency."""
    url, auth, verify = _read_access(config)
    label = wall.label_of(config)
    timeout_s, pin = seconds(label, config, "timeout_s", TIMEOUT_S), text(label, config, "fingerprint")
    return HttpClient(url, auth=auth, timeout_s=timeout_s, verify=verify, fingerprint=pin, label=label)


def read_root(client: HttpClient) -> dict[str, Any]:
    """Return the service root, which needs no log-in, and the address of the log-in from it. Raises as `get_json`."""
    root = client.get_json(ROOT, open=True)
    if not isinstance(root, dict) or "RedfishVersion" not in root:
        raise Unavailable(
            "this is no Redfish service",
            where=client.label,
            why=f"{ROOT} has no RedfishVersion",
            next="check the address; Redfish may have to be switched on in the BMC",
            code="unavailable.no-redfish",
        )
    login = find_link(root, "Links", "Sessions")
    if login is not None:
        client.auth = replace(client.auth, login=login)
    return root


class RedfishMeter:
    """Read planned places of a service; one answer serves every stream that is part of it."""

    def __init__(
        self,
        client: HttpClient,
        found: Sequence[Plan],
        missing: Sequence[Missing],
        *,
        now: Callable[[], int] = monotonic_ns,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._client, self._now, self._pause = client, now, pause
        self._plans = {plan.stream.name: plan for plan in found}
        self._missing = missing
        self._answers: dict[str, tuple[Any, int, set[str]]] = {}  # by address: answer, time of arrival, its readers
        self._down: tuple[int, ReadFailed] | None = None

    def streams(self) -> Sequence[Stream]:
        """Return the streams, those of one answer beside each other."""
        return [plan.stream for plan in self._plans.values()]

    def missing(self) -> Sequence[Missing]:
        """Return the parts that are not measured, and remarks on sources."""
        return self._missing

    def read(self, stream: Stream) -> Sequence[float]:
        """Return one row in SI. Raises ReadFailed, Denied, Unavailable."""
        plan = self._plans[stream.name]
        paths = dict.fromkeys(field.path for field in plan.fields if field is not None)
        until_ns = self._now() + round(self._client.timeout_s * NS)
        docs = {path: self._get_answer(path, stream.name, until_ns) for path in paths}
        row = []
        for spec, field in zip(stream.channels, plan.fields, strict=True):
            try:
                row.append(float("nan") if field is None else values.read_value(docs[field.path], field))
            except ReadFailed as error:
                if spec.kind != "state":
                    error.where = self._client.label
                    raise
                row.append(float("nan"))  # a state that is missing now costs no power reading
        if all(map(isnan, row)):
            what = "the BMC has no reading now"
            raise ReadFailed(what, where=self._client.label, why=stream.name, code="read-failed.no-reading")
        return row

    def close(self) -> None:
        """End the session."""
        self._client.close()

    def _get_answer(self, path: str, reader: str, until_ns: int) -> Any:
        now = self._now()
        doc, at_ns, readers = self._answers.get(path, (None, now - FRESH_NS, set()))
        if reader not in readers and now - at_ns < FRESH_NS:
            readers.add(reader)
            return doc
        if self._down is not None and now - self._down[0] < FRESH_NS:
            raise self._down[1]  # streams beside the one that has just waited for nothing
        if now - at_ns < FRESH_NS:
            self._pause((at_ns + FRESH_NS - now) / NS)
        try:
            doc = self._client.get_json(path, within_s=(until_ns - self._now()) / NS)
        except ReadFailed as error:
            self._down = (self._now(), error) if error.code in SERVER_DOWN else None
            raise
        self._down = None
        self._answers[path] = (doc, self._now(), {reader})
        return doc


def diagnose(config: Mapping[str, Any], error: JoulelabError) -> list[str]:
    """Return sentences on why opening has failed, after further probes."""
    try:
        client = open_client(config)
    except JoulelabError as wrong:
        return [str(wrong)]
    with client:
        return doctor.explain_failure(client, read_root, error)


# ---- settings


def _read_access(config: Mapping[str, Any]) -> tuple[str, Auth, bool | str]:
    """Return the BMC's URL, the log-in and the certificate to trust. Raises ConfigError."""
    label = wall.label_of(config)
    where = f"meter {label}"
    given = (text(label, config, "address") or "").strip()
    scheme = "http" if given.startswith("http://") else "https"
    plain = given.removeprefix("https://").removeprefix("http://").rstrip("/")
    host, port = wall.address({**config, "address": plain}, 443 if scheme == "https" else 80)
    kind = text(label, config, "auth", "session")
    if kind not in ("session", "basic", "none"):
        raise ConfigError(f"auth is {kind!r}", where=where, next="give session, basic or none", code="config.auth")
    user, password = text(label, config, "user") or "", text(label, config, "password") or ""
    if kind != "none" and not user:
        then = 'set user and password, or auth = "none"'
        raise ConfigError("no user is given", where=where, next=then, code="config.no-user")
    verify = config.get("verify", True)
    if not isinstance(verify, bool | str):
        then = "give true, false or a CA file"
        raise ConfigError(f"verify is {verify!r}", where=where, next=then, code="config.verify")
    url = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
    return url, Auth(kind, user, password), verify  # type: ignore[arg-type]


def _read_wanted(config: Mapping[str, Any], label: str) -> Wanted:
    period_s = number(label, config, "period_s", PERIOD_S, above=0.0)
    if period_s < LEAST_PERIOD_S:
        raise ConfigError(
            f"period_s is {period_s:g}",
            where=f"meter {label}",
            why="a BMC is slow, and asked faster it only repeats itself",
            next=f"give {LEAST_PERIOD_S:g} or more",
            code="config.period",
        )
    sources, gpus = _read_list(config, "sources", str, label), _read_list(config, "gpus", int, label)
    for source in sources or ():
        if source not in SOURCES:
            then = suggest_name(source, list(SOURCES))
            raise ConfigError(f"no source {source!r}", where=f"meter {label}", next=then, code="config.source")
    chassis, sensor = text(label, config, "chassis"), text(label, config, "sensor")
    return Wanted(config, label, period_s, chassis, sensor, tuple(sources) if sources else None, gpus)


def _read_list(config: Mapping[str, Any], key: str, kind: type, label: str) -> list[Any] | None:
    given = config.get(key)
    if given is None:
        return None
    if not isinstance(given, list | tuple) or not all(type(item) is kind for item in given):
        then = f"give a list: {CONFIG[key]}"
        raise ConfigError(f"{key} is {given!r}", where=f"meter {label}", next=then, code="config.no-list")
    return list(given)
