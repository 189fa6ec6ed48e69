"""The scores by their definitions: full forward passes of the slow reference for every change, and plain loops."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from helpers import shape_dict
from reference import DESIGNS, Run, _link, _settings, depth_mix, segment_size


class Without(list):
    """The sublayers but those of one block; their number, which some equations need, stays."""

    def __init__(self, n: int, block: int | None) -> None:
        super().__init__(i for i in range(n) if i // 2 != block)
        self.n = n

    def __len__(self) -> int:
        return self.n


class Skipping(Run):
    """A pass without one block."""

    def __init__(self, *args, block=None):
        super().__init__(*args)
        object.__setattr__(self, "without", Without(2 * self.shape["n_layers"], block))

    @property
    def sublayers(self):
        return self.without


def parameters_of(model):
    return {name.replace(".mix.", "."): p.detach().double() for name, p in model.named_parameters()}


def states(design, model, tokens, block=None, rule="newest", parameters=None, **options):
    """`z_0 … z_M`, `[B, T, D]` each, and what the final norm reads, of a pass without `block`."""
    shape = shape_dict(model.shape)
    run = Skipping(shape, parameters or parameters_of(model), 1e-6, _settings(design, options), block=block)
    embedding = run.parameters["embedding.weight"][tokens]
    if design in ("attnres", "attnres_block"):
        return _attnres(run, embedding, design, block, rule)
    if design == "moda":
        return _moda(run, embedding, block)
    closed = DESIGNS[design](run, embedding)
    streams = run.options.get("streams")
    found = [torch.cat([embedding] * streams, -1) if streams else embedding]
    after = iter(run.trace["states"])
    for layer in range(shape["n_layers"]):
        if layer == block:
            found.append(found[-1])
        else:
            next(after)
            z = next(after)
            found.append(z.flatten(-2) if streams else z)
    return found, closed


def _attnres(run, embedding, design, block, rule):
    size = 1 if design == "attnres" else segment_size(2 * run.shape["n_layers"], run.options)
    sealed, running, found, given = [embedding], None, [], None
    for i in range(2 * run.shape["n_layers"]):
        sources = sealed + ([running] if running is not None else [])
        read = embedding if i == 0 else depth_mix(run, sources, _link(i)) if given is None else given
        if i % 2 == 0:
            found.append(read)
        given = None if i // 2 != block else given
        if i // 2 != block:
            y = run.sublayer(i, read, run.norm(i, read))
            running = y if running is None else running + y
        if (i + 1) % size == 0 and running is not None:
            sealed, running = [*sealed, running], None
        if i % 2 and i // 2 == block:
            left = sealed + ([running] if running is not None else [])
            given = {"newest": left[-1], "state": found[-1], "attend": None}[rule]
    left = sealed + ([running] if running is not None else [])
    closed = depth_mix(run, left, "residual") if given is None else given
    return [*found, closed], closed


def _moda(run, x, block):
    slots, found = [], [x]
    zero = torch.zeros(*x.shape[:-1], run.shape["n_kv_heads"] * run.shape["head_dim"], dtype=torch.float64)
    for layer in range(run.shape["n_layers"]):
        if layer == block:
            slots = [*slots, (zero, zero), (zero, zero)]
        else:
            normed = run.norm(2 * layer, x)
            x = x + run.sublayer(2 * layer, x, normed, slots)
            slots = [*slots, run.keys_and_values(layer, normed)]
            normed = run.norm(2 * layer + 1, x)
            x = x + run.sublayer(2 * layer + 1, x, normed)
            if layer < run.shape["n_layers"] - 1:
                both, width = run.project(f"{_link(2 * layer + 1)}.kv", normed), zero.shape[-1]
                slots = [*slots, (both[..., :width], both[..., width:])]
        found.append(x)
    return found, x


def causal(design, model, tokens, rule="newest", **options):
    """`C(s, l)` over all tokens, `[M, M]`."""
    clean, _ = states(design, model, tokens, **options)
    M = model.shape.n_layers
    found = torch.full((M, M), math.nan, dtype=torch.float64)
    for s in range(M):
        changed, _ = states(design, model, tokens, block=s, rule=rule, **options)
        for layer in range(s + 1, M):
            ratios = []
            for b in range(tokens.shape[0]):
                for t in range(tokens.shape[1]):
                    u = clean[layer + 1][b, t] - clean[layer][b, t]
                    v = changed[layer + 1][b, t] - changed[layer][b, t]
                    ratios.append(float((v - u).norm() / max(float(u.norm()), 1e-8)))
            found[s, layer] = sum(ratios) / len(ratios)
    return found.numpy()


def angular(design, model, tokens, **options):
    """`[M+1, M+1]` over all tokens."""
    z, _ = states(design, model, tokens, **options)
    found = torch.full((len(z), len(z)), math.nan, dtype=torch.float64)
    for i in range(len(z)):
        for j in range(i + 1, len(z)):
            angles = []
            for a, b in zip(z[i].flatten(0, 1), z[j].flatten(0, 1), strict=True):
                cosine = float(a @ b) / (float(a.norm()) * float(b.norm()))
                angles.append(math.acos(min(1.0, max(-1.0, cosine))) / math.pi)
            found[i, j] = sum(angles) / len(angles)
    return found.numpy()


def loss(design, model, tokens, parameters, **options):
    """Mean over all predictions."""
    _, closed = states(design, model, tokens, parameters=parameters, **options)
    return loss_of(closed, tokens, parameters)


def loss_of(closed, tokens, parameters):
    normed = closed / torch.sqrt((closed * closed).mean(-1, keepdim=True) + 1e-6) * parameters["norm.gain"]
    logits = normed @ parameters["head.weight"].T
    return float(F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()))


def pruning(design, model, tokens, rule="newest", **options):
    """The loss without each block, `[M]`."""
    parameters = parameters_of(model)
    found = []
    for s in range(model.shape.n_layers):
        _, closed = states(design, model, tokens, block=s, rule=rule, **options)
        found.append(loss_of(closed, tokens, parameters))
    return found


def exchanged(design, M, parameters, i, j):
    """The parameters with what blocks i and j own exchanged."""

    def owned(block):
        names = {name: f"blocks.{block}.{name}" for name in _names(parameters, f"blocks.{block}.")}
        if design in ("attnres", "attnres_block"):
            mix = ("query", "key_gain")
            names = {role: name for role, name in names.items() if role not in [f"attention_link.{part}" for part in mix]}
            prefix = f"blocks.{block + 1}.attention_link." if block + 1 < M else "residual."
            names |= {f"next.{part}": prefix + part for part in mix}
        return names

    found: dict[str, Tensor] = dict(parameters)
    ours, theirs = owned(i), owned(j)
    for role in ours.keys() & theirs.keys():
        a, b = ours[role], theirs[role]
        if parameters[a].shape == parameters[b].shape:
            found[a], found[b] = parameters[b], parameters[a]
    if design == "lns":  # the factor goes along: where the reference has the place's own, the gain makes up for it
        for here, there in ((i, j), (j, i)):
            for side in ("attention_link", "mlp_link"):
                name = f"blocks.{here}.{side}.norm.gain"
                found[name] = found[name] * math.sqrt((here + 1) / (there + 1))
    return found


def _names(parameters, prefix):
    return [name.removeprefix(prefix) for name in parameters if name.startswith(prefix)]


def permutation(design, model, tokens, **options):
    """`P(i, j)`, `[M, M]`."""
    parameters, M = parameters_of(model), model.shape.n_layers
    whole = loss(design, model, tokens, parameters, **options)
    found = torch.full((M, M), math.nan, dtype=torch.float64)
    for i in range(M):
        for j in range(i + 1, M):
            changed = loss(design, model, tokens, exchanged(design, M, parameters, i, j), **options)
            found[i, j] = abs(changed - whole) / whole
    return found.numpy()
