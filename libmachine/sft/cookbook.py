"""tinker-cookbook's renderers (checked with 0.5.8) as ours: what its file loader cannot take, done here.

Null keys are left out, calls become ToolCall objects, reasoning a thinking part, tools the renderer's
own prefix; Inkling's effort is passed on. A renderer that would lose something is refused by name:
role_colon drops calls, Qwen3InstructRenderer drops thinking, both in silence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from libmachine.errors import MachineError
from libmachine.harness import template
from libmachine.harness.base import Message
from libmachine.sft.examples import Rendered
from libmachine.sft.renderers import CannotRender

_WITH_EFFORT = "tml_v0"


class CookbookRenderer:
    """A renderer of the cookbook. effort: 0 to 0.99, for Inkling only."""

    def __init__(self, inner: Any, name: str, effort: float | None = None) -> None:
        self.name = name
        self.has_effort = name == _WITH_EFFORT
        self._inner = inner
        self._extra = {"effort": effort} if self.has_effort and effort is not None else {}

    def prompt(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> list[int]:
        """Ids of the prompt, by build_generation_prompt."""
        turns = self._turns(messages, tools)
        return list(_asked(lambda: self._inner.build_generation_prompt(turns, **self._extra).to_ints()))

    def example(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
        sampled: Sequence[int] | None = None,
    ) -> Rendered:
        """By build_supervised_examples, with the renderer's own mask; sampled is not looked at."""
        last = messages[-1]
        rendered = self._supervised(messages, tools)
        if last.get("reasoning"):
            bare = {name: value for name, value in last.items() if name != "reasoning"}
            if self._supervised([*messages[:-1], bare], tools).tokens == rendered.tokens:
                raise CannotRender(f"renderer '{self.name}' drops its reasoning; --drop-reasoning")
        if last.get("tool_calls"):
            bare = {name: value for name, value in last.items() if name != "tool_calls"}
            if self._supervised([*messages[:-1], bare], tools).tokens == rendered.tokens:
                raise CannotRender(f"renderer '{self.name}' drops tool calls; name another with --renderer")
        if not any(rendered.weights):
            raise CannotRender(f"renderer '{self.name}' gives no token of it weight")
        return rendered

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids."""
        return str(self._inner.tokenizer.decode(list(ids)))

    def _supervised(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> Rendered:
        from tinker_cookbook.renderers import TrainOnWhat

        turns = self._turns(messages, tools)
        train = TrainOnWhat.LAST_ASSISTANT_MESSAGE
        made = _asked(
            lambda: self._inner.build_supervised_examples(turns, train_on_what=train, **self._extra)
        )
        if len(made) != 1:
            raise CannotRender(f"renderer '{self.name}' makes {len(made)} examples of one target")
        model_input, weights = made[0]
        return Rendered(list(model_input.to_ints()), [float(weight) for weight in weights.tolist()])

    def _turns(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        calls = {call["id"]: call["function"]["name"] for m in messages for call in m.get("tool_calls") or ()}
        turns: list[dict[str, Any]] = _asked(lambda: [_turn(message, calls) for message in messages])
        if not tools:
            if calls:
                raise CannotRender("it calls tools and was offered none")
            return turns
        system = ""
        if turns and turns[0]["role"] == "system":
            system = turns.pop(0)["content"]
        specs = [dict(tool["function"]) for tool in tools]
        try:
            prefix = self._inner.create_conversation_prefix_with_tools(specs, system)
        except NotImplementedError:
            raise CannotRender(
                f"renderer '{self.name}' has no tools and the run was offered some; "
                "name another with --renderer"
            ) from None
        return [*prefix, *turns]


def _turn(message: Message, calls: Mapping[str, str]) -> dict[str, Any]:
    """A message in the cookbook's form: no null keys, ToolCall objects, a thinking part."""
    from tinker_cookbook.renderers import ToolCall

    content = template.text(message.get("content"))
    turn: dict[str, Any] = {"role": message["role"], "content": content}
    if message.get("reasoning"):
        thinking = {"type": "thinking", "thinking": message["reasoning"]}
        turn["content"] = [thinking, *([{"type": "text", "text": content}] if content else [])]
    if message.get("tool_calls"):
        turn["tool_calls"] = [
            ToolCall(
                id=call.get("id"),
                function=ToolCall.FunctionBody(
                    name=call["function"]["name"], arguments=call["function"]["arguments"] or "{}"
                ),
            )
            for call in message["tool_calls"]
        ]
    if message["role"] == "tool":
        turn["tool_call_id"] = message["tool_call_id"]
        if message["tool_call_id"] in calls:
            turn["name"] = calls[message["tool_call_id"]]
    return turn


def _asked(question: Callable[[], Any]) -> Any:
    """The renderer's answer; whatever it raises means that it cannot render this."""
    try:
        return question()
    except Exception as error:  # theirs raise ValueError, KeyError, AssertionError, pydantic's, their own
        raise CannotRender(f"it cannot be rendered: {type(error).__name__}: {str(error)[:200]}") from None


def renderer(base_model: str, name: str | None, effort: float | None) -> CookbookRenderer:
    """The cookbook's renderer for a model. name: --renderer, else the one it recommends.

    Raises MachineError if it knows none, or the tokenizer cannot be had.
    """
    from tinker_cookbook import model_info, renderers, tokenizer_utils

    plain = base_model.partition(":")[0]
    if name is None:
        try:
            name = model_info.get_recommended_renderer_name(plain)
        except (
            Exception
        ) as error:  # ConfigurationError, KeyError, ValueError: depends on the part that is odd
            raise MachineError(
                f"tinker-cookbook knows no renderer for '{base_model}' ({error}); name one with --renderer"
            ) from None
    try:
        tokenizer = tokenizer_utils.get_tokenizer(base_model)
    except Exception as error:  # OSError, ValueError or whatever the hub's client raises
        told = " ".join(str(error).split())[:300]
        raise MachineError(
            f"cannot load the tokenizer of '{base_model}': {told}; it comes from the Hugging Face hub"
        ) from None
    try:
        inner = renderers.get_renderer(name, tokenizer, model_name=base_model)
    except Exception as error:
        raise MachineError(f"no renderer '{name}' for '{base_model}': {str(error)[:300]}") from None
    return CookbookRenderer(inner, name, effort)
