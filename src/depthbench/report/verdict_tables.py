"""Verdicts in the terminal: depth trends, pairs of designs, scale laws, agreement with the published study."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from rich.console import RenderableType

from depthbench.report.columns import Column, wrapped
from depthbench.report.content import Section
from depthbench.text import estimate_text, p_text, parameter_count, percent, rank_text, ratio_text
from depthbench.verdict.aspect import DEEP, FEW, WIDE, AspectMove, TierBest
from depthbench.verdict.pairs import Pair
from depthbench.verdict.published import AgreedDesign
from depthbench.verdict.scaling import Ladder, ScalingLaw
from depthbench.verdict.statistics import Estimate

INTERVAL = " [95 %]"
MOST_PAIRS = 6  # with more, the terminal sets every design against one
NONE = "–"


def trend_tables(section: Section, width: int) -> Iterator[RenderableType]:
    """Rank, verdict, slope, depth gain, seeds, best shape and own parameters of every design, ranked first to last.

    No rank and no verdict where no design has two seeds.
    """
    designs = section.verdicts.designs
    trends = {trend.label: trend for trend in section.summary.trends}
    best = [trends[design.label].best for design in designs]
    certain = section.most_seeds > 1
    columns = []
    if certain or any(design.verdict for design in designs):
        columns = [
            Column("rank", [rank_text(design.rank) for design in designs]),
            Column("verdict", [design.verdict or NONE for design in designs], "left"),
        ]
    columns += [
        Column(f"slope{INTERVAL if certain else ''}", [estimate_text(design.slope) for design in designs]),
        Column(f"gain{INTERVAL if certain else ''}", [estimate_text(design.gain) for design in designs]),
        Column("n", [str(design.n) if design.n else NONE for design in designs]),
        Column("best\nshape", [cell.shape.name if cell else NONE for cell in best]),
        Column("own\nparams", [percent(trends[design.label].own_share[1]) for design in designs]),
    ]
    yield from wrapped(Column("design", [design.label for design in designs]), columns, width)


def shown_pairs(section: Section) -> list[Pair]:
    """All pairs if they are few, else those with the reference, which comes second; none with one seed, where no pair can be told
    apart.
    """
    pairs = [turned(pair) if pair.a == section.reference else pair for pair in section.verdicts.pairs if pair.n > 1]
    if len(section.verdicts.pairs) <= MOST_PAIRS:
        return pairs
    return [pair for pair in pairs if pair.b == section.reference]


def turned(pair: Pair) -> Pair:
    """The same pair as `b` minus `a`."""
    return replace(pair, a=pair.b, b=pair.a, gain=_negative(pair.gain), level=_negative(pair.level))


def _negative(estimate: Estimate) -> Estimate:
    low, high = estimate.low, estimate.high
    return replace(estimate, value=-estimate.value, low=None if high is None else -high, high=None if low is None else -low)


def pair_tables(pairs: Sequence[Pair], width: int) -> Iterator[RenderableType]:
    """Differences of depth gain and of mean loss with interval, adjusted p-value and decision."""
    columns = [
        Column("minus", [pair.b for pair in pairs], "left", fold=True),
        Column("gain difference\n[95 %]", [estimate_text(pair.gain) for pair in pairs]),
        Column("p\n(Holm)", [p_text(pair.gain_p) for pair in pairs]),
        Column("differ", [_yes(pair.gain_differs) for pair in pairs], "left"),
        Column("loss difference\n[95 %]", [estimate_text(pair.level) for pair in pairs]),
        Column("p\n(Holm)", [p_text(pair.level_p) for pair in pairs]),
        Column("differ", [_yes(pair.level_differs) for pair in pairs], "left"),
        Column("n", [str(pair.n) for pair in pairs]),
    ]
    yield from wrapped(Column("design", [pair.a for pair in pairs]), columns, width)


def _yes(differs: bool | None) -> str:
    return {True: "yes", False: "no", None: NONE}[differs]


def law_tables(ladder: Ladder, width: int) -> Iterator[RenderableType]:
    """The scaling laws of a ladder, a row for every design and class of aspect ratios."""
    laws = ladder.laws
    columns = [
        Column("aspect\nratio", [ratio_text(law.aspect_ratio) for law in laws]),
        Column("E [95 %]", [estimate_text(law.E, "", 3) for law in laws]),
        Column("A [95 %]", [estimate_text(law.A, "", 3) for law in laws]),
        Column("alpha [95 %]", [estimate_text(law.alpha, "", 3) for law in laws]),
        Column("lack\nof fit", [NONE if law.rms is None else f"{law.rms:.4f}" for law in laws]),
        Column("tiers", [str(len(law.points)) for law in laws]),
        Column("n", [str(law.n) for law in laws]),
        Column("predicts", [law_range(law) for law in laws]),
    ]
    yield from wrapped(Column("design", [law.label for law in laws]), columns, width)


def law_range(law: ScalingLaw) -> str:
    """The parameters at which a law may be asked: `99M–1.01B`."""
    if law.range is None:
        return "nothing"
    return "–".join(parameter_count(round(end)) for end in law.range)


def move_tables(moves: Sequence[AspectMove], width: int) -> Iterator[RenderableType]:
    """The best aspect ratio of every design at every tier, and how it moves."""
    most = max(len(move.tiers) for move in moves)
    columns = [
        Column(f"tier {at + 1}", [_best(move.tiers[at]) if at < len(move.tiers) else NONE for move in moves]) for at in range(most)
    ]
    columns.append(Column("log2 per doubling [95 %]", [estimate_text(move.trend, "+", 2) for move in moves]))
    yield from wrapped(Column("design", [move.label for move in moves]), columns, width)


def _best(tier: TierBest) -> str:
    mark = {WIDE: ">= ", DEEP: "<= ", FEW: "? "}.get(tier.edge, "")
    return f"{parameter_count(tier.parameters)}: {mark}{ratio_text(tier.aspect_ratio)}"


def agreement_tables(sections: Sequence[Section], heads: Sequence[str], width: int) -> Iterator[RenderableType]:
    """Published depth gains beside ours, a column for every section, which `heads` name."""
    published = {design.label: design.published_gain for section in sections for design in _agreed(section)}
    columns = [Column("published", [f"{gain:+.3f}" for gain in published.values()])]
    for section, head in zip(sections, heads, strict=True):
        gains = {design.label: design.gain for design in section.verdicts.designs}
        interval = INTERVAL if section.most_seeds > 1 else ""
        columns.append(Column(f"{head}{interval}", [estimate_text(gains.get(label)) for label in published]))
        columns.append(Column("n", [str(gain.n) if (gain := gains.get(label)) else NONE for label in published]))
    yield from wrapped(Column("design", list(published)), columns, width)


def _agreed(section: Section) -> Sequence[AgreedDesign]:
    return section.agreement.designs if section.agreement else ()
