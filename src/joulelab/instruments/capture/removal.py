"""Remove from a capture all that identifies the device, its place and its users, or lets others log in.

One value has one placeholder of its kind in the whole file, so that links and rows still fit. Removed are passwords,
communities, tokens, users, names and addresses of hosts (IP, MAC), serial numbers, UUIDs, asset tags, contact and
location. Of the texts in an SNMP walk only those stay that tables of makers use, or that are units and words of
electricity (`is_electrical`): a list of what to hide is never complete.
"""

from __future__ import annotations

import json
import re
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

PLACEHOLDERS: dict[str, Callable[[int], str]] = {
    "address": lambda n: f"192.0.2.{n}" if n < 256 else f"198.51.{n // 256 % 256}.{n % 256}",
    "IPv6 address": lambda n: f"2001:db8::{n:x}",
    "MAC address": lambda n: f"02:00:00:00:{n // 256 % 256:02x}:{n % 256:02x}",
    "UUID": lambda n: f"00000000-0000-4000-8000-{n:012x}",
    "mail address": lambda n: f"person{n}@example.org",
}
_V4 = r"(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
# Removed from all texts: kind, and a pattern whose group is the value.
PATTERNS = (
    ("UUID", re.compile(r"\b([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})\b", re.IGNORECASE)),
    ("UUID", re.compile(r"(?<![0-9a-z])([0-9a-f]{32})(?![0-9a-z])", re.IGNORECASE)),
    ("MAC address", re.compile(r"(?<![0-9a-f:.-])((?:[0-9a-f]{2}[:-]){5}[0-9a-f]{2})(?![0-9a-f:-])", re.IGNORECASE)),
    ("MAC address", re.compile(r"(?<![0-9a-z])((?=\d*[a-f])(?!0{8})[0-9a-f]{12})(?![0-9a-z])", re.IGNORECASE)),
    ("mail address", re.compile(r"([\w.+-]+@(?!odata|Redfish|Message)[\w-]+(?:\.[\w-]+)+)")),
    ("address", re.compile(rf"(?<![\w.])((?!0\.0\.0\.0|127\.|255\.){_V4}(?:\.{_V4}){{3}})(?![\w.]*\d)")),
    ("IPv6 address", re.compile(r"(?<![\w:])((?i:fe80:[0-9a-f:]+|(?:[0-9a-f]{1,4}:){7}[0-9a-f]{1,4}))(?![\w:])")),
    ("IPv6 address", re.compile(r"(?<![\w:])((?i:[23][0-9a-f]{3}(?::[0-9a-f]{1,4})*::[0-9a-f:]*))(?![\w:])")),
    ("serial number", re.compile(r"\b(?:S/?N|serial(?: ?n(?:umber|o|r))?)[.:=#\s]*([\w-]*\d[\w-]{3,})", re.IGNORECASE)),
)
# Keys of JSON whose values are removed, in lower case without marks between words.
KEYS = {
    "serial number": "serial|tag$|sku|expressservice|nodeid|barcode|engineid",
    "UUID": "uuid|guid|wwn|wwid|eui64|durablename|nqn|iqn",
    "MAC address": "mac$|macaddress",
    "address": "ipaddress|^ip$|staip|^gateway|nameserver|ipv[46]address|^subnet|^address(?:es)?$|broker|server$|^url$",
    "host name": "hostname|fqdn|domainname|^b?ssid|^topic",
    "user": "user(?:name|label)?$|account|owner|contact|email|phone",
    "password": "passw|secret|token|credential|fingerprint|certificatestring|community"
    "|(?:host|private|api|license|activation|encryption)keys?$",
    "location": "(?<!al)location$|^room|^rack$|^row$|building|postal|street|^city|^country|latitude|longitude|^lat$"
    "|^lon$|^floor$|altitude|timezone|^tz$",
}
_KEYS = tuple((kind, re.compile(pattern)) for kind, pattern in KEYS.items())
_HARMLESS = re.compile(r"sensor|indicator|count$|types?$|enabled$|supported$|format")
# Keys below which nothing is removed because of a key above: links, and the slot of a part (PSU 1).
_OWN = re.compile(r"@odata|partlocation$")
# Kinds whose values are searched in all texts; of others only those with a digit, or every "System" would be replaced.
_SEARCHED, _NOT_SEARCHED = ("password", "user", "host name"), ("location", "outlet", "text")
SHORT = 4  # letters; shorter values are not searched: any text may contain them by chance
_WORDS = re.compile(
    "a|ac|active|ambient|amp|ampere|amps|apparent|average|bank|battery|branch|breaker|c|celsius|charge|circuit|"
    "cord|cos|current|dc|degree|degrees|delta|demand|device|energy|f|factor|fan|feed|frequency|group|high|hz|in|"
    "inlet|input|kv|kva|kvar|kw|kwh|l|last|line|load|low|ma|max|maximum|min|minimum|module|mv|n|name|neutral|no|"
    "none|normal|off|ok|on|outlet|output|pdu|pe|peak|percent|phase|phi|plug|pole|port|power|rated|rating|"
    "reactive|real|relay|reset|rms|sensor|sensors|socket|state|status|sum|supply|temp|temperature|threshold|"
    "total|true|type|unit|ups|utility|v|va|value|var|volt|voltage|volts|w|watt|watts|wh|yes"
)
_WORD = re.compile(r"[A-Za-z]+|\d{1,2}(?!\d)|[^A-Za-z\d]+")
_READING = re.compile(
    r"[-+]?\d{1,5}(?:[.,]\d{1,4})? ?(?:[munk]?(?:A|V|W|VA|var|Wh|VAh|varh|Hz)|%|°?[CF])?", re.IGNORECASE
)


