"""Answer each address. Lists come from memory; slow work goes to threads."""

from __future__ import annotations

import datetime as dt
import gzip
import hashlib
import json
import logging
import re
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import cache, partial
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from joulelab.core.errors import ConfigError, JoulelabError, NotARun
from joulelab.core.text import escape_unprintable, is_loopback
from joulelab.dashboard import api, frame, lists, study_list
from joulelab.dashboard.run_entries import Place, check_inside, word_problem
from joulelab.dashboard.run_search import find, parse
from joulelab.dashboard.security import COOKIE, SESSION_S, Doors, Guard, client_of, form_token
from joulelab.dashboard.slow_work import Busy, OpenRuns, PageCache, SlowWork
from joulelab.report.page import document
from joulelab.store.manifest import compute_fingerprint
from joulelab.store.run_folder import read_meta

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence

    from starlette.requests import Request

    from joulelab.dashboard.index import Index
    from joulelab.dashboard.run_entries import Entry
    from joulelab.dashboard.security import App
    from joulelab.dashboard.studies import StudyEntry

_log = logging.getLogger("joulelab.dashboard")
HTML, JSON = "text/html; charset=utf-8", "application/json"
STATIC = {"page.css": "text/css", "profile.js": "text/javascript", "dashboard.css": "text/css"}
STATIC |= {"dashboard.js": "text/javascript", "icon.svg": "image/svg+xml"}
SMALL = 2000  # bytes that are not worth compressing
MOST_LOGGED = 200  # letters of an address
OWN_ADDRESSES = ("runs", "studies", "api", "static", "compare", "sums", "login", "logout")
# Where a path may begin: not within another one, an address, or numbers as text (base64).
_PATH_START = rb"(?<![\w+/.~-])"
_HOMES = re.compile(_PATH_START + rb"/(?:root|(?:home|Users)/[^/\s\"'<>&\\,;:)\]}]+)(?=[/\s\"'<>&\\,;:)\]}]|$)")
TITLES = {
    400: "Bad request",
    404: "Not found",
    405: "Not allowed",
    500: "Failed",
    503: "Busy",
}


