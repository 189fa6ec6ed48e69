"""The command line: verbs only. `depthbench --help` lists them."""

from depthbench.cli.main import main

__all__ = ["main"]
