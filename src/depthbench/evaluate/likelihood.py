"""Teacher-forced likelihood: the negative log-likelihood of a target given its prompt, in nats, over the target's tokens alone.

Where a target begins in the tokens is decided as by lm-evaluation-harness: white space at the end of the prompt goes to the target,
both are encoded together, and the target is what comes after as many tokens as the prompt alone has. An empty prompt becomes the
EOS, which ends the document before.

A target is predicted from at most the context's tokens: the prompt loses tokens on its left, which are counted. A target that is
longer than the context is scored in consecutive pieces of the context, each token once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from depthbench.evaluate.task_files import Document

CHUNK_LOGITS = 2**24  # held at once in fp32


class Scored(Protocol):
    """A model as likelihoods need it.

    Attributes:
        name: for people.
        context: how many tokens it predicts from at most.
        vocab_size: token ids lie below it.
        eos: the id that ends a document.
        device: where it computes.
    """

    name: str
    context: int
    vocab_size: int
    eos: int
    device: torch.device

    def encode(self, text: str) -> NDArray[np.int64]:
        """The ids of `text`, without any that begin or end a document."""
        ...

    def hidden(self, tokens_BT: Tensor) -> Tensor:
        """What the head (or the norm before it) reads at every position, `[B, T, d]`."""
        ...

    def logits(self, hidden_ND: Tensor) -> Tensor:
        """`[N, V]` of some positions."""
        ...


@dataclass(frozen=True)
class Encoded:
    """A document in tokens. `text_bytes`: UTF-8 bytes of the target, with the white space that came to it."""

    prompt: NDArray[np.int64]
    target: NDArray[np.int64]
    text_bytes: int


@dataclass(frozen=True)
class Piece:
    """`tokens` of document `document`, the last `scored` of which are predicted."""

    document: int
    tokens: NDArray[np.int64]
    scored: int


@dataclass(frozen=True)
class Score:
    """Of one document: `nll` in nats over `tokens` scored tokens of `bytes` UTF-8 bytes; `cut` tokens of the prompt did not fit in
    the context, and the target took `pieces` passes. `greedy`: every token of the target is the likeliest one.
    """

    nll: float
    tokens: int
    bytes: int
    cut: int
    pieces: int
    greedy: bool


def encode(document: Document, model: Scored) -> Encoded:
    """The document in tokens, by the rule above."""
    kept = document.prompt.rstrip()
    target = document.prompt[len(kept) :] + document.target
    if not kept:
        return Encoded(np.array([model.eos], dtype=np.int64), model.encode(target), len(target.encode()))
    prompt = model.encode(kept)
    whole = model.encode(kept + target)
    return Encoded(whole[: len(prompt)], whole[len(prompt) :], len(target.encode()))


def pieces(number: int, encoded: Encoded, context: int) -> list[Piece]:
    """What has to be computed for document `number`."""
    whole = np.concatenate((encoded.prompt, encoded.target))
    found = []
    for start in range(0, len(encoded.target), context):
        scored = min(context, len(encoded.target) - start)
        end = len(encoded.prompt) + start + scored
        found.append(Piece(number, whole[max(0, end - context - 1) : end], scored))
    return found


def score(documents: Sequence[Document], model: Scored, batch_size: int) -> Iterator[tuple[int, Score]]:
    """The score of every document with its number, as they are finished: see `score_encoded`."""
    return score_encoded([encode(document, model) for document in documents], model, batch_size)


def score_encoded(encoded: Sequence[Encoded], model: Scored, batch_size: int) -> Iterator[tuple[int, Score]]:
    """The score of every document with its number: the longest first, `batch_size` passes at a time.

    Documents of nearly one length make a batch, so little is padded; padding comes last, where nothing reads it.
    """
    by_document = [pieces(number, item, model.context) for number, item in enumerate(encoded)]
    longest = [max((len(piece.tokens) for piece in parts), default=0) for parts in by_document]
    order = sorted(range(len(encoded)), key=lambda number: (-longest[number], number))
    queue = [piece for number in order for piece in by_document[number]]
    left = Counter(piece.document for piece in queue)
    sums, greedy = dict.fromkeys(left, 0.0), dict.fromkeys(left, True)
    for number in order:
        if number not in left:  # an empty text
            yield number, Score(0.0, 0, encoded[number].text_bytes, 0, 0, True)
    for start in range(0, len(queue), batch_size):
        batch = queue[start : start + batch_size]
        for piece, (nll, likeliest) in zip(batch, _nll(batch, model), strict=True):
            sums[piece.document] += nll
            greedy[piece.document] &= likeliest
            left[piece.document] -= 1
            if not left[piece.document]:
                item, parts = encoded[piece.document], by_document[piece.document]
                cut = len(item.prompt) - (len(parts[0].tokens) - parts[0].scored)
                size = (len(item.target), item.text_bytes)
                yield piece.document, Score(sums[piece.document], *size, cut, len(parts), greedy[piece.document])


@torch.no_grad()
def _nll(batch: Sequence[Piece], model: Scored) -> list[tuple[float, bool]]:
    """The sum over the scored tokens of each piece, in float64 over fp32 log-probabilities, and whether all are the likeliest."""
    length = max(len(piece.tokens) for piece in batch) - 1
    tokens = np.full((len(batch), length), model.eos, dtype=np.int64)
    rows, columns, targets = [], [], []
    for row, piece in enumerate(batch):
        tokens[row, : len(piece.tokens) - 1] = piece.tokens[:-1]
        columns.append(np.arange(len(piece.tokens) - 1 - piece.scored, len(piece.tokens) - 1))
        rows.append(np.full(piece.scored, row))
        targets.append(piece.tokens[-piece.scored :])
    row_of, column_of = torch.from_numpy(np.concatenate(rows)), torch.from_numpy(np.concatenate(columns))
    wanted = torch.from_numpy(np.concatenate(targets)).to(model.device)
    hidden = model.hidden(torch.from_numpy(tokens).to(model.device))[row_of.to(model.device), column_of.to(model.device)]
    step = max(1, CHUNK_LOGITS // model.vocab_size)
    found, others = [], []
    for part, due in zip(torch.split(hidden, step), torch.split(wanted, step), strict=True):
        logits = model.logits(part).to(torch.promote_types(torch.float32, part.dtype))
        found.append(logits.logsumexp(-1) - logits.gather(-1, due[:, None]).squeeze(-1))
        others.append(logits.argmax(-1) != due)
    nll, other = torch.cat(found).cpu().double(), torch.cat(others).cpu().double()
    zeros = torch.zeros(len(batch), dtype=torch.float64)
    sums, unlikely = (zeros.index_add(0, row_of, values).tolist() for values in (nll, other))
    return [(value, count == 0) for value, count in zip(sums, unlikely, strict=True)]
