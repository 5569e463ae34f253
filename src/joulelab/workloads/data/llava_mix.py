"""Read LLaVA's mix of 665k conversations on images in its published form, or make something of the same shape.

The published form is `llava_v1_5_mix665k.json`, one array of records, and the images that they name in folders beside
it. The file is read piece by piece: all that is kept of a record is where it stands.
"""

from __future__ import annotations

import json
import mmap
import os
import re
import zlib
from array import array
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import torch

from joulelab.core.errors import ConfigError
from joulelab.workloads.data.images import draw_field, import_pillow, make_once, read_image, to_tensor, write_jpegs
from joulelab.workloads.data.source import FILES, MEMORY, Data, Source, choose_source, get_cache_folder, name_data
from joulelab.workloads.models.llama import BEGIN, END

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from torch import Tensor

PUBLISHED, FOLDER, FILE, RECORDS = "llava-v1.5-mix665k", "llava", "llava_v1_5_mix665k.json", 665_298
STAND_IN = "stand-in: pieces of at most four letters, hashed"
IMAGE, IGNORED = "<image>", -100
# Lengths of synthetic texts over their mean, and how many have them; one in sixteen has no image, as in the published.
LENGTHS, SHARES = (0.4, 0.7, 1.0, 1.5, 2.35), (0.2, 0.3, 0.25, 0.15, 0.1)
WITHOUT_IMAGE = 16
MOST_PAIRS, PAIRS_PER_IMAGE, DRAWN_IMAGES = 8000, 4, 32
HIGH, WIDE = 480, 640
GREY = (122, 116, 104)  # CLIP's mean, rounded down: what is added to make an image square
# What begins each conversation of LLaVA-1.5 (Vicuna's sentence).
SYSTEM = (
    "A chat between a curious user and an artificial intelligence assistant. "
    "The assistant gives helpful, detailed, and polite answers to the user's questions."
)


@dataclass(frozen=True, slots=True)
class Shape:
    """Hold what a sample looks like: pixels and tokens of its image, tokens known, mean tokens of its text, the most.

    The token for an image is the first after those of texts, the one for padding comes next.
    """

    pixels: int
    image_tokens: int
    vocabulary: int
    text: int
    longest: int

    @property
    def image_token(self) -> int:
        """Return the token that stands where a part of an image belongs."""
        return self.vocabulary


class StandIn:
    """Cut a text into pieces of at most four letters, and number them by a hash: as many as a tokenizer would make."""

    def __init__(self, vocabulary: int) -> None:
        self._vocabulary = vocabulary

    def __call__(self, text: str) -> list[int]:
        """Return the tokens of a text."""
        room = self._vocabulary - END - 1
        return [END + 1 + zlib.crc32(piece.encode()) % room for piece in re.findall(r"\w{1,4}|[^\w\s]", text)]


class Tokenizer:
    """Hold a tokenizer of a local folder."""

    def __init__(self, folder: Path, vocabulary: int) -> None:
        from transformers import AutoTokenizer

        try:
            self._inner = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        except (OSError, ValueError, KeyError) as error:
            why = str(error).partition("\n")[0]
            raise ConfigError("there is no tokenizer", where=str(folder), why=why, next="leave it out") from error
        self._vocabulary = vocabulary

    def __call__(self, text: str) -> list[int]:
        """Return the tokens of a text; those that only LLaVA's own has are left out."""
        return [k for k in self._inner.encode(text, add_special_tokens=False) if k < self._vocabulary]


def _no_form(file: Path, why: str) -> ConfigError:
    return ConfigError(
        f"it is not in the form of {PUBLISHED}", where=str(file), why=why, next="put the whole file there"
    )


