import io

import pytest
from rich.console import Console

from depthbench.errors import UserError
from depthbench.report import render
from synthetic import NASTY, diverged, row, seeds, study

WIDE = tuple(
    (n_layers, d_model) for n_layers, d_model in ((16, 1216), (20, 1120), (24, 1024), (28, 960), (32, 896), (42, 800), (70, 640))
)
TEN = {f"design_{i}": [2.7 + 0.01 * i + 0.001 * j for j in range(len(WIDE))] for i in range(10)}


def printed(rows, missing=(), width=80, **options):
    out = io.StringIO()
    Console(file=out, width=width, **options).print(render(rows, missing))
    return out.getvalue()


def line_of(text, start):
    return next(line for line in text.splitlines() if line.startswith(start))


def test_losses_heads_and_the_best_of_each_column():
    text = printed(study())
    assert line_of(text, "hc").split() == ["hc", "*", "1.4210", "*", "1.3580", "1.4230"]
    assert line_of(text, "attnres").split()[-2:] == ["*", "1.4100"]
    assert "2 × 160" in text and "AR 80" in text and "0.703M" in text and "nats per token" in text


def test_trends_are_printed_with_sign_and_convention():
    text = printed(study())
    assert "+0.0600" in text and "-0.0460" in text
    assert "nats per token for each doubling of depth" in " ".join(text.split())


def test_spread_and_uneven_seeds():
    assert "1.4230 ± 0.0028" in printed(seeds(study()))
    text = printed([*study(), row("hc", loss=1.425, seed=1)])
    assert "1.4230 ± 0.0028 (n=2)" in text and "(n=1)" in text
    assert "(n=" not in printed(study())


def test_diverged_cells_and_holes():
    text = printed([*study(), diverged("moda", (6, 96), step=77)])
    assert line_of(text, "moda").split() == ["moda", "–", "diverged", "@", "77", "–"]


def test_a_lone_design_is_not_called_best():
    assert "* 1" not in printed([row()])


@pytest.mark.parametrize("width", [80, 100, 120, 200])
def test_lines_fit_and_nothing_is_cut(width):
    rows = seeds(study(TEN, WIDE))
    text = printed([*rows, row(f"folder/{NASTY}.py:VeryLongNameOfADesign", WIDE[0])], width=width)
    assert max(len(line.rstrip()) for line in text.splitlines()) <= min(width, 120)
    assert "…" not in text
    for _, d_model in WIDE:
        assert f"× {d_model}" in text


def test_piped_output_has_no_colour_codes_and_names_cannot_bring_their_own():
    text = printed([*study(), row("hc", options="streams=2"), row(NASTY)])
    assert "\x1b" not in text and "[/bold]" in text.replace("\n", "") and line_of(text, "hc[streams=2]")


def test_the_best_is_marked_without_colour_too():
    coloured = printed(study(), force_terminal=True, color_system="standard")
    assert "\x1b[" in coloured and "* 1.4100" in coloured


def test_missing_cells_are_listed_and_counted():
    text = printed(study(), [f"hc 16 × 64 lr 0.002 seed {i}: running, step 120/400" for i in range(30)])
    assert "Missing: 30 of 39 runs" in text and "seed 0: running, step 120/400" in text and "and 25 more" in text
    assert "Missing" not in printed(study())


def test_no_rows_is_an_error_at_once():
    with pytest.raises(UserError, match="no finished results in runs/x"):
        render([], where="runs/x")
