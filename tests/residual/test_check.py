"""Every way to break the protocol is one line that names the method and what it returned, before anything is trained."""

import pytest

from depthbench import ModelShape, UserError, build_model
from depthbench.cli.main import main
from depthbench.residual.check import check_trial
from depthbench.residual.registry import BUILT_IN
from depthbench.residual.trial import TINY, build
from helpers import DESIGNS, MHA
from residual.own import DICTIONARY, PAIR, own_design


@pytest.mark.parametrize("design", DESIGNS)
def test_the_built_in_designs_pass_the_same_check(design):
    trial = build(BUILT_IN[design], TINY, BUILT_IN[design].Options())
    trial.parts.eval()  # as they are defined, without the shortcuts of training
    check_trial(trial)


def link(text):
    return {"link": text}


def design(text):
    return {"design": text}


INIT = "def __init__(self, shape, options=None): "
STREAM = "; it must return [batch, positions, d_model], here [2, 5, 8] float32"
MISTAKES = {
    # what is missing, and what __init__ and link do
    "no link": (design("del link"), "Mine.link is missing; a design must define link(i) -> Link"),
    "no read": (link("del read"), "Wire.read is missing; a link must define read and write"),
    "no write": (link("del write"), "Wire.write is missing"),
    "init without options": (
        design("def __init__(self, shape): super().__init__(shape)"),
        "Mine.__init__ raised TypeError: Mine.__init__() takes 2 positional arguments but 3 were given",
    ),
    "init drops options": (
        design(INIT + "super().__init__(shape); self.options = 3"),
        "Mine.__init__ does not hand shape and options on; begin it with super().__init__(shape, options)",
    ),
    "init forgets super": (design(INIT + "pass"), "Mine.__init__ does not hand shape and options on"),
    "init raises": (design(INIT + "raise KeyError('beta')"), "Mine.__init__ raised KeyError: 'beta' (mine.py line 19)"),
    "not on the meta device": (link("def setup(self, design, i): torch.linspace(0, 1, 3).tolist()"), "Mine.link(0) raised "),
    "link is a module": (
        design("def link(self, i): return nn.Identity()"),
        "Mine.link(0) returned Identity object; it must return a depthbench.Link",
    ),
    "link is nothing": (design("def link(self, i): return Wire(self, i) if i < 4 else None"), "Mine.link(4) returned None; it"),
    "link raises": (
        design("def link(self, i): return [Wire(self, i)][i]"),
        "Mine.link(1) raised IndexError: list index out of range (mine.py line 19)",
    ),
    "link forgets super": (
        link("def __init__(self, design, i): self.gate = nn.Parameter(torch.ones(1))"),
        "Mine.link(0) raised AttributeError: cannot assign parameters before Module.__init__() call",
    ),
    # what open, read, write and close return
    "open gives nothing": (design("def open(self, x): pass"), "Mine.open returned None; it must return a state: a tensor, or"),
    "open gives a set": (design("def open(self, x): return {x}"), "Mine.open returned set object; it must return a state"),
    "open drops positions": (design("def open(self, x): return x[:, 0]"), f"Mine.link(0).read returned [2, 8] float32{STREAM}"),
    "open raises": (design("def open(self, x): return x @ x"), "Mine.open raised RuntimeError: "),
    "read of streams": (
        link("def read(self, state): return self.norm(state)[..., None, :].expand(-1, -1, 4, -1)"),
        f"Mine.link(0).read returned [2, 5, 4, 8] float32{STREAM}",
    ),
    "read of a tuple": (
        link("def read(self, state): return self.norm(state), state"),
        f"Mine.link(0).read returned tuple of [2, 5, 8] float32 and 1 more{STREAM}",
    ),
    "read in float64": (link("def read(self, state): return self.norm(state).double()"), f"returned [2, 5, 8] float64{STREAM}"),
    "read raises": (
        link("def read(self, state): return self.norm(state) * (1 / 0)"),
        "Mine.link(0).read raised ZeroDivisionError: division by zero (mine.py line 16)",
    ),
    "read not finite": (link("def read(self, state): return state.log()"), "Mine.link(0).read returned non-finite numbers"),
    "write gives nothing": (
        link("def write(self, state, y): self.last = state + y"),
        "Mine.link(0).write returned None; it must return a state",
    ),
    "write in place": (
        link("def write(self, state, y): state += y; return state"),
        "Mine.link(0).write changed the state it was given; make a new one, for instance x + y instead of x += y",
    ),
    "write appends": (
        link("read = lambda self, s: self.norm(s[0])\n    def write(self, s, y): s.append(y); return s")
        | design("def open(self, x): return [x]\n    def close(self, s): return s[0]"),
        "Mine.link(0).write changed the state it was given",
    ),
    "forward gives nothing": (
        link("def forward(self, state, sublayer): pass"),
        "Mine.link(0) returned None; it must return a state",
    ),
    "forward hands on streams": (
        link("def forward(self, state, sublayer): return state + sublayer(state[:, :, None])[:, :, 0]"),
        f"Mine.link(0).read returned [2, 5, 1, 8] float32{STREAM}",
    ),
    "close drops the width": (design("def close(self, s): return s.mean(-1)"), f"Mine.close returned [2, 5] float32{STREAM}"),
    "close not finite": (design("def close(self, s): return (s - s) / 0"), "Mine.close returned non-finite numbers"),
    # what spoils a study in silence
    "reads later positions": (
        link("def write(self, state, y): return state + y.flip(1)"),
        "Mine mixes positions: changing a token changed the hidden state of earlier ones",
    ),
    "reads earlier positions": (
        link("def write(self, state, y): return state.cumsum(1) + y"),
        "Mine mixes positions: without attention, changing a token changed later ones",
    ),
    "mixing that starts at 0": (
        link(
            "def setup(self, design, i): self.past = nn.Parameter(torch.zeros(1))\n"
            "    def write(self, state, y): return state + y + self.past * state.cumsum(1)"
        ),
        "Mine mixes positions: without attention, changing a token changed later ones",
    ),
    "attention turned round": (
        link("def forward(self, state, sublayer): return state + sublayer(self.norm(state).flip(1)).flip(1)"),
        "Mine mixes positions: changing a token changed the hidden state of earlier ones",
    ),
    "mixes sequences": (
        link("def write(self, state, y): return state + y - state.mean(0)"),
        "Mine mixes sequences: changing one of a batch changed the hidden state of another",
    ),
    "dropout": (
        link("def write(self, state, y): return state + torch.dropout(y, 0.5, True)"),
        "Mine gives other values in a second pass over the same input; a pass must not draw or remember",
    ),
    "memory": (
        link("calls = 0\n    def read(self, state): self.calls += 1; return self.norm(state) * self.calls"),
        "Mine gives other values in a second pass over the same input",
    ),
    "no gradient": (
        design("def close(self, state): return state.detach()"),
        "Mine.close, in its backward pass, raised RuntimeError: element 0 of tensors does not require grad",
    ),
    "gradient not finite": (
        link(
            "def setup(self, design, i): self.a = nn.Parameter(torch.zeros(1))\n"
            "    def write(self, state, y): return state + self.a.abs().sqrt() * y"
        ),
        "Mine: the gradient of link(0).a is not finite",
    ),
    "values from numpy": (
        link("def setup(self, design, i): self.a = nn.Parameter(torch.tensor(numpy.random.rand(2)))"),
        "Mine: link(0).a starts differently in two builds of one seed; draw initial values with torch",
    ),
    "a linear map set to 0": (
        link("def setup(self, design, i): self.map = nn.Linear(8, 8); nn.init.zeros_(self.map.weight)"),
        "Mine sets the weight of an nn.Linear, which the common random init would overwrite; use an nn.Parameter",
    ),
    # what is declared
    "parameters miscounted": (
        design("def own_parameters(self): return 7"),
        "Mine.own_parameters returned 7 for 4 layers of width 8, but 0 were built beyond Pre-LN's gains; correct it or",
    ),
    "no decay misspelt": (
        link("no_decay = ('gat',)\n    def setup(self, design, i): self.gate = nn.Parameter(torch.ones(1))"),
        "unknown parameter in Wire.no_decay 'gat'; did you mean 'gate'?",
    ),
    "no decay as text": (link("no_decay = ('norm')"), "Wire.no_decay is 'norm'; it must be a tuple of parameter names"),
    "a scale for one role": (
        design("def weight_scale(self, role): return 0.5 if role == 'q' else None"),
        'Mine.weight_scale("k") returned None; it must return a finite number',
    ),
    "state elements": (
        PAIR | design("def open(self, x): return x, x\n    def close(self, s): return s[0]"),
        "Mine.state_elements returned 8, but the state holds up to 16 numbers a token",
    ),
    "growth": (
        DICTIONARY | design(DICTIONARY["design"].replace("state_grows = True", "")),
        "the state of Mine grows from sublayer to sublayer; say so in the class: state_grows = True",
    ),
}


@pytest.mark.parametrize(("pieces", "message"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_is_one_line_that_names_the_method(tmp_path, pieces, message):
    with pytest.raises(UserError) as caught:
        build_model(own_design(tmp_path, **pieces), MHA)
    assert message in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1 and len(str(caught.value)) < 300


def test_a_mistake_at_the_real_shape_alone_is_one_line_too(tmp_path):
    name = own_design(tmp_path, design="def link(self, i): return Wire(self, 1 // (i < 8))")
    build_model(name, MHA)
    with pytest.raises(UserError, match=r"Mine.link\(8\) raised ZeroDivisionError"):
        build_model(name, ModelShape(5, 16, 2))


def test_a_mistake_ends_a_command_with_code_2_and_leaves_nothing(capsys, tmp_path, tokens_folder):
    name = own_design(tmp_path, link="def read(self, state): return state.mean(1)")
    assert main(["train", "--design", name, "--data", str(tokens_folder), "--out", str(tmp_path / "out")]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1
    assert captured.err.startswith("depthbench: Mine.link(0).read returned [2, 8] float32")
    assert not (tmp_path / "out").exists()
