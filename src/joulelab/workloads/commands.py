"""List, describe and measure workloads, prepare their data: `joulelab workload ls | info | run | split`."""

from __future__ import annotations

import os
import shlex
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from joulelab.cli.group import RUNS_WORKLOAD
from joulelab.cli.output import print_json, print_notice
from joulelab.cli.parameters import KeyValue, add_run_options, format_examples, json_option
from joulelab.cli.run import run_and_exit

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import NoReturn

    from joulelab.core.errors import JoulelabError
    from joulelab.report.tables import Table
    from joulelab.run.workload_registry import WorkloadModule

Pairs = tuple[tuple[str, str], ...]
INSTALLED = "installed"


@click.group("workload", epilog=format_examples("joulelab workload ls", "joulelab workload run burn --preset smoke"))
def command() -> None:
    """Run, list and describe reference workloads: the models of the studies."""


def settings_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add NAME, --preset and --set."""
    named = click.argument("workload", metavar="NAME")
    preset = click.option("--preset", metavar="P", help="Use the values of a preset: paper, smoke, ...")
    given = click.option("--set", "given", multiple=True, type=KeyValue(), help="Set a parameter; repeatable.")
    return named(preset(given(function)))


@command.command("ls", epilog=format_examples("joulelab workload ls"))
@json_option
def ls_command(as_json: bool) -> None:
    """List the workloads, and whether their libraries are installed."""
    from joulelab.run import workload_registry

    rows = [_row(name) for name in workload_registry.list_workloads()]
    if as_json:
        print_json(rows)
    else:
        _print_rows(rows)


@command.command("info", epilog=format_examples("joulelab workload info burn --preset smoke"))
@settings_options
@json_option
def info_command(workload: str, preset: str | None, given: Pairs, as_json: bool) -> None:
    """Describe a workload: phases, parameters, presets, notes, command."""
    from joulelab.core.errors import MissingDependency
    from joulelab.run import workload_registry
    from joulelab.study.program import list_marked_phases

    module = workload_registry.find_workload(workload)
    values = _values(workload, module, preset, given)
    told = _described(workload, module) | {"phases": list_marked_phases(workload, values)}
    try:
        told |= {"settings": values, "command": module.command(values)}
    except MissingDependency as error:
        told |= {"settings": values, "command": None, "needs": _needs(error)}
    if as_json:
        print_json(told)
    else:
        _print_info(told)


@command.command("run", epilog=format_examples("joulelab workload run lstm-load --preset smoke --set epochs=2"))
@settings_options
@click.option("--print", "only_print", is_flag=True, help="Only print the command.")
@add_run_options
@click.pass_context
def run_command(
    ctx: click.Context, /, workload: str, preset: str | None, given: Pairs, only_print: bool, **options: Any
) -> None:
    """Measure a workload; the options are those of `joulelab run`.

    Within another `joulelab run` it is a part of that run, and not recorded twice.
    """
    from joulelab.run import workload_registry

    ctx.meta[RUNS_WORKLOAD] = True
    module = workload_registry.find_workload(workload)
    values = _values(workload, module, preset, given)
    words = module.command(values)
    if only_print:
        print_json({"command": words}) if options["as_json"] else click.echo(shlex.join(words))
        return
    if _is_recorded():
        _become(words)
    workload_registry.prepare_workload([workload, *(f"{key}={value}" for key, value in values.items())], os.environ)
    labels = {"workload": workload} | ({"preset": preset} if preset else {}) | dict(options["labels"])
    own = {"name": options["name"] or workload, "labels": tuple(labels.items())}
    run_and_exit(tuple(words), **{**options, **own})


@command.command("split", epilog=format_examples("joulelab workload split load ~/western-europe ~/data/ai-hero-energy"))
@click.argument("kind", metavar="load|xrays", type=click.Choice(["load", "xrays"]))
@click.argument("folder", metavar="FROM", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.argument("to", metavar="TO", type=click.Path(path_type=Path))
@click.option("--without", multiple=True, metavar="COUNTRY", help="Leave a country out, too; repeatable.")
@click.option("--luxembourg", is_flag=True, help="Keep Luxembourg (lu), which the study left out.")
@click.option("--seed", default=0, show_default=True, help="Seed of the random choice of X-rays for validation.")
@json_option
def split_command(
    kind: str, folder: Path, to: Path, without: tuple[str, ...], luxembourg: bool, seed: int, as_json: bool
) -> None:
    """Split the data of Kaggle into the tables of the HoreKa study.

    FROM is the Western Europe Power Consumption Dataset (de.csv, fr.csv, ...) or COVIDx CXR-2 (train.txt, train, ...).
    TO is a new folder for train.csv, valid.csv and test.csv. X-rays for validation are drawn by image, not by patient.
    """
    from joulelab.cli.output import print_blocks
    from joulelab.core.errors import StoreError
    from joulelab.report.tables import make_table
    from joulelab.report.terminal import BLANK_LINE, TextLine
    from joulelab.workloads.data import load, xray

    try:
        to.mkdir(parents=True)
    except OSError as error:
        raise StoreError("cannot make the folder", where=str(to), why=error.strerror, next="name a new one") from error
    without += () if luxembourg else ("lu",)
    try:
        rows = load.split_countries(folder, to, without) if kind == "load" else xray.split_covidx(folder, to, seed)
    except BaseException:  # half of it would be taken for the whole
        shutil.rmtree(to)
        raise
    if as_json:
        print_json(rows)
        return
    workload = {"load": "lstm-load", "xrays": "vgg19bn-xray"}[kind]
    advice = f"-> joulelab workload run {workload} --set data={shlex.quote(str(to))}"
    table = make_table(tuple(rows[0]), [tuple(row.values()) for row in rows], left=(0, len(rows[0]) - 1))
    print_blocks([table, BLANK_LINE, TextLine(advice, is_wrapped=False)])


def _values(name: str, module: WorkloadModule, preset: str | None, given: Pairs) -> dict[str, str]:
    """Return every parameter. Raises ConfigError with the nearest name."""
    from joulelab.run import workload_registry

    asked = workload_registry.read_pairs([f"{key}={value}" for key, value in given], where=name)
    if preset is not None:
        asked = {workload_registry.PRESET: preset} | asked
    return workload_registry.merge_parameters(name, module.PARAMETERS, asked, workload_registry.get_presets(module))


def _is_recorded() -> bool:
    """Return whether we are part of a run: marks of the workload then go there."""
    from joulelab.run.run_options import find_marks_folder

    folder = find_marks_folder(os.environ)
    return folder is not None and folder.is_dir()


def _become(words: list[str]) -> NoReturn:
    """Run the workload as a part of the run that goes on."""
    from joulelab.core.errors import WorkloadError
    from joulelab.run.workload_process import become_workload, exit_like_workload, strip_own_locale

    try:
        become_workload(words, strip_own_locale(os.environ))
    except WorkloadError as error:
        print_notice(str(error))
        exit_like_workload(error.exit_code)


def _row(name: str) -> dict[str, Any]:
    """Return what `ls` says of a workload; one that is broken does not hide the others."""
    from joulelab.core.errors import ConfigError, MissingDependency
    from joulelab.run import workload_registry

    row: dict[str, Any] = {"name": name, "study": "", "summary": "", "presets": [], "needs": None}
    try:
        module = workload_registry.find_workload(name)
        told = {
            "study": workload_registry.get_study(module),
            "summary": module.SUMMARY,
            "presets": list(workload_registry.get_presets(module)),
        }
        row |= told
        module.command(_values(name, module, None, ()))
    except (ConfigError, MissingDependency) as error:
        row["needs"] = _needs(error)
    return row


def _needs(error: JoulelabError) -> dict[str, str | None]:
    return {"why": error.why or error.what, "next": error.next}


def _described(name: str, module: WorkloadModule) -> dict[str, Any]:
    from joulelab.run import workload_registry

    parameters = {key: {"default": default, "meaning": text} for key, (default, text) in module.PARAMETERS.items()}
    return {
        "name": name,
        "summary": module.SUMMARY,
        "study": workload_registry.get_study(module),
        "presets": {preset: dict(values) for preset, values in workload_registry.get_presets(module).items()},
        "parameters": parameters,
        "notes": list(workload_registry.get_notes(module)),
        "needs": None,
    }


def _print_rows(rows: list[dict[str, Any]]) -> None:
    from joulelab.cli.output import print_blocks
    from joulelab.report.messages import add_next_step
    from joulelab.report.tables import make_table
    from joulelab.report.terminal import BLANK_LINE, TextBlock, TextLine, list_facts

    cells = [(r["name"], r["study"], INSTALLED if r["needs"] is None else "see below", r["summary"]) for r in rows]
    blocks: list[TextBlock] = [make_table(("name", "study", "needs", "summary"), cells, left=range(4))]
    lacking = [(row["name"], add_next_step(row["needs"]["why"], row["needs"]["next"])) for row in rows if row["needs"]]
    if lacking:
        blocks += [BLANK_LINE, list_facts(lacking, label_width=max(len(name) for name, _ in lacking))]
    next_commands = ("joulelab workload info NAME", "joulelab workload run NAME --preset smoke")
    print_blocks([*blocks, BLANK_LINE, *(TextLine(f"-> {command}", is_wrapped=False) for command in next_commands)])


def _print_info(told: Mapping[str, Any]) -> None:
    from joulelab.cli.output import print_blocks
    from joulelab.report.messages import add_next_step
    from joulelab.report.terminal import BLANK_LINE, TextBlock, list_facts

    needs = told["needs"]
    head = [(told["name"], told["summary"]), ("study", told["study"])]
    head += [("phases", ", ".join(told["phases"]))]
    head += [("needs", INSTALLED if needs is None else add_next_step(needs["why"], needs["next"]))]
    facts = [(key, text) for key, text in head if text]
    blocks: list[TextBlock] = [list_facts(facts, label_width=max(6, len(told["name"]))), BLANK_LINE, _parameters(told)]
    if told["presets"]:
        rows = [(name, _preset(told, values)) for name, values in told["presets"].items()]
        width = max(6, *map(len, told["presets"]))
        blocks += [BLANK_LINE, list_facts([("preset", "what differs from the defaults"), *rows], label_width=width)]
    if told["notes"]:
        blocks += [BLANK_LINE, list_facts([("-", note) for note in told["notes"]], label_width=1)]
    if told["command"]:
        blocks += [BLANK_LINE, list_facts([("command", f"-> {shlex.join(told['command'])}")])]
    print_blocks(blocks)


def _preset(told: Mapping[str, Any], values: Mapping[str, str]) -> str:
    return " ".join(f"{key}={shlex.quote(values[key])}" for key in told["parameters"] if key in values) or "nothing"


def _parameters(told: Mapping[str, Any]) -> Table:
    """Return the table of parameters; those of the command that is shown where they are not the defaults."""
    from joulelab.report.tables import make_table

    settings = told["settings"]
    changed = any(settings[key] != parameter["default"] for key, parameter in told["parameters"].items())
    rows = []
    for name, parameter in told["parameters"].items():
        here = settings[name] if settings[name] != parameter["default"] else ""
        rows.append((name, parameter["default"], *([here] if changed else []), parameter["meaning"]))
    heads = ("parameter", "default", *(["here"] if changed else []), "meaning")
    return make_table(heads, rows, left=range(len(heads)))
