"""Capture a device of each family, and open a capture in place of the device.

A family of the network takes `tap` in `open_meter(config, tap=...)`: a function through which its client goes before it
is used. Here the tap notes each exchange on a tape, or answers from the tape. A family of files is copied.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
from bisect import bisect_right
from datetime import UTC, datetime
from functools import partial
from importlib import import_module, resources
from itertools import takewhile
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_plus, urlencode

from joulelab.core.clock import NS, monotonic_ns, read_utc_ns
from joulelab.core.errors import JoulelabError, MeterError, Refused
from joulelab.core.version import __version__
from joulelab.instruments.capture import LABEL, Capture, Tape, read_values, refuse_capture, state_refusal
from joulelab.instruments.capture.recordings import SUBTREES
from joulelab.instruments.capture.removal import Remover, is_electrical, remove_from_json, remove_login

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from joulelab.core.spec import Meter
    from joulelab.instruments.capture import StatedValue

# Settings that opening needs, and that have no meaning once a capture answers.
STAND_INS: dict[str, dict[str, Any]] = {
    "snmp": {"address": "127.0.0.1", "community": "public"},
    "redfish": {"address": "127.0.0.1", "auth": "none"},
    "plug": {"address": "127.0.0.1"},
    "modbus": {"address": "127.0.0.1"},
    "ipmi": {"address": "127.0.0.1", "user": "capture", "password": "capture"},
    "analyzer": {"resource": "TCPIP::127.0.0.1::5025::SOCKET"},
}
# Families of files: where they are, and which folders and files of the tree are copied.
TREES = {
    "hwmon": ("/sys/class/hwmon", r"hwmon\d+|device|measures", r"name|(?:power|energy)\d+_\w+"),
    "rapl": ("/sys/class/powercap", r"intel-rapl[\w:-]*", r"name|enabled|\w*energy\w*_uj|constraint_\d+_\w+"),
    "cray": ("/sys/cray/pm_counters", r"(?!)", r"\w+"),
}
FAMILIES = (*STAND_INS, *TREES)
# Settings of address, login and pace: no part of a capture.
_LEFT_OUT = re.compile(
    "label|address|resource|url|root|path|topic|user|.*password|community|auth|privacy|interface|command|cipher|privilege|"
    "fingerprint|verify|baud_rate|reference|.*period_s|timeout_s"
)
DEPTH, FILE_BYTES = 4, 4096
# Limits of exploring a device beyond the requests of its meter.
DOCUMENTS, EXPLORE_S = 2_000, 120.0
# Resources of Redfish that are private, and those that have no power, either.
_PRIVATE = re.compile(
    r"/(?:\w*Account\w*|\w*Session\w*|EventService|Registries|JsonSchemas|LogServices|Certificate\w*|KeyService|License\w*|"
    r"NetworkProtocol|EthernetInterfaces|VirtualMedia|SecureBoot)(?:/|$)"
)
_SKIPPED = re.compile(
    r"/(?:UpdateService|NetworkInterfaces|NetworkAdapters|\w*Storage|Drives|Bios|Boot\w*|Task\w*|Job\w*|Actions|Assembly|"
    r"SerialInterfaces|HostInterfaces|PCIe\w*|Memory|Managers)(?:/|$)"
)
# IPMI commands that are kept: device id, sensor readings and records, DCMI power, XCC. Not FRU, GUID, LAN, system info.
_IPMI_KEPT = ("06 01", "04 2d", "04 27", "04 23", "0a 20", "0a 21", "0a 22", "0a 23", "2c 01", "2c 02", "3a 32")
_SYSTEM = "1.3.6.1.2.1.1"
_SYSTEM_KINDS = {f"{_SYSTEM}.4.0": "user", f"{_SYSTEM}.5.0": "host name", f"{_SYSTEM}.6.0": "location"}


def check_family(family: str, config: Mapping[str, Any]) -> None:
    """Refuse a family that cannot be captured. Raises Refused."""
    if family in FAMILIES and config.get("via") != "mqtt":
        return
    kind = "plugs over MQTT" if family in FAMILIES else family
    advice = f"send the findings instead: joulelab doctor {family} --json"
    raise Refused(f"captures of {kind} are not supported", next=advice, code="refused.capture")


def capture_device(family: str, config: Mapping[str, Any], secrets: tuple[str, ...]) -> tuple[Capture, Remover]:
    """Ask a device for everything, and return its answers without secrets, and joulelab's readings of them.

    A device that cannot be opened is captured, too, as far as it answered. Raises Refused, ConfigError, and the error
    of opening where nothing answered.
    """
    check_family(family, config)
    tape, failed = Tape(), None
    if family in TREES:
        tape.exchanges |= copy_tree(family, Path(config.get("root") or TREES[family][0]))
    else:
        try:
            meter = _open_tapped(family, {"label": LABEL, **config}, tape)
            with contextlib.closing(meter):
                read_values(meter)
        except JoulelabError as error:
            failed = error
    if not tape.exchanges:
        raise failed or Refused(f"{family} has no files here", where=family, code="refused.nothing-to-capture")
    return make_capture(family, tape.exchanges, config, secrets)


def make_capture(
    family: str, answers: Mapping[str, str], config: Mapping[str, Any], secrets: tuple[str, ...] = ()
) -> tuple[Capture, Remover]:
    """Return a capture of answers, without secrets, with joulelab's readings of them. Raises Refused."""
    remover = Remover()
    remove_login(config, secrets, remover)
    exchanges = _REMOVALS[family](answers, remover)
    settings = {key: _clean_setting(value, remover) for key, value in config.items() if not _LEFT_OUT.fullmatch(key)}
    date = datetime.fromtimestamp(read_utc_ns() / NS, UTC).date().isoformat()
    capture = Capture(family, {"joulelab": __version__, "date": date}, settings, [], exchanges)
    capture.values, models = read_capture(capture)
    capture.about["device"] = remover.clean(", ".join(models)) or "unknown"
    return capture, remover


