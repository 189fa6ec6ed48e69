import json
import re
import struct

import pytest

from depthbench.report.charts import all_charts, save
from depthbench.report.charts.style import LOSS_TITLE, RATIO_TITLE
from depthbench.report.content import read
from depthbench.report.embed import html_page
from depthbench.text import plain
from depthbench.verdict.published import LOSSES as PUBLISHED
from depthbench.verdict.published import SHAPES as PUBLISHED_SHAPES
from depthbench.verdict.published import VOCABULARY
from synthetic import NASTY, diverged, row, seeds, simulated, study

RATES = (0.001, 0.002, 0.004)


def charts(rows, missing=(), title="quick"):
    return {name: chart.to_dict() for name, chart in all_charts(read(rows, missing, "here", title)).items()}


def ratio_spec(rows, missing=(), title="quick"):
    return charts(rows, missing, title)["loss_vs_aspect_ratio"]


def panels(spec, data=None):
    """The panels of a figure in the order of reading; each layer with the data that Altair has moved up to its parents."""
    data = spec.get("data", data)
    if "concat" in spec:
        return [leaf for part in spec["concat"] for leaf in panels(part, data)]
    return [{**spec, "layer": [{"data": data, **layer} for layer in spec["layer"]]}]


def values(spec, panel, **wanted):
    """The values drawn in a panel, each once."""
    sources = {json.dumps(layer["data"]): layer["data"] for layer in panel["layer"]}.values()
    found = [value for data in sources for value in data.get("values") or spec["datasets"][data["name"]]]
    return [value for value in found if value and all(value.get(key) == item for key, item in wanted.items())]


def marks(panel):
    return [layer["mark"]["type"] for layer in panel["layer"]]


def channel(panel, mark, name):
    return next(layer["encoding"][name] for layer in panel["layer"] if layer["mark"]["type"] == mark and name in layer["encoding"])


def caption(spec):
    return " ".join(spec["title"]["subtitle"]).replace("\u00a0", " ")


