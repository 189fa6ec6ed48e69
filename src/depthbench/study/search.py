"""The cells of a study as its learning-rate searches unfold: a pure function of the results so far.

Nothing is remembered but the losses that `record` was told, so a run that is interrupted anywhere, or shared between machines,
asks for the same cells again, and a cell that a search has trained is the cell that the comparison uses.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from depthbench.study.cell import Cell, DataPin
from depthbench.study.study import Group, Study
from depthbench.verdict.rates import HIGH, LOW, RateChoice, choose_rate, next_rate


@dataclass(frozen=True)
class SearchState:
    """How the search for one design stands, at one shape or (`per_design`) at its base shape. `settled` is whether its rate is
    decided; with `choice.edge` it is decided only because the limit of widening was reached.
    """

    group: Group
    grid: tuple[float, ...]
    choice: RateChoice
    settled: bool


class StudyWork:
    """The work of a study over one set of tokens; see `work.Work`."""

    def __init__(self, study: Study, data: DataPin) -> None:
        self.study = study
        self.groups = study.groups(data)
        self.losses: dict[str, float | None] = {}
        self._cells: dict[tuple[int, int, float, int], Cell] = {}
        self._wanted: list[Cell] | None = None

    def wanted(self) -> list[Cell]:
        """Every cell asked for so far, each once: design by design, tier by tier, from the first shape to the last."""
        if self._wanted is None:
            asked = (cell for i in range(len(self.groups)) for cell in self._asked(i))
            self._wanted = list({cell.identity: cell for cell in asked}.values())
        return self._wanted

    def record(self, cell: Cell, loss: float | None) -> None:
        """Note a result. What follows from it is worked out when `wanted` is next asked."""
        self.losses[cell.identity] = loss
        if self.study.lr_policy != "fixed":
            self._wanted = None

    def searches(self) -> list[SearchState]:
        """The state of every search, in the order of the cells; none with `lr_policy="fixed"`."""
        return [state for i in range(len(self.groups)) for state, _ in self._searches(i)]

    def cell_counts(self, row: int, column: int) -> tuple[int, int]:
        """How many cells one design and shape takes: if its search ends inside the grid, and if it goes to the limit."""
        rates, seeds = len(self.study.learning_rates), len(self.study.seeds)
        if self.study.lr_policy == "fixed":
            return rates * seeds, rates * seeds
        if self.study.lr_policy == "per_design" and column != self._base(row):
            return seeds, seeds
        return rates + seeds - 1, rates + self.study.widen + seeds - 1

    def _asked(self, row: int) -> Iterator[Cell]:
        """The cells of one design in one tier."""
        columns = range(len(self.groups[row]))
        if self.study.lr_policy == "fixed":
            for column in columns:
                for rate in self.study.learning_rates:
                    yield from self._seeds(row, column, rate)
            return
        for state, column in self._searches(row):
            for rate in state.grid:
                yield self._cell(row, column, rate, self.study.seeds[0])
                # seeds of a rate that was the best until one of them diverged: trained, so part of the study
                yield from (cell for cell in self._seeds(row, column, rate) if cell.identity in self.losses)
            if state.settled and state.choice.chosen is not None:
                others = columns if self.study.lr_policy == "per_design" else (column,)
                for other in others:
                    yield from self._seeds(row, other, state.choice.chosen)

    def _searches(self, row: int) -> Iterator[tuple[SearchState, int]]:
        if self.study.lr_policy == "per_cell":
            yield from ((self._search(row, column), column) for column in range(len(self.groups[row])))
        elif self.study.lr_policy == "per_design":
            column = self._base(row)
            yield self._search(row, column), column

    def _base(self, row: int) -> int:
        """The shape at which a design is searched: the one of `base_n_layers`, or the middle one."""
        depths = [group.shape.n_layers for group in self.groups[row]]
        if self.study.base_n_layers in depths:
            return depths.index(self.study.base_n_layers)
        return sorted(range(len(depths)), key=lambda i: depths[i])[len(depths) // 2]

    def _search(self, row: int, column: int) -> SearchState:
        grid = list(self.study.learning_rates)
        first = self.study.seeds[0]
        added = {LOW: 0, HIGH: 0}
        while True:
            choice = choose_rate({rate: self._known(row, column, rate) for rate in grid if self._known(row, column, rate)})
            if not all(self._cell(row, column, rate, first).identity in self.losses for rate in grid):
                return SearchState(self.groups[row][column], tuple(grid), choice, settled=False)
            if not choice.edge or added[choice.edge] == self.study.widen:
                return SearchState(self.groups[row][column], tuple(grid), choice, settled=True)
            added[choice.edge] += 1
            grid = sorted([*grid, next_rate(grid, choice.edge)])

    def _known(self, row: int, column: int, rate: float) -> dict[int, float | None]:
        """The results at one learning rate by seed. The comparison's seeds among them matter only if one diverges: then that
        rate is no longer the best, and the next one is trained with all seeds.
        """
        cells = [self._cell(row, column, rate, seed) for seed in self.study.seeds]
        return {cell.seed: self.losses[cell.identity] for cell in cells if cell.identity in self.losses}

    def _seeds(self, row: int, column: int, rate: float) -> Sequence[Cell]:
        return [self._cell(row, column, rate, seed) for seed in self.study.seeds]

    def _cell(self, row: int, column: int, rate: float, seed: int) -> Cell:
        key = row, column, rate, seed
        if key not in self._cells:
            self._cells[key] = self.groups[row][column].cell(rate, seed)
        return self._cells[key]
