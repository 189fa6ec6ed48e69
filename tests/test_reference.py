"""The slow reference holds what the specification promises, checked without the package."""

import math

import pytest
import torch

from reference import DESIGNS, initial_mixing, parameter_shapes, reference_logits, reference_trace, rope, sinkhorn

SHAPE = {"n_layers": 3, "d_model": 12, "n_heads": 4, "n_kv_heads": 2, "head_dim": 4, "d_ff": 10, "vocab_size": 11}
TOKENS = torch.tensor([[3, 1, 4, 1], [9, 2, 6, 5]])
VARIANTS = [
    *((design, {}) for design in DESIGNS),
    ("sandwich", {"embedding_norm": True}),
    ("deepnorm", {"norm": "rms"}),
    ("hc", {"dynamic": False}),
    ("hc", {"tanh": False, "streams": 3}),
    ("mhc", {"streams": 2, "rounds": 3}),
    ("attnres", {"scale": True}),
    ("attnres_block", {"block_size": 4}),
]


def random_parameters(design, seed=0, shape=SHAPE, **options):
    """Every parameter its initial value (0 for a matrix drawn at random) plus noise large enough that each matters."""
    generator = torch.Generator().manual_seed(seed)
    initial = initial_mixing(design, shape, **options)
    return {
        name: initial.get(name, 0) + 0.5 * torch.randn(size, generator=generator, dtype=torch.float64)
        for name, size in parameter_shapes(design, shape, **options).items()
    }


def initial_parameters(design, **options):
    """The same random backbone for every design, and the design's own initial mixing values."""
    values = random_parameters("preln") | initial_mixing(design, SHAPE, **options)
    return {name: values[name] for name in parameter_shapes(design, SHAPE, **options)}


def close(a, b, tolerance=1e-12):
    torch.testing.assert_close(a, b, rtol=0, atol=tolerance)


@pytest.mark.parametrize(("design", "options"), VARIANTS)
def test_a_token_changes_nothing_before_it_and_everything_from_it(design, options):
    parameters, changed = random_parameters(design, **options), TOKENS.clone()
    changed[:, 2] = 7
    before = reference_logits(design, SHAPE, parameters, TOKENS, **options)
    after = reference_logits(design, SHAPE, parameters, changed, **options)
    assert before.shape == (2, 4, 11) and before.dtype == torch.float64
    close(after[:, :2], before[:, :2], 1e-13)
    assert ((after - before)[:, 2:].abs().amax(-1) > 1e-6).all()


def test_rope_turns_the_two_halves_by_the_stated_angles():
    turned = rope(torch.ones(1, 4, 4, dtype=torch.float64))
    a, b = 3.0, 0.03  # position 3, head_dim 4: 3 * 10000^0 and 3 * 10000^(-1/2)
    expected = [math.cos(a) - math.sin(a), math.cos(b) - math.sin(b), math.cos(a) + math.sin(a), math.cos(b) + math.sin(b)]
    close(turned[0, 3], torch.tensor(expected, dtype=torch.float64))
    close(turned[0, 0], torch.ones(4, dtype=torch.float64))


def test_neighbouring_query_heads_share_a_key_value_head():
    parameters = random_parameters("preln")
    before = reference_trace("preln", SHAPE, parameters, TOKENS)["attention"][0]
    parameters["blocks.0.attention.k.weight"][:4] += 1  # KV head 0
    moved = (reference_trace("preln", SHAPE, parameters, TOKENS)["attention"][0] - before).abs().amax((0, 2, 3)) > 1e-3
    assert moved.tolist() == [True, True, False, False]


@pytest.mark.parametrize(("design", "options"), VARIANTS)
def test_every_parameter_is_in_the_graph(design, options):
    parameters = {name: value.requires_grad_() for name, value in random_parameters(design, **options).items()}
    reference_logits(design, SHAPE, parameters, TOKENS, **options).square().sum().backward()
    assert [name for name, value in parameters.items() if value.grad is None] == []


