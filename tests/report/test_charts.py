import json
import re
import struct

import pytest

from depthbench.report import aggregate, one_table
from depthbench.report.charts import X_TITLE, Y_TITLE, loss_chart, save
from depthbench.report.embed import html_page
from depthbench.text import plain
from synthetic import NASTY, diverged, row, seeds, study


def spec_of(rows, **options):
    return loss_chart(aggregate(one_table(rows, "here")), **options).to_dict()


def points(spec):
    """The values drawn, gaps left out."""
    return [value for value in values(spec) if value["loss"] is not None]


def values(spec):
    return spec["datasets"][spec["data"]["name"]]


def channel(spec, mark, name):
    layers = {layer["mark"]["type"]: layer["encoding"] for layer in spec["layer"]}
    return layers[mark][name]


def caption(spec):
    return " ".join(spec["title"]["subtitle"]).replace("\u00a0", " ")


def test_axes_say_what_they_are():
    spec = spec_of(study(), title="quick")
    x, y = channel(spec, "point", "x"), channel(spec, "point", "y")
    assert x["scale"]["type"] == "log" and x["title"] == X_TITLE
    assert y["scale"]["zero"] is False and y["title"] == Y_TITLE == "validation loss (nats per token)"
    assert spec["title"]["text"] == "quick" and spec["config"]["background"] == "white"


def test_ticks_say_aspect_ratio_and_layers():
    axis = channel(spec_of(study()), "point", "x")["axis"]
    assert axis["values"] == [3.5, 16.0, 80.0]
    assert '[["3.5", "16L"], ["16", "6L"], ["80", "2L"]]' in axis["labelExpr"]


def test_one_point_for_each_cell_in_the_order_of_the_designs():
    spec = spec_of(study()[::-1])
    assert len(points(spec)) == 9
    assert channel(spec, "point", "color")["scale"]["domain"] == ["preln", "hc", "attnres"]


def test_diverged_cells_are_named_not_drawn_and_lines_do_not_run_over_them():
    rows = [r for r in study() if (r.design, r.n_layers) != ("hc", 6)]
    spec = spec_of([*rows, diverged("hc", (6, 96), step=33)], missing=["hc 16 × 56 seed 1: waiting"])
    assert len(points(spec)) == 8
    assert {"design": "hc", "aspect_ratio": 16.0, "loss": None} in values(spec)
    assert "Diverged, so without a loss: hc 6 × 96 @ 33." in caption(spec) and "Missing: 1 of 10 runs." in caption(spec)


def test_error_bars_only_with_seeds():
    assert "errorbar" not in [layer["mark"]["type"] for layer in spec_of(study())["layer"]]
    spec = spec_of(seeds(study()))
    assert "errorbar" in [layer["mark"]["type"] for layer in spec["layer"]]
    point = points(spec)[0]
    assert point["high"] - point["loss"] == pytest.approx(0.004 / 2**0.5) == pytest.approx(point["loss"] - point["low"])
    assert "Mean over 2 seeds" in caption(spec) and "One seed" in caption(spec_of(study()))


def test_dashes_only_among_many():
    many = {f"design_{i}": (1.5, 1.4, 1.3) for i in range(6)}
    assert len({tuple(dash) for dash in channel(spec_of(study(many)), "line", "strokeDash")["scale"]["range"]}) > 1
    assert len({tuple(dash) for dash in channel(spec_of(study()), "line", "strokeDash")["scale"]["range"]}) == 1


def test_tooltip_and_legend_selection():
    spec = spec_of(study())
    shown = {item["field"] for item in channel(spec, "point", "tooltip")}
    assert shown >= {"design", "shape", "loss", "bits_per_byte", "total", "learning_rate", "seeds", "tokens_per_second"}
    assert shown <= set(points(spec)[0])
    (selection,) = spec["params"]
    assert selection["bind"] == "legend" and selection["select"]["fields"] == ["design"]


def test_a_name_cannot_leave_its_place_in_the_page():
    spec = spec_of([*study(), row(NASTY)], title=NASTY)
    page = html_page(spec, "/* library */")
    assert page.count("<script>") == page.count("</script>") == 2
    assert "<img" not in page and page.count("&lt;img") == 1
    embedded = json.loads(re.search(r'vegaEmbed\("#chart", (\{.*\}), \{"renderer"', page)[1])
    assert embedded == spec and plain(NASTY) in {point["design"] for point in points(embedded)}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("chart")
    summary = aggregate(one_table([*seeds(study()), row(NASTY), diverged("moda")], "here"))
    return save(loss_chart(summary, ["moda: waiting"], "study"), folder)


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
