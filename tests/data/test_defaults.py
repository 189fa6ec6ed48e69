import importlib
import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest

from data import bpe_files
from data.helpers import snapshot
from depthbench.data import TokenData, default_data, ensure, load_manifest
from depthbench.errors import UserError


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("DEPTHBENCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_the_folder_names_source_tokenizer_and_python(cache, monkeypatch):
    assert default_data() == cache / "data" / f"stdlib-bytes-py{platform.python_version()}"
    assert not cache.exists()
    monkeypatch.delenv("DEPTHBENCH_CACHE")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert default_data().parent == Path("/home/somebody/.cache/depthbench/data")


def test_the_folder_of_a_tokenizer_file_names_its_hash(cache, tmp_path):
    assert default_data(tokenizer="bpe-8192") == cache / "data" / f"stdlib-bpe-8192-py{platform.python_version()}"
    path = bpe_files.write(tmp_path / "mine.json")
    first = default_data(tokenizer=str(path)).name
    assert re.fullmatch(rf"stdlib-mine-[0-9a-f]{{8}}-py{re.escape(platform.python_version())}", first)
    bpe_files.write(path, [("t", "h")])
    assert default_data(tokenizer=str(path)).name != first


def test_unknown_names():
    with pytest.raises(UserError, match="unknown default data 'stdlb'; did you mean 'stdlib'"):
        default_data("stdlb")
    with pytest.raises(UserError, match="unknown tokenizer"):
        ensure("stdlib", "bites")


def test_ensure_prepares_the_real_library_once(monkeypatch, capsys):
    folder = ensure("stdlib", "bytes")
    assert folder == default_data()
    data = TokenData.open(folder)
    assert data.manifest.train.bytes > 5e6  # real text on every machine
    assert 0.01 < data.manifest.validation.bytes / data.manifest.train.bytes < 0.12
    assert "preparing 100%" in capsys.readouterr().err
    before = snapshot(folder)
    # a library that has changed since does not move the data
    module = importlib.import_module("depthbench.data.defaults")
    monkeypatch.setattr(module, "prepare", lambda *a, **k: pytest.fail("prepared twice"))
    assert ensure() == folder
    assert snapshot(folder) == before and load_manifest(folder) == data.manifest


def test_the_data_room_never_imports_torch():
    code = "import sys, depthbench.data, depthbench.data.parts, depthbench.data.workers; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