@pytest.mark.parametrize(
    ("design", "options"),
    [
        ("hc", {}),
        ("hc", {"dynamic": False, "streams": 2}),
        ("mhc", {}),
        ("mhc", {"streams": 2}),
        ("attnres", {}),
        ("attnres_block", {}),
        ("attnres_block", {"block_size": 1}),
        ("attnres_block", {"n_blocks": 2}),  # segments of 3 sublayers
        ("attnres_block", {"block_size": 4}),  # the last one partial
    ],
)
def test_step_0_equals_preln(design, options):
    expected = reference_logits("preln", SHAPE, initial_parameters("preln"), TOKENS, norm_eps=1e-30)
    close(reference_logits(design, SHAPE, initial_parameters(design, **options), TOKENS, norm_eps=1e-30, **options), expected)


def test_segments_of_one_sublayer_are_attnres():
    parameters = random_parameters("attnres")
    expected = reference_trace("attnres", SHAPE, parameters, TOKENS)
    found = reference_trace("attnres_block", SHAPE, parameters, TOKENS, block_size=1)
    close(found["logits"], expected["logits"])
    for a, b in zip(found["weights"], expected["weights"], strict=True):
        close(a, b)


@pytest.mark.parametrize(
    ("options", "sources"),
    [
        ({}, [1, 2, 2, 3, 3, 4, 4]),  # 6 sublayers, 4 segments asked for: size 2, so 3 segments
        ({"n_blocks": 2}, [1, 2, 2, 2, 3, 3, 3]),  # odd size 3: the seal falls inside block 1
        ({"block_size": 4}, [1, 2, 2, 2, 2, 3, 3]),  # the last segment is partial and the close still reads it
        ({"block_size": 100}, [1, 2, 2, 2, 2, 2, 2]),
    ],
)
def test_sources_of_each_mix_and_what_they_hold(options, sources):
    trace = reference_trace("attnres_block", SHAPE, random_parameters("attnres_block"), TOKENS, **options)
    assert [w.shape[-1] for w in trace["weights"]] == sources
    close(sum(trace["states"][-1]), trace["embedding"] + sum(trace["outputs"]))


def test_sinkhorn_rows_and_columns():
    generator = torch.Generator().manual_seed(0)
    R = sinkhorn(torch.randn(50, 4, 4, generator=generator, dtype=torch.float64))
    assert (R > 0).all()
    assert (R.sum(-1) - 1).abs().max() < 1e-12
    assert (R.sum(-2) - 1).abs().max() < 1e-4
    one_round = sinkhorn(torch.log(torch.tensor([[1.0, 1.0], [1.0, 3.0]], dtype=torch.float64)), rounds=1)
    close(one_round, torch.tensor([[2 / 3, 1 / 3], [2 / 5, 3 / 5]], dtype=torch.float64))  # columns first, then rows


def test_initial_mhc_maps():
    trace = reference_trace("mhc", SHAPE, initial_parameters("mhc"), TOKENS)
    for i in range(6):
        assert trace["h_pre"][i].argmax(-1).unique().tolist() == [i % 4]
        close(trace["h_post"][i], torch.ones(2, 4, 4, dtype=torch.float64))
        off = math.exp(-8) / (1 + 3 * math.exp(-8))
        close(trace["R"][i][0, 0], off + (1 - 4 * off) * torch.eye(4, dtype=torch.float64))


def test_mhc_moves_a_stream_from_source_to_target():
    """R close to the cycle t ← t - 1, not symmetric; only stream 0 is written, so the first output wanders 0 → 1 → 2."""
    n, parameters = 4, initial_parameters("mhc")
    for i in range(6):
        bias = parameters[f"blocks.{i // 2}.{'mlp_link' if i % 2 else 'attention_link'}.bias"]
        bias[n : 2 * n] = torch.tensor([0.0, -80.0, -80.0, -80.0])
        bias[2 * n :] = -80.0
        for t in range(n):
            bias[2 * n + t * n + (t - 1) % n] = 0.0
    trace = reference_trace("mhc", SHAPE, parameters, TOKENS)
    close(trace["states"][0][:, :, 0], trace["embedding"] + trace["outputs"][0])
    close(trace["states"][1][:, :, 1], trace["embedding"] + trace["outputs"][0])
    close(trace["states"][2][:, :, 2], trace["embedding"] + trace["outputs"][0])
    close(trace["states"][1][:, :, 3], trace["embedding"])


