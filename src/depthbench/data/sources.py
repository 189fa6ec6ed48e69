"""Sources: what the words after `depthbench data prepare` mean, expanded to a sorted list of files.

A source is the word `stdlib` (the source text of the running Python's standard library: real English and code on every
machine, no download), a file, a folder, or a data set of the Hugging Face hub as `hf:owner/name`. A folder called like the word is
written `./stdlib`.
"""

from __future__ import annotations

import hashlib
import os
import sysconfig
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import Any

from depthbench.data.documents import ENDINGS, TEXT_COLUMN, ending
from depthbench.data.hub import HUB, check_name
from depthbench.errors import UserError

STDLIB = "stdlib"
KEPT = "(kept for validation)"
STDLIB_ENDINGS = (".py", ".txt")
# installed packages, compiled files, and what the build of this very Python wrote: its paths and compiler flags would make
# the text depend on where Python is installed
NOT_STDLIB = ("site-packages", "dist-packages", "__pycache__", "config-", "_sysconfigdata")


@dataclass(frozen=True)
class SourceFile:
    """One file to read: where it lies, its name inside its source, and what it looked like when it was found."""

    path: Path
    name: str
    label: str  # source and name, as messages and the manifest show it
    named: bool  # the user named this very file, so a problem with it is an error and never skipped
    bytes: int
    modified_ns: int
    column: str = TEXT_COLUMN  # the text of a row, where a file has rows


@dataclass(frozen=True)
class Source:
    """One source, expanded. `ignored` counts files that are no text by their ending."""

    name: str
    files: tuple[SourceFile, ...]
    ignored: Counter[str]


def expand(sources: Sequence[str], leave_out: Path | None = None, column: str = TEXT_COLUMN) -> list[Source]:
    """The files of every source, sorted inside a source by name, sources in the order given; `column` names the text of a row.

    Names are relative to the source, so they do not depend on where it lies. The folder `leave_out` (where the tokens go, often
    inside the corpus) is not looked into. Raises `UserError` for a source that does not exist, cannot be read or has no text.
    """
    if not sources:
        raise UserError(f"no source given; name files, folders or the word {STDLIB!r}")
    found = [expand_one(source, leave_out) for source in sources]
    return [replace(source, files=tuple(replace(file, column=column) for file in source.files)) for source in found]


def without_files(sources: list[Source], kept: Sequence[SourceFile]) -> list[Source]:
    """The sources without the very files of `kept`, which they count as ignored."""
    closed = {os.path.realpath(file.path) for file in kept}
    found = []
    for source in sources:
        files = tuple(file for file in source.files if os.path.realpath(file.path) not in closed)
        gone = Counter({KEPT: len(source.files) - len(files)}) if len(files) < len(source.files) else Counter[str]()
        found.append(replace(source, files=files, ignored=source.ignored + gone))
    return found


def expand_one(source: str, leave_out: Path | None) -> Source:
    """Expand one source; see `expand`."""
    if source == STDLIB:
        return folder_source(STDLIB, Path(sysconfig.get_path("stdlib")), STDLIB_ENDINGS, leave_out, NOT_STDLIB)
    if source.startswith(HUB):
        check_name(source)
        return Source(source, (SourceFile(Path(source), source, source, named=True, bytes=0, modified_ns=0),), Counter())
    path = Path(os.path.abspath(source))  # not resolved: a link is called what the user calls it
    try:
        mode = path.stat().st_mode
    except FileNotFoundError as error:
        raise UserError(f"source {source!r} does not exist; name a file, a folder or the word {STDLIB!r}") from error
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read source {source!r}: {getattr(error, 'strerror', None) or error}") from error
    if S_ISDIR(mode):
        return folder_source(path.name or str(path), path, ENDINGS, leave_out)
    if not S_ISREG(mode):
        raise UserError(f"source {source!r} is neither a file nor a folder")
    if ending(path.name) is None:
        raise UserError(f"source {source!r} has no valid ending; valid: {', '.join(ENDINGS)}")
    return Source(path.name, (described(path, path.name, path.name, named=True),), Counter())


def folder_source(source: str, root: Path, endings: Sequence[str], leave_out: Path | None, without: tuple[str, ...] = ()) -> Source:
    """All files below `root` with one of `endings`; names that start with one of `without` are passed over."""
    files, ignored = [], Counter[str]()
    closed = {os.path.realpath(leave_out)} - {os.path.realpath(root)} if leave_out else set[str]()
    for name, path in walk(root, without, frozenset(closed)):
        if ending(path.name) not in endings:
            ignored[path.suffix.lower() or "(no ending)"] += 1
        elif not path.is_file():  # a dangling link, a pipe
            ignored["(not a file)"] += 1
        else:
            files.append(described(path, name, f"{source}/{name}", named=False))
    if not files:
        raise UserError(f"no text in {root}: no file ends in {', '.join(endings)}")
    return Source(source, tuple(files), ignored)


def walk(root: Path, without: tuple[str, ...], closed: frozenset[str], prefix: str = "") -> Iterator[tuple[str, Path]]:
    """Name relative to `root` (with `/`) and path of every file below it, in sorted order.

    Names that start with one of `without` are passed over, and so are the folders `closed`, which grow by those we are inside of,
    so that a link to a folder above ends.
    """
    real = os.path.realpath(root)
    if real in closed:
        return
    try:
        with os.scandir(root) as entries:
            found = sorted((entry for entry in entries if not entry.name.startswith(without)), key=lambda entry: entry.name)
    except OSError as error:
        raise UserError(f"cannot read folder {root}: {error.strerror}") from error
    for entry in found:
        if entry.is_dir():
            yield from walk(Path(entry.path), without, closed | {real}, f"{prefix}{entry.name}/")
        else:
            yield prefix + entry.name, Path(entry.path)


def described(path: Path, name: str, label: str, *, named: bool) -> SourceFile:
    """The `SourceFile` of `path` as it is now."""
    try:
        status = path.stat()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    return SourceFile(path, name, label, named, status.st_size, status.st_mtime_ns)


def hash_file(path: Path) -> str:
    """sha256 (hex) of a file's bytes. Raises `UserError` if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error


def identity(files: Sequence[SourceFile]) -> list[list[Any]]:
    """What tells files from others and from what they were: one that was changed since has another size or time."""
    return [
        [str(file.path), file.label, file.named, file.bytes, file.modified_ns, file.column][: 5 + (file.column != TEXT_COLUMN)]
        for file in files
    ]
