"""Tasks for teacher-forced likelihood: documents of a prompt and a target, made from rows by a template.

A task file is JSON lines. The first line may be a header,

    {"task": "riddles", "group": "stem", "version": 1, "licence": "CC BY 4.0",
     "prompt": "Question: {question}\\nAnswer:", "target": " {answer}", "id": "key"}

(on one line) and every other line is a row, such as `{"key": "r1", "question": "…", "answer": "…"}`. Without a header the rows
have the keys `prompt`, `target` and `id`, the task is called after the file, and is a group of its own.
"""

from __future__ import annotations

import gzip
import json
import string
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from depthbench.errors import UserError
from depthbench.files import content_hash

Row = Mapping[str, Any]
HEADER_KEYS = {"task", "group", "version", "prompt", "target", "id", "licence", "strip"}


@dataclass(frozen=True)
class Document:
    """One prompt, and the target whose likelihood is asked for."""

    id: str
    prompt: str
    target: str


@dataclass(frozen=True)
class Template:
    """How a row becomes a document: `prompt` and `target` with `{key}` for the values of a row (lists line by line), `id` the
    key of its name (without one, its number). `strip`: the target loses white space at its end.
    """

    prompt: str = "{prompt}"
    target: str = "{target}"
    id: str = "id"
    strip: bool = False

    def document(self, row: Row, number: int) -> Document:
        """The document of a row. Raises `ValueError` saying which key is missing, or that the target is empty."""
        target = _filled(self.target, row)
        target = target.rstrip() if self.strip else target
        if not target:
            raise ValueError("its target is empty; there is nothing to score")
        return Document(str(row.get(self.id, number)), _filled(self.prompt, row), target)


@dataclass(frozen=True)
class Task:
    """`documents` under a `name`; `group` is what its mean goes into; `source` says where the rows came from."""

    name: str
    group: str
    version: int
    template: Template
    licence: str
    source: str
    documents: tuple[Document, ...]

    @cached_property
    def sha256(self) -> str:
        """Of the name, the version, and every document: equal hashes mean equal numbers of the same model."""
        return content_hash([self.name, self.version, [[item.id, item.prompt, item.target] for item in self.documents]])


def make_task(
    name: str, group: str, version: int, template: Template, licence: str, source: str, rows: Iterable[tuple[str, Row]]
) -> Task:
    """A task from rows, each with the place that an error names. Raises `UserError` for a row that gives no document, for two
    of one id, and if there is none.
    """
    documents: dict[str, Document] = {}
    for number, (place, row) in enumerate(rows):
        try:
            document = template.document(row, number)
        except ValueError as error:
            raise UserError(f"{place}: {error}") from error
        if document.id in documents:
            raise UserError(f"{place}: the id {document.id!r} was there before; ids must differ")
        documents[document.id] = document
    if not documents:
        raise UserError(f"{source} holds no documents for the task {name}")
    return Task(name, group, version, template, licence, source, tuple(documents.values()))


def read_task_file(path: Path) -> Task:
    """The task in a file of JSON lines, which may be gzipped. Raises `UserError` naming the line that is wrong."""
    name = path.name.removesuffix(".gz").removesuffix(".jsonl")
    header, rows = split_header(json_lines(path))
    unknown = sorted(header.keys() - HEADER_KEYS)
    if unknown:
        raise UserError(f"{path}, line 1: unknown keys {', '.join(unknown)} in the header; valid: {', '.join(sorted(HEADER_KEYS))}")
    name = str(header.get("task", name))
    version = header.get("version", 1)
    if not isinstance(version, int) or not all(isinstance(header.get(key, ""), str) for key in ("prompt", "target", "id")):
        raise UserError(f"{path}, line 1: version must be a whole number, and prompt, target and id strings")
    template = Template(**{key: header[key] for key in ("prompt", "target", "id", "strip") if key in header})
    licence = str(header.get("licence", "not stated"))
    return make_task(name, str(header.get("group", name)), version, template, licence, str(path), rows)


def split_header(lines: Iterable[tuple[str, Row]]) -> tuple[Row, Iterator[tuple[str, Row]]]:
    """The header, empty without one, and the rows."""
    rest = iter(lines)
    first = next(rest, None)
    if first is None:
        return {}, iter(())
    if "task" in first[1]:
        return first[1], rest
    return {}, _with_first(first, rest)


def _with_first(first: tuple[str, Row], rest: Iterator[tuple[str, Row]]) -> Iterator[tuple[str, Row]]:
    yield first
    yield from rest


def json_lines(path: Path) -> Iterator[tuple[str, Row]]:
    """The objects of a file of JSON lines, gzipped or not, each with its place. Raises `UserError` naming the line."""
    try:
        content = path.read_bytes()
        content = gzip.decompress(content) if path.name.endswith(".gz") else content
    except (OSError, EOFError, gzip.BadGzipFile) as error:
        raise UserError(f"cannot read the task file {path}: {getattr(error, 'strerror', None) or error}") from error
    return parsed_lines(content, str(path))


def parsed_lines(content: bytes, where: str) -> Iterator[tuple[str, Row]]:
    """The objects in lines of JSON, each with its place."""
    for number, line in enumerate(content.split(b"\n"), 1):
        if not line.strip():
            continue
        place = f"{where}, line {number}"
        try:
            row = json.loads(line.decode())
        except ValueError as error:
            raise UserError(f"{place}: not valid JSON ({error})") from error
        if not isinstance(row, dict):
            raise UserError(f"{place}: must be an object, got {type(row).__name__}")
        yield place, row


def _filled(pattern: str, row: Row) -> str:
    """`pattern` with the values of a row. Raises `ValueError` for a key that the row lacks."""
    found = []
    for text, key, _, _ in string.Formatter().parse(pattern):
        found.append(text)
        if key is None:
            continue
        if key not in row or row[key] is None:
            raise ValueError(f"no key {key!r}; found: {', '.join(map(repr, sorted(row))) or 'none'}")
        value = row[key]
        found.append("\n".join(map(str, value)) if isinstance(value, list | tuple) else str(value))
    return "".join(found)
