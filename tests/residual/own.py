"""Designs of one's own for the tests: a sound one as text, with lines put in or methods taken out (`del read`)."""

from pathlib import Path

import pytest

from depthbench import UserError

EXAMPLE = Path(__file__).parents[2] / "examples" / "gated_residual.py"
GATED = f"{EXAMPLE}:GatedResidual"

SOUND = """
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple
import numpy, torch
from torch import nn
from depthbench import Link, Residual, RMSNorm
{top}
class Wire(Link):
    def __init__(self, design, i):
        super().__init__()
        self.norm = RMSNorm(design.shape.d_model)
        self.setup(design, i)
    def setup(self, design, i): pass
    def read(self, state): return self.norm(state)
    def write(self, state, y): return state + y
    {link}
class Mine(Residual):
    def link(self, i): return Wire(self, i)
    {design}
"""

# Lines that give the state another form.
PAIR = {
    "link": """
    def read(self, s): return self.norm(s[0])
    def write(self, s, y): return s[0] + s[1] + y, 0.5 * s[1] + y""",
    "design": """
    def open(self, x): return x, torch.zeros_like(x)
    def close(self, s): return s[0]
    def state_elements(self): return 2 * self.shape.d_model""",
}
NAMED = {
    "top": """
class Both(NamedTuple):
    x: Any
    first: Any""",
    "link": """
    def read(self, s): return self.norm(s.x)
    def write(self, s, y): return s._replace(x=s.x + y + 0.1 * s.first)""",
    "design": """
    def open(self, x): return Both(x, x)
    def close(self, s): return s.x
    def state_elements(self): return 2 * self.shape.d_model""",
}
DICTIONARY = {
    "link": """
    def read(self, s): return self.norm(s["x"])
    def write(self, s, y): return {"x": s["x"] + y, "outs": [*s["outs"], y]}""",
    "design": """
    state_grows = True
    def open(self, x): return {"outs": [], "x": x}
    def close(self, s): return s["x"] + sum(s["outs"]) / len(s["outs"])
    def state_elements(self): return (1 + self.shape.n_sublayers) * self.shape.d_model""",
}


def own_design(folder, *, top="", link="", design="", file="mine.py"):
    """Write the sound design with these lines added, and return its name for the command line."""
    path = folder / file
    path.write_text(SOUND.format(top=top, link=link, design=design))
    return f"{path}:Mine"


def refusal(call, *arguments, **options):
    """The one line of a refusal."""
    with pytest.raises(UserError) as caught:
        call(*arguments, **options)
    (line,) = str(caught.value).splitlines()
    return line
