"""The echo engine: answers with the input. Needs nothing, costs nothing; for dry runs and pipes."""

from __future__ import annotations

from libmachine.define import text_of
from libmachine.harness.base import Completion, Request


class EchoEngine:
    """Replies with the last user message."""

    name = "echo"
    model = "echo"

    def complete(self, request: Request) -> Completion:
        """The last user message, as the assistant's."""
        users = [m for m in request.messages if m["role"] == "user"]
        text = text_of(users[-1].get("content")) if users else ""
        return Completion(
            message={"role": "assistant", "content": text},
            finish_reason="stop",
            model="echo",
            prompt_tokens=0,
            cached_tokens=0,
            completion_tokens=0,
            reasoning_tokens=0,
        )

    def close(self) -> None:
        """Nothing to let go of."""
