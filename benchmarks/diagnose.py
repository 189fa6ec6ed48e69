"""How much faster the causal and the permutation score are than by their definition: a full forward pass for every change.

Both go over the same windows and give the same, which is checked: the causal score with the losses of pruning, or the
permutation score. The definition has two forms: plain loops over windows and changes, and all windows at once. The second has what
batching saves as well, so that the ratio to it is what comes of not recomputing the layers before the first changed one. Memory is
the peak of resident memory in a fresh process, above what it has with the model.
"""

from __future__ import annotations

import json
import os
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from typing import Any

import common
import numpy as np
import torch

from depthbench import build_model
from depthbench.cli.output import make_table
from depthbench.diagnose import scores
from depthbench.diagnose.ours import OurPasses, OurSubject
from depthbench.diagnose.tasks import BATCH_TOKENS
from depthbench.progress import Progress
from depthbench.shape import ModelShape


@dataclass(frozen=True)
class Options:
    """The causal and the permutation score against a full forward pass for every change."""

    designs: tuple[str, ...] = ("preln", "hc", "attnres", "attnres_block")
    """Designs."""
    shapes: tuple[str, ...] = ("16x64", "32x64")
    """Layers x width."""
    windows: int = 8
    """Windows."""
    length: int = 128
    """Tokens a window."""
    threads: int = 1
    """CPU threads."""
    rounds: int = 2
    """Rounds; each measures all."""
    json: bool = False
    """Print JSON."""


@dataclass(frozen=True)
class Row:
    """Ratios of times, the definition's (`plain`: window by window; `batched`: all windows at once) over ours, and peaks of memory
    in bytes, of the definition with all windows at once.
    """

    design: str
    layers: int
    score: str
    plain: common.Spread
    batched: common.Spread
    ours_seconds: float
    ours_peak: int | None
    definition_peak: int | None


def subject_of(design: str, shape: ModelShape) -> OurSubject:
    """A model of the shape."""
    return OurSubject(build_model(design, shape))


