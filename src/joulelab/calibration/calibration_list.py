"""List and share calibrations: `joulelab calibrations`."""

from __future__ import annotations

import datetime as dt
import os
from pathlib import Path

import click

from joulelab.cli.output import print_blocks, print_json, print_notice
from joulelab.cli.parameters import UsageError, format_examples, json_option
from joulelab.core.errors import ConfigError, JoulelabError


@click.command(
    "calibrations",
    epilog=format_examples(
        "joulelab calibrations",
        "joulelab calibrations --add node07@20261118-101500-a1b2c3@gpu0-gpu7.json",
        "joulelab calibrations --remove 20261118-101500-a1b2c3",
    ),
)
@click.option("--add", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE",
              help="Use a calibration file of another machine here.")  # fmt: skip
@click.option("--remove", metavar="ID", help="Do not use a calibration (or ID@DEVICES) any more; its file is renamed.")
@json_option
def command(add: Path | None, remove: str | None, as_json: bool) -> None:
    """List, add and remove the calibrations of this machine's meters.

    Later runs use the newest calibration of each device and store it. Files can be copied to other machines, to which a
    device was moved, or kept with a paper.
    """
    from joulelab.calibration.calibration_tables import lay_out_calibrations
    from joulelab.run.run_options import get_host_name
    from joulelab.store.calibration_files import is_named, list_files, read_calibration, write_calibration

    host = get_host_name(os.environ)
    if add is not None and remove is not None:
        raise UsageError("add-remove", "give either --add or --remove")
    if add is not None:
        path = write_calibration(os.environ, host, read_calibration(add))
        print_notice(f"added: {path}")
    files = list_files(os.environ, host)
    if remove is not None:
        fitting = [path for path in files if is_named(path, remove)]
        if not fitting:
            what = f"there is no calibration {remove!r}"
            raise ConfigError(what, where=host, next="joulelab calibrations", code="config.unknown-calibration")
        for path in fitting:
            path.rename(path.with_suffix(".removed"))
            files.remove(path)
            print_notice(f"no longer used: {path.with_suffix('.removed')}")
    found = []
    for path in files:
        try:
            found.append((path, read_calibration(path)))
        except JoulelabError as error:
            print_notice(str(error))
    if as_json:
        print_json([{**record, "file": str(path)} for path, record in found])
        return
    print_blocks(lay_out_calibrations(found, dt.datetime.now(dt.UTC).timestamp()))
