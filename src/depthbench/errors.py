"""Errors that a user can mend: one line that says what is wrong, which value, and what would be right."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Bad input. The command line prints the message alone and exits with code 2; a library caller may catch it."""


def nearest(name: str, valid: Iterable[str]) -> str:
    """A hint for an unknown `name`: the closest valid one if any is close, and the list of all."""
    names = sorted(valid)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"{hint}valid: {', '.join(names)}"


def unknown(kind: str, name: str, valid: Iterable[str]) -> UserError:
    """The error for a `name` of some `kind` (design, study, option …) that does not exist."""
    return UserError(f"unknown {kind} {name!r}; {nearest(name, valid)}")
