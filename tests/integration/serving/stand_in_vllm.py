"""Takes the place of `vllm`: `python stand_in_vllm.py [MODE] serve WEIGHTS --port P --host H ...`.

A real HTTP server in a process of its own, with a child in a process group of its own as vLLM's engine has. MODE: slow
(ready after a second), crash (says something and ends with 3), never (is alive, never ready), in_use (ends with 7 when
it is asked something). Its answers are those of the gardener that runs at GARDENER, or a short text.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MODES = ("slow", "crash", "never", "in_use")
words = sys.argv[1:]
mode = words.pop(0) if words[0] in MODES else ""
parser = argparse.ArgumentParser()
parser.add_argument("command", choices=["serve"])
parser.add_argument("weights")
parser.add_argument("--port", type=int)
parser.add_argument("--host")
parser.add_argument("--served-model-name")
args, rest = parser.parse_known_args(words)
sys.stdout.write(f"weights {args.weights}; further options: {' '.join(rest)}\n")
sys.stdout.write(f"environment: {' '.join(sorted(os.environ))}\n")
sys.stdout.flush()

parses = [
    any(word.startswith(f"--{name}") for word in rest) for name in ("enable-auto-tool-choice", "tool-call-parser")
]
if parses == [True, False]:
    sys.exit("TypeError: Error: --enable-auto-tool-choice requires --tool-call-parser\n")

engine = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
sys.stdout.write(f"engine {engine.pid}\n")
sys.stdout.flush()
if mode == "crash":
    sys.exit("RuntimeError: no such device\n")
begun = time.monotonic()


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        ready = mode != "never" and (mode != "slow" or time.monotonic() > begun + 1.0)
        listed = {"object": "list", "data": [{"id": args.served_model_name, "object": "model"}]}
        self.reply(200 if ready else 503, listed if self.path == "/v1/models" else {})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if mode == "in_use":
            sys.stdout.write("CUDA error: an illegal memory access was encountered\n")
            sys.stdout.flush()
            os._exit(7)
        asked = json.loads(body)
        if asked.get("tools") and asked.get("tool_choice", "auto") != "none" and not all(parses):
            told = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
            self.reply(400, {"error": {"message": told, "type": "BadRequestError", "code": 400}})
            return
        if os.environ.get("GARDENER"):
            request = urllib.request.Request(os.environ["GARDENER"] + self.path.removeprefix("/v1"), body)
            self.reply(200, json.load(urllib.request.urlopen(request)))
            return
        message = {"role": "assistant", "content": "hello"}
        self.reply(200, {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})

    def reply(self, status: int, value: object) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        return None


server = ThreadingHTTPServer((args.host, args.port), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
engine.wait()
