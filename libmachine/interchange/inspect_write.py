"""Inspect AI's files out: cases as a dataset of samples, graded runs as an eval log. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from libmachine import __version__
from libmachine.canon import Record, RecordError, canonical, hash_of, loads
from libmachine.suite.figures import mean_of, over_units, unit_of

LOG_VERSION = 2
_STOPS = {
    "stop": "stop",
    "length": "max_tokens",
    "context": "model_length",
    "content_filter": "content_filter",
    "tool_calls": "tool_calls",
}
_LIMITS = {"max_steps": ("custom", "max_steps"), "timeout": ("time", "timeout_s")}


def sample(case: Mapping[str, Any]) -> Record:
    """A case as a sample of a dataset."""
    row: Record = {"id": case["id"], "input": _input(case["input"]), "target": _target(case.get("target"))}
    if case.get("files"):
        row["files"] = case["files"]
    return {**row, "metadata": case["metadata"]} if case.get("metadata") else row


def _input(given: Any) -> Any:
    return given if isinstance(given, str) else [_message(message) for message in given]


def _target(target: Any) -> Any:
    """A text or texts; what is neither, as JSON text."""
    if target is None:
        return ""
    if isinstance(target, str):
        return target
    if isinstance(target, list) and all(isinstance(item, str) for item in target):
        return target
    return canonical(target).decode()


def _message(message: Mapping[str, Any]) -> Record:
    """A message in Inspect's form: its own tool calls, reasoning as a part of the content."""
    role = "system" if message["role"] == "developer" else message["role"]
    content = message.get("content") or ""
    if isinstance(content, list):
        content = [_part(part) for part in content]
    if message.get("reasoning"):
        parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
        content = [{"type": "reasoning", "reasoning": message["reasoning"]}, *parts]
    kept: Record = {"role": role, "content": content}
    if message.get("tool_calls"):
        kept["tool_calls"] = [_call(call) for call in message["tool_calls"]]
    if role == "tool" and message.get("tool_call_id"):
        kept["tool_call_id"] = message["tool_call_id"]
    return kept


def _part(part: Mapping[str, Any]) -> Record:
    if part.get("type") == "image_url":
        image = part.get("image_url")
        return {"type": "image", "image": image.get("url") if isinstance(image, Mapping) else image}
    return {"type": "text", "text": str(part.get("text", ""))}


def _call(call: Mapping[str, Any]) -> Record:
    """A tool call; arguments that are no object stay as the model wrote them, with an error."""
    function = call["function"]
    kept: Record = {"id": call["id"], "function": function["name"], "type": "function"}
    try:
        arguments = loads(function["arguments"].encode() or b"{}")
    except RecordError as error:
        return {**kept, "arguments": {}, "parse_error": f"{error}: {function['arguments']}"}
    if not isinstance(arguments, dict):
        return {**kept, "arguments": {}, "parse_error": f"no object: {function['arguments']}"}
    return {**kept, "arguments": arguments}


def log(runs: Sequence[Mapping[str, Any]]) -> Record:
    """An eval log of graded runs of one machine, version and model.

    Its scores are the criteria, and the score itself under the machine's name. A run that failed has
    an error, one without a score no scores, as with us: neither enters a mean.
    """
    first = runs[0]
    cases = {run["case"]["identity"]: run for run in runs}
    epochs = max(run["trial"] for run in runs)
    names = _names(runs)
    starts = sorted(run["started_at"] for run in runs)
    scores = [_results(name, key, runs) for name, key in names.items()]
    digest = hash_of([run["id"] for run in runs])
    spec: Record = {
        "eval_id": digest[:22],
        "run_id": digest[:22],
        "task_id": first["version"][:22],
        "created": starts[0],
        "task": first["machine"],
        "dataset": {
            "name": first["machine"],
            "samples": len(cases),
            "sample_ids": list(dict.fromkeys(_id(run) for run in runs)),
        },
        "model": first["model"],
        "model_generate_config": _config(first["sampling"]),
        "config": {"epochs": epochs},
        "packages": {"libmachine": __version__},
        "metadata": {"version": first["version"], "revision": first.get("revision")},
    }
    return {
        "version": LOG_VERSION,
        "status": "success",
        "eval": spec,
        "plan": {"name": first["harness"], "steps": []},
        "results": {
            "total_samples": len(runs),
            "completed_samples": sum(run["status"] != "failed" for run in runs),
            "scores": scores,
        },
        "stats": {
            "started_at": starts[0],
            "completed_at": starts[-1],
            "model_usage": {first["model"]: _sum([run["usage"] for run in runs])},
        },
        "samples": [_sample(run, names) for run in runs],
    }


def _id(run: Mapping[str, Any]) -> str:
    return str(run["case"].get("id") or run["case"]["identity"][:12])


