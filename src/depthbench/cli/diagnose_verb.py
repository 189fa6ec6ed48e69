"""`depthbench diagnose`: do the late layers do anything?"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from rich.markup import escape

from depthbench.cli import arguments
from depthbench.cli.output import console, make_table, print_json
from depthbench.cli.setup import refuse_with_runs, use_threads, warn
from depthbench.data import TokenData
from depthbench.data.defaults import find_tokens
from depthbench.diagnose.runs import diagnose_run
from depthbench.diagnose.session import RESULT
from depthbench.diagnose.settings import Settings
from depthbench.diagnose.subject import PRECISIONS
from depthbench.errors import UserError
from depthbench.study.load import find_run_folders, tokens_of
from depthbench.train.execution import find_device

NONE = "–"


def diagnose(verb: arguments.Diagnose) -> int:
    """Diagnose runs, or a checkpoint."""
    if bool(verb.runs) == bool(verb.hf):
        raise UserError("give either run folders, or one Hugging Face checkpoint with --hf")
    if verb.runs:
        refuse_with_runs(("--text", verb.text), ("--out", verb.out), ("--allow-pickle", verb.allow_pickle))
    settings = settings_of(verb.options)
    check_device(verb.device, verb.precision)
    found = [_checkpoint(verb, settings)] if verb.hf else _runs(verb, settings)
    if verb.json:
        print_json([{"result": str(path), **content} for path, content in found])
        return 0
    show([content for _, content in found])
    print("\n".join(f"results in {path} and {path.with_suffix('.npz').name}" for path, _ in found[:3]))
    if len(found) > 3:
        print(f"… and {len(found) - 3} more")
    return 0


def settings_of(options: arguments.Measures) -> Settings:
    """The settings that options ask for."""
    wanted = dict(vars(options))
    wanted["control"] = not wanted.pop("no_control")
    wanted["seed"] = wanted.pop("window_seed")
    return Settings(**wanted)


def check_device(device: str, precision: str) -> None:
    """Raise `UserError` for a device without float64, or an unknown precision."""
    if precision not in PRECISIONS:
        raise UserError(f"precision must be one of {', '.join(PRECISIONS)}, got {precision!r}")
    if find_device(device).type == "mps":
        raise UserError("--device mps has no float64, which norms and sums are taken in; use --device cpu")


def _runs(verb: arguments.Diagnose, settings: Settings) -> list[tuple[Path, dict[str, Any]]]:
    folders = find_run_folders(verb.runs)
    use_threads(verb.threads, [folder.cell().shape for folder in folders])
    found = []
    for folder in folders:
        content = diagnose_run(
            folder, TokenData.open(tokens_of(folder, verb.data)), settings, device=verb.device, precision=verb.precision
        )
        found.append((folder.path / RESULT, content))
    return found


def _checkpoint(verb: arguments.Diagnose, settings: Settings) -> tuple[Path, dict[str, Any]]:
    from depthbench.diagnose.checkpoints import diagnose_checkpoint

    use_threads(verb.threads)
    out = verb.out or Path("diagnosis") / Path(verb.hf).resolve().name
    content = diagnose_checkpoint(
        verb.hf,
        out,
        settings,
        data=verb.data,
        text=verb.text,
        device=verb.device,
        precision=verb.precision,
        allow_pickle=verb.allow_pickle,
        default_tokens=lambda: find_tokens("stdlib", "bytes"),
    )
    return out / RESULT, content


def show(contents: list[dict[str, Any]]) -> None:
    """The main numbers of each, trained beside untrained."""
    table = make_table("model", "angular", "causal", "untrained", "permutation", "untrained", "useful", "effective depth", left=1)
    bare = []
    for content in contents:
        numbers = main_numbers(content["measures"])
        name = content["subject"]["name"]
        if any(number != NONE for number in numbers):
            table.add_row(escape(name), *numbers)
        else:
            bare.append(f"{name}: nothing for this table; measured: {', '.join(content['measures'])}")
    out = console()
    if table.rows:
        out.print(table)
        out.print(
            "angular: mean distance between neighbouring late depth states; causal, permutation: share of late pairs"
            f"{_pairs(contents)} above the threshold, of the trained and the untrained model; useful: share of blocks that no"
            " affine map replaces; below: 95 % intervals over windows"
        )
    print("\n".join(bare), end="\n" if bare else "")
    for content in contents:
        warn_of_paths(content)
    for line in dict.fromkeys(line for content in contents for line in content["without"]):
        print(f"not measured: {line}", file=sys.stderr)


def warn_of_paths(content: dict[str, Any]) -> None:
    """A line if the path weights of a diagnosis do not say what carries what."""
    paths = content["measures"].get("paths", {})
    if paths.get("linear") is False:
        warn(
            f"the path weights of {content['subject']['name']} are wrong: mixing coefficients depend on the state and are not held"
            f" fixed (derivatives change by {paths['deviation']:.1g} of their size); pass them through"
            " depthbench.model.frozen.coefficient"
        )


def _pairs(contents: list[dict[str, Any]]) -> str:
    """How many late pairs there are, by depth."""
    found: dict[int, int] = {}
    for content in contents:
        measures: dict[str, Any] = content["measures"]
        scores = [kinds["mean_of_ratios"] for kinds in _published(measures).values()]
        for score in (*scores, *measures.get("permutation", {}).values()):
            found[content["subject"]["n_layers"]] = score["late"]["pairs"]
    return f" ({', '.join(f'{pairs} in {layers} layers' for layers, pairs in sorted(found.items()))})" if found else ""


def _published(measures: dict[str, Any]) -> dict[str, Any]:
    """The causal scores under the published rule, which comes first."""
    found: dict[str, Any] = next(iter(measures.get("causal", {}).values()), {})
    return found


def main_numbers(measures: dict[str, Any]) -> list[str]:
    """The columns of the table."""
    causal = _published(measures)
    permutation = measures.get("permutation", {})
    return [
        _text(measures.get("angular", {}).get("late_adjacent_mean"), 3),
        *(_share(causal.get(kind, {}).get("mean_of_ratios", {})) for kind in ("trained", "untrained")),
        *(_share(permutation.get(kind, {})) for kind in ("trained", "untrained")),
        _text(measures.get("usefulness", {}).get("useful_share"), 2),
        _text(measures.get("lens", {}).get("effective_depth"), 2),
    ]


def _share(score: dict[str, Any]) -> str:
    return _text(score.get("late", {}).get("share"), 2)


def _text(interval: dict[str, Any] | None, digits: int) -> str:
    if not interval or interval["value"] is None:
        return NONE
    if interval["low"] is None:
        return f"{interval['value']:.{digits}f}"
    return f"{interval['value']:.{digits}f}\n{interval['low']:.{digits}f}–{interval['high']:.{digits}f}"
