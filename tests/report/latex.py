"""Check the structure of LaTeX that no LaTeX is needed for."""

from __future__ import annotations

import re


def list_latex_tables(text: str) -> list[list[str]]:
    """Return the rows of each table; assert that environments are closed, rows are whole and signs are escaped."""
    opened: list[str] = []
    for begins, name in re.findall(r"\\(begin|end)\{(\w+)\}", text):
        assert begins == "begin" or opened.pop() == name, name
        opened += [name] if begins == "begin" else []
    assert opened == []
    body = "\n".join(line for line in text.splitlines() if not line.startswith("%"))
    assert not re.search(r"(?<!\\)[%#_](?![\w]*\})", re.sub(r"\$[^$]*\$", "", body)), body
    assert body.count("$") % 2 == 0
    tables = []
    for places, rows in re.findall(r"\\begin\{tabular\}\{(\w+)\}(.*?)\\end\{tabular\}", text, re.DOTALL):
        lines = [line for line in rows.strip().splitlines() if not re.fullmatch(r"\\(top|mid|bottom)rule", line)]
        assert all(line.endswith(r" \\") for line in lines)
        assert {len(re.findall(r"(?<!\\)&", line)) + 1 for line in lines} == {len(places)}
        assert rows.count(r"\toprule") == rows.count(r"\bottomrule") == 1
        tables.append(lines)
    return tables
