"""Designs by name: built in, from a file, installed; and what `depthbench designs` says of them."""

import json
import sys

import pytest

from depthbench import ModelShape, build_model
from depthbench.cli.main import main
from depthbench.residual.hc import HC
from depthbench.residual.registry import BUILT_IN, describe_options, find_design, list_designs, load_module, summary_of
from depthbench.study.cell import DesignChoice
from helpers import DESIGNS, MHA, tokens
from residual.own import EXAMPLE, GATED, own_design, refusal

# Built in, and from a file


def test_built_in_designs_go_by_their_keys():
    assert tuple(list_designs())[: len(DESIGNS)] == DESIGNS
    assert all(find_design(key) is design and design.key == key for key, design in BUILT_IN.items())
    assert refusal(find_design, "prelm").startswith("unknown design 'prelm'; did you mean 'preln'? valid: attnres, ")


@pytest.mark.parametrize("spelling", [GATED, f"{EXAMPLE.parent}/../examples/{EXAMPLE.name}:GatedResidual"])
def test_a_design_in_a_file_is_found_however_its_path_is_written(spelling):
    assert find_design(spelling).__name__ == "GatedResidual"
    assert DesignChoice(spelling).short == "GatedResidual"


def test_a_file_that_imports_a_design_offers_it_too(tmp_path):
    own_design(tmp_path, top="from depthbench.residual.hc import HC")
    assert find_design(f"{tmp_path}/mine.py:HC") is HC


def test_files_of_one_name_in_two_folders_do_not_meet(tmp_path):
    for number in (1, 2):
        (tmp_path / str(number)).mkdir()
        options = f"Kind = Literal['of{number}']\n@dataclass(frozen=True)\nclass Choice:\n    kind: 'Kind' = 'of{number}'"
        own_design(tmp_path / str(number), top=options, design="Options = Choice")
    for number in (1, 2):
        model = build_model(f"{tmp_path}/{number}/mine.py:Mine", MHA, kind=f"of{number}")
        assert model.residual.options.kind == f"of{number}"
    for number in (1, 2):
        own_design(tmp_path / str(number))
    assert len({find_design(f"{tmp_path}/{number}/mine.py:Mine").__module__ for number in (1, 2)}) == 2


def test_a_file_named_like_a_module_is_no_danger_and_gets_no_company(tmp_path):
    build_model(own_design(tmp_path, file="json.py"), MHA)
    assert sys.modules["json"] is json
    assert [path.name for path in tmp_path.iterdir()] == ["json.py"]


def test_annotations_may_be_postponed(tmp_path):
    (tmp_path / "later.py").write_text(f"from __future__ import annotations\n{EXAMPLE.read_text()}")
    assert build_model(f"{tmp_path}/later.py:GatedResidual", MHA, initial="0.5").residual.options.initial == 0.5


def test_a_file_is_run_once_for_each_text(tmp_path):
    path = tmp_path / "counts.py"
    path.write_text("import sys\nsys.runs = getattr(sys, 'runs', 0) + 1\ny: int = 0\nx = 1")
    for _ in range(2):
        assert load_module(path, "").x == 1
    path.write_text(path.read_text().replace("x = 1", "x = 2"))  # the same length, within the same second
    assert load_module(path, "").x == 2
    assert sys.runs == 2
    assert load_module(path, "").__annotations__ == {"y": int}  # what it imports from __future__ is its own affair
    del sys.runs


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "mine.py is not a Python file that exists; a design is given as path/to/file.py:Class, got"),
        ("def f(:\n", "mine.py failed: SyntaxError: invalid syntax (mine.py, line 1)"),
        ("x = 1\n\ny = [][x]\n", "mine.py failed: IndexError: list index out of range (mine.py line 3)"),
        ("import no_such_module", "mine.py failed: ModuleNotFoundError: No module named 'no_such_module' (mine.py line 1)"),
        ("raise SystemExit(3)", "mine.py failed: SystemExit: 3"),
        ("x = 'a\0b'", "mine.py failed: "),
        ("x = 1", "mine.py defines no design; a design is a subclass of depthbench.Residual"),
        ("from depthbench import Residual\nclass Mein(Residual): pass", "mine.py 'Mine'; did you mean 'Mein'? valid: Mein"),
        ("class Mine: pass", "mine.py:Mine is <class 'mine_"),
        ("Mine = 3", "mine.py:Mine is 3; a design is a subclass of depthbench.Residual"),
    ],
)
def test_a_file_that_gives_no_design_is_one_clear_error(tmp_path, text, message):
    if text is not None:
        (tmp_path / "mine.py").write_text(text)
    before = set(sys.modules)
    assert message in refusal(build_model, f"{tmp_path}/mine.py:Mine", MHA)
    assert len([name for name in set(sys.modules) - before if name.startswith("mine_")]) == (
        " failed: " not in message and text is not None
    )


