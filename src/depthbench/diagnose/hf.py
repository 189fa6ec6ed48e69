"""Hugging Face decoder checkpoints as subjects: their own blocks, called by us one at a time, with what the model hands them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from depthbench.diagnose.hf_families import Family, find_family
from depthbench.diagnose.subject import Passes, Place, Subject, exchange_data
from depthbench.errors import UserError
from depthbench.hf.hub import shown_name
from depthbench.hf.reading import import_transformers, read_config, read_model
from depthbench.model.precision import at_least_fp32, full_precision
from depthbench.model.weights_hash import hash_weights

PROOF_ROWS, PROOF_TOKENS = 2, 16
PROOF_TOLERANCE = 1e-4  # of the largest logit


class _Reached(Exception):
    """A pass has come to where it is stopped."""


class HFSubject(Subject):
    """A causal decoder of transformers. `family` says where its parts are.

    Raises `UserError` if going through the blocks one by one does not give the model's own logits.
    """

    def __init__(self, model: Any, family: Family, name: str, device: str = "cpu", precision: str = "fp32") -> None:
        self.device, self.precision, self.name = torch.device(device), precision, name
        dtype = torch.float64 if precision == "fp64" else torch.float32
        self.model = model.to(self.device, dtype).eval()
        config = model.config
        self.family, self.design = family, str(config.model_type)
        self.blocks: list[nn.Module] = list(model.get_submodule(family.blocks))
        self.norm, self.head = model.get_submodule(family.norm), model.get_submodule(family.head)
        self.softcap = getattr(config, family.softcap, None) if family.softcap else None
        self.depth, self.vocab_size = len(self.blocks), int(config.vocab_size)
        self.context = int(config.max_position_embeddings)
        self._handed: dict[int, list[tuple[tuple[Any, ...], dict[str, Any]]]] = {}
        self._prove()

    def passes(self, windows: Tensor) -> HFPasses:
        """See `Subject`."""
        return HFPasses(self, windows)

    def weights_sha256(self) -> str:
        """See `Subject`."""
        return hash_weights(self.model)

    def touched(self, block: int) -> frozenset[int]:
        """See `Subject`."""
        return frozenset({block})

    def exchange(self, i: int, j: int) -> None:
        """See `Subject`; what is no tensor, such as the kind of attention of a layer, stays in its place."""
        ours, theirs = self.blocks[i].state_dict(keep_vars=True), self.blocks[j].state_dict(keep_vars=True)
        exchange_data(ours, theirs)

    def handed(self, windows: Tensor) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
        """What each block gets beside the hidden state: masks and positions, of one row, for windows of this length."""
        length = windows.shape[1]
        if length not in self._handed:
            found: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

            def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
                found.append((args[1:], {key: value for key, value in kwargs.items() if key != "hidden_states"}))

            hooks = [block.register_forward_pre_hook(note, with_kwargs=True) for block in self.blocks]
            try:
                self.model(input_ids=windows[:1], use_cache=False)
            finally:
                for hook in hooks:
                    hook.remove()
            self._handed = {length: found}
        return self._handed[length]

    def embedded(self, windows: Tensor) -> Tensor:
        """What the first block reads, `[B, T, d]`."""
        found: list[Tensor] = []

        def stop(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            found.append(args[0] if args else kwargs["hidden_states"])
            raise _Reached

        hook = self.blocks[0].register_forward_pre_hook(stop, with_kwargs=True)
        try:
            self.model(input_ids=windows, use_cache=False)
        except _Reached:
            pass
        finally:
            hook.remove()
        return found[0]

    def _prove(self) -> None:
        generator = torch.Generator().manual_seed(0)
        size = (PROOF_ROWS, min(PROOF_TOKENS, self.context))
        windows = torch.randint(self.vocab_size, size, generator=generator).to(self.device)
        with torch.no_grad():
            passes = self.begin(windows)
            ours = passes.logits(passes.end(passes.places[-1])).float()
            theirs = self.model(input_ids=windows, use_cache=False).logits.float()
        off = float((ours - theirs).abs().max() / theirs.abs().max().clamp_min(1e-30))
        if not off <= PROOF_TOLERANCE:
            raise UserError(
                f"going through the blocks of {self.name} one by one gives logits that differ from its own by {off:.1e} of the"
                f" largest, so its family {self.design!r} is not what the adapter takes it for"
            )


class HFPasses(Passes):
    """Passes through a decoder of transformers."""

    def __init__(self, subject: HFSubject, windows: Tensor) -> None:
        self.subject: HFSubject = subject
        self.windows = windows
        self.handed = subject.handed(windows)
        self.places = [Place(at_least_fp32(subject.embedded(windows)))]
        self._check_finite(-1)
        for block in range(subject.depth):
            self.places.append(self.through(block, self.places[-1]))
            self._check_finite(block)

    def through(self, block: int, place: Place) -> Place:
        """See `Passes`."""
        args, kwargs = self.handed[block]
        out = self.subject.blocks[block](place.state, *args, **kwargs)
        return Place(at_least_fp32(out[0] if isinstance(out, tuple) else out))

    def skipping(self, block: int, rule: str) -> Place:
        """See `Passes`."""
        return self.places[block]

    def replaced(self, block: int, z: Tensor) -> Place:
        """See `Passes`."""
        return Place(z)

    def raw_depth_state(self, block: int, place: Place) -> Tensor:
        """See `Passes`."""
        state: Tensor = place.state
        return state

    def early_exit(self, block: int, place: Place) -> Tensor:
        """See `Passes`."""
        state: Tensor = place.state
        return state

    def logits(self, hidden: Tensor) -> Tensor:
        """See `Passes`."""
        with full_precision(hidden):
            normed = self.subject.norm(hidden)
        found: Tensor = self.subject.head(normed)
        cap = self.subject.softcap
        return found if cap is None else torch.tanh(found / cap) * cap


def open_checkpoint(name: str, *, device: str, precision: str, allow_pickle: bool) -> tuple[HFSubject, Any]:
    """A checkpoint in a folder or on the hub as a subject, and its configuration.

    Raises `UserError` for a family without an adapter, and for what `read_config` and `read_model` refuse.
    """
    config = read_config(name)
    family = find_family(config.model_type, name)
    return HFSubject(read_model(name, allow_pickle), family, shown_name(name), device, precision), config


def untrained_checkpoint(config: Any, subject: HFSubject, seed: int) -> HFSubject:
    """The same architecture with its family's initial weights."""
    transformers = import_transformers()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    return HFSubject(model, subject.family, f"untrained {subject.name}", str(subject.device), subject.precision)