@dataclass
class Dashboard:
    """Answer requests about one index."""

    index: Index
    doors: Doors
    slow_work: SlowWork = field(default_factory=SlowWork)
    pages: PageCache = field(default_factory=PageCache)
    opened: OpenRuns = field(default_factory=OpenRuns)

    async def runs(self, request: Request) -> Response:
        """Answer with the list of runs."""
        snapshot = self.index.snapshot()
        found = find(snapshot, parse(request.query_params.multi_items()))
        if found.query.page > found.pages:  # runs were deleted, or more filters are set
            found = find(snapshot, replace(found.query, page=found.pages))
        self.index.ask_for(found.entries)
        text = lists.write_runs_page(snapshot, found, token=self._token, now=_read_clock())
        return self._send(request, self._hide_folders(text.encode(errors="replace")), HTML)

    async def studies(self, request: Request) -> Response:
        """Answer with the list of studies."""
        text = study_list.write_studies_page(self.index.snapshot(), token=self._token, now=_read_clock())
        return self._send(request, self._hide_folders(text.encode(errors="replace")), HTML)

    async def run(self, request: Request) -> Response:
        """Answer with the page of a run."""
        name = request.path_params["run"]
        found = self.index.snapshot().find(name)
        if len(found) > 1:
            links = [(f"/runs/{e.id}", f"{e.study}, {e.slot} of cell {e.cell}") for e in found]
            text = frame.write_message_page("Several runs", f"{name} is several runs:", token=self._token, links=links)
            return Response(text, 300, media_type=HTML)
        entry = _get_single(found)
        body = await self._work_on(("run", entry.id), partial(self._make_run_page, entry))
        return await self._send_packed(request, body, HTML)

    async def compare(self, request: Request) -> Response:
        """Answer with the page that compares runs."""
        entries = api.choose_runs(self.index.snapshot(), request.query_params.multi_items())
        key = ("compare", *(entry.id for entry in entries))
        body = await self._work_on(key, partial(self._make_comparison_page, entries))
        return await self._send_packed(request, body, HTML)

    async def sums(self, request: Request) -> Response:
        """Answer with the page of the sums of selected runs, for browsers without scripts."""
        found = api.sum_runs(self.index.snapshot(), request.query_params.multi_items())
        text = frame.write_sums_page(found, token=self._token)
        return self._send(request, text.encode(errors="replace"), HTML)

    async def api_sums(self, request: Request) -> Response:
        """Answer with the sums of selected runs as JSON."""
        found = api.sum_runs(self.index.snapshot(), request.query_params.multi_items())
        return self._send(request, api.encode_json(found.to_json()), JSON)

    async def study(self, request: Request) -> Response:
        """Answer with the page of a study."""
        study = self._find_study(request)
        body = await self._work_on(("study", study.id), partial(self._make_study_page, study))
        return await self._send_packed(request, body, HTML)

    async def api_runs(self, request: Request) -> Response:
        """Answer with one page of runs as JSON."""
        data = api.describe_runs(self.index.snapshot(), request.query_params.multi_items())
        return self._send(request, self._encode_json(data), JSON)

    async def api_run(self, request: Request) -> Response:
        """Answer with the result of a run as JSON."""
        entry = _get_single(self.index.snapshot().find(request.path_params["run"]))
        body = await self._work_on(("result", entry.id), partial(self._make_result, entry))
        return await self._send_packed(request, body, JSON)

    async def api_power(self, request: Request) -> Response:
        """Answer with power over time of a part of a run as JSON."""
        entry = _get_single(self.index.snapshot().find(request.path_params["run"]))
        wanted = api.read_time_span(request.query_params.multi_items())
        make = partial(api.describe_power, self._find_place(entry), self.opened, wanted)
        body = await self._work_on(("power", entry.id, wanted), lambda: self._encode_json(make()))
        return await self._send_packed(request, body, JSON)

    async def api_compare(self, request: Request) -> Response:
        """Answer with two runs compared as JSON."""
        entries = api.choose_runs(self.index.snapshot(), request.query_params.multi_items())
        places = [self._find_place(entry) for entry in entries]
        key = ("compared", *(entry.id for entry in entries))
        make = partial(api.describe_comparison, places, self.index.site)
        body = await self._work_on(key, lambda: self._encode_json(make()))
        return await self._send_packed(request, body, JSON)

    async def api_studies(self, request: Request) -> Response:
        """Answer with the studies as JSON."""
        studies = [study.to_json() for study in self.index.snapshot().studies]
        return self._send(request, self._encode_json({"studies": studies}), JSON)

    async def api_study(self, request: Request) -> Response:
        """Answer with the results of a study as JSON."""
        study = self._find_study(request)
        make = partial(api.describe_study, study, self._find_folder(study), self.index.site)
        body = await self._work_on(("study json", study.id), lambda: self._encode_json(make()))
        return await self._send_packed(request, body, JSON)

    async def login(self, request: Request) -> Response:
        """Ask for the token, or take it and give a session for it."""
        if self.doors.token is None:
            return RedirectResponse("/", 303)
        if request.method != "POST":
            return Response(frame.write_login_page(), media_type=HTML)
        token = await form_token(request.receive)
        if token is None or not self.doors.is_token(token):
            if self.doors.note_wrong_token(client_of(request.scope)):
                text = frame.write_login_page(wrong="Too many wrong tokens; wait a minute.")
                return Response(text, 429, {"retry-after": "60"}, HTML)
            return Response(frame.write_login_page(wrong="That is not the token."), 403, media_type=HTML)
        return self._with_cookie(RedirectResponse("/", 303), self.doors.session(), SESSION_S)

    async def logout(self, request: Request) -> Response:  # noqa: ARG002 starlette's signature
        """Take the session away."""
        return self._with_cookie(RedirectResponse("/login", 303), "", 0)

    async def static(self, request: Request) -> Response:
        """Answer with a style or a script."""
        name = request.path_params["name"]
        if name not in STATIC:
            raise HTTPException(404)
        kept = {"cache-control": "public, max-age=3600" if request.url.query else "public, no-cache"}
        return self._send(request, read_asset(name), f"{STATIC[name]}; charset=utf-8", kept)

    async def answer_failure(self, request: Request, error: Exception) -> Response:
        """Answer with the error in words; an unexpected one is described in the server's log only."""
        if not isinstance(error, (HTTPException, JoulelabError, OSError)):
            asked = (
                f"{request.method} {escape_unprintable(request.url.path)[:MOST_LOGGED]}"  # a query may hold anything
            )
            _log.error("%s failed", asked, exc_info=error)
        status, text = _word_error(error, (self.index.runs, *filter(None, [self.index.studies])))
        text = self._hide_folders(text.encode(errors="replace")).decode(errors="replace")
        headers = {"retry-after": "2"} if status == 503 else None
        if request.url.path.startswith("/api/"):
            return Response(api.encode_json({"error": text}), status, headers, JSON)
        page = frame.write_message_page(TITLES.get(status, "Not possible"), text, token=self._token)
        return Response(page, status, headers, HTML)

    @property
    def _token(self) -> bool:
        return self.doors.token is not None

    def _encode_json(self, data: Any, runs: Iterable[Path] = ()) -> bytes:
        return self._hide_folders(api.encode_json(data), runs)

    def _hide_folders(self, body: bytes, runs: Iterable[Path] = ()) -> bytes:
        """Shorten the paths in an answer by the folders of the stores, and by those that `runs` were started in."""
        stores = [store.parent for store in (self.index.runs, self.index.studies) if store is not None]
        return hide_folders(body, [*stores, *filter(None, map(_read_start_folder, runs))])

    def _find_study(self, request: Request) -> StudyEntry:
        study = self.index.snapshot().study_by_id.get(request.path_params["study"])
        if study is None:
            raise HTTPException(404, "there is no such study (any more)")
        if study.problem:
            raise JoulelabError("the study cannot be read", why=study.problem)
        return study

    def _find_place(self, entry: Entry) -> Place:
        root = self.index.studies if entry.study else self.index.runs
        assert root is not None
        return Place(entry.id, entry.path, root, entry.study, entry.cell, entry.slot)

    def _make_result(self, entry: Entry) -> bytes:
        return self._encode_json(api.describe_run(self._find_place(entry), self.index.site), [entry.path])

    def _make_run_page(self, entry: Entry) -> bytes:
        from joulelab.report.page.run_page import open_run_report

        check_inside(self._find_place(entry))

        def make_page() -> tuple[bytes, bool]:
            source = f"/api/runs/{entry.id}/power"
            page = open_run_report(entry.path, raw=source, live=source, site=self.index.site).make_page()
            more = [(f"/studies/{entry.study}", entry.study)] if entry.study else []
            nav = frame.write_navigation("", token=self._token, more=[*more, (f"/api/runs/{entry.id}", "JSON")])
            text = frame.write_page(page, nav)
            return self._hide_folders(text.encode(errors="replace"), [entry.path]), page.live

        return self.pages.get(("run", entry.id), compute_fingerprint(entry.path), make_page)

    def _make_comparison_page(self, entries: Sequence[Entry]) -> bytes:
        from joulelab.report.page.comparison_page import open_comparison_report

        for entry in entries:
            check_inside(self._find_place(entry))

        paths = tuple(entry.path for entry in entries)

        def make_page() -> tuple[bytes, bool]:
            page = open_comparison_report(paths, link=self._link_run, site=self.index.site).make_page()
            text = frame.write_page(page, frame.write_navigation("", token=self._token))
            is_live = any(entry.status == "live" for entry in entries)
            return self._hide_folders(text.encode(errors="replace"), paths), is_live

        return self.pages.get(("compare", paths), [compute_fingerprint(path) for path in paths], make_page)

    def _make_study_page(self, study: StudyEntry) -> bytes:
        from joulelab.report.page.study_page import open_study_report

        def make_page() -> tuple[bytes, bool]:
            check_inside(self._find_folder(study))
            report = open_study_report(study.folder, link=self._link_run, site=self.index.site)
            page = replace(report.make_page(), live=study.status == "live")
            more = [(f"/api/studies/{study.id}", "JSON"), (f"/?study={study.id}", "Its runs")]
            text = frame.write_page(page, frame.write_navigation("", token=self._token, more=more))
            return self._hide_folders(text.encode(errors="replace")), page.live

        return self.pages.get(("study", study.id), study, make_page)

    def _find_folder(self, study: StudyEntry) -> Place:
        assert self.index.studies is not None
        return Place(study.id, study.folder, self.index.studies)

    def _link_run(self, path: Path) -> str | None:
        """Return the address of a run by its folder."""
        found = [entry for entry in self.index.snapshot().find(path.name) if entry.path == path.resolve()]
        if found:
            return f"/runs/{found[0].id}"
        root = self.index.studies
        if root is None or not path.resolve().is_relative_to(root):
            return None
        study, _, cell, slot, *_ = path.resolve().relative_to(root).parts
        return f"/runs/{path.name}@{study}.{cell}.{slot}"

    async def _work_on(self, key: Any, make: Callable[[], bytes]) -> bytes:
        return await self.slow_work.do(key, make)

    async def _send_packed(self, request: Request, body: bytes, kind: str) -> Response:
        """Answer with a long body, compressed for clients on other machines."""
        packs = "gzip" in request.headers.get("accept-encoding", "") and not is_loopback(client_of(request.scope))
        varies = {"vary": "cookie, accept-encoding"}
        if not packs or len(body) < SMALL:
            return self._send(request, body, kind, varies)
        # Without the time, or the same page would be another one each second.
        packed = await self.slow_work.do(("packed", hash(body)), lambda: gzip.compress(body, 2, mtime=0))
        return self._send(request, packed, kind, varies | {"content-encoding": "gzip"})

    def _send(self, request: Request, body: bytes, kind: str, more: dict[str, str] | None = None) -> Response:
        """Answer with bytes, or with 304 if the client has them already."""
        tag = f'"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'
        headers = {**(more or {}), "etag": tag}
        if tag in request.headers.get("if-none-match", ""):
            headers.pop("content-encoding", None)  # there is nothing packed in it
            return Response(status_code=304, headers=headers)
        return Response(body, headers=headers, media_type=kind)

    def _with_cookie(self, response: Response, value: str, seconds: int) -> Response:
        response.set_cookie(
            COOKIE, value, max_age=seconds, path="/", secure=self.doors.secure, httponly=True, samesite="strict"
        )
        return response


