"""Runs the command line in forked children, one after another: torch is imported once, and each child can be killed.

Standard input gives an order a line, as JSON: `arguments` of the command, and `die`, null or a moment of saving at which the child
kills itself. Standard output answers with the child's process id, then with its exit code (minus the signal that ended it).
"""

import json
import os
import signal
import sys
from pathlib import Path

import torch
import torch._dynamo  # what the first update of an optimizer would import

from depthbench.cli import main, train_verb  # noqa: F401 (the verb is imported here for all children)
from depthbench.train import checkpoint


def die(*_) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_while_saving(moment: str) -> None:
    """Die at the second checkpoint: with half of it written, before its renaming, after it, or before the oldest is dropped."""
    saved = []
    real = checkpoint.save_file

    def save_file(tensors, path, metadata):
        saved.append(path)
        real(tensors, path, metadata)
        if len(saved) == 3:
            if moment == "half":
                Path(path).write_bytes(Path(path).read_bytes()[: Path(path).stat().st_size // 2])
                die()
            elif moment == "unrenamed":
                os.replace = die
            elif moment == "renamed":
                Path.unlink = die

    checkpoint.save_file = save_file


torch.set_num_threads(1)
for line in sys.stdin:
    order = json.loads(line)
    child = os.fork()
    if child == 0:
        os.nice(5)  # whoever watches for the moment to kill it comes first
        if order["die"]:
            die_while_saving(order["die"])
        with open(os.devnull, "w") as sys.stdout:
            os._exit(main(order["arguments"]))
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
