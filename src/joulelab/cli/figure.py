"""Draw pictures for papers: `joulelab figure KIND [TARGET...] --to pdf`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from joulelab.cli.output import check_overwrite, print_json, write_file
from joulelab.cli.parameters import UsageError, json_option, runs_option, studies_option
from joulelab.core.errors import ConfigError, JoulelabError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.cli.report import Target
    from joulelab.report.pictures import Picture

FORMATS = ("pdf", "svg", "png")
ALL, LIST = "all", "list"
MAKER = b"joulelab"  # what our pictures have in them
WIDTHS = {"column": 3.4, "page": 7.0}  # inches, as most journals have them
NARROWEST, WIDEST = 2.0, 20.0
EXAMPLES = """\b
joulelab figure list last
joulelab figure power last --to pdf
joulelab figure overlay A B --to pdf --width column
joulelab figure edp gdansk --to svg --to png
joulelab figure all STUDY -o figures
"""


class Width(click.ParamType[float]):
    """Take a width: `column`, `page`, or inches."""

    name = "width"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return inches."""
        if value in WIDTHS:
            return WIDTHS[value]
        try:
            inches = float(str(value).removesuffix("in"))
        except ValueError:
            self.fail(f"{value!r} is no width; give column, page or inches", param, ctx)
        if not NARROWEST <= inches <= WIDEST:
            self.fail(f"{value} is not between {NARROWEST:g} and {WIDEST:g} inches", param, ctx)
        return inches


@click.command("figure", epilog=EXAMPLES)
@click.argument("kind", metavar="KIND|all|list")
@click.argument("targets", nargs=-1, metavar="[TARGET]...")
@click.option(
    "--to",
    "formats",
    type=click.Choice(FORMATS),
    multiple=True,
    help="Format, several times for several.  [default: pdf]",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE|DIR",
    help="Where to write it.  [default: NAME-KIND.pdf]",
)
@click.option(
    "--width", type=Width(), default="6.4", show_default=True, metavar="column|page|IN", help="Width of the picture."
)
@click.option("--force", is_flag=True, help="Write over a file that is no picture of joulelab's.")
@json_option
@runs_option
@studies_option
def command(
    kind: str,
    targets: tuple[str, ...],
    formats: tuple[str, ...],
    output: Path | None,
    width: float,
    force: bool,
    as_json: bool,
    runs: Path,
    studies: Path,
) -> None:
    """Draw pictures of a run, of several runs or of a study, for papers.

    TARGET is named as for `joulelab report`: a run (the last one unless named), several runs, or a study. KIND is
    one of what `joulelab figure list TARGET` names: power, energy, phases, ...; `all` draws every one.
    """
    from joulelab.cli.output import show_progress
    from joulelab.cli.report import find_target

    target = find_target(targets or ("last",), runs, studies)
    with show_progress(f"reading {target.name}"):
        found, said = pictures_of(target)
    if kind == LIST:
        _list(found, as_json=as_json)
        return
    chosen = found if kind == ALL else [picture for picture in found if picture.kind == kind]
    if not chosen:
        _refuse(kind, found, target)
    places = [_place(target, picture, output, formats, several=kind == ALL) for picture in chosen]
    for stem, of in places:
        for each in of:
            check_overwrite(_file(stem, each), MAKER, what="picture", force=force)
    written = _draw(chosen, places, width, said)
    if as_json:
        print_json({"files": [str(file) for file in written], "kind": target.kind})
        return
    for file in written:
        click.echo(str(file))


def _draw(
    chosen: Sequence[Picture], places: Sequence[tuple[Path, tuple[str, ...]]], width: float, said: str
) -> list[Path]:
    """Draw pictures, each to its place, and return the files. Raises ConfigError, MissingDependency."""
    from joulelab.cli.output import show_progress
    from joulelab.report.pictures import made

    written: list[Path] = []
    with show_progress("drawing", total=len(chosen)) as step:
        for picture, (stem, of) in zip(chosen, places, strict=True):
            for each, data in made(picture, of, width_in=width, said=said).items():
                written.append(_write(_file(stem, each), data))
            step()
    return written


def pictures_of(target: Target) -> tuple[list[Picture], str]:
    """Return the pictures that a target has, and what has to be said of all of them. Raises JoulelabError."""
    from joulelab.report import pictures
    from joulelab.report.page.make import looked_at, report_on

    if target.study is not None:
        from joulelab.report.study_summary import name_study_twins, summarise_study

        said = name_study_twins(target.study)
        _, summary = summarise_study(target.study, target.plan)
        return pictures.pictures_of_study(summary), f"{said[:1].upper()}{said[1:]}." if said else ""
    looked = [looked_at(path) for path in target.runs]
    results, profiles = [result for result, _ in looked], [profile for _, profile in looked]
    said = pictures.warn_of(results)
    if len(results) == 1:
        return pictures.pictures_of_run(results[0], profiles[0], target.runs[0]), said
    drawn = pictures.pictures_in(report_on(looked, target.runs).parts)
    return [*pictures.pictures_of_runs(results, profiles), *drawn], said


def _list(found: Sequence[Picture], *, as_json: bool) -> None:
    if as_json:
        print_json({"kinds": [{"kind": picture.kind, "title": picture.title} for picture in found]})
        return
    width = max((len(picture.kind) for picture in found), default=0)
    for picture in found:
        click.echo(f"{picture.kind:<{width}}  {picture.title}".rstrip())


def _refuse(kind: str, found: Sequence[Picture], target: Target) -> None:
    kinds = [picture.kind for picture in found]
    if not kinds:
        why = "no power was measured" if target.study is None else "none of its cells has run"
        raise JoulelabError(
            f"there is nothing to draw of {target.name}", why=why, next="joulelab meters", code="error.nothing-to-draw"
        )
    import difflib

    near = difflib.get_close_matches(kind, kinds, n=1)
    advice = f"did you mean {near[0]}?" if near else "joulelab figure list TARGET"
    raise ConfigError(
        f"there is no picture {kind!r}",
        where=target.name,
        why=f"it has {', '.join(kinds)}",
        next=advice,
        code="config.no-such-picture",
    )


def _file(stem: Path, kind: str) -> Path:
    return stem.with_name(f"{stem.name}.{kind}")


def _write(file: Path, data: bytes) -> Path:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            "the folder cannot be made", where=str(file.parent), why=error.strerror, code="config.folder"
        ) from None
    write_file(file, data, what="picture")
    return file


def _place(
    target: Target, picture: Picture, output: Path | None, formats: tuple[str, ...], *, several: bool
) -> tuple[Path, tuple[str, ...]]:
    """Return the file without its format, and the formats. Raises UsageError."""
    if str(output) == "-":
        raise UsageError("needs-file", "pictures are written to files; name one with -o")
    if output is None:
        return Path(f"{target.name}-{picture.kind}"), formats or FORMATS[:1]
    if several or output.is_dir():
        return output / f"{target.name}-{picture.kind}", formats or FORMATS[:1]
    ending = output.suffix.removeprefix(".")
    if ending and not ending[0].isdigit() and ending not in FORMATS:
        raise UsageError("format", f"there is no picture of format {ending!r}; name it .{', .'.join(FORMATS)}")
    if ending in FORMATS and set(formats) <= {ending}:
        return output.with_suffix(""), (ending,)
    if ending in FORMATS:
        raise UsageError("format", f"{output} is not {' and '.join(formats)}; name it without .{ending}")
    return output, formats or FORMATS[:1]
