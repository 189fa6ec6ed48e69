"""The hub, by stand-ins for its libraries: nothing is downloaded."""

import builtins
import sys
import types

import pytest

from data import bpe_files
from data.helpers import contents, texts
from data.real_files import write_parquet
from depthbench.cli import main
from depthbench.data import find_tokenizer, load_manifest, prepare, show
from depthbench.errors import UserError

DOCUMENTS = [f"document {number}" for number in range(40)]


@pytest.fixture
def hub(monkeypatch):
    """A `datasets` module with one data set; `asked` tells how it was called."""
    module = types.ModuleType("datasets")
    module.asked, module.rows = [], [{"id": number, "text": text} for number, text in enumerate(DOCUMENTS)]

    def load_dataset(name, config, **options):
        module.asked.append((name, config, options))
        if isinstance(module.rows, Exception):
            raise module.rows
        return iter(module.rows)

    module.load_dataset = load_dataset
    monkeypatch.setitem(sys.modules, "datasets", module)
    return module


def run(source, out, **options):
    return prepare([source], out, validation_fraction=0.2, quiet=True, **options)


def test_a_data_set_gives_the_tokens_of_its_rows(hub, tmp_path):
    manifest = run("hf:owner/name", tmp_path / "out")
    assert hub.asked and set(map(str, hub.asked)) == {str(("owner/name", None, {"split": "train", "streaming": True}))}
    assert manifest.fingerprint == run(str(write_parquet(tmp_path / "a.parquet", DOCUMENTS)), tmp_path / "local").fingerprint
    (source,) = manifest.sources
    assert source.name == "hf:owner/name" and len(source.files["hf:owner/name"]) == 64
    asked = len(hub.asked)
    assert run("hf:owner/name", tmp_path / "out") == manifest == load_manifest(tmp_path / "out") and len(hub.asked) == asked


def test_the_hash_of_a_data_set_is_of_its_texts(hub, tmp_path):
    first = run("hf:owner/name", tmp_path / "a").sources
    hub.rows = [row | {"id": 0} for row in hub.rows]
    assert run("hf:owner/name", tmp_path / "b").sources == first
    hub.rows[-1]["text"] += "!"
    assert run("hf:owner/name", tmp_path / "c").sources != first


@pytest.mark.parametrize(
    ("source", "config", "split"),
    [("hf:name:small", "small", "train"), ("hf:owner/name::test", None, "test"), ("hf:o/n:small:train[:10]", None, None)],
)
def test_configuration_and_split(hub, tmp_path, source, config, split):
    if split is None:
        with pytest.raises(UserError, match="write hf:owner/name, hf:owner/name:config or hf:owner/name:config:split"):
            run(source, tmp_path / "out")
        return
    run(source, tmp_path / "out")
    assert hub.asked[0][1:] == (config, {"split": split, "streaming": True})


def test_rows_are_never_gathered(hub, tmp_path, monkeypatch):
    """They are taken one at a time, and what was taken is let go."""
    alive, most = 0, 0

    class Text(str):
        def __new__(cls, text):
            nonlocal alive, most
            alive += 1
            most = max(most, alive)
            return super().__new__(cls, text)

        def __del__(self):
            nonlocal alive
            alive -= 1

    from depthbench.data import writer

    monkeypatch.setattr(writer, "BATCH", 2000)
    hub.rows = ({"text": Text(f"{number} " * 50)} for number in range(500))
    monkeypatch.setattr(hub, "load_dataset", lambda *_, **__: ({"text": Text(f"{number} " * 50)} for number in range(500)))
    manifest = run("hf:owner/name", tmp_path / "out", tokenizer="bytes")
    assert manifest.train.documents + manifest.validation.documents == 500 and most < 60


def test_rows_without_text_and_another_column(hub, tmp_path):
    hub.rows = [{"body": text} for text in (None, "", *DOCUMENTS)]
    manifest = run("hf:owner/name", tmp_path / "out", text_column="body")
    assert (manifest.null_documents, manifest.empty_documents) == (1, 1)
    assert sorted(texts(tmp_path / "out", "train") + texts(tmp_path / "out", "validation")) == sorted(DOCUMENTS)


class GatedRepoError(Exception):
    pass


