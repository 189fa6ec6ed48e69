"""Likelihoods against a plain loop over tokens, for any batch size, and what happens at the edges of the context."""

import math

import numpy as np
import pytest
import torch

from depthbench import ModelShape
from depthbench.data.tokenizer import ByteTokenizer
from depthbench.errors import UserError
from depthbench.evaluate.estimates import of_groups, of_task
from depthbench.evaluate.likelihood import Score, encode, pieces, score
from depthbench.evaluate.scored_models import ScoredRun
from depthbench.evaluate.task_files import Document
from helpers import DESIGNS, random_model

SHAPE = ModelShape(3, 16, 4, n_kv_heads=2, d_ff=24, vocab_size=257, context=24)
DOCUMENTS = [
    Document("short", "two and ", "two"),
    Document("no prompt", "", "alone"),
    Document("cut", "a prompt that is longer than the context is", " cut"),
    Document("white", " \n\t", "space moves"),
    Document("long", "a target", " may be longer than the context too, and then it is scored piece by piece, é included"),
    Document("just", "x", "y" * 24),
    Document("one more", "x", "y" * 25),
]


def scored(design="preln", dtype=torch.float64):
    return ScoredRun(random_model(design, SHAPE).to(dtype), ByteTokenizer())


def by_loop(document, model):
    """One token after another, each from at most the context's tokens before it in its piece: no batches, no padding."""
    text = document.prompt.rstrip()
    target = (document.prompt[len(text) :] + document.target).encode()
    before = list(text.encode()) or [256]
    whole = before + list(target)
    total = 0.0
    for place in range(len(target)):
        piece = place // SHAPE.context
        end = len(before) + min((piece + 1) * SHAPE.context, len(target))
        start = max(0, end - SHAPE.context - 1)
        at = len(before) + place
        logits = model.model(torch.tensor([whole[start:at]]))[0, -1].double()
        total -= float(torch.log_softmax(logits, -1)[whole[at]])
    return total, len(target)


@pytest.mark.parametrize("design", DESIGNS)
@pytest.mark.parametrize("batch_size", [1, 3, 100])
def test_scores_are_those_of_a_plain_loop(design, batch_size):
    model = scored(design)
    found = dict(score(DOCUMENTS, model, batch_size))
    assert sorted(found) == list(range(len(DOCUMENTS)))
    with torch.no_grad():
        for number, document in enumerate(DOCUMENTS):
            nll, tokens = by_loop(document, model)
            assert found[number].nll == pytest.approx(nll, rel=1e-10)
            assert found[number].tokens == found[number].bytes == tokens


def test_in_fp32_a_batch_changes_nothing_but_rounding():
    one, many = (dict(score(DOCUMENTS, scored(dtype=torch.float32), size)) for size in (1, 16))
    for number in one:
        assert one[number].nll == pytest.approx(many[number].nll, rel=1e-6)


def test_what_is_cut_and_what_takes_pieces():
    found = [item for _, item in sorted(score(DOCUMENTS, scored(), 4))]
    assert [item.cut for item in found] == [0, 0, 43 + 4 - 25, 0, 7, 0, 0]
    assert [item.pieces for item in found] == [1, 1, 1, 1, 4, 1, 2]
    assert found[3].tokens == len(" \n\tspace moves")


class Merging:
    """A tokenizer that makes one token of the last letter of a prompt and the first of a target."""

    eos, vocab_size, name, hash = 0, 99, "merging", "0"

    def encode(self, text):
        return np.array([7 if pair == "ab" else len(pair) for pair in (text[i : i + 2] for i in range(0, len(text), 2))], np.uint16)


def test_a_token_over_the_border_counts_by_the_length_of_the_prompt_alone():
    model = ScoredRun(random_model("preln", SHAPE), Merging())
    found = encode(Document("m", "xxa", "bcd"), model)  # alone: xx a; together: xx ab cd
    assert found.prompt.tolist() == [2, 7] and found.target.tolist() == [2] and found.text_bytes == 3


def test_pieces_cover_every_token_once():
    model = scored()
    for length in (1, 23, 24, 25, 48, 49, 200):
        encoded = encode(Document("p", "prompt", "t" * length), model)
        parts = pieces(0, encoded, 24)
        assert sum(part.scored for part in parts) == length
        assert all(len(part.tokens) <= 25 and part.scored < len(part.tokens) for part in parts)
        rebuilt = np.concatenate([part.tokens[-part.scored :] for part in parts])
        assert np.array_equal(rebuilt, encoded.target)


def test_the_chunks_of_the_head_change_nothing(monkeypatch):
    from depthbench.evaluate import likelihood

    whole = dict(score(DOCUMENTS, scored(), 8))
    monkeypatch.setattr(likelihood, "CHUNK_LOGITS", 1)
    parts = dict(score(DOCUMENTS, scored(), 8))
    for number, item in whole.items():
        assert parts[number].nll == pytest.approx(item.nll, rel=1e-12)


def test_a_tokenizer_with_more_ids_than_the_model_is_refused():
    with pytest.raises(UserError, match="vocabulary of 256, and the tokenizer bytes gives ids up to 256"):
        ScoredRun(random_model("preln", ModelShape(1, 8, 2, d_ff=8, vocab_size=256, context=4)), ByteTokenizer())


def test_task_scores_and_their_errors():
    generator = np.random.default_rng(0)
    tokens = generator.integers(5, 50, 4000)
    nll = tokens * 2.0 + generator.normal(0, 3, 4000) * np.sqrt(tokens)
    scores = [Score(float(y), int(x), int(2 * x), int(x % 3), 1 + int(x > 48), False) for y, x in zip(nll, tokens, strict=True)]
    found = of_task(scores)
    assert found["nll"] == pytest.approx(nll.sum() / tokens.sum()) and found["tokens"] == tokens.sum()
    assert found["bits_per_byte"] == pytest.approx(nll.sum() / math.log(2) / (2 * tokens.sum()))
    assert found["cut_documents"] == (tokens % 3 > 0).sum() and found["documents_in_pieces"] == (tokens > 48).sum()
    resampled = []
    for _ in range(400):
        chosen = generator.integers(0, 4000, 4000)
        resampled.append(nll[chosen].sum() / tokens[chosen].sum())
    assert found["nll_standard_error"] == pytest.approx(np.std(resampled), rel=0.15)
    assert of_task(scores[:1])["nll_standard_error"] is None


def test_a_group_is_the_plain_mean_of_its_tasks():
    def task(group, value, error):
        return {"group": group} | {
            f"{key}{end}": v for key in ("nll", "bits_per_byte") for end, v in (("", value), ("_standard_error", error))
        }

    found = of_groups({"a": task("math", 1.0, 0.3), "b": task("math", 2.0, 0.4), "c": task("stem", 5.0, None)})
    assert found["math"]["tasks"] == ["a", "b"] and found["math"]["nll"] == 1.5
    assert found["math"]["nll_standard_error"] == pytest.approx(0.25)
    assert found["stem"]["bits_per_byte"] == 5.0 and found["stem"]["bits_per_byte_standard_error"] is None
