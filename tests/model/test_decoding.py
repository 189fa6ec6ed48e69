"""Decoding with a cache against whole passes, for all designs, and how tokens are drawn."""

import itertools

import pytest
import torch

from depthbench import ModelShape
from depthbench.errors import UserError
from depthbench.model.decoding import Decoder, Sampling, continuation
from helpers import DESIGNS, GQA, MHA, random_model, tokens


@pytest.mark.parametrize("design", DESIGNS)
@pytest.mark.parametrize("shape", [GQA, MHA], ids=["grouped", "plain"])
@pytest.mark.parametrize("cut", [(1,) * 9, (4, 1, 1, 3), (9,)])
def test_pieces_give_the_logits_of_the_whole(design, shape, cut):
    model, x = random_model(design, shape).eval(), tokens(shape)
    decoder = Decoder(model)
    found = torch.cat([decoder(part) for part in x.split(list(cut), dim=1)], dim=1)
    with torch.no_grad():
        torch.testing.assert_close(found, model(x), rtol=1e-10, atol=1e-10)
    assert decoder.length == 9


def test_the_likeliest_token_is_that_of_a_whole_pass_until_the_context_is_full():
    model = random_model("hc", GQA).eval()
    found = list(itertools.islice(continuation(model, [3, 1], Sampling()), 20))
    seen = [3, 1]
    for token in found:
        with torch.no_grad():
            assert token == int(model(torch.tensor([seen]))[0, -1].argmax())
        seen.append(token)
        if len(seen) > GQA.context:
            seen = seen[-(GQA.context // 2) :]


def test_a_long_prompt_is_cut_on_the_left():
    model = random_model("preln", GQA).eval()
    long, short = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11], [3, 4, 5, 6, 7, 8, 9, 10, 11]
    first, second = (next(continuation(model, prompt, Sampling())) for prompt in (long, short))
    assert first == second


def test_a_context_of_one_token():
    model = random_model("preln", ModelShape(1, 8, 2, d_ff=8, vocab_size=5, context=1)).eval()
    assert len(list(itertools.islice(continuation(model, [1], Sampling(temperature=1.0)), 5))) == 5


def test_draws_follow_the_probabilities_that_are_left():
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()[[2, 0, 3, 1]]
    generator = torch.Generator().manual_seed(0)

    def shares(sampling):
        drawn = torch.tensor([sampling.draw(logits, generator) for _ in range(4000)])
        return (torch.bincount(drawn, minlength=4) / 4000).tolist()

    assert shares(Sampling(temperature=1.0)) == pytest.approx([0.15, 0.5, 0.05, 0.3], abs=0.03)
    assert shares(Sampling(temperature=1.0, top_k=2)) == pytest.approx([0, 0.625, 0, 0.375], abs=0.03)
    assert shares(Sampling(temperature=1.0, top_p=0.75)) == pytest.approx([0, 0.625, 0, 0.375], abs=0.03)
    assert shares(Sampling(temperature=1.0, top_p=1e-9)) == [0, 1, 0, 0]
    assert shares(Sampling(temperature=0.5))[1] == pytest.approx(0.25 / 0.365, abs=0.03)
    assert shares(Sampling()) == [0, 1, 0, 0]


def test_a_seed_gives_one_text():
    model = random_model("preln", GQA).eval()
    texts = [list(itertools.islice(continuation(model, [1], Sampling(temperature=1.0, seed=seed)), 30)) for seed in (0, 0, 1)]
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.parametrize("wrong", [{"temperature": -1}, {"temperature": float("nan")}, {"top_k": -1}, {"top_p": 0}, {"top_p": 1.1}])
def test_bad_sampling_is_refused(wrong):
    with pytest.raises(UserError, match=f"{next(iter(wrong))} must be"):
        Sampling(**wrong)
