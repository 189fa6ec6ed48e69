"""Diagnosing a Hugging Face checkpoint: on text in its own tokens, beside the untrained model of its configuration."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from depthbench.data import TokenData
from depthbench.data.batches import Stored
from depthbench.diagnose.hf import HFSubject, open_checkpoint, untrained_checkpoint
from depthbench.diagnose.session import RESULT, diagnose
from depthbench.diagnose.settings import Settings
from depthbench.errors import UserError
from depthbench.files import make_folder
from depthbench.hf.hub import shown_name, source_of
from depthbench.hf.reading import read_tokenizer
from depthbench.hf.results import refuse_another

TOKENIZER = "tokenizer.json"


def diagnose_checkpoint(
    name: str,
    folder: Path,
    settings: Settings,
    *,
    data: str = "",
    text: str = "",
    device: str = "cpu",
    precision: str = "fp32",
    allow_pickle: bool = False,
    default_tokens: Callable[[], Path],
) -> dict[str, Any]:
    """Diagnose the checkpoint `name` and write the result into `folder`.

    Windows come from `data`, a folder of token files, or from `text`, a file that the checkpoint's tokenizer reads; without either
    from the text behind `default_tokens`, token files of bytes. Raises `UserError` if neither fits the checkpoint, and if `folder`
    holds the result of another one.
    """
    if data and text:
        raise UserError("give either --data or --text")
    subject, config = open_checkpoint(name, device=device, precision=precision, allow_pickle=allow_pickle)
    refuse_another(folder / RESULT, source_of(name), subject.weights_sha256)
    tokens, about = _prepared(name, Path(data), subject) if data else _tokenized(name, text, subject, default_tokens)
    twin: list[HFSubject] = []

    def untrained() -> HFSubject:
        if not twin:
            twin.append(untrained_checkpoint(config, subject, settings.seed))
        return twin[0]

    kind = {"kind": "checkpoint", "name": shown_name(name), "source": source_of(name), "family": subject.design, "data": about}
    return diagnose(subject, untrained, tokens, make_folder(folder), settings, kind)


def _prepared(name: str, data: Path, subject: HFSubject) -> tuple[Stored, dict[str, Any]]:
    opened = TokenData.open(data)
    manifest = opened.manifest
    if manifest.vocab_size > subject.vocab_size:
        raise UserError(
            f"{data} has token ids up to {manifest.vocab_size - 1}, and {name} has a vocabulary of {subject.vocab_size}; prepare"
            " the text with the checkpoint's own tokenizer"
        )
    sides = [Path(name) / TOKENIZER, data / TOKENIZER]
    if all(side.exists() for side in sides):
        theirs, ours = (json.loads(side.read_text(encoding="utf-8"))["model"] for side in sides)
        if theirs != ours:
            raise UserError(f"{data} was made with another tokenizer than that of {name}; prepare the text with {sides[0]}")
    return opened.validation, {"tokenizer": manifest.tokenizer, "validation_sha256": manifest.validation_sha256}


def _tokenized(name: str, text: str, subject: HFSubject, default_tokens: Callable[[], Path]) -> tuple[Stored, dict[str, Any]]:
    tokenizer = read_tokenizer(name, "give --data, token files made with its tokenizer")
    if text and text != "stdlib":
        try:
            words = Path(text).read_text(encoding="utf-8")
        except FileNotFoundError as error:
            raise UserError(f"--text {text} does not exist; give a file of UTF-8 text, or stdlib") from error
        except OSError as error:
            raise UserError(f"--text {text} cannot be read: {error.strerror}; give a file of UTF-8 text, or stdlib") from error
        except UnicodeDecodeError as error:
            raise UserError(f"--text {text} is not UTF-8 text ({error}); convert it") from error
    else:
        stored = np.asarray(TokenData.open(default_tokens()).validation)
        words = stored[stored < 256].astype(np.uint8).tobytes().decode(errors="replace")
    ids = np.asarray(tokenizer(words, add_special_tokens=False, verbose=False)["input_ids"], dtype=np.int64)
    if ids.size and int(ids.max()) >= subject.vocab_size:
        raise UserError(
            f"the tokenizer of {name} gives the id {int(ids.max())}, and the model has a vocabulary of {subject.vocab_size}; its"
            " tokenizer does not match it"
        )
    return ids.astype(np.uint32), {"text": text or "stdlib", "tokenizer": type(tokenizer).__name__}
