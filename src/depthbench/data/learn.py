"""Training a byte-level BPE on the training documents: validation text has no part in it.

The sample is bounded, and the same whatever the machine and the number of cores: files in the order of the hash of their names,
from each the training documents in order up to an eighth of the sample (more if there are fewer than eight files), until there
are 256 MiB of text. A smaller corpus is used whole.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from depthbench.data.bpe import USUAL_EOS, cut
from depthbench.data.documents import NotTextError, open_hashed, read_documents
from depthbench.data.parts import is_validation, no_text
from depthbench.data.sources import SourceFile
from depthbench.errors import UserError
from depthbench.progress import Progress

SAMPLE_BYTES = 256 * 2**20
FEWEST_FILES = 8  # that make a full sample, if the corpus has as many
LEARNED_EOS = USUAL_EOS[0]
RARE = 2  # a pair of tokens seen less often is not merged


def learn(files: Sequence[SourceFile], entries: int, fraction: float, quiet: bool) -> bytes:
    """The content of the tokenizer.json of a BPE with `entries` ids: EOS, every byte, and merges.

    Pre-tokenized as GPT-2 is; spaces, line ends and all other text are kept. Raises `UserError` if there is too little text.
    """
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=entries,
        min_frequency=RARE,
        special_tokens=[LEARNED_EOS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    total = min(sum(file.bytes for file in files), SAMPLE_BYTES)
    with Progress(f"training bpe-{entries}", total) as progress:
        core.train_from_iterator(shown(sample(files, fraction), progress, quiet), trainer)
    if (found := core.get_vocab_size()) < entries:
        raise UserError(
            f"too little training text for bpe-{entries}: it gives {found} entries, bytes and EOS included;"
            " give more text or ask for fewer entries"
        )
    return core.to_str(pretty=True).encode()


def shown(texts: Iterator[str], progress: Progress, quiet: bool) -> Iterator[str]:
    """`texts`, with progress while they pass."""
    done = 0
    for text in texts:
        yield text
        done += len(text)
        if not quiet and done < progress.total:
            progress.update(done, "reading")
    if not quiet:
        progress.update(progress.total, f"merging ({done / 1e6:.1f} MB read)")


def sample(files: Sequence[SourceFile], fraction: float) -> Iterator[str]:
    """The text to train on, in pieces of moderate size; see the top of this file."""
    left = SAMPLE_BYTES
    share = SAMPLE_BYTES // max(1, min(len(files), FEWEST_FILES))
    for file in sorted(files, key=lambda file: hashlib.sha256(file.name.encode(errors="surrogateescape")).digest()):
        if not left:
            return
        room = min(share, left)
        for document in training_documents(file, fraction):
            taken = document[:room]
            yield from cut(taken.decode(errors="ignore"))  # a character may be cut at the end
            room, left = room - len(taken), left - len(taken)
            if not room:
                break


def training_documents(file: SourceFile, fraction: float) -> Iterator[bytes]:
    """The documents of a file that are not for validation; none if it is no text. Raises `UserError` as tokenizing it would."""
    try:
        with open_hashed(file.path) as raw:
            for text in read_documents(raw, file.path):
                if not is_validation(content := text.encode(), fraction):
                    yield content
    except NotTextError as reason:
        if file.named:
            raise no_text(file, reason) from reason
