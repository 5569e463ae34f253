"""Load an inference server and measure its energy: `joulelab serving load | measure | import | watch | requests`."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from joulelab.cli.output import measure_terminal, print_blocks, print_json, print_notice, shorten_path
from joulelab.cli.parameters import (
    METER_OPTIONS,
    Duration,
    KeyValue,
    UsageError,
    add_options,
    format_examples,
    json_option,
    name_run,
    runs_option,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import NoReturn

    from joulelab.analysis.goals import Goal
    from joulelab.report.tables import Table, TableCell
    from joulelab.run.run_command import RunOutcome
    from joulelab.serving.load_client import Endpoint
    from joulelab.serving.load_plan import LoadLevel, PromptSource
    from joulelab.serving.load_steps import LoadMarks, LoadSummary, LoadTimes

URL_VARIABLE = "JOULELAB_LLM_URL"  # `joulelab twin --llm` sets it
ENERGY_COMMANDS = {"requests": "requests_command", "watch": "watch_command"}
SECRET_WORDS = ("auth", "cookie", "key", "secret", "token")
INTERRUPTED_CODE = 130
MOST_LATE = 1.0  # percent of late sends without a notice


class ServingGroup(click.Group):
    """Import the commands about energy only when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 click's signature
        """Return the names in the order of the help."""
        return ["measure", "load", "watch", "requests", "import"]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, None if it is unknown."""
        if cmd_name in ENERGY_COMMANDS:
            found: click.Command = getattr(
                importlib.import_module("joulelab.serving.energy_commands"), ENERGY_COMMANDS[cmd_name]
            )
            return found
        return super().get_command(ctx, cmd_name)


@click.group(
    "serving",
    cls=ServingGroup,
    epilog=format_examples(
        "joulelab serving measure --url http://127.0.0.1:8000 --rate 1,2,4",
        "joulelab serving watch --url http://127.0.0.1:8000",
        "joulelab serving requests last --by team",
    ),
)
def command() -> None:
    """Measure the energy of inference servers, per token and request."""


LOAD_OPTIONS = (
    click.option("--url", envvar=URL_VARIABLE, required=True, metavar="URL", help="The server: http://HOST:PORT."),
    click.option("--rate", metavar="R,...", help="Requests per second of each step: 1,2,4."),
    click.option("--concurrency", metavar="N,...", help="Requests at a time of each step: 1,4,16."),
    click.option(
        "--trace",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="Arrival times and lengths from a file, JSONL or CSV.",
    ),
    click.option("--arrivals", type=click.Choice(["poisson", "fixed"]), default="poisson", show_default=True,
                 help="Intervals between requests at a rate."),
    click.option(
        "--prompts",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="Prompts or chats from a JSONL file; random words if left out.",
    ),
    click.option("--prompt-tokens", default="200", show_default=True, metavar="MEAN[:SPREAD]",
                 help="Length of random prompts."),
    click.option("--output-tokens", default="100", show_default=True, metavar="MEAN[:SPREAD]",
                 help="Length of answers."),
    click.option("--api", type=click.Choice(["chat", "completions"]), default="chat", show_default=True,
                 help="Endpoint of the server."),
    click.option("--model", default="", metavar="NAME", help="Model.  [default: the first that the server lists]"),
    click.option("--warmup", type=Duration(), default="10s", show_default=True, help="Time before the steady window."),
    click.option("--duration", type=Duration(0.1), default="60s", show_default=True,
                 help="Length of the steady window."),
    click.option("--drain", type=Duration(), default="60s", show_default=True,
                 help="Longest wait for the last answers."),
    click.option("--timeout", type=Duration(0.1), default="60s", show_default=True,
                 help="A request has stalled if nothing comes for this time."),
    click.option("--header", "headers", multiple=True, type=KeyValue(), help="Send a header; repeatable."),
    click.option("--label", "labels", multiple=True, type=KeyValue(), help="Label every request; repeatable."),
    click.option("--seed", type=int, default=0, show_default=True, help="Seed of arrivals, lengths and words."),
    click.option("--allow-failed", is_flag=True,
                 help="Exit with 0 although some requests failed.  [default: exit with 1]"),
)  # fmt: skip


@command.command(
    "load",
    epilog=format_examples(
        "joulelab serving load --url http://127.0.0.1:8000 --rate 4",
        "joulelab serving load --url URL --concurrency 8 --out requests.jsonl",
        "joulelab serving load --url URL --trace arrivals.jsonl --warmup 30s",
    ),
)
@add_options(LOAD_OPTIONS)
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
              help="Write one line of JSON for each request.")  # fmt: skip
@click.option("-q", "--quiet", is_flag=True, help="Print no table.")
@json_option
def load_command(out: Path | None, quiet: bool, as_json: bool, **given: Any) -> NoReturn:
    """Load a server with requests, step by step.

    At a rate, requests are sent when they are due, whether or not earlier ones were answered. In a measured run each
    step is a phase with warm-up, steady window and drain. The API key is taken from OPENAI_API_KEY.
    """
    levels, source, times, endpoint = _read_load(given)
    from joulelab.run.marking import writer
    from joulelab.serving.load_steps import LoadMarks

    try:
        marks = LoadMarks(writer(), out)
    except OSError as error:
        raise UsageError("out", f"cannot write {error.filename} ({error.strerror})") from error
    try:
        summary = _run_load(endpoint, source, times, marks, levels, given["seed"])
    finally:
        marks.close()
    if as_json:
        failed = {"failed": summary.failed, "stopped": summary.stopped or None, "problem": summary.last_problem or None}
        print_json({"steps": [step.to_json() for step in summary.steps], "ok": summary.ok, **failed})
    elif not quiet:
        print_blocks([_make_load_table(summary)])
    _report_problems(summary, is_allowed=given["allow_failed"])
    sys.exit(choose_exit_code(summary, is_allowed=given["allow_failed"]))


def _read_load(
    given: Mapping[str, Any],
) -> tuple[list[LoadLevel], PromptSource, LoadTimes, Endpoint]:
    """Read the options of a load. Raises ConfigError, UsageError."""
    from joulelab.serving.load_client import KEY_VARIABLE, Endpoint
    from joulelab.serving.load_plan import PromptSource, TokenLengths, parse_levels, read_prompts, read_trace
    from joulelab.serving.load_steps import LoadTimes
    from joulelab.store.redact import redact_labels

    chosen = [name for name in ("rate", "concurrency", "trace") if given[name] is not None]
    if len(chosen) != 1:
        raise UsageError("load", "a load needs one of --rate, --concurrency and --trace")
    if given["trace"] is not None:
        levels = [read_trace(given["trace"])]
    else:
        levels = parse_levels(chosen[0], given[chosen[0]], given["arrivals"])  # type: ignore[arg-type]
    lengths = tuple(TokenLengths.parse(given[f"{name}_tokens"], f"--{name}-tokens") for name in ("prompt", "output"))
    prompts = [] if given["prompts"] is None else read_prompts(given["prompts"], given["api"])
    times = LoadTimes(given["warmup"], given["duration"], given["drain"])
    headers = {name.lower(): value for name, value in given["headers"]}
    labels = redact_labels(_list_header_labels(headers) | dict(given["labels"]))
    url = given["url"].rstrip("/").removesuffix("/v1")
    if not url.startswith(("http://", "https://")):
        url = f"http://{url}"
    key = os.environ.get(KEY_VARIABLE, "")
    endpoint = Endpoint(url, given["api"], given["model"], headers, key, given["timeout"], labels=labels)
    return levels, PromptSource(prompts, lengths), times, endpoint  # type: ignore[arg-type]


def _list_header_labels(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers that label a request: those that begin with x-, and hold no secret."""
    return {
        name.removeprefix("x-"): value
        for name, value in headers.items()
        if name.startswith("x-") and not any(word in name for word in SECRET_WORDS)
    }


