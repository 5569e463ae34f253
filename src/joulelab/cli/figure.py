"""Draw figures for papers: `joulelab figure KIND [TARGET...] --to pdf`."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from joulelab.cli.output import check_overwrite, print_json, print_notice, show_progress, write_file
from joulelab.cli.parameters import UsageError, format_examples, json_option, runs_option, studies_option
from joulelab.core.errors import ConfigError, JoulelabError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

    from joulelab.cli.report import ReportTarget
    from joulelab.report.charts.print_pictures import Picture

FORMATS = ("pdf", "svg", "png")
ALL_KINDS, LIST_KINDS = "all", "list"
OWN_MARK = b"joulelab"  # every figure of joulelab contains it
WIDTHS = {"column": 3.4, "page": 7.0}  # inches, as most journals have them
NARROWEST, WIDEST = 2.0, 20.0
EXAMPLES = format_examples(
    "joulelab figure list last",
    "joulelab figure power last --to pdf",
    "joulelab figure overlay A B --to pdf --width column",
    "joulelab figure all STUDY -o figures",
)


class FigureWidth(click.ParamType[float]):
    """Take a width: `column`, `page`, or inches."""

    name = "width"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return inches."""
        if value in WIDTHS:
            return WIDTHS[value]
        try:
            inches = float(str(value).removesuffix("in"))
        except ValueError:
            self.fail(f"{value!r} is not a width; give column, page or a number of inches", param, ctx)
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
    help="Format of the file; repeatable.  [default: pdf]",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE|DIR",
    help="File or folder to write.  [default: NAME-KIND.pdf]",
)
@click.option(
    "--width",
    type=FigureWidth(),
    default="6.4",
    show_default=True,
    metavar="column|page|IN",
    help="Width of the figure, in inches or by name.",
)
@click.option(
    "--caption/--no-caption",
    "has_caption",
    default=True,
    show_default=True,
    help="Draw title and caption; without them, the caption is printed for your own text.",
)
@click.option("--force", is_flag=True, help="Overwrite a file that is not a figure by joulelab.")
@json_option
@runs_option
@studies_option
def command(
    kind: str,
    targets: tuple[str, ...],
    formats: tuple[str, ...],
    output: Path | None,
    width: float,
    has_caption: bool,
    force: bool,
    as_json: bool,
    runs: Path,
    studies: Path,
) -> None:
    """Draw figures of a run, several runs or a study, for papers.

    TARGET is a run (an id, a name or a path; by default the last run), several runs, or a study. KIND is one of those
    that `joulelab figure list TARGET` prints, such as power, energy or phases; `all` draws them all.
    """
    from joulelab.cli.report import find_target

    target = find_target(targets or ("last",), runs, studies)
    with show_progress(f"reading {target.name}"):
        found, remark = list_figures(target)
    if kind == LIST_KINDS:
        _print_kinds(found, as_json=as_json)
        return
    chosen = found if kind == ALL_KINDS else [picture for picture in found if picture.kind == kind]
    if not chosen:
        _refuse_kind(kind, found, target)
    places = [_choose_place(target, picture, output, formats, several=kind == ALL_KINDS) for picture in chosen]
    for stem, of in places:
        for each in of:
            check_overwrite(_name_file(stem, each), OWN_MARK, what="figure", force=force)
    written = _draw_figures(chosen, places, width, remark, has_caption=has_caption)
    if as_json:
        captions = {str(file): caption for file, caption in written.items()}
        print_json({"files": list(captions), "captions": captions, "kind": target.kind})
        return
    for file in written:
        click.echo(str(file))
    for picture, (stem, of) in zip(chosen, places, strict=True):
        if not has_caption:
            print_notice(f"caption of {picture.kind}: {picture.title}. {written[_name_file(stem, of[0])]}")


