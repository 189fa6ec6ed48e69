"""The report in the terminal: a section for every table, then scale laws and what is missing. Plain text when piped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from depthbench.report.content import Content, Section, read
from depthbench.report.loss_tables import ABOVE, BELOW, loss_tables
from depthbench.report.notes import notes, provenance
from depthbench.report.verdict_tables import agreement_tables, law_tables, move_tables, pair_tables, shown_pairs, trend_tables
from depthbench.text import plain
from depthbench.verdict.published import QUANTITY, SOURCE
from depthbench.verdict.rows import ResultRow
from depthbench.verdict.scaling import Ladder

WIDEST = 120  # columns; longer lines are hard to follow
MISSING_LINES = 5
NOTE_LINES = 14  # of a section; all are in summary.json
BEST_LEGEND = "* lowest of its column; "
LOSS_LEGEND = "a column is layers × width, aspect ratio AR (width / layers), total parameters"
D_FF_LEGEND = ", and d_ff where it differs between designs"
EDGE_LEGEND = f"{ABOVE} {BELOW} best at the highest ({ABOVE}) or lowest ({BELOW}) learning rate tried: a better one may lie beyond"
TREND_LEGEND = (
    "slope: nats per token for each doubling of depth, below 0 if deeper is better; gain: loss at the widest compared shape"
    " minus loss at the deepest; best shape: lowest loss of all shapes; own params: the design's own parameters relative to all"
    " others of the model, at most"
)
PAIR_LEGEND = (
    "gain difference above 0: the design gains more from depth; loss difference (mean over the compared shapes) below 0: the design"
    " is better; differ: p at most 0.05"
)
LAW_LEGEND = (
    "A is the part of the loss that falls, at the geometric mean of the tiers' parameters; predicts: total parameters at which the"
    " law may be asked"
)
MOVE_LEGEND = (
    "parameters of a tier: aspect ratio with the lowest loss, by a parabola; >= <= on an edge of the shapes trained; ? fewer than"
    " three shapes; log2 per doubling of parameters above 0: larger models want to be wider for their depth"
)


class TerminalReport:
    """A rich renderable that fits the console: a table of more columns than there is room for is cut into several."""

    def __init__(self, content: Content):
        self.content = content

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = min(options.max_width, WIDEST)
        yield from console.render(Group(*self._parts(width)), options.update(width=width))

    def _parts(self, width: int) -> Iterator[RenderableType]:
        several = len(self.content.sections) > 1
        for number, section in enumerate(self.content.sections, 1):
            place = f"Table {number} of {len(self.content.sections)}: " if several else ""
            yield _title(f"{place}{section.table.title}", first=number == 1)
            yield from _losses(section, width, explain=number == 1)
            yield from _trends(section, width, explain=number == 1)
            yield from _pairs(section, width, explain=number == 1)
            yield from _notes(section)
        yield from _agreement(self.content, width)
        if self.content.ladder is not None:
            yield from _scale_laws(self.content.ladder, width)
        yield from _missing(self.content)


def render(rows: Sequence[ResultRow], missing: Sequence[str] = (), where: str | Path = "this study") -> TerminalReport:
    """The report on `rows`, for `rich.console.Console.print`.

    `missing` are lines on cells without a result; `where` names the study in errors. Raises `UserError` if there are no rows or
    they may not be reported together (see `tables`).
    """
    return TerminalReport(read(rows, missing, where))


def _losses(section: Section, width: int, explain: bool) -> Iterator[RenderableType]:
    summary = section.summary
    yield Text("Validation loss (nats per token)", style="bold")
    yield from loss_tables(summary, width)
    spans = [summary.d_ff_span(shape) for shape in summary.shapes]
    if explain:
        best = BEST_LEGEND if len(summary.labels) > 1 else ""
        yield _small(best + LOSS_LEGEND + (D_FF_LEGEND if any(low != high for low, high in spans) else ""))
    if any(cell.choice.edge for cell in summary.drawn):
        yield _small(EDGE_LEGEND)


def _trends(section: Section, width: int, explain: bool) -> Iterator[RenderableType]:
    yield _title("Depth trend" + (" (one paired seed: point estimates)" if section.most_seeds == 1 else ""))
    yield from trend_tables(section, width)
    if explain:
        yield _small(TREND_LEGEND)


def _pairs(section: Section, width: int, explain: bool) -> Iterator[RenderableType]:
    pairs = shown_pairs(section)
    if not pairs:
        return
    hidden = len(section.verdicts.pairs) - len(pairs)
    rest = f" with {section.reference}; all {len(section.verdicts.pairs)} pairs are in pairs.csv" if hidden else ""
    yield _title(f"Pairs{rest}")
    yield from pair_tables(pairs, width)
    if explain:
        yield _small(PAIR_LEGEND)


def _agreement(content: Content, width: int) -> Iterator[RenderableType]:
    agreed = {f"table {number}": section for number, section in enumerate(content.sections, 1) if section.agreement}
    if not agreed:
        return
    yield _title("Depth gain against the published study")
    heads = list(agreed) if len(content.sections) > 1 else ["here"]
    yield from agreement_tables(list(agreed.values()), heads, width)
    for place, section in agreed.items():
        if section.agreement:
            named = f"{place.capitalize()}: " if len(content.sections) > 1 else ""
            yield _bullet(f"{named}{section.agreement.sentence}")
    yield _small(f"published: {QUANTITY}; {SOURCE}")


def _notes(section: Section) -> Iterator[RenderableType]:
    yield Text()
    found = notes(section)
    for note in found[:NOTE_LINES]:
        yield _bullet(note)
    if len(found) > NOTE_LINES:
        yield _bullet(f"{len(found) - NOTE_LINES} more notes are in summary.json")
    yield _small(plain(provenance(section.table.rows)))


def _scale_laws(ladder: Ladder, width: int) -> Iterator[RenderableType]:
    forms = sorted({law.form for law in ladder.laws}, reverse=True)
    yield _title("Scale law" + (f": loss = {' or '.join(forms)}, N total parameters / their geometric mean" if forms else ""))
    if ladder.laws:
        yield from law_tables(ladder, width)
        yield _small(LAW_LEGEND)
    if ladder.moves:
        yield _title("Best aspect ratio at every tier")
        yield from move_tables(ladder.moves, width)
        yield _small(MOVE_LEGEND)
    yield Text()
    for note in [*ladder.notes, *(f"{move.label}: {note}" for move in ladder.moves for note in move.notes)][:NOTE_LINES]:
        yield _bullet(note)


def _missing(content: Content) -> Iterator[RenderableType]:
    if not content.missing:
        return
    yield _title(f"Missing: {len(content.missing)} of {content.n_runs + len(content.missing)} runs")
    for line in content.missing[:MISSING_LINES]:
        yield Text(f"  {plain(line)}")
    if len(content.missing) > MISSING_LINES:
        yield Text(f"  … and {len(content.missing) - MISSING_LINES} more")


def _title(text: str, first: bool = False) -> Text:
    return Text(f"{'' if first else chr(10)}{text}", style="bold")


def _bullet(text: str) -> RenderableType:
    line = Table.grid(padding=(0, 1))
    line.add_row("-", Text(plain(text)))
    return line


def _small(text: str) -> Text:
    return Text(text, style="dim")