def read_capture(capture: Capture) -> tuple[list[StatedValue], list[str]]:
    """Return what joulelab reads from a capture, and the models of its devices. Raises Refused, ConfigError."""
    check_family(capture.family, capture.settings)
    try:
        with open_capture(capture) as meter:
            models = list(dict.fromkeys(filter(None, (stream.model for stream in meter.streams()))))
            return read_values(meter), models
    except JoulelabError as error:
        return [state_refusal(error)], []
    except ValueError as error:
        raise refuse_capture(LABEL, "an answer cannot be read", str(error)) from None


@contextlib.contextmanager
def open_capture(capture: Capture) -> Iterator[Meter]:
    """Open the meter that reads a capture, without a device. Raises as `open_meter` does."""
    with contextlib.ExitStack() as stack:
        if capture.family in TREES:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            write_tree(capture, folder)
            config = {**capture.settings, "root": str(folder)}
            meter = import_module(f"joulelab.instruments.{capture.family}").open_meter(config)
        else:
            config = {**STAND_INS[capture.family], **capture.settings, "label": LABEL}
            meter = _open_tapped(capture.family, config, Tape(capture.exchanges, is_live=False))
        stack.enter_context(contextlib.closing(meter))
        yield meter


def _open_tapped(family: str, config: Mapping[str, Any], tape: Tape) -> Meter:
    module = import_module(f"joulelab.instruments.{family}")
    meter: Meter = module.open_meter(config, tap=partial(_TAPS[family], tape))
    return meter


def _clean_setting(value: Any, remover: Remover) -> Any:
    if isinstance(value, list | tuple):
        return [_clean_setting(item, remover) for item in value]
    if not isinstance(value, str):
        return value
    return PurePosixPath(value).name if value.endswith(".toml") else remover.find_placeholder(value)


# ---- HTTP: Redfish and plugs. A request is path and query, an answer JSON, or `HTTP 500` and the body.


def _tap_http(tape: Tape, client: Any, *, explores: bool = False) -> Any:
    from joulelab.instruments.http import Answer

    ask = client.ask
    if not tape.is_live:
        tape = Tape({normalise_path(request): answer for request, answer in tape.exchanges.items()}, is_live=False)

    def ask_taped(
        method: str, path: str, params: Mapping[str, str] | None = None, body: Any = None, **options: Any
    ) -> Answer:
        if method != "GET":
            return ask(method, path, params, body, **options) if tape.is_live else Answer(405, {}, b"")
        query = urlencode({key: value for key, value in (params or {}).items() if key not in ("user", "password")})
        text = tape.take(
            normalise_path(f"{path}?{query}"), lambda: _write_answer(ask(method, path, params, body, **options))
        )
        if text is None:
            return Answer(404, {}, b"")
        status, content = split_status(text)
        return Answer(status, {}, content.encode())

    client.ask = ask_taped
    if explores and tape.is_live:
        _explore_redfish(client)
    return client


