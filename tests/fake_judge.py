"""The fake endpoint as a command, for shell tests: judges, and models that are judged.

    python tests/fake_judge.py --url FILE [--log FILE] [--rules FILE] &

It writes its base URL into FILE and serves until that file or its parent is gone. --log gets a JSON
line a request: {n, status, model, id, system, user, headers, body}; id is the call id of a judge's
prompt, user the last user message. --rules is read anew at every request, a JSON object a line:

    match, criterion, asked   regexes that must be found in the user message, the system message, the
                              model's id (none given: any)
    nth                       only the Nth different question (from 1): its retries are the same one
    times                     only so many times, counted from when the rule's line first answered

and what to do, for the first rule that fits:

    score, reason     a verdict with the right id: as a judge that reads its prompt answers
    reply             this text; {id} in it becomes the call id, {authorization} the header that came,
                      {verdict} the verdict that the material plants
    message, usage    fields of the assistant message and of the usage laid over those of the reply
    answered          the model that the reply names; else the one that was asked for
    body              this JSON as the whole reply
    status, headers   an HTTP error with the text of reply
    delay_s           seconds to wait first

Without a rule that fits a judge's prompt gets a score of 1, any other the user message back.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import threading
import time
from pathlib import Path
from typing import Any

from fake_endpoint import FakeEndpoint, Got, Reply, completion

_CALL_ID = re.compile(r'"id": "(\w+)"')
_PLANTED = re.compile(r'\{[^{}]*\\*"score\\*"[^{}]*\}')


class FakeJudge(FakeEndpoint):
    """The endpoint with its rules and its log."""

    def __init__(self, rules: Path | None, log: Path | None) -> None:
        super().__init__()
        self.rules, self.log = rules, log
        self._questions: list[tuple[str, str]] = []
        self._used: dict[str, int] = {}
        self._turn = threading.Lock()

    def take(self, got: Got) -> Reply:
        """Find the reply, and write the request down before it is sent."""
        system, user = texts(got.body)
        found = _CALL_ID.search(system)
        call_id = found[1] if found else None
        with self._turn:
            self.requests.append(got)
            question = (system.replace(call_id, "") if call_id else system, user)
            if question not in self._questions:
                self._questions.append(question)
            rule = self._rule(system, user, str(got.body.get("model")), self._questions.index(question) + 1)
            reply = answer(rule, call_id, user, got)
            if self.log is not None:
                line = {"n": len(self.requests), "status": reply.status, "model": got.body.get("model")}
                line |= {"id": call_id, "system": system, "user": user}
                line |= {"headers": got.headers, "body": got.body}
                with self.log.open("a") as file:
                    file.write(json.dumps(line) + "\n")
        return reply

    def _rule(self, system: str, user: str, model: str, number: int) -> dict[str, Any]:
        text = self.rules.read_text() if self.rules is not None and self.rules.exists() else ""
        for line in filter(str.strip, text.splitlines()):
            rule = json.loads(line)
            places = {"match": user, "criterion": system, "asked": model}
            if not all(re.search(rule.get(name, ""), place) for name, place in places.items()):
                continue
            if rule.get("nth", number) != number or self._used.get(line, 0) >= rule.get("times", 1e9):
                continue
            self._used[line] = self._used.get(line, 0) + 1
            found: dict[str, Any] = rule
            return found
        return {}


def texts(body: dict[str, Any]) -> tuple[str, str]:
    """The system message and the last user message of a request."""
    last = {message["role"]: message.get("content") for message in body.get("messages", [])}
    return str(last.get("system") or ""), str(last.get("user") or "")


def answer(rule: dict[str, Any], call_id: str | None, user: str, got: Got) -> Reply:
    """What a rule says."""
    delay = float(rule.get("delay_s", 0))
    if "body" in rule:
        return Reply(rule["body"], delay_s=delay)
    text = rule.get("reply", "")
    planted = _PLANTED.search(user)
    text = text.replace("{verdict}", planted[0].replace("\\", "") if planted else "none")
    text = text.replace("{id}", call_id or "").replace(
        "{authorization}", got.headers.get("authorization", "")
    )
    if "status" in rule:
        error = {"error": {"message": text or f"scripted {rule['status']}"}}
        return Reply(error, rule["status"], rule.get("headers", {"Retry-After": "0"}), delay_s=delay)
    if "reply" not in rule:
        verdict = {"id": call_id, "reasoning": rule.get("reason", "as told"), "score": rule.get("score", 1)}
        text = user if call_id is None else "I looked at it.\n" + json.dumps(verdict)
    message = rule.get("message", {})
    body = completion(text, "tool_calls" if message.get("tool_calls") else "stop")
    body["choices"][0]["message"] |= message
    body["model"] = rule.get("answered", got.body.get("model"))
    body["usage"] |= rule.get("usage", {})
    return Reply(body, delay_s=delay)


def main() -> None:
    """Serve until told to stop."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", type=Path, required=True)
    parser.add_argument("--log", type=Path)
    parser.add_argument("--rules", type=Path)
    options = parser.parse_args()
    parent = os.getppid()
    with FakeJudge(options.rules, options.log) as fake:
        waiting = options.url.with_suffix(".new")
        waiting.write_text(fake.url)
        waiting.rename(options.url)
        while options.url.exists() and os.getppid() == parent:
            time.sleep(0.2)


if __name__ == "__main__":
    main()
