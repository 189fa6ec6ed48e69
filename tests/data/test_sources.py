import os
import sysconfig
from pathlib import Path

import pytest

from depthbench.data.sources import expand, hash_file
from depthbench.errors import UserError


def names(source):
    return [file.name for file in source.files]


def test_folder_is_expanded_sorted_and_relative(tmp_path):
    for name in (
        "b.txt",
        "a/z.md",
        "a/c.py",
        "a-b.jsonl",
        "UPPER.TXT",
        "x.jsonl.gz",
        "y.txt.gz",
        "skip.c",
        "skip.h",
        "more.c",
        "Makefile",
    ):
        path = tmp_path / "corpus" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    (source,) = expand([str(tmp_path / "corpus")])
    assert source.name == "corpus"
    assert names(source) == ["UPPER.TXT", "a/c.py", "a/z.md", "a-b.jsonl", "b.txt", "x.jsonl.gz", "y.txt.gz"]
    assert source.ignored == {".c": 2, ".h": 1, "(no ending)": 1}
    assert source.files[1].label == "corpus/a/c.py" and not source.files[1].named


def test_order_does_not_depend_on_the_file_system(tmp_path, monkeypatch):
    for name in "dbac":
        (tmp_path / f"{name}.txt").write_text(name)
    (before,) = expand([str(tmp_path)])
    real = os.scandir

    class Reversed:
        def __init__(self, path):
            self.entries = list(real(path))[::-1]

        def __enter__(self):
            return iter(self.entries)

        def __exit__(self, *error):
            pass

    monkeypatch.setattr(os, "scandir", Reversed)
    (after,) = expand([str(tmp_path)])
    assert before.files == after.files and names(after) == ["a.txt", "b.txt", "c.txt", "d.txt"]


def test_single_file_and_order_of_sources(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("z.txt", "a.txt"):
        Path(name).write_text(name)
    first, second = expand(["z.txt", str(tmp_path / "a.txt")])
    assert (first.name, second.name) == ("z.txt", "a.txt")
    assert first.files[0].named and first.files[0].bytes == 5


def test_links_are_followed_but_never_in_circles(tmp_path):
    corpus = tmp_path / "corpus"
    (corpus / "inner").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "far.txt").write_text("far")
    (corpus / "inner" / "near.txt").write_text("near")
    (corpus / "inner" / "loop").symlink_to(corpus)
    (corpus / "link").symlink_to(tmp_path / "elsewhere")
    (corpus / "dangling.txt").symlink_to(tmp_path / "nowhere.txt")
    (source,) = expand([str(corpus)])
    assert names(source) == ["inner/near.txt", "link/far.txt"]
    assert source.ignored == {"(not a file)": 1}


def test_out_folder_inside_the_corpus_is_left_out(tmp_path):
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "train.bin").write_text("x")
    (tmp_path / "out" / "b.txt").write_text("x")
    assert names(expand([str(tmp_path)], leave_out=tmp_path / "out")[0]) == ["a.txt"]
    assert not expand([str(tmp_path)], leave_out=tmp_path / "out")[0].ignored
    assert names(expand([str(tmp_path)], leave_out=tmp_path)[0]) == ["a.txt", "out/b.txt"]


def test_stdlib_holds_the_library_and_nothing_of_this_machine():
    (source,) = expand(["stdlib"])
    found = names(source)
    assert {"abc.py", "json/decoder.py"} <= set(found)
    assert all(name.endswith((".py", ".txt")) for name in found)
    for part in ("site-packages", "dist-packages", "__pycache__", "_sysconfigdata", "config-3"):
        assert not any(part in name for name in found)
    assert not any(name.startswith("/") for name in found)


def test_stdlib_does_not_depend_on_where_python_lives(tmp_path, monkeypatch):
    for home in ("one", "two/deeper"):
        folder = tmp_path / home / "python3"
        for name in ("abc.py", "site-packages/torch.py", "json/__init__.py", "_sysconfigdata__linux.py", "notes.md"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text("x")
    found = []
    for home in ("one", "two/deeper"):
        monkeypatch.setattr(sysconfig, "get_path", lambda name, home=home: str(tmp_path / home / "python3"))
        (source,) = expand(["stdlib"])
        found.append((source.name, names(source), [file.label for file in source.files]))
    assert found[0] == found[1] == ("stdlib", ["abc.py", "json/__init__.py"], ["stdlib/abc.py", "stdlib/json/__init__.py"])


def test_named_file_of_unknown_ending_lists_the_valid_ones(tmp_path):
    (tmp_path / "a.pdf").write_text("x")
    with pytest.raises(UserError, match=r"a\.pdf' has no valid ending; valid: \.txt, \.md, \.py, \.jsonl, \.txt\.gz"):
        expand([str(tmp_path / "a.pdf")])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "does not exist; name a file, a folder or the word 'stdlib'"),
        (lambda path: path.mkdir(), "no text in .*no file ends in .txt"),
        (lambda path: path.symlink_to(path), "cannot read source"),
        (os.mkfifo, "neither a file nor a folder"),
    ],
)
def test_unusable_sources_are_refused(tmp_path, make, message):
    path = tmp_path / "a.txt"
    make(path)
    with pytest.raises(UserError, match=message):
        expand([str(path)])


def test_no_source_is_refused():
    with pytest.raises(UserError, match="no source given"):
        expand([])
    with pytest.raises(UserError, match="cannot read source"):
        expand(["a\0b.txt"])


def test_an_unreadable_folder_is_refused_not_passed_over(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "closed").mkdir()
    real = os.scandir

    def scandir(path):
        if Path(path).name == "closed":
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(UserError, match=r"cannot read folder .*closed: Permission denied"):
        expand([str(tmp_path)])


def test_hash_of_an_unreadable_file(tmp_path):
    with pytest.raises(UserError, match=r"cannot read .*gone: No such file"):
        hash_file(tmp_path / "gone")
