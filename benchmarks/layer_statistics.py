"""What it costs to watch the layers while a model trains (`--layer-statistics`), as a share of the step time.

One model takes watched and unwatched updates in turn, in an order shuffled anew in every round. A watched update that takes r times
an unwatched one costs (r - 1) / N of the step time when one update in N is watched.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F
from common import Spread, describe, machine, need_positive, parse_shapes, run
from torch import nn
from train_step import Entrant, race

from depthbench import ModelShape, build_model
from depthbench.cli.output import console, make_table, print_json
from depthbench.model.parallel import ALONE
from depthbench.residual.registry import BUILT_IN
from depthbench.train.layer_statistics import LayerStatistics
from depthbench.train.optimizer import make_optimizer
from depthbench.train.recipe import Recipe


@dataclass(frozen=True)
class Options:
    """The cost of layer statistics as a share of the step time."""

    designs: tuple[str, ...] = tuple(BUILT_IN)
    """Designs."""
    shapes: tuple[str, ...] = ("6x68", "14x44")
    """Layers x width."""
    every: int = 50
    """One update in so many is watched."""
    heads: int = 2
    """Attention heads."""
    context: int = 128
    """Tokens a sequence."""
    batch: int = 16
    """Sequences a step."""
    rounds: int = 7
    """Rounds, in each of which both kinds of update have one turn."""
    threads: int = 1
    """CPU threads."""
    json: bool = False
    """Print JSON."""


@dataclass(frozen=True)
class Row:
    """One model: a watched update over an unwatched one, and what it costs as a share of the step time."""

    design: str
    shape: str
    watched: Spread
    share: Spread


def measure(design: str, shape: ModelShape, options: Options) -> Row:
    """Both kinds of update on one model."""
    model = build_model(design, shape).train()
    recipe = Recipe(steps=1, batch_size=options.batch, learning_rate=1e-3)
    optimizer = make_optimizer(model, recipe, fused=None)
    tokens = torch.randint(shape.vocab_size, (options.batch, shape.context + 1), generator=torch.Generator().manual_seed(0))
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].flatten()

    def update(statistics: LayerStatistics) -> None:
        optimizer.zero_grad(set_to_none=True)
        with statistics.watching(1, 1.0):
            F.cross_entropy(model(inputs).flatten(0, 1), targets).backward()
        nn.utils.clip_grad_norm_(model.parameters(), recipe.clip_norm)
        optimizer.step()
        statistics.row(1, ALONE)

    watching, not_watching = LayerStatistics(model, 1), LayerStatistics(model, 0)
    entrants = [Entrant("plain", 0, lambda: update(not_watching)), Entrant("watched", 0, lambda: update(watching))]
    seconds = race(entrants, options.rounds, f"{design} {shape.name}")
    ratios = [watched / plain for watched, plain in zip(seconds["watched"], seconds["plain"], strict=True)]
    return Row(design, shape.name, Spread.of(ratios), Spread.of([(ratio - 1) / options.every for ratio in ratios]))


def main(options: Options) -> None:
    need_positive(options, "every", "heads", "context", "batch", "rounds", "threads")
    shapes = parse_shapes(options.shapes, n_heads=options.heads, context=options.context)
    torch.set_num_threads(options.threads)
    where = machine(options.threads)
    rows = [measure(design, shape, options) for shape in shapes for design in options.designs]
    if options.json:
        print_json({"machine": where, "options": asdict(options), "rows": [asdict(row) for row in rows]})
        return
    print(describe(where))
    table = make_table("design", "shape", "watched / plain update", f"% of the step time at N = {options.every}", left=2)
    for row in rows:
        table.add_row(row.design, row.shape, row.watched.text(), Spread(*(100 * v for v in asdict(row.share).values())).text())
    console().print(table)


if __name__ == "__main__":
    run(Options, main)
