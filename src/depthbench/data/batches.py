"""Batches: token files as memory maps, and the windows of a step as a pure function of (seed, step).

A window is context + 1 tokens that start at a multiple of context; it gives context predictions. An epoch visits every window
of the training tokens once, in an order that depends on (seed, epoch) alone. The incomplete tail is dropped.

Shapes: B rows of the batch, T context.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import ArrayLike, NDArray

from depthbench.data.manifest import DTYPES, TOKEN_BYTES, Manifest, Split, check_sizes, load_manifest, mend
from depthbench.data.permutation import permute
from depthbench.data.shards import Sharded
from depthbench.data.shards import Stored as Stored
from depthbench.data.sources import hash_file
from depthbench.errors import UserError

TRAIN_HASH_BYTES = 2**30  # training tokens up to this size are hashed whenever they are opened

Batch = tuple[NDArray[np.int64], NDArray[np.int64]]


@dataclass(frozen=True, eq=False)
class TokenData:
    """A folder of token files, opened: `train` and `validation` are memory maps, shape [tokens]; `token_bytes` is [vocab_size].

    Training tokens in several files are `Sharded`: several maps, one stream.
    """

    manifest: Manifest
    train: Stored | Sharded
    validation: Stored
    token_bytes: NDArray[np.int64]

    @staticmethod
    def open(dir: Path, *, verify: bool = False) -> TokenData:
        """Open a folder after checking it against its manifest.

        Sizes are checked always, and so are the hashes of the validation tokens, of the token lengths, and of training tokens up to
        1 GiB (of any size with `verify`). Raises `UserError` saying which file is wrong and what to do.
        """
        manifest = load_manifest(dir)
        check_sizes(dir, manifest)
        train, validation = (mapped(dir, split, manifest) for split in (manifest.train, manifest.validation))
        check_tokens(dir, manifest.validation, validation, manifest)
        if verify or sum(map.nbytes for map in train) <= TRAIN_HASH_BYTES:
            check_tokens(dir, manifest.train, train, manifest)
        (only,) = validation
        return TokenData(manifest, train[0] if len(train) == 1 else Sharded(train), only, load_token_bytes(dir, manifest))

    def bytes_of(self, tokens: ArrayLike) -> int:
        """UTF-8 bytes that `tokens` (any shape) stand for, EOS 0: what divides summed nats / ln 2 to give bits per byte."""
        return int(self.token_bytes[np.asarray(tokens)].sum())


def mapped(dir: Path, split: Split, manifest: Manifest) -> list[Stored]:
    """The shards of one split as memory maps, shape [tokens] each."""
    return [np.memmap(dir / shard.file, dtype=DTYPES[manifest.dtype], mode="r") for shard in split.shards]


def check_tokens(dir: Path, split: Split, maps: list[Stored], manifest: Manifest) -> None:
    """Raise `UserError` unless each file has its manifest's hash and holds only ids of the vocabulary."""
    total = hashlib.sha256()
    for shard, tokens in zip(split.shards, maps, strict=True):
        total.update(tokens.data)
        own = total if len(maps) == 1 else hashlib.sha256(tokens.data)
        if own.hexdigest() != shard.sha256:
            raise changed(dir / shard.file, dir)
        check_ids(tokens, manifest.vocab_size, dir / shard.file)
    if total.hexdigest() != split.sha256:
        raise changed(dir / split.shards[0].file, dir)


def changed(path: Path, dir: Path) -> UserError:
    """The error for a file that is not what its manifest says."""
    return UserError(f"{path} does not have the hash in its manifest, so it was changed or damaged; {mend(dir)}")


def check_ids(tokens: Stored, vocab_size: int, where: object) -> None:
    """Raise `UserError` if a token id is outside the vocabulary."""
    if tokens.size and (largest := int(tokens.max())) >= vocab_size:
        raise UserError(f"{where}: token id {largest} is outside the vocabulary of {vocab_size}; prepare the data again")


def load_token_bytes(dir: Path, manifest: Manifest) -> NDArray[np.int64]:
    """The UTF-8 length of each id, shape [vocab_size]."""
    path = dir / TOKEN_BYTES
    if hash_file(path) != manifest.token_bytes_sha256:
        raise changed(path, dir)
    lengths = np.load(path, allow_pickle=False)
    if lengths.shape != (manifest.vocab_size,):
        raise UserError(f"{path} has shape {lengths.shape}, the vocabulary has {manifest.vocab_size} ids; {mend(dir)}")
    return np.asarray(lengths, dtype=np.int64)


def count_windows(side: str, tokens: Stored | Sharded, context: int) -> int:
    """How many windows the tokens of a side hold. Raises `UserError` if there is none."""
    if context < 1:
        raise UserError(f"context must be at least 1, got {context}")
    if len(tokens) <= context:
        raise UserError(
            f"corpus too small: {side} has {len(tokens)} tokens, one window of context {context} needs {context + 1}; "
            "use a shorter context or more text"
        )
    return (len(tokens) - 1) // context


def check_fits(data: TokenData, context: int, n_windows: int | None = None) -> None:
    """Raise `UserError` unless both sides hold a window, and validation holds `n_windows` (None: as many as there are)."""
    if n_windows is not None and n_windows < 1:
        raise UserError(f"the number of validation windows must be at least 1, got {n_windows}")
    count_windows("train", data.train, context)
    found = count_windows("validation", data.validation, context)
    if n_windows is not None and n_windows > found:
        raise UserError(f"{n_windows} validation windows asked for, but there are only {found} of context {context}")


def windows(tokens: Stored, context: int) -> Stored:
    """All windows as a view that copies nothing, shape [n_windows, context + 1]."""
    return sliding_window_view(tokens, context + 1)[::context]


def training_batch(data: TokenData, *, context: int, batch_size: int, seed: int, step: int, rows: slice | None = None) -> Batch:
    """Inputs and targets of training step `step`, int64 [B, T] each; targets are inputs one token later.

    A pure function of (seed, step): row r of step s is global row p = s·batch_size + r, and takes the window at place p mod n of
    epoch p div n, n the number of windows. `rows` reads only that slice of the batch's rows, for micro-batches or processes
    that share a batch. Raises `UserError` if training tokens hold no window.
    """
    n_windows = count_windows("train", data.train, context)
    row = step * batch_size + np.arange(batch_size)[rows if rows is not None else slice(None)]
    epoch, place = np.divmod(row, n_windows)
    choice = permute(place, n_windows, seed, epoch)
    if isinstance(data.train, Sharded):
        return split_windows(data.train.windows(choice * context, context + 1), data.manifest.vocab_size)
    return split_windows(windows(data.train, context)[choice], data.manifest.vocab_size)


def validation_batches(data: TokenData, *, context: int, batch_size: int, n_windows: int | None = None) -> Iterator[Batch]:
    """Inputs and targets, int64 [B, T] each, of the first `n_windows` validation windows (None: all) from token 0 on.

    The last batch may be shorter. Raises `UserError` if there are fewer windows than asked for.
    """
    check_fits(data, context, n_windows)
    chosen = windows(data.validation, context)[:n_windows]
    for start in range(0, len(chosen), batch_size):
        yield split_windows(chosen[start : start + batch_size], data.manifest.vocab_size)


def split_windows(chosen: Stored, vocab_size: int) -> Batch:
    """Windows [B, T + 1] to inputs and targets, each its own int64 [B, T]. Ids are checked here too: a huge file was not hashed."""
    check_ids(chosen, vocab_size, "token files")
    return chosen[:, :-1].astype(np.int64), chosen[:, 1:].astype(np.int64)
