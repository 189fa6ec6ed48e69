"""Designs of one's own for the tests: a sound one as text, with lines put in or methods taken out (`del read`)."""

from pathlib import Path

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


def own_design(folder, *, top="", link="", design="", file="mine.py"):
    """Write the sound design with these lines added, and return its name for the command line."""
    path = folder / file
    path.write_text(SOUND.format(top=top, link=link, design=design))
    return f"{path}:Mine"
