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
        walker = Walker(client.get_json, read_root(client), count_bytes=lambda: client.received_b)
        found, missing = plan_readings(walker, wanted)
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
            "this is not a Redfish service",
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
    """Return sentences on why opening has failed, after further probes; the error itself is not repeated."""
    try:
        client = open_client(config)
    except JoulelabError as wrong:
        return [] if wrong.code == error.code else [str(wrong)]
    with client:
        return doctor.explain_failure(client, read_root)


# ---- settings


def _refuse_setting(label: str, what: str, then: str, reason: str) -> ConfigError:
    return ConfigError(what, where=f"meter {label}", next=then, code=f"config.{reason}")


def _read_access(config: Mapping[str, Any]) -> tuple[str, Auth, bool | str]:
    """Return the BMC's URL, the log-in and the certificate to trust. Raises ConfigError."""
    label = wall.label_of(config)
    given = (text(label, config, "address") or "").strip()
    scheme = "http" if given.startswith("http://") else "https"
    plain = given.removeprefix("https://").removeprefix("http://").rstrip("/")
    host, port = wall.address({**config, "address": plain}, 443 if scheme == "https" else 80)
    kind, verify = text(label, config, "auth", "session"), config.get("verify", True)
    if kind not in ("session", "basic", "none"):
        raise _refuse_setting(label, f"auth is {kind!r}", "give session, basic or none", "auth")
    user, password = text(label, config, "user") or "", text(label, config, "password") or ""
    if kind != "none" and not user:
        raise _refuse_setting(label, "no user is given", 'set user and password, or auth = "none"', "no-user")
    if not isinstance(verify, bool | str):
        raise _refuse_setting(label, f"verify is {verify!r}", "give true, false or a CA file", "verify")
    url = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
    return url, Auth(kind, user, password), verify  # type: ignore[arg-type]


def _read_wanted(config: Mapping[str, Any], label: str) -> Wanted:
    period_s = number(label, config, "period_s", PERIOD_S, above=0.0)
    if period_s < LEAST_PERIOD_S:  # a BMC is slow, and asked faster it only repeats itself
        raise _refuse_setting(label, f"period_s is {period_s:g}", f"give {LEAST_PERIOD_S:g} or more", "period")
    lists: dict[str, list[Any] | None] = {}
    for key, kind in (("sources", str), ("gpus", int)):
        given = config.get(key)
        if given is not None and not (isinstance(given, list | tuple) and all(type(item) is kind for item in given)):
            raise _refuse_setting(label, f"{key} is {given!r}", f"give a list: {CONFIG[key]}", "no-list")
        lists[key] = None if given is None else list(given)
    for source in lists["sources"] or ():
        if source not in SOURCES:
            raise _refuse_setting(label, f"no source {source!r}", suggest_name(source, list(SOURCES)), "source")
    chassis, sensor = text(label, config, "chassis"), text(label, config, "sensor")
    return Wanted(config, label, period_s, chassis, sensor, tuple(lists["sources"] or ()) or None, lists["gpus"])