def _write_answer(answer: Any) -> str:
    text = answer.body.decode("utf-8", "replace")
    with contextlib.suppress(ValueError, RecursionError):
        text = json.dumps(json.loads(text), separators=(",", ":"), ensure_ascii=False)
    return text if answer.status == 200 else f"HTTP {answer.status} {text}"


def normalise_path(request: str) -> str:
    """Return path and query of a request in plain letters, without a slash at the end of the path."""
    path, _, query = unquote_plus(request).partition("?")
    return "?".join(filter(None, (path.rstrip("/"), query)))


def split_status(text: str) -> tuple[int, str]:
    """Return status and body of an answer by HTTP."""
    match = re.match(r"HTTP (\d{3}) ?", text)
    return (int(match[1]), text[match.end() :]) if match else (200, text)


def _explore_redfish(client: Any) -> None:
    """Ask for all resources that might have to do with power, by their links."""
    waiting, seen, until_ns = ["/redfish/v1/"], set[str](), monotonic_ns() + round(EXPLORE_S * NS)
    while waiting and len(seen) < DOCUMENTS and monotonic_ns() < until_ns:
        path = waiting.pop(0)
        if path in seen:
            continue
        seen.add(path)
        try:
            body = client.get_json(path)
        except JoulelabError:
            continue
        links = re.findall(r'"@odata.id": "(/redfish/[^"#]+)"', json.dumps(body))
        waiting += [link for link in links if not (_PRIVATE.search(link) or _SKIPPED.search(link))]


def _remove_from_redfish(exchanges: Mapping[str, str], remover: Remover) -> dict[str, str]:
    return remove_from_json({path: body for path, body in exchanges.items() if not _PRIVATE.search(path)}, remover)


# ---- SNMP. A request is an object identifier, an answer `number 5`, `text ...`, `hex ...`, `oid ...` or `null`.


