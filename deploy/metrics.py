# SPDX-License-Identifier: Apache-2.0
"""usage: metrics.py PORT      answers each GET with what `onecopy ls --format prometheus` prints"""

import http.server
import subprocess
import sys

COMMAND = ["onecopy", "ls", "--format", "prometheus"]


class Metrics(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        result = subprocess.run(COMMAND, capture_output=True)
        self.send_response(500 if result.returncode else 200)
        self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.end_headers()
        self.wfile.write(result.stderr if result.returncode else result.stdout)

    def log_request(self, *_: object) -> None:
        """Logs no request; errors are logged."""


if __name__ == "__main__":
    http.server.ThreadingHTTPServer(("", int(sys.argv[1])), Metrics).serve_forever()
