"""The documents of one source file, whatever it is."""

from __future__ import annotations

from collections.abc import Iterator

from depthbench.data.documents import read_documents
from depthbench.data.hub import HUB, Rows
from depthbench.data.long_text import Document, LongText, NotTextError
from depthbench.data.sources import SourceFile
from depthbench.data.unpack import HashedFile, open_hashed
from depthbench.errors import UserError

Opened = HashedFile | Rows


def opened(file: SourceFile) -> Opened:
    """A source file, to be read once; a context manager, with the hash and the bytes of what was read. Raises `UserError`."""
    return Rows(str(file.path)) if is_remote(file) else open_hashed(file.path)


def is_remote(file: SourceFile) -> bool:
    """Whether it is a data set of the hub, which has no file here."""
    return file.named and str(file.path).startswith(HUB)


def read(raw: Opened, file: SourceFile) -> Iterator[Document]:
    """The documents of `file`, in order; see `read_documents`."""
    return raw.documents(file.column) if isinstance(raw, Rows) else read_documents(raw, file.path, file.column)


def contents(file: SourceFile) -> Iterator[str | LongText]:
    """The documents of a file without the empty ones; none if it is no text. Raises `UserError` as tokenizing it would."""
    try:
        with opened(file) as raw:
            for document in read(raw, file):
                if document:
                    yield document
    except NotTextError as reason:
        if file.named:
            raise no_text(file, reason) from reason


def no_text(file: SourceFile, reason: NotTextError) -> UserError:
    """The error for a file that the user named and that is no text."""
    return UserError(f"{file.path} is no text ({reason}); give UTF-8 text, or leave it out")