def windows_of(options: Options, shape: ModelShape) -> torch.Tensor:
    """Random windows: times do not depend on them."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(shape.vocab_size, (options.windows, options.length), generator=generator)


def ours(score: str, subject: OurSubject, windows: torch.Tensor) -> np.ndarray:
    """The package's way."""
    found = []
    with subject.computing():
        for batch in windows.split(max(1, BATCH_TOKENS // windows.shape[1])):
            passes = subject.begin(batch)
            if score == "causal":
                skips = scores.skips(passes)
                found.append(_with_losses(skips.ratio, skips.pruned))
            else:
                found.append(scores.swaps(passes).swapped)
    return np.concatenate(found)


def _with_losses(ratio: np.ndarray, pruned: np.ndarray) -> np.ndarray:
    return np.concatenate((ratio, pruned[:, :, None]), axis=2)


def definition(score: str, subject: OurSubject, windows: torch.Tensor, rows: int) -> np.ndarray:
    """Every change by a pass through the whole model."""
    with subject.computing():
        parts = [_causal(subject, batch) if score == "causal" else _swapped(subject, batch) for batch in windows.split(rows)]
    return np.concatenate(parts)


def _causal(subject: OurSubject, batch: torch.Tensor) -> np.ndarray:
    depth = subject.depth
    clean = subject.begin(batch).clean_states()
    found, pruned = np.full((len(batch), depth, depth), np.nan), np.empty((len(batch), depth))
    for s in range(depth):
        passes = Without(subject, batch, s)
        changed = passes.clean_states()
        pruned[:, s] = passes.losses(passes.places[-1])
        for block in range(s + 1, depth):
            u, v = clean[block + 1] - clean[block], changed[block + 1] - changed[block]
            found[:, s, block] = ((v - u).norm(dim=-1) / u.norm(dim=-1).clamp_min(1e-8)).mean(1)
    return _with_losses(found, pruned)


class Without(OurPasses):
    """A pass from the embedding on, without one block."""

    def __init__(self, subject: OurSubject, windows: torch.Tensor, s: int) -> None:
        self.left_out = s
        super().__init__(subject, windows)

    def through(self, block: int, place: Any) -> Any:
        """The block, or its being left out."""
        return self.skipping(block, self.subject.skip_rules[0]) if block == self.left_out else super().through(block, place)

    def _check_finite(self, block: int) -> None:
        """Not part of the definition."""


def _swapped(subject: OurSubject, batch: torch.Tensor) -> np.ndarray:
    depth = subject.depth
    found = np.full((len(batch), depth, depth), np.nan)
    for i in range(depth):
        for j in range(i + 1, depth):
            with subject.swapped(i, j):
                passes = Without(subject, batch, -1)
                found[:, i, j] = passes.losses(passes.places[-1])
    return found


def timed(work: Any, *arguments: Any) -> tuple[float, np.ndarray]:
    """Seconds, and what it gives."""
    began = time.perf_counter()
    found = work(*arguments)
    return time.perf_counter() - began, found


def peak(way: str, score: str, design: str, shape: ModelShape, options: Options) -> int | None:
    """Bytes by which resident memory peaks above the model's, in this (fresh) process. A small pass before loads the kernels."""
    torch.set_num_threads(options.threads)
    subject, windows = subject_of(design, shape), windows_of(options, shape)
    with subject.computing():
        subject.begin(windows[:1, :2])
    if way == "ours":
        return common.resident_growth(lambda: ours(score, subject, windows))
    return common.resident_growth(lambda: definition(score, subject, windows, options.windows))


def measure(options: Options) -> list[Row]:
    """All rows."""
    torch.set_num_threads(options.threads)
    os.environ["MALLOC_MMAP_THRESHOLD_"] = common.LARGE_BLOCK  # for the processes that are started below
    shapes = common.parse_shapes(options.shapes, n_heads=2, context=options.length)
    cases = [(design, shape, score) for shape in shapes for design in options.designs for score in ("causal", "permutation")]
    rows = []
    with Progress("diagnose", len(cases)) as progress:
        for done, (design, shape, score) in enumerate(cases, 1):
            subject, windows = subject_of(design, shape), windows_of(options, shape)
            ratios: dict[int, list[float]] = {1: [], options.windows: []}
            seconds = []
            for _ in range(options.rounds):
                mine, got = timed(ours, score, subject, windows)
                for size, found in ratios.items():
                    took, wanted = timed(definition, score, subject, windows, size)
                    np.testing.assert_allclose(got, wanted, rtol=2e-3, atol=1e-5)
                    found.append(took / mine)
                seconds.append(mine)
            peaks = []
            for way in ("ours", "definition"):
                with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
                    peaks.append(pool.submit(peak, way, score, design, shape, options).result())
            plain, batched = (common.Spread.of(found) for found in (ratios[1], ratios[options.windows]))
            rows.append(Row(design, shape.n_layers, score, plain, batched, float(np.median(seconds)), *peaks))
            progress.update(done, f"{design} {shape.n_layers} layers, {score}")
    return rows


def main(options: Options) -> None:
    """Measure and print."""
    common.need_positive(options, "windows", "length", "threads", "rounds")
    where = common.machine(options.threads)
    rows = measure(options)
    if options.json:
        print(json.dumps({"machine": where, "options": asdict(options), "rows": [asdict(row) for row in rows]}, indent=2))
        return
    from rich.console import Console

    table = make_table("design", "layers", "score", "plain / ours", "batched / ours", "ours (s)", "ours MiB", "batched MiB", left=1)
    for row in rows:
        sizes = ("–" if size is None else f"{size / common.MIB:.1f}" for size in (row.ours_peak, row.definition_peak))
        ratios = (row.plain.text(), row.batched.text())
        table.add_row(row.design, str(row.layers), row.score, *ratios, f"{row.ours_seconds:.2f}", *sizes)
    print(common.describe(where))
    Console(width=120).print(table)


if __name__ == "__main__":
    common.run(Options, main)
