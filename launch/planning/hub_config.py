"""The config.json of a model on the hub, for a prediction of its memory and time: fetched once, with
a time limit, and kept.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any

from launch.files import parse_json, read_json_object, write_json
from launch.planning.hub_cache import hf_home, hub_snapshot
from launch.resources import user_cache

HUB = "https://huggingface.co"
_TIME_LIMIT = 3.0  # seconds that a plan waits, the DNS lookup included
_FAILURE_KEPT = 3600.0  # seconds in which the hub is not asked again after it failed
_LARGEST = 1 << 20  # bytes; a config.json has some kilobytes
_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")  # huggingface_hub constants.py
TOKEN_CURE = "run `hf auth login`, or export HF_TOKEN"
_NAME = re.compile(r"[\w.-]+/[\w.-]+")  # OWNER/NAME; anything else is not on the hub

# Owners whose models require a licence to be accepted; there may be others.
_GATED = (
    "meta-llama/",
    "google/gemma",
    "mistralai/",
    "CohereLabs/",
    "CohereForAI/",
    "bigcode/starcoder",
)


@dataclass(frozen=True)
class FetchedConfig:
    """What is known of a model's config.json."""

    config: Mapping[str, Any] | None
    why: str = ""  # the reason why it is not known


def is_gated(reference: str) -> bool:
    """Return whether a model of the hub is known to require a licence to be accepted."""
    return reference.startswith(_GATED)


def lacks_token(reference: str, environ: Mapping[str, str]) -> bool:
    """Return whether a model of the hub is gated, is not in the cache, and no token was found."""
    if not is_gated(reference) or find_hub_token(environ):
        return False
    return hub_snapshot(reference, environ) is None


def missing_token(reference: str) -> str:
    return f"{reference} is gated, and no token was found"


def offline_variable(environ: Mapping[str, str]) -> str | None:
    """Return the variable that forbids the hub, with its value; None if it is allowed."""
    for name in _OFFLINE:
        if environ.get(name, "").upper() in ("1", "ON", "YES", "TRUE"):
            return f"{name}={environ[name]}"
    return None


def find_hub_token(environ: Mapping[str, str]) -> str | None:
    """Return the token that huggingface_hub uses: a variable's, or that of `hf auth login`."""
    variable = environ.get("HF_TOKEN") or environ.get("HUGGING_FACE_HUB_TOKEN")
    if variable:
        return variable.strip()
    file = Path(environ.get("HF_TOKEN_PATH") or hf_home(environ) / "token").expanduser()
    try:
        return file.read_text(encoding="utf-8").strip() or None
    except (OSError, UnicodeDecodeError):
        return None


def find_hub_config(
    reference: str, revision: str | None, environ: Mapping[str, str], limit: float = _TIME_LIMIT
) -> FetchedConfig:
    """Return the config.json of a hub model: the one that is kept below ~/.cache/launch, else the
    hub's (HF_ENDPOINT).

    The hub is asked at most once for `limit` seconds, and not at all with HF_HUB_OFFLINE. What it
    answers is kept; a failure is kept for an hour.
    """
    if not _NAME.fullmatch(reference):
        return FetchedConfig(None, "it is neither a folder here nor OWNER/NAME on the hub")
    name = f"{reference}@{revision or 'main'}".replace("/", "--")
    kept = user_cache(environ) / "hub_configs" / f"{name}.json"
    record = read_json_object(kept)
    if isinstance(record.get("config"), dict):
        return FetchedConfig(record["config"])
    forbidding = offline_variable(environ)
    if forbidding is not None:
        return FetchedConfig(None, f"{forbidding} forbids to ask the hub for its config.json")
    failed_at = record.get("failed_at")
    if isinstance(failed_at, int | float) and 0 <= time.time() - failed_at < _FAILURE_KEPT:
        return FetchedConfig(None, f"{record.get('why')}; asked within the last hour")
    found = _ask(reference, revision or "main", environ, limit)
    record = {"config": found.config}
    if found.config is None:
        record = {"failed_at": time.time(), "why": found.why}
    with suppress(OSError):  # a cache that can't be written costs the next plan a question
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_json(kept, record)
    return found


def _ask(reference: str, revision: str, environ: Mapping[str, str], limit: float) -> FetchedConfig:
    """Ask the hub for a config.json, for at most `limit` seconds."""
    endpoint = environ.get("HF_ENDPOINT") or HUB
    url = f"{endpoint.rstrip('/')}/{reference}/resolve/{revision}/config.json"
    token = find_hub_token(environ)
    answers: list[FetchedConfig] = []
    # A DNS lookup has no time limit, and the exit would wait for the thread of a pool.
    thread = Thread(target=lambda: answers.append(_download(url, token, limit)), daemon=True)
    thread.start()
    thread.join(limit)
    return (
        answers[0] if answers else FetchedConfig(None, f"the hub did not answer within {limit:g} s")
    )


def _download(url: str, token: str | None, limit: float) -> FetchedConfig:
    # a plan that asks no hub does not wait for the import of a client
    import urllib.error
    import urllib.request

    request = urllib.request.Request(url)
    if token is not None:
        request.add_unredirected_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=limit) as answer:
            config = parse_json(answer.read(_LARGEST))
    except urllib.error.HTTPError as error:
        if error.code in (401, 403):
            why = "the hub refuses its config.json: it is private or gated (`hf auth login`)"
        elif error.code == 404:
            why = "the hub has no config.json of it"
        else:
            why = f"the hub answers {error.code}"
        return FetchedConfig(None, why)
    except (OSError, ValueError) as error:
        return FetchedConfig(None, f"the hub can't be read ({getattr(error, 'reason', error)})")
    if not isinstance(config, dict):
        return FetchedConfig(None, "its config.json on the hub is not an object")
    return FetchedConfig(config)
