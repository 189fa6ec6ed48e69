"""Named default data: prepared once into the cache folder, then found there by every run."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from depthbench.data.manifest import MANIFEST
from depthbench.data.prepare import prepare
from depthbench.data.sources import STDLIB
from depthbench.data.tokenizer import Untrained, find_tokenizer
from depthbench.errors import UserError, unknown

DEFAULTS = (STDLIB,)


def cache_folder() -> Path:
    """`$DEPTHBENCH_CACHE`, or `~/.cache/depthbench`."""
    return Path(os.environ.get("DEPTHBENCH_CACHE") or "~/.cache/depthbench").expanduser()


def default_data(name: str = STDLIB, tokenizer: str = "bytes") -> Path:
    """The cache folder of a default source, such as `…/data/stdlib-bytes-py3.11.7`: another Python has another library.

    The folder of a tokenizer.json also names its hash. It need not exist yet; see `ensure`. Raises `UserError` for an unknown
    name or tokenizer.
    """
    if name not in DEFAULTS:
        raise unknown("default data", name, DEFAULTS)
    found = find_tokenizer(tokenizer)
    label = tokenizer if isinstance(found, Untrained) or found.file is None else f"{found.name}-{found.hash[:8]}"
    return cache_folder() / "data" / f"{name}-{label}-py{platform.python_version()}"


def ensure(source: str = STDLIB, tokenizer: str = "bytes") -> Path:
    """The folder of a default source, prepared first if it is not there.

    A finished folder is used as it is, even if the library's files have changed since: its manifest pins what it holds, and
    `TokenData.open` checks it.
    """
    folder = default_data(source, tokenizer)
    if not (folder / MANIFEST).exists():
        prepare([source], folder, tokenizer=tokenizer)
    return folder


def find_tokens(source: str, tokenizer: str, needs: str = "") -> Path:
    """The folder of token files that `source` means: itself, or the cache of a default source, prepared if need be.

    `needs` is what to say about a source that somebody has to prepare first.
    """
    folder = Path(source)
    if (folder / MANIFEST).exists():
        return folder
    if source in DEFAULTS:
        return ensure(source, tokenizer)
    if needs:
        raise UserError(f"{source} is not prepared; this study needs {needs}")
    is_text = folder.is_file() or (folder.is_dir() and not (folder / ".lock").exists())
    hint = f"; if it is text: depthbench data prepare {source} --out FOLDER" if is_text else ""
    raise UserError(f"--data {source} is neither a folder of token files nor {', '.join(DEFAULTS)}{hint}")
