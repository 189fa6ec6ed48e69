"""A chart as a web page that needs no network and trusts no name."""

from __future__ import annotations

import html
import json
from typing import Any

PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; img-src data: blob:">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>body {{ background: white; font: 14px Helvetica, Arial, sans-serif; margin: 1em }}</style>
<script>{library}</script>
</head>
<body>
<div id="chart"></div>
<p>Click a design in the legend to single it out, shift-click to add another, double-click to see all again.
Point at a marker for its numbers.</p>
<script>
vegaEmbed("#chart", {spec}, {options}).catch(error => {{ document.getElementById("chart").textContent = String(error); }});
</script>
</body>
</html>
"""


def html_page(spec: dict[str, Any], library: str) -> str:
    """A page that shows `spec` with the JavaScript in `library`, and is forbidden to load anything from anywhere.

    Every `<` of the specification is written as an escape, so that no name in it can end the script.
    """
    options = {"renderer": "svg", "actions": {"export": True, "source": False, "compiled": False, "editor": False}}
    content = json.dumps(spec, allow_nan=False).replace("<", "\\u003c")
    title = html.escape(spec["title"]["text"])
    return PAGE.format(title=title, library=library, spec=content, options=json.dumps(options))
