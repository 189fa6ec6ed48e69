"""A result of one checkpoint is not replaced by that of another, and options for checkpoints do not go with runs."""

import json

import pytest

from depthbench.cli import main
from depthbench.errors import UserError
from depthbench.hf.results import refuse_another


@pytest.mark.parametrize("about", [{"kind": "checkpoint", "name": "a", "source": "/a"}, {"kind": "checkpoint", "name": "/a"}])
def test_a_result_about_another_checkpoint_stays(tmp_path, about):
    path = tmp_path / "evaluation.json"
    refuse_another(path, "/b", lambda: "2")  # there is none
    path.write_text(json.dumps({"about": about, "identity": {"weights": "1"}}))
    refuse_another(path, "/a", lambda: "2")  # the same, trained on
    refuse_another(path, "/b", lambda: "1")  # a copy
    with pytest.raises(UserError, match="holds the result of another checkpoint, /a; give --out"):
        refuse_another(path, "/b", lambda: "2")
    path.write_text("[]")
    refuse_another(path, "/b", lambda: "2")


def test_options_for_checkpoints_are_refused_with_runs(tmp_path, capsys):
    assert main(["eval", str(tmp_path), "--out", "x", "--allow-pickle"]) == 2
    assert "--out, --allow-pickle goes with --hf alone" in capsys.readouterr().err
