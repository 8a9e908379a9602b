"""Takes the place of `vllm`: `python vllm_by_our_engine.py serve WEIGHTS --port P --host H ...`, with our engine.

Speaks the part of vLLM's completions API that token policies use: ids in (`prompt`), ids out (`return_token_ids`). What
comes in is written to the output, a line a request.
"""

from __future__ import annotations

import argparse
import sys

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from tbexp.config.schema import Sampling
from tbexp.policy.engine import load_engine

parser = argparse.ArgumentParser()
parser.add_argument("command", choices=["serve"])
parser.add_argument("weights")
parser.add_argument("--port", type=int)
parser.add_argument("--host")
parser.add_argument("--max-model-len", type=int)
args, _ = parser.parse_known_args()
engine = load_engine(args.weights, slots=16, max_context=args.max_model_len)


async def completions(request: Request) -> JSONResponse:
    body = await request.json()
    assert body["return_token_ids"] is True
    made = await engine.generate(
        body["prompt"],
        session=str(body["seed"]),
        max_tokens=body["max_tokens"],
        sampling=Sampling(temperature=body["temperature"], top_p=body["top_p"], top_k=body.get("top_k", -1)),
        seed=body["seed"],
    )
    engine.release(str(body["seed"]))
    sys.stdout.write(f"prompt of {len(body['prompt'])}\n")
    sys.stdout.flush()
    choice = {"index": 0, "text": "", "token_ids": list(made.token_ids), "finish_reason": made.finish}
    used = {"prompt_tokens": len(body["prompt"]), "completion_tokens": len(made.token_ids)}
    return JSONResponse({"choices": [choice], "usage": used})


async def health(_: Request) -> JSONResponse:
    return JSONResponse({})


routes = [Route("/health", health), Route("/v1/completions", completions, methods=["POST"])]
uvicorn.run(Starlette(routes=routes), host=args.host, port=args.port, log_level="warning")
