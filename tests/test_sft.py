"""machine-sft's parts: what is learned of a run, the render check, the plan, the loop, the folder.

What needs the libraries runs in the Python of the extra `sft` (MACHINE_PYTHON, which tests/run makes) and
compares the decoded text of what they render.
"""

from __future__ import annotations

import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libmachine import prices
from libmachine.errors import Interrupted, MachineError, ProviderError
from libmachine.export import Dropped
from libmachine.sft import check, dataset, elsewhere, keep, plan, service, told
from libmachine.sft.candidate import plain_model
from libmachine.sft.examples import Example, Rendered, digest, fitting, loss_ends, mean_nll, merged, shuffled
from libmachine.sft.folder import Training, results
from libmachine.sft.renderers import CannotRender
from libmachine.sft.trainer import SAVE_EVERY, Trainer

ROOT = Path(__file__).resolve().parent.parent
PYTHON = os.environ.get("MACHINE_PYTHON", sys.executable)
TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
    },
}
CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a":1}'}}
BRIEF = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2?"}]


def step(message: int, **more: Any) -> dict[str, Any]:
    base = {"message": message, "finish_reason": "stop", "tools": []}
    return {**base, **dict.fromkeys(("prompt_tokens", "completion_tokens", "reasoning_tokens")), **more}


def run(name: str, answers: Sequence[Any], steps: Sequence[Any], **more: Any) -> dict[str, Any]:
    return {
        "id": name,
        "model": "ours",
        "case": {"id": name, "identity": name},
        "sampling": {},
        "messages": [*BRIEF, *answers],
        "tools": [],
        "steps": list(steps),
        **more,
    }


def used(ok: bool) -> dict[str, Any]:
    return {"tools": [{"id": "c1", "name": "add", "ok": ok}], "finish_reason": "tool_calls"}


def answer(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


def tool_run(name: str, ok: bool = True, **more: Any) -> dict[str, Any]:
    answers = [
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "2"},
        answer("It is 2."),
    ]
    return run(name, answers, [step(2, **used(ok)), step(4)], tools=[TOOL], **more)


class Words:
    """A renderer whose tokens are words. forgets: it leaves earlier answers out, as thinking renderers do."""

    name = "words"

    def __init__(self, forgets: bool = False, has_effort: bool = False) -> None:
        self.forgets, self.has_effort = forgets, has_effort
        self.seen: list[str] = []

    def _ids(self, text: str) -> list[int]:
        words = text.split()
        self.seen += [word for word in words if word not in self.seen]
        return [self.seen.index(word) for word in words]

    def prompt(self, messages: Sequence[Any], tools: Sequence[Mapping[str, Any]]) -> list[int]:
        told = "".join(f" tool:{tool['function']['name']}" for tool in tools)
        for message in messages:
            if not (self.forgets and message["role"] == "assistant"):
                told += f" {message['role']}: {message.get('content') or 'call'}"
        return self._ids(told + " assistant:")

    def example(
        self,
        messages: Sequence[Any],
        tools: Sequence[Mapping[str, Any]],
        sampled: Sequence[int] | None = None,
    ) -> Rendered:
        prompt = self.prompt(messages[:-1], tools)
        text = messages[-1].get("content") or "call"
        if "unspeakable" in text:
            raise CannotRender("it cannot be said")
        said = list(sampled) if sampled is not None else self._ids(text)
        return Rendered(prompt + said, [0.0] * len(prompt) + [1.0] * len(said))

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join(self.seen[i] for i in ids)


def build(runs: Sequence[dict[str, Any]], **more: Any) -> tuple[dataset.Dataset, Dropped, Words]:
    renderer = more.pop("renderer", None) or Words()
    ids: Callable[[str], Any] = more.pop("ids", lambda oid: None)
    dropped = Dropped()
    ours: Callable[[Any], bool] = lambda one: one["model"] == "ours"  # noqa: E731
    return dataset.build(runs, renderer, ids, ours, dropped, **more), dropped, renderer


