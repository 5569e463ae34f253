"""What is read out of a notebook's file, and what is put into it."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.rows import every_row
from tests.workloads.books import book, code, text, write

from joulelab.core.errors import ConfigError
from joulelab.run import notebook

if TYPE_CHECKING:
    from pathlib import Path


@every_row(
    ("given", "value"),
    [
        ("3", 3),
        ("-2", -2),
        ("0.5", 0.5),
        ("1e-3", 0.001),
        (".5", 0.5),
        ("true", True),
        ("False", False),
        ("adam", "adam"),
        ("007", "007"),
        ("1_000", "1_000"),
        ("nan", "nan"),
        ("", ""),
        ('it\'s "quoted"\n', 'it\'s "quoted"\n'),
        ("__import__('os')", "__import__('os')"),
    ],
)
def test_values_are_numbers_truths_or_text(given: str, value: object) -> None:
    found = ast.literal_eval(notebook.format_literal(given))
    assert found == value
    assert type(found) is type(value)


@pytest.mark.system  # pure, and slow
@given(st.text())
def test_every_value_is_one_literal_that_says_the_same(value: str) -> None:
    found = ast.literal_eval(notebook.format_literal(value))
    assert isinstance(found, int | float | bool) or found == value
    assert ast.parse(notebook.format_parameters({"x": value})).body[0].targets[0].id == "x"  # type: ignore[attr-defined]


def test_a_cell_is_called_by_its_tag_or_its_first_comment() -> None:
    assert notebook.get_title(code("x = 1", "hide-input", "load")) == "load"
    assert notebook.get_title(code("\n# %% train the model\nx = 1")) == "train the model"
    assert notebook.get_title(code("x = 1  # no title")) == ""
    assert notebook.get_title(code("x = 1", "parameters")) == ""
    assert notebook.get_title({"cell_type": "code", "source": "x", "metadata": {"tags": "wrong"}}) == ""
    assert len(notebook.get_title(code("#" + "long " * 100))) <= notebook.MOST_LETTERS


def test_empty_and_skipped_cells_are_not_run() -> None:
    assert notebook.has_code(code("x"))
    assert not notebook.has_code(code(" \n"))
    assert not notebook.has_code(code("x", "skip-execution"))


def test_parameters_come_after_their_defaults_or_first() -> None:
    assert notebook.find_parameters_place(book(text("# a"), code("x = 1"), code("a = 1", "parameters"), code("x"))) == 3
    assert notebook.find_parameters_place(book(text("# a"), code("x = 1"))) == 0


def test_a_parameter_without_default_is_refused_with_the_nearest() -> None:
    found = book(code("epochs: int = 3\nbatch, rate = 64, 0.1", "parameters"))
    notebook.check_parameters(found, ["epochs", "batch", "rate"], where="a.ipynb")
    notebook.check_parameters(found, [], where="a.ipynb")
    with pytest.raises(ConfigError, match=r"no parameter 'epoch'.*did you mean 'epochs'"):
        notebook.check_parameters(found, ["epoch"], where="a.ipynb")


def test_where_no_default_can_be_told_any_variable_is_taken() -> None:
    notebook.check_parameters(book(code("x = 1")), ["anything"], where="a.ipynb")
    notebook.check_parameters(book(code("%matplotlib inline\nx = 1", "parameters")), ["anything"], where="a.ipynb")
    with pytest.raises(ConfigError, match="'class' is not the name of a variable"):
        notebook.check_parameters(book(code("x = 1")), ["class"], where="a.ipynb")
    with pytest.raises(ConfigError, match="its language is julia"):
        notebook.check_parameters(book(language="julia"), ["x"], where="a.ipynb")


def test_the_language_is_python_unless_told() -> None:
    assert notebook.get_language({"metadata": {"language_info": {"name": "R"}}}) == "r"
    assert notebook.get_language({"metadata": {"kernelspec": "wrong"}}) == "python"
    assert notebook.get_kernel_name({}) == ""


@every_row(
    ("content", "why"),
    [
        ("print(1)", "not JSON"),
        ("[]", "no `nbformat`"),
        ('{"nbformat": 3, "worksheets": []}', "format is 3"),
        ('{"nbformat": 4}', "no list of cells"),
        ('{"nbformat": 4, "cells": [1]}', "no list of cells"),
        ('{"nbformat": 4, "cells": [{"cell_type": "code", "source": [1]}]}', "no list of cells"),
        ('{"nbformat": 4, "cells": [{"cell_type": "code", "metadata": 1}]}', "no list of cells"),
        ('{"nbformat": 4, "cells": [], "metadata": 3}', "metadata is not a table"),
    ],
)
def test_what_is_no_notebook_is_told(tmp_path: Path, content: str, why: str) -> None:
    file = tmp_path / "a.ipynb"
    file.write_text(content)
    with pytest.raises(ConfigError, match=why):
        notebook.load_notebook(file)


def test_the_words_of_a_notebook(tmp_path: Path) -> None:
    asked = notebook.read_notebook_words(
        ["a.ipynb", "--pause", "2m", "x=1=2", "--out=b.ipynb", "--kernel", "julia-1.10"]
    )
    assert (asked.parameters, asked.pause_s, str(asked.out)) == ({"x": "1=2"}, 120, "b.ipynb")
    assert asked.kernel == "julia-1.10"
    file = write(tmp_path / "a.ipynb", book(code("x = 1")))
    request = notebook.NotebookRequest(file, {"x": "1"}, tmp_path / "b.ipynb", pause_s=0.5, kernel="python3")
    words = notebook.make_notebook_command(request)
    again = notebook.read_notebook_words(words[3:])
    assert again == notebook.NotebookRequest(file, {"x": "1"}, tmp_path / "b.ipynb", 0.5, "python3")


@every_row(
    ("words", "why"),
    [
        ([], "no notebook"),
        (["--pause", "3"], "no notebook"),
        (["a.ipynb", "--puase=3"], "did you mean '--pause'"),
        (["a.ipynb", "--pause"], "--pause has no value"),
        (["a.ipynb", "--pause=long"], "the pause is 'long'"),
        (["a.ipynb", "--pause=1000h"], "the pause is '1000h'"),
        (["a.ipynb", "epochs"], "'epochs' is not a parameter"),
        (["a.ipynb", "a=1", "a=2"], "given twice"),
    ],
)
def test_wrong_words_are_told(words: list[str], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        notebook.read_notebook_words(words)


def test_the_notebook_itself_is_never_written(tmp_path: Path) -> None:
    file = write(tmp_path / "a.ipynb", book())
    with pytest.raises(ConfigError, match="would replace the notebook"):
        notebook.make_notebook_command(notebook.NotebookRequest(file, out=tmp_path / "x" / ".." / "a.ipynb"))
    with pytest.raises(ConfigError, match="cannot be read"):
        notebook.make_notebook_command(notebook.NotebookRequest(tmp_path / "none.ipynb"))