def test_hc_moves_a_stream_from_source_row_to_target_column():
    """Static A with the cycle t ← t - 1 in columns 1…n, and b that writes stream 0 alone."""
    n, parameters = 4, initial_parameters("hc", dynamic=False)
    for i in range(6):
        link = f"blocks.{i // 2}.{'mlp_link' if i % 2 else 'attention_link'}"
        parameters[f"{link}.A0"][:, 1:] = torch.roll(torch.eye(n, dtype=torch.float64), 1, dims=1)  # row s has its one at s + 1
        parameters[f"{link}.b0"][:] = torch.tensor([1.0, 0.0, 0.0, 0.0])
    trace = reference_trace("hc", SHAPE, parameters, TOKENS, dynamic=False)
    for i in range(3):
        close(trace["states"][i][:, :, i], trace["embedding"] + trace["outputs"][0])
        close(trace["inputs"][i + 1], trace["states"][i][:, :, (i + 1) % n])  # column 0 reads stream i mod n


def test_moda_reads_two_slots_a_block():
    trace = reference_trace("moda", SHAPE, random_parameters("moda"), TOKENS)
    for block, weights in enumerate(trace["attention"]):
        assert weights.shape == (2, 4, 4, 4 + 2 * block)
        close(weights.sum(-1), torch.ones(2, 4, 4, dtype=torch.float64))
        assert (weights[..., 4:] > 0).all()
        assert (weights[..., :4].triu(1) == 0).all()


def test_moda_with_zero_queries_weighs_sequence_and_depth_alike():
    """With all queries zero every weight is 1 / (t + 1 + 2l): sequence and depth stand in one softmax."""
    parameters = random_parameters("moda")
    for block in range(3):
        parameters[f"blocks.{block}.attention.q.weight"].zero_()
    for block, weights in enumerate(reference_trace("moda", SHAPE, parameters, TOKENS)["attention"]):
        for t in range(4):
            close(weights[:, :, t, t], torch.full((2, 4), 1 / (t + 1 + 2 * block), dtype=torch.float64))


def test_moda_depth_keys_are_not_rotated():
    """On a repeated token the log-weight of a depth slot against the token itself moves with the position of the query alone."""
    trace = reference_trace("moda", SHAPE, random_parameters("moda"), torch.full((1, 4), 7))
    own = torch.diagonal(trace["attention"][1][..., :4], dim1=-2, dim2=-1)
    against_own = torch.log(trace["attention"][1][..., 4:] / own[..., None])
    assert (against_own[:, :, 1:] - against_own[:, :, :1]).abs().amin() > 1e-6


def test_moda_feed_forward_slot_takes_its_keys_from_the_first_rows():
    parameters = random_parameters("moda")
    before = reference_trace("moda", SHAPE, parameters, TOKENS)
    parameters["blocks.0.mlp_link.kv.weight"][8:] += 1  # the V rows
    values = reference_trace("moda", SHAPE, parameters, TOKENS)
    close(values["attention"][1], before["attention"][1])
    assert (values["outputs"][2] - before["outputs"][2]).abs().amax() > 1e-3
    parameters["blocks.0.mlp_link.kv.weight"][:8] += 1  # the K rows
    keys = reference_trace("moda", SHAPE, parameters, TOKENS)
    assert (keys["attention"][1][..., 5] - before["attention"][1][..., 5]).abs().amax() > 1e-3


@pytest.mark.parametrize("design", ["attnres", "attnres_block"])
def test_scale_divides_the_logits_by_the_root_of_the_width(design):
    parameters = random_parameters(design)
    smaller = {name: value / math.sqrt(12) if name.endswith("query") else value for name, value in parameters.items()}
    expected = reference_logits(design, SHAPE, smaller, TOKENS)
    close(reference_logits(design, SHAPE, parameters, TOKENS, scale=True), expected)
    assert (reference_logits(design, SHAPE, parameters, TOKENS) - expected).abs().max() > 1e-3