def make_app(index: Index, doors: Doors) -> App:
    """Return the app of an index, guarded."""
    board = Dashboard(index, doors)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        board.opened.close()

    def get(path: str, answer: Callable[[Request], Awaitable[Response]], *methods: str) -> Route:
        async def safe(request: Request) -> Response:
            try:
                return await answer(request)
            except Exception as error:  # noqa: BLE001 whatever is in a folder, the answer is one in words
                return await board.answer_failure(request, error)

        return Route(path, safe, methods=[*methods] or ["GET"])

    routes = [
        get("/", board.runs),
        get("/runs/{run}", board.run),
        get("/compare", board.compare),
        get("/sums", board.sums),
        get("/studies", board.studies),
        get("/studies/{study}", board.study),
        get("/api/runs", board.api_runs),
        get("/api/runs/{run}", board.api_run),
        get("/api/runs/{run}/power", board.api_power),
        get("/api/compare", board.api_compare),
        get("/api/sums", board.api_sums),
        get("/api/studies", board.api_studies),
        get("/api/studies/{study}", board.api_study),
        get("/login", board.login, "GET", "POST"),
        get("/logout", board.logout, "POST"),
        get("/static/{name}", board.static),
    ]
    app = Starlette(routes=routes, lifespan=lifespan, exception_handlers={HTTPException: board.answer_failure})
    return Guard(app, doors)


