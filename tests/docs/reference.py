"""Write the pages of docs/reference from the code: commands, Python, configuration, metrics, messages.

`python -m tests.docs.refresh` writes them, tests/docs/test_reference.py compares them. Nothing heavy is imported:
signatures and docstrings of Python names are read from the source.
"""

from __future__ import annotations

import ast
import dataclasses
import re
import types
import typing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from click.testing import CliRunner
from tests.cli.test_help import EVERY

import joulelab
from joulelab import instruments
from joulelab.agent.metrics import table as list_agent_metrics
from joulelab.cli.group import SECTIONS, commands
from joulelab.core.toml_reading import describe_keys
from joulelab.report.citation import write_citation_file
from joulelab.run.config.meter_entries import ConfigFile, EntryKeys, find_meter_module
from joulelab.site.site_settings import SiteTable
from joulelab.study.study_file import StudyKeys

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "reference"
GENERATED = "<!-- made by `python -m tests.docs.refresh`; edit the code, not this page -->"
INTEGRATIONS = (
    ("joulelab.integrations.huggingface", "JoulelabCallback"),
    ("joulelab.integrations.lightning", "JoulelabCallback"),
    ("joulelab.integrations.keras", "JoulelabCallback"),
    ("joulelab.integrations.trackers", "logged"),
)
RESULT_CLASSES = ("Result", "ScopeResult", "ChannelEnergy", "GroupResult", "PhaseResult", "PowerStatistics", "Check")


def escape_cell(text: str) -> str:
    """Return text for a cell of a Markdown table: no new lines, no bars, no tags."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def shorten_docstring(text: str | None, verb: str) -> str:
    """Return the first paragraph of a docstring without its verb, which a table does not need."""
    first = (text or "").partition("\n\n")[0].removeprefix(f"{verb} ")
    return first[:1].upper() + first[1:]


def write_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [list(heads), ["---"] * len(heads), *([escape_cell(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def write_commands() -> str:
    """Return the help of every command, by the sections of `joulelab --help`."""
    parts = ["# Commands", GENERATED, "Every command has `--help` and `--json`. Errors are JSON with `--json`, too."]
    for title, section in SECTIONS.items():
        parts.append(f"## {title}")
        for name, purpose in section.items():
            parts += [f"### joulelab {name}", purpose]
            for path in (path for path in EVERY if f"{path} ".startswith(f"joulelab {name} ")):
                parts += [f"#### {path}"] if path.count(" ") > 1 else []
                parts.append(f"```text\n{EVERY[path].get_help().rstrip()}\n```")
    return "\n\n".join(parts) + "\n"


def find_source(module: str) -> Path:
    """Return the file of a module of ours."""
    path = ROOT / "src" / Path(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def find_definition(module: str, name: str) -> ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef:
    """Return the last definition of a name in a module: of overloads, the one with the body."""
    body = ast.parse(find_source(module).read_text()).body
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    return next(node for node in reversed(body) if isinstance(node, kinds) and node.name == name)


def write_signature(node: ast.FunctionDef | ast.AsyncFunctionDef, name: str, *, is_method: bool = False) -> str:
    """Return `name(arguments) -> type`, a line for each argument where it is long."""
    arguments = node.args
    if is_method:
        arguments.args = arguments.args[1:]
    inside = ast.unparse(arguments)
    back = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    line = f"{name}({inside}){back}"
    if len(line) <= 80:
        return line
    parts = re.split(r", (?![^\[(]*[\])])", inside)
    return f"{name}(\n    " + ",\n    ".join(parts) + f",\n){back}"


def is_property(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return whether a method is a property."""
    return any(isinstance(one, ast.Name) and one.id == "property" for one in node.decorator_list)


def describe_name(module: str, name: str, shown: str) -> list[str]:
    """Return the paragraphs of a public function or class: signature, docstring, public members."""
    node = find_definition(module, name)
    if not isinstance(node, ast.ClassDef):
        return [f"### `{shown}`", f"```python\n{write_signature(node, shown)}\n```", ast.get_docstring(node) or ""]
    functions = [one for one in node.body if isinstance(one, ast.FunctionDef)]
    start = next((one for one in functions if one.name == "__init__"), None)
    parts = [f"### `{shown}`"]
    if start is not None and shown != "joulelab.Measurement":  # that one is made by measure()
        parts.append(f"```python\n{write_signature(start, shown.rpartition('.')[2], is_method=True)}\n```")
    parts.append(ast.get_docstring(node) or "")
    public = [one for one in functions if not one.name.startswith("_") and not one.name.startswith("on_")]
    rows = []
    for one in public if "Callback" not in shown else []:
        written = one.name if is_property(one) else write_signature(one, one.name, is_method=True)
        written = " ".join(written.split()).replace(" | ", " or ")
        rows.append((f"`{written}`", shorten_docstring(ast.get_docstring(one), "Return")))
    return [*parts, write_table(("member", "meaning"), rows)] if rows else parts