class Conversations:
    """Read records and their images when they are asked for; those whose image is missing are left out, and counted."""

    def __init__(self, folder: Path, shape: Shape, tokenizer: StandIn | Tokenizer) -> None:
        self._folder, self._shape, self._tokenizer = folder, shape, tokenizer
        self._file = folder / FILE
        self._begins, self._ends = array("Q"), array("Q")
        self.total = self.missing = 0
        if not self._file.is_file():
            advice = f"put {FILE} there, and the folders of its images"
            raise ConfigError(f"there is no {FILE}", where=str(folder), next=advice)
        there = _Folders(folder)
        for begin, end, record in list_records(self._file):
            self.total += 1
            if not there.have(self._image(record, self.total)):
                self.missing += 1
                continue
            self._begins.append(begin)
            self._ends.append(end)
        if not self._begins:
            why = f"{self.missing} images are missing" if self.missing else "it has no records"
            raise ConfigError("there is nothing to train on", where=str(self._file), why=why, next="add the images")

    def __len__(self) -> int:
        return len(self._begins)

    def __getitem__(self, number: int) -> dict[str, Tensor]:
        with self._file.open("rb") as opened:
            opened.seek(self._begins[number])
            record = json.loads(opened.read(self._ends[number] - self._begins[number]))
        pixels = make_blank_image(self._shape)
        if name := record.get("image"):
            pixels = to_tensor(_square(read_image(self._folder / name, "RGB"), self._shape.pixels))
        return {
            **tokenize_conversation(record["conversations"], self._shape, self._tokenizer, bool(name)),
            "pixels": pixels,
        }

    def _image(self, record: Mapping[str, Any], number: int) -> str:
        """Return the name of a record's image, empty where it has none. Raises ConfigError for what is no record."""
        name, turns = record.get("image", ""), record.get("conversations")
        if not isinstance(name, str) or not isinstance(turns, list) or not all(map(_is_turn, turns)):
            raise _no_form(self._file, f"record {number} is no conversation on an image")
        return name


def list_records(file: Path) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """Give the objects of a JSON array, each with the bytes where it begins and ends. Raises ConfigError.

    The file, a gigabyte, is mapped and not read into memory; only one record at a time is made into objects.
    """
    try:
        with file.open("rb") as opened:
            whole = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
        end = 0
        for raw in msgspec.json.decode(memoryview(whole), type=list[msgspec.Raw]):
            text = bytes(raw)
            begin = whole.find(text, end)
            end = begin + len(text)
            yield begin, end, msgspec.json.decode(text, type=dict[str, Any])
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        what = "it is not an array of JSON objects"
        raise ConfigError(what, where=str(file), why=str(error), next="check that the file is complete") from error


def _is_turn(turn: Any) -> bool:
    return isinstance(turn, dict) and isinstance(turn.get("from"), str) and isinstance(turn.get("value"), str)


class _Folders:
    """Know which files there are; a folder is read once, as asking for each file takes long on shared disks."""

    def __init__(self, root: Path) -> None:
        self._root, self._names = root, dict[str, set[str]]()

    def have(self, name: str) -> bool:
        """Tell whether a file is there; none is asked for by an empty name."""
        if not name:
            return True
        folder, _, file = name.rpartition("/")
        if folder not in self._names:
            path = self._root / folder
            self._names[folder] = {file.name for file in path.iterdir()} if path.is_dir() else set()
        return file in self._names[folder]


