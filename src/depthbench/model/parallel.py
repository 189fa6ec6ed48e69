"""How processes share one run: alone, by DDP, or by FSDP2. The training loop asks, and does not know which it is.

Every process has the same model and is given some rows of every batch. The loss is the mean over the tokens of the whole batch,
however the rows are dealt out: each process sums over its own tokens and divides by all of them, and what backends average is
scaled back. Rank 0 *leads*: it alone hears requests, looks at the clock, and writes; the others follow its word.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor, nn

from depthbench.errors import UserError
from depthbench.model.transformer import Block, Transformer

PATIENCE = timedelta(minutes=30)  # how long a process waits for the others: a checkpoint of a large model on a slow disk, say


class Alone:
    """One process: nothing is shared, and nothing is computed otherwise than without this class."""

    rank = 0
    size = 1
    leads = True
    compiles_blocks = True  # whether whole blocks may be compiled

    def begin(self) -> None:
        """The leader is about to train; the others are called."""

    def device(self, device: torch.device) -> torch.device:
        """This process's own device."""
        return device

    def wrap(self, model: Transformer) -> nn.Module:
        """What to call in training instead of `model`, whose parameters may be replaced by shards; make the optimizer after it."""
        return model

    def rows(self, batch_size: int) -> range:
        """The rows of a batch that are this process's."""
        return range(batch_size)

    def micro_batches(self, batch_size: int, micro: int) -> Iterator[tuple[slice, float]]:
        """Its rows, at most `micro` at a time, each with the weight of its loss: 0 for rows that only keep step with the others."""
        for start in range(0, batch_size, micro):
            yield slice(start, min(start + micro, batch_size)), 1.0

    def accumulates(self, last: bool) -> AbstractContextManager[None]:
        """The context of a micro-batch's forward and backward pass; gradients are shared in the `last`."""
        return nullcontext()

    def total(self, value: Tensor | float) -> Tensor | float:
        """The sum over processes."""
        return value

    def clip(self, model: nn.Module, limit: float) -> float:
        """Clip the gradients to a total norm of `limit`. Returns the norm before it."""
        return float(torch.nn.utils.clip_grad_norm_(model.parameters(), limit))

    def decide(self, *decisions: bool) -> tuple[bool, ...]:
        """What the leader decides; the values of the others do not count."""
        return decisions

    def word(self, value: Any) -> Any:
        """What the leader says."""
        return value

    def whole(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The tensors unsharded, for the leader; to be called by all."""
        return dict(tensors)

    def shard(self, tensors: Mapping[str, Tensor], like: nn.Module) -> dict[str, Tensor]:
        """Whole tensors, named after the parameters of `like` with a prefix and perhaps a suffix, as this process holds them."""
        return dict(tensors)

    def deal(self, batches: Iterator[Any]) -> Iterator[tuple[Any, float]]:
        """Batches of an evaluation for this process, with their weight; all processes get as many."""
        for batch in batches:
            yield batch, 1.0


ALONE = Alone()


class Together(Alone):
    """Several processes; DDP: each has the whole model, and gradients are averaged while the backward pass runs."""

    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.leads = self.rank == 0
        self.begun = False
        self.wrapped: nn.Module | None = None

    def begin(self) -> None:
        """Call the others; see `is_called`."""
        if self.leads and not self.begun:
            self.begun = True
            self.word(True)

    def end(self) -> None:
        """The leader does not train (any more): followers that wait to be called may go."""
        if self.leads and not self.begun:
            self.word(False)

    def is_called(self) -> bool:
        """Wait, as a follower, until the leader trains (True) or does not (False)."""
        return bool(self.word(None))

    def device(self, device: torch.device) -> torch.device:
        """A GPU for each process of a machine."""
        if device.type != "cuda":
            return device
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))

    def wrap(self, model: Transformer) -> nn.Module:
        """The model in `DistributedDataParallel`."""
        on_gpu = next(model.parameters()).device.type == "cuda"
        self.wrapped = nn.parallel.DistributedDataParallel(
            model,
            device_ids=[torch.cuda.current_device()] if on_gpu else None,
            broadcast_buffers=False,
            gradient_as_bucket_view=True,
            find_unused_parameters=not _uses_all_parameters(model),
        )
        return self.wrapped

    def rows(self, batch_size: int) -> range:
        """As equal as can be: the first processes have a row more where they do not divide."""
        if batch_size < self.size:
            raise UserError(f"{self.size} processes cannot share a batch of {batch_size} sequences; use fewer, or a larger batch")
        share, more = divmod(batch_size, self.size)
        start = self.rank * share + min(self.rank, more)
        return range(start, start + share + (self.rank < more))

    def micro_batches(self, batch_size: int, micro: int) -> Iterator[tuple[slice, float]]:
        """As many for every process, since each forward pass may be a common one."""
        own = self.rows(batch_size)
        most = -(-batch_size // self.size)
        for start in range(own.start, own.start + most, micro):
            found = slice(min(start, own.stop), min(start + micro, own.stop))
            if found.start < found.stop:
                yield found, float(self.size)  # backends average over processes
            else:
                yield slice(own.start, own.start + 1), 0.0

    def accumulates(self, last: bool) -> AbstractContextManager[None]:
        """Gradients travel once an update."""
        wrapped: Any = self.wrapped
        return nullcontext() if last else wrapped.no_sync()

    def total(self, value: Tensor | float) -> Tensor | float:
        """By all-reduce."""
        summed = value.clone() if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64, device=self._own_device())
        dist.all_reduce(summed)
        return summed if isinstance(value, Tensor) else float(summed)

    def decide(self, *decisions: bool) -> tuple[bool, ...]:
        """By broadcast."""
        said = torch.tensor(decisions, dtype=torch.uint8, device=self._own_device())
        dist.broadcast(said, src=0)
        return tuple(bool(item) for item in said.tolist())

    def word(self, value: Any) -> Any:
        """By broadcast of any picklable object."""
        box = [value]
        dist.broadcast_object_list(box, src=0, device=self._own_device())
        return box[0]

    def deal(self, batches: Iterator[Any]) -> Iterator[tuple[Any, float]]:
        """In turns; who has none at the end repeats one that does not count."""
        turn: list[Any] = []
        for batch in batches:
            turn.append(batch)
            if len(turn) == self.size:
                yield turn[self.rank], 1.0
                turn = []
        if turn:
            yield (turn[self.rank], 1.0) if self.rank < len(turn) else (turn[0], 0.0)

    def _own_device(self) -> torch.device:
        return torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else torch.device("cpu")


class Sharded(Together):
    """FSDP2: parameters, gradients and optimizer state are sharded over the processes, block by block.

    A block can be gathered for its backward pass only if the backend finds the tensors of the state that it returns; where a
    design's state is an object of its own, attention and feed-forward are gathered one by one.

    The design's own parameters stay whole in every process, and their gradients are averaged after the backward pass: they are
    few, they may be read outside their block (`attnres` opens with the queries of all), and scalars cannot be sharded at all.
    """

    compiles_blocks = False  # the sublayers are compiled; the gathering around a block stays outside

    def wrap(self, model: Transformer) -> nn.Module:
        """The model itself, its parameters replaced by shards."""
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

        mesh = init_device_mesh(next(model.parameters()).device.type, (self.size,))
        plain = _has_plain_state(model)
        for block in model.blocks:
            assert isinstance(block, Block)
            for unit in (block,) if plain else (block.attention, block.mlp):
                fully_shard(unit, mesh=mesh, ignored_params={*block.attention_link.parameters(), *block.mlp_link.parameters()})
            if not plain:
                for name in ("heads", "attend"):  # a design may take attention apart
                    register_fsdp_forward_method(block.attention, name)
        own = {p for name, p in model.named_parameters() if name.startswith("residual.") or "_link." in name}
        self.whole_ones = [parameter for parameter in model.parameters() if parameter in own]  # in an order that all share
        fully_shard(model, mesh=mesh, reshard_after_forward=False, ignored_params=own)
        self.wrapped = model
        return model

    @contextmanager
    def accumulates(self, last: bool) -> Iterator[None]:
        """Gradients are reduced and scattered once an update."""
        wrapped: Any = self.wrapped
        wrapped.set_requires_gradient_sync(last)
        yield
        used = [parameter.grad for parameter in self.whole_ones if parameter.grad is not None]
        if last and used:
            together = torch.cat([gradient.flatten() for gradient in used]) / self.size
            dist.all_reduce(together)
            means = torch.split(together, [gradient.numel() for gradient in used])
            for gradient, mean in zip(used, means, strict=True):
                gradient.copy_(mean.view_as(gradient))

    def clip(self, model: nn.Module, limit: float) -> float:
        """One norm over shards and whole ones."""
        sharded = [p for p in model.parameters() if is_shard(p)]
        norms = []
        for parameters in (sharded, self.whole_ones):
            gradients = [p.grad for p in parameters if p.grad is not None]
            if gradients:
                norm = torch.nn.utils.get_total_norm(gradients)
                norms.append(_whole(norm))
        total = torch.linalg.vector_norm(torch.stack(norms))
        for parameters in (sharded, self.whole_ones):
            if parameters:
                torch.nn.utils.clip_grads_with_norm_(parameters, limit, total)
        return float(total)

    def whole(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Gathered one by one; only the leader keeps them, on the CPU."""
        found = {}
        for name, tensor in tensors.items():
            full = _whole(tensor.detach())
            if self.leads:
                found[name] = full.cpu()
        return found

    def shard(self, tensors: Mapping[str, Tensor], like: nn.Module) -> dict[str, Tensor]:
        """Every process has read the whole, and keeps its part."""
        from torch.distributed.tensor import distribute_tensor

        parameters: dict[str, Any] = dict(like.named_parameters())
        found = dict(tensors)
        for name, tensor in tensors.items():
            parameter = parameters[_parameter_of(name, parameters)]
            if is_shard(parameter) and tensor.shape == parameter.shape:
                there = tensor.to(parameter.device)
                found[name] = distribute_tensor(there, parameter.device_mesh, parameter.placements, src_data_rank=None)
        return found


def is_shard(tensor: Tensor) -> bool:
    """Whether a tensor is a `DTensor`; asked so, since importing that class takes a second that few runs need."""
    return hasattr(tensor, "full_tensor")


def _whole(tensor: Any) -> Tensor:
    whole: Tensor = tensor.full_tensor() if is_shard(tensor) else tensor
    return whole


def _parameter_of(name: str, parameters: Mapping[str, Any]) -> str:
    """`model/NAME` or `optimizer/NAME/KEY` to NAME."""
    inner = name.partition("/")[2]
    return inner if inner in parameters else inner.rpartition("/")[0]


def _has_plain_state(model: Transformer) -> bool:
    """Whether the design's state, in training, is tensors in tuples, lists and dictionaries."""
    like = model.embedding.weight[:1].detach().requires_grad_()
    return _is_plain(model.residual.open(like[None]))


def _is_plain(state: Any) -> bool:
    if isinstance(state, dict):
        return all(map(_is_plain, state.values()))
    if isinstance(state, tuple | list):
        return all(map(_is_plain, state))
    return state is None or isinstance(state, Tensor | bool | int | float | str)


def _uses_all_parameters(model: Transformer) -> bool:
    """Whether every parameter of the model takes part in its output: DDP waits for the gradient of each, unless told otherwise."""
    device = next(model.parameters()).device
    model(torch.zeros(1, 2, dtype=torch.long, device=device)).sum().backward()
    used = all(parameter.grad is not None for parameter in model.parameters())
    model.zero_grad(set_to_none=True)
    return used


WAYS: Mapping[str, type[Together]] = {"ddp": Together, "fsdp": Sharded}


@contextmanager
def joined(way: str, device: str) -> Iterator[Together]:
    """This process as one of those that torchrun started, until the end of the context."""
    backend = "nccl" if device.startswith("cuda") else "gloo"
    if backend == "nccl":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group(backend, timeout=PATIENCE)
    try:
        yield WAYS[way]()
    finally:
        dist.destroy_process_group()


def leave() -> NoReturn:
    """End this process here and now, with success. By the usual way out it would wait for processes that may wait for it; and what
    refers to a process group (DDP, a mesh) keeps its threads alive beyond `destroy_process_group`, which aborts a process that
    is being taken down now and then.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def lost_peer(error: BaseException) -> bool:
    """Whether an error says that another process is gone."""
    words: Sequence[str] = ("closed by peer", "reset by peer", "Broken pipe", "Socket Timeout", "NCCL", "remote process")
    return isinstance(error, RuntimeError) and any(word in str(error) for word in words)