def test_sandwich_norms_the_output_before_the_addition():
    trace = reference_trace("sandwich", SHAPE, initial_parameters("sandwich"), TOKENS)
    y = trace["outputs"][3]
    close(trace["states"][3] - trace["states"][2], y / y.square().mean(-1, keepdim=True).add(1e-6).sqrt())


def test_hc_and_mhc_close_by_sum_and_mean():
    for design, fold in (("hc", torch.sum), ("mhc", torch.mean)):
        trace = reference_trace(design, SHAPE, random_parameters(design), TOKENS)
        close(fold(trace["states"][-1], dim=2), trace["closed"])


@pytest.mark.parametrize(("design", "alpha"), [("deepnorm", 6**0.25), ("keel", 6.0)])
def test_post_norm_designs_normalise_the_scaled_sum(design, alpha):
    trace = reference_trace(design, SHAPE, initial_parameters(design), TOKENS)
    for i in range(2, 6):
        summed = alpha * trace["states"][i - 1] + trace["outputs"][i]
        if design == "deepnorm":
            summed = summed - summed.mean(-1, keepdim=True)
        close(trace["states"][i], summed / summed.square().mean(-1, keepdim=True).add(1e-6).sqrt())


def test_keel_at_the_bottom():
    trace = reference_trace("keel", SHAPE, initial_parameters("keel"), TOKENS)
    close(trace["states"][0], trace["embedding"] + trace["outputs"][0])
    summed = trace["states"][0] + trace["outputs"][1]
    close(trace["states"][1], summed / summed.square().mean(-1, keepdim=True).add(1e-6).sqrt())


def test_lns_divides_the_normed_input_by_the_root_of_the_block_number():
    """Scaling the gains of Pre-LN by the factor gives the same function; the final norm keeps its gain."""
    parameters = random_parameters("lns")
    scaled = dict(parameters)
    for block in range(3):
        for link in ("attention_link", "mlp_link"):
            scaled[f"blocks.{block}.{link}.norm.gain"] = parameters[f"blocks.{block}.{link}.norm.gain"] / math.sqrt(block + 1)
    close(reference_logits("lns", SHAPE, parameters, TOKENS), reference_logits("preln", SHAPE, scaled, TOKENS))


def test_extra_parameters():
    n, d, n_layers, kv = 4, 12, 3, 8
    expected = {
        "preln": 0,
        "sandwich": 2 * n_layers * d,
        "lns": 0,
        "deepnorm": 0,
        "keel": (2 * n_layers - 1) * d,
        "hc": 2 * n_layers * (n * (n + 1) + n + d * (n + 2) + 2),
        "mhc": 2 * n_layers * (n * d * (n * n + 2 * n) + n * n + 2 * n + 3),
        "attnres": 4 * n_layers * d,
        "attnres_block": 4 * n_layers * d,
        "moda": (n_layers - 1) * d * 2 * kv,
    }
    counts = {design: sum(math.prod(size) for size in parameter_shapes(design, SHAPE).values()) for design in expected}
    assert {design: count - counts["preln"] for design, count in counts.items()} == expected


def test_missing_extra_or_misshapen_parameters_and_unknown_options_are_refused():
    parameters = random_parameters("hc")
    with pytest.raises(ValueError, match=r"blocks\.1\.mlp_link\.Wa"):
        reference_logits("hc", SHAPE, {k: v for k, v in parameters.items() if k != "blocks.1.mlp_link.Wa"}, TOKENS)
    with pytest.raises(ValueError, match="stray"):
        reference_logits("hc", SHAPE, parameters | {"stray": torch.zeros(1)}, TOKENS)
    with pytest.raises(ValueError, match=r"blocks\.0\.mlp_link\.a'"):
        reference_logits("hc", SHAPE, parameters | {"blocks.0.mlp_link.a": torch.zeros(1)}, TOKENS)
    with pytest.raises(TypeError, match="stream"):
        reference_logits("hc", SHAPE, parameters, TOKENS, stream=2)
