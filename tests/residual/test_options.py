"""Options of a design: read from text and values, and refused in one line when they or their declaration cannot be."""

import pytest

from depthbench import build_model
from helpers import MHA
from residual.own import own_design, refusal

CHOICE = """
@dataclass(frozen=True)
class Choice:
    count: int = 2
    rate: float = 0.5
    on: bool = False
    kind: Literal["a", "b"] = "a"
    size: Literal[1, 2] = 1
    limit: float | None = None
    name: str = "x"
    def __post_init__(self):
        if self.count == 13: raise ValueError("count must not be 13")
"""


@pytest.fixture(scope="module")
def choosy(tmp_path_factory):
    return own_design(tmp_path_factory.mktemp("choosy"), top=CHOICE, design="Options = Choice")


@pytest.mark.parametrize(
    ("option", "given", "value"),
    [
        *[("count", "3", 3), ("rate", "1e-3", 0.001), ("rate", 2, 2.0), ("on", "true", True), ("on", "No", False)],
        *[("kind", "b", "b"), ("size", "2", 2), ("limit", "none", None), ("limit", "0.1", 0.1), ("name", "7", "7")],
    ],
)
def test_options_are_read_from_text_and_values(choosy, option, given, value):
    found = getattr(build_model(choosy, MHA, **{option: given}).residual.options, option)
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize(
    ("option", "given", "message"),
    [
        ("cuont", 3, "unknown option of {} 'cuont'; did you mean 'count'? valid: count, kind, limit, name, on, rate, size"),
        ("count", "2.5", "option count of {} must be int, got '2.5'"),
        ("count", True, "option count of {} must be int, got True"),
        ("rate", "fast", "option rate of {} must be float, got 'fast'"),
        ("rate", "nan", "option rate of {} must be a finite number, got nan"),
        ("rate", float("inf"), "option rate of {} must be a finite number, got inf"),
        ("on", "perhaps", "option on of {} must be bool, got 'perhaps'"),
        ("kind", "c", "option kind of {} must be one of a, b, got 'c'"),
        ("limit", "soon", "option limit of {} must be float, got 'soon'"),
        ("name", 7, "option name of {} must be str, got 7"),
        ("count", 13, "options of {}: count must not be 13"),
    ],
)
def test_an_option_that_cannot_be_is_one_clear_error(choosy, option, given, message):
    assert refusal(build_model, choosy, MHA, **{option: given}) == message.format(choosy)


def test_a_design_without_options_says_so(tmp_path):
    name = own_design(tmp_path)
    assert refusal(build_model, name, MHA, streams=2) == f"design {name} has no options, got 'streams'"


FROZEN = "@dataclass(frozen=True)\nclass Choice:\n    "


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (FROZEN + "n: int", "option n of {} has no default value; give it one"),
        (FROZEN + "n: int = 'x'", "the default of option n of {} must be int, got 'x'"),
        (FROZEN + "n: int = '3'", "the default of option n of {} is text, '3', and its type is not"),
        (FROZEN + "n: float = float('nan')", "the default of option n of {} must be a finite number"),
        (FROZEN + "n: tuple = ()", "has type <class 'tuple'>; options are bool, int, float, str or a Literal"),
        (FROZEN + "n: 'Nowhere' = 1", "Options of {} have a type that cannot be read: name 'Nowhere' is not defined"),
        (FROZEN + "seed: int = 1", "option seed of {} needs another name: design, shape, seed, device are keywords of build_model"),
        ("@dataclass\nclass Choice:\n    n: int = 1", "Options of {} must be a class under @dataclass(frozen=True), got Choice"),
        ("class Choice:\n    n: int = 1", "Options of {} must be a class under @dataclass(frozen=True), got Choice"),
        ("Choice = {{'n': 1}}", "Options of {} must be a class under @dataclass(frozen=True), got {{'n': 1}}"),
    ],
)
def test_options_that_are_declared_wrongly_are_one_clear_error(tmp_path, options, message):
    name = own_design(tmp_path, top=options.replace("{{", "{").replace("}}", "}"), design="Options = Choice")
    assert message.format(name) in refusal(build_model, name, MHA)