def _draw_figures(
    chosen: Sequence[Picture],
    places: Sequence[tuple[Path, tuple[str, ...]]],
    width: float,
    remark: str,
    *,
    has_caption: bool,
) -> dict[Path, str]:
    """Draw figures and return the captions of the written files. Raises ConfigError, MissingDependency."""
    from joulelab.report.charts.print_painter import render_chart

    written: dict[Path, str] = {}
    with show_progress("drawing", total=len(chosen)) as step:
        for picture, (stem, of) in zip(chosen, places, strict=True):
            files, caption = render_chart(picture.chart, of, width_in=width, remark=remark, has_caption=has_caption)
            for each, data in files.items():
                written[_write_figure(_name_file(stem, each), data)] = caption
            step()
    return written


def list_figures(target: ReportTarget) -> tuple[list[Picture], str]:
    """Return the figures of a target, and a remark for all of them (simulated). Raises JoulelabError."""
    from joulelab.report.charts import print_pictures
    from joulelab.report.page.run_page import load_result_and_profile

    if target.study is not None:
        from joulelab.report.study_summary import name_study_twins, summarise_study

        twins = name_study_twins(target.study)
        _, summary = summarise_study(target.study, target.plan)
        return print_pictures.list_study_pictures(summary), f"{twins[:1].upper()}{twins[1:]}." if twins else ""
    results, profiles = zip(*(load_result_and_profile(path) for path in target.runs), strict=True)
    remark = print_pictures.word_remark(results)
    if len(results) == 1:
        return print_pictures.list_run_pictures(results[0], profiles[0]), remark
    return print_pictures.list_comparison_pictures(results, profiles), remark


def _print_kinds(found: Sequence[Picture], *, as_json: bool) -> None:
    if as_json:
        print_json({"kinds": [{"kind": picture.kind, "title": picture.title} for picture in found]})
        return
    width = max((len(picture.kind) for picture in found), default=0)
    for picture in found:
        click.echo(f"{picture.kind:<{width}}  {picture.title}".rstrip())


def _refuse_kind(kind: str, found: Sequence[Picture], target: ReportTarget) -> NoReturn:
    kinds = [picture.kind for picture in found]
    if not kinds:
        raise JoulelabError(
            f"{target.name} has no figures",
            why="no power was measured" if target.study is None else "none of its cells has run",
            next="joulelab meters",
            code="error.nothing-to-draw",
        )
    near = difflib.get_close_matches(kind, kinds, n=1)
    raise ConfigError(
        f"there is no figure {kind!r}",
        where=target.name,
        why=f"there are {', '.join(kinds)}",
        next=f"did you mean {near[0]}?" if near else "joulelab figure list TARGET",
        code="config.no-such-picture",
    )


def _name_file(stem: Path, kind: str) -> Path:
    return stem.with_name(f"{stem.name}.{kind}")


def _write_figure(file: Path, data: bytes) -> Path:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            "the folder cannot be created", where=str(file.parent), why=error.strerror, code="config.folder"
        ) from None
    write_file(file, data, what="figure")
    return file


def _choose_place(
    target: ReportTarget, picture: Picture, output: Path | None, formats: tuple[str, ...], *, several: bool
) -> tuple[Path, tuple[str, ...]]:
    """Return the file without its ending, and the formats. Raises UsageError."""
    if str(output) == "-":
        raise UsageError("needs-file", "figures are written to files; name one with -o")
    if output is None:
        return Path(f"{target.name}-{picture.kind}"), formats or FORMATS[:1]
    if several or output.is_dir():
        return output / f"{target.name}-{picture.kind}", formats or FORMATS[:1]
    ending = output.suffix.removeprefix(".")
    if ending and not ending[0].isdigit() and ending not in FORMATS:
        raise UsageError("format", f"unknown format {ending!r}; end the name with .{', .'.join(FORMATS)}")
    if ending in FORMATS and set(formats) <= {ending}:
        return output.with_suffix(""), (ending,)
    if ending in FORMATS:
        raise UsageError("format", f"{output} does not fit --to {' '.join(formats)}; leave out .{ending}")
    return output, formats or FORMATS[:1]