def tokenize_conversation(
    turns: Sequence[Mapping[str, str]], shape: Shape, tokenizer: StandIn | Tokenizer, has_image: bool
) -> dict[str, Tensor]:
    """Return a conversation in the format of LLaVA-1.5 as ids and labels: only answers and their ends are learned.

    It is a fixed sentence, then for each question `USER: `, its image, its text, `ASSISTANT:`, the answer, the end.
    As in LLaVA's code an answer before the first question is left out, and texts around an image are tokenized apart.
    """
    ids, labels = [BEGIN], [IGNORED]

    def add(tokens: list[int], *, is_learned: bool = False) -> None:
        ids.extend(tokens)
        labels.extend(tokens if is_learned else [IGNORED] * len(tokens))

    prompt, is_asked = f"{SYSTEM} ", False
    for turn in turns:
        text = turn["value"]
        if turn["from"] == "gpt":
            if is_asked:
                add(tokenizer(f"{prompt}ASSISTANT:"))
                add([*tokenizer(text), END], is_learned=True)
                prompt, is_asked = "", False
            continue
        prompt, is_asked = f"{prompt}USER: ", True
        if IMAGE in text:
            text = text.replace(IMAGE, "").strip()
            if has_image and shape.image_token not in ids:
                add(tokenizer(prompt))
                add([shape.image_token] * shape.image_tokens)
                prompt = "\n"
        prompt += f"{text} "
    return {"ids": torch.tensor(ids[: shape.longest]), "labels": torch.tensor(labels[: shape.longest])}


