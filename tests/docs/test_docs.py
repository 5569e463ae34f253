"""Hold the documents to the truth: links resolve, printed output is what a command prints, examples run."""

from __future__ import annotations

import contextlib
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from joulelab.cli.group import commands

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(p for p in ROOT.rglob("*.md") if not {".venv", "node_modules"} & set(p.parts))
# Words of a private dialect; write the noun, or who does what (CONTRIBUTING.md).
DIALECT = re.compile(r"\b(told|so many|is said|anew)\b", re.IGNORECASE)
OUTPUT = re.compile(r"<!-- output: (.+?) -->\n```\n(.*?)```\n<!-- end -->", re.DOTALL)


def outputs() -> list[tuple[str, str, str]]:
    """Return page, command and text of every block that a command prints."""
    return [(p.name, m[1], m[2]) for p in PAGES for m in OUTPUT.finditer(p.read_text())]


def run_command(command: str) -> str:
    """Run a joulelab command in the root of a clone, 80 columns wide, and return what it prints."""
    words = shlex.split(command)
    assert words[0] == "joulelab"
    with contextlib.chdir(ROOT):
        done = CliRunner().invoke(commands, words[1:], env={"COLUMNS": "80", "NO_COLOR": "1", "TERM": "dumb"})
    assert done.exit_code == 0, done.output
    return done.stdout


def test_links_resolve() -> None:
    for page in PAGES:
        text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
        for target in re.findall(r"\]\(([^)]+)\)", text):
            if not target.startswith(("http:", "https:", "#", "mailto:")):
                assert (page.parent / target.split("#")[0]).exists(), f"{page.relative_to(ROOT)}: {target}"


def test_the_files_named_in_contributing_exist() -> None:
    named = set(re.findall(r"`([\w/]+(?:/|\.py)|src/joulelab/\w+)`", (ROOT / "CONTRIBUTING.md").read_text()))
    named -= {path for path in named if re.search("[A-Z]{3}", path)}  # NAME.py is any
    files = [path.relative_to(ROOT).as_posix() for folder in ("src", "tests") for path in (ROOT / folder).rglob("*.py")]
    lacking = {path for path in named if not (ROOT / path).exists()}
    assert len(named) > 30
    assert {path for path in lacking if not any(f"/{path}" in f"/{file}" for file in files)} == set()


@pytest.mark.system  # pure, and slow
@pytest.mark.parametrize(("page", "command", "text"), outputs())
def test_output_in_the_documents_is_what_the_command_prints(page: str, command: str, text: str) -> None:
    assert run_command(command).rstrip() == text.rstrip(), f"{page}: run `{command}` and paste what it prints"


def test_pages_are_in_plain_english() -> None:
    left_out = {"decisions", "reference"}  # history; generated, and checked where it is written
    pages = [page for page in PAGES if page.is_relative_to(ROOT / "docs") and not left_out & set(page.parts)]
    assert len(pages) > 50
    for page in pages:
        prose = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(), flags=re.DOTALL)
        assert DIALECT.findall(prose) == [], page.relative_to(ROOT)


def test_there_is_output_to_hold() -> None:
    assert any(page == "README.md" for page, _, _ in outputs())


def test_the_readme_soon_says_that_no_hardware_was_tried() -> None:
    first = "\n".join((ROOT / "README.md").read_text().splitlines()[:60])
    assert "never tried on real GPUs, BMCs or PDUs" in first
    assert "(docs/not-tried-on-hardware.md)" in first


def test_the_readme_and_the_quick_starts_name_commands_that_exist() -> None:
    for page in [ROOT / "README.md", ROOT / "docs" / "index.md", *(ROOT / "docs" / "quick-start").glob("*.md")]:
        text = page.read_text()
        blocks = "\n".join(re.findall(r"```(?:sh|console)?\n(.*?)```", OUTPUT.sub("", text), re.DOTALL))
        named = set(re.findall(r"`joulelab ([a-z]\w+)", text))
        named |= set(re.findall(r"(?:^(?:\$ )?|-- )joulelab ([a-z]\w+)", blocks, re.MULTILINE))
        assert named, page.name
        assert named <= set(commands.list_commands(click.Context(commands))), page.name


@pytest.mark.system
def test_the_python_example_of_the_readme_runs(tmp_path: Path) -> None:
    code = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert code is not None
    script = tmp_path / "example.py"
    script.write_text("def train():\n    pass\n\n" + code[1])
    done = subprocess.run(
        [sys.executable, script], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=300
    )
    assert "training" in done.stdout
