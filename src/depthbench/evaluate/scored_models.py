"""What can be scored: our trained runs with the tokenizer of their data, and Hugging Face checkpoints with their own."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from depthbench.data.tokenizer import InexactError, Tokenizer
from depthbench.errors import UserError
from depthbench.model.precision import autocast
from depthbench.model.transformer import Transformer


class ScoredRun:
    """A `Transformer` and its tokenizer, put on `device` in evaluation mode; `precision` is fp32 or bf16 (autocast).

    Raises `UserError` if the tokenizer has more ids than the model.
    """

    def __init__(
        self, model: Transformer, tokenizer: Tokenizer, name: str = "the model", device: str = "cpu", precision: str = "fp32"
    ) -> None:
        self.name, self.precision, self.device = name, precision, torch.device(device)
        self.model, self.tokenizer = model.to(self.device).eval(), tokenizer
        self.context, self.vocab_size, self.eos = model.shape.context, model.shape.vocab_size, tokenizer.eos
        if tokenizer.vocab_size > self.vocab_size:
            raise UserError(
                f"{name} has a vocabulary of {self.vocab_size}, and the tokenizer {tokenizer.name} gives ids up to"
                f" {tokenizer.vocab_size - 1}; give --data made with the tokenizer that it was trained with"
            )

    def encode(self, text: str) -> NDArray[np.int64]:
        """See `Scored`."""
        try:
            return self.tokenizer.encode(text).astype(np.int64)
        except InexactError as error:
            raise UserError(str(error)) from error

    def hidden(self, tokens_BT: Tensor) -> Tensor:
        """See `Scored`."""
        with torch.no_grad(), autocast(self.device, self.precision):
            return self.model.hidden(tokens_BT)

    def logits(self, hidden_ND: Tensor) -> Tensor:
        """See `Scored`."""
        with torch.no_grad(), autocast(self.device, self.precision):
            found: Tensor = self.model.head(self.model.norm(hidden_ND))
            return found


class ScoredCheckpoint:
    """A causal decoder of transformers with its own tokenizer.

    Its head reads the last hidden state at the positions that are scored alone. Where that does not give the model's own logits
    (some families scale or cap them), logits are made at all positions.
    """

    def __init__(self, model: Any, tokenizer: Any, name: str, device: str = "cpu", precision: str = "fp32") -> None:
        self.name, self.precision, self.device = name, precision, torch.device(device)
        self.model, self.tokenizer = model.to(self.device, torch.float32).eval(), tokenizer
        self.context = int(model.config.max_position_embeddings)
        self.vocab_size = int(model.config.vocab_size)
        end = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
        self.eos = int(end if end is not None else 0)
        self.head: Any = model.get_output_embeddings()
        self.head = self.head if self._has_plain_head() else None

    def _has_plain_head(self) -> bool:
        tokens = torch.arange(min(8, self.vocab_size), device=self.device)[None]
        with torch.no_grad():
            ours = self.head(self.model.base_model(input_ids=tokens, use_cache=False).last_hidden_state)
            theirs = self.model(input_ids=tokens, use_cache=False).logits
        return bool(torch.allclose(ours, theirs, rtol=1e-5, atol=1e-6))

    def encode(self, text: str) -> NDArray[np.int64]:
        """See `Scored`."""
        ids = np.asarray(self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"], dtype=np.int64)
        if ids.size and int(ids.max()) >= self.vocab_size:
            raise UserError(
                f"the tokenizer of {self.name} gives the id {int(ids.max())}, and the model has a vocabulary of"
                f" {self.vocab_size}; its tokenizer does not match it"
            )
        return ids

    def hidden(self, tokens_BT: Tensor) -> Tensor:
        """See `Scored`; the logits, where the head alone does not make them."""
        with torch.no_grad(), autocast(self.device, self.precision):
            if self.head is None:
                logits: Tensor = self.model(input_ids=tokens_BT, use_cache=False).logits
                return logits
            hidden: Tensor = self.model.base_model(input_ids=tokens_BT, use_cache=False).last_hidden_state
            return hidden

    def logits(self, hidden_ND: Tensor) -> Tensor:
        """See `Scored`."""
        if self.head is None:
            return hidden_ND
        with torch.no_grad(), autocast(self.device, self.precision):
            found: Tensor = self.head(hidden_ND)
            return found