def learned(example: Example, renderer: Words) -> str:
    tokens, weights = example.rendered
    return renderer.decode([token for token, weight in zip(tokens, weights, strict=True) if weight])


# examples -------------------------------------------------------------------------------


def test_a_run_is_one_example_where_prefixes_hold() -> None:
    made, _, renderer = build([tool_run("a")])
    assert [learned(example, renderer) for example in made.examples] == ["call It is 2."]
    assert made.examples[0].messages == (2, 4)
    assert made.whole == 1
    made, _, renderer = build([tool_run("a")], renderer=Words(forgets=True))
    assert [learned(example, renderer) for example in made.examples] == ["call", "It is 2."]
    assert [example.messages for example in made.examples] == [(2,), (4,)]


def test_what_is_no_target() -> None:
    made, _, renderer = build([tool_run("failed", ok=False)])
    assert [learned(example, renderer) for example in made.examples] == ["It is 2."]
    assert "call" in renderer.decode(made.examples[0].rendered.tokens), "the failed call stays in the context"
    half = {"tools": [{"id": "1", "name": "add", "ok": False}, {"id": "2", "name": "add", "ok": True}]}
    some = tool_run("some")
    some["steps"][0] |= half
    assert learned(build([some])[0].examples[0], renderer) == "call It is 2."


@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4), min_size=1, max_size=4))
def test_merging_keeps_every_mask(pieces: list[list[int]]) -> None:
    steps, tokens = [], [9]
    for piece in pieces:
        prompt, tokens = [*tokens, 8], [*tokens, 8, *piece]
        steps.append(Rendered(tokens, [0.0] * len(prompt) + [1.0] * len(piece)))
    whole = merged(steps)
    assert whole is not None and whole.tokens == tokens
    assert sum(whole.weights) == sum(map(len, pieces))
    assert all(token != 8 or not weight for token, weight in zip(*whole, strict=True))
    changed = [Rendered([7, *steps[0].tokens[1:]], steps[0].weights), *steps[1:]]
    assert (merged(changed) is None) == (len(steps) > 1)


def test_long_examples_are_left_out_whole() -> None:
    short, long = (Example(Rendered([1] * n, [1.0] * n), "r", "c", (2,)) for n in (4, 5))
    assert fitting([short, long], 4) == ([short], [long])
    assert fitting([short, long], None) == ([short, long], [])
    assert digest([short, long]) == digest([long, short]) != digest([short])


def test_mean_loss_counts_tokens_and_not_examples() -> None:
    assert mean_nll([[-1.0, -9.0], [-4.0]], [[1.0, 0.0], [1.0]]) == 2.5
    assert mean_nll([[-1.0]], [[0.0]]) is None


def test_tools_are_rendered_as_they_were_sent() -> None:
    stored = json.loads(json.dumps(TOOL, sort_keys=True))
    assert json.dumps(dataset.as_sent([stored], [TOOL])[0]) == json.dumps(TOOL)
    names = list(dataset.as_sent([stored], [])[0]["function"])
    assert names == ["name", "description", "parameters"], "OpenAI's order where the tool is gone"


# the render check -----------------------------------------------------------------------


def test_token_ids_are_compared_where_they_are_stored() -> None:
    renderer = Words()
    prompt = renderer.prompt(BRIEF, [])
    right = {"prompt": prompt, "completion": renderer._ids("four indeed")}
    wrong = {**right, "prompt": [*prompt[:2], prompt[0], *prompt[3:]]}
    blobs = {"right": right, "wrong": wrong}
    good = run("good", [answer("four")], [step(2, tokens="right", prompt_tokens=999)])
    bad = run("bad", [answer("four")], [step(2, tokens="wrong")])
    made, dropped, _ = build([good, bad], renderer=renderer, ids=blobs.get)
    assert [learned(example, renderer) for example in made.examples] == ["four indeed"], "the sampled ids"
    assert [difference.case for difference in made.differences] == ["bad"]
    assert "at token 2" in made.differences[0].what
    assert made.mismatched == 0.5
    assert list(dropped.reasons) == ["it renders to something else than what was sampled"]


