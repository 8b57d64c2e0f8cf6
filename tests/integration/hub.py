"""A Hugging Face hub on this machine: what huggingface_hub asks of one for a push, and what it was
given.
"""

from __future__ import annotations

import base64
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "hf_" + "WritesOnThisMachineAlone"
ACCOUNT = {
    "type": "user",
    "name": "ann",
    "orgs": [{"name": "lab"}],
    "auth": {"accessToken": {"role": "write"}},
}
_COMMIT = "0" * 40
_MODEL = re.compile(
    r"/api/models/(?P<name>[\w.-]+/[\w.-]+?)(/(?P<verb>branch|preupload|commit|revision)/(?P<revision>.+))?"
)


@dataclass
class Hub:
    """`private`: of the repositories that were made; `files`: what was committed, by repository and
    branch.
    """

    address: str = ""
    private: dict[str, bool] = field(default_factory=dict)
    files: dict[tuple[str, str], dict[str, bytes]] = field(default_factory=dict)


@contextmanager
def running() -> Iterator[Hub]:
    """The hub, from start to stop."""
    hub = Hub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                self._answer(401, {"error": "Unauthorized"})
            elif self.path == "/api/whoami-v2":
                self._answer(200, ACCOUNT)
            elif (asked := _MODEL.fullmatch(self.path)) and asked["name"] in hub.private:
                self._answer(
                    200,
                    {
                        "id": asked["name"],
                        "sha": _COMMIT,
                        "private": hub.private[asked["name"]],
                        "siblings": [],
                    },
                )
            else:
                self._answer(404, {"error": "Repository not found"}, "RepoNotFound")

        do_HEAD = do_GET  # noqa: N815

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if (
                self.headers.get("Authorization") != f"Bearer {TOKEN}"
                and self.path != "/api/validate-yaml"
            ):
                self._answer(401, {"error": "Unauthorized"})
            elif self.path == "/api/validate-yaml":
                self._answer(200, {"errors": [], "warnings": []})
            elif self.path == "/api/repos/create":
                asked = json.loads(body)
                name = f"{asked.get('organization') or ACCOUNT['name']}/{asked['name']}"
                hub.private[name] = asked.get("visibility") == "private" or bool(
                    asked.get("private")
                )
                self._answer(200, {"url": f"{hub.address}/{name}", "id": name})
            elif found := _MODEL.fullmatch(self.path):
                self._of_a_model(found["name"], str(found["verb"]), str(found["revision"]), body)
            else:
                self._answer(404, {"error": self.path})

        def _of_a_model(self, name: str, verb: str, revision: str, body: bytes) -> None:
            if verb == "preupload":  # none of its files is large, whatever its size
                files = [
                    {"path": one["path"], "uploadMode": "regular"}
                    for one in json.loads(body)["files"]
                ]
                self._answer(
                    200, {"files": [{**one, "shouldIgnore": False, "oid": None} for one in files]}
                )
            elif verb == "commit":
                held = hub.files.setdefault((name, revision), {})
                for line in body.splitlines():
                    said = json.loads(line)
                    if said["key"] == "file":
                        held[said["value"]["path"]] = base64.b64decode(said["value"]["content"])
                where = f"{hub.address}/{name}/commit/{_COMMIT}"
                self._answer(200, {"success": True, "commitOid": _COMMIT, "commitUrl": where})
            else:
                self._answer(200, {})

        def _answer(self, status: int, told: dict[str, Any], code: str = "") -> None:
            body = json.dumps(told).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            if code:
                self.send_header("X-Error-Code", code)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing on the terminal."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.address = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield hub
    finally:
        server.shutdown()
