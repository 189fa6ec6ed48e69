"""Which runs may stand in one table: equal recipe (but for the learning rate), equal training data and one budget."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from depthbench.errors import UserError
from depthbench.text import parameter_count, parameter_span, some
from depthbench.verdict.rows import ResultRow, Shape, in_order, several_d_ff

# Neighbouring tiers of the published ladder are at least a factor 1.23 apart, and no shape may miss its budget by more than 10 %.
NEXT_BUDGET = 1.2


@dataclass(frozen=True)
class Table:
    """Runs that differ in nothing but design, shape, learning rate and seed, in the order in which they are shown.

    `title` says updates, tokens and parameters and is unique in a report; `notes` are sentences on what differs nevertheless.
    """

    title: str
    rows: tuple[ResultRow, ...]
    recipe_hash: str
    data_fingerprint: str
    notes: tuple[str, ...] = ()


def tables(rows: Sequence[ResultRow], where: str | Path) -> list[Table]:
    """`rows` in as many tables as they have recipes, training data and budgets, from the smallest budget to the largest.

    A ladder gives a table for each tier. Shapes belong to one budget unless both their total and their backbone parameters (without
    those of the design) are more than a factor 1.2 above the next smaller shape's; where that would leave no two depths together,
    they stay in one table. `where` names the study in errors. Raises `UserError` if there are no rows, if their validation sets
    differ, or if two of one table describe the same cell.
    """
    if not rows:
        raise UserError(f"no finished results in {where}; run the study, or wait for its first cell")
    _check_validation(rows)
    groups: dict[tuple[str, str], list[ResultRow]] = {}
    for row in rows:
        groups.setdefault((row.recipe_hash, row.data_fingerprint), []).append(row)
    found = [_table(budget) for group in groups.values() for budget in _budgets(group)]
    found.sort(key=lambda table: (_size(table.rows), _planned(table.rows).steps, table.recipe_hash, table.data_fingerprint))
    return _tell_apart(found)


def one_table(rows: Sequence[ResultRow], where: str | Path) -> list[ResultRow]:
    """All rows in one list, those of several recipes as designs of their own. For reports that know a single table."""
    found = tables(rows, where)
    if len({table.recipe_hash for table in found}) == 1:
        return in_order(row for table in found for row in table.rows)
    return in_order(
        replace(row, design=f"{row.design}@{row.steps}-steps-{row.recipe_hash[:4]}") for table in found for row in table.rows
    )


def _check_validation(rows: Sequence[ResultRow]) -> None:
    by_hash: dict[str, list[str]] = {}
    for row in rows:
        by_hash.setdefault(row.validation_sha256, []).append(row.run)
    if len(by_hash) > 1:
        sides = "; ".join(f"{digest[:12]}: {some(sorted(runs))}" for digest, runs in sorted(by_hash.items()))
        raise UserError(f"results on different validation sets cannot share a report ({sides}); report them from separate folders")


def _budgets(rows: Sequence[ResultRow]) -> list[list[ResultRow]]:
    """Rows of one recipe, split where the shapes, sorted by size, jump to another budget."""
    sizes = _sizes(rows)
    groups: list[set[Shape]] = []
    before = (0, 0)
    for shape in sorted(sizes, key=lambda shape: sizes[shape]):
        if _jumps(before, sizes[shape]):
            groups.append(set())
        groups[-1].add(shape)
        before = sizes[shape]
    if not any(len({shape.n_layers for shape in group}) > 1 for group in groups):
        return [list(rows)]
    return [[row for row in rows if row.shape in group] for group in groups]


def _sizes(rows: Sequence[ResultRow]) -> dict[Shape, tuple[int, int]]:
    """Total and backbone parameters of every shape without the designs' own: the most, since some designs narrow their d_ff."""
    sizes: dict[Shape, tuple[int, int]] = {}
    for row in rows:
        total, backbone = sizes.get(row.shape, (0, 0))
        own = row.design_parameters
        sizes[row.shape] = max(total, row.total_parameters - own), max(backbone, row.backbone_parameters - own)
    return sizes


def _jumps(small: tuple[int, int], large: tuple[int, int]) -> bool:
    return all(b > NEXT_BUDGET * a for a, b in zip(small, large, strict=True))


def _table(rows: Sequence[ResultRow]) -> Table:
    ordered = in_order(rows)
    seen: dict[tuple[object, ...], str] = {}
    for row in ordered:
        cell = (row.label, row.shape, row.d_ff, row.learning_rate, row.seed)
        if cell in seen:
            # Counted as two seeds, they would make up a spread.
            raise UserError(
                f"runs {seen[cell]} and {row.run} have one design, shape, learning rate, seed, recipe and data;"
                " report them from separate folders, or delete one"
            )
        seen[cell] = row.run
    first, planned = ordered[0], _planned(ordered)
    updates = f"{planned.steps:,} update{'s' if planned.steps != 1 else ''}"
    span = parameter_span([row.total_parameters for row in ordered])
    title = f"{updates} · {parameter_count(planned.tokens)} tokens · {span} total parameters"
    return Table(title, tuple(ordered), first.recipe_hash, first.data_fingerprint, tuple(_notes(ordered)))


def _planned(rows: Sequence[ResultRow]) -> ResultRow:
    """A run that went furthest: a diverged one has fewer updates and tokens than its recipe says."""
    return max(rows, key=lambda row: row.steps)


def _size(rows: Sequence[ResultRow]) -> int:
    return min(row.total_parameters - row.design_parameters for row in rows)


def _notes(rows: Sequence[ResultRow]) -> Iterable[str]:
    counts = Counter(row.code_hash[:12] for row in rows)
    if len(counts) > 1:
        sides = [f"{digest} ({count} of {len(rows)} runs)" for digest, count in counts.most_common()]
        yield f"The runs were made by different code: {some(sides)}. Whether that changed a loss is not known."
    sizes = sorted(_sizes(rows).values())
    if _jumps(sizes[0], sizes[-1]):
        yield "The shapes are not of one budget, so their losses differ by size as well as by depth."
    if several_d_ff(rows):
        yield (
            "One design was trained with several d_ff at the same sizes, so columns carry their d_ff; report the studies from"
            " separate folders to compare designs at equal totals."
        )


def _tell_apart(found: Sequence[Table]) -> list[Table]:
    """Tables whose titles read the same carry what they differ in."""
    alike: dict[str, list[Table]] = {}
    for table in found:
        alike.setdefault(table.title, []).append(table)
    made = []
    for table in found:
        twins, title = alike[table.title], table.title
        for name, key in (("recipe", "recipe_hash"), ("data", "data_fingerprint")):
            if len({getattr(twin, key) for twin in twins}) > 1:
                title += f" · {name} {getattr(table, key)[:6]}"
        made.append(replace(table, title=title))
    return made
