"""Progress of long work: a live bar with ETA on a terminal, one plain line per interval when output is piped."""

from __future__ import annotations

import math
import sys
import time
from types import TracebackType
from typing import TextIO


def duration(seconds: float) -> str:
    """Seconds as people read them: `8s`, `3:05`, `2:10:00`, `3d 04:00`."""
    whole = round(max(seconds, 0.0))
    if whole < 60:
        return f"{whole}s"
    minutes, second = divmod(whole, 60)
    hours, minute = divmod(minutes, 60)
    if hours == 0:
        return f"{minute}:{second:02d}"
    days, hour = divmod(hours, 24)
    return f"{hours}:{minute:02d}:{second:02d}" if days == 0 else f"{days}d {hour:02d}:{minute:02d}"


class Progress:
    """Counts work from `start` to `total` and says how far it is and how long the rest will take.

    Use as a context manager and call `update(done, note)`. It writes to stderr, so that stdout stays for results. The rate is
    measured from where this process began, so a resumed run shows an honest ETA. A total of infinity means that
    nobody knows it yet.
    """

    def __init__(self, title: str, total: float, *, start: float = 0, interval: float = 10.0, out: TextIO | None = None):
        self.title, self.total, self.start, self.interval = title, total, start, interval
        self.out = out if out is not None else sys.stderr
        self.live = self.out.isatty()
        self.began = self.shown = time.monotonic()
        self.width = 0

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def update(self, done: float, note: str = "") -> None:
        """Say that `done` of `total` is finished; `note` is a short text such as the latest loss."""
        now = time.monotonic()
        if done < self.total and now - self.shown < (0.1 if self.live else self.interval):
            return
        self.shown = now
        self.write(self.line(done, note, now - self.began))

    def line(self, done: float, note: str, elapsed: float) -> str:
        """The text of one update."""
        if self.total == math.inf:
            return "  ".join(part for part in (self.title, note, duration(elapsed)) if part)
        share = min(done / self.total, 1.0) if self.total else 1.0
        fresh = done - self.start
        rest = f"eta {duration((self.total - done) * elapsed / fresh)}" if fresh > 0 and done < self.total else duration(elapsed)
        bar = f"[{'#' * round(20 * share):<20}] " if self.live else ""
        return "  ".join(part for part in (f"{self.title} {bar}{share:4.0%}", note, rest) if part)

    def write(self, text: str) -> None:
        """Show one line: over the last one on a terminal, below it elsewhere."""
        if self.live:
            self.out.write("\r" + text + " " * max(0, self.width - len(text)))
            self.width = len(text)
        else:
            self.out.write(text + "\n")
        self.out.flush()

    def close(self) -> None:
        """End the live line so that later output starts on a line of its own."""
        if self.live and self.width:
            self.out.write("\n")
            self.out.flush()
            self.width = 0
