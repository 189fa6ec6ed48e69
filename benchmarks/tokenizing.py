"""How fast is `depthbench data prepare`, and how much memory does it take when its input grows tenfold?

Speed: the same Parquet files are tokenized by `data prepare`, and by a script that calls the library `tokenizers` in one process, a
document at a time or a batch at a time, and writes the ids. Every turn is a process of its own, timed as a whole.

Memory: the resident memory of `data prepare` with all its processes, looked at fifty times a second; its peak for one file and for
one that is ten times as large.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow
from common import MIB, Spread, describe, machine, need_positive, run
from pyarrow import parquet

from depthbench.cli.output import console, make_table, print_json
from depthbench.data import prepare
from depthbench.data.sources import STDLIB, expand
from depthbench.errors import UserError
from depthbench.progress import Progress

PREPARE = "import sys; from depthbench.cli import main; sys.exit(main(['data', 'prepare', *sys.argv[1:]]))"
PEER = """
import sys
import numpy as np
from pyarrow import parquet
from tokenizers import Tokenizer

way, tokenizer, out, *paths = sys.argv[1:]
tokenizer = Tokenizer.from_file(tokenizer)
eos = np.array([tokenizer.token_to_id("<|endoftext|>")], dtype="<u2")
with open(out, "wb") as file:
    for path in paths:
        for batch in parquet.ParquetFile(path).iter_batches(256, columns=["text"]):
            texts = batch.column(0).to_pylist()
            encoded = map(tokenizer.encode, texts) if way == "encode" else tokenizer.encode_batch(texts)
            for found in encoded:
                file.write(np.array(found.ids, dtype="<u2").tobytes())
                file.write(eos.tobytes())
"""
ONE_CORE = {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"}
OURS = "data prepare"


@dataclass(frozen=True)
class Options:
    """Speed of `data prepare` beside the library it calls, and its memory while the input grows."""

    megabytes: int = 24
    """Text to tokenize for the speed."""
    files: int = 8
    """Parquet files that it is in."""
    memory_megabytes: int = 8
    """Text of the smaller input for the memory; the larger has ten times as much."""
    entries: int = 8192
    """Entries of the BPE, trained on the first part of the text."""
    workers: int = 2
    """Processes of data prepare."""
    rounds: int = 3
    """Rounds, in each of which every way has one turn."""
    json: bool = False
    """Print JSON."""


@dataclass(frozen=True)
class Speed:
    """One way: megabytes of text a second, how many times as fast `data prepare` is, and seconds of all cores that it took."""

    way: str
    rate: Spread
    ratio: Spread
    cpu: Spread


@dataclass(frozen=True)
class Memory:
    """One kind of input: peak resident memory in MiB at the smaller and at the larger size."""

    kind: str
    small: float
    large: float


def documents(size: int) -> Iterator[str]:
    """Text of the standard library in documents of about 3000 characters, `size` bytes in all; again and again, but never twice."""
    texts = [file.path.read_text(encoding="utf-8", errors="ignore") for file in expand([STDLIB])[0].files]
    turn = 0
    while True:
        for number, text in enumerate(texts):
            for start in range(0, len(text), 3000):
                document = f"{turn} {number} {start}\n{text[start : start + 3000]}"
                yield document
                size -= len(document.encode())
                if size <= 0:
                    return
        turn += 1


def write_parquet(path: Path, texts: list[str]) -> Path:
    parquet.write_table(pyarrow.table({"text": texts}), path, row_group_size=1000)
    return path


def corpus(folder: Path, size: int, n_files: int) -> list[Path]:
    """`size` bytes of text in files of equal numbers of documents."""
    texts = list(documents(size))
    share = -(-len(texts) // n_files)
    return [write_parquet(folder / f"{start:08d}.parquet", texts[start : start + share]) for start in range(0, len(texts), share)]


def speeds(folder: Path, options: Options, tokenizer: Path) -> Iterator[Speed]:
    """Every way once a round, in an order that turns."""
    size = options.megabytes * 10**6
    paths = [str(path) for path in corpus(folder, size, options.files)]
    script = folder / "peer.py"
    script.write_text(PEER)
    peer = [sys.executable, str(script)]
    out = ["--out", "", "--tokenizer", str(tokenizer), "--workers", str(options.workers), "--json"]
    ways: dict[str, tuple[list[str], dict[str, str]]] = {
        OURS: ([sys.executable, "-c", PREPARE, *paths, *out], {}),
        "encode, one process": ([*peer, "encode", str(tokenizer), str(folder / "ids"), *paths], ONE_CORE),
        "encode_batch, one process, one thread": ([*peer, "batch", str(tokenizer), str(folder / "ids"), *paths], ONE_CORE),
        "encode_batch, one process, all cores": ([*peer, "batch", str(tokenizer), str(folder / "ids"), *paths], {}),
    }
    rates: dict[str, list[float]] = {way: [] for way in ways}
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    with Progress("speed", options.rounds * len(ways)) as progress:
        for number in range(options.rounds):
            order = list(ways)[number % len(ways) :] + list(ways)[: number % len(ways)]
            for way in order:
                command, environment = ways[way]
                command = [str(folder / f"out{number}") if word == "" else word for word in command]
                began, used = time.monotonic(), cpu_seconds()
                subprocess.run(command, env=os.environ | environment, check=True, capture_output=True)
                rates[way].append(size / 1e6 / (time.monotonic() - began))
                seconds[way].append(cpu_seconds() - used)
                progress.update(sum(map(len, rates.values())), way)
    for way, found in rates.items():
        yield Speed(
            way, Spread.of(found), Spread.of([a / b for a, b in zip(rates[OURS], found, strict=True)]), Spread.of(seconds[way])
        )


def cpu_seconds() -> float:
    """Of all processes that were waited for, with theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def memories(folder: Path, options: Options, tokenizer: Path) -> Iterator[Memory]:
    """One file of each kind at both sizes; the plain file is one long document."""
    sizes = [options.memory_megabytes * 10**6 * factor for factor in (1, 10)]
    held = folder / "held.txt"
    held.write_text("another text\n" * 100)
    found: dict[str, list[float]] = {}
    with Progress("memory", 3 * len(sizes)) as progress:
        for number, size in enumerate(sizes):
            texts = list(documents(size))
            inputs = {"parquet": write_parquet(folder / f"{number}.parquet", texts)}
            inputs["jsonl"] = folder / f"{number}.jsonl"
            inputs["jsonl"].write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
            inputs["one plain document"] = folder / f"{number}.txt"
            inputs["one plain document"].write_text("".join(texts), encoding="utf-8")
            del texts
            for kind, path in inputs.items():
                words = [str(path), "--validation", str(held), "--tokenizer", str(tokenizer), "--workers", str(options.workers)]
                command = [sys.executable, "-c", PREPARE, *words, "--out", str(folder / f"{kind} {number}")]
                found.setdefault(kind, []).append(peak(command) / MIB)
                progress.update(number * len(inputs) + len(found[kind]), kind)
    for kind, (small, large) in found.items():
        yield Memory(kind, small, large)


