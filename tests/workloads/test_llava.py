"""LLaVA and the generation of tokens: models counted, trained and asked, in one process.

They are one file because transformers takes seconds to import.
"""

from __future__ import annotations

import json
import math
import re
import signal
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("PIL.Image")

import joulelab  # noqa: E402
from joulelab.core.errors import ConfigError  # noqa: E402
from joulelab.run.workload_registry import merge_parameters  # noqa: E402
from joulelab.workloads import llava15_13b as training  # noqa: E402
from joulelab.workloads import llm_infer as serving  # noqa: E402
from joulelab.workloads.data import llava_mix as data  # noqa: E402
from joulelab.workloads.models import llama, llava  # noqa: E402
from joulelab.workloads.training import loop, training_parameters  # noqa: E402
from joulelab.workloads.training.model_figures import count_model  # noqa: E402
from joulelab.workloads.training.ranks import Ranks  # noqa: E402

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.system

__all__ = ["one_thread"]  # pytest calls it

TINY = llava.SIZES["tiny"]
SHAPE = data.Shape(TINY.pixels, TINY.image_tokens, TINY.decoder.vocabulary, text=40, longest=200)
PADDING = SHAPE.image_token + 1


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def told(monkeypatch):
    """Take the facts and the work that are told, and the phases in which."""
    facts: dict[str, object] = {}
    amounts: dict[str, float] = {}

    def add(**more: float) -> None:
        for key, value in more.items():
            amounts[key] = amounts.get(key, 0) + value

    monkeypatch.setattr(joulelab, "fact", facts.update, raising=False)
    monkeypatch.setattr(joulelab, "work", add, raising=False)
    monkeypatch.setattr(joulelab, "step", lambda **more: add(steps=1, **more), raising=False)
    return facts, amounts


@pytest.fixture
def signals():
    """Put back what is done on SIGTERM: a workload sets its own."""
    found = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, found)


def one_text(folder: Path) -> Path:
    """Write a conversation without an image and one whose image is missing, in the published form."""
    turns = [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "A bird"}]
    written = [{"conversations": turns}, {"image": "none.jpg", "conversations": turns}]
    (folder / data.FILE).write_text(json.dumps(written))
    return folder


