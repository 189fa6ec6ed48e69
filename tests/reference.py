"""A slow second reading of the ten residual designs, in plain float64 loops, to hold the model against.

Written from the equations alone: one function a design, loops over sublayers, streams, sources, heads, query positions and depth
slots, nothing shared with the package. Tensors are [B, T, ...]; H is the list of streams, i a sublayer, i // 2 its block.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

OPTIONS: dict[str, dict[str, Any]] = {
    "preln": {},
    "sandwich": {"embedding_norm": False},
    "lns": {},
    "deepnorm": {"norm": "layer"},
    "keel": {},
    "hc": {"streams": 4, "dynamic": True, "tanh": True},
    "mhc": {"streams": 4, "rounds": 20},
    "attnres": {"scale": False},
    "attnres_block": {"scale": False, "n_blocks": 4, "block_size": None},
    "moda": {},
}


def reference_logits(
    design: str, shape: Mapping[str, int], parameters: Mapping[str, Tensor], tokens: Tensor, norm_eps: float = 1e-6, **options: Any
) -> Tensor:
    """Logits [B, T, V] in float64 of `tokens` [B, T], differentiable in `parameters`; see reference_trace."""
    logits: Tensor = reference_trace(design, shape, parameters, tokens, norm_eps, **options)["logits"]
    return logits


def reference_trace(
    design: str, shape: Mapping[str, int], parameters: Mapping[str, Tensor], tokens: Tensor, norm_eps: float = 1e-6, **options: Any
) -> dict[str, Any]:
    """Everything on the way to the logits. Lists have one entry a sublayer unless said otherwise.

    All designs: embedding, closed (what the final norm reads), logits; inputs (before the sublayer's own norm), outputs (raw F_i),
    states (after the sublayer: [B, T, d], or [B, T, n, d] for streams), attention ([B, n_heads, T, T + depth slots] a block).
    hc: A [B, T, n, n + 1], b [B, T, n]. mhc: h_pre, h_post [B, T, n], R [B, T, n, n] (target, source).
    attnres, attnres_block: weights [B, T, number of sources], one a sublayer and last the close; states holds each list of sources.
    """
    expected = parameter_shapes(design, shape, **options)
    found = {name: tuple(value.shape) for name, value in parameters.items()}
    if found != expected:
        raise ValueError(f"parameters of {design} differ from the specification: {sorted(found.items() ^ expected.items())}")
    run = Run(dict(shape), {k: v.to(torch.float64) for k, v in parameters.items()}, norm_eps, _settings(design, options))
    embedding = run.parameters["embedding.weight"][tokens]
    if run.options.get("embedding_norm"):
        embedding = run.rms(embedding, "residual.embedding_norm.gain")
    closed = DESIGNS[design](run, embedding)
    logits = run.rms(closed, "norm.gain") @ run.parameters["head.weight"].T
    return {**run.trace, "embedding": embedding, "closed": closed, "logits": logits}


# ------------------------------------------------------------------------------------------------------------ backbone


@dataclass(frozen=True)
class Run:
    """One forward pass: the shape, the weights in float64, and what is recorded on the way."""

    shape: dict[str, int]
    parameters: dict[str, Tensor]
    eps: float
    options: dict[str, Any]
    trace: dict[str, list[Any]] = field(default_factory=dict)

    @property
    def sublayers(self) -> range:
        return range(2 * self.shape["n_layers"])

    def record(self, **values: Any) -> None:
        for name, value in values.items():
            self.trace.setdefault(name, []).append(value)

    def link(self, i: int, name: str) -> Tensor:
        """A parameter of the wiring of sublayer i."""
        return self.parameters[f"{_link(i)}.{name}"]

    def rms(self, x: Tensor, gain: str) -> Tensor:
        return x / torch.sqrt((x * x).mean(-1, keepdim=True) + self.eps) * self.parameters[gain]

    def layer_norm(self, x: Tensor, gain: str) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        return centred / torch.sqrt((centred * centred).mean(-1, keepdim=True) + self.eps) * self.parameters[gain]

    def norm(self, i: int, x: Tensor) -> Tensor:
        return self.rms(x, f"{_link(i)}.norm.gain")

    def sublayer(self, i: int, read: Tensor, normed: Tensor, slots: list[tuple[Tensor, Tensor]] | None = None) -> Tensor:
        """F_i of `normed`; `read` is the same thing before the norm, only recorded."""
        y = self.attention(i // 2, normed, slots or []) if i % 2 == 0 else self.mlp(i // 2, normed)
        self.record(inputs=read, outputs=y)
        return y

    def project(self, name: str, x: Tensor) -> Tensor:
        return x @ self.parameters[f"{name}.weight"].T

    def mlp(self, block: int, x: Tensor) -> Tensor:
        gate = self.project(f"blocks.{block}.mlp.gate", x)
        return self.project(f"blocks.{block}.mlp.down", gate / (1 + torch.exp(-gate)) * self.project(f"blocks.{block}.mlp.up", x))

    def keys_and_values(self, block: int, x: Tensor) -> tuple[Tensor, Tensor]:
        """[B, T, n_kv_heads * head_dim] each, before RoPE."""
        return self.project(f"blocks.{block}.attention.k", x), self.project(f"blocks.{block}.attention.v", x)

    def attention(self, block: int, x: Tensor, slots: list[tuple[Tensor, Tensor]]) -> Tensor:
        """Query t reads sequence positions 0…t (keys with RoPE) and the depth slots of token t (keys without), in one softmax."""
        n_heads, head_dim = self.shape["n_heads"], self.shape["head_dim"]
        queries = self.project(f"blocks.{block}.attention.q", x)
        keys, values = self.keys_and_values(block, x)
        length, heads, weights = x.shape[1], [], []
        for h in range(n_heads):
            own = slice(h * head_dim, (h + 1) * head_dim)
            g = h // (n_heads // self.shape["n_kv_heads"])
            shared = slice(g * head_dim, (g + 1) * head_dim)
            query, key, value = rope(queries[..., own]), rope(keys[..., shared]), values[..., shared]
            out, rows = [], []
            for t in range(length):
                read_keys = [key[:, s] for s in range(t + 1)] + [slot_key[:, t, shared] for slot_key, _ in slots]
                read_values = [value[:, s] for s in range(t + 1)] + [slot_value[:, t, shared] for _, slot_value in slots]
                p = softmax([(query[:, t] * k).sum(-1) / math.sqrt(head_dim) for k in read_keys])
                out.append(weighted_sum(p, read_values))
                rows.append(torch.stack(p[: t + 1] + [torch.zeros_like(p[0])] * (length - 1 - t) + p[t + 1 :], dim=-1))
            heads.append(torch.stack(out, dim=1))
            weights.append(torch.stack(rows, dim=1))
        self.record(attention=torch.stack(weights, dim=1))
        return self.project(f"blocks.{block}.attention.o", torch.cat(heads, dim=-1))


def rope(x: Tensor, theta: float = 10000.0) -> Tensor:
    """[B, T, head_dim]: at position t, the pair (k, k + head_dim/2) is turned by t * theta^(-2k/head_dim)."""
    half, out = x.shape[-1] // 2, []
    for t in range(x.shape[1]):
        angles = [t * theta ** (-2 * k / x.shape[-1]) for k in range(half)]
        first = [x[:, t, k] * math.cos(angles[k]) - x[:, t, k + half] * math.sin(angles[k]) for k in range(half)]
        second = [x[:, t, k + half] * math.cos(angles[k]) + x[:, t, k] * math.sin(angles[k]) for k in range(half)]
        out.append(torch.stack(first + second, dim=-1))
    return torch.stack(out, dim=1)


def softmax(logits: list[Tensor]) -> list[Tensor]:
    """Over the list; the shift by the largest changes neither value nor gradient."""
    largest = torch.stack(logits).detach().amax(0)
    exps = [torch.exp(logit - largest) for logit in logits]
    total = sum(exps)
    return [e / total for e in exps]


def weighted_sum(weights: list[Tensor], values: list[Tensor]) -> Tensor:
    total = torch.zeros_like(values[0])
    for weight, value in zip(weights, values, strict=True):
        total = total + weight[..., None] * value
    return total


# ------------------------------------------------------------- the designs: embedding [B, T, d] to what the final norm reads


def preln(run: Run, x: Tensor) -> Tensor:
    for i in run.sublayers:
        x = x + run.sublayer(i, x, run.norm(i, x))
        run.record(states=x)
    return x


def sandwich(run: Run, x: Tensor) -> Tensor:
    for i in run.sublayers:
        x = x + run.rms(run.sublayer(i, x, run.norm(i, x)), f"{_link(i)}.out_norm.gain")
        run.record(states=x)
    return x


def lns(run: Run, x: Tensor) -> Tensor:
    for i in run.sublayers:
        x = x + run.sublayer(i, x, run.norm(i, x) * (1 / math.sqrt(i // 2 + 1)))
        run.record(states=x)
    return x


def deepnorm(run: Run, x: Tensor) -> Tensor:
    alpha = len(run.sublayers) ** 0.25
    norm = {"layer": run.layer_norm, "rms": run.rms}[run.options["norm"]]
    for i in run.sublayers:
        x = norm(alpha * x + run.sublayer(i, x, x), f"{_link(i)}.norm.gain")
        run.record(states=x)
    return x


def keel(run: Run, x: Tensor) -> Tensor:
    for i in run.sublayers:
        y = run.sublayer(i, x, run.norm(i, x))
        if i == 0:
            x = x + y
        else:
            alpha = 1 if i == 1 else len(run.sublayers)
            x = run.rms(alpha * x + y, f"{_link(i)}.post_norm.gain")
        run.record(states=x)
    return x


def hc(run: Run, embedding: Tensor) -> Tensor:
    n = run.options["streams"]
    H = [embedding for _ in range(n)]
    for i in run.sublayers:
        A, b = hc_mixing(run, i, H)
        m = [weighted_sum([A[s][t] for s in range(n)], H) for t in range(n + 1)]
        y = run.sublayer(i, m[0], run.norm(i, m[0]))
        H = [m[t] + b[t - 1][..., None] * y for t in range(1, n + 1)]  # column t forms stream t - 1
        run.record(
            states=torch.stack(H, dim=2),
            A=torch.stack([torch.stack(row, dim=-1) for row in A], dim=-2),
            b=torch.stack(b, dim=-1),
        )
    return torch.stack(H).sum(0)


def hc_mixing(run: Run, i: int, H: list[Tensor]) -> tuple[list[list[Tensor]], list[Tensor]]:
    """A[s][t] and b[s], each [B, T], from the streams before the mix."""
    n = len(H)
    token = torch.ones_like(H[0][..., 0])
    A = [[run.link(i, "A0")[s, t] * token for t in range(n + 1)] for s in range(n)]
    b = [run.link(i, "b0")[s] * token for s in range(n)]
    if run.options["dynamic"]:
        squash: Callable[[Tensor], Tensor] = torch.tanh if run.options["tanh"] else lambda z: z
        for s in range(n):
            u = H[s] / torch.sqrt((H[s] * H[s]).mean(-1, keepdim=True) + run.eps)
            for t in range(n + 1):
                A[s][t] = A[s][t] + run.link(i, "a") * squash((u * run.link(i, "Wa")[:, t]).sum(-1))
            b[s] = b[s] + run.link(i, "c") * squash((u * run.link(i, "wb")).sum(-1))
    return A, b


def mhc(run: Run, embedding: Tensor) -> Tensor:
    n = run.options["streams"]
    H = [embedding for _ in range(n)]
    for i in run.sublayers:
        h_pre, h_post, R = mhc_mixing(run, i, H)
        read = weighted_sum([h_pre[..., s] for s in range(n)], H)
        y = run.sublayer(i, read, run.norm(i, read))
        H = [weighted_sum([R[..., t, s] for s in range(n)], H) + h_post[..., t, None] * y for t in range(n)]
        run.record(states=torch.stack(H, dim=2), h_pre=h_pre, h_post=h_post, R=R)
    return torch.stack(H).mean(0)


def mhc_mixing(run: Run, i: int, H: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    n = len(H)
    X = torch.cat(H, dim=-1)  # stream 0 first
    z = (X @ run.link(i, "phi")) / torch.sqrt((X * X).mean(-1, keepdim=True) + run.eps)
    bias = run.link(i, "bias")
    h_pre = torch.sigmoid(run.link(i, "g_pre") * z[..., :n] + bias[:n])
    h_post = 2 * torch.sigmoid(run.link(i, "g_post") * z[..., n : 2 * n] + bias[n : 2 * n])
    logits = run.link(i, "g_res") * z[..., 2 * n :] + bias[2 * n :]
    rows = [torch.stack([logits[..., t * n + s] for s in range(n)], dim=-1) for t in range(n)]
    return h_pre, h_post, sinkhorn(torch.stack(rows, dim=-2), run.options["rounds"])


def sinkhorn(logits: Tensor, rounds: int = 20) -> Tensor:
    """[..., t, s]: each round makes the sums over t one (columns), then the sums over s (rows)."""
    for _ in range(rounds):
        logits = logits - torch.logsumexp(logits, dim=-2, keepdim=True)
        logits = logits - torch.logsumexp(logits, dim=-1, keepdim=True)
    return torch.exp(logits)


def depth_mix(run: Run, sources: list[Tensor], prefix: str) -> Tensor:
    """Softmax attention of one query over the sources of the same token."""
    query = run.parameters[f"{prefix}.query"]
    logits = [(query * run.rms(v, f"{prefix}.key_gain")).sum(-1) for v in sources]
    if run.options["scale"]:
        logits = [logit / math.sqrt(run.shape["d_model"]) for logit in logits]
    p = softmax(logits)
    run.record(weights=torch.stack(p, dim=-1))
    return weighted_sum(p, sources)


def attnres(run: Run, embedding: Tensor) -> Tensor:
    sources = [embedding]
    for i in run.sublayers:
        read = sources[0] if i == 0 else depth_mix(run, sources, _link(i))
        if i == 0:
            run.record(weights=torch.ones_like(embedding[..., :1]))
        sources = [*sources, run.sublayer(i, read, run.norm(i, read))]
        run.record(states=sources)
    return depth_mix(run, sources, "residual")


def attnres_block(run: Run, embedding: Tensor) -> Tensor:
    size = segment_size(len(run.sublayers), run.options)
    sources = sealed = [embedding]
    running: list[Tensor] = []  # the outputs of the open segment; their sum is its source
    for i in run.sublayers:
        read = sources[0] if i == 0 else depth_mix(run, sources, _link(i))
        if i == 0:
            run.record(weights=torch.ones_like(embedding[..., :1]))
        running = [*running, run.sublayer(i, read, run.norm(i, read))]
        sources = [*sealed, torch.stack(running).sum(0)]
        if (i + 1) % size == 0:
            sealed, running = sources, []
        run.record(states=sources)
    return depth_mix(run, sources, "residual")


def segment_size(n_sublayers: int, options: Mapping[str, Any]) -> int:
    size: int | None = options["block_size"]
    return math.ceil(n_sublayers / options["n_blocks"]) if size is None else size


def moda(run: Run, x: Tensor) -> Tensor:
    slots: list[tuple[Tensor, Tensor]] = []
    for i in run.sublayers:
        block, normed = i // 2, run.norm(i, x)
        if i % 2 == 0:
            x = x + run.sublayer(i, x, normed, slots)
            slots = [*slots, run.keys_and_values(block, normed)]
        else:
            x = x + run.sublayer(i, x, normed)
            if block < run.shape["n_layers"] - 1:
                both, width = run.project(f"{_link(i)}.kv", normed), run.shape["n_kv_heads"] * run.shape["head_dim"]
                slots = [*slots, (both[..., :width], both[..., width:])]
        run.record(states=x)
    return x


DESIGNS: dict[str, Callable[[Run, Tensor], Tensor]] = {
    "preln": preln,
    "sandwich": sandwich,
    "lns": lns,
    "deepnorm": deepnorm,
    "keel": keel,
    "hc": hc,
    "mhc": mhc,
    "attnres": attnres,
    "attnres_block": attnres_block,
    "moda": moda,
}


# ---------------------------------------------------------------------------------------------------------- parameters


def parameter_shapes(design: str, shape: Mapping[str, int], **options: Any) -> dict[str, tuple[int, ...]]:
    """Name and shape of every parameter of a model of this design."""
    d, kv = shape["d_model"], shape["n_kv_heads"] * shape["head_dim"]
    heads = shape["n_heads"] * shape["head_dim"]
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(("embedding.weight", "head.weight"), (shape["vocab_size"], d))
    shapes["norm.gain"] = (d,)
    for block in range(shape["n_layers"]):
        shapes |= {f"blocks.{block}.attention.{n}.weight": (w, d) for n, w in (("q", heads), ("k", kv), ("v", kv))}
        shapes[f"blocks.{block}.attention.o.weight"] = (d, heads)
        shapes |= {f"blocks.{block}.mlp.{n}.weight": (shape["d_ff"], d) for n in ("gate", "up")}
        shapes[f"blocks.{block}.mlp.down.weight"] = (d, shape["d_ff"])
    if design == "moda":
        shapes |= {f"blocks.{block}.mlp_link.kv.weight": (2 * kv, d) for block in range(shape["n_layers"] - 1)}
    return shapes | {name: tuple(value.shape) for name, value in initial_mixing(design, shape, **options).items()}


def initial_mixing(design: str, shape: Mapping[str, int], **options: Any) -> dict[str, Tensor]:
    """The specified initial value of every parameter that is not drawn at random: gains and the designs' mixing parameters."""
    settings, d = _settings(design, options), shape["d_model"]
    ones, zeros = torch.ones(d, dtype=torch.float64), torch.zeros(d, dtype=torch.float64)
    values = {"norm.gain": ones}
    if design.startswith("attnres"):
        values |= {"residual.query": zeros, "residual.key_gain": ones}
    if settings.get("embedding_norm"):
        values["residual.embedding_norm.gain"] = ones
    for i in range(2 * shape["n_layers"]):
        own: dict[str, Tensor] = {"norm.gain": ones}
        if design == "sandwich":
            own["out_norm.gain"] = ones
        if design == "keel" and i > 0:
            own["post_norm.gain"] = ones
        if design.startswith("attnres") and i > 0:
            own |= {"query": zeros, "key_gain": ones}
        if design == "hc":
            own |= _initial_hc(i, d, settings["streams"], settings["dynamic"])
        if design == "mhc":
            own |= _initial_mhc(i, d, settings["streams"])
        values |= {f"{_link(i)}.{name}": value for name, value in own.items()}
    return {name: value.clone() for name, value in values.items()}


def _initial_hc(i: int, d: int, n: int, dynamic: bool) -> dict[str, Tensor]:
    A0 = torch.zeros(n, n + 1, dtype=torch.float64)
    A0[i % n, 0] = 1
    for s in range(n):
        A0[s, 1 + s] = 1
    values = {"A0": A0, "b0": torch.ones(n, dtype=torch.float64)}
    if dynamic:
        values |= {"Wa": torch.zeros(d, n + 1, dtype=torch.float64), "wb": torch.zeros(d, dtype=torch.float64)}
        values |= {name: torch.tensor(0.01, dtype=torch.float64) for name in ("a", "c")}
    return values


def _initial_mhc(i: int, d: int, n: int) -> dict[str, Tensor]:
    pre = [8.0 if s == i % n else -8.0 for s in range(n)]
    post = [0.0] * n
    res = [0.0 if s == t else -8.0 for t in range(n) for s in range(n)]
    values = {"phi": torch.zeros(n * d, 2 * n + n * n, dtype=torch.float64)}
    values["bias"] = torch.tensor(pre + post + res, dtype=torch.float64)
    return values | {name: torch.tensor(0.01, dtype=torch.float64) for name in ("g_pre", "g_post", "g_res")}


def _link(i: int) -> str:
    return f"blocks.{i // 2}.{'attention_link' if i % 2 == 0 else 'mlp_link'}"


def _settings(design: str, options: Mapping[str, Any]) -> dict[str, Any]:
    if unknown := set(options) - set(OPTIONS[design]):
        raise TypeError(f"{design} has no option {sorted(unknown)}; it has {sorted(OPTIONS[design])}")
    return OPTIONS[design] | dict(options)
