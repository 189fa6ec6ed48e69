import multiprocessing
import os
import signal
import subprocess
import sys
import time

import pytest

from depthbench.data.workers import in_order
from depthbench.errors import UserError


def test_results_come_in_the_order_of_the_jobs():
    jobs = list(range(-50, 50))
    assert list(in_order(abs, jobs, 3)) == [abs(job) for job in jobs]


@pytest.mark.parametrize(("jobs", "workers"), [([1, 2, 3], 1), ([1], 8), ([], 8)])
def test_one_process_is_enough_for_one_worker_or_one_job(jobs, workers):
    here = os.getpid()
    assert list(in_order(lambda job: (job, os.getpid()), jobs, workers)) == [(job, here) for job in jobs]


def test_a_worker_that_dies_is_one_clear_line():
    with pytest.raises(UserError, match="a worker process died"):
        list(in_order(os._exit, [3, 3], 2))


def test_an_error_in_a_worker_is_raised_here():
    with pytest.raises(TypeError, match="bad operand"):
        list(in_order(abs, [1, 2, "three", 4], 2))


def test_leaving_early_ends_the_workers():
    results = in_order(time.sleep, [0, 0, 60, 60, 60], 2)
    next(results)
    assert len(multiprocessing.active_children()) == 2
    began = time.monotonic()
    results.close()
    assert not multiprocessing.active_children() and time.monotonic() - began < 10


@pytest.mark.parametrize("delay", [0.05, 0.5])
def test_ctrl_c_is_one_exception_and_leaves_nobody(tmp_path, delay):
    """Ctrl-C reaches the whole group of processes: also workers that still start, which print nothing."""
    script = tmp_path / "script.py"
    script.write_text(
        "import time\n"
        "from depthbench.data.workers import in_order\n"
        "if __name__ == '__main__':\n"
        "    print('ready', flush=True)\n"
        "    try:\n"
        "        list(in_order(time.sleep, [60, 60, 60], 2))\n"
        "    except KeyboardInterrupt:\n"
        "        print('interrupted')\n"
    )
    process = subprocess.Popen(
        [sys.executable, script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout.readline() == "ready\n"
    time.sleep(delay)
    os.killpg(process.pid, signal.SIGINT)
    assert process.communicate(timeout=20) == ("interrupted\n", "")  # waits for all that hold the pipes, so for the workers too
    assert process.returncode == 0
