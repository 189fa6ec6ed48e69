"""The shared parts against their formulas, written out one element at a time where that is clearer."""

import math

import pytest
import torch
import torch.nn.functional as F

from depthbench.model.backbone import Attention, LayerNorm, RMSNorm, SwiGLU, joint_attention, rope_table
from depthbench.model.precision import at_least_fp32
from helpers import GQA, MHA

DOUBLE = torch.zeros(1, dtype=torch.float64)


def normal(*size, seed=0, dtype=torch.float64):
    return torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


@pytest.mark.parametrize(
    ("given", "kept"), [("float64", "float64"), ("float32", "float32"), ("bfloat16", "float32"), ("float16", "float32")]
)
def test_at_least_fp32(given, kept):
    assert at_least_fp32(torch.ones(2, dtype=getattr(torch, given))).dtype == getattr(torch, kept)


@pytest.mark.parametrize("size", [1.0, 1e-3])
def test_rms_norm_is_its_formula_in_float64(size):
    """Also where the mean square is as small as eps, which counts inside the root."""
    norm, x = RMSNorm(6).double(), size * normal(2, 3, 6)
    with torch.no_grad():
        norm.gain.copy_(normal(6, seed=1))
    expected = torch.stack([row / math.sqrt(sum(float(v) ** 2 for v in row) / 6 + 1e-6) for row in x.flatten(0, 1)]).view_as(x)
    torch.testing.assert_close(norm(x), expected * norm.gain, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("size", [1.0, 1e-3])
def test_layer_norm_is_its_formula_in_float64_with_biased_variance(size):
    norm, x = LayerNorm(6).double(), size * normal(2, 3, 6)
    with torch.no_grad():
        norm.gain.copy_(normal(6, seed=1))
    centred = x - x.sum(-1, keepdim=True) / 6
    expected = centred / (centred.square().sum(-1, keepdim=True) / 6 + 1e-6).sqrt() * norm.gain
    torch.testing.assert_close(norm(x), expected, rtol=1e-13, atol=1e-15)
    assert [name for name, _ in norm.named_parameters()] == ["gain"]


@pytest.mark.parametrize("kind", [RMSNorm, LayerNorm])
def test_norms_are_computed_in_fp32_whatever_comes_in(kind):
    norm, x = kind(64), normal(3, 64, dtype=torch.bfloat16)
    plain = norm(x.float())
    assert plain.dtype == norm(x).dtype == torch.float32
    assert torch.equal(norm(x), plain)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(norm(x), plain) and torch.equal(norm(x.float()), plain)


def test_rope_turns_pairs_half_a_head_apart():
    """As complex numbers: (x_k + i·x_{k+C/2}) · exp(i·t·theta^(-2k/C))."""
    head_dim, length = 8, 50
    x = normal(2, 3, length, head_dim)
    turned = rope_table(length, head_dim, like=DOUBLE).rotate(x)
    for t in range(length):
        for k in range(head_dim // 2):
            angle = t * 10_000.0 ** (-2 * k / head_dim)
            pair = torch.complex(x[:, :, t, k], x[:, :, t, k + 4]) * complex(math.cos(angle), math.sin(angle))
            torch.testing.assert_close(turned[:, :, t, k], pair.real, rtol=1e-12, atol=1e-12)
            torch.testing.assert_close(turned[:, :, t, k + 4], pair.imag, rtol=1e-12, atol=1e-12)


def test_rope_sees_only_distances_and_keeps_lengths():
    length = 40
    rope = rope_table(length, 8, like=DOUBLE)
    q, k = (rope.rotate(normal(8, seed=seed).expand(1, 1, length, 8)) for seed in (1, 2))
    products = (q @ k.transpose(-1, -2))[0, 0]
    for distance in range(-length + 1, length):
        diagonal = products.diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), rtol=0, atol=1e-12)
    torch.testing.assert_close(q.norm(dim=-1), q.norm(dim=-1)[..., :1].expand(1, 1, length), rtol=1e-13, atol=0)
    torch.testing.assert_close(q[0, 0, 0], normal(8, seed=1), rtol=0, atol=0)  # position 0 does not turn
    assert float((products[0, 1] - products[1, 0]).abs()) > 1e-3  # and the direction matters


