"""Result rows out of thin air."""

import math
from dataclasses import replace

import numpy as np

from depthbench.report import ResultRow

SHAPES = ((2, 160), (6, 96), (16, 56))
LOSSES = {"preln": (1.500, 1.432, 1.546), "hc": (1.421, 1.358, 1.423), "attnres": (1.47, 1.39, 1.41)}
NASTY = "</script><script>alert(1)</script><img src=x onerror=alert(1)>[/bold]\x1b[31m"

BASE = ResultRow(
    design="preln",
    options="",
    n_layers=2,
    d_model=160,
    n_heads=2,
    n_kv_heads=2,
    d_ff=432,
    vocab_size=257,
    context=128,
    learning_rate=0.004,
    seed=0,
    status="done",
    loss=1.5,
    bits_per_byte=1.5 / math.log(2),
    diverged_step=None,
    backbone_parameters=620_000,
    total_parameters=703_000,
    design_parameters=3_000,
    tokens=819_200,
    steps=400,
    seconds=30.0,
    tokens_per_second=27_000.0,
    flops=3e12,
    data_fingerprint="d" * 64,
    validation_sha256="a" * 64,
    recipe_hash="c" * 64,
    code_version="0.1.0",
    code_hash="e" * 64,
    run="",
)


def row(design="preln", shape=(2, 160), loss=1.5, **changes):
    """A finished run; every other field is as in `BASE` unless given."""
    n_layers, d_model = shape
    made = replace(BASE, design=design, n_layers=n_layers, d_model=d_model, loss=loss, bits_per_byte=loss / math.log(2), **changes)
    return replace(made, run=made.run or f"{made.label}-{n_layers}x{d_model}-lr{made.learning_rate:g}-s{made.seed}")


def diverged(design="preln", shape=(2, 160), step=120, **changes):
    """A run that diverged."""
    return replace(row(design, shape, **changes), status="diverged", loss=None, bits_per_byte=None, diverged_step=step)


def study(losses=LOSSES, shapes=SHAPES, **changes):
    """A run for every design and shape."""
    return [row(design, shape, loss, **changes) for design in losses for shape, loss in zip(shapes, losses[design], strict=True)]


def seeds(rows, n=2, step=0.004):
    """Each row once per seed, seed s with `s · step` added to its loss."""
    return [
        row(r.design, (r.n_layers, r.d_model), r.loss + seed * step, seed=seed, learning_rate=r.learning_rate, options=r.options)
        for r in rows
        for seed in range(n)
    ]


DEPTHS = (2, 4, 8, 12, 24)


def losses(means, n, count=None, sd=0.004, seed_sd=0.01, uneven=1.0, stream=0):
    """Losses [shapes, n], or [count, shapes, n], around `means` [shapes]: a seed effect that the shapes share and noise of its own.

    The noise grows over the shapes by the factor `uneven`, with `sd` in their middle.
    """
    rng = np.random.default_rng(stream)
    means = np.asarray(means, dtype=float)
    size = (count or 1, len(means), n)
    spread = sd * np.geomspace(uneven**-0.5, uneven**0.5, len(means))[:, None]
    drawn = means[:, None] + seed_sd * rng.standard_normal((size[0], 1, n)) + spread * rng.standard_normal(size)
    return drawn if count else drawn[0]


def line(slope, depths=DEPTHS):
    """Mean losses on a line against log2(n_layers)."""
    return [3.0 + slope * (math.log2(depth) - 2.5) for depth in depths]


def simulated(means, n=3, depths=DEPTHS, **changes):
    """Rows for the mean losses {design: [shapes]} with noise of 0.004 and a seed effect, `n` seeds each."""
    return [
        row(design, (depth, 480 // depth), loss, seed=seed, **changes)
        for i, (design, values) in enumerate(means.items())
        for depth, of_seeds in zip(depths, losses(values, n, stream=i), strict=True)
        for seed, loss in enumerate(of_seeds)
    ]
