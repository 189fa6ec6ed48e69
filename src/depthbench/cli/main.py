"""The entry point: parse, call the verb, and turn every mendable error into one line and exit code 2."""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from collections.abc import Sequence
from itertools import pairwise

import tyro

from depthbench import __version__
from depthbench.cli import arguments
from depthbench.errors import UserError, unknown

DESCRIPTION = """Which shape should a Transformer have, and which residual design turns depth into computation?

Start with: depthbench run quick"""

USER_ERROR = 2
FRAME = "╭─╮╰╯+-"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line. Returns the exit code: 0 fine, 1 some cells failed, 2 bad input, 130 interrupted."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        if words == ["--version"]:
            print(f"depthbench {__version__}")
            return 0
        code = call(parse(words))
        sys.stdout.flush()  # here, where a reader that has gone away is no error
        return code
    except UserError as error:
        return complain(str(error))
    except MemoryError as error:
        return complain(f"out of memory ({error}); use a smaller model, --batch-size or --micro-batch-size")
    except RuntimeError as error:
        if "memory" not in str(error) and "alloc" not in str(error):
            raise
        return complain(f"out of memory ({error}); use a smaller model, --batch-size or --micro-batch-size")
    except BrokenPipeError:  # the reader of a pipe, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return complain(f"{where}{error.strerror or error}; what was complete on disk is untouched")
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def complain(message: str) -> int:
    """One line on stderr."""
    print(f"depthbench: {' '.join(message.split())}", file=sys.stderr)
    return USER_ERROR


def parse(words: list[str]) -> object:
    """The verb with its options. Raises `UserError` for what cannot be parsed, in one line with the way to the help."""
    if not words:
        words = ["--help"]
    if not words[0].startswith("-") and words[0] not in arguments.VERBS:
        raise unknown("command", words[0], arguments.VERBS)
    refuse_empty_lists(words)
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(
                arguments.Verb,
                prog="depthbench",
                description=DESCRIPTION,
                args=words,
                config=(tyro.conf.OmitArgPrefixes, tyro.conf.OmitSubcommandPrefixes, tyro.conf.FlagCreatePairsOff),
            )
    except SystemExit as leaving:
        if leaving.code in (0, None):
            raise
        raise UserError(one_line(said.getvalue(), words)) from None


def refuse_empty_lists(words: Sequence[str]) -> None:
    """An option that takes a list, given without a value, is an error: it must not mean the default in silence."""
    for word, after in pairwise([*words, "--"]):
        if word in arguments.LISTS and after.startswith("--"):
            raise UserError(f"{word} is empty; give at least one value, or leave it out")


def one_line(box: str, words: list[str]) -> str:
    """The gist of tyro's framed message: what is wrong, the nearest valid option if there is one, and where the help is."""
    lines = [line.strip().strip("│|").strip() for line in box.splitlines()[1:]]  # the first line is the frame's title
    lines = [line for line in lines if set(line) - set(FRAME)]
    gist = " ".join(lines[: 2 if lines and lines[0].endswith(":") else 1])
    suggested = next((line for before, line in pairwise(lines) if before.startswith(("Perhaps", "Similar"))), "")
    hint = f"did you mean {suggested.split()[0]}? " if suggested else ""
    verb = " ".join(word for word in words[:2] if re.fullmatch("[a-z]+", word) and word in (*arguments.VERBS, "prepare", "show"))
    return f"{gist}; {hint}see depthbench {verb} --help"


def call(verb: object) -> int:
    """Run a parsed verb. Modules are imported here, when it is known which are needed."""
    if isinstance(verb, arguments.Shapes | arguments.Designs):
        from depthbench.cli import catalogue_verbs

        return catalogue_verbs.shapes(verb) if isinstance(verb, arguments.Shapes) else catalogue_verbs.designs(verb)
    if isinstance(verb, arguments.DataVerb):
        from depthbench.cli import data_verbs

        action = verb.action
        return data_verbs.prepare(action) if isinstance(action, arguments.DataPrepare) else data_verbs.show(action)
    if isinstance(verb, arguments.Train):
        from depthbench.cli import train_verb

        return train_verb.train(verb)
    if isinstance(verb, arguments.Plan):
        from depthbench.cli import plan_verb

        return plan_verb.plan(verb)
    if isinstance(verb, arguments.Run):
        from depthbench.cli import run_verb

        return run_verb.run(verb)
    if isinstance(verb, arguments.Diagnose):
        from depthbench.cli import diagnose_verb

        return diagnose_verb.diagnose(verb)
    if isinstance(verb, arguments.Eval):
        from depthbench.cli import eval_verb

        return eval_verb.evaluate(verb)
    if isinstance(verb, arguments.Generate | arguments.Export | arguments.Import):
        from depthbench.cli import exchange_verbs

        if isinstance(verb, arguments.Generate):
            return exchange_verbs.generate(verb)
        return exchange_verbs.export(verb) if isinstance(verb, arguments.Export) else exchange_verbs.import_(verb)
    from depthbench.cli import folder_verbs

    if isinstance(verb, arguments.Status):
        return folder_verbs.status(verb)
    assert isinstance(verb, arguments.Report)
    return folder_verbs.report(verb)
