"""A learning-rate search on cells that are really trained, interrupted on the way."""

from dataclasses import replace

from depthbench import Budget
from depthbench.study.cell import DataPin
from depthbench.study.results import read_results
from depthbench.study.runner import Runner
from depthbench.study.search import StudyWork
from depthbench.study.study import Study
from depthbench.study.watch import Watcher
from depthbench.train.execution import Execution
from depthbench.train.recipe import Recipe
from depthbench.verdict.rates import choose_rate

STUDY = Study(
    name="searched",
    designs=("preln",),
    learning_rates=(1e-3, 2e-3),
    lr_policy="per_cell",
    widen=8,
    recipe=Recipe(20, 4, 1e-3, validation_windows=8),
    budget=Budget(12e3, match="backbone", n_heads=2, vocab_size=257, context=32),
    n_layers=(1, 3),
    seeds=(0, 1, 2),
)


class Counts(Watcher):
    """How often a search asked for more, and which cells ended."""

    def __init__(self):
        self.asked, self.trained = [], []

    def more(self, cells, todo):
        self.asked += todo

    def ended(self, item):
        self.trained.append(item.cell.name)


def test_a_search_finds_an_optimum_inside_the_widened_grid_with_fewer_cells_than_the_rectangle(tmp_path, token_data, tokens_folder):
    manifest = token_data.manifest
    pin = DataPin("made-up", "bytes", manifest.fingerprint, manifest.validation_sha256)

    def run(study, watcher):
        work = StudyWork(study, pin)
        report = Runner(work, tokens_folder, tmp_path, workers=2, execution=Execution(), watcher=watcher).run()
        assert not [item for item in report.ended if item.status == "failed"]
        return work

    part = Counts()
    run(replace(STUDY, n_layers=(1,), seeds=(0,), widen=2), part)  # as if interrupted: some of the same cells
    rest = Counts()
    work = run(STUDY, rest)
    assert rest.asked and not set(part.trained) & set(rest.trained)  # what was trained is not trained again
    assert len(rest.trained) == len(set(rest.trained))

    for state in work.searches():
        assert state.settled and not state.choice.edge and len(state.grid) > len(STUDY.learning_rates)
        at = state.grid.index(state.choice.chosen)
        assert 0 < at < len(state.grid) - 1 and state.grid[at - 1] < state.choice.refined < state.grid[at + 1]
    rectangle = sum(len(state.grid) for state in work.searches()) * len(STUDY.seeds)
    assert len(work.wanted()) == len(set(part.trained) | set(rest.trained)) < rectangle

    rows, missing = read_results(tmp_path)
    assert not missing
    for state in work.searches():  # a reader of the folders comes to the same choice
        losses = {}
        for row in rows:
            if row.n_layers == state.group.shape.n_layers:
                losses.setdefault(row.learning_rate, {})[row.seed] = row.loss
        assert choose_rate(losses) == state.choice
        assert {row.seed for row in rows if row.learning_rate == state.choice.chosen} == set(STUDY.seeds)