def _square(image: Any, size: int) -> Any:
    """Return an image made square by adding to its shorter side, then scaled, as LLaVA-1.5 does."""
    images = import_pillow().Image
    most = max(image.size)
    whole = images.new("RGB", (most, most), GREY)
    whole.paste(image, ((most - image.width) // 2, (most - image.height) // 2))
    return whole.resize((size, size), images.Resampling.BICUBIC)


def make_blank_image(shape: Shape) -> Tensor:
    """Return the image of a sample that has none."""
    return torch.zeros(3, shape.pixels, shape.pixels, dtype=torch.uint8)


class Drawn:
    """Draw ids and lengths by the number of the sample, and take its image from a few that are drawn once.

    Frequent tokens are more frequent than others, as in texts, so that there is something to learn.
    """

    def __init__(self, samples: int, shape: Shape) -> None:
        self._samples, self._shape = samples, shape
        random = torch.Generator().manual_seed(0)
        size = (DRAWN_IMAGES, 3, shape.pixels, shape.pixels)
        self._images = torch.randint(256, size, dtype=torch.uint8, generator=random)

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, number: int) -> dict[str, Tensor]:
        shape, random = self._shape, np.random.default_rng(number)
        image = shape.image_tokens if _has_image(number) else 0
        length = _length(random, shape.text)
        text = BEGIN + 1 + torch.from_numpy((shape.vocabulary - BEGIN - 2) ** random.random(length)).long()
        ids = torch.cat([torch.tensor([BEGIN]), torch.full((image,), shape.image_token), text])[: shape.longest]
        labels = ids.clone()
        labels[: 1 + image + length // 4] = IGNORED  # the question
        return {
            "ids": ids,
            "labels": labels,
            "pixels": self._images[number % DRAWN_IMAGES] if image else make_blank_image(shape),
        }


class Again:
    """Go through a few samples again and again until there are as many as wanted."""

    def __init__(self, few: Conversations, samples: int) -> None:
        self._few, self._samples = few, samples

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, number: int) -> dict[str, Tensor]:
        return self._few[number % len(self._few)]


def _has_image(number: int) -> bool:
    return number % WITHOUT_IMAGE != WITHOUT_IMAGE - 1


def _length(random: np.random.Generator, mean: int) -> int:
    return max(round(mean * float(random.choice(LENGTHS, p=SHARES))), 2)


def write_files(folder: Path, pairs: int, text: int) -> None:
    """Write conversations of random words on random images, in the published form."""
    names = [f"coco/train2017/{number:012d}.jpg" for number in range(-(-pairs // PAIRS_PER_IMAGE))]
    write_jpegs(folder, names, _photo)
    around = len(StandIn(32000)(f"{SYSTEM} USER: ASSISTANT:"))  # tokens of a text beside question and answer
    with (folder / FILE).open("w") as file:
        file.write("[")
        for number in range(pairs):
            random = np.random.default_rng(number)
            words = _words(random, max(_length(random, text) - around, 2))
            asked = max(len(words) // 4, 1)
            image = {"image": names[number % len(names)]} if _has_image(number) else {}
            question = (IMAGE + "\n" if image else "") + " ".join(words[:asked])
            turns = [{"from": "human", "value": question}, {"from": "gpt", "value": " ".join(words[asked:])}]
            record = {"id": f"{number:012d}", **image, "conversations": turns}
            file.write(("," if number else "") + "\n" + json.dumps(record))
        file.write("\n]\n")


def _words(random: np.random.Generator, count: int) -> list[str]:
    """Return words of four letters, some far more frequent than others."""
    numbers = (26.0**4) ** random.random(count)
    return ["".join(chr(97 + int(number) // 26**k % 26) for k in range(4)) for number in numbers]


def _photo(number: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    random = np.random.default_rng(number)
    fields = np.stack([draw_field(random, HIGH, WIDE, 24) for _ in range(3)], axis=2)
    grain = random.integers(0, 32, (HIGH, WIDE, 1))  # photographs have some, and it is what decoding takes time for
    return np.asarray(np.clip(fields * 224 + grain, 0, 255), dtype=np.uint8)


def collate_conversations(samples: Sequence[Mapping[str, Tensor]], *, padding: int) -> dict[str, Any]:
    """Return samples as one batch, filled up at their ends; `tokens` counts what is no filling."""
    most = max(len(sample["ids"]) for sample in samples)

    def filled(key: str, value: int) -> Tensor:
        return torch.stack([torch.nn.functional.pad(s[key], (0, most - len(s[key])), value=value) for s in samples])

    return {
        "ids": filled("ids", padding),
        "labels": filled("labels", IGNORED),
        "pixels": torch.stack([sample["pixels"] for sample in samples]),
        "tokens": sum(len(sample["ids"]) for sample in samples),
    }


def open_conversations(
    asked: str,
    shape: Shape,
    *,
    samples: int,
    tokenizer: Path | None = None,
    held_out: int = 0,
    environ: Mapping[str, str] = os.environ,
) -> tuple[Data, dict[str, str | float]]:
    """Return the data that is asked for and facts on it; the last ones may be held out to test on. Raises ConfigError.

    `samples` is how many synthetic ones there are.
    """
    where = choose_source(asked, (FOLDER,), environ=environ, otherwise=FILES)
    if where == MEMORY:
        return _divided(Drawn(samples, shape), Source(MEMORY, real=False, samples=samples), held_out), {}
    cut = StandIn(shape.vocabulary) if tokenizer is None else Tokenizer(tokenizer, shape.vocabulary)
    tokens = STAND_IN if tokenizer is None else f"tokenizer of {tokenizer}"
    if where == FILES:
        pairs = min(samples, MOST_PAIRS)
        name = f"llava-{pairs}-{shape.text}-2"
        folder = make_once(get_cache_folder(name, environ), lambda made: write_files(made, pairs, shape.text))
        few = Conversations(folder, shape, cut)
        source = Source(FILES, real=False, samples=samples, where=str(folder))
        return _divided(Again(few, samples), source, held_out), {"tokens": tokens, "data_files": pairs}
    assert not isinstance(where, str)
    read = Conversations(where, shape, cut)
    name = name_data(PUBLISHED, counts=read.total == RECORDS and not read.missing)
    source = Source(name, real=True, samples=len(read), where=str(where))
    return _divided(read, source, held_out), {"tokens": tokens, "images_missing": read.missing}


def _divided(whole: Any, source: Source, held_out: int) -> Data:
    if held_out >= len(whole):
        raise ConfigError(f"held_out is {held_out}", why=f"there are {len(whole)} samples", next="hold fewer out")
    trained = len(whole) - held_out
    source = replace(source, samples=trained)
    test = torch.utils.data.Subset(whole, range(trained, len(whole))) if held_out else None
    return Data(torch.utils.data.Subset(whole, range(trained)) if held_out else whole, None, test, source)
