"""Commands that answer as Slurm's do, for tests of what is said to it: `sbatch` runs the elements of an array at once, here.

What a site can do wrong is asked for by files in the folder: `refuse` (its text is what sbatch says), `drop` (jobs vanish before
they begin, leaving its text on their stderr), `hold` (jobs wait for it to go away), `mute` (squeue does not answer).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

MAX_ARRAY = 2

_SBATCH = """
import json, os, re, subprocess, sys
from pathlib import Path
home, script = Path({home!r}), Path(sys.argv[-1])
if (home / "refuse").exists():
    print("sbatch: error: " + (home / "refuse").read_text(), file=sys.stderr)
    sys.exit(1)
text = script.read_text()
flags = dict(re.findall(r"^#SBATCH --([a-z-]+)=(.*)$", text, re.M))
number = str(100 + len(list(home.glob("*.submission"))))
(home / (number + ".submission")).write_text(text)
count = flags.get("array")
for index in range(int(re.match(r"0-(\\d+)", count)[1]) + 1) if count else [None]:
    job = number if index is None else f"{{number}}_{{index}}"
    environment = {{**os.environ, "SLURM_JOB_ID": str(int(number) * 1000 + (index or 0)), "SLURM_CLUSTER_NAME": "fake"}}
    environment |= {{"SLURM_JOB_NUM_NODES": "1", "SLURM_NTASKS": "1", "SLURM_PROCID": "0", "SLURM_LOCALID": "0",
                    "SLURM_NODEID": "0", "SLURM_JOB_NODELIST": "localhost", "SLURMD_NODENAME": "localhost"}}
    if index is None:
        environment["SLURM_JOB_ID"] = number
    else:
        environment |= {{"SLURM_ARRAY_JOB_ID": number, "SLURM_ARRAY_TASK_ID": str(index)}}
    if (home / "drop").exists():
        error = flags["error"].replace("%A", number).replace("%a", str(index)).replace("%j", number)
        Path(error).write_text((home / "drop").read_text())
        continue
    wait = f"while [ -e {{home}}/hold ]; do sleep 0.05; done; exec bash {{script}}"
    process = subprocess.Popen(["bash", "-c", wait], env=environment, start_new_session=True,
                               stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    (home / (job + ".job")).write_text(json.dumps({{"pid": process.pid, "name": flags["job-name"].strip('"')}}))
print("Submitted batch job " + number)
"""

_SQUEUE = """
import json, os, sys
from pathlib import Path
home = Path({home!r})
if (home / "mute").exists():
    sys.exit(1)
for path in sorted(home.glob("*.job")):
    job = json.loads(path.read_text())
    try:
        state = Path(f"/proc/{{job['pid']}}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        continue
    if state != "Z":
        print(f"{{path.stem:<40}}{{'PENDING' if (home / 'hold').exists() else 'RUNNING':<24}}{{job['name']:<64}}{{'None':<60}}")
"""

_SCONTROL = """
import sys
if sys.argv[1:3] == ["show", "config"]:
    print("ClusterName             = fake\\nMaxArraySize            = {max_array}")
"""

_SRUN = """
import os, sys
words = sys.argv[1:]
outputs = {{}}
while words and words[0].startswith("--"):
    name = words.pop(0)
    if name in ("--output", "--error"):
        outputs[name] = words.pop(0)
array = os.environ.get("SLURM_ARRAY_JOB_ID", "")
for name, at in (("--output", 1), ("--error", 2)):
    path = outputs[name].replace("%A", array).replace("%a", os.environ.get("SLURM_ARRAY_TASK_ID", ""))
    path = path.replace("%j", os.environ["SLURM_JOB_ID"]).replace("%t", "0")
    os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), at)
os.execvp(words[0], words)
"""


class FakeSlurm:
    """The commands in `home`/bin, which is to be first in PATH."""

    def __init__(self, home: Path, max_array: int = MAX_ARRAY) -> None:
        self.home, self.bin = home, home / "bin"
        self.bin.mkdir(parents=True)
        for name, text in {"sbatch": _SBATCH, "squeue": _SQUEUE, "scontrol": _SCONTROL, "srun": _SRUN}.items():
            path = self.bin / name
            path.write_text(f"#!{sys.executable}\n{text.format(home=str(home), max_array=max_array)}")
            path.chmod(0o755)

    def misbehave(self, how: str, text: str = "") -> None:
        (self.home / how).write_text(text)

    def behave(self) -> None:
        for how in ("refuse", "drop", "hold", "mute"):
            (self.home / how).unlink(missing_ok=True)

    def submissions(self) -> list[str]:
        """The job scripts, oldest first."""
        return [path.read_text() for path in sorted(self.home.glob("*.submission"))]

    def jobs(self) -> dict[str, int]:
        """Process numbers of the jobs."""
        return {path.stem: json.loads(path.read_text())["pid"] for path in self.home.glob("*.job")}