def ladder(count=3, n=2):
    """Three tiers of three shapes; losses fall with size, and the best shape is the middle one."""
    found = []
    for tier in range(count):
        width = 64 * 2**tier
        size = int(4e5 * 4**tier)
        for depth, extra in ((4, 0.02), (8, 0.0), (16, 0.03)):
            shape = (depth, width * 8 // depth * 2)
            size_of = {"total_parameters": size, "backbone_parameters": size - 10_000, "design_parameters": 0}
            found += [row("preln", shape, 3.0 - 0.2 * tier + extra + 0.001 * seed, seed=seed, **size_of) for seed in range(n)]
    return found


def test_axes_say_what_they_are():
    spec = ratio_spec(study())
    (panel,) = panels(spec)
    x, y = channel(panel, "point", "x"), channel(panel, "point", "y")
    assert x["scale"]["type"] == "log" and x["title"] == RATIO_TITLE
    assert y["scale"]["zero"] is False and y["title"] == LOSS_TITLE == "validation loss (nats per token)"
    assert spec["title"]["text"] == "quick: loss against aspect ratio" and spec["config"]["background"] == "white"


def test_ticks_say_aspect_ratio_and_layers():
    axis = channel(panels(ratio_spec(study()))[0], "point", "x")["axis"]
    assert axis["values"] == [3.5, 16.0, 80.0]
    assert '[["3.5", "16L"], ["16", "6L"], ["80", "2L"]]' in axis["labelExpr"]


def test_one_point_for_each_cell_in_the_order_of_the_designs():
    spec = ratio_spec(study()[::-1])
    (panel,) = panels(spec)
    assert len(values(spec, panel)) == 9
    assert channel(panel, "point", "color")["scale"]["domain"] == ["preln", "hc", "attnres"]


def test_diverged_cells_are_named_not_drawn_and_lines_do_not_run_over_them():
    rows = [r for r in study() if (r.design, r.n_layers) != ("hc", 6)]
    spec = ratio_spec([*rows, diverged("hc", (6, 96), step=33)], missing=["hc 16 × 56 seed 1: waiting"])
    found = values(spec, panels(spec)[0])
    assert sum(value["loss"] is not None for value in found) == 8
    assert [(value["design"], value["aspect_ratio"]) for value in found if value["loss"] is None] == [("hc", 16.0)]
    assert "Diverged, so without a loss: hc 6 × 96 @ 33." in caption(spec) and "Missing: 1 of 10 runs." in caption(spec)


def test_error_bars_only_with_seeds():
    assert "errorbar" not in marks(panels(ratio_spec(study()))[0])
    spec = ratio_spec(seeds(study()))
    (panel,) = panels(spec)
    assert "errorbar" in marks(panel)
    point = values(spec, panel)[0]
    assert point["high"] - point["loss"] == pytest.approx(0.004 / 2**0.5) == pytest.approx(point["loss"] - point["low"])
    assert "Mean over 2 seeds" in caption(spec) and "One seed" in caption(ratio_spec(study()))


def test_dashes_only_among_many():
    many = {f"design_{i}": (1.5, 1.4, 1.3) for i in range(6)}

    def dashes(spec):
        return len({tuple(dash) for dash in channel(panels(spec)[0], "line", "strokeDash")["scale"]["range"]})

    assert dashes(ratio_spec(study(many))) > 1 and dashes(ratio_spec(study())) == 1


def test_tooltip_and_legend_selection():
    spec = ratio_spec(study())
    (panel,) = panels(spec)
    shown = {item["field"] for item in channel(panel, "point", "tooltip")}
    assert shown >= {"design", "shape", "loss", "bits_per_byte", "total", "learning_rate", "seeds", "tokens_per_second"}
    assert shown <= set(values(spec, panel)[0])
    (selection,) = spec["params"]
    assert selection["bind"] == "legend" and selection["select"]["fields"] == ["design"]


def test_runs_of_different_recipes_have_panels_of_their_own():
    spec = ratio_spec([*study(), *study({"moda": (1.4, 1.3, 1.2)}, recipe_hash="f" * 64, steps=800)])
    assert len(panels(spec)) == 2
    assert {value["design"] for value in values(spec, panels(spec)[1])} == {"moda"}
    assert "Every panel has its own loss axis." in caption(spec)


def searched_study():
    """Learning rates for two designs: hc best inside, preln best at the highest, moda diverging at the highest."""
    losses = {"preln": (1.5, 1.4, 1.3), "hc": (1.4, 1.3, 1.35), "moda": (1.4, 1.3, None)}
    return [
        diverged(design, (2, 160), learning_rate=rate) if loss is None else row(design, (2, 160), loss, learning_rate=rate)
        for design, of_rates in losses.items()
        for rate, loss in zip(RATES, of_rates, strict=True)
    ]


def test_learning_rates_mark_the_chosen_the_edge_the_parabola_and_the_diverged():
    spec = charts(searched_study())["loss_vs_learning_rate"]
    (panel,) = panels(spec)
    kinds = {(value["design"], value["rate"]): value["kind"] for value in values(spec, panel) if "kind" in value}
    assert kinds["preln", 0.004] == "edge" and kinds["hc", 0.002] == "chosen" and kinds["hc", 0.001] == "tried"
    refined = [rate for (design, rate), kind in kinds.items() if design == "hc" and kind == "refined"]
    assert len(refined) == 1 and 0.002 < refined[0] < 0.004
    assert [(value["design"], value["rate"]) for value in values(spec, panel) if value.get("row") is not None] == [("moda", 0.004)]
    text = caption(spec)
    assert "Hollow (2 of 3): it is the highest or lowest tried" in text or "Hollow (1 of 3)" in text
    assert "×: a run diverged" in text and "an estimate and no run" in text
    assert channel(panel, "line", "x")["scale"]["type"] == "log"


def test_no_search_no_chart_of_learning_rates():
    assert "loss_vs_learning_rate" not in charts(study())


def test_depth_gains_have_intervals_ranks_and_verdicts_only_with_seeds():
    means = {"preln": [3.0, 3.0, 3.0, 3.0, 3.0], "hc": [3.0, 2.95, 2.9, 2.85, 2.8]}
    spec = charts(simulated(means))["depth_gain"]
    point = values(spec, panels(spec)[0], design="hc")[0]
    assert point["gain"] == pytest.approx(0.2, abs=0.02) and point["low"] < point["gain"] < point["high"]
    assert point["name"] == "hc  (1)" and point["verdict"] == "improves with depth"
    spec = charts(simulated(means, n=1))["depth_gain"]
    point = values(spec, panels(spec)[0], design="hc")[0]
    assert point["low"] is None and point["name"] == "hc" and not point["verdict"]
    assert "One seed: point estimates" in caption(spec)


def test_published_values_are_never_drawn_as_ours():
    named = charts(seeds(study()))
    assert "published_400m" in named and "loss_vs_published" not in named
    spec = named["published_400m"]
    ours, theirs = panels(spec)
    assert {value["loss"] for value in values(spec, ours)} == {value["loss"] for value in values(spec, ours) if "seeds" in value}
    published = {value["loss"] for value in values(spec, theirs)}
    assert published == {loss for design in ("preln", "hc", "attnres") for loss in PUBLISHED[design]}
    assert "as published" in json.dumps(theirs) and "no spread was published" in caption(spec)
    gains = named["depth_gain_vs_published"]
    point = values(gains, panels(gains)[0], design="preln")[0]
    assert point["published"] == -0.023 and point["gain"] == pytest.approx(1.5 - 1.546)


def test_losses_are_laid_over_published_ones_at_the_published_sizes_alone():
    rows = [
        row("hc", shape, 2.7 + 0.01 * i, vocab_size=VOCABULARY, total_parameters=405_000_000 + i, backbone_parameters=280_000_000)
        for i, shape in enumerate(PUBLISHED_SHAPES[:5])
    ]
    named = charts(rows)
    assert "loss_vs_published" in named and "published_400m" not in named
    spec = named["loss_vs_published"]
    (panel,) = panels(spec)
    assert len(values(spec, panel, source="this study")) == 5
    assert [value["loss"] for value in values(spec, panel, source="as published")] == list(PUBLISHED["hc"])
    assert "Levels can be compared only if the data are the same" in caption(spec)
    assert "loss_vs_published" not in charts([*rows[:0], *study()])


def test_a_ladder_has_a_panel_a_class_and_one_for_the_best_aspect_ratio():
    spec = charts(ladder())["loss_vs_parameters"]
    titles = json.dumps(spec)
    assert "best aspect ratio" in titles and channel(panels(spec)[0], "line", "x")["scale"]["type"] == "log"
    curve = [value for value in values(spec, panels(spec)[0]) if "count" not in value]
    sizes = [value["parameters"] for value in values(spec, panels(spec)[0]) if "count" in value]
    assert min(value["parameters"] for value in curve) == pytest.approx(min(sizes))
    assert max(value["parameters"] for value in curve) == pytest.approx(max(sizes))
    assert "loss_vs_parameters" not in charts(study())


def test_a_name_cannot_leave_its_place_in_the_page():
    spec = ratio_spec([*study(), row(NASTY)], title=NASTY)
    page = html_page(spec, "/* library */")
    assert page.count("<script>") == page.count("</script>") == 2
    assert "<img" not in page and page.count("&lt;img") == 1
    embedded = json.loads(re.search(r'vegaEmbed\("#chart", (\{.*\}), \{"renderer"', page)[1])
    assert embedded == spec and plain(NASTY) in {value["design"] for value in values(embedded, panels(embedded)[0])}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("chart")
    content = read([*seeds(study()), row(NASTY), diverged("moda")], ["moda: waiting"], "here", "study")
    chart = all_charts(content)["loss_vs_aspect_ratio"]
    return save({"loss_vs_aspect_ratio": chart}, folder)


def test_saved_page_holds_all_it_needs(saved):
    page = saved[0].read_text(encoding="utf-8")
    assert "default-src 'none'" in page and len(page) > 500_000
    assert not re.search(r"<(script|link|img|iframe)[^>]+(src|href)=[\"']?(https?:)?//", page)


def test_saved_images_are_whole_and_sharp(saved):
    assert [path.name for path in saved] == [f"loss_vs_aspect_ratio.{kind}" for kind in ("html", "png", "pdf")]
    png, pdf = saved[1].read_bytes(), saved[2].read_bytes()
    assert png[:8] == b"\x89PNG\r\n\x1a\n" and png[-8:-4] == b"IEND"
    width, height = struct.unpack(">II", png[16:24])
    assert width >= 1500 and height >= 1000
    assert pdf.startswith(b"%PDF-") and pdf.rstrip().endswith(b"%%EOF")
    assert sorted(path.name for path in saved[0].parent.iterdir()) == sorted(path.name for path in saved)
