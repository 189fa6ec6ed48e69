"""A small corpus, and ways to look at folders of tokens without the code under test."""

import json
from pathlib import Path

import numpy as np

DOCUMENTS = 60


def write_corpus(root: Path) -> Path:
    """60 documents of 40 to 200 bytes, in nested folders, of all plain endings."""
    rng = np.random.default_rng(1)
    for number in range(DOCUMENTS):
        folder = root / f"part{number % 3}"
        folder.mkdir(parents=True, exist_ok=True)
        words = " ".join(f"wörd{rng.integers(1000)}" for _ in range(rng.integers(5, 25)))
        (folder / f"doc{number:02d}{('.txt', '.md', '.py')[number % 3]}").write_text(f"{number} {words}\n", encoding="utf-8")
    return root


def texts(folder: Path, split: str) -> list[str]:
    """The documents of one side, read back from the token file by hand."""
    tokens = np.fromfile(folder / f"{split}.bin", dtype="<u2")
    assert tokens[-1] == 256
    found, document = [], bytearray()
    for token in tokens.tolist():
        if token == 256:
            found.append(document.decode())
            document.clear()
        else:
            document.append(token)
    return found


def snapshot(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Content and time of everything below a folder, to show that nothing changed."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


def contents(folder: Path) -> dict[str, bytes]:
    """The bytes of every file below a folder."""
    return {name: content for name, (content, _) in snapshot(folder).items()}


def edit_manifest(folder: Path, **changes) -> None:
    """Change fields of a manifest on disk."""
    path = folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
