"""`depthbench export`, `import` and `generate`: models given away, taken in, and asked to write."""

from __future__ import annotations

import sys
import time
from itertools import islice

from depthbench.cli import arguments
from depthbench.cli.output import print_json
from depthbench.cli.setup import use_threads
from depthbench.data import TokenData
from depthbench.data.defaults import find_tokens
from depthbench.errors import UserError
from depthbench.evaluate.runs import run_tokenizer
from depthbench.study.load import find_run, load_run, tokens_of
from depthbench.train.execution import find_device


def export(verb: arguments.Export) -> int:
    """Write a run as a folder that transformers loads."""
    from depthbench.hf.export import export as write

    folder = find_run(verb.run)
    out = write(folder, run_tokenizer(folder, tokens_of(folder, verb.data)), verb.to)
    trust = "" if folder.cell().design.name == "preln" else ", trust_remote_code=True"
    print(f'exported to {out}; load it with AutoModelForCausalLM.from_pretrained("{out}"{trust})')
    return 0


def import_(verb: arguments.Import) -> int:
    """Take in a Llama as a finished run."""
    from depthbench.hf.importing import import_checkpoint

    tokens = find_tokens(verb.data, "bytes")
    folder = import_checkpoint(
        verb.checkpoint,
        TokenData.open(tokens),
        verb.data,
        verb.out,
        validation_windows=verb.validation_windows,
        allow_pickle=verb.allow_pickle,
    )
    result = folder.result() or {}
    print(f"imported as {folder.path}: validation loss {result['loss']:.4f}, {result['bits_per_byte']:.4f} bits per byte")
    return 0


def generate(verb: arguments.Generate) -> int:
    """Write on from a prompt, token by token as they come."""
    from depthbench.model.decoding import Sampling, continuation

    if verb.max_tokens < 1 or verb.samples < 1:
        raise UserError(f"max-tokens and samples must be at least 1, got {verb.max_tokens} and {verb.samples}")
    settings = [Sampling(verb.temperature, verb.top_k, verb.top_p, verb.seed + number) for number in range(verb.samples)]
    folder = find_run(verb.run)
    tokenizer = run_tokenizer(folder, tokens_of(folder, verb.data))
    model = load_run(folder.path).to(find_device(verb.device))
    use_threads(verb.threads, [model.shape])
    prompt = [tokenizer.eos, *tokenizer.encode(verb.prompt).tolist()]
    if len(prompt) > model.shape.context:
        print(f"the prompt has {len(prompt)} tokens; the model sees the last {model.shape.context}", file=sys.stderr)
    found = []
    for sampling in settings:
        ids: list[int] = []
        shown, began = "", time.monotonic()
        if not verb.json:
            print(verb.prompt, end="", flush=True)
        for token in islice(continuation(model, prompt, sampling), verb.max_tokens):
            if token == tokenizer.eos:
                break
            ids.append(token)
            text = tokenizer.decode(ids)
            if not verb.json and not text.endswith("\ufffd"):  # a character may take several tokens
                print(text[len(shown) :], end="", flush=True)
                shown = text
        text = tokenizer.decode(ids)
        if not verb.json:
            print(text[len(shown) :])
        rate = len(ids) / max(time.monotonic() - began, 1e-9)
        found.append({"prompt": verb.prompt, "text": text, "tokens": len(ids), "tokens_per_second": round(rate, 1)})
    if verb.json:
        print_json(found)
    return 0
