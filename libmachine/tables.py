"""The fields of every record: one table a type, read by checks, ids, schemas and man pages.

Fields of a record, or of a run's case, that no table names travel along and are not stored.
`v` is raised only when an old reader would misread.
"""

from __future__ import annotations

from typing import Any

from libmachine.tables_reports import PAIRED, REPORTS, Field

TABLES: dict[str, tuple[Field, ...]] = {
    "run": (
        Field("v", "int", "version of this record type"),
        Field("type", "str", '"run"'),
        Field("id", "str", "git blob id of the stored fields", False),
        Field("machine", "str", "name of the machine"),
        Field("version", "str", "tree id of what decides behaviour and judgement"),
        Field("revision", "revision", "where the project's history stood"),
        Field("case", "run_case", "the case that was run"),
        Field("split", "-str?", "holdout, cases or null: computed from today's files", False),
        Field("trial", "int", "repeat of the case, from 1"),
        Field("model", "str", "model as asked for"),
        Field("answered", "str?", "model that the endpoint says answered"),
        Field("harness", "str", "engine with its build"),
        Field("sampling", "object", "every sampling value as sent"),
        Field("limits", "object", "max_steps and timeout_s (seconds)"),
        Field("messages", "message[]", "the trajectory, OpenAI chat form, instructions included"),
        Field("tools", "list", "tools on offer, OpenAI form"),
        Field("output", "str", "text of the last assistant message"),
        Field("stop_reason", "str", "stop, length, max_steps, timeout, context, content_filter or error"),
        Field("usage", "usage", "sums over the steps"),
        Field("steps", "step[]", "one entry a model call"),
        Field("workspace", "-object?", "tree ids of the files before and after"),
        Field("conversation", "-conversation", "which turn of which conversation; absent outside one"),
        Field("started_at", "str", "UTC, ISO 8601"),
        Field("duration_s", "float", "seconds, by a clock that never steps"),
        Field("status", "str", "ok, limit (graded, never trained on) or failed (missing data)"),
        Field("error", "-object?", "where, type and message of a failure"),
        Field("key", "str", "hash of what decides the answer: resume and reuse look it up"),
        Field("scorecard", "-scorecard?", "the newest scorecard of its graders, if there is one", False),
        Field("marks", "-scorecard[]", "people's scorecards of it, newest first: of machine-show", False),
    ),
    "run_case": (
        Field("id", "str", "the case's name in its file", False),
        Field("identity", "str", "git blob id of input (as messages) and files"),
        Field("input", "any", "text or messages"),
        Field("target", "-any", "what a right answer is", False),
        Field("metadata", "-object?", "whatever the author keeps with the case", False),
    ),
    "conversation": (
        Field("id", "str", "names the conversation: hash of what decides it"),
        Field("side", "str", "machine or counterpart"),
        Field("turn", "int", "of this side, from 1"),
        Field("with", "str", "name of the machine on the other side"),
        Field("start", "int", "index in messages of the first turn"),
        Field("runs", "list", "ids of the runs of all earlier turns, both sides, in order"),
        Field("steps", "step[]", "the model calls of this side's earlier turns"),
        Field("usage", "object", "machine and counterpart: sums over the conversation so far"),
        Field("last", "-bool", "of the machine: did the conversation end here?"),
    ),
    "revision": (
        Field("commit", "str?", "HEAD, or null outside git"),
        Field("dirty", "bool?", "the machine's files differ from HEAD"),
    ),
    "message": (
        Field("role", "str", "system, user, assistant or tool"),
        Field("content", "-any", "text, parts or null"),
        Field("tool_calls", "-list?", "OpenAI tool calls; arguments stay the raw string"),
        Field("tool_call_id", "-str?", "the call a tool message answers"),
        Field("reasoning", "-str?", "visible thinking as captured"),
        Field("reasoning_field", "-str?", "the name the reasoning came under"),
    ),
    "usage": (
        Field("calls", "int", "model calls"),
        Field("prompt_tokens", "int?", "null: not reported"),
        Field("cached_tokens", "int?", "part of prompt_tokens"),
        Field("completion_tokens", "int?", "null: not reported"),
        Field("reasoning_tokens", "int?", "part of completion_tokens"),
        Field("cost_usd", "float?", "US dollars, null: unknown"),
    ),
    "step": (
        Field("message", "int", "index of the assistant message in messages"),
        Field("prompt_tokens", "int?", "tokens in"),
        Field("cached_tokens", "int?", "part of prompt_tokens"),
        Field("completion_tokens", "int?", "tokens out"),
        Field("reasoning_tokens", "int?", "part of completion_tokens"),
        Field("finish_reason", "str", "why the model stopped"),
        Field("model", "str", "model that answered"),
        Field("fingerprint", "-str?", "the endpoint's build, where it says"),
        Field("started_at", "str", "UTC, ISO 8601"),
        Field("duration_s", "float", "seconds"),
        Field("retries", "int", "attempts before the one that answered"),
        Field("cost_usd", "float?", "US dollars, null: unknown"),
        Field("tools", "tool_use[]", "the calls this message made"),
        Field("tokens", "-str?", "blob with prompt and completion ids and log-probabilities"),
    ),
    "tool_use": (
        Field("id", "str", "call id"),
        Field("name", "str", "tool"),
        Field("ok", "bool", "it ran and returned"),
        Field("error", "-str?", "what the model was told went wrong"),
        Field("truncated", "bool", "the result was cut"),
        Field("duration_s", "float", "seconds"),
    ),
    "scorecard": (
        Field("v", "int", "version of this record type"),
        Field("type", "str", '"scorecard"'),
        Field("id", "str", "git blob id of the stored fields", False),
        Field("run", "str", "id of the run"),
        Field("machine", "str", "name of the machine"),
        Field("rubric", "str", "hash of the effective criteria"),
        Field("target", "str", "hash of the case's target and metadata"),
        Field("score", "float?", "weighted mean in 0..1; null: not graded"),
        Field("passed", "bool?", "every criterion but audits reached its pass_at; null: not graded"),
        Field("grades", "grade[]", "one a criterion, in the rubric's order"),
        Field("usage", "usage", "what the graders spent"),
        Field("graded_at", "str", "UTC, ISO 8601"),
    ),
    "candidate": (
        Field("v", "int", "version of this record type"),
        Field("type", "str", '"candidate"'),
        Field("id", "str", "git blob id of the stored fields", False),
        Field("machine", "str", "name of the machine"),
        Field("source", "str", "train, optimize or propose"),
        Field("base_version", "str", "version id it was made from"),
        Field("version", "str", "version id it would become"),
        Field("files", "object", "instructions.md and model.json as they would be"),
        Field("weights", "-any", "trained weights, where there are any"),
        Field("data", "-object", "what it was trained on"),
        Field("training", "-object", "how it was trained"),
        Field("made_at", "str", "UTC, ISO 8601"),
    ),
    "verdict": (
        Field("v", "int", "version of this record type"),
        Field("type", "str", '"verdict"'),
        Field("id", "str", "git blob id of the stored fields", False),
        Field("machine", "str", "name of the machine"),
        Field("baseline", "str", "version id that was live"),
        Field("candidate", "str", "version id that was judged"),
        Field("base_commit", "str?", "commit that held the baseline"),
        Field("holdout", "str", "hash of the held-out cases, whole"),
        Field("decision", "str", "promote, refuse, untestable, first, same, rubric_only, revert or forced"),
        Field("reasons", "list", "why, each `code` or `code: words`"),
        Field("warnings", "list", "codes of what makes a pass doubtful"),
        Field("rubric", "-str?", "hash of the criteria that graded"),
        Field("graders", "-str?", "hash of the .py files that graded"),
        Field("judges", "-list", "identities of the judges that graded"),
        Field("on", "-str", "score or passed: what the arms hold"),
        Field("cases", "-int", "held-out cases"),
        Field("trials", "-int", "trials of each case in each arm"),
        Field("arms", "-object", "cases, groups, live, candidate, guards, confirm: every trial score"),
        Field("reused", "-int", "runs of the live version that were taken from the store, not run anew"),
        Field("rule", "-object", "min_z, strict, no_worse, confirm: what the arms were held to"),
        Field("tries", "-int", "distinct candidates this holdout has judged, this one included"),
        *PAIRED,
        Field("low_power", "-bool?", "even a perfect candidate could not gain that much"),
        Field("min_z", "-float", "standard errors asked for"),
        Field("strict", "-bool", "warnings refuse"),
        Field("alpha", "-float", "one-sided level of min_z"),
        Field("alpha_try", "-float", "share of it for this try"),
        Field("alpha_left", "-float", "what later tries may spend"),
        Field("worse", "-bool", "the rule holds the other way round"),
        Field("weak", "-bool", "a pass that asks for confirmation"),
        Field("confirmed", "-bool?", "it held again on fresh trials; null: not asked"),
        Field("confirm", "-object", "figures of the second look"),
        Field("guards", "-object", "criterion -> how it moved and whether it fell too far"),
        Field("criteria", "-object", "criterion -> mean of each arm"),
        Field("about", "-object", "pass rate, tokens, distinct outputs, stop reasons of each arm"),
        Field("engine", "-object", "model and engine of each arm"),
        Field("evidence", "-list", "ids of the runs"),
        Field("forced", "-object", "who promoted it against the rule, and why"),
        Field("decided_at", "str", "UTC, ISO 8601"),
    ),
    "grade": (
        Field("criterion", "str", "id in rubric.toml; * in a person's mark of the whole run"),
        Field("weight", "float", "0 for an audit"),
        Field("reason", "str?", "why, written before the score"),
        Field("score", "float?", "0..1; null: could not be graded, or does not apply"),
        Field("grader", "str", "who graded: check, judge, panel or jev with a hash, or person:NAME"),
        Field("key", "str", "hash of run, criterion text, grader and case: reuse looks it up"),
        Field("applies", "-bool?", "false: the check says the criterion does not apply here"),
        Field("model", "-str?", "model that judged"),
        Field("effort", "-str?", "reasoning effort of the judge"),
        Field(
            "usage", "-usage?", "what the judge spent; of a call that several criteria share, in the first"
        ),
        Field("first", "-object", "what the cheap grader of an escalation said, where it was unsure"),
        Field("error", "-str?", "why there is no score"),
    ),
    **REPORTS,
}


def schema(table: str) -> dict[str, Any]:
    """JSON Schema of a table, for `machine-show --schema`."""
    properties: dict[str, Any] = {}
    for field in TABLES[table]:
        kind = field.kind.removeprefix("-")
        shape = _schema_of(kind.removesuffix("?"), kind.endswith("?"))
        properties[field.name] = {**shape, "description": field.meaning}
    required = [field.name for field in TABLES[table] if not field.kind.startswith("-")]
    return {"type": "object", "properties": properties, "required": required}


def _schema_of(kind: str, nullable: bool) -> dict[str, Any]:
    if kind == "any":
        return {}
    if kind.endswith("[]"):
        found: dict[str, Any] = {"type": "array", "items": schema(kind[:-2])}
    elif kind in TABLES:
        found = schema(kind)
    else:
        names = {"str": "string", "int": "integer", "float": "number", "bool": "boolean", "list": "array"}
        found = {"type": names.get(kind, kind)}
    return {"anyOf": [found, {"type": "null"}]} if nullable else found
