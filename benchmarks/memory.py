"""Memory for training against depth at one width: what autograd keeps for backward, and what the process grows by.

The first is counted exactly: every tensor saved for backward, parameters aside, with views and further references to one storage
counted once. The second is the peak of resident memory in a forward and backward pass of a fresh process (Linux alone tells it).
The allocator is told to give large blocks back as soon as they are freed, so that the peak is of live memory: with its usual
habits the same pass peaked higher by a third, or not, from run to run.
"""

from __future__ import annotations

import math
import multiprocessing
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F
from common import LARGE_BLOCK, MIB, describe, machine, need_positive, resident_growth, run
from peers import BASELINE, STACKED, build, short, with_baseline
from torch import Tensor, nn

from depthbench import ModelShape
from depthbench.cli.output import console, make_table, print_json
from depthbench.progress import Progress


@dataclass(frozen=True)
class Options:
    """Memory for training against depth: bytes saved for backward, and peak resident memory."""

    designs: tuple[str, ...] = ("attnres", STACKED)
    """Designs, also as hc[streams=2] or path/to/file.py:Class, and the peers llama and stacked_attnres. Pre-LN always runs."""
    depths: tuple[int, ...] = (4, 8, 16, 32)
    """Layers."""
    width: int = 64
    """Width of every model."""
    heads: int = 2
    """Attention heads."""
    context: int = 128
    """Tokens a sequence."""
    batch: int = 4
    """Sequences."""
    json: bool = False
    """Print JSON."""


@dataclass(frozen=True)
class Row:
    """One design at one depth, in bytes. An exponent is the log-log slope from the depth before: 1 is linear, 2 quadratic."""

    design: str
    n_layers: int
    saved: int
    saved_exponent: float | None
    saved_over_preln: float
    peak: int | None
    peak_exponent: float | None
    peak_over_preln: float | None


def random_tokens(shape: ModelShape, batch: int) -> Tensor:
    """`[batch, context]`, always the same."""
    return torch.randint(shape.vocab_size, (batch, shape.context), generator=torch.Generator().manual_seed(0))


def loss_of(model: nn.Module, tokens_BT: Tensor) -> Tensor:
    """Cross-entropy of the tokens themselves: as good as any for memory."""
    loss: Tensor = F.cross_entropy(model(tokens_BT).flatten(0, 1), tokens_BT.flatten())
    return loss


def saved_bytes(model: nn.Module, tokens_BT: Tensor) -> int:
    """Bytes that a forward pass keeps for backward, beyond the parameters. A storage counts once, and whole."""
    parameters = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, torch.UntypedStorage] = {}  # holding the storages keeps any address from being used again

    def pack(tensor: Tensor) -> None:  # the graph gets nothing: no backward follows, and an output kept by its node would leak
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            kept[storage.data_ptr()] = storage

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda nothing: nothing):
        loss_of(model, tokens_BT)
    return sum(storage.nbytes() for storage in kept.values())


def peak_growth(design: str, shape: ModelShape, batch: int) -> int | None:
    """Bytes by which resident memory peaks in a pass above what the built model takes. None where it cannot be told.

    To be called in a fresh process. A tiny pass before loads the kernels and makes the gradients.
    """
    torch.set_num_threads(1)
    model, tokens_BT = build(design, shape), random_tokens(shape, batch)
    loss_of(model, tokens_BT[:1, :1]).backward()
    return resident_growth(lambda: loss_of(model, tokens_BT).backward())


def measure(options: Options) -> list[Row]:
    """Every design at every depth."""
    names, depths = with_baseline(options.designs), sorted(set(options.depths))
    shapes = [ModelShape(depth, options.width, options.heads, context=options.context) for depth in depths]
    saved: dict[tuple[str, int], int] = {}
    peak: dict[tuple[str, int], int | None] = {}
    os.environ["MALLOC_MMAP_THRESHOLD_"] = LARGE_BLOCK  # for the processes that are started below
    fresh = multiprocessing.get_context("spawn")
    with (
        ProcessPoolExecutor(1, mp_context=fresh, max_tasks_per_child=1) as pool,
        Progress("memory", len(names) * len(shapes)) as progress,
    ):
        for name in names:
            for shape in shapes:
                key = name, shape.n_layers
                saved[key] = saved_bytes(build(name, shape), random_tokens(shape, options.batch))
                peak[key] = pool.submit(peak_growth, name, shape, options.batch).result()
                progress.update(len(peak), f"{short(name)} {shape.n_layers} layers")
    return [
        Row(
            design=name,
            n_layers=depth,
            saved=saved[name, depth],
            saved_exponent=exponent(before, saved.get((name, before)), depth, saved[name, depth]),
            saved_over_preln=saved[name, depth] / saved[BASELINE, depth],
            peak=peak[name, depth],
            peak_exponent=exponent(before, peak.get((name, before)), depth, peak[name, depth]),
            peak_over_preln=over(peak[name, depth], peak[BASELINE, depth]),
        )
        for name in names
        for before, depth in zip((0, *depths), depths, strict=False)
    ]


def exponent(n_before: int, before: int | None, n: int, now: int | None) -> float | None:
    """The slope of log bytes over log layers between two depths; None without a depth before."""
    return math.log(now / before) / math.log(n / n_before) if before and now else None


def over(value: int | None, base: int | None) -> float | None:
    """Their ratio, where both are known."""
    return value / base if value and base else None


def show(rows: Sequence[Row]) -> None:
    """The table, and how each design grows at the end."""
    out = console()
    table = make_table("design", "layers", "saved MiB", "KiB a layer", "exponent", "× Pre-LN", "peak MiB", "exponent", "× Pre-LN")
    for row in rows:
        table.add_row(
            short(row.design),
            str(row.n_layers),
            f"{row.saved / MIB:,.1f}",
            f"{row.saved / 1024 / row.n_layers:,.0f}",
            number(row.saved_exponent),
            number(row.saved_over_preln),
            number(row.peak and row.peak / MIB, ",.1f"),
            number(row.peak_exponent),
            number(row.peak_over_preln),
        )
    out.print(table)
    out.print("saved: bytes kept for backward, each storage once, without parameters; peak: growth of resident memory in a pass")
    out.print("exponent: log-log slope from the depth above; 1 is linear in depth, 2 quadratic")


def number(value: float | None, pattern: str = ".2f") -> str:
    """A number, or a dash where there is none."""
    return "–" if value is None else f"{value:{pattern}}"


def main(options: Options) -> None:
    need_positive(options, "depths", "width", "heads", "context", "batch")
    torch.set_num_threads(1)
    where = machine(1)
    rows = measure(options)
    if options.json:
        print_json({"machine": where, "options": asdict(options), "rows": [asdict(row) for row in rows]})
        return
    print(describe(where))
    print(f"width {options.width}, {options.heads} heads, context {options.context}, batch {options.batch}\n")
    show(rows)


if __name__ == "__main__":
    run(Options, main)
