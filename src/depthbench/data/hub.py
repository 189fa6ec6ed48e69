"""The Hugging Face hub: data sets read row by row as they arrive, and tokenizers. Nothing else here knows of the network.

hf:owner/name[:config[:split]]     a data set, by default its split `train`; needs the extra `datasets`
hf:owner/name                      a tokenizer.json
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from depthbench.errors import UserError

HUB = "hf:"
SOURCE = re.compile(r"hf:[\w.-]+(/[\w.-]+)?(:[\w.-]+|:[\w.-]*:[\w.-]+)?")


class Rows:
    """A data set as it arrives. `hash` is of its texts, in order, since there is no file to hash."""

    def __init__(self, source: str):
        self.source = source
        self.hash = hashlib.sha256()
        self.done = 0  # bytes of text, for progress

    def __enter__(self) -> Rows:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def documents(self, column: str) -> Iterator[str | None]:
        """The texts of `column`, None where a row has none. Raises `UserError` saying what to do without the network."""
        for number, row in enumerate(self.rows(), 1):
            if column not in row:
                named = ", ".join(map(str, row)) or "none"
                raise UserError(f"{self.source} has no column {column!r}; its columns: {named}; name one by --text-column")
            text = row[column]
            if text is not None and not isinstance(text, str):
                raise UserError(f"{self.source}, row {number}: {column!r} must be a string, got {type(text).__name__}")
            content = b"" if text is None else text.encode()
            self.done += len(content)
            self.hash.update(b"-" if text is None else b"%d:%b" % (len(content), content))
            yield text

    def rows(self) -> Iterator[dict[str, Any]]:
        """The rows, in order."""
        try:
            from datasets import load_dataset
        except ImportError as error:
            raise UserError(f"{self.source} needs the extra: pip install 'depthbench[datasets]'; or {BY_HAND}") from error
        name, config, split = parts_of(self.source)
        try:
            yield from load_dataset(name, config, split=split, streaming=True)
        except Exception as error:  # of datasets, huggingface_hub, fsspec, httpx, pyarrow
            raise UserError(f"cannot read {self.source}: {reason(error)}; {advice(error)}") from error


BY_HAND = "download its parquet files where there is a network, and give them as sources"


def check_name(source: str) -> None:
    """Raise `UserError` unless `source` names a data set."""
    if not SOURCE.fullmatch(source):
        raise UserError(f"cannot read source {source!r}; write hf:owner/name, hf:owner/name:config or hf:owner/name:config:split")


def parts_of(source: str) -> tuple[str, str | None, str]:
    """Name, configuration and split."""
    name, config, split, *_ = [*source.removeprefix(HUB).split(":"), "", ""]
    return name, config or None, split or "train"


def reason(error: Exception) -> str:
    """The first line of an error, and its type."""
    text = str(error).strip().partition("\n")[0].strip().rstrip(".;")
    return f"{text} ({type(error).__name__})" if text else type(error).__name__


def advice(error: Exception) -> str:
    """What to do about an error of the hub."""
    chain: BaseException | None = error
    names = ""
    while chain is not None:
        names += type(chain).__name__ + str(chain)
        chain = chain.__cause__ or chain.__context__
    if "Gated" in names or "gated" in names or "401" in names:
        return f"if it is gated, accept its terms on its page and log in by: hf auth login; or {BY_HAND}"
    if isinstance(error, ConnectionError):
        return f"check the network; or {BY_HAND}"
    if "NotFound" in names or "doesn't exist" in names:
        return f"check owner, name, config and split; or {BY_HAND}"
    return BY_HAND


def fetch_tokenizer(name: str) -> Path:
    """The tokenizer.json of `owner/name`, from the hub or its cache. Raises `UserError` saying what to do without the network."""
    by_hand = (
        f"download its tokenizer.json where there is a network, and give the path: --tokenizer {Path(name).name}/tokenizer.json"
    )
    try:
        from huggingface_hub import hf_hub_download
    except ImportError as error:
        raise UserError(f"tokenizer {name!r} needs: pip install huggingface_hub; or {by_hand}") from error
    try:
        return Path(hf_hub_download(name, "tokenizer.json"))
    except Exception as error:  # of huggingface_hub, httpx, requests
        raise UserError(f"cannot get tokenizer {name!r} from the hub: {reason(error)}; {by_hand}") from error
