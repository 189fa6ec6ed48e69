"""A design of one's own: the documented example trains, states may have any form, and every mistake is one clear line."""

import re

import pytest
import torch
import torch.nn.functional as F

from depthbench import ModelShape, UserError, build_model, count_parameters
from depthbench.cli.main import main
from depthbench.residual.check import check_protocol
from depthbench.residual.registry import BUILT_IN
from depthbench.study.cell import DesignChoice
from depthbench.train.optimizer import exempt_names
from helpers import DESIGNS, MHA, tokens
from residual.own import EXAMPLE, GATED, own_design


def losses(model, steps=12, precision=torch.float32):
    """Training losses on one batch."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    x, found = tokens(MHA), []
    for _ in range(steps):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == torch.bfloat16):
            logits = model(x)
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), x[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        found.append(float(loss.detach()))
    return found


# The example


def test_the_example_is_preln_at_first_and_then_moves_its_gates():
    model, plain = build_model(GATED, MHA, seed=2), build_model("preln", MHA, seed=2)
    torch.testing.assert_close(model(tokens(MHA)), plain(tokens(MHA)), rtol=0, atol=0)
    found = losses(model)
    assert found[-1] < found[0] - 0.2
    assert all(float((b.mlp_link.gate.detach() - 1).abs().max()) > 1e-3 for b in model.blocks)
    shut = build_model(GATED, MHA, seed=2, initial=0)
    assert torch.equal(shut(tokens(MHA)), shut.head(shut.norm(shut.embedding(tokens(MHA)))))


@pytest.mark.parametrize("shape", [MHA, ModelShape(7, 8, 2, 1, d_ff=5, vocab_size=300)])
def test_the_example_counts_right(shape):
    counts, model = count_parameters(GATED, shape), build_model(GATED, shape)
    assert counts.design == model.residual.own_parameters() == 2 * shape.n_layers * shape.d_model
    assert counts.total == sum(p.numel() for p in model.parameters())


def test_the_example_keeps_its_gates_from_decay():
    model = build_model(GATED, MHA)
    assert exempt_names(model, "all") == [n for n, _ in model.named_parameters() if n.endswith("gate") and "link" in n]
    assert type(model.residual).exempt_from_decay(MHA) == {"gate"}


def test_the_example_trains_from_the_command_line_and_appears_under_its_name(capsys, tmp_path, tokens_folder):
    words = ["train", "--n-layers", "2", "--d-model", "16", "--context", "16", "--steps", "6", "--batch-size", "4"]
    words += ["--validation-windows", "4", "--data", str(tokens_folder), "--out", str(tmp_path)]
    assert main([*words, "--design", f"{GATED}[initial=0.5]"]) == 0
    assert "GatedResidual[initial=0.5] 2 × 16" in capsys.readouterr().out
    (folder,) = (tmp_path / "cells").iterdir()
    assert folder.name.startswith("GatedResidual-initial-0-5-2x16-lr0.004-s0-")


def test_the_example_is_about_thirty_lines():
    code = [line for line in re.sub(r'""".*?"""', "", EXAMPLE.read_text(), flags=re.DOTALL).splitlines() if line.strip()]
    assert len(code) <= 34


# States, initial values, built-in designs


PAIR = {
    "link": """
    def read(self, s): return self.norm(s[0])
    def write(self, s, y): return s[0] + s[1] + y, 0.5 * s[1] + y""",
    "design": """
    def open(self, x): return x, torch.zeros_like(x)
    def close(self, s): return s[0]
    def state_elements(self): return 2 * self.shape.d_model""",
}
NAMED = {
    "top": """
