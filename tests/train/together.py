"""What each of two processes runs, started by torchrun: the runs named on the command line, one after another in one process group.

python -m torch.distributed.run … together.py TOKENS OUT '[{"name": …, "design": …, "way": …, …}, …]'
"""

import json
import sys
from dataclasses import replace
from pathlib import Path

import torch

from depthbench.data import TokenData
from depthbench.model.parallel import WAYS, joined, leave
from depthbench.train.execution import Execution
from train.runs import RECIPE, training


def main():
    torch.set_num_threads(1)
    data, out = TokenData.open(Path(sys.argv[1])), Path(sys.argv[2])
    with joined("ddp", "cpu"):
        for run in json.loads(sys.argv[3]):
            sharing = WAYS[run["way"]]()
            if sharing.leads or sharing.is_called():
                outcome = training(
                    out / run["name"],
                    data,
                    run["design"],
                    recipe=replace(RECIPE, **run.get("recipe", {})),
                    execution=Execution(**run.get("execution", {})),
                    sharing=sharing,
                ).run()
                if sharing.leads:
                    found = {"status": outcome.status, "step": outcome.step}
                    found["loss"] = outcome.validation.loss if outcome.validation else None
                    (out / run["name"] / "outcome.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
    leave()