def test_a_path_without_a_class_is_told_which(tmp_path):
    assert refusal(find_design, str(EXAMPLE)).endswith(f"name the design in it as well: {GATED}")
    assert "is not a Python file" in refusal(find_design, f"{tmp_path}:Mine")


# Installed


def install(folder, monkeypatch, *points, package="depthbench_mine", code=""):
    """What installing a package with these entry points leaves on the path."""
    info = folder / f"{package}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("\n".join(["[depthbench.residuals]", *points]))
    if code:
        (folder / f"{package}.py").write_text(code)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, package, raising=False)


def test_an_installed_design_goes_by_its_entry_point(capsys, monkeypatch, tmp_path):
    install(tmp_path, monkeypatch, "gated = depthbench_mine:GatedResidual", code=EXAMPLE.read_text())
    assert list(list_designs()) == [*DESIGNS, "gated"]
    model = build_model("gated", MHA, initial=0.5)
    assert model(tokens(MHA)).shape == (2, MHA.context, MHA.vocab_size)
    assert DesignChoice.parse("gated[initial=0.5]").short == "gated-initial-0-5"
    assert main(["designs"]) == 0
    assert "gated" in capsys.readouterr().out
    assert main(["designs", "gated", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["key"] == "gated"
    assert "did you mean 'gated'" in refusal(find_design, "gate")


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("", "cannot be loaded: ModuleNotFoundError: No module named 'depthbench_mine'"),
        ("x = 1", "cannot be loaded: AttributeError: module 'depthbench_mine' has no attribute 'GatedResidual'"),
        ("1 / 0", "design 'gated' is installed as depthbench_mine:GatedResidual but cannot be loaded: ZeroDivisionError"),
        ("GatedResidual = print", "gated is <built-in function print>; a design is a subclass of depthbench.Residual"),
    ],
)
def test_an_installed_design_that_cannot_be_loaded_is_one_clear_error(monkeypatch, tmp_path, code, message):
    install(tmp_path, monkeypatch, "gated = depthbench_mine:GatedResidual", code=code)
    assert message in refusal(build_model, "gated", MHA)
    build_model("preln", MHA)


# depthbench designs


def test_designs_shows_the_example(capsys):
    assert main(["designs", GATED]) == 0
    out = capsys.readouterr().out
    assert all(
        words in out
        for words in (
            "GatedResidual",
            "2103.17239",
            "x ← x + g·F(RN(x))",
            "initial=1.0",
            "49,152 parameters at 24 × 1024",
            "no decay  gate",
        )
    )
    assert main(["designs", GATED, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["family"], facts["options"], facts["no_decay"]) == ("user", {"initial": 1.0}, ["gate"])
    assert facts["own_parameters_of_24x1024"]["parameters"] == 2 * 24 * 1024


def test_designs_that_cannot_be_shown_are_one_line(capsys, tmp_path):
    bad = own_design(tmp_path, design="def close(self, state): return state[0]")
    for name, message in ((bad, "Mine.close returned [5, 8] float32"), (f"{EXAMPLE}:Gated", "did you mean 'GatedResidual'?")):
        assert main(["designs", name]) == 2
        captured = capsys.readouterr()
        assert captured.out == "" and captured.err.count("\n") == 1 and message in captured.err


def test_a_design_is_described_by_its_file_or_else_its_class(tmp_path):
    assert summary_of(HC).startswith("Hyper-Connections [2409.19606]")
    assert summary_of(find_design(GATED)).startswith("A residual design of one's own")
    assert summary_of(find_design(own_design(tmp_path, design='"""Only\n    here."""'))) == ""
    (tmp_path / "terse.py").write_text('from depthbench import Residual\nclass Terse(Residual):\n    """In\n    short."""\n')
    assert summary_of(find_design(f"{tmp_path}/terse.py:Terse")) == "In\nshort."


@pytest.mark.parametrize("key", DESIGNS)
def test_the_page_of_designs_has_a_section_with_options_and_exemptions(key):
    page = (EXAMPLE.parents[1] / "docs" / "designs.md").read_text()
    (section,) = [part for part in page.split("\n## ")[1:] if part.startswith(f"{key}\n")]
    facts = BUILT_IN[key]
    assert facts.source.split()[0].strip(";") in section
    for name, default in describe_options(facts).items():
        assert f"`{name}={str(default).lower()}`" in section
    exempt = facts.exempt_from_decay(MHA)
    (row,) = [line for line in page.splitlines() if line.startswith(f"| `{key}` | {facts.family} |")]
    assert row.split("|")[5].strip() == (", ".join(f"`{name}`" for name in sorted(exempt)) or "–")


def test_a_large_shape_costs_no_memory_to_check():
    build_model(GATED, ModelShape(140, 4096, 32, vocab_size=50_280), device="meta")
