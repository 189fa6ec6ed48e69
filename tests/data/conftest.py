import os

import pytest

from data.helpers import write_corpus
from depthbench.data import parts, prepare


@pytest.fixture(autouse=True)
def fast_disk(monkeypatch):
    """Nobody pulls the plug in a test, so files need not reach the disk."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture
def small_groups(monkeypatch):
    """Groups of about ten small files, so that a small corpus has several parts."""
    monkeypatch.setattr(parts, "GROUP_BYTES", 10 * 4096)


@pytest.fixture
def corpus(tmp_path):
    return write_corpus(tmp_path / "corpus")


@pytest.fixture(scope="session")
def prepared(tmp_path_factory):
    """A finished folder that tests read and never change."""
    root = tmp_path_factory.mktemp("prepared")
    prepare([str(write_corpus(root / "corpus"))], root / "out", validation_fraction=0.2, quiet=True)
    return root / "out"


@pytest.fixture
def copy(prepared, tmp_path):
    """A copy of the finished folder that a test may damage."""
    target = tmp_path / "copy"
    target.mkdir()
    for file in prepared.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    return target
