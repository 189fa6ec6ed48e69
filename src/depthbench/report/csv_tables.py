"""`cells.csv` and `pairs.csv`: a line for every design and shape, and for every two designs, of all tables."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable

from depthbench.report.content import Content, Section
from depthbench.text import plain
from depthbench.verdict.pairs import Pair
from depthbench.verdict.summary import CellSummary

Entry = str | int | float | bool | None


def cells_csv(content: Content) -> str:
    """Every cell with the learning rate chosen, on which edge it lies, and the one that the parabola suggests."""
    return _text(_cell(section, cell) for section in content.sections for cell in section.summary.cells)


def _cell(section: Section, cell: CellSummary) -> dict[str, Entry]:
    return {
        "table": section.table.title,
        "design": cell.label,
        "n_layers": cell.shape.n_layers,
        "d_model": cell.shape.d_model,
        "d_ff": cell.d_ff,
        "aspect_ratio": cell.shape.aspect_ratio,
        "loss": cell.loss,
        "loss_sd": cell.loss_sd,
        "n": len(cell.seeds),
        "learning_rate": cell.learning_rate,
        "edge": cell.choice.edge,
        "refined": cell.choice.refined,
        "refined_loss": cell.choice.refined_loss,
        "learning_rates": " ".join(f"{rate:g}" for rate in cell.learning_rates),
        "n_runs": cell.n_runs,
        "n_diverged": len(cell.diverged_steps),
        "bits_per_byte": cell.bits_per_byte,
        "backbone_parameters": cell.backbone_parameters,
        "total_parameters": cell.total_parameters,
        "design_parameters": cell.design_parameters,
        "tokens_per_second": cell.tokens_per_second,
    }


def pairs_csv(content: Content) -> str:
    """Every pair, a minus b, with intervals, p-values before and after Holm's adjustment, and decisions."""
    return _text(_pair(section, pair) for section in content.sections for pair in section.verdicts.pairs)


def _pair(section: Section, pair: Pair) -> dict[str, Entry]:
    found: dict[str, Entry] = {"table": section.table.title, "a": pair.a, "b": pair.b, "n": pair.n}
    for name, estimate, adjusted, differs in (
        ("gain", pair.gain, pair.gain_p, pair.gain_differs),
        ("level", pair.level, pair.level_p, pair.level_differs),
    ):
        found |= {f"{name}_difference": estimate.value, f"{name}_low": estimate.low, f"{name}_high": estimate.high}
        found |= {f"{name}_p": estimate.p, f"{name}_p_holm": adjusted, f"{name}_differs": differs}
    return found


def _text(lines: Iterable[dict[str, Entry]]) -> str:
    """Lines with the same keys as CSV; empty if there are none."""
    text = io.StringIO()
    writer = None
    for line in lines:
        if writer is None:
            writer = csv.DictWriter(text, list(line), lineterminator="\n")
            writer.writeheader()
        writer.writerow({key: plain(value) if isinstance(value, str) else value for key, value in line.items()})
    return text.getvalue()
