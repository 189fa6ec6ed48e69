"""How many threads torch is given."""

import pytest
import torch

from depthbench.cli.setup import use_threads


@pytest.mark.parametrize(("said", "asked", "used"), [("3", 0, 3), ("3", 2, 2)])
def test_omp_num_threads_is_respected(monkeypatch, said, asked, used):
    found = []
    monkeypatch.setattr(torch, "set_num_threads", found.append)
    monkeypatch.setenv("OMP_NUM_THREADS", said)
    use_threads(asked)
    assert found == [used]


@pytest.mark.parametrize("said", ["", "4,2", "0", "many"])
def test_what_is_no_number_of_threads_is_passed_over(monkeypatch, said):
    found = []
    monkeypatch.setattr(torch, "set_num_threads", found.append)
    monkeypatch.setattr("depthbench.cli.setup.cores", lambda: 7)
    monkeypatch.setenv("OMP_NUM_THREADS", said)
    use_threads(0)
    assert found == [7]
