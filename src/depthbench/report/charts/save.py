"""One chart specification as interactive HTML, PNG and PDF."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from depthbench import files
from depthbench.report.charts.diagnosis import NAMES as DIAGNOSIS_NAMES
from depthbench.report.embed import html_page

if TYPE_CHECKING:
    import altair as alt

SHARPNESS = 3  # pixels of the PNG for each of the chart's
KINDS = ("html", "png", "pdf")
NAMES = (
    "loss_vs_aspect_ratio",
    "loss_vs_learning_rate",
    "depth_gain",
    "loss_vs_parameters",
    "depth_gain_vs_published",
    "loss_vs_published",
    "published_400m",
    "nll_vs_aspect_ratio",
    *DIAGNOSIS_NAMES,
)


def save(charts: Mapping[str, alt.ConcatChart], folder: Path) -> list[Path]:
    """Write every chart to `folder` under its name as self-contained HTML, PNG and PDF, each atomically, and give the paths."""
    import altair as alt
    import vl_convert

    version = ".".join(alt.SCHEMA_VERSION.removeprefix("v").split(".")[:2])
    library = vl_convert.javascript_bundle(vl_version=version)  # type: ignore[call-arg]  # its stub lacks the default
    written = []
    for name, chart in charts.items():
        spec: dict[str, Any] = chart.to_dict()
        html_path, png_path, pdf_path = (folder / f"{name}.{kind}" for kind in KINDS)
        files.write_text(html_path, html_page(spec, library))
        files.write_bytes(png_path, vl_convert.vegalite_to_png(spec, vl_version=version, scale=SHARPNESS))
        files.write_bytes(pdf_path, vl_convert.vegalite_to_pdf(spec, vl_version=version))
        written += [html_path, png_path, pdf_path]
    return written


def remove_others(charts: Collection[str], folder: Path) -> None:
    """Remove from `folder` the charts that a report can have but that are not among `charts`: they would show other runs."""
    for name in set(NAMES) - set(charts):
        for kind in KINDS:
            (folder / f"{name}.{kind}").unlink(missing_ok=True)