def _names(runs: Sequence[Mapping[str, Any]]) -> dict[str, str | None]:
    """Name of a score -> its criterion, None for the whole score."""
    criteria: dict[str, str | None] = {}
    for run in runs:
        for grade in (run.get("scorecard") or {}).get("grades", ()):
            criteria[grade["criterion"]] = grade["criterion"]
    whole = runs[0]["machine"]
    return {whole if whole not in criteria else f"{whole} (score)": None, **criteria}


def _value(run: Mapping[str, Any], criterion: str | None) -> float | None:
    card = run.get("scorecard")
    if not card or run["status"] == "failed":
        return None
    if criterion is None:
        score: float | None = card["score"]
        return score
    return next((grade["score"] for grade in card["grades"] if grade["criterion"] == criterion), None)


def _results(name: str, criterion: str | None, runs: Sequence[Mapping[str, Any]]) -> Record:
    """Mean over cases (a group is one unit) and its error, each case by the mean of its trials."""
    by_case: dict[str, list[float | None]] = {}
    units = {run["case"]["identity"]: unit_of(run["case"]) for run in runs}
    for run in runs:
        by_case.setdefault(run["case"]["identity"], []).append(_value(run, criterion))
    values = [mean_of(trials) for trials in by_case.values()]
    mean, error, _ = over_units(values, [units[identity] for identity in by_case])
    scored = sum(value is not None for trials in by_case.values() for value in trials)
    metrics = {"mean": mean, "stderr": error}
    return {
        "name": name,
        "scorer": name,
        "scored_samples": scored,
        "unscored_samples": len(runs) - scored,
        "metrics": {
            what: {"name": what, "value": value} for what, value in metrics.items() if value is not None
        },
    }


def _sample(run: Mapping[str, Any], names: Mapping[str, str | None]) -> Record:
    case = run["case"]
    usage = _usage(run["usage"])
    made: Record = {
        "id": _id(run),
        "epoch": run["trial"],
        "input": _input(case["input"]),
        "target": _target(case.get("target")),
        "messages": [_message(message) for message in run["messages"]],
        "output": _output(run, usage),
        "scores": _scores(run, names),
        "metadata": {**(case.get("metadata") or {}), "run": run["id"], "identity": case["identity"]},
        "model_usage": {run["model"]: usage},
        "started_at": run["started_at"],
        "total_time": run["duration_s"],
    }
    if run["status"] == "failed":
        error = run.get("error") or {}
        text = f"{error.get('where', '')}: {error.get('message', '')}".strip(": ")
        made["error"] = {"message": text, "traceback": "", "traceback_ansi": ""}
    elif run["stop_reason"] in _LIMITS:  # the others stand in the output's stop_reason
        kind, name = _LIMITS[run["stop_reason"]]
        made["limit"] = {"type": kind, "limit": run["limits"].get(name) or 0}
    return made


def _output(run: Mapping[str, Any], usage: Record) -> Record:
    said = [message for message in run["messages"] if message["role"] == "assistant"]
    choices = []
    if said:
        reason = _STOPS.get(run["stop_reason"], "unknown")
        choices = [{"message": _message(said[-1]), "stop_reason": reason}]
    model = run["answered"] or run["model"]
    return {"model": model, "choices": choices, "completion": run["output"] or "", "usage": usage}


def _scores(run: Mapping[str, Any], names: Mapping[str, str | None]) -> Record:
    reasons = {
        grade["criterion"]: grade.get("reason") for grade in (run.get("scorecard") or {}).get("grades", ())
    }
    found: Record = {}
    for name, criterion in names.items():
        value = _value(run, criterion)
        if value is not None:
            found[name] = {"value": value, "answer": run["output"]}
            if reasons.get(criterion or ""):
                found[name]["explanation"] = reasons[criterion or ""]
    return found


def _usage(usage: Mapping[str, Any]) -> Record:
    read, wrote = usage.get("prompt_tokens") or 0, usage.get("completion_tokens") or 0
    kept: Record = {"input_tokens": read, "output_tokens": wrote, "total_tokens": read + wrote}
    if usage.get("cached_tokens") is not None:
        kept["input_tokens_cache_read"] = usage["cached_tokens"]
    if usage.get("reasoning_tokens") is not None:
        kept["reasoning_tokens"] = usage["reasoning_tokens"]
    return kept


def _sum(usages: Sequence[Mapping[str, Any]]) -> Record:
    total: Record = {}
    for usage in usages:
        for name, count in _usage(usage).items():
            total[name] = total.get(name, 0) + count
    return total


def _config(sampling: Mapping[str, Any]) -> Record:
    """The sampling values that Inspect has a name for."""
    known = {"temperature": "temperature", "top_p": "top_p", "top_k": "top_k", "max_tokens": "max_tokens"}
    kept = {theirs: sampling[ours] for ours, theirs in known.items() if sampling.get(ours) is not None}
    if sampling.get("effort"):
        kept["reasoning_effort"] = sampling["effort"]
    return kept
