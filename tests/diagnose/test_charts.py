"""What the charts of diagnoses say beside the numbers."""

import json

import numpy as np

from depthbench.cli.diagnose_verb import warn_of_paths
from depthbench.report.charts.diagnosis import DEPTH, HEATMAPS, PATHS, diagnosis_charts
from depthbench.report.diagnoses import Diagnosed
from depthbench.verdict.rows import Shape

SHAPE = Shape(n_layers=8, d_model=16, n_heads=2, n_kv_heads=2, vocab_size=257, context=32)
SIZE = 8


def matrix(value, size=SIZE):
    """Above the diagonal."""
    return [[value if i < j else None for j in range(size)] for i in range(size)]


def permutation(score):
    late = {"pairs": 15, "threshold": 0.15, "mean": None, "share": None, "curve": None}
    return {"trained": {"loss": 1.0, "score": score, "late": late}}


def drawn(measures, **changes):
    found = Diagnosed("", SHAPE, {"preln": measures}, **changes)
    return {name: chart.to_dict() for name, chart in diagnosis_charts(found, ["preln"], "").items()}


def said(spec):
    return " ".join(spec["title"]["subtitle"])


def test_the_permutation_scale_is_that_of_late_pairs():
    score = matrix(0.1)
    score[0] = [None, *[9.0] * (SIZE - 1)]  # exchanging the first block ruins everything
    (chart,) = drawn({"permutation": permutation(score)}).values()
    assert "permutation score ≥ 0.1." in said(chart)
    color = chart["concat"][0]["layer"][0]["encoding"]["color"]
    assert color["scale"]["domain"] == [0, 0.1] and color["legend"]["title"] == "permutation score"


def test_heatmaps_have_titles_and_no_empty_row_or_column():
    encoding = drawn({"permutation": permutation(matrix(0.1))})[HEATMAPS]["concat"][0]["layer"][0]["encoding"]
    assert encoding["x"]["scale"]["domain"] == list(range(1, SIZE)) and encoding["y"]["scale"]["domain"] == list(range(SIZE - 1))
    assert encoding["x"]["axis"]["title"] == "block j, exchanged with i" and encoding["y"]["axis"]["title"] == "block i"


def test_notes_on_windows_stand_under_the_charts_that_show_the_measure():
    curve = {"value": [0.2, 0.1], "low": None, "high": None}
    lens = dict.fromkeys(("loss", "divergence", "overlap"), curve)
    charts = drawn({"permutation": permutation(matrix(0.1)), "lens": lens}, differing=("lens",))
    assert "different windows: lens" in said(charts[DEPTH]) and "different windows" not in said(charts[HEATMAPS])


def test_untrained_pruning_and_the_line_of_usefulness():
    curve = {"value": [0.2, -0.1], "low": None, "high": None}
    measures = {
        "pruning": {"identity": {kind: {"change": curve} for kind in ("trained", "untrained")}},
        "usefulness": {"ratio": {**curve, "value": [1.3, 1.0]}, "threshold": 1.1},
    }
    chart = drawn(measures)[DEPTH]
    assert "Dotted: the untrained model." in said(chart) and "Grey line at 1.1" in said(chart)
    assert "symlog" in chart["concat"][0]["layer"][0]["encoding"]["y"]["title"]
    assert any(layer["encoding"].get("y") == {"datum": 1.1} for layer in chart["concat"][1]["layer"])


def test_path_weights_that_are_wrong_are_called_so(capsys):
    weight = np.tril(np.ones((3, 3))).tolist()
    for linear in (True, None, False):
        paths = {"weight": weight, "linear": linear, "deviation": 0.5}
        assert ("Not to be trusted: preln" in said(drawn({"paths": paths})[PATHS])) is (linear is False)
        warn_of_paths({"subject": {"name": "mine"}, "measures": {"paths": paths}})
        assert ("warning: the path weights of mine are wrong" in capsys.readouterr().err) is (linear is False)
    assert "Not to be trusted" not in json.dumps(drawn({"paths": {"weight": weight}})[PATHS])  # of an earlier version