def test_counts_are_compared_where_there_are_no_ids() -> None:
    count = len(Words().prompt(BRIEF, []))
    runs = [run(str(n), [answer("four")], [step(2, prompt_tokens=n)]) for n in (count, count + 1)]
    made, _, _ = build([*runs, run("none", [answer("four")], [step(2)])])
    assert [difference.run for difference in made.differences] == [str(count + 1)]
    assert (made.compared, made.uncompared, len(made.examples)) == (2, 1, 2)
    foreign = run("foreign", [answer("four")], [step(2, prompt_tokens=1)], model="another")
    made, _, _ = build([foreign])
    assert (made.compared, made.uncompared, len(made.examples)) == (0, 1, 1)


def test_every_step_is_checked_not_only_targets() -> None:
    failed = tool_run("failed", ok=False)
    failed["steps"][0]["prompt_tokens"] = 1
    made, _, _ = build([failed])
    assert [difference.step for difference in made.differences] == [0]


def test_thoughts_that_were_not_captured() -> None:
    made, _, _ = build([run("a", [answer("four")], [step(2, completion_tokens=200)])])
    assert "reasoning perhaps, is missing" in made.differences[0].what
    made, _, _ = build([run("a", [answer("four")], [step(2, completion_tokens=200)])], drop_reasoning=True)
    assert len(made.examples) == 1


def test_over_five_percent_is_fatal() -> None:
    different = check.Difference("r", "c", 0, "told")
    few = dataset.Dataset(differences=[different], compared=20)
    many = dataset.Dataset(differences=[different], compared=19)
    told.judge_check(few, allowed=False, dry_run=False)
    told.judge_check(many, allowed=True, dry_run=False)
    told.judge_check(many, allowed=False, dry_run=True)
    with pytest.raises(MachineError, match=r"1 of 19 runs .* step 1: told; --allow-render-mismatch"):
        told.judge_check(many, allowed=False, dry_run=False)


def test_effort_is_compared_by_value() -> None:
    runs = [run(str(e), [answer("four")], [step(2)], sampling={"effort": e}) for e in ("high", "0.2", "low")]
    assert [check.effort_of(one) for one in runs] == [0.9, 0.2, 0.2]
    assert check.usual_effort(runs) == 0.2
    made, _, _ = build(runs, renderer=Words(has_effort=True), effort=0.2)
    assert [difference.run for difference in made.differences] == ["high"]
    assert made.mismatched == 1.0, "compared by effort alone"


def test_what_cannot_be_rendered_is_named() -> None:
    made, dropped, _ = build([run("a", [answer("unspeakable")], [step(2)])])
    assert (made.examples, list(dropped.reasons)) == ([], ["it cannot be said"])


# the plan -------------------------------------------------------------------------------


def examples(count: int, length: int = 5) -> list[Example]:
    weights = [0.0, *[1.0] * (length - 1)]
    return [Example(Rendered([n] * length, weights), f"r{n}", f"c{n}", (2,)) for n in range(count)]


def settings(**more: Any) -> plan.Settings:
    base = {"base_model": "local/x", "renderer": "words", "rank": 16, "batch_size": 8, "epochs": 4}
    return plan.Settings(**{**base, "learning_rate": 1e-3, **more})