class Both(NamedTuple):
    x: Any
    first: Any""",
    "link": """
    def read(self, s): return self.norm(s.x)
    def write(self, s, y): return s._replace(x=s.x + y + 0.1 * s.first)""",
    "design": """
    def open(self, x): return Both(x, x)
    def close(self, s): return s.x
    def state_elements(self): return 2 * self.shape.d_model""",
}
DICTIONARY = {
    "link": """
    def read(self, s): return self.norm(s["x"])
    def write(self, s, y): return {"x": s["x"] + y, "outs": [*s["outs"], y]}""",
    "design": """
    state_grows = True
    def open(self, x): return {"outs": [], "x": x}
    def close(self, s): return s["x"] + sum(s["outs"]) / len(s["outs"])
    def state_elements(self): return (1 + self.shape.n_sublayers) * self.shape.d_model""",
}


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("pieces", [PAIR, NAMED, DICTIONARY], ids=["tuple", "named tuple", "dictionary"])
def test_a_state_may_be_any_nest_of_tensors(tmp_path, pieces, precision):
    found = losses(build_model(own_design(tmp_path, **pieces), MHA, seed=1), precision=precision)
    assert found[-1] < found[0] - 0.2


def test_states_stay_fp32_under_autocast(tmp_path):
    model = build_model(own_design(tmp_path), MHA)
    seen = []
    for block in model.blocks:
        block.mlp.register_forward_hook(lambda mlp, given, y: seen.append(y.dtype))
        block.mlp_link.register_forward_hook(lambda link, given, state: seen.append(state.dtype))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model(tokens(MHA))
    assert seen == [torch.bfloat16, torch.float32] * MHA.n_layers


DRAWN = {"link": "def setup(self, design, i): self.gate = nn.Parameter(torch.randn(3)); self.map = nn.Linear(4, 4)"}


def drawn(name, seed):
    return torch.cat([p.detach().flatten() for n, p in build_model(name, MHA, seed=seed).named_parameters() if "link" in n])


def test_drawn_initial_values_are_a_function_of_the_seed(tmp_path):
    name = own_design(tmp_path, **DRAWN)
    first = drawn(name, 4)  # builds, and checks the design on the way
    torch.manual_seed(99)
    count_parameters(name, MHA)
    assert torch.equal(drawn(name, 4), first)
    assert not torch.equal(drawn(name, 5), first)
    assert float(first[MHA.d_model :].std()) > 0.1


def test_building_leaves_the_callers_generator_alone(tmp_path):
    before = torch.random.get_rng_state()
    build_model(own_design(tmp_path, **DRAWN), MHA, seed=1)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_design_may_share_a_parameter_between_its_links(tmp_path):
    name = own_design(
        tmp_path,
        link="""
    def setup(self, design, i): self.scale = design.scale
    def write(self, state, y): return state + self.scale * y""",
        design="""
    def __init__(self, shape, options):
        super().__init__(shape, options)
        self.scale = nn.Parameter(torch.ones(()))
    def own_parameters(self): return 1""",
    )
    assert count_parameters(name, MHA).design == 1
    found = losses(build_model(name, MHA))
    assert found[-1] < found[0] - 0.2


@pytest.mark.parametrize("design", DESIGNS)
def test_the_built_in_designs_pass_the_same_check(design):
    check_protocol(BUILT_IN[design], BUILT_IN[design].Options())


# Mistakes


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
        "Mine.own_parameters returned 7 for 3 layers of width 8, but 0 were built beyond Pre-LN's gains; correct it or",
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
    name = own_design(tmp_path, design="def link(self, i): return Wire(self, 1 // (i < 6))")
    build_model(name, MHA)
    with pytest.raises(UserError, match=r"Mine.link\(6\) raised ZeroDivisionError"):
        build_model(name, ModelShape(4, 16, 2))


def test_a_mistake_ends_a_command_with_code_2_and_leaves_nothing(capsys, tmp_path, tokens_folder):
    name = own_design(tmp_path, link="def read(self, state): return state.mean(1)")
    assert main(["train", "--design", name, "--data", str(tokens_folder), "--out", str(tmp_path / "out")]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1
    assert captured.err.startswith("depthbench: Mine.link(0).read returned [2, 8] float32")
    assert not (tmp_path / "out").exists()


def test_a_file_edited_is_another_design_and_another_cell(tmp_path):
    name = own_design(tmp_path)
    first = DesignChoice(name).source_hash
    plain = build_model(name, MHA, seed=1)(tokens(MHA))
    own_design(tmp_path, link="def write(self, state, y): return state - y")
    assert DesignChoice(name).source_hash != first
    assert not torch.equal(build_model(name, MHA, seed=1)(tokens(MHA)), plain)
    own_design(tmp_path)
    assert DesignChoice(name).source_hash == first
    assert torch.equal(build_model(name, MHA, seed=1)(tokens(MHA)), plain)
