"""Is a name a folder or a repository, and can the hub be reached? Asked first: the library retries for half a minute."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path
from urllib.parse import urlsplit

from depthbench.errors import UserError

HUB = "https://huggingface.co"
PATIENCE_SECONDS = 4.0
PROXIES = ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY")
ON = ("1", "ON", "YES", "TRUE")


def check_name(name: str) -> None:
    """Raise `UserError` if `name` is no folder and can be no repository, or one that is not here and cannot be fetched."""
    path = Path(name).expanduser()
    if path.is_dir():
        if name.startswith("~"):
            raise UserError(f"{name} is not expanded here; give {path}")
        return
    if path.is_file():
        raise UserError(f"{name} is a file; give the folder that it lies in")
    if path.is_absolute() or name.startswith(".") or name.count("/") > 1:
        raise UserError(f"{name} does not exist: no such folder; give a folder with config.json, or the name of a repository")
    if not _is_cached(name) and not _leaves_it_to_others() and not can_be_reached(_host()):
        raise UserError(
            f"{name} is no folder here and not in the local cache, and the hub ({_host()}) cannot be reached; give a folder, or the"
            " name of a repository where there is a network"
        )


def can_be_reached(host: str, port: int = 443, patience: float = PATIENCE_SECONDS) -> bool:
    """Whether `host` has an address that answers. Looking up a name knows no time limit, so a thread does it."""
    found: list[bool] = []

    def look() -> None:
        try:
            socket.create_connection((host, port), timeout=patience).close()
            found.append(True)
        except OSError:
            pass

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    thread.join(patience)
    return bool(found)


def shown_name(name: str) -> str:
    """What to call a checkpoint: the real name of its folder, or the last part of its repository's."""
    path = Path(name)
    return path.resolve().name if path.is_dir() else path.name


def source_of(name: str) -> str:
    """What tells a checkpoint from another of the same name: where its folder is, or its repository."""
    path = Path(name)
    return str(path.resolve()) if path.is_dir() else name


def _host() -> str:
    return urlsplit(os.environ.get("HF_ENDPOINT") or HUB).hostname or HUB


def _leaves_it_to_others() -> bool:
    """Offline mode answers at once by itself, and behind a proxy names are not looked up here."""
    proxied = any(os.environ.get(name) or os.environ.get(name.lower()) for name in PROXIES)
    return proxied or os.environ.get("HF_HUB_OFFLINE", "").upper() in ON


def _is_cached(name: str) -> bool:
    try:
        from huggingface_hub import try_to_load_from_cache

        return isinstance(try_to_load_from_cache(name, "config.json"), str)
    except (ImportError, ValueError):
        return False
