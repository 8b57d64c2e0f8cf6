"""A small HTTP server that answers with JSON, in the place of vLLM's."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@contextlib.contextmanager
def serve_json(get: Callable[[str], Any], post: Callable[[str, bytes], Any]) -> Iterator[int]:
    """Serve on a free port of this machine, which is yielded.

    `get` returns the answer for a path, `post` that for a path and what was sent to it.
    """

    class Pages(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer(get(self.path))

        def do_POST(self) -> None:
            sent = self.rfile.read(int(self.headers["Content-Length"] or 0))
            self.answer(post(self.path, sent))

        def answer(self, values: Any) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(values).encode())

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Pages) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
