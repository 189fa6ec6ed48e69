"""A trained run as a model of lm-evaluation-harness [github.com/EleutherAI/lm-evaluation-harness], called `depthbench`.

Importing this module registers it. The harness finds models that it does not bring itself only if somebody imports them, so the
command `depthbench-lm-eval` does that and hands over to the harness's own, with all of its options:

    depthbench-lm-eval run --model depthbench --model_args run=runs/quick/cells/hc-… --tasks piqa
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lm_eval.api.model import LM
from lm_eval.api.registry import register_model
from tqdm import tqdm

from depthbench.errors import UserError
from depthbench.evaluate.likelihood import Encoded, Score, encode, score_encoded
from depthbench.evaluate.runs import run_tokenizer
from depthbench.evaluate.scored_models import ScoredRun
from depthbench.evaluate.task_files import Document
from depthbench.model.decoding import Sampling, continuation
from depthbench.study.load import find_run, load_run, tokens_of

MAX_NEW_TOKENS = 256


@register_model("depthbench")
class DepthBenchLM(LM):  # type: ignore[misc]  # the harness has no types
    """`run` is a run folder, or an --out with one finished run; `data` token files made with its tokenizer, if those of its
    training are not found. The others as in `depthbench eval`.
    """

    def __init__(
        self,
        run: str,
        data: str = "",
        device: str | None = "cpu",
        precision: str = "fp32",
        batch_size: int | str = 16,
        max_gen_toks: int = MAX_NEW_TOKENS,
        threads: int = 0,
        **ignored: Any,
    ) -> None:
        super().__init__()
        folder = find_run(Path(run))
        self.tokenizer = run_tokenizer(folder, tokens_of(folder, data))
        model = load_run(folder.path)
        if int(threads):
            torch.set_num_threads(int(threads))
        self.scored = ScoredRun(model, self.tokenizer, folder.cell().label, device or "cpu", precision)
        self._device = self.scored.device
        self.batch_size = int(batch_size) if str(batch_size).isdecimal() else 16  # "auto" asks for the largest that fits
        self.max_gen_toks = int(max_gen_toks)

    @property
    def tokenizer_name(self) -> str:
        """For the harness's cache of requests."""
        return f"{self.tokenizer.name}-{self.tokenizer.hash[:12]}"

    def loglikelihood(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """Log-likelihood of each continuation given its context, and whether it is the likeliest token by token."""
        encoded = [encode(Document("", *request.args), self.scored) for request in requests]
        scores = self._scores(encoded, disable_tqdm)
        found = [(-item.nll, item.greedy) for item in scores]
        for request, answer in zip(requests, found, strict=True):
            self.cache_hook.add_partial("loglikelihood", request.args, answer)
        return found

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """Log-likelihood of each text after the EOS, every token once and from as much context as there is."""
        start = np.array([self.scored.eos], dtype=np.int64)
        texts = [request.args[0] for request in requests]
        encoded = [Encoded(start, self.scored.encode(text), len(text.encode())) for text in texts]
        found = [-item.nll for item in self._scores(encoded, disable_tqdm)]
        for request, answer in zip(requests, found, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, answer)
        return found

    def _scores(self, encoded: Sequence[Encoded], silent: bool) -> list[Score]:
        """In the order of `encoded`."""
        scoring = score_encoded(encoded, self.scored, self.batch_size)
        found = dict(tqdm(scoring, total=len(encoded), disable=silent, desc=self.scored.name))
        return [found[number] for number in range(len(encoded))]

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """What follows each context, up to the first of the words to stop at. The prompt leaves room for what is to be written."""
        found = []
        for request in tqdm(requests, disable=disable_tqdm):
            context, how = request.args
            until = how.get("until") or []
            until = [until] if isinstance(until, str) else list(until)
            most = int(how.get("max_gen_toks", self.max_gen_toks))
            temperature = float(how.get("temperature", 0.0)) if how.get("do_sample") else 0.0
            sampling = Sampling(temperature, int(how.get("top_k") or 0), float(how.get("top_p") or 1.0))
            prompt = self.scored.encode(context).tolist() or [self.scored.eos]
            prompt = prompt[-max(1, self.scored.context - most) :]
            text = self._written(prompt, sampling, most, until)
            found.append(text)
            self.cache_hook.add_partial("generate_until", request.args, text)
        return found

    def _written(self, prompt: list[int], sampling: Sampling, most: int, until: list[str]) -> str:
        ids: list[int] = []
        text = ""
        for token in islice(continuation(self.scored.model, prompt, sampling), most):
            if token == self.scored.eos:
                break
            ids.append(token)
            text = self.tokenizer.decode(ids)
            if any(word in text for word in until if word):
                break
        return text[: min((text.find(word) for word in until if word and word in text), default=len(text))]


def main() -> None:
    """The harness's command line, which knows this model by now."""
    from lm_eval.__main__ import cli_evaluate

    try:
        cli_evaluate()
    except UserError as error:
        print(f"depthbench-lm-eval: {error}", file=sys.stderr)
        sys.exit(2)