def peak(command: list[str]) -> int:
    """The most resident bytes of a command's processes together, as /proc tells them."""
    most = 0
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        while process.poll() is None:
            most = max(most, sum(resident(id) for id in family(process.pid)))
            time.sleep(0.02)
        assert process.stderr
        if process.returncode:
            raise UserError(f"data prepare failed: {process.stderr.read().decode().strip()}")
    return most


def family(id: int) -> Iterator[int]:
    """A process and all below it."""
    yield id
    for children in Path(f"/proc/{id}/task").glob("*/children"):
        try:
            below = children.read_text().split()
        except OSError:  # it has ended
            continue
        for child in below:
            yield from family(int(child))


def resident(id: int) -> int:
    """Resident bytes of one process, none once it has ended."""
    try:
        return int(Path(f"/proc/{id}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def main(options: Options) -> None:
    need_positive(options, "megabytes", "files", "memory_megabytes", "workers", "rounds")
    where = machine(options.workers)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "learn").mkdir()
        corpus(folder / "learn", 4 * 10**6, 1)
        prepare([str(folder / "learn")], folder / "bpe", tokenizer=f"bpe-{options.entries}", quiet=True)
        tokenizer = folder / "bpe" / "tokenizer.json"
        (folder / "speed").mkdir()
        rates = list(speeds(folder / "speed", options, tokenizer))
        (folder / "memory").mkdir()
        peaks = list(memories(folder / "memory", options, tokenizer))
    if options.json:
        rows = {"speed": [asdict(row) for row in rates], "memory": [asdict(row) for row in peaks]}
        print_json({"machine": where, "options": asdict(options), **rows})
        return
    print(describe(where))
    print(
        f"{options.megabytes} MB of text in {options.files} parquet files,"
        f" BPE of {options.entries} entries, {options.workers} workers;"
        f" medians and quartiles over {options.rounds} rounds\n"
    )
    show(rates, peaks, options.memory_megabytes)


def show(rates: list[Speed], peaks: list[Memory], size: int) -> None:
    """Both tables."""
    table = make_table("way", "MB/s", f"{OURS} is faster by", "CPU seconds")
    for row in rates:
        table.add_row(row.way, row.rate.text(), "" if row.way == OURS else row.ratio.text(), row.cpu.text(".1f"))
    console().print(table)
    table = make_table("one file", f"peak MiB, {size} MB", f"peak MiB, {10 * size} MB", "ratio")
    for memory in peaks:
        table.add_row(
            memory.kind, *(f"{value:.0f}" for value in (memory.small, memory.large)), f"{memory.large / memory.small:.2f}"
        )
    console().print(table)


if __name__ == "__main__":
    run(Options, main)
