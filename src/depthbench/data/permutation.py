"""A permutation of n numbers that is computed, not stored: any of its entries on its own, in constant memory.

A Feistel network over the smallest even number of bits that holds n is a bijection whatever its round function; values that
fall outside 0 … n-1 are sent through again until they are inside ("cycle walking": Black and Rogaway, Ciphers with Arbitrary
Finite Domains, 2002), which keeps it one. The round function is the finalizer of splitmix64 (Steele, Lea and Flood, 2014),
written out here so that the order of data never changes with a release of numpy.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

ROUNDS = 8
Words = NDArray[np.uint64]


def mix(words: Words) -> Words:
    """One step of splitmix64, element by element: a bijection of 64-bit words in which every bit depends on every bit."""
    words = words + np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def round_keys(seed: int, epoch: Words) -> Words:
    """One key for each round and each of the k epochs, shape [ROUNDS, k]."""
    start = mix(np.array([int(seed) % 2**64], dtype=np.uint64))
    rounds = np.arange(ROUNDS, dtype=np.uint64)[:, None]
    return mix(mix(start + epoch) + rounds)


def feistel(values: Words, keys: Words, half: int) -> Words:
    """A bijection of the numbers below 4**half."""
    bits, mask = np.uint64(half), np.uint64(2**half - 1)
    left, right = values >> bits, values & mask
    for key in keys:
        left, right = right, left ^ (mix(right ^ key) & mask)
    return (left << bits) | right


def permute(index: ArrayLike, n: int, seed: int, epoch: ArrayLike) -> NDArray[np.int64]:
    """Entry `index` of the permutation of 0 … n-1 that belongs to (seed, epoch).

    `index` has shape [k], each in 0 … n-1; `epoch` has shape [k] or [1]. Returns shape [k].
    """
    values = np.atleast_1d(np.asarray(index, dtype=np.uint64))
    keys = round_keys(seed, np.broadcast_to(np.asarray(epoch, dtype=np.uint64), values.shape))
    half = max(1, ((n - 1).bit_length() + 1) // 2)
    values = feistel(values, keys, half)
    while (outside := np.flatnonzero(values >= n)).size:
        values[outside] = feistel(values[outside], keys[:, outside], half)
    return values.astype(np.int64)
