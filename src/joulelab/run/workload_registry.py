"""Find workloads: reference workloads by their name, notebooks by their file; each becomes a command to measure.

A reference workload is a module of the package `joulelab.workloads`, or of an outside package by the entry-point group
of the same name. It has a line `SUMMARY`, a mapping `PARAMETERS` (name: (default, meaning)) and
`command(parameters) -> argv` (see `WorkloadModule`); it may have `STUDY`, `PRESETS`, `NOTES` and `PROGRAM`. Its name is
the module's, with `-` for `_`.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from joulelab.core.entry_points import list_entry_points
from joulelab.core.errors import ConfigError, JoulelabError, MissingDependency
from joulelab.core.text import suggest_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from importlib.metadata import EntryPoint
    from typing import NoReturn

GROUP = "joulelab.workloads"
WORKLOAD_KINDS = ("notebook", "reference")
PRESET = "preset"
# The extra of joulelab that brings a library.
EXTRAS = {
    "IPython": "jupyter",
    "accelerate": "huggingface",
    "ipykernel": "notebooks",
    "jupyter_client": "notebooks",
    "matplotlib": "figures",
    "nbclient": "notebooks",
    "nbformat": "notebooks",
    "PIL": "torch",
    "torch": "torch",
    "transformers": "huggingface",
}


class WorkloadModule(Protocol):
    """Describe the module (or entry point) of a reference workload.

    It may also have `STUDY` (a text: who trained it), `PRESETS` (name: changes to the defaults) and `NOTES`
    (lines: corrections to the paper, assumptions); see `get_study`, `get_presets` and `get_notes`. With
    `prepare(parameters) -> argv | None` it names a command that makes its data, to be run before it is measured.
    `PROGRAM` describes its stages for twins; see `joulelab.study.program`, which finds it.
    """

    SUMMARY: str
    PARAMETERS: Mapping[str, tuple[str, str]]

    def command(self, parameters: Mapping[str, str]) -> list[str]:
        """Return the words that start it; every parameter is there.

        Raises ConfigError for a wrong value, MissingDependency for a library or program that it needs.
        """
        ...


def get_study(module: WorkloadModule) -> str:
    """Return the study that a workload comes from, empty without one."""
    return str(getattr(module, "STUDY", ""))


def get_presets(module: WorkloadModule) -> Mapping[str, Mapping[str, str]]:
    """Return the presets of a workload: by name the changes to the defaults."""
    return cast("Mapping[str, Mapping[str, str]]", getattr(module, "PRESETS", {}))


def get_notes(module: WorkloadModule) -> tuple[str, ...]:
    """Return the notes about a workload, a line each."""
    return tuple(getattr(module, "NOTES", ()))


def list_workloads() -> list[str]:
    """Return the names of all reference workloads, our own first, without importing them."""
    inside = [
        module.name.replace("_", "-") for module in pkgutil.iter_modules(_list_folders()) if _is_reference(module.name)
    ]
    return inside + sorted({point.name for point in list_entry_points(GROUP)} - set(inside))


def find_workload(name: str) -> WorkloadModule:
    """Return the module of a reference workload. Raises ConfigError with the nearest name, or for a broken package."""
    module = name.replace("-", "_")
    if module.isidentifier() and _is_reference(module):
        return cast("WorkloadModule", importlib.import_module(f"{GROUP}.{module}"))
    for point in list_entry_points(GROUP):
        if point.name == name:
            return _load_entry_point(point)
    then = suggest_name(name, list_workloads())
    raise ConfigError(f"there is no reference workload {name!r}", next=then, code="config.unknown-workload")


def make_workload_command(kind: str, words: Sequence[str], folder: Path, out: Path) -> list[str]:
    """Return the command of a workload of a study. Raises ConfigError, MissingDependency.

    `words` are a notebook's file (relative to `folder`) or the name of a reference workload, then NAME=VALUE for each
    parameter. A copy of a notebook with its outputs is written to the file `out`.
    """
    if kind == "notebook":
        from joulelab.run import notebook

        request = notebook.read_notebook_words(words)
        request = replace(request, file=folder / request.file, out=request.out or out)
        return notebook.make_notebook_command(request)
    if kind == "reference":
        return make_reference_command(words)
    raise ConfigError(
        f"there is no kind of workload {kind!r}", next=suggest_name(kind, WORKLOAD_KINDS), code="config.unknown-kind"
    )


def check_workload(kind: str, words: Sequence[str], folder: Path) -> None:
    """Refuse a workload of a study that this Python cannot run. Raises ConfigError, MissingDependency."""
    if kind == "notebook":
        from joulelab.run import notebook

        request = notebook.read_notebook_words(words)
        notebook.check_notebook(replace(request, file=folder / request.file))
    else:
        make_workload_command(kind, words, folder, folder)


def make_reference_command(words: Sequence[str]) -> list[str]:
    """Return the command of a reference workload: its name, then NAME=VALUE, preset=NAME among them.

    Raises ConfigError, MissingDependency.
    """
    if not words:
        raise ConfigError(
            "no reference workload is named", next=suggest_name("", list_workloads()), code="config.no-workload"
        )
    module = find_workload(words[0])
    given = read_pairs(words[1:], where=words[0])
    return module.command(merge_parameters(words[0], module.PARAMETERS, given, get_presets(module)))


def prepare_workload(words: Sequence[str], environ: Mapping[str, str]) -> None:
    """Make the data of a reference workload before it is measured, if it names a command for that. Raises ConfigError.

    A command that fails is no error here: the workload meets the same problem, and reports it.
    """
    module = find_workload(words[0])
    prepare = getattr(module, "prepare", None)
    if prepare is not None:
        given = read_pairs(words[1:], where=words[0])
        argv = prepare(merge_parameters(words[0], module.PARAMETERS, given, get_presets(module)))
        if argv is not None:
            quiet = subprocess.DEVNULL
            subprocess.run(argv, env=dict(environ), stdin=quiet, stdout=quiet, stderr=quiet, check=False)


def read_pairs(words: Iterable[str], *, where: str) -> dict[str, str]:
    """Return NAME=VALUE words as a mapping. Raises ConfigError."""
    found: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name.isidentifier():
            then = "write it as NAME=VALUE"
            raise ConfigError(f"{word!r} is not a parameter", where=where, next=then, code="config.not-a-parameter")
        if name in found:
            raise ConfigError(
                f"the parameter {name} is given twice", where=where, next="give it once", code="config.parameter-twice"
            )
        found[name] = value
    return found


def merge_parameters(
    name: str,
    known: Mapping[str, tuple[str, str]],
    given: Mapping[str, str],
    presets: Mapping[str, Mapping[str, str]] | None = None,
) -> dict[str, str]:
    """Return a workload's parameters: the defaults, changed by the preset, then by the given values.

    The preset is given as `preset`, unless the workload has a parameter of that name. Raises ConfigError with the
    nearest name.
    """
    own = dict(given)
    chosen = _find_preset(name, presets or {}, own.pop(PRESET)) if PRESET in own and PRESET not in known else {}
    _check_names(name, known, own)
    return {key: default for key, (default, _) in known.items()} | dict(chosen) | own


def _find_preset(name: str, presets: Mapping[str, Mapping[str, str]], wanted: str) -> Mapping[str, str]:
    if wanted not in presets:
        then = suggest_name(wanted, list(presets))
        raise ConfigError(f"there is no preset {wanted!r}", where=name, next=then, code="config.unknown-preset")
    return presets[wanted]


def read_whole_number(parameters: Mapping[str, str], key: str, *, least: int, most: int) -> int:
    """Return a parameter that is a whole number within bounds. Raises ConfigError."""
    text = parameters[key].strip()
    if not re.fullmatch(r"\d{1,12}", text) or not least <= int(text) <= most:
        then = f"give a whole number from {least} to {most}"
        raise ConfigError(f"{key} is {parameters[key]!r}", next=then, code="config.wrong-value")
    return int(text)


def read_number(parameters: Mapping[str, str], key: str, *, least: float, most: float) -> float:
    """Return a parameter that is a number within bounds. Raises ConfigError."""
    try:
        value = float(parameters[key])
    except ValueError:
        value = float("nan")
    if not least <= value <= most:
        raise ConfigError(
            f"{key} is {parameters[key]!r}", next=f"give a number from {least:g} to {most:g}", code="config.wrong-value"
        )
    return value


def refuse_missing_library(what: str, needs: str) -> NoReturn:
    """Refuse to run without a library. Raises MissingDependency."""
    why, then = f"{needs} is not installed", _suggest_install(needs)
    raise MissingDependency(f"{what} cannot be run", why=why, next=then, code="missing-dependency.library")


def require_libraries(what: str, *libraries: str) -> None:
    """Refuse to run without these libraries; none of them is imported. Raises MissingDependency."""
    import importlib.util

    for library in libraries:
        if importlib.util.find_spec(library) is None:
            refuse_missing_library(what, library)


def _suggest_install(needs: str) -> str:
    return f"pip install 'joulelab[{EXTRAS[needs]}]'" if needs in EXTRAS else f"pip install {needs}"


def _check_names(name: str, known: Mapping[str, tuple[str, str]], given: Mapping[str, str]) -> None:
    for key in given:
        if key not in known:
            then = suggest_name(key, list(known))
            raise ConfigError(f"there is no parameter {key!r}", where=name, next=then, code="config.unknown-parameter")


def _is_reference(name: str) -> bool:
    """Return whether a module of `joulelab.workloads` is a reference workload, from its text."""
    text = ""
    for folder in map(Path, _list_folders()):
        for file in (folder / f"{name}.py", folder / name / "__init__.py"):
            if file.is_file():
                text = file.read_text()
    return "\nPARAMETERS" in text and "\ndef command(" in text


def _list_folders() -> list[str]:
    """Return the folders of joulelab's own workloads; the lab finds an app by its name and never imports it."""
    import joulelab

    return [str(Path(folder) / "workloads") for folder in joulelab.__path__]


def _load_entry_point(point: EntryPoint) -> WorkloadModule:
    try:
        module = point.load()
        whole_module = callable(module.command) and module.PARAMETERS is not None
    except JoulelabError:
        raise
    except Exception as error:
        raise _refuse_package(point.name, f"{type(error).__name__}: {error}") from error
    if not whole_module:
        raise _refuse_package(point.name, f"{point.value} has no command(parameters)")
    return cast("WorkloadModule", module)


def _refuse_package(name: str, why: str) -> ConfigError:
    what, then = "its package is broken", "update or remove that package"
    return ConfigError(what, where=f"workload {name}", why=why, next=then, code="config.broken-package")
