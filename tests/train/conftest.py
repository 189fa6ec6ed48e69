import os

import pytest


@pytest.fixture(autouse=True)
def fast_disk(monkeypatch):
    """Nobody pulls the plug in a test, so files need not reach the disk."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
