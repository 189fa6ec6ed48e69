"""How a run is executed: device, threads, micro-batches, compilation, checkpoint schedule. Nothing here changes what is computed
beyond rounding, so none of it is part of a cell's identity; it is recorded with the run.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from depthbench.errors import UserError
from depthbench.model.transformer import Block, Transformer

WHOLE_BLOCK_KINDS = 2  # dynamo keeps 8 compiled variants, and training, validation and short batches each need one a kind


@dataclass(frozen=True)
class Execution:
    """`micro_batch_size` is in sequences, 0 for the whole batch at once. `fused`: fused AdamW, None where it is available.
    `checkpoint_steps` and `checkpoint_seconds`: save when either has passed, 0 for never. `processes` share a run, spread evenly
    over `nodes`, by `parallel`: "ddp" or "fsdp". `layer_statistics`: watch the layers every so many updates, 0 for never.
    """

    device: str = "cpu"
    threads: int = 1
    micro_batch_size: int = 0
    compile: bool = False
    fused: bool | None = None
    checkpoint_steps: int = 0
    checkpoint_seconds: float = 30.0
    processes: int = 1
    nodes: int = 1
    parallel: str = "ddp"
    layer_statistics: int = 0

    def __post_init__(self) -> None:
        lowest = {"threads": 1, "processes": 1, "nodes": 1}
        for name in ("micro_batch_size", "checkpoint_steps", "checkpoint_seconds", "layer_statistics"):
            lowest[name] = 0
        for name, low in lowest.items():
            if not getattr(self, name) >= low:
                raise UserError(f"{name} must be at least {low}, got {getattr(self, name)}")
        if self.parallel not in ("ddp", "fsdp"):
            raise UserError(f"parallel must be 'ddp' or 'fsdp', got {self.parallel!r}")
        if self.processes > 1 and self.device not in ("cpu", "cuda"):
            raise UserError(
                f"device {self.device!r} cannot be shared by {self.processes} processes; use cuda (one GPU each) or cpu"
            )
        if self.processes % self.nodes:
            raise UserError(
                f"{self.processes} processes do not spread evenly over {self.nodes} nodes; give a multiple of {self.nodes}"
            )


def find_device(name: str) -> torch.device:
    """The device called `name`: cpu, cuda, cuda:1, mps. Raises `UserError` if this machine or build lacks it."""
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"unknown device {name!r}; valid: cpu, cuda, cuda:N, mps") from None
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise UserError(f"--device {name}: this PyTorch ({torch.__version__}) sees no CUDA device; use --device cpu")
        if device.index is not None and device.index >= torch.cuda.device_count():
            raise UserError(f"--device {name}: there are {torch.cuda.device_count()} CUDA devices, numbered from 0")
    elif device.type == "mps":
        if not torch.backends.mps.is_available():
            raise UserError("--device mps: this machine or PyTorch build has no Metal device; use --device cpu")
    elif device.type != "cpu":
        raise UserError(f"unknown device {name!r}; valid: cpu, cuda, cuda:N, mps")
    return device


def compile_model(model: Transformer, backend: str = "inductor", whole_blocks: bool = True) -> None:
    """Compile in place, part by part: the parts are alike in every block, so each is compiled once whatever the depth.

    Whole blocks are compiled where they are alike. Where a block differs from the one before, in a state that grows (`attnres`,
    `moda`) or in a number that its links carry (`lns`), every layer would be compiled anew until dynamo gives up, so there the
    sublayers alone are compiled, and everywhere without `whole_blocks`.
    """
    blocks = [block for block in model.blocks if isinstance(block, Block)]
    alike = whole_blocks and not model.residual.state_grows and len({_constants(block) for block in blocks}) <= WHOLE_BLOCK_KINDS
    for block in blocks:
        for part in (block,) if alike else (block.attention, block.mlp):
            part.compile(backend=backend, dynamic=False)


def _constants(block: Block) -> tuple[tuple[str, str, object], ...]:
    """The plain numbers and words that a block's modules carry, which compiled code has built in."""
    return tuple(
        (name, key, value)
        for name, module in block.named_modules()
        for key, value in vars(module).items()
        if isinstance(value, int | float | str)
    )
