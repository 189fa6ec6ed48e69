"""From run folders to the tidy table that reports read: one row a finished cell."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from depthbench.errors import UserError
from depthbench.files import DIAGNOSIS_FILE, DIAGNOSIS_FORMAT, EVALUATION_FILE, EVALUATION_FORMAT, content_hash, read_json
from depthbench.study.cell import Cell
from depthbench.study.store import RunFolder, find_runs
from depthbench.verdict.rows import ResultRow


def read_results(out: Path, only: Collection[str] | None = None) -> tuple[list[ResultRow], list[str]]:
    """The rows of all finished cells under `out` (or of those whose folders `only` names), and a line for each cell that is
    missing, with the reason.
    """
    found: list[tuple[Cell, ResultRow]] = []
    missing = []
    for folder in find_runs(out):
        if only is not None and folder.path.name not in only:
            continue
        try:
            cell = folder.cell()
            result = folder.result()
            if result is None:
                missing.append(_missing(folder, cell))
            else:
                found.append((cell, _row(folder, cell, result)))
        except (UserError, KeyError, TypeError) as error:
            missing.append(f"{folder.path.name}: unreadable ({error})")
    return _tell_apart(found), missing


def read_diagnoses(out: Path) -> dict[str, dict[str, Any]]:
    """What `depthbench diagnose` found in the runs under `out`, by the names of their folders; what cannot be read is left out."""
    return _read_beside(out, DIAGNOSIS_FILE, DIAGNOSIS_FORMAT)


def read_evaluations(out: Path) -> dict[str, dict[str, Any]]:
    """What `depthbench eval` found in the runs under `out`, by the names of their folders; what cannot be read is left out."""
    return _read_beside(out, EVALUATION_FILE, EVALUATION_FORMAT)


def _read_beside(out: Path, name: str, format: int) -> dict[str, dict[str, Any]]:
    found = {}
    for folder in find_runs(out):
        path = folder.path / name
        if path.exists():
            with suppress(UserError):
                content = read_json(path)
                if isinstance(content, dict) and content.get("format") == format:
                    found[folder.path.name] = content
    return found


def _tell_apart(found: list[tuple[Cell, ResultRow]]) -> list[ResultRow]:
    """Versions of one user's design are different designs: where there are several, the name carries the hash of its file."""
    versions: dict[str, set[str]] = {}
    for cell, row in found:
        versions.setdefault(row.design, set()).add(cell.design_hash)
    return [
        replace(row, design=f"{row.design}@{cell.design_hash[:6]}") if len(versions[row.design]) > 1 else row for cell, row in found
    ]


def _missing(folder: RunFolder, cell: Cell) -> str:
    state = folder.state()
    step = f", step {state.step}/{cell.recipe.steps}" if state.step else ""
    return f"{cell.label}: {state.status}{step}{f' ({state.note})' if state.note else ''}"


def _row(folder: RunFolder, cell: Cell, result: dict[str, Any]) -> ResultRow:
    shape, parameters = cell.shape, result["parameters"]
    recipe = cell.content()["recipe"]
    del recipe["learning_rate"]
    return ResultRow(
        design=cell.design.class_name or cell.design.name,
        options=",".join(f"{key}={value}" for key, value in cell.design.options),
        n_layers=shape.n_layers,
        d_model=shape.d_model,
        n_heads=shape.n_heads,
        n_kv_heads=shape.n_kv_heads,
        d_ff=shape.d_ff,
        vocab_size=shape.vocab_size,
        context=shape.context,
        learning_rate=cell.recipe.learning_rate,
        seed=cell.seed,
        status=result["status"],
        loss=result["loss"],
        bits_per_byte=result["bits_per_byte"],
        diverged_step=result["steps"] if result["status"] == "diverged" else None,
        backbone_parameters=parameters["backbone"],
        total_parameters=parameters["total"],
        design_parameters=parameters["design"],
        tokens=result["tokens"],
        steps=result["steps"],
        seconds=result["seconds"],
        tokens_per_second=result["tokens_per_second"],
        flops=result["flops"],
        data_fingerprint=result["data_fingerprint"],
        validation_sha256=result["validation_sha256"],
        recipe_hash=content_hash(recipe)[:12],
        code_version=result["code_version"],
        code_hash=result["code_hash"],
        run=folder.path.name,
    )