class Remover:
    """Replace values that identify a device, its place or its users; the same value by the same placeholder."""

    def __init__(self) -> None:
        self._placeholders: dict[str, str] = {}
        self._searched: dict[str, str] = {}
        self._made: set[str] = set()
        self.counts: dict[str, int] = {}

    def replace(self, kind: str, value: str, *, everywhere: bool = True) -> str:
        """Return the placeholder of a value, which is from now on replaced wherever it stands, if `everywhere`."""
        value = value.strip()
        if not value or value in self._made:
            return value
        if value not in self._placeholders:
            self.counts[kind] = number = self.counts.get(kind, 0) + 1
            make = PLACEHOLDERS.get(kind)
            placeholder = make(number) if make else f"{kind.replace(' ', '-')}-{number}"
            self._placeholders[value] = placeholder
            self._made.add(placeholder)
            is_certain = kind in _SEARCHED or (kind not in _NOT_SEARCHED and any(map(str.isdigit, value)))
            if everywhere and is_certain and len(value) >= SHORT:
                self._searched[value] = placeholder
        return self._placeholders[value]

    def find_placeholder(self, value: str) -> str:
        """Return the placeholder of a whole value, or the cleaned text where it has none."""
        return self._placeholders.get(value.strip()) or self.clean(value)

    def clean(self, text: str) -> str:
        """Return a text without what the patterns find, and without values that are known by now."""
        for kind, pattern in PATTERNS:
            text = pattern.sub(partial(self._replace_group, kind), text)
        return self.replace_known(text)

    def replace_known(self, text: str) -> str:
        """Return a text without values that are known by now."""
        for value in sorted((value for value in self._searched if value in text), key=len, reverse=True):
            text = self._searched[value].join(re.split(rf"(?<![A-Za-z0-9]){re.escape(value)}(?![A-Za-z0-9])", text))
        return text

    def _replace_group(self, kind: str, match: re.Match[str]) -> str:
        return match[0].replace(match[1], self.replace(kind, match[1]))


def find_kind(key: str, above: str = "") -> str:
    """Return of what kind the values of a key of JSON are, "" where they stay; `above` is that of the key above."""
    low = key.lower()
    if _OWN.search(low):
        return ""
    bare = re.sub(r"[^a-z0-9]", "", low)
    found = "" if _HARMLESS.search(low) else next((kind for kind, pattern in _KEYS if pattern.search(bare)), "")
    return found or above


def collect_values(data: Any, remover: Remover, kind: str = "") -> None:
    """Note the texts of keys that name something to be removed: they are then removed from all other texts, too."""
    if isinstance(data, dict):
        for key, value in data.items():
            collect_values(value, remover, find_kind(key))
    elif isinstance(data, list):
        for item in data:
            collect_values(item, remover, kind)
    elif kind and isinstance(data, str) and not data.startswith("/redfish/"):
        remover.replace(kind, data)


def clean_data(data: Any, remover: Remover, kind: str = "") -> Any:
    """Return JSON with every text cleaned; numbers below such keys (latitude) are 0."""
    if isinstance(data, dict):
        return {
            remover.replace_known(key): clean_data(value, remover, find_kind(key, kind)) for key, value in data.items()
        }
    if isinstance(data, list):
        return [clean_data(item, remover, kind) for item in data]
    if isinstance(data, str):
        if kind and not data.startswith("/redfish/"):
            return remover.replace(kind, data, everywhere=False)
        return data if data.startswith("#") else remover.clean(data)  # a type of Redfish, whatever a host is called
    return 0 if kind and isinstance(data, int | float) and not isinstance(data, bool) else data


def remove_from_json(exchanges: Mapping[str, str], remover: Remover) -> dict[str, str]:
    """Return exchanges of paths and JSON without what identifies a device."""
    bodies = {request: _parse_json(answer) for request, answer in exchanges.items()}
    for body in bodies.values():
        collect_values(body, remover)
    cleaned: dict[str, str] = {}
    for request, body in bodies.items():
        answer = exchanges[request]
        if body is not None:
            answer = json.dumps(clean_data(body, remover), separators=(",", ":"), ensure_ascii=False)
        cleaned[remover.clean(request)] = answer if body is not None else remover.clean(answer)
    return cleaned


def _parse_json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def is_electrical(text: str) -> bool:
    """Return whether a text is a reading, a unit, or made of words of electricity: it identifies no owner."""
    if _READING.fullmatch(text):
        return True
    parts = _WORD.findall(text)
    return "".join(parts) == text and all(_WORDS.fullmatch(part.lower()) for part in parts if part.isalpha())


def remove_login(config: Mapping[str, Any], secrets: Iterable[str], remover: Remover) -> None:
    """Note the secrets, the user and the address of a configuration: devices repeat them in their answers."""
    for key in secrets:
        if isinstance(config.get(key), str) and config[key] != "public":
            remover.replace("password", config[key])
    for key, kind in (("user", "user"), ("topic", "host name")):
        if isinstance(config.get(key), str):
            remover.replace(kind, config[key])
    for key in ("address", "resource", "url"):
        if isinstance(config.get(key), str):
            place = re.split(r"::|,|/", re.sub(r"^(https?://|TCPIP\d*::)", "", config[key]))[0]
            host = place.strip("[]") if place.count(":") > 1 else place.partition(":")[0]
            remover.replace("address" if host[:1].isdigit() else "host name", host)
