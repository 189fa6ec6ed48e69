import multiprocessing
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial

import pytest

from depthbench.data.workers import in_order
from depthbench.errors import UserError


def test_results_come_in_the_order_of_the_jobs():
    jobs = list(range(-50, 50))
    assert list(in_order(abs, jobs, 2)) == [abs(job) for job in jobs]


@pytest.mark.parametrize(("jobs", "workers"), [([1, 2, 3], 1), ([1], 8), ([], 8)])
def test_one_process_is_enough_for_one_worker_or_one_job(jobs, workers):
    here = os.getpid()
    assert list(in_order(lambda job: (job, os.getpid()), jobs, workers)) == [(job, here) for job in jobs]


def test_a_worker_that_dies_is_one_clear_line():
    with pytest.raises(UserError, match="a worker process died"):
        list(in_order(os._exit, [3, 3], 2))


def test_leaving_early_ends_the_workers():
    results = in_order(time.sleep, [0, 0, 60, 60, 60], 2)
    next(results)
    assert len(multiprocessing.active_children()) == 2
    began = time.monotonic()
    results.close()
    assert not multiprocessing.active_children() and time.monotonic() - began < 10


def test_workers_leave_ctrl_c_to_their_parent():
    mask = partial(signal.pthread_sigmask, signal.SIG_BLOCK)  # of no further signals: tells which are blocked
    assert all(signal.SIGINT in blocked for blocked in in_order(mask, [(), ()], 2))
    assert signal.SIGINT not in mask(())


@pytest.fixture
def parent(tmp_path):
    """A process, leader of a group of its own, that has two workers for a minute."""
    script = tmp_path / "script.py"
    script.write_text(
        "import signal, time\n"
        "from depthbench.data.workers import in_order\n"
        "if __name__ == '__main__':\n"
        "    signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a test run in the background has it ignored
        "    try:\n"
        "        print('ready', flush=True)\n"
        "        list(in_order(time.sleep, [0, 60, 60, 60], 2))\n"
        "    except KeyboardInterrupt:\n"
        "        print('interrupted')\n"
    )
    process = subprocess.Popen(
        [sys.executable, script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout.readline() == "ready\n"
    yield process
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


# communicate() waits for everybody who holds the pipes, so for the workers too


@pytest.mark.parametrize("delay", [0.05, 1.0])
def test_ctrl_c_is_one_exception_and_leaves_nobody(parent, delay):
    """Ctrl-C reaches the whole group of processes: also workers that still start, which print nothing."""
    time.sleep(delay)
    os.killpg(parent.pid, signal.SIGINT)
    assert parent.communicate(timeout=20) == ("interrupted\n", "")
    assert parent.returncode == 0


def test_no_worker_outlives_a_killed_parent(parent):
    time.sleep(1)
    parent.kill()
    assert parent.communicate(timeout=20) == ("", "")
    assert parent.returncode == -signal.SIGKILL
