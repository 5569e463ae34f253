from __future__ import annotations

import json

import pytest

from joulelab.control.frames import LIMIT, Lines, encode, error_of, id_of, parse, plain, refused
from joulelab.control.state import InUse
from joulelab.core.errors import ConfigError, Denied, JoulelabError, Refused


def test_lines_are_cut_wherever_they_were_torn():
    lines = Lines()
    for byte in b'{"a":1}\n{"b"':
        lines.feed(bytes([byte]))
    assert lines.waiting
    assert lines.next() == b'{"a":1}'
    assert not lines.waiting
    assert lines.next() is None
    lines.feed(b":2}\n\n")
    assert [lines.next(), lines.next(), lines.next()] == [b'{"b":2}', b"", None]


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_a_line_that_is_too_long_is_refused(end):
    lines = Lines()
    lines.feed(b"x" * LIMIT)
    assert not lines.waiting
    lines.feed(b"x" + end)
    assert lines.waiting
    with pytest.raises(ConfigError, match="longer than 65536 bytes"):
        lines.next()
    assert lines.next() is None


def test_a_line_of_the_longest_length_is_taken():
    lines = Lines()
    lines.feed(b"x" * LIMIT + b"\n")
    assert lines.next() == b"x" * LIMIT


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b'{"do":"format the disk"}',
        b'{"do":"set"}',
        b'{"do":"set","caps":[]}',
        b'{"do":"set","caps":{"device":"gpu:0","value":1}}',
        b'{"do":"set","caps":[{"device":0,"value":1}]}',
        b'{"do":"set","caps":[{"device":"gpu:0","value":"170"}]}',
        b'{"do":"set","caps":[{"device":"gpu:0","value":true}]}',
        b'{"do":"set","caps":[{"device":"gpu:0","value":null}]}',
        b'{"do":"set","caps":[{"device":"gpu:0","value":NaN}]}',
        b'{"do":"set","caps":[{"device":"gpu:0","value":1e999}]}',
        b'{"do":"set","caps":[{"device":"gpu:0","value":170,"unit":"kW"}]}',
        b'{"do":"set","caps":[{"device":"gpu:0","value":170,"watts":1}]}',
        b'{"do":"set","caps":[{"device":"gpu:0","value":170}],"force":true}',
        b'{"do":"status","id":"one"}',
        b'{"do":"status","who":[]}',
        b'{"do":"restore","devices":"GPU-0"}',
        b'{"do":"status","who":' + b'{"a":' * 20000,
        b"[" * 60000,
        b'{"do":"set","caps":[' + b",".join([b'{"device":"gpu:0","value":1}'] * 257) + b"]}",
    ],
)
def test_whatever_is_no_request_is_refused_in_words(line):
    with pytest.raises(ConfigError) as caught:
        parse(line)
    assert "Traceback" not in str(caught.value)
    assert id_of(line) in (0, 1)


def test_the_number_of_a_wrong_request_is_kept_where_it_has_one():
    assert id_of(b'{"id":7,"do":"dance"}') == 7
    for wrong in (b'{"id":"7"}', b'{"id":true}', b'{"id":1e30}', b'{"id":99999999999999999999}', b"[]", b"{"):
        assert id_of(wrong) == 0


def test_a_good_request_is_understood():
    ask = parse(b'{"id":3,"do":"set","caps":[{"device":"gpu:0","value":170}],"who":{"command":"x"}}')
    assert (ask.id, ask.do, ask.caps[0].value, ask.caps[0].unit, ask.who) == (3, "set", 170.0, "W", {"command": "x"})


def test_text_of_strangers_is_harmless_on_a_terminal():
    assert plain("rm\x1b[2J\n -rf\u202e /\ud800") == "rm [2J  -rf  /"
    assert len(plain("x" * 1000)) == 200
    assert plain(3) == "3"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (Denied("no", where="gpu:0", why="root", next="sudo"), Denied),
        (InUse("held"), Refused),
        (JoulelabError("x"), JoulelabError),
    ],
)
def test_an_error_crosses_a_socket(error, kind):
    told = json.loads(encode(refused(4, error, held=isinstance(error, InUse))))
    assert (told["id"], told["is"], told["error"]["held"]) == (4, "refused", isinstance(error, InUse))
    again = error_of(told["error"])
    assert type(again) is kind
    assert str(again) == str(error)


@pytest.mark.parametrize("kind", ["errno", "annotations", "WorkloadError", "Nonsense", None])
def test_an_error_of_another_world_is_an_error_all_the_same(kind):
    error = error_of({"kind": kind, "what": "it broke", "why": 3})
    assert type(error) is JoulelabError
    assert str(error) == "it broke (3)"
    assert str(error_of({})) == "refused"
