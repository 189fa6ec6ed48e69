"""Verdicts on one table: what depth does for every design, how designs rank by depth gain, and which pairs differ.

Everything rests on the compared shapes (see `summary`) and on paired seeds: a design's numbers on the seeds that it has at all of
them, a pair's on those that both have. A design that diverges at a shape which another finished is ranked last.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from depthbench.text import some
from depthbench.verdict.decide import MARGIN, Decision, decide, doubts
from depthbench.verdict.pairs import Losses, Pair, compare, compared_losses, stack
from depthbench.verdict.rows import Shape
from depthbench.verdict.statistics import LEVEL, Estimate, FloatArray, difference, draw_means, estimate, noise, slope_weights
from depthbench.verdict.summary import CellSummary, Summary


@dataclass(frozen=True)
class DesignVerdict:
    """One design over the compared shapes.

    `slope` and `gain` are None if it has not finished them; with one seed they have no interval, and there is no `sigma` (of the
    noise), `rank` or `verdict`. `rank` is (from, to): one more than the number of designs whose gain is larger beyond the noise,
    and all designs but those whose gain is smaller. `best_depths` are (n_layers, share of draws in which that depth has the lowest
    loss). `reason` says in a sentence what the verdict, or its absence, rests on.
    """

    label: str
    n: int
    sigma: float | None
    slope: Estimate | None
    gain: Estimate | None
    verdict: str | None
    reason: str
    rank: tuple[int, int] | None = None
    best_depths: tuple[tuple[int, float], ...] = ()
    needed_seeds: int | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Verdicts:
    """Ranked designs from the largest gain to the smallest, those that diverge after them, then those without a rank; all pairs of
    designs that finished the `compared` shapes.
    """

    compared: tuple[Shape, ...]
    designs: tuple[DesignVerdict, ...]
    pairs: tuple[Pair, ...]
    margin: float
    notes: tuple[str, ...]


def judge(summary: Summary, margin: float = MARGIN) -> Verdicts:
    """The verdicts on a table. A slope surely within ± `margin` nats per token and doubling of depth is called flat."""
    cells = {label: [cell for cell in summary.cells if cell.label == label] for label in summary.labels}
    losses = compared_losses(summary)
    pairs = compare(losses)
    failed = [label for label in summary.labels if _diverges_alone(summary, cells[label])]
    found = [_design(label, cells[label], summary, losses.get(label), margin) for label in summary.labels]
    ranks = _ranks([design for design in found if design.label not in failed], pairs, failed)
    ranked = [replace(design, rank=ranks.get(design.label)) for design in found]
    notes = tuple(_notes(summary, losses, pairs, ranked, margin))
    return Verdicts(summary.compared, tuple(sorted(ranked, key=lambda design: _place(design, failed))), pairs, margin, notes)


def _diverges_alone(summary: Summary, cells: Sequence[CellSummary]) -> bool:
    """Whether a design diverges at a shape that another design finished."""
    alive = {cell.shape for cell in summary.drawn}
    return any(cell.loss is None and cell.shape in alive for cell in cells)


def _design(
    label: str, cells: Sequence[CellSummary], summary: Summary, losses: Mapping[int, FloatArray] | None, margin: float
) -> DesignVerdict:
    diverged = [cell for cell in sorted(cells, key=lambda cell: cell.shape.order) if cell.loss is None]
    decision = _diverges(diverged[0]) if diverged else None
    if losses is None:
        decision = decision or Decision(None, _unfinished(summary))
        return DesignVerdict(label, 0, None, None, None, decision.verdict, decision.reason)
    if not losses:
        decision = decision or Decision(None, "It has no seed that is finished at all compared shapes.")
        return DesignVerdict(label, 0, None, None, None, decision.verdict, decision.reason)
    n_layers = [shape.n_layers for shape in summary.compared]
    found = stack(losses, losses)
    slope = estimate(found, slope_weights(n_layers), resample=True)
    gain = estimate(found, difference(0, -1, len(n_layers)), resample=True)
    decision = decision or decide(found, n_layers, margin)
    verdict = DesignVerdict(label, len(losses), None, slope, gain, decision.verdict, decision.reason)
    if len(losses) < 2:
        return verdict
    best = Counter(np.argmin(draw_means(found[None])[:, 0], axis=1).tolist())
    shares = tuple((n_layers[at], best[at] / best.total()) for at in sorted(best))
    return replace(
        verdict,
        sigma=float(noise(found)),
        best_depths=shares,
        needed_seeds=decision.needed_seeds,
        notes=doubts(found, n_layers, slope),
    )


def _diverges(cell: CellSummary) -> Decision:
    rates = ", ".join(f"{rate:g}" for rate in cell.learning_rates)
    steps = ", ".join(map(str, cell.diverged_steps))
    reason = f"Every learning rate tried ({rates}) has a run that diverged, at step {steps}."
    return Decision(f"diverges at M = {cell.shape.n_layers}", reason)


def _unfinished(summary: Summary) -> str:
    if len({shape.n_layers for shape in summary.compared}) < 2:
        return "No two depths are finished for all compared designs."
    return "Not all of the compared shapes are finished."


def _ranks(designs: Sequence[DesignVerdict], pairs: Sequence[Pair], failed: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Rank ranges of the designs with two seeds or more, and below them those that diverge; none if nobody has two seeds."""
    able = [design.label for design in designs if design.n > 1]
    better: Counter[str] = Counter()
    worse: Counter[str] = Counter()
    for pair in pairs:
        if pair.gain_differs and pair.a in able and pair.b in able:
            first, second = (pair.a, pair.b) if pair.gain.value > 0 else (pair.b, pair.a)
            better[second] += 1
            worse[first] += 1
    ranks = {label: (1 + better[label], len(able) - worse[label]) for label in able}
    if able:
        ranks |= dict.fromkeys(failed, (len(able) + 1, len(able) + len(failed)))
    return ranks


