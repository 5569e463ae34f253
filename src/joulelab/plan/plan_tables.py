"""Read tables of plan files value by value; describe a kind of node.

To be replaced by dataclasses that core/toml_reading.py reads.
"""

# mypy: disable-error-code="no-any-return"
from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from joulelab.core.text import suggest_name
from joulelab.core.toml_reading import (  # fmt: skip
    TEXTS,
    TIME,
    Mistakes,
    TableKey,
    format_table_name,
    is_number,
    read_texts,
    read_time,
    read_value,
)
from joulelab.run.config.config_files import read_toml

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joulelab.core.toml_reading import Place

__all__ = ["Mistakes", "NodeKind", "TomlTable", "is_number", "read_nodes", "read_toml"]


class TomlTable:
    """Hold a table of the file and its place, and give its values by their kinds; what is wrong is noted.

    A value that is wrong is given as if it were not there.
    """

    def __init__(self, values: Mapping[str, Any], at: Place, problems: Mistakes) -> None:
        self.values = values
        self.at = at
        self.problems = problems

    def __contains__(self, key: str) -> bool:
        return key in self.values

    @property
    def shown(self) -> str:
        """Return the table as it is named in the file."""
        return format_table_name(self.at)

    def wrong(self, key: str, what: str, *, why: str | None = None, next: str | None = None) -> None:
        """Note what is wrong with a key, or with the whole table where it is empty."""
        self.problems.add((*self.at, key) if key else self.at, what, why=why, next=next)

    def allow(self, valid: Sequence[str]) -> None:
        """Refuse all other keys."""
        for key in self.values:
            if key not in valid:
                self.problems.refuse_key(self.at, key, valid)

    def _read(self, key: str, hint: Any = None, **rule: Any) -> Any:
        if key not in self.values:
            return None
        return read_value(TableKey(hint, doc=key, **rule), self.values[key], self.problems, (*self.at, key))

    def text(self, key: str) -> str | None:
        """Return a text that is not empty."""
        return self._read(key, str)

    def one_of(self, key: str, valid: Sequence[str], what: str = "") -> str | None:
        """Return a text that is one of these names, of what is called `what`."""
        value = self.text(key)
        if value is None or value in valid:
            return value
        self.wrong(
            key, f"there is no {what} {value!r}" if what else f"{key} is {value!r}", next=suggest_name(value, valid)
        )
        return None

    def texts(self, key: str) -> tuple[str, ...] | None:
        """Return a text or a list of texts as several; none of them is empty."""
        return self._read(key, read=read_texts, advice=TEXTS)

    def flag(self, key: str) -> bool | None:
        """Return true or false."""
        return self._read(key, bool)

    def whole(self, key: str, least: int | None = None) -> int | None:
        """Return a whole number of at least so much."""
        return self._read(key, int, least=least)

    def positive(self, key: str) -> float | None:
        """Return a number above 0."""
        return self._read(key, float, above=0)

    def time(self, key: str, least: float = 0.0) -> float | None:
        """Return a time in s, as on the command line."""
        return self._read(key, read=partial(read_time, least=least), advice=TIME)

    def table(self, key: str) -> TomlTable:
        """Return a table inside this one, empty where there is none."""
        return TomlTable(self._read(key, dict[str, Any]) or {}, (*self.at, key), self.problems)

    def tables(self, key: str) -> list[TomlTable]:
        """Return the tables of a list: `[[skip]]`."""
        found = self._read(key, list[dict[str, Any]]) or []
        return [TomlTable(item, (*self.at, key, n), self.problems) for n, item in enumerate(found)]


NODE_KEYS = (
    "rated_w", "gpus", "gpu_w", "host_w", "efficiency", "idle_w", "height_u",
    "price", "lifetime_years", "use", "embodied_kg", "twin", "runs",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class NodeKind:
    """Hold a kind of node. None where nobody said it; powers are in W.

    `rated_w` is the nameplate at the wall, `gpu_w` the highest cap of a GPU, `host_w` the most that everything but the
    GPUs draws behind the supplies, `efficiency` that of the supplies at load. `use` is the share of its life that it
    works, `embodied_kg` what making it emitted (CO2e). `runs` measured it, `twin` models it.
    """

    name: str
    rated_w: float | None = None
    gpus: int | None = None
    gpu_w: float | None = None
    host_w: float | None = None
    efficiency: float | None = None
    idle_w: float | None = None
    height_u: float | None = None
    price: float | None = None
    lifetime_years: float | None = None
    use: float | None = None
    embodied_kg: float | None = None
    twin: str = ""
    runs: tuple[str, ...] = ()


def read_nodes(table: TomlTable) -> dict[str, NodeKind]:
    """Read [nodes.NAME] tables; what is wrong is noted with the table's problems."""
    found: dict[str, NodeKind] = {}
    for name in table.values:
        one = table.table(name)
        one.allow(NODE_KEYS)
        shares = {key: one.positive(key) for key in ("efficiency", "use")}
        for key, share in shares.items():
            if share is not None and share > 1:
                one.wrong(key, f"{key} is {share:g}", next="give a share of at most 1: 0.94")
        plain = ("rated_w", "gpu_w", "host_w", "idle_w", "height_u", "price", "lifetime_years", "embodied_kg")
        found[name] = NodeKind(
            name,
            gpus=one.whole("gpus", 1),
            twin=one.text("twin") or "",
            runs=one.texts("runs") or (),
            **{key: one.positive(key) for key in plain},
            **shares,
        )
    return found
