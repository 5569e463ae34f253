"""Check that a bad input of `joulelab plan` is refused clearly: what is wrong, a next step, and the same as JSON."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stderr, redirect_stdout
from typing import TYPE_CHECKING, Any

from joulelab.cli.group import run_commands

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def check_refusal(arguments: Sequence[str | Path], code: str, words: str | Sequence[str]) -> dict[str, Any]:
    """Run `joulelab ARGUMENTS` in this process and check its refusal; return the error as `--json` prints it.

    `code` is the error's code or the beginning of it (`config`, `usage`), `words` stand in the printed text. Use it
    with the fixture `call` of tests/cli, which sets JOULELAB_RUNS and the folder.
    """
    typed = [str(word) for word in arguments]
    ended, out, err = _run(typed)
    assert ended not in (0, None), f"accepted: {out}"
    assert "Traceback" not in out + err, err
    assert out == "", f"an answer is printed before the refusal: {out}"
    text = " ".join(err.split())
    for part in [words] if isinstance(words, str) else words:
        assert part in text, f"{part!r} is not in: {text}"

    end = typed.index("--") if "--" in typed else len(typed)
    ended_json, out, err = _run([*typed[:end], "--json", *typed[end:]])
    assert ended_json == ended, err
    lines = out.splitlines()
    assert lines, f"nothing is printed as JSON: {err}"
    error: dict[str, Any] = json.loads(lines[-1])["error"]
    found = str(error["code"])
    assert found == code or found.startswith(f"{code}."), f"the code is {found}, not {code}: {text}"
    for mistake in error.get("mistakes") or [error]:
        assert mistake["what"], error
        assert mistake["next"], f"no next step: {mistake}"
        if not found.startswith("usage"):
            assert " ".join(mistake["next"].split()) in text.replace("-> ", ""), f"the next step is not printed: {text}"
    return error


def _run(words: list[str]) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        ended = run_commands(words)
    return ended, out.getvalue(), err.getvalue()
