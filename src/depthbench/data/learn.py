"""Training a byte-level BPE on the training documents: validation text has no part in it.

The sample is bounded, and the same whatever the machine and the number of cores: files in the order of the hash of their names,
from each the training documents in order up to an eighth of the sample (more if there are fewer than eight files), until there
are 256 MiB of text. A smaller corpus is used whole.

Runs without a space (or of spaces alone) are cut every 128 characters first: the time of a merge grows with the length of the words
that it is in, and a single line of base64 would take hours. Only training cuts them, encoding does not.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from depthbench.data.bpe import USUAL_EOS, recut
from depthbench.data.held_out import is_held_out
from depthbench.data.job import split_of
from depthbench.data.long_text import chunks_of, digest_of
from depthbench.data.reading import contents
from depthbench.data.sources import SourceFile
from depthbench.errors import UserError
from depthbench.progress import Progress

SAMPLE_BYTES = 256 * 2**20
FEWEST_FILES = 8  # that make a full sample, if the corpus has as many
LEARNED_EOS = USUAL_EOS[0]
RARE = 2  # a pair of tokens seen less often is not merged
LONGEST = 128  # characters of a run
SPACES, RUN = re.compile(rf"\s{{{LONGEST}}}"), re.compile(rf"\S{{{LONGEST}}}|\s{{{LONGEST}}}")


def learn(files: Sequence[SourceFile], entries: int, fraction: float, quiet: bool, held_out: Path | None = None) -> bytes:
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
        core.train_from_iterator(shown(sample(files, fraction, held_out), progress, quiet), trainer)
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


def sample(files: Sequence[SourceFile], fraction: float, held_out: Path | None = None) -> Iterator[str]:
    """The text to train on, in pieces of moderate size; see the top of this file."""
    left = SAMPLE_BYTES
    share = SAMPLE_BYTES // max(1, min(len(files), FEWEST_FILES))
    for file in sorted(files, key=lambda file: hashlib.sha256(file.name.encode(errors="surrogateescape")).digest()):
        if not left:
            return
        room = min(share, left)
        for document in contents(file):
            digest = digest_of(document)
            if split_of(digest, fraction) == "validation" or is_held_out(digest, held_out):
                continue
            for piece in recut(chunks_of(document)):
                taken = piece.encode()[:room]
                yield from cut_runs(taken.decode(errors="ignore"))  # a character may be cut at the end
                room, left = room - len(taken), left - len(taken)
                if not room:
                    break
            if not room:
                break


def cut_runs(text: str) -> Iterator[str]:
    """`text`, cut after every `LONGEST` characters of a run without spaces, or of spaces."""
    start = 0
    if max(map(len, text.split()), default=0) >= LONGEST or SPACES.search(text):  # seven times as fast as to try `RUN` everywhere
        for found in RUN.finditer(text):
            yield text[start : found.end()]
            start = found.end()
    yield text[start:]
