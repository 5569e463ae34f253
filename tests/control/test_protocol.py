from __future__ import annotations

import json

import pytest
from tests.control.fake import fails
from tests.rows import every_row

from joulelab.control.protocol import (
    MAX_LINE_BYTES,
    CapDevice,
    CapOutcome,
    CapRequest,
    CapStatus,
    HeldCap,
    LineBuffer,
    clean_text,
    encode_message,
    make_refusal,
    parse_request,
    read_request_id,
    rebuild_error,
)
from joulelab.control.state import DeviceBusy
from joulelab.core.errors import ConfigError, Denied, JoulelabError, Refused


def test_lines_are_cut_wherever_they_were_torn():
    lines = LineBuffer()
    for byte in b'{"a":1}\n{"b"':
        lines.add_bytes(bytes([byte]))
    assert lines.has_line
    assert lines.pop_line() == b'{"a":1}'
    assert not lines.has_line
    assert lines.pop_line() is None
    lines.add_bytes(b":2}\n\n")
    assert [lines.pop_line(), lines.pop_line(), lines.pop_line()] == [b'{"b":2}', b"", None]


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_a_line_that_is_too_long_is_refused(end):
    lines = LineBuffer()
    lines.add_bytes(b"x" * MAX_LINE_BYTES)
    assert not lines.has_line
    lines.add_bytes(b"x" + end)
    assert lines.has_line
    with fails("config.message-too-long"):
        lines.pop_line()
    assert lines.pop_line() is None


def test_a_line_of_the_longest_length_is_taken():
    lines = LineBuffer()
    lines.add_bytes(b"x" * MAX_LINE_BYTES + b"\n")
    assert lines.pop_line() == b"x" * MAX_LINE_BYTES


@every_row(
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
def test_whatever_is_no_request_is_refused(line):
    with pytest.raises(ConfigError) as caught:
        parse_request(line)
    assert caught.value.code in ("config.not-a-request", "config.number-of-devices")
    assert "Traceback" not in str(caught.value)
    assert read_request_id(line) in (0, 1)


def test_the_number_of_a_wrong_request_is_kept_where_it_has_one():
    assert read_request_id(b'{"id":7,"do":"dance"}') == 7
    for wrong in (b'{"id":"7"}', b'{"id":true}', b'{"id":1e30}', b'{"id":99999999999999999999}', b"[]", b"{"):
        assert read_request_id(wrong) == 0


def test_a_good_request_is_understood():
    ask = parse_request(b'{"id":3,"do":"set","caps":[{"device":"gpu:0","value":170}],"who":{"command":"x"}}')
    assert (ask.id, ask.do, ask.caps[0].value, ask.caps[0].unit, ask.who) == (3, "set", 170.0, "W", {"command": "x"})


def test_text_of_strangers_is_harmless_on_a_terminal():
    assert clean_text("rm\x1b[2J\n -rf\u202e /\ud800") == "rm [2J  -rf  /"
    assert len(clean_text("x" * 1000)) == 200
    assert clean_text(3) == "3"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (Denied("no", where="gpu:0", why="root", next="sudo"), Denied),
        (DeviceBusy("held", code="refused.device-busy"), Refused),
        (JoulelabError("x"), JoulelabError),
    ],
)
def test_an_error_crosses_a_socket(error, kind):
    told = json.loads(encode_message(make_refusal(4, error, held=isinstance(error, DeviceBusy))))
    assert (told["id"], told["is"], told["error"]["held"]) == (4, "refused", isinstance(error, DeviceBusy))
    again = rebuild_error(told["error"])
    assert type(again) is kind
    assert (str(again), again.code) == (str(error), error.code)


def test_messages_keep_the_fields_that_older_versions_know():
    assert CapRequest("gpu:0", 170.0).to_json() == {"device": "gpu:0", "value": 170.0, "unit": "W"}
    held = {"scope": "gpu:0", "device": "GPU-0", "model": "m", "kind": "power", "asked": 170.0, "requested": 170.0}
    held |= {"enforced": None, "found": 300.0, "default": 350.0, "unit": "W"}
    ended = {"scope": "gpu:0", "device": "GPU-0", "outcome": "left", "found": 300.0, "now": 222.0, "unit": "W"}
    ended |= {"said": "gpu:0 stays"}
    device = {"scope": "gpu:0", "device": "GPU-0", "model": "m", "kind": "power", "unit": "W", "lowest": 100.0}
    device |= {"highest": 400.0, "default": 350.0, "requested": 300.0, "enforced": 300.0, "holder": "alice"}
    device |= {"leftover": {"found": 300.0}}
    for kind, fields in ((HeldCap, held), (CapOutcome, ended), (CapDevice, device)):
        assert kind.from_json({**fields, "news": 1}).to_json() == fields
    status = {"id": 1, "is": "status", "devices": [device], "missing": [["gpu:9", "it is out"]]}
    assert CapStatus.from_json(status).missing == [("gpu:9", "it is out")]
    error = {"kind": "Refused", "code": "refused", "what": "no", "where": None, "why": None, "next": None}
    answer = {"id": 4, "is": "refused", "error": {**error, "held": False, "final": True}}
    assert make_refusal(4, Refused("no"), final=True) == answer


@every_row("kind", ["errno", "annotations", "WorkloadError", "Nonsense", None])
def test_an_error_of_another_world_is_an_error_all_the_same(kind):
    error = rebuild_error({"kind": kind, "what": "it broke", "why": 3})
    assert type(error) is JoulelabError
    assert (str(error), error.code) == ("it broke (3)", "error")  # an older keeper sends no code
    assert str(rebuild_error({})) == "refused"
