"""LLaVA's data: records read one by one, the published form, and what stands for it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

torch = pytest.importorskip("torch")
images = pytest.importorskip("PIL.Image")

from joulelab.core.errors import ConfigError  # noqa: E402
from joulelab.workloads.data import llava_mix as data  # noqa: E402
from joulelab.workloads.models import llama  # noqa: E402

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.system

SHAPE = data.Shape(pixels=56, image_tokens=16, vocabulary=1000, text=40, longest=200)
CUT = data.StandIn(SHAPE.vocabulary)
PADDING = SHAPE.image_token + 1
TURNS = [{"from": "human", "value": "<image>\nWhat is this?"}, {"from": "gpt", "value": "A bird."}]


class TestRecords:
    WRITTEN = (
        {"id": 1, "value": 'braces } ] , \\ and "quotes"'},
        {"id": "größer 漢字", "deep": [{"a": [1.5, None]}]},
        {},
    )

    @pytest.mark.parametrize("ascii_only", [True, False])
    def test_they_are_read_one_by_one_and_found_again(self, tmp_path, ascii_only):
        file = tmp_path / "a.json"
        file.write_text(json.dumps(self.WRITTEN, indent=1, ensure_ascii=ascii_only), encoding="utf-8")
        raw = file.read_bytes()
        found = list(data.list_records(file))
        assert [json.loads(raw[begin:end]) for begin, end, _ in found] == list(self.WRITTEN)
        assert [record for _, _, record in found] == list(self.WRITTEN)

    def test_an_empty_array(self, tmp_path):
        (tmp_path / "a.json").write_text(" [\n] ")
        assert list(data.list_records(tmp_path / "a.json")) == []

    @pytest.mark.parametrize(
        ("text", "why"),
        [
            ("", "empty file"),
            ('{"a": 1}', "Expected `array`"),
            ('[{"a": 1} {"b": 2}]', r"byte 10"),
            ("[1, 2]", "Expected `object`"),
            ('[{"a": 1}', "truncated.*check that the file is complete"),
            ('[{"a": 1}, {"b": ', "truncated"),
            ('[{"a": oops}]', "byte 7"),
        ],
    )
    def test_what_is_no_array_of_objects_is_told_with_its_place(self, tmp_path, text, why):
        (tmp_path / "a.json").write_text(text)
        with pytest.raises(ConfigError, match=why):
            list(data.list_records(tmp_path / "a.json"))


def published(folder: Path, *more: dict, size: tuple[int, int] = (40, 20)) -> Path:
    """Write a folder in the published form: an image, a text, a missing image, and more."""
    (folder / "coco").mkdir(parents=True)
    images.new("RGB", size, (255, 0, 0)).save(folder / "coco" / "é.jpg")
    text = [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello there"}]
    written = [
        {"id": "1", "image": "coco/é.jpg", "conversations": TURNS},
        {"id": "2", "conversations": text},
        {"id": "3", "image": "vg/none.jpg", "conversations": TURNS},
        *more,
    ]
    (folder / data.FILE).write_text(json.dumps(written, ensure_ascii=False), encoding="utf-8")
    return folder


class TestData:
    def test_a_folder_in_the_published_form(self, tmp_path, monkeypatch):
        folder = published(tmp_path / "llava")
        found, facts = data.open_conversations(str(folder), SHAPE, samples=9)
        assert (len(found.train), found.valid, found.test) == (2, None, None)
        assert facts == {"tokens": data.STAND_IN, "images_missing": 1}
        assert (found.source.name, found.source.real) == ("folder in the form of llava-v1.5-mix665k", True)
        asked, alone = found.train[0], found.train[1]
        image = [SHAPE.image_token] * SHAPE.image_tokens
        prompt = [*CUT(f"{data.SYSTEM} USER:"), *image, *CUT("What is this? ASSISTANT:")]
        answer = [*CUT("A bird."), llama.END]
        assert asked["ids"].tolist() == [llama.BEGIN, *prompt, *answer]
        assert asked["labels"].tolist() == [data.IGNORED] * (1 + len(prompt)) + answer
        assert SHAPE.image_token not in alone["ids"]
        assert not alone["pixels"].any()
        # A wide image is made square: its middle is red, what was added is not.
        assert asked["pixels"].shape == (3, 56, 56)
        assert asked["pixels"][:, 28, 28].tolist() == pytest.approx([254, 0, 0], abs=2)
        assert asked["pixels"][:, 2, 28].tolist() == pytest.approx(data.GREY, abs=2)
        # Only whole and with all images it has the published name.
        monkeypatch.setattr(data, "RECORDS", 3)
        assert data.open_conversations(str(folder), SHAPE, samples=9)[0].source.name.startswith("folder")
        (folder / "vg").mkdir()
        (folder / "coco" / "é.jpg").rename(folder / "vg" / "none.jpg")
        images.new("RGB", (9, 9)).save(folder / "coco" / "é.jpg")
        auto, _ = data.open_conversations("auto", SHAPE, samples=9, environ={"JOULELAB_DATA": str(tmp_path)})
        assert auto.source.name == "llava-v1.5-mix665k (by its counts)"

    def test_a_conversation_has_the_format_of_llava_1_5(self):
        turns = [
            {"from": "gpt", "value": "too early"},
            {"from": "human", "value": "What is this?\n<image>"},
            {"from": "gpt", "value": "A bird."},
            {"from": "human", "value": "Which one?"},
            {"from": "gpt", "value": "A kite."},
            {"from": "human", "value": "not answered"},
        ]
        pieces: list[str] = []

        def note(text: str) -> list[int]:
            pieces.append(text)
            return [100 + len(pieces)]

        found = data.tokenize_conversation(turns, SHAPE, note, has_image=True)
        system = (
            "A chat between a curious user and an artificial intelligence assistant. "
            "The assistant gives helpful, detailed, and polite answers to the user's questions. "
        )
        asked = ["\nWhat is this? ASSISTANT:", "A bird.", "USER: Which one? ASSISTANT:", "A kite."]
        assert pieces == [f"{system}USER: ", *asked]
        image = [SHAPE.image_token] * SHAPE.image_tokens
        assert found["ids"].tolist() == [llama.BEGIN, 101, *image, 102, 103, llama.END, 104, 105, llama.END]
        no = data.IGNORED
        assert found["labels"].tolist() == [no] * (3 + len(image)) + [103, llama.END, no, 105, llama.END]

    @pytest.mark.parametrize(
        ("record", "why"),
        [
            ({"image": 3, "conversations": TURNS}, "record 4 is no conversation"),
            ({"conversations": [{"from": "gpt"}]}, "record 4 is no conversation"),
            ({"id": "4"}, "record 4 is no conversation"),
        ],
    )
    def test_a_record_that_is_none_is_told(self, tmp_path, record, why):
        folder = published(tmp_path / "llava", record)
        with pytest.raises(ConfigError, match=why):
            data.open_conversations(str(folder), SHAPE, samples=9)

    def test_what_cannot_be_trained_on_is_told(self, tmp_path):
        with pytest.raises(ConfigError, match=r"there is no llava_v1_5_mix665k\.json"):
            data.open_conversations(str(tmp_path), SHAPE, samples=9)
        folder = published(tmp_path / "llava")
        (folder / "coco" / "é.jpg").write_text("no image")
        with pytest.raises(ConfigError, match=r"é\.jpg: cannot read the image"):
            data.open_conversations(str(folder), SHAPE, samples=9)[0].train[0]
        (folder / data.FILE).write_text(json.dumps([{"image": "no.jpg", "conversations": TURNS}]))
        with pytest.raises(ConfigError, match=r"nothing to train on \(1 images are missing"):
            data.open_conversations(str(folder), SHAPE, samples=9)
        with pytest.raises(ConfigError, match="held_out is 9"):
            data.open_conversations("synthetic-memory", SHAPE, samples=9, held_out=9)

    def test_synthetic_files_are_read_as_the_published_ones(self, tmp_path):
        environ = {"XDG_CACHE_HOME": str(tmp_path)}
        found, facts = data.open_conversations("auto", SHAPE, samples=17, environ=environ, held_out=1)
        assert (found.source.name, found.source.real, found.source.samples) == ("synthetic-files", False, 16)
        assert facts["data_files"] == 17
        assert (len(found.train), len(found.test)) == (16, 1)
        samples = [found.train[k] for k in range(16)]
        assert [bool((s["ids"] == SHAPE.image_token).any()) for s in samples] == [True] * 15 + [False]
        assert all(sample["pixels"].float().std() > 10 for sample in samples[:15])
        batch = data.collate_conversations(samples, padding=PADDING)
        lengths = [len(sample["ids"]) for sample in samples]
        assert batch["ids"].shape == batch["labels"].shape == (16, max(lengths))
        assert batch["tokens"] == sum(lengths) == int((batch["ids"] != PADDING).sum())
        assert int((batch["labels"] != data.IGNORED).sum()) > 16

    def test_drawn_samples_have_the_mean_length_and_are_the_same_each_time(self):
        found, _ = data.open_conversations("synthetic-memory", SHAPE, samples=10**6)
        lengths = [len(found.train[k]["ids"]) - 1 - SHAPE.image_tokens for k in range(0, 1600, 2)]
        assert sum(lengths) / len(lengths) == pytest.approx(SHAPE.text, rel=0.1)
        assert len(set(lengths)) == len(data.LENGTHS)
        one = found.train[999_999]
        assert torch.equal(one["ids"], found.train[999_999]["ids"])
        assert SHAPE.image_token not in one["ids"]
        assert all(int(found.train[k]["ids"].max()) <= SHAPE.image_token for k in range(50))