def test_a_tokenizer_of_a_folder(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    model = {"type": "WordLevel", "vocab": {"<unk>": 0, "A": 5, "far": 5000}, "unk_token": "<unk>"}
    empty = dict.fromkeys(("truncation", "padding", "normalizer", "post_processor", "decoder"))
    whole = {"version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "Whitespace"}, "model": model, **empty}
    words = tokenizers.Tokenizer.from_str(json.dumps(whole))
    transformers.PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(tmp_path / "words")
    found, facts = data.open_conversations(str(one_text(tmp_path)), SHAPE, samples=9, tokenizer=tmp_path / "words")
    assert facts["tokens"] == f"tokenizer of {tmp_path / 'words'}"
    assert 5 in found.train[0]["ids"]
    assert data.Tokenizer(tmp_path / "words", 1000)("A far") == [5]  # what the model does not know is left out
    with pytest.raises(ConfigError, match="there is no tokenizer"):
        data.open_conversations(str(tmp_path), SHAPE, samples=9, tokenizer=tmp_path)


def batch_of(*numbers: int) -> dict:
    found, _ = data.open_conversations("synthetic-memory", SHAPE, samples=100)
    return data.collate_conversations([found.train[k] for k in numbers], padding=PADDING)


class TestModel:
    def test_its_way_is_that_of_transformers(self):
        ours, batch = llava.build(TINY).eval(), batch_of(0, 3)
        theirs = transformers.LlavaForConditionalGeneration(ours.config).eval()
        theirs.load_state_dict(ours.state_dict())
        mean, deviation = (torch.tensor(of)[:, None, None] for of in (llava.MEAN, llava.DEVIATION))
        scaled, mask = (batch["pixels"].float() / 255 - mean) / deviation, batch["ids"] != PADDING
        with torch.no_grad():
            expected = theirs(input_ids=batch["ids"], pixel_values=scaled, attention_mask=mask.long()).logits
            found = ours(batch["ids"], batch["pixels"])
            alone = ours(batch["ids"][:1, : int(mask[0].sum())], batch["pixels"][:1])
        assert not mask.all()
        assert torch.allclose(found[mask], expected[mask], atol=1e-5)
        assert torch.allclose(alone[0], found[0, : alone.shape[1]], atol=1e-5)

    def test_only_the_decoder_learns_and_recomputing_changes_nothing(self):
        batch, found = batch_of(0, 15), {}
        for recomputes in (False, True):
            torch.manual_seed(1)
            model = llava.build(TINY, recomputes=recomputes).train()
            llava.loss(model, batch).backward()
            found[recomputes] = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
        assert {name.split(".")[1] for name in found[True]} == {"language_model", "weight"}
        assert all(torch.allclose(found[True][name], grad, atol=1e-6) for name, grad in found[False].items())
        assert found[True].keys() == found[False].keys()

    def test_scores_are_sums_of_what_is_learned(self):
        model, batch = llava.build(TINY).eval(), batch_of(1, 2)
        with torch.no_grad():
            sums, mean = llava.score(llava.forward(model, batch), batch), llava.loss(model, batch).item()
        assert sums["learned"] == int((batch["labels"][:, 1:] != data.IGNORED).sum())
        assert sums["loss"] / sums["learned"] == pytest.approx(mean)
        assert training.quality(sums)["perplexity"] == pytest.approx(math.exp(mean))
        assert 0 <= training.quality(sums)["token_accuracy"] <= 1
        assert training.quality({}) == {}

    def test_weights_come_from_a_folder_of_the_same_size(self, tmp_path):
        saved = llava.build(TINY)
        saved.save_pretrained(tmp_path)

        def fill(size: llava.Size, folder: Path | None) -> llava.Llava:
            with torch.device("meta"):
                model = llava.build(size)
            model.to_empty(device="cpu")
            llava.fill_weights(model, folder, seed=3)
            return model

        read = fill(TINY, tmp_path)
        assert all(torch.equal(a, b) for a, b in zip(saved.parameters(), read.parameters(), strict=True))
        assert all(torch.equal(a, b) for a, b in zip(saved.buffers(), read.buffers(), strict=True))
        assert not any(p.requires_grad for p in read.model.vision_tower.parameters())
        drawn, again = (dict(fill(TINY, None).named_parameters()) for _ in range(2))
        assert all(torch.equal(drawn[name], again[name]) for name in drawn)
        # Drawn as transformers draws them: constants are the same, the decoder's spread is.
        for name, parameter in saved.named_parameters():
            if parameter.std() == 0:
                assert torch.equal(parameter, drawn[name]), name
            elif "language_model" in name:
                assert drawn[name].std().item() == pytest.approx(parameter.std().item(), rel=0.1)
        other = llava.Size(TINY.decoder, hidden=32, inner=64, layers=2, heads=4, pixels=56)
        with pytest.raises(ConfigError, match=r"has the shape \[64\], that of the size asked for \[32\]"):
            fill(other, tmp_path)
        most = {name: value for name, value in saved.state_dict().items() if name != "lm_head.weight"}
        saved.save_pretrained(tmp_path / "most", state_dict=most)
        with pytest.raises(ConfigError, match=r"1 weights are not there, lm_head\.weight among them"):
            fill(TINY, tmp_path / "most")
        (tmp_path / "model.safetensors").write_bytes(b"broken")
        with pytest.raises(ConfigError, match="there is no model that can be read"):
            fill(TINY, tmp_path)
        (tmp_path / "model.safetensors").unlink()
        with pytest.raises(ConfigError, match="it has no safetensors files"):
            fill(TINY, tmp_path)

    @pytest.mark.parametrize(
        ("published", "ours"),
        [
            ("language_model.lm_head.weight", "lm_head.weight"),
            ("language_model.model.layers.0.mlp.up_proj.weight", "model.language_model.layers.0.mlp.up_proj.weight"),
            ("model.language_model.norm.weight", "model.language_model.norm.weight"),
            ("vision_tower.vision_model.pre_layrnorm.bias", "model.vision_tower.pre_layrnorm.bias"),
            ("multi_modal_projector.linear_1.bias", "model.multi_modal_projector.linear_1.bias"),
            ("lm_head.weight", "lm_head.weight"),
        ],
    )
    def test_weights_have_had_several_names(self, published, ours):
        assert llava._rename_weight(published) == ours

    def test_a_rank_reads_only_its_own_rows(self, tmp_path):
        import torch.distributed as dist
        from torch.testing._internal.distributed.fake_pg import FakeStore

        saved = llava.build(TINY)
        saved.save_pretrained(tmp_path)
        dist.init_process_group("fake", store=FakeStore(), rank=2, world_size=3)
        try:
            task = training.task(merge_parameters("x", training.PARAMETERS, {**training.PRESETS["smoke"], "seed": "3"}))
            task = replace(task, fill=lambda model: llava.fill_weights(model, tmp_path, 3))
            with torch.device("meta"):
                model = task.model()
            placed = Ranks(2, 2, 3, torch.device("cpu")).place_model(model, task, "fp32")
            parts = {name: p.to_local() for name, p in placed.named_parameters()}
        finally:
            dist.destroy_process_group()
        for name, whole in saved.named_parameters():
            each = -(-len(whole) // 3)
            assert torch.equal(parts[name], whole[2 * each :]), name

    def counted(self, **sizes: int):
        """Count the model of the paper with fewer layers, or as it is."""
        full = llava.SIZES["13b"]
        decoder = replace(full.decoder, layers=sizes.get("decoder", full.decoder.layers))
        size = replace(full, decoder=decoder, layers=sizes.get("tower", full.layers))
        task = training.task(merge_parameters("x", training.PARAMETERS, {"data": "synthetic-memory", "samples": "200"}))
        return count_model(lambda: llava.build(size, recomputes=True), task.example, task.loss)

    def seen(self) -> int:
        """Return the FLOP of the tower and the projector."""
        with torch.device("meta"), torch.no_grad():
            model = llava.build(replace(llava.SIZES["13b"], decoder=TINY.decoder))
            with torch.utils.flop_counter.FlopCounterMode(display=False) as tower:
                model.model.vision_tower(torch.empty(1, 3, 336, 336))
        assert tower.get_total_flops() == pytest.approx(381.9e9, rel=1e-4)
        return tower.get_total_flops() + 2 * 576 * (1024 * 5120 + 5120 * 5120)

    def check(self, parameters: int, forward: int, whole: int) -> None:
        """Compare with the facts; they have FLOP of the decoder to four digits."""
        assert parameters == 13_351_494_656
        layer = 2 * 876 * (4 * 5120**2 + 3 * 5120 * 13824) + 4 * 876**2 * 5120
        assert forward == 40 * layer + 2 * 876 * 5120 * 32064
        assert (forward / 1e9, whole / 1e9) == (pytest.approx(23_150, abs=5), pytest.approx(69_440, abs=5))

    def test_parameters_and_flop_are_those_known(self):
        one, two = self.counted(decoder=1, tower=2), self.counted(decoder=2, tower=2)
        with torch.device("meta"):
            model = llava.build(replace(llava.SIZES["13b"], decoder=TINY.decoder, layers=2)).model
            x = torch.empty(1, 3, 336, 336)
            with torch.utils.flop_counter.FlopCounterMode(display=False) as tower, torch.no_grad():
                model.vision_tower(x)
            parameters = sum(p.numel() for p in llava.build(llava.SIZES["13b"]).parameters())
        seen = tower.get_total_flops() + 2 * 576 * (1024 * 5120 + 5120 * 5120)
        forward, whole = (
            (of(one) + 39 * (of(two) - of(one)) - seen) for of in (lambda c: c.forward, lambda c: c.training)
        )
        self.check(parameters, forward, whole)
        self.seen()

    @pytest.mark.campaign
    def test_the_whole_model_has_these_too(self):
        whole, seen = self.counted(), self.seen()
        self.check(whole.parameters, whole.forward - seen, whole.training - seen)
        assert whole.trained == 13_016_519_680


class TestTraining:
    def given(self, **more: str) -> dict[str, str]:
        return merge_parameters(
            "llava15-13b", training.PARAMETERS, {**training.PRESETS["smoke"], "max_seconds": "0", **more}
        )

    def test_the_loss_falls_and_all_is_told(self, tmp_path, told, capsys):
        facts, amounts = told
        training.task(self.given(data=str(one_text(tmp_path)), held_out="0"))
        assert "1 records are left out: their image is missing" in capsys.readouterr().err
        loop.run_training_loop("llava15-13b", training.task, self.given(save="no", max_steps="10", recompute="no"))
        assert facts["loss_last"] < facts["loss_first"] - 0.3
        assert (facts["data"], facts["weights"], facts["model"]) == ("synthetic-memory", "random", "tiny")
        assert (facts["stopped_by"], facts["flop_tokens"]) == ("max_steps", 128)
        assert 1 < facts["perplexity"] < 1000
        assert (amounts["samples"], amounts["predicted"]) == (4 * 10, 8)
        assert 80 * 40 < amounts["tokens"] < 200 * 40

    def test_without_held_out_samples_it_trains_and_predicts_nothing(self, told, capsys):
        facts, amounts = told
        paper = merge_parameters("llava15-13b", training.PARAMETERS, training.PRESETS["paper"])
        assert paper["held_out"] == "0"
        loop.run_training_loop(
            "llava15-13b", training.task, self.given(held_out=paper["held_out"], save="no", max_steps="2")
        )
        assert (facts["steps"], facts["quality"], amounts["samples"]) == (2, "", 8)
        assert "predicted" not in amounts
        assert "perplexity" not in facts
        assert "steps 2 (until max_steps)" in capsys.readouterr().out

    def test_the_rate_rises_and_falls(self):
        rates = [training.share(step, 100, 0.03) for step in range(101)]
        assert rates[:4] == pytest.approx([1 / 3, 2 / 3, 1, 1], abs=1e-3)
        assert rates[3:] == sorted(rates[3:], reverse=True)
        assert rates[100] == pytest.approx(0)
        assert training.share(0, 10, 0.0) == 1

    def test_the_paper_s_settings(self):
        given = merge_parameters("x", training.PARAMETERS, training.PRESETS["paper"])
        assert (given["batch"], float(given["rate"]), float(given["warmup_ratio"])) == ("128", 2e-5, 0.03)
        assert (given["model"], given["precision"], given["text"]) == ("13b", "bf16", "300")
        assert float(given["clip"]) == 1
        assert training.command(given)[2] == "joulelab.workloads.llava15_13b"

    @pytest.mark.parametrize(
        ("key", "value", "why"),
        [
            ("model", "70b", "give one of: 13b, 7b, tiny"),
            ("weights", "nowhere", "weights is 'nowhere'.*no such folder"),
            ("tokenizer", "nowhere", "tokenizer is 'nowhere'.*or auto"),
            ("warmup_ratio", "2", "from 0 to 1"),
            ("recompute", "perhaps", "yes, no"),
            ("batch", "0", "batch is '0'"),
        ],
    )
    def test_wrong_values_are_told(self, key, value, why):
        with pytest.raises(ConfigError, match=why):
            training.command(self.given(**{key: value}))

    @pytest.mark.parametrize(
        ("asked", "wanted"), [("synthetic-files", True), ("auto", True), ("synthetic-memory", False)]
    )
    def test_pillow_is_asked_for_beforehand_where_images_are_read(self, asked, wanted, monkeypatch):
        needed = []
        monkeypatch.setattr(training_parameters, "require_libraries", lambda _, *libraries: needed.extend(libraries))
        training.command(self.given(data=asked))
        assert needed == ["torch", "transformers", *(["PIL"] if wanted else [])]

    def test_the_tokenizer_of_the_weights_is_used(self, tmp_path):
        given = self.given(weights=str(tmp_path))
        assert training._tokenizer(given, tmp_path) is None
        (tmp_path / "tokenizer.model").touch()
        assert training._tokenizer(given, tmp_path) == tmp_path
        assert training._tokenizer(self.given(tokenizer=str(tmp_path)), None) == tmp_path


class TestServing:
    def given(self, **more: str) -> dict[str, str]:
        small = {"model": "tiny", "batch": "2", "prompt": "9", "length": "5", "repeats": "2", "device": "cpu"}
        return merge_parameters("llm-infer", serving.PARAMETERS, {**small, "threads": "1", **more})

    def serve(self, **more: str) -> None:
        given = self.given(**more)
        serving.serve(given, serving.read(given))

    def test_flop_are_those_of_every_length(self):
        with torch.device("meta"):
            model = llama.build(llama.config(llama.DECODERS["7b"]), torch.float32)
        assert sum(p.numel() for p in model.parameters()) == 6_738_415_616
        parameters, found = serving.count(llama.config(replace(llama.DECODERS["7b"], layers=2)), 512)
        layer, head = 4 * 4096**2 + 3 * 4096 * 11008, 2 * 4096 * 32000
        assert parameters == 2 * (layer + 2 * 4096) + 4096 + head

        def expected(tokens: int, context: int) -> int:
            return 2 * (2 * tokens * layer + 4 * tokens * context * 4096) + head

        assert found.of(1) == expected(512, 512)
        assert [found.of(k) for k in (2, 3, 100)] == [expected(1, 512 + k - 1) for k in (2, 3, 100)]
        assert found.mean(4) == sum(found.of(k) for k in (2, 3, 4)) / 3
        assert found.mean(1) == 0

    def test_flop_of_heads_that_share_keys(self):
        described = transformers.LlamaConfig(
            vocab_size=99, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2
        )
        _, found = serving.count(described, 8)
        assert found.more == 2 * 4 * 64  # two layers; each head still looks at each key

    def test_tokens_are_counted_and_the_same_each_time(self, told, capsys):
        facts, amounts = told
        self.serve()
        first, flop = dict(facts), amounts["FLOP"]
        _, each = serving.count(llama.config(llama.DECODERS["tiny"]), 9)
        assert (amounts["tokens"], amounts["prompt_tokens"], amounts["requests"], amounts["steps"]) == (20, 36, 4, 10)
        assert flop == 4 * sum(each.of(k) for k in range(1, 6))
        assert (first["data"], first["weights"], first["dtype"]) == ("random prompts", "random", "float32")
        assert (first["stopped_by"], first["parameters"], first["threads"]) == ("end", 210_240, 1)
        assert "tokens 20 (until end)" in capsys.readouterr().out
        self.serve()
        assert facts["answers_crc"] == first["answers_crc"]
        self.serve(seed="1")
        assert facts["answers_crc"] != first["answers_crc"]

    def test_answers_are_those_of_transformers(self, tmp_path, told):
        facts, _ = told
        torch.manual_seed(3)
        model = llama.build(llama.config(llama.DECODERS["tiny"]), torch.float32)
        prompts = torch.randint(1000, (2, 7))
        expected = model.generate(prompts, max_new_tokens=6, do_sample=False, attention_mask=torch.ones_like(prompts))
        with torch.inference_mode():
            answer = serving.Answer(model, prompts)
            found = torch.cat([answer.forward() for _ in range(6)], dim=1)
        assert torch.equal(found, expected[:, 7:])
        model.save_pretrained(tmp_path)
        self.serve(model=str(tmp_path), length="1", repeats="1")
        assert facts["weights"] == str(tmp_path)
        (tmp_path / "model.safetensors").unlink()
        with pytest.raises(ConfigError, match="there is no model that can be read"):
            self.serve(model=str(tmp_path))

    def test_what_is_told_is_that_of_all_ranks(self, told, capsys, monkeypatch):
        facts, _ = told
        self.serve()
        alone = facts["answers_crc"]
        capsys.readouterr()
        other = {"tokens": 7, "waited_s": 3600.0, "prompts": 2, "cut": True, "output": 2}
        both = lambda _, own: {key: own[key] + other[key] for key in own}  # noqa: E731
        monkeypatch.setattr("joulelab.workloads.training.ranks.Ranks.sum_amounts", both)
        self.serve()
        assert "tokens 27 (until max_seconds)" in capsys.readouterr().out
        assert 900 < facts["first_token_s"] < 910
        assert int(facts["answers_crc"], 16) == (int(alone, 16) + 2) % (1 << 32)

    def test_what_was_really_computed_with_is_told(self):
        with pytest.raises(ConfigError, match="CPUs do not have it"):
            serving._check_dtype("tf32", "cpu")
        serving._check_dtype("tf32", "cuda")
        serving._check_dtype("bf16", "cpu")
        assert any("start-up" in note for note in serving.NOTES if note.startswith("J/token"))

    def test_it_stops_in_time(self, told):
        facts, amounts = told
        self.serve(repeats="100000", length="3000", max_seconds="0.2")
        assert facts["stopped_by"] == "max_seconds"
        assert 0 < amounts["tokens"] < 100_000
        assert "requests" not in amounts or amounts["requests"] * 3000 <= amounts["tokens"]

    @pytest.mark.parametrize(
        ("words", "why"),
        [
            (["model=70b"], r"model is '70b' \(there is no such folder\)"),
            (["batch=0"], "batch is '0'"),
            (["dtype=int4"], "give one of: auto, bf16"),
            (["model=tiny", "dtype=tf32", "device=cpu"], r"dtype is 'tf32' \(CPUs do not have it\); give dtype=fp32"),
            (["model=tiny", "dtype=tf32"], "CPUs do not have it"),
            (["model=tiny", "nodes=2", "device=cpu"], "there is no rendezvous"),
            (["model=tiny", "nodes=2", "rendezvous=here"], "write it as HOST:PORT"),
            (["model=tiny", "device=cpu", "prompt=4000", "length=97"], "4097 tokens, the model takes 4096"),
        ],
    )
    @pytest.mark.usefixtures("signals")
    @pytest.mark.skipif(torch.cuda.device_count() > 0, reason="one of them needs a CPU")
    def test_what_cannot_be_done_is_told(self, words, why, capsys):
        assert serving.main(words) == 2
        assert re.search(why, capsys.readouterr().err)

    @pytest.mark.usefixtures("signals")
    def test_its_words(self):
        words = serving.command(merge_parameters("x", serving.PARAMETERS, serving.PRESETS["smoke"]))
        assert words[1:4] == ["-m", "joulelab.workloads.llm_infer", "model=tiny"]
        assert serving.main([*words[3:], "repeats=1"]) == 2  # given twice
