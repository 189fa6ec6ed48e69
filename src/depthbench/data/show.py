"""What `depthbench data show` tells about a folder of token files."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from depthbench.data.batches import TokenData
from depthbench.data.manifest import Manifest, SourceRecord, Split, check_sizes, load_manifest
from depthbench.data.tokenizer import folder_tokenizer


def describe(dir: Path, verify: bool = False) -> dict[str, Any]:
    """Everything a reader wants to know about the folder, ready for JSON.

    Sizes are always compared with the manifest; with `verify` every file is hashed again and every token checked.
    Raises `UserError` if something does not match.
    """
    if verify:
        manifest = TokenData.open(dir, verify=True).manifest
        folder_tokenizer(dir)
    else:
        manifest = load_manifest(dir)
        check_sizes(dir, manifest)
    return {"folder": str(dir), **facts(manifest), "verified": verify}


def facts(manifest: Manifest) -> dict[str, Any]:
    """The manifest as a reader wants it: sources in summary instead of file by file."""
    return {
        "fingerprint": manifest.fingerprint,
        "validation_sha256": manifest.validation_sha256,
        "tokenizer": {"name": manifest.tokenizer, "hash": manifest.tokenizer_hash},
        "vocab_size": manifest.vocab_size,
        "eos": manifest.eos,
        "dtype": manifest.dtype,
        "train": side(manifest.train),
        "validation": side(manifest.validation) | {"fraction_asked": manifest.validation_fraction},
        "sources": [of_source(source) for source in manifest.sources],
        "validation_sources": [of_source(source) for source in manifest.validation_sources],
        "text_column": manifest.text_column,
        "skipped": [asdict(file) for file in manifest.skipped],
        "empty_documents": manifest.empty_documents,
        "null_documents": manifest.null_documents,
        "duplicates_dropped": manifest.duplicates_dropped,
        "ignored": manifest.ignored,
        "format": manifest.format,
        "created_by": manifest.created_by,
        "python": manifest.python,
    }


def of_source(source: SourceRecord) -> dict[str, Any]:
    """A source without its files."""
    return {"name": source.name, "files": len(source.files), "bytes": source.bytes, "sha256": source.sha256}


def side(split: Split) -> dict[str, Any]:
    """One side of the split, with how many bytes of text a token stands for."""
    return {key: value for key, value in asdict(split).items() if key != "shards"} | {
        "bytes_per_token": split.bytes / split.tokens,
        "files": [shard.file for shard in split.shards],
    }
