"""One run by several processes: started by torchrun, led by rank 0, heard and stopped like a worker's run.

    launch ──stdin: "stop"──▶ torchrun ──▶ rank 0 (claims the folder, trains, writes)   ──stdout: JSON events──▶ launch
                                      └──▶ rank 1, 2, … (train along)

Rank 0 does what a process alone would do (`train_cell`). The others wait until it begins, then run the same updates. If one dies
the rest cannot go on: torchrun ends them, the run has failed, and continues from its checkpoint when it is started again.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

from depthbench.data.batches import TokenData
from depthbench.errors import UserError
from depthbench.study.events import Events
from depthbench.study.slurm_queue import command
from depthbench.study.store import RunFolder
from depthbench.study.train_cell import follow_cell, record_failure, train_cell
from depthbench.train.execution import Execution
from depthbench.train.loop import StepReport, ignore, never

POLL_SECONDS = 0.2
FIRST_PORT, PORTS = 20_000, 20_000  # where processes of several nodes meet, by job number
HELPED = "helped"


def train_run(
    run: Path,
    data: Path,
    execution: Execution,
    *,
    opened: Callable[[Path], TokenData] = TokenData.open,
    report: Callable[[StepReport], None] = ignore,
    notify: Callable[[str], None] = ignore,
    should_stop: Callable[[], bool] = never,
) -> str:
    """Train the cell in the folder `run` on the token files in `data`: here, or by as many processes as `execution` says.

    Same contract as `train_cell`. Token files that cannot be opened are a failure of the run.
    """
    folder = RunFolder(run)
    try:
        tokens = opened(data)
    except UserError as error:
        record_failure(folder, error)
        raise
    if execution.processes > 1:
        return launch(run, data, execution, report=report, notify=notify, should_stop=should_stop)
    return train_cell(folder, tokens, execution, report=report, notify=notify, should_stop=should_stop)


def launch(
    run: Path,
    data: Path,
    execution: Execution,
    *,
    report: Callable[[StepReport], None] = ignore,
    notify: Callable[[str], None] = ignore,
    should_stop: Callable[[], bool] = never,
) -> str:
    """Train the run with `execution.processes` processes. Same contract as `train_cell`: returns how it ended; on every node of
    several but the first, "helped".

    Raises:
        UserError: it failed; what went wrong, in one line. Also noted in the run's `failure.json`.
    """
    end: dict[str, Any] | None = None
    asked = False
    with open(run / "log.txt", "ab") as log:
        process = subprocess.Popen(
            [*_torchrun(execution), str(run), str(data), json.dumps(asdict(execution))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env={**os.environ, "OMP_NUM_THREADS": str(execution.threads)},
            start_new_session=True,
            # a job's signals reach all of its processes: what they mean is for this one to say
            preexec_fn=_ignore_user_signal,
        )
        try:
            for event in _events(process, should_stop):
                kind = event.pop("event")
                if kind == "step":
                    report(StepReport(**event))
                elif kind == "note":
                    notify(event["text"])
                elif kind == "end":
                    end = event
                elif kind == "stop" and not asked:
                    asked = True
                    _ask_to_stop(process)
            code = process.wait()
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    stream.close()
    if end is None:
        if code == 0 and _node(execution)[0] > 0:
            return HELPED
        error = UserError(f"a process of the run died (torchrun's exit code {code}); its last words are in {run / 'log.txt'}")
        record_failure(RunFolder(run), error)
        raise error
    if end["status"] == "failed":
        raise UserError(end["error"])
    return str(end["status"])


def _ignore_user_signal() -> None:
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)


def _ask_to_stop(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    try:
        process.stdin.write(b"stop\n")
        process.stdin.flush()
    except BrokenPipeError:
        pass


def _events(process: subprocess.Popen[bytes], should_stop: Callable[[], bool]) -> Any:
    """The events of rank 0 until its output ends; "stop" whenever that is asked for in between."""
    assert process.stdout is not None
    buffer = b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while True:
            if should_stop():
                yield {"event": "stop"}
            if not selector.select(POLL_SECONDS):
                continue
            chunk = os.read(process.stdout.fileno(), 1 << 16)
            if not chunk:
                return
            *lines, buffer = (buffer + chunk).split(b"\n")
            for line in lines:
                yield json.loads(line)


def _torchrun(execution: Execution) -> list[str]:
    """How to start the processes of this node."""
    here = execution.processes // execution.nodes
    words = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={here}", "--max-restarts=0"]
    if execution.nodes == 1:
        words.append("--standalone")
    else:
        node, address, port = _node(execution)
        words += [f"--nnodes={execution.nodes}", f"--node-rank={node}", f"--master-addr={address}", f"--master-port={port}"]
    return [*words, "-m", "depthbench.study.ranks"]


def _node(execution: Execution) -> tuple[int, str, int]:
    """Number of this node, address of the first, and the port where they meet: from Slurm, or from NODE_RANK and MASTER_*."""
    if execution.nodes == 1:
        return 0, "", 0
    environment = os.environ
    node = environment.get("SLURM_NODEID", environment.get("NODE_RANK"))
    address = environment.get("MASTER_ADDR")
    if address is None and "SLURM_JOB_NODELIST" in environment:
        names = command("scontrol", "show", "hostnames", environment["SLURM_JOB_NODELIST"])
        address = names.split()[0] if names else None
    port = environment.get("MASTER_PORT")
    if port is None and "SLURM_JOB_ID" in environment:
        port = str(FIRST_PORT + int(environment["SLURM_JOB_ID"]) % PORTS)
    if node is None or address is None or port is None:
        raise UserError(
            f"a run over {execution.nodes} nodes needs --slurm nodes={execution.nodes},… "
            "or NODE_RANK, MASTER_ADDR and MASTER_PORT set"
        )
    return int(node), address, int(port)


def _listen(stop: threading.Event) -> None:
    """A line, or the end of the input, which is what a dead parent looks like, is a request to stop."""
    sys.stdin.readline()
    stop.set()


def main() -> NoReturn:
    """Run by torchrun as `python -m depthbench.study.ranks RUN DATA EXECUTION`."""
    run, data, execution = Path(sys.argv[1]), TokenData.open(Path(sys.argv[2])), Execution(**json.loads(sys.argv[3]))
    stream = os.fdopen(os.dup(1), "w", encoding="utf-8")
    log = open(run / "log.txt", "ab")  # noqa: SIM115 (until the end)
    os.dup2(log.fileno(), 1)
    os.dup2(log.fileno(), 2)
    from depthbench.model.parallel import joined, leave

    rank = int(os.environ["RANK"])
    if rank:  # what is asked of all is for rank 0 to decide
        stream.close()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        with joined(execution.parallel, execution.device) as sharing:
            if sharing.is_called():
                follow_cell(RunFolder(run), data, execution, sharing)
        leave()
    events = Events(stream)
    threading.Thread(target=_listen, args=(events.stop,), daemon=True).start()
    signal.signal(signal.SIGTERM, lambda *_: events.stop.set())
    try:
        with joined(execution.parallel, execution.device) as sharing:
            status = train_cell(
                RunFolder(run),
                data,
                execution,
                report=lambda step: events.say("step", **asdict(step)),
                notify=lambda text: events.say("note", text=text),
                should_stop=events.stop.is_set,
                sharing=sharing,
            )
            sharing.end()
        events.say("end", status=status, error="")
    except UserError as error:
        events.say("end", status="failed", error=str(error))
    except Exception as error:
        events.say("end", status="failed", error=f"{type(error).__name__}: {error}")
    stream.flush()
    leave()


if __name__ == "__main__":
    main()
