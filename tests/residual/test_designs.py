"""Every design against a slow float64 reference written from the equations by another reader, and the identities among them."""

import pytest
import torch

from depthbench import ModelShape, build_model, count_parameters
from depthbench.model.backbone import rope_table
from depthbench.residual.registry import BUILT_IN
from helpers import DESIGNS, GQA, MHA, random_model, set_eps, shape_dict, tokens
from reference import reference_logits

CASES = [
    *((design, {}) for design in DESIGNS),
    ("sandwich", {"embedding_norm": True}),
    ("deepnorm", {"norm": "rms"}),
    ("hc", {"streams": 2}),
    ("hc", {"dynamic": False}),
    ("hc", {"tanh": False}),
    ("mhc", {"streams": 3}),
    ("attnres", {"scale": True}),
    ("attnres_block", {"n_blocks": 3}),
    ("attnres_block", {"block_size": 1}),
    ("attnres_block", {"block_size": 5, "scale": True}),
]


def test_the_ten_designs_are_there():
    assert tuple(BUILT_IN) == DESIGNS


@pytest.mark.parametrize("shape", [MHA, GQA], ids=["mha", "gqa"])
@pytest.mark.parametrize(("design", "options"), CASES, ids=str)
def test_outputs_and_all_gradients_equal_the_reference(design, options, shape):
    model = random_model(design, shape, **options)
    x = tokens(shape)
    weight = torch.randn(2, shape.context, shape.vocab_size, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    plain_name = {name: name.replace(".mix.", ".") for name, _ in model.named_parameters()}
    parameters = {plain_name[name]: p.detach().clone().requires_grad_() for name, p in model.named_parameters()}

    logits = model(x)
    expected = reference_logits(design, shape_dict(shape), parameters, x, **options)
    torch.testing.assert_close(logits, expected, rtol=1e-9, atol=1e-9)

    (logits * weight).sum().backward()
    (expected * weight).sum().backward()
    largest = max(float(p.grad.abs().max()) for p in parameters.values() if p.grad is not None)
    for name, parameter in model.named_parameters():
        wanted = parameters[plain_name[name]].grad
        wanted = wanted if wanted is not None else torch.zeros_like(parameter)
        got = parameter.grad if parameter.grad is not None else torch.zeros_like(parameter)
        assert float((got - wanted).abs().max()) <= 1e-9 * largest, name


@pytest.mark.parametrize(("design", "options"), CASES, ids=str)
def test_in_evaluation_the_function_is_the_same(design, options):
    """Some designs are differentiated by hand in training; validation takes the plain definition."""
    model = random_model(design, GQA, **options)
    with torch.no_grad():
        torch.testing.assert_close(model.eval()(tokens(GQA)), model.train()(tokens(GQA)), rtol=1e-11, atol=1e-11)
    trained = model(tokens(GQA))
    torch.testing.assert_close(model.eval()(tokens(GQA)), trained, rtol=1e-11, atol=1e-11)
    again = torch.autograd.grad(trained.sum(), list(model.parameters()), allow_unused=True)
    plain = torch.autograd.grad(model(tokens(GQA)).sum(), list(model.parameters()), allow_unused=True)
    for (name, _), one, two in zip(model.named_parameters(), again, plain, strict=True):
        assert (one is None) == (two is None), name
        if one is not None:
            torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("design", ["hc", "mhc", "attnres", "attnres_block"])
def test_at_initialisation_the_network_is_preln(design):
    model = set_eps(build_model(design, MHA, seed=3).double(), 1e-30)
    plain = set_eps(build_model("preln", MHA).double(), 1e-30)
    state = model.state_dict()
    plain.load_state_dict({name: state[name] for name in plain.state_dict()})  # the same, already scaled, weights
    torch.testing.assert_close(model(tokens(MHA)), plain(tokens(MHA)), rtol=0, atol=1e-12)


def test_blocks_of_one_sublayer_are_full_attention_residuals():
    block, full = (random_model(d, GQA, **o) for d, o in (("attnres_block", {"block_size": 1}), ("attnres", {})))
    full.load_state_dict(block.state_dict())
    torch.testing.assert_close(block(tokens(GQA)), full(tokens(GQA)), rtol=0, atol=1e-12)


@pytest.mark.parametrize("design", ["hc", "mhc"])
def test_read_and_write_are_the_definition_that_the_shared_pass_equals(design):
    model = random_model(design, MHA)
    link, state = model.blocks[1].attention_link, torch.randn(2, 5, 4, MHA.d_model, dtype=torch.float64)

    def sublayer(x):
        return x.flip(-1)

    torch.testing.assert_close(link(state, sublayer), link.write(state, sublayer(link.read(state))), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("design", DESIGNS)
@pytest.mark.parametrize(
    "shape", [MHA, GQA, ModelShape(1, 12, 3, vocab_size=5, context=4), ModelShape(7, 8, 2, 1, d_ff=5, vocab_size=300)]
)
def test_parameter_formula_equals_the_built_model(design, shape):
    counts = count_parameters(design, shape)
    built = sum(p.numel() for p in build_model(design, shape).parameters())
    own = build_model(design, shape, device="meta").residual.own_parameters()
    assert counts.total == built == shape.total_parameters + own
    assert counts.design == own
    assert counts.total - counts.backbone == 2 * shape.vocab_size * shape.d_model + shape.d_model


@pytest.mark.parametrize("design", DESIGNS)
def test_designs_of_one_seed_start_from_the_same_backbone(design):
    plain = build_model("preln", MHA, seed=5).state_dict()
    model = build_model(design, MHA, seed=5)
    for name, value in model.state_dict().items():
        if name in plain and not name.endswith("gain"):
            parent, role = name.split(".")[-3:-1] if name.count(".") > 1 else ("", "")
            scale = model.residual.weight_scale(role) if parent in ("attention", "mlp") else 1.0
            torch.testing.assert_close(value, plain[name] * scale, rtol=0, atol=0)
    other = build_model(design, MHA, seed=6).state_dict()
    assert not torch.equal(other["embedding.weight"], plain["embedding.weight"])


def test_initial_values_are_normal_and_cut():
    weight = build_model("preln", ModelShape(1, 128, 2, d_ff=512, vocab_size=700)).blocks[0].mlp.up.weight.detach()
    assert abs(float(weight.std()) - 0.02) < 0.0005
    assert float(weight.abs().max()) <= 0.06


def test_deepnorm_constants():
    for n_layers, alpha, beta in ((12, 2.213, 0.319), (24, 2.632, 0.269), (64, 3.364, 0.210)):
        residual = build_model("deepnorm", ModelShape(n_layers, 8, 2, vocab_size=7), device="meta").residual
        assert (round(residual.alpha, 3), round(residual.beta, 3)) == (alpha, beta)
        assert residual.weight_scale("v") == residual.weight_scale("down") == residual.beta
        assert residual.weight_scale("q") == residual.weight_scale("k") == 1.0


def test_keel_bottom():
    model = build_model("keel", MHA)
    assert not hasattr(model.blocks[0].attention_link, "post_norm")
    assert model.blocks[0].mlp_link.alpha == 1.0
    assert model.blocks[1].attention_link.alpha == 2 * MHA.n_layers


def test_lns_factor_belongs_to_the_block_and_survives_a_meta_build():
    for device in ("cpu", "meta"):
        blocks = build_model("lns", MHA, device=device).blocks
        assert [b.attention_link.factor for b in blocks] == [b.mlp_link.factor for b in blocks] == [1.0, 2**-0.5, 3**-0.5]


@pytest.mark.parametrize(("design", "scale"), [("hc", 0.5), ("mhc", 0.5)])
def test_output_projections_are_divided_by_root_streams(design, scale):
    plain, model = build_model("preln", MHA), build_model(design, MHA)
    for role, factor in (("attention.o", scale), ("mlp.down", scale), ("mlp.up", 1.0), ("attention.v", 1.0)):
        wanted = plain.get_parameter(f"blocks.1.{role}.weight") * factor
        torch.testing.assert_close(model.get_parameter(f"blocks.1.{role}.weight"), wanted, rtol=0, atol=0)


@pytest.mark.parametrize("design", DESIGNS)
def test_no_position_sees_the_future(design):
    model = random_model(design, GQA)
    x = tokens(GQA)
    changed = x.clone()
    changed[:, 6] = (changed[:, 6] + 1) % GQA.vocab_size
    before, after = model(x), model(changed)
    torch.testing.assert_close(before[:, :6], after[:, :6], rtol=0, atol=1e-13)
    assert not torch.equal(before[:, 6:], after[:, 6:])


@pytest.mark.parametrize("design", ["hc", "mhc"])
def test_streams_part_within_a_few_steps(design):
    model = build_model(design, MHA)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    x = tokens(MHA)
    for _ in range(5):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x)[:, :-1].flatten(0, 1), x[:, 1:].flatten()).backward()
        optimizer.step()
    state = model.residual.open(model.embedding(x)).detach()
    for block in model.blocks:
        state = block(state, rope_table(x.shape[1], MHA.head_dim, like=state)).detach()
    for s in range(1, 4):
        assert float((state[..., s, :] - state[..., 0, :]).abs().max()) > 1e-4


@pytest.mark.parametrize("design", DESIGNS)
def test_meta_device(design):
    logits = build_model(design, GQA, device="meta")(tokens(GQA).to("meta"))
    assert logits.shape == (2, GQA.context, GQA.vocab_size) and logits.is_meta
