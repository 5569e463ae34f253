"""Show runs and studies in the browser: `joulelab dashboard`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from joulelab.cli.output import load_current_site, print_notice
from joulelab.cli.parameters import format_examples, json_option
from joulelab.core.errors import ConfigError, MissingDependency
from joulelab.core.text import is_loopback

if TYPE_CHECKING:
    from joulelab.dashboard.security import Doors

RUNS, STUDIES = "joulelab-runs", "joulelab-studies"
MADE = "\0made"  # what --token without a value gives; no token can be it


@click.command("dashboard", epilog=format_examples("joulelab dashboard --open", "joulelab dashboard results --port 0"))
@click.argument("folder", metavar="[DIR]", required=False, type=click.Path(path_type=Path))
@click.option(
    "--studies",
    type=click.Path(path_type=Path),
    envvar="JOULELAB_STUDIES",
    metavar="DIR",
    help="Folder of the studies; also set by JOULELAB_STUDIES.  [default: joulelab-studies]",
)
@click.option("--host", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8080,
    show_default=True,
    metavar="N",
    help="Port; 0 for a free one.",
)
@click.option(
    "--token",
    is_flag=False,
    flag_value=MADE,
    envvar="JOULELAB_TOKEN",
    metavar="[TOKEN]",
    help="Require a token, given or generated; also set by JOULELAB_TOKEN.",
)
@click.option("--token-file", type=click.Path(path_type=Path), metavar="FILE", help="Read the token from a file.")
@click.option("--tls-cert", type=click.Path(path_type=Path), metavar="FILE", help="Certificate, for https.")
@click.option("--tls-key", type=click.Path(path_type=Path), metavar="FILE", help="Key of the certificate.")
@click.option("--name", "names", multiple=True, metavar="NAME", help="Another host name of this machine; repeatable.")
@click.option("--open", "opens", is_flag=True, help="Open the page in the browser.")
@json_option
def command(
    folder: Path | None,
    studies: Path | None,
    host: str,
    port: int,
    token: str | None,
    token_file: Path | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    names: tuple[str, ...],
    opens: bool,
    as_json: bool,
) -> None:
    """Show runs and studies in the browser.

    DIR is a folder of runs (also set by JOULELAB_RUNS), or a folder that contains joulelab-runs and joulelab-studies.
    The pages cannot change anything. Ctrl-C ends it.
    """
    _check_installed()
    from joulelab.dashboard import server
    from joulelab.dashboard.index import Index

    stores = _stores(folder, studies)
    tls = _tls(tls_cert, tls_key)
    doors = _doors(host, names, _token(host, token, token_file), secure=tls is not None)
    listening = server.bound(host, port)
    try:
        with Index(*stores, site=load_current_site()) as index:
            served = server.prepare(listening, index, doors, tls)
            _tell(served.url, stores, doors, made=token_file is None and token in (None, MADE), as_json=as_json)
            if opens and not is_loopback(host):
                print_notice("--open is for this machine only; open the address by hand")
            elif opens:
                click.launch(served.url)
            server.run(listening, served)
    finally:
        listening.close()


def _check_installed() -> None:
    try:
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ModuleNotFoundError as error:
        install = 'pip install "joulelab[dashboard]"'
        raise MissingDependency(f"the dashboard needs {error.name}, which is not installed", next=install) from None


def _stores(folder: Path | None, studies: Path | None) -> tuple[Path, Path | None]:
    """Return the stores of runs and of studies. Raises ConfigError for a folder that is not there."""
    import os

    given = folder if folder is not None else Path(os.environ.get("JOULELAB_RUNS", RUNS))
    if folder is not None and not given.is_dir():
        raise ConfigError("there is no such folder", where=str(given), next="name another folder of runs")
    beside = Path(STUDIES)
    if (given / RUNS).is_dir() or (given / STUDIES).is_dir():
        given, beside = given / RUNS, given / STUDIES
    elif folder is not None and studies is None:
        beside = given.parent / STUDIES if given.name == RUNS else given
    if studies is not None and not studies.is_dir():
        raise ConfigError("there is no such folder", where=str(studies), next="name another one with --studies")
    return given, studies if studies is not None else beside


def _token(host: str, token: str | None, file: Path | None) -> str | None:
    """Return the token that is asked for, None for none. Raises ConfigError."""
    from joulelab.dashboard.security import check_token, new_token, read_token

    if token and file:
        raise ConfigError("the token is given twice", next="drop --token or --token-file")
    if file is not None:
        return read_token(file)
    if token == MADE or (token is None and not is_loopback(host)):
        return new_token()
    return None if token is None else check_token(token, "--token")


def _tls(cert: Path | None, key: Path | None) -> tuple[Path, Path] | None:
    if (cert is None) != (key is None):
        raise ConfigError("a certificate and its key go together", next="give --tls-cert and --tls-key")
    return None if cert is None or key is None else (cert, key)


def _doors(host: str, names: tuple[str, ...], token: str | None, *, secure: bool) -> Doors:
    from joulelab.dashboard.security import Doors

    return Doors(host, token, names, secure=secure)


def _tell(url: str, stores: tuple[Path, Path | None], doors: Doors, *, made: bool, as_json: bool) -> None:
    shown = doors.token if made else None
    if as_json:
        told = {"url": url, "token": shown, "runs": str(stores[0]), "studies": stores[1] and str(stores[1])}
        click.echo(json.dumps(told))
    else:
        click.echo(f"dashboard of {stores[0]}: {url}")
        if shown is not None:
            click.echo(f"token: {shown}")
    sys.stdout.flush()
    if doors.token is None:
        print_notice("every user of this machine can open it; --token requires a token")
    elif not doors.secure and not is_loopback(doors.host):
        print_notice(
            "without TLS others on the network can read everything, also the token; add --tls-cert and --tls-key"
        )
