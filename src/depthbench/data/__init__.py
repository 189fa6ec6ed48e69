"""The data room: text to token files with a manifest, and batches that are a pure function of (seed, step).

    prepare(["stdlib"], out)          sources → documents → tokens, split by document hash, pinned by hashes
    data = TokenData.open(out)        memory maps, checked against the manifest
    training_batch(data, context=512, batch_size=8, seed=0, step=3)

Nothing here imports torch.
"""

from depthbench.data.batches import TokenData, check_fits, training_batch, validation_batches
from depthbench.data.defaults import default_data, ensure
from depthbench.data.manifest import Manifest, load_manifest
from depthbench.data.prepare import prepare
from depthbench.data.show import describe
from depthbench.data.tokenizer import ByteTokenizer, Tokenizer, Untrained, find_tokenizer, folder_tokenizer, load_tokenizer

__all__ = [
    "ByteTokenizer",
    "Manifest",
    "TokenData",
    "Tokenizer",
    "Untrained",
    "check_fits",
    "default_data",
    "describe",
    "ensure",
    "find_tokenizer",
    "folder_tokenizer",
    "load_manifest",
    "load_tokenizer",
    "prepare",
    "training_batch",
    "validation_batches",
]
