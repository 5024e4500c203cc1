"""A decision model for tests: System One's POST /v1/systemone on 127.0.0.1, with faults on demand.

    with FakeJev() as fake:
        JevEngine("jev/jev-latest", fake.base, fake.key)

    python tests/fake_jev.py --url FILE [--log FILE] [--rules FILE] [--key KEY] &

It writes its base URL into FILE and serves until that file or its parent is gone. --log gets a JSON
line a request: {n, status, headers, body}. --rules is read anew at every request, a JSON object a line:

    match      regex that must be found in the state (as JSON)
    question   regex that must be found in the instructions
    times      only so many times

and what to do, for the first rule that fits a question:

    p          of a noul: its probability
    shares     of a score or choice: option (or level number) -> probability; others are 0
    fault      a name of FAULTS, for the whole request

A question without a rule is answered by a hash of state and instructions, so always the same;
noise (--noise S) moves it a little, as the real one moves between calls. It is proven against
`jevcompat test` and typesafe-sdk (see tests/test_jev.py).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import random
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fake_endpoint import FakeEndpoint, Got, Reply, _Handler, _Server

MODEL = "jev-1.13.0"
KEY = "ts-fake-key"


def _error(status: int, kind: str, told: str, **headers: str) -> Reply:
    return Reply({"detail": {"error_type": kind, "message": told}}, status, headers)


def _first(edit: Callable[[dict[str, Any]], Any], kind: str = "") -> Callable[[dict[str, Any]], Reply]:
    """A fault in the first answer of a body, or in the first of a kind."""

    def broken(body: dict[str, Any]) -> Reply:
        edit(next(answer for answer in body["answers"].values() if kind in ("", answer["type"])))
        return Reply(json.dumps(body))  # as text: NaN is written as Python writes it

    return broken


def _without(name: str) -> Callable[[dict[str, Any]], Reply]:
    return lambda body: Reply({key: value for key, value in body.items() if key != name})


def _missing(body: dict[str, Any]) -> Reply:
    body["answers"].pop(next(iter(body["answers"])))
    return Reply(body)


def _extra(body: dict[str, Any]) -> Reply:
    body["answers"]["nobody_asked"] = {"type": "noul", "noul": 1.0}
    return Reply(body)


def _number(answer: dict[str, Any], value: float) -> None:
    if answer["type"] == "noul":
        answer["noul"] = value
    else:
        answer["probabilities"][next(iter(answer["probabilities"]))] = value


def _wrong_type(answer: dict[str, Any]) -> None:
    answer.clear()
    answer.update({"type": "box", "box": [0, 0, 1, 1]})


def _sum(answer: dict[str, Any]) -> None:
    answer["probabilities"] = dict.fromkeys(answer["probabilities"], 0.9)


def _no_option(answer: dict[str, Any]) -> None:
    answer["choice"] = "none of them"


FAULTS: dict[str, Callable[[dict[str, Any]], Reply]] = {
    "401": lambda body: _error(401, "authentication_error", "the key is not known"),
    "403": lambda body: _error(403, "authentication_error", "no key"),
    "413": lambda body: _error(413, "request_too_large", "too many tokens"),
    "422": lambda body: Reply({"detail": [{"loc": ["body"], "msg": "no good", "type": "value_error"}]}, 422),
    "429": lambda body: _error(429, "rate_limit_error", "slow down", **{"Retry-After": "0"}),
    "529": lambda body: _error(529, "overloaded_error", "overloaded", **{"retry-after-ms": "1"}),
    "500": lambda body: _error(500, "internal_error", "oh", **{"retry-after-ms": "1"}),
    "timeout": lambda body: Reply(body, delay_s=2.0),
    "closed": lambda body: Reply(body, hang_up=True),
    "not-json": lambda body: Reply("<html>gateway</html>"),
    "missing-answer": _missing,
    "extra-answer": _extra,
    "wrong-type": _first(_wrong_type),
    "unknown-type": _first(lambda answer: answer.update(type="oracle")),
    "nan": _first(lambda answer: _number(answer, math.nan)),
    "above-1": _first(lambda answer: _number(answer, 1.7)),
    "sum": _first(_sum, "choice"),
    "no-option": _first(_no_option, "choice"),
    "no-usage": _without("usage"),
    "no-model": _without("model"),
}


class FakeJev(FakeEndpoint):
    """The server. base: its base URL, as TYPESAFE_BASE_URL has it. key None: it asks for none."""

    def __init__(
        self,
        rules: list[dict[str, Any]] | Path | None = None,
        log: Path | None = None,
        key: str | None = KEY,
        noise: float = 0.0,
    ) -> None:
        super().__init__()
        self.rules, self.log, self.key, self.noise = rules or [], log, key, noise
        self._used: dict[str, int] = {}
        self._turn = threading.Lock()
        self._server.server_close()
        handler = type("JevHandler", (_JevHandler,), {"fake": self})
        self._server = _Server(("127.0.0.1", 0), handler)
        self.base = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    def take(self, got: Got) -> Reply:
        with self._turn:
            self.requests.append(got)
            reply = self._reply(got)
            if self.log is not None:
                line = {
                    "n": len(self.requests),
                    "status": reply.status,
                    "headers": got.headers,
                    "body": got.body,
                }
                with self.log.open("a") as file:
                    file.write(json.dumps(line) + "\n")
        return reply

    def _reply(self, got: Got) -> Reply:
        if self.key is not None:
            given = got.headers.get("authorization")
            if given is None:
                return FAULTS["403"]({})
            if given != f"Bearer {self.key}":
                return FAULTS["401"]({})
        if got.path != "/v1/systemone":
            return _error(404, "not_found", "no such path")
        if wrong := invalid(got.body):
            return Reply(
                {"detail": [{"loc": ["body", *wrong[0]], "msg": wrong[1], "type": "value_error"}]}, 422
            )
        state = json.dumps(got.body["state"], sort_keys=True, ensure_ascii=False)
        answers: dict[str, Any] = {}
        fault = None
        for name, question in got.body["questions"].items():
            rule = self._rule(state, json.dumps(question.get("instructions"), ensure_ascii=False))
            fault = fault or rule.get("fault")
            answers[name] = self._answer(state, question, rule)
        tokens = len(json.dumps(got.body)) // 4
        body = {
            "model": MODEL,
            "answers": answers,
            "usage": {"input_tokens": tokens, "output_tokens": 6 * len(answers)},
        }
        return FAULTS[fault](body) if fault else Reply(body)

    def _rule(self, state: str, instructions: str) -> dict[str, Any]:
        rules = self.rules
        if isinstance(rules, Path):
            text = rules.read_text() if rules.exists() else ""
            rules = [json.loads(line) for line in text.splitlines() if line.strip()]
        for rule in rules:
            name = json.dumps(rule)
            places = {"match": state, "question": instructions}
            if not all(re.search(rule.get(key, ""), place) for key, place in places.items()):
                continue
            if self._used.get(name, 0) >= rule.get("times", 1e9):
                continue
            self._used[name] = self._used.get(name, 0) + 1
            return rule
        return {}

    def _answer(self, state: str, question: dict[str, Any], rule: dict[str, Any]) -> dict[str, Any]:
        kind, criteria = question["type"], question.get("criteria")
        names = ["true", "false"] if kind == "noul" else list(criteria or ())
        seed = json.dumps([state, question.get("instructions"), kind], sort_keys=True)
        logits = [self._logit(f"{seed}\0{told}") for told in names]
        whole = sum(math.exp(logit) for logit in logits)
        shares = [math.exp(logit) / whole for logit in logits]
        if kind == "noul":
            return {"type": "noul", "noul": rule.get("p", shares[0])}
        keys = names if kind == "choice" else [str(n) for n in range(len(names))]
        if "shares" in rule:
            shares = [float(rule["shares"].get(key, 0)) for key in keys]
        n, top = len(keys), max(shares)
        answer: dict[str, Any] = {"type": kind, "probabilities": dict(zip(keys, shares, strict=True))}
        if kind == "choice":
            return answer | {"choice": keys[shares.index(top)], "confidence": (top - 1 / n) / (1 - 1 / n)}
        mode = shares.index(top)
        around = sum(abs(i - (n - 1) / 2) for i in range(n)) / n
        off = sum(share * abs(i - mode) for i, share in enumerate(shares))
        answer |= {"score": sum(i * share for i, share in enumerate(shares))}
        answer |= {"legend": dict(zip(keys, names, strict=True)), "confidence": max(0.0, 1 - off / around)}
        return answer

    def _logit(self, text: str) -> float:
        number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") / 2**64
        return 4 * number - 2 + (random.gauss(0, self.noise) if self.noise else 0.0)


def invalid(body: Any) -> tuple[list[str], str] | None:
    """Where a request is wrong and why, None if it is not."""
    if not isinstance(body, dict):
        return [], "not an object"
    if not isinstance(body.get("state"), str | dict | list):
        return ["state"], "neither text, object nor array"
    if not isinstance(body.get("model"), str) or not body["model"]:
        return ["model"], "no text"
    questions = body.get("questions")
    if not isinstance(questions, dict) or not questions or "" in questions:
        return ["questions"], "not a table of questions"
    for name, question in questions.items():
        told = _invalid_question(question)
        if told:
            return ["questions", name], told
    return None


def _invalid_question(question: Any) -> str | None:
    if not isinstance(question, dict) or question.get("type") not in ("noul", "score", "choice"):
        return "no question of a known type"
    instructions, criteria = question.get("instructions"), question.get("criteria")
    if not isinstance(instructions, str | dict | list | None):
        return "instructions are none"
    texts: list[Any] = []
    if question["type"] == "score":
        if not isinstance(criteria, list) or not 2 <= len(criteria) <= 10:
            return "score wants 2 to 10 levels in a list"
        texts = criteria
        if any(text is None for text in texts):
            return "a level without a description"
    elif question["type"] == "choice":
        if not isinstance(criteria, dict) or not 2 <= len(criteria) <= 255:
            return "choice wants 2 to 255 options"
        texts = list(criteria.values())
    elif criteria is not None:
        if not isinstance(criteria, dict) or set(criteria) - {"true", "false"}:
            return "criteria of a noul are true and false"
        texts = list(criteria.values())
    if any(not isinstance(text, str | dict | list | None) for text in texts):
        return "a description is none"
    described = any(text is not None for text in texts)
    if question["type"] == "noul" and instructions is None and not described:
        return "a noul wants instructions or a side that is described"
    return None


class _JevHandler(_Handler):
    fake: FakeJev

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            self._answer(Reply({"object": "list", "data": [{"id": MODEL}, {"id": "jev-latest"}]}))
        else:
            self._answer(_error(404, "not_found", "no such path"))

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        headers = {name.lower(): value for name, value in self.headers.items()}
        try:
            body = json.loads(raw)
        except ValueError:
            told = {"loc": ["body"], "msg": "no JSON", "type": "json_invalid"}
            return self._answer(Reply({"detail": [told]}, 422))
        self._answer(self.fake.take(Got(self.path, headers, body)))


def main() -> None:
    """Serve until told to stop."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", type=Path, required=True)
    parser.add_argument("--log", type=Path)
    parser.add_argument("--rules", type=Path)
    parser.add_argument("--key", default=KEY)
    parser.add_argument("--noise", type=float, default=0.0)
    options = parser.parse_args()
    parent = os.getppid()
    with FakeJev(options.rules, options.log, options.key or None, options.noise) as fake:
        waiting = options.url.with_suffix(".new")
        waiting.write_text(fake.base)
        waiting.rename(options.url)
        while options.url.exists() and os.getppid() == parent:
            time.sleep(0.2)


if __name__ == "__main__":
    main()
