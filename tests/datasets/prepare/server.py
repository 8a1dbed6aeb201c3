"""A web server with the faults that they have."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Served:
    """
    :param files: name -> content
    :param ranges: whether it can send a part of a file
    :param cut_after: closes the connection after so many bytes of an answer
    :param errors: statuses of the next answers, instead of the file
    :param wrong_range: bytes that it starts too late
    :param says_length: whether it says how long the file is
    :param asked: name and first byte of each request
    """

    files: dict[str, bytes]
    ranges: bool = True
    cut_after: int | None = None
    errors: list[int] = field(default_factory=list)
    wrong_range: int = 0
    says_length: bool = True
    asked: list[tuple[str, int]] = field(default_factory=list)
    url: str = ""


@contextlib.contextmanager
def serve(files: dict[str, bytes], **options) -> Iterator[Served]:
    """Serves on this machine, at ``url``."""
    served = Served(files, **options)

    class _Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            name = self.path.rpartition("/")[2]
            start = int((self.headers.get("Range") or "bytes=0-").removeprefix("bytes=").rstrip("-"))
            served.asked.append((name, start))
            if served.errors or name not in served.files:
                self.send_error(served.errors.pop(0) if served.errors else 404)
                return
            content = served.files[name]
            start = start if served.ranges else 0
            if start >= len(content) > 0 and start:
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(content)}")
                self.end_headers()
                return
            start += served.wrong_range if start else 0
            self.send_response(206 if start else 200)
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
            if served.says_length:
                self.send_header("Content-Length", str(len(content) - start))
            self.end_headers()
            self.wfile.write(content[start:] if served.cut_after is None else content[start:][: served.cut_after])

        def log_message(self, *_args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    served.url = f"http://127.0.0.1:{server.server_address[1]}/resources/12/"
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