class DatasetNotFoundError(Exception):
    pass


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"body": "x"}], "hf:owner/name has no column 'text'; its columns: body; name one by --text-column"),
        ([{"text": "x"}, {"text": 3}], "hf:owner/name, row 2: 'text' must be a string, got int"),
        (
            GatedRepoError("access is restricted\nsecond line"),
            r"access is restricted \(GatedRepoError\); if it is gated, accept its terms",
        ),
        (DatasetNotFoundError("Dataset 'x' doesn't exist."), r"check owner, name, config and split; or download its parquet files"),
        (
            ConnectionError("Couldn't reach"),
            r"cannot read hf:owner/name: .*check the network; or download its parquet files",
        ),
    ],
)
def test_what_goes_wrong_is_one_clear_line(hub, tmp_path, rows, message):
    hub.rows = rows
    with pytest.raises(UserError, match=message) as error:
        run("hf:owner/name", tmp_path / "out")
    assert "\n" not in str(error.value)


def without(monkeypatch, name):
    real = builtins.__import__

    def refuse(wanted, *rest):
        if wanted == name:
            raise ImportError(wanted)
        return real(wanted, *rest)

    monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(builtins, "__import__", refuse)


def test_without_the_extra(tmp_path, monkeypatch, capsys):
    without(monkeypatch, "datasets")
    assert main(["data", "prepare", "hf:owner/name", "--out", str(tmp_path / "out")]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1 and "hf:owner/name needs the extra: pip install 'depthbench[datasets]'; or download" in told


def test_a_data_set_beside_files_shows_no_share(hub, tmp_path, corpus, capsys):
    prepare([str(corpus), "hf:owner/name"], tmp_path / "out", validation_fraction=0.2, workers=1)
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("preparing 100%  100 documents  ") and " tokens  " in last and "MB/s" in last
    assert show.describe(tmp_path / "out")["sources"][1]["bytes"] == 0


# --- tokenizers -----------------------------------------------------------------------------------------------------


@pytest.fixture
def tokenizer_hub(monkeypatch, tmp_path):
    """A `huggingface_hub` module that has one tokenizer.json."""
    path = bpe_files.write(tmp_path / "cache" / "tokenizer.json", [("d", "o")])
    module = types.ModuleType("huggingface_hub")

    def hf_hub_download(name, file):
        if name != "owner/neo":
            raise ConnectionError(f"no route to {name}/{file}\nand a long story")
        return str(path)

    module.hf_hub_download = hf_hub_download
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)
    return path


@pytest.mark.parametrize("name", ["hf:owner/neo", "owner/neo"])
def test_a_tokenizer_of_the_hub_is_that_of_its_file(tokenizer_hub, corpus, tmp_path, name):
    manifest = run(str(corpus), tmp_path / "out", tokenizer=name)
    assert manifest.tokenizer == "neo" and manifest.tokenizer_hash == find_tokenizer(str(tokenizer_hub)).hash
    assert contents(tmp_path / "out")["tokenizer.json"] == tokenizer_hub.read_bytes()


def test_a_folder_is_its_tokenizer_file(tokenizer_hub, tmp_path, monkeypatch):
    folder, file = find_tokenizer(str(tokenizer_hub.parent)), find_tokenizer(str(tokenizer_hub))
    assert (folder.name, folder.hash) == (file.name, file.hash)
    monkeypatch.chdir(tmp_path)
    bpe_files.write(tmp_path / "owner" / "neo" / "tokenizer.json", [("a", "b")])
    assert find_tokenizer("owner/neo").hash != file.hash == find_tokenizer("hf:owner/neo").hash


@pytest.mark.parametrize("name", ["hf:owner/gone", "owner/gone", "hf:gpt2"])
def test_a_tokenizer_that_cannot_be_had_says_what_to_do(tokenizer_hub, name):
    message = r"cannot get tokenizer '[\w/]+' from the hub: no route to .*ConnectionError\); download its tokenizer\.json"
    with pytest.raises(UserError, match=message) as error:
        find_tokenizer(name)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["hf:", "hf:owner/", "hf:owner/bytes"])
def test_names_that_are_no_tokenizers(tokenizer_hub, name):
    with pytest.raises(UserError, match="names no tokenizer of the hub, or has the name of another; write hf:owner/name"):
        find_tokenizer(name)
