"""`depthbench eval`: how likely are the targets of tasks, by domain?"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.markup import escape

from depthbench.cli import arguments
from depthbench.cli.output import console, make_table, print_json
from depthbench.cli.setup import refuse_with_runs, use_threads
from depthbench.errors import UserError
from depthbench.evaluate.runs import evaluate_checkpoint, evaluate_run
from depthbench.evaluate.sources import find_tasks
from depthbench.evaluate.task_files import Task
from depthbench.files import EVALUATION_FILE
from depthbench.report.columns import Column, wrapped
from depthbench.study.load import find_run_folders, tokens_of
from depthbench.train.execution import find_device

PRECISIONS = ("fp32", "bf16")


def evaluate(verb: arguments.Eval) -> int:
    """Evaluate runs, or a checkpoint."""
    if bool(verb.runs) == bool(verb.hf):
        raise UserError("give either run folders, or one Hugging Face checkpoint with --hf")
    if verb.runs:
        refuse_with_runs(("--out", verb.out), ("--allow-pickle", verb.allow_pickle))
    if verb.precision not in PRECISIONS:
        raise UserError(f"precision must be one of {', '.join(PRECISIONS)}, got {verb.precision!r}")
    find_device(verb.device)
    if verb.lm_eval:
        return _harness(verb)
    tasks, without = find_tasks(verb.tasks, verb.task_source)
    if not tasks:
        raise UserError(f"nothing to score: {'; '.join(without)}")
    found = [_checkpoint(verb, tasks)] if verb.hf else _runs(verb, tasks)
    if verb.json:
        print_json([{"result": str(path), **content} for path, content in found])
        return 0
    show([content for _, content in found], [task.name for task in tasks])
    print("\n".join(f"results in {path}" for path, _ in found[:3]))
    if len(found) > 3:
        print(f"… and {len(found) - 3} more")
    for line in without:
        print(f"not scored: {line}", file=sys.stderr)
    return 0


def _runs(verb: arguments.Eval, tasks: Sequence[Task]) -> list[tuple[Path, dict[str, Any]]]:
    folders, found = find_run_folders(verb.runs), []
    use_threads(verb.threads, [folder.cell().shape for folder in folders])
    for folder in folders:
        how: dict[str, Any] = {"device": verb.device, "precision": verb.precision, "batch_size": verb.batch_size}
        found.append((folder.path / EVALUATION_FILE, evaluate_run(folder, tokens_of(folder, verb.data), tasks, **how)))
    return found


def _harness(verb: arguments.Eval) -> int:
    from depthbench.evaluate.harness import RESULT, SCORES, run_harness

    if verb.hf:
        raise UserError(
            f"--lm-eval is for runs; the harness reads checkpoints itself: lm-eval run --model hf --model_args pretrained={verb.hf}"
        )
    how: dict[str, Any] = {"device": verb.device, "precision": verb.precision, "batch_size": verb.batch_size}
    folders = find_run_folders(verb.runs)
    use_threads(verb.threads, [folder.cell().shape for folder in folders])
    found = [
        run_harness(folder, verb.lm_eval, data=verb.data, limit=verb.limit, include_path=verb.include_path, **how)
        for folder in folders
    ]
    if verb.json:
        print_json(found)
        return 0
    table = make_table("model", "task", "metric", "value", "standard error", left=3)
    for content in found:
        for task, metrics in content["results"].items():
            for key, value in metrics.items():
                name, _, rest = key.partition(",")
                error = metrics.get(f"{name}_stderr,{rest}")
                if isinstance(value, float) and not name.endswith("_stderr"):
                    row = (task, name, f"{value:.4f}", f"{error:.4f}" if isinstance(error, float) else "–")
                    table.add_row(escape(content["run"]), *row)
    console().print(table)
    print("\n".join(f"results in {folder.path / SCORES / RESULT}" for folder in folders[:3]))
    return 0


def _checkpoint(verb: arguments.Eval, tasks: Sequence[Task]) -> tuple[Path, dict[str, Any]]:
    use_threads(verb.threads)
    out = verb.out or Path("evaluation") / Path(verb.hf).resolve().name
    content = evaluate_checkpoint(
        verb.hf,
        out,
        tasks,
        device=verb.device,
        precision=verb.precision,
        batch_size=verb.batch_size,
        allow_pickle=verb.allow_pickle,
    )
    return out / EVALUATION_FILE, content


def show(contents: list[dict[str, Any]], tasks: Sequence[str]) -> None:
    """Nats per token and bits per byte of every task, and of the groups that they make up."""
    groups = Counter(contents[0]["tasks"][name]["group"] for name in tasks)
    shown = [(name, "tasks") for name in tasks] + [(group, "groups") for group, members in groups.items() if members > 1]
    names = [str(content["about"].get("run", content["about"].get("name", "?"))) for content in contents]
    columns = [
        Column(key if kind == "tasks" else f"{key},\nmean", [_cell(content[kind][key]) for content in contents])
        for key, kind in shown
    ]
    out = console()
    for part in wrapped(Column("model", names), columns, out.width):
        out.print(part)
    out.print()
    out.print("nats per token ± standard error over documents; below: bits per byte of the target, which compares tokenizers")
    for name in tasks:
        sizes = contents[0]["tasks"][name]
        lost = f", prompts of {sizes['cut_documents']} cut on the left" if sizes["cut_documents"] else ""
        lost += f", targets of {sizes['documents_in_pieces']} longer than the context" if sizes["documents_in_pieces"] else ""
        out.print(f"{escape(name)}: {sizes['documents']:,} documents, {sizes['tokens']:,} tokens scored{lost}")


def _cell(score: dict[str, Any]) -> str:
    return "\n".join(_number(score[key], score[f"{key}_standard_error"]) for key in ("nll", "bits_per_byte"))


def _number(value: float, error: float | None) -> str:
    return f"{value:.4f}" if error is None else f"{value:.4f} ± {error:.4f}"
