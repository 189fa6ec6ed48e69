"""`depthbench shapes` and `depthbench designs`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich.markup import escape

from depthbench.cli import arguments
from depthbench.cli.output import console, make_table, print_json
from depthbench.errors import UserError
from depthbench.shape import Budget, ModelShape, human, parse_count, solve_all
from depthbench.suites import Tier, find_suites


def shapes(verb: arguments.Shapes) -> int:
    """Solve a budget, or show a published suite."""
    if bool(verb.suite) == bool(verb.budget):
        raise UserError("give either --budget with --n-layers, or --suite (400m, backbone-300m, ladder, 1.6b)")
    groups = (
        [(suite.name, suite.budget, suite.shapes, suite) for suite in find_suites(verb.suite)] if verb.suite else [_asked(verb)]
    )
    if verb.json:
        print_json([_group_json(name, budget, found, suite) for name, budget, found, suite in groups])
        return 0
    for name, budget, found, suite in groups:
        _print_shapes(name, budget, found, suite)
    return 0


def _asked(verb: arguments.Shapes) -> tuple[str, Budget, list[ModelShape], Tier | None]:
    if not verb.n_layers:
        raise UserError("--budget needs layer counts, for instance --n-layers 16 24 32")
    budget = Budget(
        parse_count(verb.budget),
        match=verb.match,
        n_heads=verb.heads,
        n_kv_heads=verb.kv_heads,
        vocab_size=verb.vocab_size,
        context=verb.context,
        d_ff_ratio=verb.d_ff_ratio,
    )
    return "budget", budget, solve_all(budget, verb.n_layers), None


def _shape_json(budget: Budget, shape: ModelShape) -> dict[str, Any]:
    return {
        **asdict(shape),
        "aspect_ratio": shape.aspect_ratio,
        "backbone_parameters": shape.backbone_parameters,
        "total_parameters": shape.total_parameters,
        "off_budget": budget.miss(shape),
        "within_tolerance": abs(budget.miss(shape)) <= budget.tolerance,
    }


def _group_json(name: str, budget: Budget, found: list[ModelShape], suite: Tier | None) -> dict[str, Any]:
    steps = {"published_steps": suite.steps} if suite else {}
    return {"name": name, "budget": asdict(budget), **steps, "shapes": [_shape_json(budget, shape) for shape in found]}


def _print_shapes(name: str, budget: Budget, found: list[ModelShape], suite: Tier | None) -> None:
    out = console()
    table = make_table(
        "n_layers", "d_model", "heads", "kv", "head_dim", "d_ff", "aspect", "backbone", "total", "off budget", left=0
    )
    for shape in found:
        miss = budget.miss(shape)
        table.add_row(
            *map(str, (shape.n_layers, shape.d_model, shape.n_heads, shape.n_kv_heads, shape.head_dim, shape.d_ff)),
            f"{shape.aspect_ratio:.1f}",
            human(shape.backbone_parameters),
            human(shape.total_parameters),
            f"{miss:+.1%}" + (" !" if abs(miss) > budget.tolerance else ""),
        )
    steps = f", published {suite.steps:,} updates of 512 × 2048 tokens" if suite else ""
    out.print(f"[bold]{name}[/bold]: {budget.match} {human(budget.count)} parameters, vocabulary {budget.vocab_size:,}{steps}")
    out.print(table)
    for shape in found:
        if abs(budget.miss(shape)) > budget.tolerance:
            step = 2 * budget.n_heads
            hint = f"widths come in steps of {step}; fewer --heads or another layer count comes nearer"
            out.print(f"! {shape.n_layers} × {shape.d_model} lies beyond ±{budget.tolerance:.0%}: {hint}")
    out.print("Pre-LN counts with all norm gains; backbone = blocks, total = with embedding, untied head and final norm.\n")


def designs(verb: arguments.Designs) -> int:
    """List the designs, or show one."""
    from depthbench.residual.registry import find_design, list_designs, read_options
    from depthbench.study.cell import DesignChoice

    if verb.design:
        choice = DesignChoice.parse(verb.design)
        design = find_design(choice.name)
        read_options(design, choice.name, dict(choice.options))
        return _show_design(choice.name, design, verb.json)
    found = list_designs()
    if verb.json:
        print_json([_design_json(name, design) for name, design in found.items()])
        return 0
    table = make_table("key", "family", "update of one sublayer", "options", "own parameters", left=5)
    for name, design in found.items():
        facts = _design_json(name, design)
        options = ", ".join(f"{key}={value}" for key, value in facts["options"].items()) or "–"
        own = facts["own_parameters_of_24x1024"]
        table.add_row(name, facts["family"], escape(facts["equation"]), escape(options), "–" if not own else f"{own['share']:.2%}")
    out = console()
    out.print(table)
    out.print(
        "Own parameters: beyond Pre-LN, as a share of its total at 24 × 1024, vocabulary 50,280. `depthbench designs hc` shows one."
    )
    out.print("Your own: --design path/to/file.py:Class, or the entry-point group depthbench.residuals (docs/own_design.md).")
    return 0


def _design_json(name: str, design: Any) -> dict[str, Any]:
    from depthbench.build import count_parameters
    from depthbench.residual.registry import describe_options

    shape = find_suites("400m")[0].shapes[2]
    counted = count_parameters(name, shape).design
    own = {"parameters": counted, "share": counted / shape.total_parameters} if counted else None
    return {
        "key": name,
        "family": design.family,
        "equation": design.equation,
        "source": design.source,
        "options": describe_options(design),
        "no_decay": sorted(design.exempt_from_decay(shape)),
        "own_parameters_of_24x1024": own,
    }


def _show_design(name: str, design: Any, as_json: bool) -> int:
    import inspect

    facts = _design_json(name, design)
    if as_json:
        print_json(facts)
        return 0
    from depthbench.residual.registry import summary_of

    out = console()
    out.print(
        f"[bold]{escape(name)}[/bold]  {escape(facts['family'])}  [{escape(facts['source']) or 'no source given'}]\n",
        highlight=False,
    )
    out.print(escape(summary_of(design)), highlight=False)
    out.print(f"\nupdate    {escape(facts['equation'])}")
    options = design.Options
    if facts["options"]:
        out.print(f"options   {escape(', '.join(f'{k}={v}' for k, v in facts['options'].items()))}")
        out.print(f"          {escape(' '.join((inspect.getdoc(options) or '').split()))}")
        key, value = next(iter(facts["options"].items()))
        out.print(f"          written as {escape(f'{name}[{key}={str(value).lower()}]')}")
    own = facts["own_parameters_of_24x1024"]
    out.print(
        f"own       {own['parameters']:,} parameters at 24 × 1024, {own['share']:.2%} of the total"
        if own
        else "own       no parameters"
    )
    out.print(f"no decay  {', '.join(facts['no_decay']) or 'nothing is exempt'}")
    return 0