def _run_load(
    endpoint: Endpoint, source: PromptSource, times: LoadTimes, marks: LoadMarks, levels: Sequence[LoadLevel], seed: int
) -> LoadSummary:
    import asyncio
    import signal

    from joulelab.serving.load_client import LoadClient
    from joulelab.serving.load_steps import LoadRunner

    async def run() -> LoadSummary:
        async with LoadClient(endpoint) as client:
            unknown = await client.prepare()
            prefix = f"{os.getpid()}-{os.urandom(2).hex()}"
            runner = LoadRunner(client, source, times, marks, seed=seed, prefix=prefix)
            runner.summary.unknown_fields = unknown
            loop = asyncio.get_running_loop()
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, runner.stop)
            return await runner.run_steps(levels)

    return asyncio.run(run())


def _make_load_table(summary: LoadSummary) -> Table:
    """Return a table with one row for each step: what was sent, how fast it was answered."""
    from joulelab.report import format as fmt
    from joulelab.report.tables import Column, make_table

    columns = [
        Column("load", align="left"),
        Column("requests"),
        Column("failed"),
        Column("late", "%", is_share=True, digits=2, is_optional=True),
        Column("output\ntokens/s"),
        Column("TTFT p50", "ms", factor=1e-3, digits=3),
        Column("TTFT p99", "ms", factor=1e-3, digits=3),
        Column("TPOT p50", "ms", factor=1e-3, digits=3, is_optional=True),
        Column("TPOT p99", "ms", factor=1e-3, digits=3),
    ]
    rows: list[tuple[TableCell, ...]] = []
    for step in summary.steps:
        facts, tokens = step.facts, step.work.get("output_tokens")
        sent = facts.get("requests_ok", 0) + facts.get("requests_failed", 0)
        pace = None if tokens is None or not step.duration_s else fmt.format_rate(tokens / step.duration_s)
        counts = (fmt.format_amount(sent), fmt.format_amount(facts.get("requests_failed", 0)))
        times = (facts.get(name) for name in ("ttft_p50", "ttft_p99", "tpot_p50", "tpot_p99"))
        rows.append((step.title, *counts, facts.get("late_sends"), pace, *times))
    return make_table(columns, rows)