def _tap_snmp(tape: Tape, session: Any) -> Any:
    from joulelab.instruments.snmp.ber import MISSING

    if tape.is_live:
        get, next_, walk = session.get, session.next, session.walk_subtree

        def note(pairs: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
            for oid, value in pairs:
                if value is not MISSING:
                    tape.exchanges[oid] = write_value(value)
                yield oid, value

        session.get = lambda oids: [value for _, value in note(zip(oids, get(oids), strict=True))]
        session.next = lambda oids: list(note(next_(oids)))
        session.walk_subtree = lambda root: note(walk(root))
        _explore_snmp(session)
        return session
    objects = {oid: parse_value(answer) for oid, answer in tape.exchanges.items()}
    keys = sorted(tuple(map(int, oid.split("."))) for oid in objects)

    def list_after(root: str) -> Iterator[tuple[str, Any]]:
        for key in keys[bisect_right(keys, tuple(map(int, root.split(".")))) :]:
            oid = ".".join(map(str, key))
            yield oid, objects[oid]

    session.get = lambda oids: [objects.get(oid, MISSING) for oid in oids]
    session.next = lambda oids: [next(list_after(oid), (oid, MISSING)) for oid in oids]
    session.walk_subtree = lambda root: takewhile(lambda pair: pair[0].startswith(f"{root}."), list_after(root))
    return session


def _explore_snmp(session: Any) -> None:
    """Walk what a PDU or UPS may have, as far as the time allows."""
    until_ns = monotonic_ns() + round(EXPLORE_S * NS)
    for root in SUBTREES:
        with contextlib.suppress(MeterError):
            for _ in takewhile(lambda _: monotonic_ns() < until_ns, session.walk_subtree(root)):
                pass


def write_value(value: Any) -> str:
    """Return a value of SNMP as text: a number, bytes, a name (with `oid`), or None."""
    if isinstance(value, int):
        return f"number {value}"
    if isinstance(value, bytes):
        with contextlib.suppress(UnicodeDecodeError):
            text = value.decode()
            if text.isprintable():
                return f"text {text}"
        return f"hex {value.hex()}"
    return "null" if value is None else f"oid {value.oid}"


def parse_value(text: str) -> Any:
    """Return the value of SNMP that `write_value` wrote."""
    from joulelab.instruments.snmp.ber import Name

    kind, _, value = text.partition(" ")
    if kind == "hex":
        return bytes.fromhex(value)
    if kind == "number":
        return int(value)
    return Name(value) if kind == "oid" else None if kind == "null" else value.encode()


def remove_from_walk(exchanges: Mapping[str, str], remover: Remover) -> dict[str, str]:
    """Return the objects of a walk; of texts only those that tables of makers use, or that are of electricity."""
    object_id = exchanges.get(f"{_SYSTEM}.2.0", "").removeprefix("oid ")
    roles = {f"{_SYSTEM}.1": "kept", **_list_text_columns(object_id or "0")}
    found: dict[str, tuple[str, str, str]] = {}
    for oid, answer in exchanges.items():
        kind, _, value = answer.partition(" ")
        parts = oid.split(".")
        role = next((role for size in range(len(parts), 6, -1) if (role := roles.get(".".join(parts[:size])))), "")
        if role == "serial":
            remover.replace("serial number", value)
        found[oid] = kind, value, _SYSTEM_KINDS.get(oid, role)
    return {oid: _clean_value(*one, remover) for oid, one in found.items()}


def _clean_value(kind: str, value: str, role: str, remover: Remover) -> str:
    if kind in ("oid", "null") or (kind == "number" and role != "serial"):
        return f"{kind} {value}".strip()
    if kind == "number":
        return "number 0"
    if kind == "hex":
        if role == "kept":  # a text of several lines
            return write_value(remover.clean(bytes.fromhex(value).decode("latin-1")).encode("latin-1"))
        remover.replace({12: "MAC address", 8: "address"}.get(len(value), "text"), value)
        return f"hex {'00' * (len(value) // 2)}"
    if not value.strip():
        return "text"
    if role == "kept":
        return f"text {remover.clean(value)}"
    if not role and is_electrical(value) and remover.find_placeholder(value) == value:
        return f"text {value}"
    named = {"names": "outlet", "serial": "serial number"}.get(role, role or "text")
    return f"text {remover.replace(named, value)}"


def _list_text_columns(object_id: str) -> dict[str, str]:
    """Return the columns of texts that tables of makers use: kept (models, labels, units), names, or serial."""
    roles: dict[str, str] = {}
    keys = {"model": "kept", "labels": "kept", "read_units": "kept", "serial": "serial", "names": "names"}
    for entry in (resources.files("joulelab.instruments.snmp") / "pdus").iterdir():
        if entry.name.endswith(".toml"):
            pairs = re.findall(r'^(\w+) = (\[.*?\]|"[\d.{}id]+")', entry.read_text("utf-8"), re.MULTILINE)
            for role, text in ((keys[key], text) for key, text in pairs if key in keys):
                roles |= dict.fromkeys(re.findall(r'"([\d.]+)"', text.replace("{id}", object_id)), role)
    return roles


# ---- Modbus. A request is `unit 1 function 3 registers 19026 2`, an answer words in hex, or `exception 2`.


def _tap_modbus(tape: Tape, connection: Any) -> Any:
    from joulelab.instruments.modbus.client import Refusal

    read = connection.read_blocks

    def read_block(unit: int, request: Any) -> tuple[int, ...]:
        def ask() -> str:
            try:
                return " ".join(f"{word:04x}" for word in read(unit, [request])[0])
            except Refusal as error:
                return f"exception {error.exception}"

        text = tape.take(f"unit {unit} function {request[0]} registers {request[1]} {request[2]}", ask) or "exception 2"
        if text.startswith("exception"):
            raise Refusal(LABEL, unit, request, int(text.split()[1]))
        words = tuple(int(word, 16) for word in text.split())
        if len(words) != request[2] or max(words) > 0xFFFF:
            raise ValueError(f"{text!r} is not {request[2]} words")
        return words

    connection.read_blocks = lambda unit, requests: [read_block(unit, request) for request in requests]
    return connection


# ---- IPMI. A request is net function, command and data in hex, an answer completion code and data.


def _tap_ipmi(tape: Tape, link: Any) -> Any:
    carry = link.carry_command

    def carry_taped(netfn: int, command: int, data: bytes, until_ns: int) -> tuple[int, bytes]:
        def ask() -> str:
            code, answer = carry(netfn, command, data, until_ns)
            return f"{code:02x} {answer.hex()}"

        text = tape.take(f"{netfn:02x} {command:02x} {data.hex()}".strip(), ask)
        code, _, answer = (text or "c1").partition(" ")
        return int(code, 16), bytes.fromhex(answer)

    link.carry_command = carry_taped
    return link


def _remove_from_ipmi(exchanges: Mapping[str, str], remover: Remover) -> dict[str, str]:
    for request in (request for request in exchanges if request[:5] not in _IPMI_KEPT):
        remover.replace("IPMI answer", request)
    return {request: answer for request, answer in exchanges.items() if request[:5] in _IPMI_KEPT}


# ---- Analyzer. A request is one question, an answer its text; settings are not noted.


def _tap_analyzer(tape: Tape, connect: Callable[[], Any]) -> Callable[[], Any]:
    def query(link: Any, text: str) -> str:
        answer: str = link.query(text)
        questions, answers = _list_questions(text), answer.split(";")
        if len(answers) == len(questions):
            tape.exchanges.update(zip(questions, answers, strict=True))
        if len(answers) != len(set(questions)):  # a question that is asked twice has two answers
            tape.exchanges[text] = answer
        return answer

    def connect_tapped() -> Any:
        if not tape.is_live:
            mute = dict.fromkeys(("write", "close", "abandon"), lambda *_: None)
            return SimpleNamespace(query=partial(answer_questions, tape.exchanges), **mute)
        link = connect()
        parts = {name: getattr(link, name) for name in ("write", "close", "abandon")}
        return SimpleNamespace(query=partial(query, link), **parts)

    return connect_tapped


def _list_questions(text: str) -> list[str]:
    return [part for part in text.split(";") if part.endswith("?")]


def answer_questions(exchanges: Mapping[str, str], text: str) -> str:
    """Return the answers to the questions in one message as an analyzer gave them, empty for those it was not asked."""
    return exchanges.get(text) or ";".join(exchanges.get(question, "") for question in _list_questions(text))


def _remove_from_analyzer(exchanges: Mapping[str, str], remover: Remover) -> dict[str, str]:
    identity = exchanges.get("*IDN?", "").split(",")
    if len(identity) > 2:  # maker, model, serial number, firmware
        remover.replace("serial number", identity[2])
    return {question: remover.clean(answer) for question, answer in exchanges.items()}


# ---- trees of files. A request is the path below the root, an answer the content of the file.


def copy_tree(family: str, root: Path) -> dict[str, str]:
    """Return the files of a tree that a family reads, by path."""
    _, folder_names, file_names = TREES[family]
    found: dict[str, str] = {}
    for place, folders, files in os.walk(root, followlinks=True):
        here = Path(place)
        if here.name == "measures":  # only the names of its links are read
            found |= dict.fromkeys(((here / name).relative_to(root).as_posix() for name in (*folders, *files)), "")
            folders.clear()
            continue
        is_deep = len(here.relative_to(root).parts) >= DEPTH
        folders[:] = sorted(name for name in folders if re.fullmatch(folder_names, name) and not is_deep)
        for name in sorted(name for name in files if re.fullmatch(file_names, name)):
            found[(here / name).relative_to(root).as_posix()] = _read_file(here / name)
    return found


def _read_file(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(FILE_BYTES).decode("utf-8", "replace").strip()
    except OSError as error:
        return f"!{error.strerror}"


def write_tree(capture: Capture, folder: Path) -> None:
    """Write a captured tree below a folder; a file that could not be read has no permissions."""
    for name, content in capture.exchanges.items():
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts:
            raise refuse_capture(LABEL, "a file is outside the tree", name)
        file = folder / path
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("" if content.startswith("!") else f"{content}\n")
        except OSError as error:
            raise refuse_capture(LABEL, "a file cannot be written", f"{name}: {error.strerror}") from None
        if content.startswith("!"):
            file.chmod(0)


def _remove_from_tree(exchanges: Mapping[str, str], remover: Remover) -> dict[str, str]:
    for path, content in exchanges.items():
        if "serial" in path or "asset" in path:
            remover.replace("serial number", content)
    return {path: remover.find_placeholder(content) for path, content in exchanges.items()}


_TAPS: dict[str, Callable[[Tape, Any], Any]] = {
    "redfish": partial(_tap_http, explores=True),
    "plug": _tap_http,
    "snmp": _tap_snmp,
    "modbus": _tap_modbus,
    "ipmi": _tap_ipmi,
    "analyzer": _tap_analyzer,
}
_REMOVALS: dict[str, Callable[[Mapping[str, str], Remover], dict[str, str]]] = {
    "redfish": _remove_from_redfish,
    "plug": remove_from_json,
    "snmp": remove_from_walk,
    "modbus": lambda exchanges, _: dict(exchanges),  # numbers alone
    "ipmi": _remove_from_ipmi,
    "analyzer": _remove_from_analyzer,
    **dict.fromkeys(TREES, _remove_from_tree),
}
