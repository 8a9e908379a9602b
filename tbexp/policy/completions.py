"""Tokens from vLLM's completions endpoint, for a policy that renders and reads for itself.

Decided here: what is asked of it, so that the same token ids go in and come out as in training: the prompt as ids, the
produced ids with their end token, nothing decoded in between. Left to others: retries and whose fault a refusal is
(endpoint.py), rendering and reading (interpret).
"""

from __future__ import annotations

import json
from typing import Any

from tbexp.config.schema import Sampling
from tbexp.policy.endpoint import ChatEndpoint
from tbexp.policy.tokens import Generated


class TokenEndpoint(ChatEndpoint):
    """An endpoint of vLLM (0.10.2 or newer) that takes and gives token ids; `generate` is a `Generate`."""

    PATH = "/completions"
    ANSWER = "completion with token ids (return_token_ids, of vLLM 0.10.2 or newer)"

    async def generate(
        self, ids: list[int], *, session: str, max_tokens: int, sampling: Sampling, seed: int
    ) -> Generated:
        """At most `max_tokens` tokens after `ids`, without log-probabilities. session: vLLM finds the prefix itself.

        Raises as `complete` does; OutOfContext where the server's context is smaller than was thought.
        """
        body: dict[str, Any] = {
            "prompt": ids,
            "max_tokens": max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            # What is not said has the values of the model's generation_config.json, and training has not.
            "top_k": max(sampling.top_k, 0),
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "seed": seed,
            "return_token_ids": True,
        }
        choice = (await self.complete(body))["choices"][0]
        return Generated(choice["token_ids"], None, "length" if choice.get("finish_reason") == "length" else "stop")

    def understood(self, content: bytes) -> dict[str, Any] | None:
        try:
            answer = json.loads(content)
            ids = answer["choices"][0]["token_ids"]
        except (ValueError, KeyError, IndexError, TypeError):
            return None
        sound = isinstance(answer, dict) and isinstance(ids, list) and all(type(token) is int for token in ids)
        return answer if sound else None
