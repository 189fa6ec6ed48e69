"""The scores by their definitions: full forward passes of the slow reference for every change, and plain loops."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from depthbench.model.backbone import rope_table
from helpers import shape_dict
from reference import DESIGNS, Run, _link, _settings, depth_mix, reference_trace, segment_size


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
    streams = run.options.get("streams")
    closed = DESIGNS[design](run, embedding)
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
            given = rule if torch.is_tensor(rule) else {"newest": left[-1], "state": found[-1], "attend": None}[rule]
    left = sealed + ([running] if running is not None else [])
    closed = depth_mix(run, left, "residual") if given is None else given
    return [*found, closed], closed


def _moda(run, x, block, z=None):
    slots, found = [], [x]
    zero = torch.zeros(*x.shape[:-1], run.shape["n_kv_heads"] * run.shape["head_dim"], dtype=torch.float64)
    for layer in range(run.shape["n_layers"]):
        if layer == block:
            x = x if z is None else z
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


def lens(design, model, tokens, **options):
    """Early-exit loss, KL to the end and overlap of the five likeliest, `[M+1]` each."""
    parameters = parameters_of(model)
    z, closed = states(design, model, tokens, **options)
    if design in ("hc", "mhc"):
        streams = [part.unflatten(-1, (4, model.shape.d_model)) for part in z]
        z = [part.sum(-2) if design == "hc" else part.mean(-2) for part in streams]

    def decoded(hidden):
        normed = hidden / torch.sqrt((hidden * hidden).mean(-1, keepdim=True) + 1e-6) * parameters["norm.gain"]
        return (normed @ parameters["head.weight"].T)[:, :-1].softmax(-1)

    final = decoded(closed)
    found = []
    for hidden in z:
        early, losses, kl, same = decoded(hidden), [], [], []
        for b in range(tokens.shape[0]):
            for t in range(tokens.shape[1] - 1):
                losses.append(-math.log(early[b, t, tokens[b, t + 1]]))
                kl.append(sum(float(p) * math.log(p / q) for p, q in zip(final[b, t], early[b, t], strict=True)))
                best = [set(torch.argsort(side[b, t], descending=True)[:5].tolist()) for side in (final, early)]
                same.append(len(best[0] & best[1]) / 5)
        found.append([sum(values) / len(values) for values in (losses, kl, same)])
    return torch.tensor(found).T.numpy()


def affine(x, y):
    """The ridge solution `[D+1, D]` by stacking `sqrt(1e-6)·I` under the data."""
    X = torch.cat([x.flatten(0, 1), torch.ones(x.shape[0] * x.shape[1], 1, dtype=x.dtype)], dim=1)
    stacked = torch.cat([X, 1e-3 * torch.eye(X.shape[1], dtype=x.dtype)])
    wanted = torch.cat([y.flatten(0, 1), torch.zeros(X.shape[1], y.shape[-1], dtype=x.dtype)])
    return torch.linalg.lstsq(stacked, wanted, driver="gelsd").solution


def paths(design, model, tokens, **options):
    """Path weights `[2M+1, 2M+1]` by following the share of every source through the equations of each design."""
    P = parameters_of(model)
    trace = reference_trace(design, shape_dict(model.shape), P, tokens, **options)
    M, d = model.shape.n_layers, model.shape.d_model
    n, ones = 2 * M, torch.ones_like(trace["embedding"])
    found = torch.full((n + 1, n + 1), math.nan, dtype=torch.float64)

    def note(i, shares):
        for j, share in shares.items():
            found[i, j] = share.mean()

    if design in ("hc", "mhc"):
        streams = trace["A"][0].shape[-2] if design == "hc" else trace["R"][0].shape[-1]
        held = [{0: ones[..., 0]} for _ in range(streams)]

        def mixed(coefficients):
            return {j: sum(c * stream[j] for c, stream in zip(coefficients, held, strict=True)) for j in held[0]}

        for i in range(n):
            if design == "hc":
                A, b = trace["A"][i], trace["b"][i]
                read, after = A[..., 0].unbind(-1), [A[..., t + 1].unbind(-1) for t in range(streams)]
            else:
                b = trace["h_post"][i]
                read, after = trace["h_pre"][i].unbind(-1), [trace["R"][i][..., t, :].unbind(-1) for t in range(streams)]
            note(i, mixed(read))
            held = [mixed(coefficients) | {i + 1: b[..., t]} for t, coefficients in enumerate(after)]
        whole = {j: sum(stream[j] for stream in held) for j in held[0]}
        note(n, whole if design == "hc" else {j: share / streams for j, share in whole.items()})
    elif design in ("attnres", "attnres_block"):
        size = 1 if design == "attnres" else segment_size(n, _settings(design, options))
        members = [[0], []]
        for i in range(n + 1):
            sources = [source for source in members if source]
            weights = [ones[..., 0]] if i == 0 else trace["weights"][i].unbind(-1)
            shares = {}
            for weight, source in zip(weights, sources, strict=True):
                shares |= dict.fromkeys(source, weight)
            note(i, shares)
            members[-1].append(i + 1)
            if (i + 1) % size == 0:
                members.append([])
    else:
        held = {0: ones}
        for i in range(n):
            note(i, held)
            x, y = trace["inputs"][i], trace["outputs"][i]
            link = _link(i)
            if design == "sandwich":
                held = held | {i + 1: ones * P[f"{link}.out_norm.gain"] / torch.sqrt((y * y).mean(-1, keepdim=True) + 1e-6)}
            elif design == "deepnorm":
                alpha = n**0.25
                whole = alpha * x + y
                scale = P[f"{link}.norm.gain"] / torch.sqrt(whole.var(-1, keepdim=True, correction=0) + 1e-6)
                held = {j: alpha * share * scale for j, share in held.items()} | {i + 1: ones * scale}
            elif design == "keel" and i > 0:
                alpha = 1 if i == 1 else n
                whole = alpha * x + y
                scale = P[f"{link}.post_norm.gain"] / torch.sqrt((whole * whole).mean(-1, keepdim=True) + 1e-6)
                held = {j: alpha * share * scale for j, share in held.items()} | {i + 1: ones * scale}
            else:
                held = held | {i + 1: ones}
        note(n, held)
    assert d == ones.shape[-1]
    return found.numpy()


def continued(design, model, tokens, block, z):
    """What the final norm reads if the depth state after `block` is `z`."""
    shape = shape_dict(model.shape)
    if design in ("attnres", "attnres_block"):
        return states(design, model, tokens, block=block, rule=z)[1]
    run = Run(shape, parameters_of(model), 1e-6, _settings(design, {}))
    embedding = run.parameters["embedding.weight"][tokens]
    if design == "moda":
        return _moda(Skipping(shape, run.parameters, 1e-6, run.options, block=block), embedding, block, z)[1]
    if design in ("hc", "mhc"):
        z = z.unflatten(-1, (4, model.shape.d_model))
    with torch.no_grad():
        state, positions = z, rope_table(tokens.shape[1], model.shape.head_dim, like=embedding)
        for later in range(block + 1, model.shape.n_layers):
            state = model.blocks[later](state, positions)
        return model.residual.close(state)
