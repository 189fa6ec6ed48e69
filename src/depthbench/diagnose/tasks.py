"""A diagnosis as a list of tasks: a measure of one model, batch by batch, each batch to arrays with a row a window."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from depthbench.data.batches import Stored
from depthbench.diagnose import mixing, scores, usefulness
from depthbench.diagnose.lens import lens
from depthbench.diagnose.ours import OurPasses, OurSubject
from depthbench.diagnose.paths import paths
from depthbench.diagnose.settings import Settings
from depthbench.diagnose.subject import Passes, Subject
from depthbench.diagnose.windows import Windows, draw
from depthbench.errors import UserError
from depthbench.residual.attnres_block import AttnResBlock

Arrays = dict[str, NDArray[np.float64]]
BATCH_TOKENS = 1024  # of clean passes; changed ones are put together further, see `scores`
UNTRAINED = "untrained"


@dataclass(frozen=True)
class Task:
    """`measure` of `subject` on `windows`, under the name that its arrays are kept by. `cost` is in passes through a block a
    window.
    """

    name: str
    measure: str
    subject: Callable[[], Subject]
    windows: Windows
    work: Callable[[Passes], Arrays]
    cost: float

    def batches(self) -> Iterator[NDArray[np.int64]]:
        """The windows, some at a time."""
        return self.windows.batches(max(1, BATCH_TOKENS // self.windows.tokens.shape[1]))


def tasks(
    subject: Subject, untrained: Callable[[], Subject] | None, tokens: Stored, settings: Settings
) -> tuple[list[Task], list[str]]:
    """All tasks of a diagnosis, and a line for each measure that this model does not have. `untrained` makes the control."""
    drawn = {}
    for measure in settings.measures:
        n, length = settings.size(measure, subject.context, len(tokens))
        drawn[measure] = draw(tokens, n, length, settings.seed)
    rules = [subject.check_rule(rule) for rule in settings.skip] or list(subject.skip_rules[:2])
    models: dict[str, Callable[[], Subject]] = {"trained": lambda: subject}
    if untrained is not None and settings.control:
        models[UNTRAINED] = untrained
    depth = subject.depth
    found: list[Task] = []
    without: list[str] = []
    if "angular" in drawn:
        found.append(Task("angular", "angular", models["trained"], drawn["angular"], _angular, depth))
    for kind, model in models.items():
        if "causal" in drawn:
            found += [
                Task(f"causal.{kind}.{rule}", "causal", model, drawn["causal"], partial(_causal, rule), depth + depth**2 / 2)
                for rule in dict.fromkeys(rules)
            ]
        if "permutation" in drawn:
            cost = depth + sum((depth - i) * (depth - i - 1) for i in range(depth))
            found.append(Task(f"permutation.{kind}", "permutation", model, drawn["permutation"], _permutation, cost))
    if "lens" in drawn:
        found.append(Task("lens", "lens", models["trained"], drawn["lens"], _lens, 3 * depth))
    if "usefulness" in drawn and len(drawn["usefulness"]) < 2 and not settings.windows:
        without.append("usefulness: it fits on one window and measures on another, and the text has one; give more text")
    elif "usefulness" in drawn:
        found += _usefulness(subject, drawn["usefulness"], without)
    found += _of_our_own(subject, drawn, without, asked="mixing" in settings.only)
    return found, without


def _of_our_own(subject: Subject, drawn: dict[str, Windows], without: list[str], asked: bool) -> Iterator[Task]:
    """Path weights, and what becomes of streams and running sums: they ask the residual protocol. `asked`: for mixing by name; most
    designs have none, which is worth a line only then.
    """
    wanted = [measure for measure in ("paths", "mixing") if measure in drawn]
    if not isinstance(subject, OurSubject):
        without.extend(f"{measure}: for models of this package alone" for measure in wanted)
        return
    if "paths" in drawn:
        yield Task("paths", "paths", lambda: subject, drawn["paths"], _paths, 6 * subject.depth)
    if "mixing" in drawn:
        with subject.computing():
            passes = subject.passes(torch.from_numpy(drawn["mixing"].tokens[:1, :2]).to(subject.device))
            has_streams = mixing.has_streams(passes)
        if has_streams:
            yield Task("mixing", "mixing", lambda: subject, drawn["mixing"], _streams, 4 * subject.depth)
        elif isinstance(subject.model.residual, AttnResBlock):
            yield Task("mixing", "mixing", lambda: subject, drawn["mixing"], _running, 2 * subject.depth)
        elif asked:
            without.append(f"mixing: {subject.design} has neither parallel streams nor segments with a running sum")


def _usefulness(subject: Subject, windows: Windows, without: list[str]) -> Iterator[Task]:
    """Tasks over the second half of the windows; the maps are fitted on the first."""
    half = len(windows) // 2
    if half < 1 or len(windows) - half < 1:
        raise UserError(
            f"usefulness fits on half of the windows and measures on the other, so it needs at least 2, got {len(windows)}; give"
            " --windows 2 or more, or name the measures that you want with --only"
        )
    fitted, held_out = (
        Windows(windows.tokens[part], windows.offsets[part], windows.seed, windows.sha256)
        for part in (slice(None, half), slice(half, None))
    )
    with subject.computing():
        passes = subject.begin(torch.from_numpy(windows.tokens[:1, :2]))
        z = passes.depth_state(0, passes.places[0])
        try:
            passes.replaced(0, z.to(passes.state_dtype))
        except NotImplementedError as error:
            without.append(f"usefulness: {error}; define Residual.replace")
            return
    for blocks in usefulness.groups(subject.depth, z.shape[-1]):
        name = f"usefulness.{blocks.start}"
        cost = subject.depth * (1 + len(blocks) / 2) + len(blocks)
        yield Task(name, "usefulness", lambda: subject, held_out, _Usefulness(subject, blocks, fitted), cost)


class _Usefulness:
    """Fits when it is first needed, so that a continued diagnosis fits again only what it has to."""

    def __init__(self, subject: Subject, blocks: range, fitted: Windows) -> None:
        self.subject, self.blocks, self.fitted = subject, blocks, fitted
        self.maps: dict[int, Tensor] | None = None

    def __call__(self, passes: Passes) -> Arrays:
        if self.maps is None:
            sums = usefulness.AffineMaps(self.blocks)
            for batch in self.fitted.batches(max(1, BATCH_TOKENS // self.fitted.tokens.shape[1])):
                sums.add(self.subject.begin(torch.from_numpy(batch)))
            self.maps = sums.solve()
        return vars(usefulness.replaced(passes, self.maps))


def _angular(passes: Passes) -> Arrays:
    return {"distance": scores.angular(passes)}


def _causal(rule: str, passes: Passes) -> Arrays:
    return vars(scores.skips(passes, rule))


def _permutation(passes: Passes) -> Arrays:
    return vars(scores.swaps(passes))


def _lens(passes: Passes) -> Arrays:
    return vars(lens(passes))


def _paths(passes: Passes) -> Arrays:
    assert isinstance(passes, OurPasses)
    return vars(paths(passes))


def _streams(passes: Passes) -> Arrays:
    assert isinstance(passes, OurPasses)
    return vars(mixing.streams(passes))


def _running(passes: Passes) -> Arrays:
    assert isinstance(passes, OurPasses)
    return {"running": mixing.running_weights(passes)}


def measure_of(task: str) -> str:
    """The measure that a task is of, from the task's name."""
    return task.split(".")[0]


def joined(batches: Sequence[Arrays]) -> Arrays:
    """Arrays of consecutive batches, one after the other."""
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}
