"""The fields of every record: one table a type, read by checks, ids, schemas and man pages.

Fields of a record, or of a run's case, that no table names travel along and are not stored.
`v` is raised only when an old reader would misread.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Field(NamedTuple):
    """One field. kind: str int float bool object list any, a table's name, or a table's name + [];
    a trailing ? allows null, a leading - allows absence. stored: it enters the id."""

    name: str
    kind: str
    meaning: str
    stored: bool = True


_PAIRED = (
    Field("mean_live", "-float?", "mean score over cases"),
    Field("mean_cand", "-float?", "mean score over cases"),
    Field("mean_diff", "-float?", "mean over cases of candidate minus live"),
    Field("se", "-float?", "standard error of mean_diff, over cases"),
    Field("sd", "-float?", "standard deviation of the differences"),
    Field("z", "-float?", "mean_diff in standard errors"),
    Field("diff", "-list", "difference of each unit"),
    Field("n", "-int", "units: cases, or groups of them"),
    Field("n_cases", "-int", "cases with a grade in both arms"),
    Field("units", "-list", "case numbers of each unit"),
    Field("dropped", "-list", "numbers of cases without a grade in one arm"),
    Field("missing_live", "-int", "grades missing"),
    Field("missing_cand", "-int", "grades missing"),
    Field("wins", "-int", "units that got better"),
    Field("losses", "-int", "units that got worse"),
    Field("ties", "-int", "units that stayed"),
    Field("p_flip", "-float?", "exact one-sided sign flip over units"),
    Field("p_trial", "-float?", "label swap of trials within cases"),
    Field("p_t", "-float?", "one-sided Student's t"),
    Field("sampled", "-list", "names of those that are not exact"),
    Field("ci_t", "-list?", "two-sided 95 % interval of mean_diff"),
    Field("mde80", "-float?", "smallest gain that 80 % power would see"),
)
"""What stats.paired_gate says of two arms: live (a comparison's base) and candidate."""

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
        Field("conversation", "-any", "what ties the runs of one conversation"),
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
        Field("rule", "-object", "min_z, strict, no_worse, confirm: what the arms were held to"),
        Field("tries", "-int", "distinct candidates this holdout has judged, this one included"),
        *_PAIRED,
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
    "suite": (
        Field("v", "int", "version of this record type"),
        Field("type", "str", '"suite"'),
        Field("id", "str", "git blob id of the stored fields", False),
        Field("machine", "str", "name of the machine"),
        Field("version", "str", "tree id of what decides behaviour and judgement"),
        Field("revision", "revision", "where the project's history stood"),
        Field("engine", "list", "model and engine"),
        Field("rubric", "str", "hash of the criteria that graded"),
        Field("on", "str", "cases, holdout or the file of cases"),
        Field("trials", "int", "trials of each case"),
        Field("cases", "int", "cases that were to be run"),
        Field("runs", "int", "runs that were made"),
        Field("graded", "int", "runs with a score"),
        Field("failed", "int", "runs that failed: in no mean"),
        Field("ungraded", "int", "runs that could not be graded: in no mean"),
        Field("units", "int", "cases, or groups of them, that have a mean"),
        Field("mean", "float?", "mean score over units"),
        Field("stderr", "float?", "standard error of mean, over units"),
        Field("passes", "int", "runs that passed"),
        Field("pass_rate", "float?", "share of graded runs that passed"),
        Field("pass_interval", "list?", "95 % Wilson interval of the pass rate, over units"),
        Field("pass_at_1", "float?", "mean over cases of the share of trials that passed"),
        Field("pass_at_k", "float?", "share of cases that passed at least once in all trials"),
        Field("all_good", "float?", "share of cases that passed in every trial"),
        Field("by_case", "list", "worst first: id, identity, mean, counts, scores, runs, worst"),
        Field("by_criterion", "list", "criterion, role, weight, mean, stderr, cases, missing"),
        Field("mean_completion_tokens", "float?", "tokens out of a run that did not fail"),
        Field("distinct_outputs", "int", "different outputs of runs that did not fail"),
        Field("stop_reasons", "object", "stop reason -> runs"),
        Field("spend", "object", "runs and judges, in US dollars; null: unknown"),
        Field("warnings", "list", "what makes the figures doubtful, each `code: words`"),
        Field("family", "-object", "members (suites) and criteria that several of them have"),
        Field("measured_at", "str", "UTC, ISO 8601"),
    ),
    "comparison": (
        Field("v", "int", "version of this record type"),
        Field("type", "str", '"comparison"'),
        Field("id", "str", "git blob id of the stored fields", False),
        Field("machine", "str", "name of the machine"),
        Field("baseline", "str", "version id of the base"),
        Field("candidate", "str", "version id of the work tree"),
        Field("base", "str", "the base as it was named"),
        Field("base_commit", "str", "commit that holds the base"),
        Field("rubric", "str", "hash of the criteria that graded both"),
        Field("graders", "str", "hash of the .py files that graded both"),
        Field("engine", "object", "model and engine of each arm"),
        Field("on", "str", "the file of cases"),
        Field("cases", "int", "cases"),
        Field("trials", "int", "trials of each case in each arm"),
        Field("changed", "list", "which of instructions, model, rubric, tools, code differ"),
        Field("stored", "object", "runs of each arm that were stored before"),
        Field("arms", "object", "cases, ids, groups, live (the base), candidate: every trial score"),
        *_PAIRED,
        Field("p_two_sided", "float?", "sign flip over units, either way"),
        Field("evidence", "str?", "none, better or worse; null: nothing could be compared"),
        Field("criteria", "object", "criterion -> mean of each arm"),
        Field("about", "object", "mean, stderr, pass rate, tokens, outputs, stop reasons of each arm"),
        Field("failed", "int", "runs that failed: in no mean"),
        Field("ungraded", "int", "runs that could not be graded: in no mean"),
        Field("spend", "object", "runs and judges, in US dollars; null: unknown"),
        Field("notes", "list", "what to know of the two versions, each `code: words`"),
        Field("measured_at", "str", "UTC, ISO 8601"),
    ),
    "agreement": (
        Field("v", "int", "version of this record type"),
        Field("type", "str", '"agreement"'),
        Field("id", "str", "git blob id of the stored fields", False),
        Field("machine", "str", "name of the machine"),
        Field("version", "str", "tree id of what decides behaviour and judgement"),
        Field("rubric", "str", "hash of the effective criteria"),
        Field("criterion", "str", "id in rubric.toml"),
        Field("with", "str", "the candidate: jev, judge or same"),
        Field("against", "str", "the reference: grader or marks"),
        Field("candidate", "str", "identity of the grader that is measured"),
        Field("models", "list", "models that answered for it"),
        Field("references", "list", "identities of the reference graders"),
        Field("runs", "int", "stored runs that were looked at"),
        Field("usable", "int", "runs with a score of both"),
        Field("cases", "int", "different cases of these"),
        Field("failed", "int", "runs that failed: not used"),
        Field("no_reference", "int", "runs without a reference grade: not used"),
        Field("not_applicable", "int", "runs that the criterion does not concern: not used"),
        Field("candidate_errors", "int", "runs that the candidate could not grade: not used"),
        Field("reference_stored", "int", "reference grades that were there and not made"),
        Field("reference_threshold", "float", "score from which a run is good"),
        Field("sweep", "list", "for each pass threshold: counts, rates and their 95 % intervals"),
        Field("unsure_band", "list", "lowest and highest score that is unsure"),
        Field("unsure", "int", "runs that the candidate is unsure of"),
        Field("sure", "int", "the other ones"),
        Field("agreement_sure", "float?", "agreement at 0.5 on the sure ones"),
        Field("escalation", "object", "agreement and share saved if the reference grades the unsure alone"),
        Field("repeat", "object", "how steady the candidate is: flips across 0.5, spread of a run's grades"),
        Field("disagree", "int", "runs where the two disagree at 0.5"),
        Field("disagreements", "list", "these, at most 1000: run, case, trial, both scores, reason"),
        Field("spend", "object", "candidate and reference, in US dollars; null: unknown"),
        Field("calls", "object", "model calls made for candidate and reference"),
        Field("warnings", "list", "what makes the figures doubtful, each `code: words`"),
        Field("measured_at", "str", "UTC, ISO 8601"),
    ),
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