@given(st.integers(1, 40), st.integers(1, 9), st.integers(1, 4), st.integers(0, 3))
def test_each_epoch_takes_every_example_once(count: int, batch: int, epochs: int, seed: int) -> None:
    made = plan.make(examples(count), settings(batch_size=batch, epochs=epochs, seed=seed))
    assert len(made.steps) == -(-count // batch) * epochs
    for epoch in range(epochs):
        taken = [number for one in made.steps if one.epoch == epoch for number in one.examples]
        assert sorted(taken) == list(range(count))
    assert made.tokens() == count * epochs * 4
    rates = [one.learning_rate for one in made.steps]
    assert rates[0] == 1e-3 and rates == sorted(rates, reverse=True) and rates[-1] > 0


def test_steps_go_through_as_many_epochs_as_they_need() -> None:
    made = plan.make(examples(3), settings(batch_size=2, steps=5))
    assert [one.epoch for one in made.steps] == [0, 0, 1, 1, 2]
    assert [len(one.examples) for one in made.steps] == [2, 1, 2, 1, 2]


def test_the_price_is_exact_and_the_steps_come_to_it() -> None:
    price = prices.price_of("thinkingmachines/Inkling")
    made = plan.make(examples(7, 44), settings(batch_size=3))
    assert price is not None and made.cost(price) == round(7 * 4 * 43 * 11.22 / 1e6, 6)
    parts = [made.cost_of(price, one) or 0 for one in made.steps]
    assert round(sum(parts), 6) == made.cost(price)
    unknown = prices.price_of("Qwen/Qwen3.8-27B")
    assert unknown is not None and made.cost(unknown) is None and made.cost(None) is None


def test_a_training_is_named_by_what_decides_it() -> None:
    one = plan.make(examples(3), settings())
    assert one.id == plan.make(examples(3), settings()).id
    others = [settings(seed=1), settings(rank=8), settings(learning_rate=1e-4), settings(start="tinker://a")]
    ids = {one.id, plan.make(examples(2), settings()).id, plan.make(examples(3), settings(), "host").id}
    assert len(ids | {plan.make(examples(3), other).id for other in others}) == 7


def test_defaults_that_were_measured() -> None:
    assert plan.default_rate("local/smollm2-135m-instruct") == 5e-4
    assert plan.default_rate("thinkingmachines/Inkling-Small") == 2e-4
    assert plan.default_rate("Qwen/Qwen3-8B") is None


def graded(case: str, passed: bool | None, status: str = "ok") -> dict[str, Any]:
    return {"status": status, "case": {"identity": case}, "scorecard": {"passed": passed}}


def test_warnings() -> None:
    solved = plan.Solved({})
    for case in ("c0", "c1"):
        for _ in range(20):
            solved.add(graded(case, True))
    for case in ("x", "y"):
        solved.add(graded(case, False))
    solved.add(graded("z", None))
    solved.add(graded("z", False, "failed"))
    told = solved.record({"c0", "c1"})
    assert told == {"cases": 4, "unsolved": 2, "median_rate": 1.0}
    found = plan.warnings(plan.make(examples(2), settings()), told, unthinking=1)
    codes = ["few_steps", "small_data", "unsolved", "easy", "unthinking"]
    assert [warning.partition(":")[0] for warning in found] == codes
    fine = {"cases": 4, "unsolved": 1, "median_rate": 0.5}
    assert plan.warnings(plan.make(examples(40), settings()), fine) == []
    of_teacher = plan.warnings(plan.make(examples(2), settings()), told, unthinking=1, taught=True)
    assert of_teacher == [line for line in found if not line.startswith("easy")]


def test_base_of_a_model_id() -> None:
    assert plain_model("local/smollm2-135m-instruct#b179") == "local/smollm2-135m-instruct"
    assert plain_model("local/smollm2-135m-instruct+9e7a") == "local/smollm2-135m-instruct"
    assert plain_model("tinker/Qwen/Qwen3-8B;tinker://r/sampler_weights/1") == "Qwen/Qwen3-8B"


@given(
    st.lists(st.integers(0, 5), min_size=2, max_size=24).filter(lambda cases: len(set(cases)) > 1),
    st.integers(0, 3),
)
def test_answers_are_shuffled_among_cases(cases: list[int], seed: int) -> None:
    many = []
    for number, case in enumerate(cases):
        prompt, said = [100 + case, 7], [1000 + number] * (1 + number % 3)
        rendered = Rendered(prompt + said, [0.0] * 2 + [1.0] * len(said))
        many.append(Example(rendered, f"run{number}", f"case{case}", (2,)))
    made, kept = shuffled(many, seed)
    assert [(one.run, one.case, one.rendered.tokens[:2]) for one in made] == [
        (one.run, one.case, one.rendered.tokens[:2]) for one in many
    ], "prompts stay where they are"
    said = [one.rendered.tokens[2] - 1000 for one in made]
    assert sorted(said) == list(range(len(cases))), "each answer is learned once"
    assert all(one.rendered.weights[2:] == [1.0] * (1 + n % 3) for one, n in zip(made, said, strict=True))
    own = sum(cases[number] == cases[source] for number, source in enumerate(said))
    largest = max(cases.count(case) for case in cases)
    assert kept == own and (kept == 0) == (2 * largest <= len(cases))
    again, _ = shuffled(many[::-1], seed)
    assert {one.run: one for one in again} == {one.run: one for one in made}, "whatever the order of the runs"


def test_a_shuffled_run_moves_whole() -> None:
    tools, other = tool_run("a"), run("b", [answer("Four it is.")], [step(2)])
    made, _, renderer = build([tools, other])
    mixed, kept = shuffled(made.examples, 0)
    assert kept == 0
    assert [learned(example, renderer) for example in mixed] == ["Four it is.", "call It is 2."]
    assert sum(one.length for one in mixed) == sum(one.length for one in made.examples), "so is the price"
    seeds = {digest(shuffled(examples(12), seed)[0]) for seed in range(6)}
    assert len(seeds) > 1 and digest(examples(12)) not in seeds


# the loop and its folder ----------------------------------------------------------------


class Fake:
    """A service that keeps count. fails_at: the step (from 0) whose answer does not come."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.fails_at = fails_at
        self.calls: list[str] = []
        self.done = 0

    def create(self, base_model: str, rank: int, seed: int, train_unembed: bool) -> None:
        self.calls.append(f"create {base_model} {rank}")

    def load(self, state_path: str, optimizer: bool) -> None:
        self.calls.append(f"load {state_path} {optimizer}")
        self.done = int(state_path) if state_path.isdigit() else 0

    def submit(self, batch: list[Rendered], rate: float, betas: tuple[float, float], eps: float) -> Any:
        return batch

    def logprobs(self, submitted: Any, what: str) -> list[list[float]]:
        if self.done == self.fails_at:
            raise ProviderError("no answer")
        self.done += 1
        return [[-1.0 / self.done] * (len(one.tokens) - 1) for one in submitted]

    def save_state(self, name: str, last: bool = False) -> str:
        self.calls.append(f"save {name}")
        return name

    def save_sampler(self, name: str) -> str:
        return f"sampler {name}"

    def delete(self, path: str) -> None:
        self.calls.append(f"delete {path}")


class Money:
    """Counts what is held and what is paid."""

    def __init__(self) -> None:
        self.held, self.paid = 0, 0

    def start(self, one: plan.Step) -> Any:
        self.held += 1

    def finish(self, held: Any, one: plan.Step) -> None:
        self.held, self.paid = self.held - 1, self.paid + 1

    def free(self, held: Any) -> None:
        self.held -= 1


def loop(folder: Training, fake: Fake, stop: threading.Event | None = None, **more: Any) -> tuple[Any, Money]:
    money = Money()
    made = plan.make(examples(4), settings(batch_size=1, steps=25, **more))
    quiet: Callable[..., None] = lambda *_: None  # noqa: E731
    trainer = Trainer(made, folder, fake, money, quiet, quiet, stop or threading.Event())
    try:
        return trainer.train(), money
    except ProviderError:
        return None, money


def test_a_training_from_beginning_to_end(tmp_path: Path) -> None:
    folder, fake = Training(str(tmp_path), "id"), Fake()
    result, money = loop(folder, fake)
    assert result["losses"] == [1 / n for n in range(1, 26)]
    assert (result["state_path"], result["sampler_path"]) == ("final", "sampler final")
    assert (money.held, money.paid) == (0, 25)
    saves = ["save 000010", "save 000020", "delete 000010", "save final", "delete 000020"]
    assert fake.calls == ["create local/x 16", *saves]
    assert [row["step"] for row in folder.rows("metrics.jsonl")] == list(range(25))
    assert folder.rows("metrics.jsonl")[-1]["tokens/cumulative/trained"] == 100
    last = folder.rows("checkpoints.jsonl")[-1]
    assert (last["name"], last["epoch"], last["batch"], last["final"]) == ("final", 6, 1, True)


def test_a_failure_leaves_its_bill_and_the_last_saved_state(tmp_path: Path) -> None:
    folder = Training(str(tmp_path), "id")
    result, money = loop(folder, Fake(fails_at=13))
    assert result is None and folder.result() is None
    assert (money.held, money.paid) == (0, 15), "13 done, 2 submitted"
    assert len(folder.rows("metrics.jsonl")) == 13
    with open(f"{folder.path}/metrics.jsonl", "ab") as file:
        file.write(b'{"step": 13, "torn')
    fake = Fake()
    result, money = loop(folder, fake)
    assert fake.calls[0] == "load 000010 True"
    assert money.paid == 15
    rows = folder.rows("metrics.jsonl")
    assert [row["step"] for row in rows] == list(range(25)), "each step once"
    assert rows[-1]["tokens/cumulative/trained"] == 100
    assert len(result["losses"]) == 25


def test_a_stop_saves_and_says_so(tmp_path: Path) -> None:
    folder, fake, stop = Training(str(tmp_path), "id"), Fake(), threading.Event()
    stop.set()
    with pytest.raises(Interrupted, match="after step 0 of 25; its state is saved"):
        loop(folder, fake, stop)
    saved = folder.saved()
    assert saved is not None and saved["steps"] == 0


def test_it_starts_where_it_is_told(tmp_path: Path) -> None:
    fake = Fake()
    loop(Training(str(tmp_path), "id"), fake, start="tinker://r/weights/final")
    assert fake.calls[0] == "load tinker://r/weights/final False"
    assert SAVE_EVERY == 10


def test_one_process_trains_in_a_folder(tmp_path: Path) -> None:
    first = Training(str(tmp_path), "id")
    with pytest.raises(MachineError, match="another machine-sft"):
        Training(str(tmp_path), "id")
    first.close()
    second = Training(str(tmp_path), "id")
    assert os.stat(second.path).st_mode & 0o777 == 0o700
    second.put("result.json", {"model": "m"})
    assert results(str(tmp_path)) == [{"model": "m"}] and results(str(tmp_path / "none")) == []
    second.restart()
    assert second.result() is None


# the trainer is asked first -------------------------------------------------------------


@pytest.fixture
def endpoint() -> Iterator[Callable[[int, bytes], str]]:
    servers = []

    def serve(status: int, data: bytes) -> str:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(status)
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None:
                pass

        server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}/"

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


def test_preflight(endpoint: Callable[[int, bytes], str]) -> None:
    models = [
        {"model_name": "a", "max_context_length": 8},
        {"model_name": "b"},
        {"model_name": "c", "trainable": False},
    ]
    url = endpoint(200, json.dumps({"supported_models": models}).encode())
    assert service.preflight(service.Address(url, "tml-x")).models == {"a": 8, "b": None}
    for status, data, words in (
        (402, b"no card", "not set up to pay"),
        (401, b"", "refuses the key"),
        (404, b"<html>", "is no Tinker service"),
        (200, b"hello", "is no Tinker service"),
        (200, b"[]", "is no Tinker service"),
    ):
        with pytest.raises(ProviderError, match=words):
            service.preflight(service.Address(endpoint(status, data), "tml-x"))
    with pytest.raises(ProviderError, match="no trainer answers"):
        service.preflight(service.Address("http://127.0.0.1:9", "tml-x"))
    with pytest.raises(MachineError, match="begins with 'tml-'"):
        service.preflight(service.Address(url, "sk-x"))


# what is committed is kept ---------------------------------------------------------------

ENDING = {"state_path": "tinker://r/weights/final", "sampler_path": "tinker://r/sampler_weights/final"}


def test_only_checkpoints_that_end_are_asked_about(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def never() -> str:
        raise AssertionError("nothing ends")

    monkeypatch.setattr(elsewhere, "other", never)
    for weights in (None, {}, ENDING, {"adapter": "0" * 40}, {**ENDING, "expires_at": None}):
        keep.keep({"weights": weights})
    assert capsys.readouterr().err == ""


def test_a_checkpoint_that_cannot_be_kept_is_told_and_no_more(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    candidate = {"weights": {**ENDING, "expires_at": "2026-12-06T10:00:00+00:00"}}
    monkeypatch.setattr(elsewhere, "NEEDED", ("no_such_module",))
    monkeypatch.delenv("TINKER_BASE_URL", raising=False)
    script = tmp_path / "python"
    script.write_text('#!/bin/sh\n[ "$1" = -I ] || exit 7\n')
    script.chmod(0o700)
    for python, why in (("", "training needs the python package"), (str(script), "ended with 7")):
        monkeypatch.setenv("MACHINE_PYTHON", python)
        keep.keep(candidate)
        told = capsys.readouterr().err
        assert "WARNING: the weights that are live now expire on 2026-12-06: " in told and why in told
        for path in ENDING.values():
            assert f"  to keep them: tinker checkpoint set-ttl --remove {path}\n" in told


# the libraries --------------------------------------------------------------------------


def driven(tmp_path: Path, words: Sequence[str], runs: Sequence[Any]) -> dict[str, Any]:
    """What tests/sft_drivers/renderers.py says."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    cache = os.environ.get("TEST_CACHE", str(Path.home() / ".cache" / "machine"))
    more = {"HOME": str(tmp_path), "PYTHONPATH": str(ROOT), "MACHINE_CACHE": cache, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [PYTHON, str(ROOT / "tests/sft_drivers/renderers.py"), *words],
        input="".join(json.dumps(one) + "\n" for one in runs),
        env={**kept, **more},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{PYTHON} (MACHINE_PYTHON; tests/run makes one): {done.stderr[-2000:]}"
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def targets(told: Mapping[str, Any]) -> list[list[str]]:
    return [[text for text, weight in example if weight] for example in told["examples"]]


PLAIN = run("plain", [answer("4")], [step(2)])
THINKS = run("thinks", [answer("4", reasoning="two and two", reasoning_field="reasoning_content")], [step(2)])
ALL = [PLAIN, THINKS, tool_run("tools"), tool_run("failed", ok=False)]


def test_local_renderer(tmp_path: Path) -> None:
    inline = run("inline", [answer("4", reasoning="hm", reasoning_field="inline")], [step(2)])
    hostile = run("hostile", [answer("a<|im_end|>b")], [step(2)])
    told = driven(tmp_path, ["local_chatml1"], [*ALL, inline, hostile])
    call = '<tool_call>\n{"name": "add", "arguments": {"a":1}}\n</tool_call><|im_end|>'
    assert targets(told) == [
        ["4<|im_end|>"],
        [call, "It is 2.<|im_end|>"],
        ["It is 2.<|im_end|>"],
        ["<think>hm</think>4<|im_end|>"],
        ["a<|im_end|>b<|im_end|>"],
    ]
    assert told["dropped"] == ["renderer 'local_chatml1' has no place for its reasoning; --drop-reasoning"]


def test_qwen3(tmp_path: Path) -> None:
    told = driven(tmp_path, ["qwen3"], ALL)
    empty = "<think>\n\n</think>\n\n"
    call = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call><|im_end|>'
    assert targets(told) == [
        [f"{empty}4<|im_end|>"],
        ["<think>\ntwo and two\n</think>\n\n4<|im_end|>"],
        [empty + call],
        [f"{empty}It is 2.<|im_end|>"],
        [f"{empty}It is 2.<|im_end|>"],
    ], "history loses its thoughts, so a run is one example a step"
    assert told["unthinking"] == 4
    for example in told["examples"][2:]:
        assert '{"type": "function", "function": {"name": "add", "description": "Add."' in example[0][0]
    counts = [
        {**PLAIN, "steps": [step(2, prompt_tokens=told["prompts"][0])]},
        {**PLAIN, "id": "off", "steps": [step(2, prompt_tokens=told["prompts"][0] + 1)]},
    ]
    told = driven(tmp_path, ["qwen3"], counts)
    assert len(told["examples"]) == 1 and len(told["differences"]) == 1


def test_qwen3_instruct_has_whole_runs(tmp_path: Path) -> None:
    told = driven(tmp_path, ["qwen3_instruct"], [tool_run("tools")])
    call = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call><|im_end|>'
    assert targets(told) == [[call, "It is 2.<|im_end|>"]]
    assert told["whole"] == 1


def test_a_renderer_without_tools_is_refused_by_name(tmp_path: Path) -> None:
    told = driven(tmp_path, ["role_colon"], [PLAIN, tool_run("tools")])
    assert targets(told) == [[" 4\n\nUser:"]]
    assert told["dropped"] == [
        "renderer 'role_colon' has no tools and the run was offered some; name another with --renderer"
    ]


@pytest.mark.parametrize("effort", [0.9, 0.2])
def test_inkling(tmp_path: Path, effort: float) -> None:
    runs = [{**one, "sampling": {"effort": str(effort)}} for one in ALL]
    told = driven(tmp_path, ["tml_v0", str(effort)], [*runs, {**PLAIN, "sampling": {"effort": "0.5"}}])
    end = "<|end_message|><|content_model_end_sampling|>"
    thought = "<|message_model|><|content_thinking|>two and two<|end_message|>"
    four, two = (f"<|message_model|><|content_text|>{text}{end}" for text in ("4", "It is 2."))
    call = '<|message_model|>add<|content_invoke_tool_json|>{"name":"add","args":{"a":1}}' + end
    assert targets(told) == [[four], [thought + four], [call, two], [two]]
    assert told["whole"] == 4, "prefixes hold"
    assert told["differences"] == [f"sampled at effort 0.5, training renders at {effort:g}"]
    for example in told["examples"]:
        assert f"Thinking effort level: {effort:g}<|end_message|>" in example[0][0]
    assert '"name":"add"' in told["examples"][2][0][0], "the tools are in the prompt"
    assert told["prompts"][0] == 24, "the same count at every effort: it cannot be checked by count"


@pytest.mark.parametrize(
    "losses, ends",
    [
        ([], None),
        ([None, None], None),
        ([2.0], (2.0, 2.0)),
        ([4.0, 3.0, 2.0, 1.0], (4.0, 1.0)),
        ([5.0, 3.0, None, 9.0, 9.0, 2.0], (4.0, 5.5)),  # a quarter of five is two
        ([1.0] * 6 + [0.0] * 12 + [3.0] * 6, (1.0, 3.0)),
    ],
)
def test_the_ends_of_losses(losses: list[float | None], ends: tuple[float, float] | None) -> None:
    assert loss_ends(losses) == ends
