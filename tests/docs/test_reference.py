"""Pages that are made from the code are up to date: `python -m tests.docs.refresh` writes them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.docs import reference
from tests.docs.site_hooks import unlink_outside

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


@pytest.mark.parametrize("page", reference.PAGES, ids=lambda page: page.name)
def test_a_generated_file_is_up_to_date(page: Path) -> None:
    assert page.read_text() == reference.PAGES[page](), "run `python -m tests.docs.refresh reference`"


def test_the_reference_has_every_command_and_every_public_name() -> None:
    commands, names = reference.write_commands(), reference.write_python()
    assert all(f"Usage: {path} " in commands for path in reference.EVERY if path != "joulelab")
    assert re.findall(r"^### `joulelab\.(\w+)`", names, re.MULTILINE) == [
        name for name in reference.joulelab.__all__ if name != "__version__"
    ]


def test_cells_of_tables_stay_in_their_table() -> None:
    table = reference.write_table(("a", "b"), [("x | y", "two\nlines <b>")])
    assert table.splitlines()[2] == "| x \\| y | two lines &lt;b> |"


def test_every_page_is_in_the_navigation_of_the_site_once() -> None:
    named = re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    pages -= {path for path in pages if path.startswith("decisions/0")}  # listed by decisions/README.md
    assert sorted(named) == sorted(pages), "name each page of docs/ once in `nav` of mkdocs.yml"


def test_the_site_has_no_links_to_files_that_it_does_not_have() -> None:
    text = "[a](../../examples/x.toml), [b](pdu.md#top), [`studies`](../../studies)\n```\n[c](../../x)\n```\n"
    seen = "a (`examples/x.toml` in the source tree), [b](pdu.md#top), `studies`\n```\n[c](../../x)\n```\n"
    assert unlink_outside(text, "how-to/page.md") == seen
