"""`depthbench run`: train a study, then report on it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from depthbench.cli import arguments
from depthbench.cli.diagnose_verb import check_device, warn_of_paths
from depthbench.cli.display import make_watcher
from depthbench.cli.output import console, print_files, print_json
from depthbench.cli.setup import cores, execution_for, execution_on_slurm, is_small, open_study, pin, warn, warn_of_budget
from depthbench.data import TokenData
from depthbench.data.defaults import find_tokens
from depthbench.errors import UserError
from depthbench.files import make_folder
from depthbench.report import write_report
from depthbench.report.terminal import render
from depthbench.shape import ModelShape
from depthbench.study.load import tokens_of
from depthbench.study.plan import refuse_unmatched
from depthbench.study.results import read_diagnoses, read_evaluations, read_results
from depthbench.study.runner import Runner
from depthbench.study.search import StudyWork
from depthbench.study.slurm import SlurmRunner, check_available
from depthbench.study.slurm_options import SlurmOptions
from depthbench.study.store import RunFolder
from depthbench.study.study import Study
from depthbench.study.watch import Report, Watcher
from depthbench.study.work import Work
from depthbench.train.loop import check_data

MakeRunner = Callable[[Work, Path, Path, Watcher], Runner | SlurmRunner]


def run(verb: arguments.Run) -> int:
    """Train a study, then report on it."""
    study = open_study(verb.study, verb.changes)
    shapes = study.solved_shapes()
    study.choices()
    if verb.workers < 0:
        raise UserError(f"workers must be at least 1, or 0 to choose, got {verb.workers}")
    if verb.diagnose and verb.slurm:
        raise UserError(
            "--diagnose runs here, after the training, and --slurm trains in jobs; when they have ended: depthbench diagnose OUT"
        )
    if verb.diagnose:
        check_device(verb.hardware.device, "fp32")
    make_runner = _on_slurm(verb) if verb.slurm else _here(verb, shapes)
    source = verb.changes.data or study.data
    tokens = find_tokens(source, study.tokenizer, "" if verb.changes.data else study.needs)
    data = TokenData.open(tokens)
    for shape in shapes:
        check_data(shape, study.recipe, data)
    warn_of_budget(study)
    work = StudyWork(study, pin(source, data))
    refuse_unmatched(work)
    out = make_folder(verb.out or Path("runs") / study.name)
    done = make_runner(work, tokens, out, make_watcher()).run()
    return _conclude(study, work, out, done, verb)


def _here(verb: arguments.Run, shapes: Sequence[ModelShape]) -> MakeRunner:
    """Worker processes on this machine."""
    together = max(1, verb.hardware.processes_per_run)
    small = is_small(shapes, verb.hardware.device)
    workers = verb.workers or (max(1, cores() // together) if small else 1)
    execution = execution_for(verb.hardware, 1 if small else max(1, cores() // (workers * together)))
    return lambda work, tokens, out, watcher: Runner(work, tokens, out, workers=workers, execution=execution, watcher=watcher)


def _on_slurm(verb: arguments.Run) -> MakeRunner:
    """Jobs on a cluster. What is wrong is said before anything is written."""
    if verb.workers:
        raise UserError("--workers is for this machine, and --slurm submits every cell as a job; give one of them")
    options = SlurmOptions.parse(verb.slurm)
    execution = execution_on_slurm(verb.hardware, options)
    check_available()
    return lambda work, tokens, out, watcher: SlurmRunner(work, tokens, out, options=options, execution=execution, watcher=watcher)


def _conclude(study: Study, work: StudyWork, out: Path, done: Report, verb: arguments.Run) -> int:
    """Report on the study's cells, and say how to go on when something is left."""
    failed = [item for item in done.ended if item.status == "failed"]
    names = {cell.name for cell in work.wanted()}
    if verb.diagnose and not done.interrupted:
        _diagnose(out, names, verb)
    rows, missing = read_results(out, names)
    missing += [f"{state.group.label}: its learning-rate search has not ended" for state in work.searches() if not state.settled]
    if rows:
        written = write_report(rows, missing, out / "report", study.name, read_diagnoses(out), read_evaluations(out))
    if verb.json:
        counts = {status: done.count(status) for status in ("done", "diverged", "failed", "stopped")}
        print_json({"out": str(out), "already_done": done.already_done, **counts, "interrupted": done.interrupted})
    elif rows:
        console().print(render(rows, missing))
        print_files(written)
    for item in failed:
        print(f"failed: {item.cell.label}: {item.error}", file=sys.stderr)
    if failed:
        print(f"{len(failed)} of {len(done.ended)} cells failed; the same command tries them again", file=sys.stderr)
    if done.interrupted:
        what = "the jobs go on" if verb.slurm else "what ran is saved"
        print(f"interrupted; {what}, and the same command continues", file=sys.stderr)
        return 130
    return 1 if failed else 0


def _diagnose(out: Path, names: Collection[str], verb: arguments.Run) -> None:
    """Diagnose, of every design and shape, the run with the best learning rate and the first seed; in time for the report."""
    from depthbench.diagnose.runs import diagnose_run
    from depthbench.diagnose.settings import Settings
    from depthbench.report.content import read
    from depthbench.report.diagnoses import best_runs

    rows, missing = read_results(out, names)
    if not any(row.loss is not None for row in rows):
        return
    for section in read(rows, missing, out).sections:
        for _, best in best_runs(section):
            folder = RunFolder(out / "cells" / best[0].run)
            try:
                data = TokenData.open(tokens_of(folder, verb.changes.data))
                warn_of_paths(diagnose_run(folder, data, Settings(), device=verb.hardware.device))
            except UserError as error:  # the report is due all the same
                warn(f"not diagnosed: {error}")
