from __future__ import annotations

from joulelab.report.tables import make_table
from joulelab.report.terminal import BLANK_LINE, TextLine, list_facts, write_blocks


def test_blocks_stand_one_below_the_other() -> None:
    table = make_table(("scope", "energy"), [("gpu:0", "1")])
    blocks = [TextLine("6.9 kJ", "bold"), BLANK_LINE, table, list_facts([("note", "short")])]
    assert write_blocks(blocks, 20).splitlines() == [
        "6.9 kJ",
        "",
        "scope  energy",
        "─────────────",
        "gpu:0       1",
        "note     short",
    ]


def test_texts_are_wrapped_and_paths_are_not() -> None:
    path = "/a/path/" + "x" * 40 + " and more"
    assert write_blocks([TextLine("one two three", "")], 8) == "one two\nthree\n"
    assert write_blocks([TextLine(path, is_wrapped=False)], 20) == f"{path}\n"


def test_facts_are_wrapped_beside_their_label() -> None:
    lines = write_blocks(
        [list_facts([("warning", "the meters disagree by more than both may be off")])], 40
    ).splitlines()
    assert lines == ["warning  the meters disagree by more", "         than both may be off"]


def test_no_label_overruns_its_column() -> None:
    lines = write_blocks([list_facts([("configuration", "wrong"), ("nvml", "absent")])], 40).splitlines()
    assert lines == ["configuration wrong", "nvml          absent"]


def test_styles_are_those_of_the_label() -> None:
    facts = list_facts([("failed", "gaps"), ("run", "x")], styles={"failed": "bold red"})
    assert write_blocks([facts], 80, is_styled=True) == "\x1b[1;31mfailed   gaps\x1b[0m\nrun      x\n"
    assert write_blocks([facts], 80) == "failed   gaps\nrun      x\n"


def test_texts_of_others_move_no_cursor() -> None:
    text = write_blocks([TextLine("a\x1b[2Jb"), TextLine("c\rd"), list_facts([("e\x07", "f\x1b[31m")])], 40)
    assert not any(letter in text for letter in "\x1b\r\x07")
