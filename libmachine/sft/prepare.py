"""A training before money is spent: which runs, which renderer, which trainer, what it would cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from libmachine import console, export, prices
from libmachine.canon import Record, loads
from libmachine.errors import MachineError, UsageError
from libmachine.export_runs import Checked, chosen_of
from libmachine.git import repository, trees
from libmachine.harness.chat_send import effort_number
from libmachine.load import load
from libmachine.project import Project, make_store
from libmachine.run import tool_set
from libmachine.sft import check, dataset, folder, plan, told
from libmachine.sft.candidate import Live
from libmachine.sft.examples import Example, fitting, shuffled
from libmachine.sft.job import Job, find
from libmachine.sft.renderers import LocalRenderer, Renderer
from libmachine.store.store import Store

_LOCAL_RANK, _RANK = 16, 32


def prepare(
    project: Project, name: str, runs: list[Record], store: Store, dry_run: bool, options: dict[str, Any]
) -> Job | None:
    """The job, or None (told) if there is nothing to learn from."""
    repo = repository.open_repository(project.root)
    base = trees.commit(repo, "HEAD")
    live = Live(base, name)
    machine = load(name, project.places)
    base_model = live.base_model()
    dropped = export.Dropped()
    solved = plan.Solved({})
    chosen = _chosen(project, live, runs, dropped, solved, options)
    if not chosen:
        told.say_dropped(dropped)
        console.say("nothing to learn from")
        return None
    if not dry_run:
        make_store(project)  # before the local trainer makes its folder in it
    trainer = find(project, base_model, options["base_url"], must=not dry_run)
    context = trainer.context(base_model)
    asked = effort_number(options["effort"]) if options["effort"] else None
    effort = (
        check.usual_effort([run for run in chosen if live.shares_tokens(run)]) if asked is None else asked
    )
    renderer = _renderer(base_model, options["renderer"], effort)
    made = dataset.build(
        chosen,
        renderer,
        lambda oid: _ids(store, oid),
        live.shares_tokens,
        dropped,
        effort if renderer.has_effort else None,
        options["drop_reasoning"],
        [tool.schema for tool in tool_set(machine.tools).values()],
    )
    examples = _shuffled(made, options["seed"]) if options["shuffle_answers"] else made.examples
    short, long = fitting(examples, context)
    for example in long:
        run = next(run for run in made.runs if run["id"] == example.run)
        dropped.add(f"an example of it has {len(example.rendered.tokens)} tokens, the context {context}", run)
    told.say_dropped(dropped)
    told.judge_check(made, options["allow_render_mismatch"], dry_run)
    if not short:
        console.say("nothing to learn from")
        return None
    settings = _settings(project, live, base_model, renderer, effort, options)
    what = plan.make(short, settings, trainer.name)
    counts = solved.record({example.case for example in short})
    job = Job(
        project=project,
        repo=repo,
        base=base,
        name=name,
        live=live,
        plan=what,
        dataset=made,
        dropped=dropped,
        solved=counts,
        renderer=renderer,
        trainer=trainer,
        price=prices.price_of(base_model, options["price_as"], trainer.base_url),
        instructions=machine.instructions,
        warnings=plan.warnings(
            what, counts, made.unthinking, taught=not all(live.is_by(run) for run in made.runs)
        ),
    )
    told.warn(job)
    return job


def _chosen(
    project: Project,
    live: Live,
    runs: list[Record],
    dropped: export.Dropped,
    solved: plan.Solved,
    options: dict[str, Any],
) -> list[Record]:
    """The runs that may be learned from, the best of each case."""
    checked = Checked(project, dropped, options["drop_reasoning"])
    kept = []
    for run in runs:
        if not options["any_model"] and not live.is_by(run):
            dropped.add(f"by '{run['model']}', not by the live model; --any-model takes it too", run)
            continue
        keeps = checked.keeps(run)
        if run.get("split") != "holdout":
            solved.add(run)
        if keeps:
            kept.append(run)
    wanted = {"distinct": True, "since": None, "cases": None, "not_cases": None, "best": options["best_of"]}
    return list(chosen_of(kept, {**wanted, **{n: options[n] for n in ("min_score", "passing")}}))


def _ids(store: Store, oid: str) -> Mapping[str, Any] | None:
    """A step's token ids, None if this store does not have them: runs travel without their blobs."""
    try:
        value = loads(store.read_blob(oid))
    except MachineError:
        return None
    return value if isinstance(value, dict) and {"prompt", "completion"} <= value.keys() else None


def _shuffled(made: dataset.Dataset, seed: int) -> list[Example]:
    """The examples of a control, each with an answer of another case. Raises MachineError if none can be."""
    if len({example.case for example in made.examples}) < 2:
        raise MachineError("--shuffle-answers needs good runs of at least two cases")
    examples, kept = shuffled(made.examples, seed)
    if kept:
        console.say(
            f"warning: {kept} of {len(examples)} examples keep an answer of their own case, "
            "which has more than half of them"
        )
    return examples


def _renderer(base_model: str, name: str | None, effort: float) -> Renderer:
    from libmachine.sft.renderers import LOCAL

    if base_model.startswith("local/"):
        if name not in (None, LOCAL):
            raise UsageError(f"'{base_model}' is rendered by '{LOCAL}', as it is sampled; drop --renderer")
        from libmachine.harness import weights

        return LocalRenderer(weights.ensure_weights(base_model))
    from libmachine.sft import cookbook

    return cookbook.renderer(base_model, name, effort)


def _settings(
    project: Project,
    live: Live,
    base_model: str,
    renderer: Renderer,
    effort: float,
    options: dict[str, Any],
) -> plan.Settings:
    is_local = base_model.startswith("local/")
    is_placebo = options["placebo"]
    # of zero effect against the live version, so it starts where that is
    go_on = options["go_on"] or (is_placebo and live.model.base is not None)
    return plan.Settings(
        base_model=base_model,
        renderer=renderer.name,
        rank=options["rank"] or (_LOCAL_RANK if is_local else _RANK),
        batch_size=options["batch_size"],
        epochs=options["epochs"],
        learning_rate=0.0 if is_placebo else options["learning_rate"] or _rate(base_model),
        seed=options["seed"],
        steps=options["steps"] or (1 if is_placebo else None),
        effort=effort if renderer.has_effort else None,
        start=_start(project, live) if go_on else None,
        train_unembed=not is_local,  # llama.cpp cannot serve one that shares its weights with the embedding
        control="placebo" if is_placebo else "shuffled_answers" if options["shuffle_answers"] else None,
    )


def _rate(base_model: str) -> float:
    known = plan.default_rate(base_model)
    if known is not None:
        return known
    from tinker_cookbook.hyperparam_utils import get_lr

    try:
        return float(get_lr(base_model))
    except Exception as error:  # NotImplementedError, ConfigurationError, or the hub's
        raise MachineError(
            f"no learning rate is known for '{base_model}' ({str(error)[:200]}); give --learning-rate"
        ) from None


def _start(project: Project, live: Live) -> str:
    """The saved state of the live checkpoint."""
    model = live.model.model or ""
    for result in reversed(folder.results(project.store)):
        if result.get("model") == model:
            return str(result["state_path"])
    if model.startswith("tinker://") and "/sampler_weights/" in model:
        return model.replace("/sampler_weights/", "/weights/")
    raise MachineError(f"no saved state of the live model '{model}' is known here to go on from")