def _report_problems(summary: LoadSummary, *, is_allowed: bool) -> None:
    """Print what a reader of the table must know, on standard error."""
    if summary.stopped == "server-gone":
        print_notice(f"the server is gone ({summary.last_problem}); the load ended, and what was measured is kept")
    elif summary.stopped == "interrupted":
        print_notice("interrupted; what was measured until then is kept")
    elif summary.failed:
        counts = ", ".join(f"{count} {status}" for status, count in sorted(summary.failed.items()))
        last = f"; the last: {summary.last_problem}" if summary.last_problem else ""
        advice = "" if is_allowed else "; exit code 1, or 0 with --allow-failed"
        print_notice(f"{sum(summary.failed.values())} requests failed ({counts}){last}{advice}")
    if summary.no_usage:
        print_notice(f"the server reported no usage for {summary.no_usage} requests: a chunk counts as a token there")
    if "ignore_eos" in summary.unknown_fields:
        print_notice("the server does not know ignore_eos: answers may be shorter than --output-tokens")
    for step in summary.steps:
        share = 100 * step.facts.get("late_sends", 0.0)
        if share > MOST_LATE and summary.stopped != "interrupted":
            print_notice(
                f"{step.title}: {share:.0f} % of the requests were late; this machine cannot send them in time"
            )
    short = [step.title for step in summary.steps if "short-warm-up" in step.notes]
    if short:
        print_notice(f"the warm-up of {', '.join(short)} ended before 10 requests had ended; raise --warmup")


def choose_exit_code(summary: LoadSummary, *, is_allowed: bool) -> int:
    """Return 1 if a request failed and this is not allowed, if none ended well, or if the server is gone; else 0."""
    if summary.stopped == "interrupted":
        return INTERRUPTED_CODE
    is_good = bool(summary.ok) and not summary.stopped and (is_allowed or not summary.failed)
    return 0 if is_good else 1


@command.command(
    "measure",
    epilog=format_examples(
        "joulelab serving measure --url http://127.0.0.1:8000 --rate 1,2,4,8",
        "joulelab serving measure --url URL --rate 1,2,4 \\",
        "    --goal 'j_per_output_token@ttft_p99<0.3s'",
    ),
)
@add_options(LOAD_OPTIONS)
@click.option("--goal", metavar="GOAL", help="Find the best step: 'j_per_output_token@ttft_p99<0.5s'.")
@click.option("--name", metavar="NAME", help="Name the run, to find it again.")
@click.option("--idle", type=Duration(), default="5s", show_default=True, help="Measure idle power this long before.")
@METER_OPTIONS[0]
@METER_OPTIONS[1]
@click.option("-q", "--quiet", is_flag=True, help="Do not print the result.")
@json_option
@runs_option
def measure_command(
    goal: str | None,
    name: str | None,
    idle: float,
    meters: tuple[str, ...],
    without: tuple[str, ...],
    quiet: bool,
    as_json: bool,
    runs: Path,
    **given: Any,
) -> NoReturn:
    """Measure the energy of a server under a load, step by step.

    A run like all others: the load is that of `joulelab serving load`, and the server's own counters are recorded. The
    exit code is 1 if a request failed (not with --allow-failed); the run is complete in any case.
    """
    from joulelab.analysis.goals import Goal
    from joulelab.run.run_command import prepare_run, run_command
    from joulelab.run.run_options import RunOptions
    from joulelab.run.signal_forwarding import SignalBox
    from joulelab.run.workload_process import exit_like_workload, strip_own_locale

    wanted = None if goal is None else Goal.parse(goal)
    *_, endpoint = _read_load(given)
    options = RunOptions(runs=runs, name=name or "serving", also=_list_counters(endpoint))
    options = prepare_run(
        options, os.environ, times={"idle_s": idle}, wanted=meters, without=without, warn=print_notice
    )  # fmt: skip
    with SignalBox() as signals:
        outcome = run_command(
            _make_load_words(given), options, strip_own_locale(os.environ), warn=print_notice, signals=signals
        )
        with signals.interruptible():
            _print_windows(outcome, wanted, quiet=quiet, as_json=as_json)
    exit_like_workload(outcome.exit_code, outcome.signal)


