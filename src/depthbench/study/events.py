"""What a process that trains tells the one that started it: a JSON object a line."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field
from typing import Any, TextIO


@dataclass
class Events:
    """Events on their way to the parent. When nobody listens any more, that is a request to `stop`."""

    stream: TextIO
    stop: threading.Event = field(default_factory=threading.Event)

    def say(self, event: str, **fields: Any) -> None:
        """Send one event."""
        try:
            self.stream.write(json.dumps({"event": event, **fields}) + "\n")
            self.stream.flush()
        except (BrokenPipeError, ValueError):
            self.stop.set()