def write_python() -> str:
    """Return the public names of `joulelab`, of its integrations, and `Quantity`."""
    parts = ["# Python", GENERATED]
    parts.append("`import joulelab` loads only the standard library. How to use these names: ")
    parts[-1] += "[phases, steps, work and facts](../how-to/marks.md), [a training loop](../how-to/track.md)."
    parts.append("## joulelab")
    places = vars(joulelab)["_PLACES"]
    for name in joulelab.__all__:
        if name != "__version__":
            parts += describe_name(places[name], name, f"joulelab.{name}")
    parts += ["## Quantity", "Every figure with an uncertainty is a `Quantity`: `m.energy`, `m.scopes[...]`."]
    parts += describe_name("joulelab.core.quantity", "Quantity", "Quantity")
    parts += ["## Training frameworks and trackers", "[How to use them](../how-to/frameworks.md)."]
    for module, name in INTEGRATIONS:
        parts += describe_name(module, name, f"{module}.{name}")
    return "\n\n".join(part for part in parts if part) + "\n"


def word_type(hint: Any) -> str:
    """Return the type of a value in words."""
    words = {bool: "true or false", int: "whole number", float: "number", str: "text", Any: "any"}
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return ", ".join(map(str, args))
    if origin in (list, tuple):
        return "list of tables" if args[0] in (dict, Any) or typing.get_origin(args[0]) is dict else "list"
    if origin is types.UnionType:
        return " or ".join(map(word_type, args))
    return words.get(hint, "table")


def write_default(value: Any) -> str:
    """Return a default as it would be written in the file, empty without one."""
    if value is None or value is dataclasses.MISSING or value in ((), ""):
        return ""
    text = str(value).lower() if isinstance(value, bool) else str(list(value) if isinstance(value, tuple) else value)
    return f"`{text}`"


def describe_table(shape: type, place: str) -> list[str]:
    """Return the keys of a table, then those of the tables inside it."""
    fields = {one.name: one for one in dataclasses.fields(shape)}
    rows, inner = [], []
    for name, key in describe_keys(shape).items():
        hint, args = key.hint, typing.get_args(key.hint)
        below = f"{place}.{name}" if place else name
        if dataclasses.is_dataclass(hint):
            inner.append((hint, below))
        elif args and dataclasses.is_dataclass(args[-1]):
            inner.append((args[-1], f"{below}.NAME"))
        else:
            rows.append((f"`{name}`", word_type(hint), write_default(fields[name].default), key.doc))
    parts = [f"### `[{place}]`" if place else "### Top of the file", shorten_docstring(shape.__doc__, "Hold")]
    parts += [write_table(("key", "value", "default", "meaning"), rows)] if rows else []
    return [*parts, *(part for hint, below in inner for part in describe_table(hint, below))]


def write_configuration() -> str:
    """Return the keys of `joulelab.toml`, of every kind of meter, and of study files."""
    parts = ["# Configuration", GENERATED]
    parts.append("Which files are read, and how to write an entry: [configure meters](../how-to/configure-meters.md).")
    parts += ["## joulelab.toml", *describe_table(ConfigFile, ""), *describe_table(SiteTable, "site")]
    parts += ["## Meters", "These keys are valid in every entry `[meters.NAME]`:"]
    parts += describe_table(EntryKeys, "meters.NAME")[2:]
    for name in [*instruments.list_meters(), *instruments.list_archives()]:
        module = find_meter_module(name)
        known, secrets = getattr(module, "CONFIG", {}), getattr(module, "SECRETS", ())
        parts += [f'### `meter = "{name}"`', f"Reads {module.SUMMARY}."]
        rows = [(f"`{key}`", f"{doc}{' (a secret)' if key in secrets else ''}") for key, doc in known.items()]
        parts.append(write_table(("key", "meaning"), rows) if rows else "It has no keys of its own.")
    parts += ["## Study files", "[How to write one](../how-to/study.md).", *describe_table(StudyKeys, "")]
    return "\n\n".join(part for part in parts if part) + "\n"


def write_metrics() -> str:
    """Return the metrics of the agent, and the fields of a result."""
    parts = ["# Metrics", GENERATED]
    parts.append("Formulas of the metrics of studies (gain, EDP, EDS): [metrics and goals](../explanation/metrics.md).")
    parts += ["## Prometheus", "`joulelab agent` exports these ([how](../how-to/agent.md)):"]
    rows = [(f"`{n}`", kind, f"`{labels}`" if labels else "", told) for n, kind, labels, told in list_agent_metrics()]
    parts.append(write_table(("metric", "kind", "labels", "meaning"), rows))
    parts += ["## Fields of a result", "`joulelab show RUN --json` prints them, `m.result` holds them in Python."]
    parts.append("A `Quantity` is printed as its value, its expanded uncertainty (k = 2) and its budget.")
    for name in RESULT_CLASSES:
        node = find_definition("joulelab.analysis.result", name)
        fields = [one for one in node.body if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)]
        parts += [f"### {name}", shorten_docstring(ast.get_docstring(node), "Hold")]
        rows = [(f"`{ast.unparse(one.target)}`", ast.unparse(one.annotation).replace(" | ", " or ")) for one in fields]
        parts.append(write_table(("field", "type"), rows))
    return "\n\n".join(part for part in parts if part) + "\n"


def write_messages() -> str:
    """Return the catalogue of messages."""
    return CliRunner().invoke(commands, ["messages", "--markdown"], catch_exceptions=False).stdout


PAGES: dict[Path, Callable[[], str]] = {
    FOLDER / "commands.md": write_commands,
    FOLDER / "python.md": write_python,
    FOLDER / "configuration.md": write_configuration,
    FOLDER / "metrics.md": write_metrics,
    FOLDER / "messages.md": write_messages,
    ROOT / "CITATION.cff": write_citation_file,
}