def _list_counters(endpoint: Endpoint) -> list[Mapping[str, Any]]:
    """Return the meter of the server's own counters, none if it has no metrics that we know."""
    from joulelab.core.errors import MeterError
    from joulelab.instruments.inference import make_plan_item, open_meter

    try:
        open_meter({"address": endpoint.url, "label": "inference"}).close()
    except MeterError as error:
        print_notice(f"the server's own counters are not recorded ({error})")
        return []
    return [make_plan_item(endpoint.url)]


def _make_load_words(given: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the command of the load with the options that were given."""
    words = [sys.executable, "-m", "joulelab", "serving", "load", "-q"]
    for option in load_command.params:
        value = given.get(option.name or "")
        if value is None or value is False or value in ("", ()):
            continue
        flag = option.opts[0]
        if value is True:
            words.append(flag)
        elif isinstance(value, tuple):
            words += [word for key, text in value for word in (flag, f"{key}={text}")]
        else:
            words += [flag, f"{value:g}s" if isinstance(option.type, Duration) else str(value)]
    return tuple(words)


def _print_windows(outcome: RunOutcome, goal: Goal | None, *, quiet: bool, as_json: bool) -> None:
    from joulelab.serving.serving_tables import lay_out_windows
    from joulelab.serving.window_figures import choose_best_window, list_window_figures

    if outcome.error is not None:
        print_notice(str(outcome.error))
    if outcome.result is None or outcome.run is None:
        for problem in outcome.problems:
            print_notice(problem)
        return
    figures = list_window_figures(outcome.result)
    best = choose_best_window(figures, goal) if goal is not None and figures else None
    folder = shorten_path(outcome.run)
    if as_json:
        from joulelab.report.result_json import describe_result

        found = None if best is None else {"best": best.cell, "tied": list(best.tied)}
        print_json(
            describe_result(outcome.result)
            | {"folder": str(outcome.run), "windows": [one.to_json() for one in figures], "goal": found}
        )
    elif not quiet:
        from joulelab.report.run_summary import lay_out_summary

        if figures:
            print_blocks(lay_out_windows(figures, best, "" if goal is None else goal.text))
            print_notice(f"recorded in {folder}; joulelab show {name_run(folder)}")
        else:
            print_blocks(lay_out_summary(outcome.result, folder, width=measure_terminal(), handle=name_run(folder)))


@command.command(
    "import",
    epilog=format_examples(
        "joulelab serving import profile_export.jsonl --run last",
        "joulelab serving import report.json --out requests.jsonl",
    ),
)
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--run", "run", metavar="RUN", help="Join the requests with this run: id, name, path, or `last`.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
              help="Write the requests to a file instead; times are UTC in ns.")  # fmt: skip
@click.option(
    "--name", default="requests", show_default=True, metavar="NAME", help="Name of the added part of the run."
)
@json_option
@runs_option
def import_command(file: Path, run: str | None, out: Path | None, name: str, as_json: bool, runs: Path) -> None:
    """Read the requests of aiperf, guidellm or vLLM's benchmark.

    FILE is profile_export.jsonl of aiperf, a JSON report of guidellm, or the result of `vllm bench serve
    --save-result --save-detailed`. Times are joined by the clocks of the run.
    """
    from joulelab.core.mark_lines import encode_json
    from joulelab.serving.other_records import attach_requests, read_records
    from joulelab.store.run_folder import find_run

    if (run is None) == (out is None):
        raise UsageError("import", "give either --run RUN or --out FILE")
    found = read_records(file)
    about: dict[str, Any] = {"requests": len(found.requests), "source": found.source}
    if out is not None:
        from joulelab.cli.output import write_file

        lines = "".join(encode_json(request.to_mark()) + "\n" for request in found.requests)
        write_file(out, lines.encode(), what="requests", option="--out")
        about["out"] = str(out)
    else:
        folder = find_run(runs, run or "")
        attach_requests(folder, name, found, file)
        about["folder"] = str(folder)
    if as_json:
        print_json(about)
        return
    where = about.get("out") or shorten_path(Path(about["folder"]))
    click.echo(f"{len(found.requests):,} requests of {found.source} are in {where}")
    if out is None:
        click.echo(f"-> joulelab serving requests {name_run(shorten_path(Path(about['folder'])))}")