@pytest.mark.parametrize(("like", "table"), [("float64", "float64"), ("float32", "float32"), ("bfloat16", "float32")])
def test_rope_is_made_in_fp32_or_better_and_gives_back_what_it_got(like, table):
    rope = rope_table(5, 4, like=torch.zeros(1, dtype=getattr(torch, like)))
    assert rope.cos_TC.dtype == rope.sin_TC.dtype == getattr(torch, table)
    assert rope.rotate(normal(1, 1, 5, 4, dtype=getattr(torch, like))).dtype == getattr(torch, like)


def attention_by_hand(q, k, v, own_keys=(), own_values=()):
    """One query at a time: query head h reads key-value head floor(h / (H / K))."""
    batch, n_heads, length, head_dim = q.shape
    group = n_heads // k.shape[1]
    out = torch.zeros_like(q)
    for b in range(batch):
        for h in range(n_heads):
            for t in range(length):
                keys = [k[b, h // group, s] for s in range(t + 1)] + [own[b, h // group, t] for own in own_keys]
                values = [v[b, h // group, s] for s in range(t + 1)] + [own[b, h // group, t] for own in own_values]
                p = torch.stack([q[b, h, t] @ key / math.sqrt(head_dim) for key in keys]).softmax(0)
                out[b, h, t] = sum(weight * value for weight, value in zip(p, values, strict=True))
    return out


@pytest.mark.parametrize("n_kv_heads", [6, 2, 1])
@pytest.mark.parametrize("slots", [0, 1, 3])
def test_joint_attention_is_one_softmax_over_positions_and_slots(n_kv_heads, slots):
    q, k, v = normal(2, 6, 5, 4), normal(2, n_kv_heads, 5, 4, seed=1), normal(2, n_kv_heads, 5, 4, seed=2)
    own_keys = [normal(2, n_kv_heads, 5, 4, seed=10 + slot) for slot in range(slots)]
    own_values = [normal(2, n_kv_heads, 5, 4, seed=20 + slot) for slot in range(slots)]
    found = joint_attention(q, k, v, own_keys, own_values)
    torch.testing.assert_close(found, attention_by_hand(q, k, v, own_keys, own_values), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("n_kv_heads", [6, 2])
def test_joint_attention_without_slots_is_the_fused_attention(n_kv_heads):
    q, k, v = normal(2, 6, 33, 8), normal(2, n_kv_heads, 33, 8, seed=1), normal(2, n_kv_heads, 33, 8, seed=2)
    fused = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=n_kv_heads != 6)
    torch.testing.assert_close(joint_attention(q, k, v, (), ()), fused, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shape", [MHA, GQA], ids=["mha", "gqa"])
def test_the_attention_sublayer_is_its_formula(shape):
    torch.manual_seed(0)
    attention, x = Attention(shape).double(), normal(2, 7, shape.d_model)
    rope = rope_table(7, shape.head_dim, like=x)

    def heads(weight, n):
        return (x @ weight.T).view(2, 7, n, shape.head_dim).permute(0, 2, 1, 3)

    q, k, v = heads(attention.q.weight, 4), heads(attention.k.weight, shape.n_kv_heads), heads(attention.v.weight, shape.n_kv_heads)
    mixed = attention_by_hand(rope.rotate(q), rope.rotate(k), v).permute(0, 2, 1, 3).reshape(2, 7, shape.d_model)
    torch.testing.assert_close(attention(x, rope), mixed @ attention.o.weight.T, rtol=1e-12, atol=1e-12)
    assert all(module.bias is None for module in (attention.q, attention.k, attention.v, attention.o))


def test_swiglu_is_its_formula():
    torch.manual_seed(0)
    mlp, x = SwiGLU(MHA).double(), normal(2, 3, MHA.d_model)
    gate, up = x @ mlp.gate.weight.T, x @ mlp.up.weight.T
    expected = (gate / (1 + torch.exp(-gate)) * up) @ mlp.down.weight.T
    torch.testing.assert_close(mlp(x), expected, rtol=1e-12, atol=1e-12)
