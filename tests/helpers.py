"""Shared by the tests: small shapes, models with random values in every parameter, and all designs by name."""

import torch

from depthbench import ModelShape, build_model

DESIGNS = ("preln", "sandwich", "lns", "deepnorm", "keel", "hc", "mhc", "attnres", "attnres_block", "moda")
MHA = ModelShape(n_layers=3, d_model=16, n_heads=4, d_ff=24, vocab_size=29, context=9)
GQA = ModelShape(n_layers=3, d_model=16, n_heads=4, n_kv_heads=2, d_ff=24, vocab_size=29, context=9)


def tokens(shape, batch=2, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(shape.vocab_size, (batch, shape.context), generator=generator)


def random_model(design, shape, seed=0, **options):
    """A float64 model with random values, of ordinary size, in every parameter: gains, gates, biases and queries included."""
    model = build_model(design, shape, seed=seed, **options).double()
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            centre = 1.0 if "gain" in name else 0.0
            scale = 0.3 if parameter.ndim < 2 else parameter.shape[-1] ** -0.5
            parameter.copy_(centre + scale * noise)
    return model


def set_eps(model, eps):
    """Every norm's eps: exact identities need it out of the way (exact.md 3)."""
    for module in model.modules():
        if hasattr(module, "eps"):
            module.eps = eps
    return model


def shape_dict(shape):
    return {
        name: getattr(shape, name) for name in ("n_layers", "d_model", "n_heads", "n_kv_heads", "head_dim", "d_ff", "vocab_size")
    }
