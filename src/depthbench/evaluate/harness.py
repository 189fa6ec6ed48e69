"""Tasks of lm-evaluation-harness on a trained run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from depthbench.errors import UserError
from depthbench.files import EVALUATION_FILE, make_folder, write_json
from depthbench.study.store import RunFolder

RESULT = "lm_eval.json"  # beside the scores of documents
SCORES = EVALUATION_FILE.removesuffix(".json")


def run_harness(
    folder: RunFolder,
    tasks: Sequence[str],
    *,
    data: str = "",
    device: str = "cpu",
    precision: str = "fp32",
    batch_size: int = 16,
    shots: int = 0,
    limit: int = 0,
    include_path: str = "",
) -> dict[str, Any]:
    """Let the harness evaluate a run on `tasks`; its results lie in the run folder. `limit`: documents a task, 0 for all.

    Raises `UserError` without the extra, for an unknown task, and if the harness cannot get a task's data.
    """
    try:
        from lm_eval import simple_evaluate
        from lm_eval.tasks import TaskManager

        from depthbench.evaluate.lm_eval_model import DepthBenchLM
    except ImportError as error:
        raise UserError(f"--lm-eval needs the harness ({error}); pip install 'depthbench[lm-eval]'") from None
    manager = TaskManager(include_path=include_path or None)
    unknown = [task for task in tasks if not manager.match_tasks([task])]
    if unknown:
        raise UserError(f"the harness has no task {unknown[0]}; lm-eval ls tasks lists them")
    model = DepthBenchLM(str(folder.path), data, device, precision, batch_size)
    try:
        found = simple_evaluate(
            model=model, tasks=list(tasks), num_fewshot=shots, limit=limit or None, task_manager=manager, log_samples=False
        )
    except (OSError, ValueError, RuntimeError) as error:
        reason = str(error).strip().split("\n")[0]
        raise UserError(f"the harness could not evaluate {' '.join(tasks)}: {reason}; its data come from the hub") from error
    content = {"run": folder.path.name, "shots": shots, "limit": limit, "results": found["results"], "versions": found["versions"]}
    write_json(make_folder(folder.path / SCORES) / RESULT, _plain(content))
    return content


def _plain(content: Any) -> Any:
    """What JSON can hold; the harness marks what it has not computed by "N/A"."""
    if isinstance(content, dict):
        return {str(key): _plain(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_plain(value) for value in content]
    if isinstance(content, float) and content != content:
        return None
    return content if isinstance(content, str | int | float | bool | None) else str(content)