def hide_folders(body: bytes, folders: Iterable[Path]) -> bytes:
    """Return HTML or JSON in which paths inside `folders` are relative, and home folders are `~`.

    Readers need to know what was run, not where this machine keeps it. A folder itself is shown as `.../` and its name.
    """
    for folder in sorted(set(folders), key=lambda one: len(one.parts), reverse=True):
        path = str(folder)
        # /tmp and /data say nothing; others could be a part of our own addresses or of markup.
        if len(folder.parts) < 3 or folder.parts[1] in OWN_ADDRESSES or set(path) & set("<>&\"'\\"):
            continue
        for text in {path, json.dumps(path)[1:-1]}:
            place, name = re.escape(text.encode(errors="replace")), text.rpartition("/")[2].encode(errors="replace")
            body = re.sub(_PATH_START + place + rb"/(?=[^\s\"'<>&])", b"", body)
            body = re.sub(_PATH_START + place + rb"/?(?![\w.-])", b".../" + name.replace(b"\\", b"\\\\"), body)
    return _HOMES.sub(b"~", body)


def _read_start_folder(run: Path) -> Path | None:
    try:
        folder = Path(str(read_meta(run).get("cwd") or ""))
    except (JoulelabError, OSError):
        return None
    return folder if folder.is_absolute() else None


@cache
def read_asset(name: str) -> bytes:
    """Return a style or script of ours."""
    if name == "page.css":
        return document.read_stylesheet().encode()
    if name == "profile.js":
        return document.read_script().encode()
    return files("joulelab.dashboard").joinpath("assets", name).read_bytes()


def _read_clock() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


def _get_single(found: Sequence[Entry]) -> Entry:
    if not found:
        raise HTTPException(404, "there is no such run (any more)")
    if len(found) > 1:
        raise HTTPException(409, f"several runs have that id: {', '.join(entry.id for entry in found[:10])}")
    return found[0]


def _word_error(error: Exception, roots: Sequence[Path]) -> tuple[int, str]:
    """Return status and words of an error, without the folders of this machine."""
    if isinstance(error, HTTPException):
        return error.status_code, str(error.detail)
    if isinstance(error, Busy):
        return 503, f"{error.what}; {error.next}"
    if isinstance(error, ConfigError):
        return 400, "; ".join(filter(None, [error.what, error.why, error.next]))
    if isinstance(error, (NotARun, FileNotFoundError)):
        return 404, "there is no such run or study (any more)"
    text = word_problem(error, roots[0])
    for root in roots:
        text = text.replace(str(root), "...")
    if isinstance(error, (JoulelabError, OSError)):
        return 500, f"the run or study cannot be read: {text}"
    return 500, "the answer could not be made; the reason is in the log of joulelab dashboard"
