"""A design of one's own: the documented example, states of any form, initial values that follow the seed, and editing."""

import re

import pytest
import torch
import torch.nn.functional as F

from depthbench import ModelShape, build_model, count_parameters
from depthbench.cli.main import main
from depthbench.residual.registry import source_of
from depthbench.train.optimizer import exempt_names
from helpers import MHA, tokens
from residual.own import DICTIONARY, EXAMPLE, GATED, NAMED, PAIR, own_design


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


DOCS = EXAMPLE.parents[1] / "docs"


def test_the_guide_shows_the_example_as_it_is():
    assert f"```python\n{EXAMPLE.read_text()}```" in (DOCS / "own_design.md").read_text()


def test_the_guides_design_with_two_vectors_in_its_state_trains(tmp_path):
    code = (DOCS / "own_design.md").read_text().split("```python\nclass Momentum(")[1].split("```")[0]
    imports = (
        "from typing import NamedTuple\nimport torch\nfrom torch import Tensor, nn\nfrom depthbench import Link, Residual, RMSNorm"
    )
    (tmp_path / "momentum.py").write_text(f"{imports}\nclass Momentum({code}")
    found = losses(build_model(f"{tmp_path}/momentum.py:MomentumResidual", MHA, seed=1))
    assert found[-1] < found[0] - 0.2


# States, initial values, editing


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("pieces", [PAIR, NAMED, DICTIONARY], ids=["tuple", "named tuple", "dictionary"])
def test_a_state_may_be_any_nest_of_tensors(tmp_path, pieces, precision):
    found = losses(build_model(own_design(tmp_path, **pieces), MHA, seed=1), precision=precision)
    assert found[-1] < found[0] - 0.2


MAPS = {
    "link": """
    def setup(self, design, i):
        width = design.shape.d_model
        self.before, self.after = nn.Linear(width, width), nn.Linear(width, width)
    def read(self, state): return self.before(self.norm(state))
    def write(self, state, y): return state + self.after(y)""",
}


def test_all_but_the_sublayers_stays_fp32_under_autocast(tmp_path):
    model = build_model(own_design(tmp_path, **MAPS), MHA)
    seen = []
    for block in model.blocks:
        for module in (block.mlp_link.before, block.mlp, block.mlp_link.after, block.mlp_link):
            module.register_forward_hook(lambda module, given, out: seen.append(out.dtype))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model(tokens(MHA))
    assert seen == [torch.float32, torch.bfloat16, torch.float32, torch.float32] * MHA.n_layers


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


def test_a_design_may_derive_from_a_built_in_one(tmp_path):
    (tmp_path / "loud.py").write_text(
        "from depthbench.residual.attnres import AttnRes, AttnResLink\n"
        "class LoudLink(AttnResLink):\n"
        "    def read(self, state): return 2 * super().read(state)\n"
        "class Loud(AttnRes):\n"
        "    def link(self, i): return LoudLink(self.shape.d_model, i, self.options.scale)\n"
        "class Same(AttnRes): pass\n"
    )
    plain, loud, same = (build_model(name, MHA) for name in ("attnres", f"{tmp_path}/loud.py:Loud", f"{tmp_path}/loud.py:Same"))
    torch.testing.assert_close(same(tokens(MHA)), plain(tokens(MHA)))
    assert not torch.allclose(loud(tokens(MHA)), plain(tokens(MHA)))
    torch.testing.assert_close(loud(tokens(MHA)), loud.eval()(tokens(MHA)))


def test_a_file_edited_is_another_design_and_another_cell(tmp_path):
    name = own_design(tmp_path)
    first = source_of(name)
    plain = build_model(name, MHA, seed=1)(tokens(MHA))
    own_design(tmp_path, link="def write(self, state, y): return state - y")
    assert source_of(name) != first
    assert not torch.equal(build_model(name, MHA, seed=1)(tokens(MHA)), plain)
    own_design(tmp_path)
    assert source_of(name) == first
    assert torch.equal(build_model(name, MHA, seed=1)(tokens(MHA)), plain)
