"""How fast a training step of each design is, beside transformers' Llama, as ratios over Pre-LN of the same shape.

All models of a shape live in one process and take turns in every round, in an order shuffled anew, so that a drift of the machine
meets all alike. Ratios are taken within a round.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F
from common import Spread, describe, machine, need_positive, parse_shapes, run
from peers import BASELINE, LLAMA, build, short, with_baseline
from torch import nn

from depthbench import ModelShape
from depthbench.cli.output import console, make_table, print_json
from depthbench.progress import Progress
from depthbench.residual.registry import BUILT_IN
from depthbench.train.optimizer import make_optimizer
from depthbench.train.recipe import Recipe

WARM_UP_STEPS = 2
STEPS_A_TURN = 2


@dataclass(frozen=True)
class Options:
    """Tokens per second of a training step (forward, backward, clipping, AdamW), side by side in one process."""

    shapes: tuple[str, ...] = ("2x120", "6x68", "14x44")
    """Layers x width."""
    designs: tuple[str, ...] = (*BUILT_IN, LLAMA)
    """Designs, also as hc[streams=2] or path/to/file.py:Class, and the peers llama and stacked_attnres. Pre-LN always runs."""
    heads: int = 2
    """Attention heads."""
    context: int = 128
    """Tokens a sequence."""
    batch: int = 16
    """Sequences a step."""
    rounds: int = 7
    """Rounds, in each of which every model has one turn."""
    threads: int = 1
    """CPU threads."""
    json: bool = False
    """Print JSON, with the seconds of every turn."""


@dataclass(frozen=True)
class Entrant:
    """A model ready to train; `step` makes one update."""

    name: str
    parameters: int
    step: Callable[[], None]


@dataclass(frozen=True)
class Row:
    """One model of one shape. `seconds` a step, by round; the ratios are of tokens per second and of step time over Pre-LN's."""

    shape: str
    design: str
    parameters: int
    tokens_per_second: Spread
    speed: Spread
    step_time: Spread
    seconds: list[float]


def enter(name: str, shape: ModelShape, batch: int) -> Entrant:
    """Build a model with its optimizer. All train on the same random tokens."""
    model = build(name, shape).train()
    recipe = Recipe(steps=1, batch_size=batch, learning_rate=1e-3)
    optimizer = make_optimizer(model, recipe, fused=None)
    tokens = torch.randint(shape.vocab_size, (batch, shape.context + 1), generator=torch.Generator().manual_seed(0))
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].flatten()

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(model(inputs).flatten(0, 1), targets).backward()
        nn.utils.clip_grad_norm_(model.parameters(), recipe.clip_norm)
        optimizer.step()

    return Entrant(name, sum(p.numel() for p in model.parameters()), step)


def race(entrants: Sequence[Entrant], rounds: int, title: str) -> dict[str, list[float]]:
    """Seconds a step by model and round."""
    seconds: dict[str, list[float]] = {entrant.name: [] for entrant in entrants}
    for entrant in entrants:
        for _ in range(WARM_UP_STEPS):
            entrant.step()
    with Progress(title, rounds) as progress:
        for number in range(rounds):
            for entrant in random.Random(number).sample(entrants, len(entrants)):
                gc.collect()  # nobody pays for the garbage of the turn before
                began = time.perf_counter()
                for _ in range(STEPS_A_TURN):
                    entrant.step()
                seconds[entrant.name].append((time.perf_counter() - began) / STEPS_A_TURN)
            progress.update(number + 1)
    return seconds


def measure(shape: ModelShape, options: Options) -> list[Row]:
    """All models of one shape."""
    entrants = [enter(name, shape, options.batch) for name in with_baseline(options.designs)]
    seconds = race(entrants, options.rounds, shape.name)
    tokens, plain = options.batch * shape.context, seconds[BASELINE]
    return [
        Row(
            shape=shape.name,
            design=entrant.name,
            parameters=entrant.parameters,
            tokens_per_second=Spread.of([tokens / own for own in seconds[entrant.name]]),
            speed=Spread.of([base / own for base, own in zip(plain, seconds[entrant.name], strict=True)]),
            step_time=Spread.of([own / base for base, own in zip(plain, seconds[entrant.name], strict=True)]),
            seconds=seconds[entrant.name],
        )
        for entrant in entrants
    ]


def show(rows: Sequence[Row]) -> None:
    """The table of one shape."""
    out = console()
    table = make_table(rows[0].shape, "parameters", "tokens/s", "(quartiles)", "speed over Pre-LN", "step time over Pre-LN")
    for row in rows:
        rate = row.tokens_per_second
        tokens = (f"{rate.median:,.0f}", f"({rate.q1:,.0f}–{rate.q3:,.0f})")
        table.add_row(short(row.design), f"{row.parameters:,}", *tokens, row.speed.text(), row.step_time.text())
    out.print(table)
    llama = next((row for row in rows if row.design == LLAMA), None)
    if llama:
        out.print(f"Pre-LN has {llama.step_time.text()} × the tokens per second of transformers' Llama.")
    out.print()


def main(options: Options) -> None:
    need_positive(options, "heads", "context", "batch", "rounds", "threads")
    shapes = parse_shapes(options.shapes, n_heads=options.heads, context=options.context)
    torch.set_num_threads(options.threads)
    where, results = machine(options.threads), []
    if not options.json:
        print(describe(where))
        print(
            f"context {options.context}, batch {options.batch}, {options.heads} heads; medians and quartiles over"
            f" {options.rounds} rounds of {STEPS_A_TURN} steps\n"
        )
    for shape in shapes:
        rows = measure(shape, options)
        results += rows
        if not options.json:
            show(rows)
    if options.json:
        print_json({"machine": where, "options": asdict(options), "rows": [asdict(row) for row in results]})


if __name__ == "__main__":
    run(Options, main)