def _place(design: DesignVerdict, failed: Sequence[str]) -> tuple[bool, bool, float]:
    """By gain, which never puts a design after one that it beats; without a rank in the order of the table."""
    if design.rank is None:
        return True, False, 0.0
    return False, design.label in failed, -design.gain.value if design.gain else 0.0


def _notes(
    summary: Summary,
    losses: Losses,
    pairs: Sequence[Pair],
    designs: Sequence[DesignVerdict],
    margin: float,
) -> Iterable[str]:
    if not losses:
        return
    counts = sorted({design.n for design in designs if design.label in losses})
    if counts[-1] < 2:
        yield (
            "One paired seed: slopes and gains are point estimates without interval, verdict or rank; 2 seeds give them, 3 or more"
            " useful ones."
        )
        return
    seeds = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    yield (
        f"Slopes and gains over {seeds} paired seeds; 95 % intervals by Student's t from the residuals of shape and seed effects,"
        f" unadjusted. Flat: the whole interval within ±{margin:g} nats per token and doubling of depth."
    )
    if any(pair.n > 1 for pair in pairs):
        tested = sum(pair.n > 1 for pair in pairs)
        yield f"Pairs differ, and ranks part, where p ≤ {LEVEL:g} after Holm's adjustment for the {tested} pairs of this table."
    alone = [design.label for design in designs if design.label in losses and design.n < 2]
    if alone:
        yield f"Too few paired seeds for an interval, verdict or rank: {some(alone)}; 2 are needed."
    short = [
        f"{label} ({len(seeds_of)} of {most})"
        for label, seeds_of in losses.items()
        if (most := max(len(cell.seeds) for cell in summary.cells if cell.label == label and cell.shape in summary.compared))
        > len(seeds_of)
    ]
    if short:
        yield f"Seeds that are not finished at all compared shapes are left out of slopes, gains and pairs: {some(short)}."
