import gzip
import hashlib
import json

import pytest

from depthbench.data.documents import NotTextError, ending, open_hashed, read_documents
from depthbench.errors import UserError


def read(path):
    with open_hashed(path) as raw:
        found = list(read_documents(raw, path))
    assert raw.hash.hexdigest() == hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def lines(*rows):
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


@pytest.mark.parametrize("name", ["a.txt", "a.md", "a.py", "A.TXT"])
@pytest.mark.parametrize("packed", [False, True])
def test_a_plain_file_is_one_document_byte_for_byte(tmp_path, name, packed):
    text = "one\r\ntwo\n\nthrée\ufeff 深\r"
    path = tmp_path / (name + (".gz" if packed else ""))
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    assert read(path) == [text]


@pytest.mark.parametrize("packed", [False, True])
def test_a_json_line_is_one_document(tmp_path, packed):
    content = lines({"text": "a\nb", "id": 1}, {"text": ""}, {"text": "ü"}) + b'\n  \r\n{"text": "last, no newline"}'
    path = tmp_path / ("a.jsonl.gz" if packed else "a.jsonl")
    path.write_bytes(gzip.compress(content) if packed else content)
    assert read(path) == ["a\nb", "", "ü", "last, no newline"]


def test_json_lines_may_start_with_a_byte_order_mark(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b"\xef\xbb\xbf" + lines({"text": "x"}))
    assert read(tmp_path / "a.jsonl") == ["x"]


def test_several_gzip_members_are_one_file(tmp_path):
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"one ") + gzip.compress(b"two"))
    assert read(tmp_path / "a.txt.gz") == ["one two"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"good \xff bad", "not UTF-8 at byte 5"),
        (b"a\0b", "NUL"),
        ("text".encode("utf-16-le"), "NUL"),
        (b"\xed\xa0\x80", "not UTF-8"),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_what_is_no_text(tmp_path, content, reason, packed):
    path = tmp_path / ("a.txt.gz" if packed else "a.txt")
    path.write_bytes(gzip.compress(content) if packed else content)
    with pytest.raises(NotTextError, match=reason):
        read(path)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{", "not valid JSON"),
        (b'{"text": "cut of', "not valid JSON"),
        (b"[1]", 'must be an object with the key "text", got list'),
        (b'{"content": "x", "id": 3}', "no key \"text\"; found: 'content', 'id'"),
        (b"{}", 'no key "text"; found: none'),
        (b'{"text": null}', '"text" must be a string, got NoneType'),
        (b'{"text": 3}', '"text" must be a string, got int'),
        (b'{"text": "\\ud800"}', "half of a surrogate pair"),
        (b'{"text": "\xff"}', "not UTF-8 at byte 10 of the line"),
        (b"[" * 100_000, "recursion"),
    ],
)
def test_a_damaged_line_is_named(tmp_path, line, message):
    path = tmp_path / "a.jsonl"
    path.write_bytes(lines({"text": "fine"}, {"text": "fine"}) + line + b"\n" + lines({"text": "fine"}))
    with pytest.raises(UserError, match=message) as error:
        read(path)
    assert f"{path}, line 3: " in str(error.value)
    assert "\n" not in str(error.value)


def test_broken_gzip_is_named(tmp_path):
    whole = gzip.compress(b"".join(lines({"text": f"row {i} {hashlib.sha256(bytes([i])).hexdigest()}"}) for i in range(200)))
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 0xFF
    for content in (b"not gzip at all", whole[:-20], whole[:5], bytes(flipped), whole + b"rubbish"):
        for name in ("a.txt.gz", "a.jsonl.gz"):
            path = tmp_path / name
            path.write_bytes(content)
            with pytest.raises(UserError, match=rf"{name}(, line \d+)?: (broken gzip|not valid JSON|not UTF-8)"):
                read(path)


def test_a_truncated_gzip_says_how_far_it_got(tmp_path):
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(lines({"text": "a"}, {"text": "b"}))[:-8])
    with pytest.raises(UserError, match=r"a\.jsonl\.gz, line 3: broken gzip"):
        read(path)


def test_a_file_that_cannot_be_opened(tmp_path):
    with pytest.raises(UserError, match=r"cannot read .*gone\.txt: No such file"):
        open_hashed(tmp_path / "gone.txt")


def test_a_read_error_is_named(tmp_path):
    # reading one's own memory from address 0 fails, whoever asks
    (tmp_path / "a.txt").symlink_to("/proc/self/mem")
    if not (tmp_path / "a.txt").exists():
        pytest.skip("no /proc")
    with pytest.raises(UserError, match=r"cannot read .*a\.txt: Input/output error"):
        read(tmp_path / "a.txt")


def test_endings():
    assert [ending(name) for name in ("a.txt", "A.JSONL.GZ", "a.gz", "a.json", "txt")] == [".txt", ".jsonl.gz", None, None, None]
