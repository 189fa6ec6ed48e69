"""A real Slurm of two nodes on the loopback of this machine, for tests: munge, slurmctld and two slurmd, all in one folder."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

DAEMONS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol")
NODES = ("n1", "n2")
PATIENCE_SECONDS = 120.0  # only reached when something is broken

CONFIG = """
ClusterName=depthbench
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SwitchType=switch/none
MpiDefault=none
MailProg=/bin/true
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU,CR_LLN
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
KillWait=3
SlurmdTimeout=10
NodeName=n[1-2] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{node_ports}] CPUs=2 RealMemory=2000 State=UNKNOWN
PartitionName=low Nodes=n[1-2] Default=YES MaxTime=60 PriorityTier=1 State=UP
PartitionName=high Nodes=n[1-2] MaxTime=60 PriorityTier=10 State=UP
"""


def why_not() -> str:
    """Why no site can be started here, or nothing."""
    missing = [name for name in DAEMONS if shutil.which(name, path=_path()) is None]
    if missing:
        return f"Slurm is not installed here ({', '.join(missing)} missing)"
    return "" if os.getuid() == 0 else "starting Slurm's daemons takes root"


def _path() -> str:
    return f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


def wait_for(what: str, true: Callable[[], object], seconds: float = PATIENCE_SECONDS) -> None:
    """Wait until `true()` is; an AssertionError that names `what` if that takes for ever."""
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until, f"waited {seconds:.0f} s for {what}"
        time.sleep(0.1)


class Site:
    """The site. Use as a context; `environment` is what commands and jobs need to find it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": _path()}
        self.daemons: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Site:
        (self.folder / "state").mkdir()
        self._write_config()
        try:
            self._start_munge()
            self._start("slurmctld", "slurmctld", "-D", "-i")
            for node in NODES:
                self.start_node(node)
            wait_for("two idle nodes", lambda: self.states() == dict.fromkeys(NODES, "idle"))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """End everything: jobs first, so that no step outlives its node."""
        self._run("scancel", "--user=root", "--signal=KILL", "--full")
        self._run("scancel", "--user=root")
        for name in sorted(self.daemons, reverse=True):  # nodes before the controller
            self.kill(name, signal.SIGTERM)

    def _write_config(self) -> None:
        ports = _free_ports(3)
        text = CONFIG.format(
            host=socket.gethostname().partition(".")[0],
            folder=self.folder,
            controller_port=ports[0],
            node_ports=",".join(map(str, ports[1:])),
        )
        (self.folder / "slurm.conf").write_text(text)

    def _start_munge(self) -> None:
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o600)
        files = {"key-file": "munge.key", "socket": "munge.socket", "pid-file": "munged.pid", "log-file": "munged.log"}
        files |= {"seed-file": "munge.seed"}
        # its folder is a test's own and may lie below one that others can write to, which it refuses unless forced
        self._start("munged", "munged", "--foreground", "--force", *(f"--{k}={self.folder / v}" for k, v in files.items()))
        wait_for("munge", (self.folder / "munge.socket").exists)

    def start_node(self, node: str) -> None:
        """Start the daemon of a node."""
        self._start(node, "slurmd", "-D", "-N", node)

    def _start(self, name: str, *command: str) -> None:
        log = open(self.folder / f"{name}.out", "ab")  # noqa: SIM115 (the daemon keeps it)
        self.daemons[name] = subprocess.Popen(command, env=self.whole_environment(), stdout=log, stderr=log, start_new_session=True)
        log.close()

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        """End a daemon; what it has started lives on."""
        process = self.daemons.pop(name)
        process.send_signal(number)
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def whole_environment(self) -> Mapping[str, str]:
        """The environment of a process that uses the site."""
        return {**os.environ, **self.environment}

    def _run(self, *command: str) -> str:
        done = subprocess.run(command, env=self.whole_environment(), capture_output=True, text=True, check=False)
        return done.stdout

    def states(self) -> dict[str, str]:
        """The state of every node."""
        return dict(
            line.split() for line in self._run("sinfo", "--Node", "--noheader", "--partition=low", "--format=%N %t").splitlines()
        )

    def queue(self) -> dict[str, tuple[str, str]]:
        """State and node of every job that waits or runs, by id."""
        lines = self._run("squeue", "--noheader", "--array", "--format=%i %T %N").splitlines()
        return {words[0]: (words[1], words[2] if len(words) > 2 else "") for words in map(str.split, lines)}

    def submit(self, *options: str, script: str) -> str:
        """Submit a script; its job id."""
        command = ["sbatch", "--parsable", f"--chdir={self.folder}", "--output=/dev/null", *options, f"--wrap={script}"]
        return self._run(*command).strip()


def _free_ports(n: int) -> list[int]:
    sockets = [socket.socket() for _ in range(n)]
    try:
        for item in sockets:
            item.bind(("127.0.0.1", 0))
        return [item.getsockname()[1] for item in sockets]
    finally:
        for item in sockets:
            item.close()
