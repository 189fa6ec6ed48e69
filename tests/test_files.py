"""Names that are given once: of many writers one gets the name, and no half-written file ever has it."""

import errno
import json
import os
import threading

import pytest

from depthbench.files import create_json, publish


def test_create_json_writes_once_and_says_so(tmp_path):
    path = tmp_path / "result.json"
    assert create_json(path, {"a": 1})
    assert not create_json(path, {"a": 2})
    assert json.loads(path.read_text()) == {"a": 1}
    assert os.listdir(tmp_path) == ["result.json"]


def test_of_many_writers_one_gets_the_name(tmp_path):
    path, start, wrote = tmp_path / "result.json", threading.Barrier(6), []

    def write(number):
        start.wait()
        if create_json(path, number):
            wrote.append(number)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [json.loads(path.read_text())] == wrote
    assert os.listdir(tmp_path) == ["result.json"]


def test_a_file_system_without_hard_links(tmp_path, monkeypatch):
    def link(source, target):
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", link)
    test_create_json_writes_once_and_says_so(tmp_path)


def test_a_server_that_linked_and_lost_its_answer(tmp_path, monkeypatch):
    """NFS: the first request did it, and the second is told that the name is taken. It is taken by this very file."""
    link = os.link

    def link_twice(source, target):
        link(source, target)
        link(source, target)

    monkeypatch.setattr(os, "link", link_twice)
    beside = tmp_path / "beside"
    beside.write_text("mine")
    assert publish(beside, tmp_path / "name")
    assert (tmp_path / "name").read_text() == "mine" and not beside.exists()


def test_an_error_of_the_disk_is_passed_on_and_nothing_left(tmp_path, monkeypatch):
    def link(source, target):
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "link", link)
    with pytest.raises(OSError, match="full"):
        create_json(tmp_path / "result.json", 1)
    assert os.listdir(tmp_path) == []
