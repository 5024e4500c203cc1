"""The training loop: a plan in, a saved checkpoint out, with every step measured, paid and resumable."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from libmachine.canon import Record, now
from libmachine.errors import Interrupted, MachineError
from libmachine.sft.examples import Rendered, mean_nll
from libmachine.sft.folder import FINAL, Training, steps_done
from libmachine.sft.plan import BETA1, BETA2, EPS, Plan, Step

SAVE_EVERY = 10
"""Steps between saved states."""
_AHEAD = 2  # steps submitted before the first of them is waited for, as hosted ones take their turn


class Purse(Protocol):
    """Money: `start` holds back what a step costs, `finish` pays it, `free` gives it back."""

    def start(self, step: Step) -> Any: ...
    def finish(self, held: Any, step: Step) -> None: ...
    def free(self, held: Any) -> None: ...


class Service(Protocol):
    """What the loop asks of libmachine.sft.service.Client."""

    def create(self, base_model: str, rank: int, seed: int, train_unembed: bool) -> None: ...
    def load(self, state_path: str, optimizer: bool) -> None: ...
    def submit(self, batch: list[Rendered], rate: float, betas: tuple[float, float], eps: float) -> Any: ...
    def logprobs(self, submitted: Any, what: str) -> list[list[float]]: ...
    def save_state(self, name: str, last: bool = False) -> str: ...
    def save_sampler(self, name: str) -> str: ...
    def delete(self, path: str) -> None: ...


@dataclass
class _Open:
    """A step that was submitted and not yet waited for."""

    step: Step
    submitted: Any
    held: Any
    at: float


class Trainer:
    """One training of one plan in one folder.

    tell: lines for people. progress: called after each step with (done, all, loss). stop: set when the
    user wants to end: the step under way is finished and the state saved.
    """

    def __init__(
        self,
        plan: Plan,
        folder: Training,
        service: Service,
        purse: Purse,
        tell: Callable[[str], None],
        progress: Callable[[int, int, float | None], None],
        stop: threading.Event,
    ) -> None:
        self.plan, self.folder, self.service, self.purse = plan, folder, service, purse
        self.tell, self.progress, self.stop = tell, progress, stop
        self._tokens = 0
        self._rolling: str | None = None

    def train(self) -> Record:
        """Train to the end, from the last saved state if there is one; the result.

        {"steps", "losses" (nats a token, one a step), "state_path", "sampler_path", ...}. Raises
        ProviderError, BudgetReached, Interrupted; what was saved by then is gone on from next time.
        """
        begun = time.monotonic()
        done = self._begin()
        pending: deque[_Open] = deque()
        try:
            for step in self.plan.steps[done:]:
                if self.stop.is_set():
                    break
                pending.append(self._submit(step))
                due = (step.number + 1) % SAVE_EVERY == 0 and step.number + 1 < len(self.plan.steps)
                while len(pending) > (0 if due else _AHEAD - 1):
                    done = self._finish(pending.popleft())
                if due:
                    self._save(done)
            while pending:
                done = self._finish(pending.popleft())
        finally:
            for left in pending:
                self.purse.finish(left.held, left.step)  # submitted, so perhaps billed
        if done < len(self.plan.steps):
            self._save(done)
            raise Interrupted(f"interrupted after step {done} of {len(self.plan.steps)}; its state is saved")
        return self._end(begun)

    def _begin(self) -> int:
        """Create, load or resume the model; the number of steps that are done."""
        settings, saved = self.plan.settings, self.folder.saved()
        if saved is not None and steps_done(saved) >= 0:
            try:
                self.service.load(saved["state_path"], optimizer=True)
            except MachineError as error:
                raise MachineError(
                    f"cannot go on from step {steps_done(saved)} ({error}); "
                    f"to begin anew, remove '{self.folder.path}'"
                ) from None
            done = steps_done(saved)
            self.folder.cut(done)
            self._tokens = self.plan.tokens() - self.plan.tokens(done)
            self._rolling = saved["state_path"]
            self.tell(f"resumed after step {done} of {len(self.plan.steps)}")
            return done
        self.folder.cut(0)
        if settings.start is not None:
            self.service.load(settings.start, optimizer=False)
        else:
            self.service.create(settings.base_model, settings.rank, settings.seed, settings.train_unembed)
        return 0

    def _submit(self, step: Step) -> _Open:
        held = self.purse.start(step)
        batch = [self.plan.examples[number].rendered for number in step.examples]
        try:
            submitted = self.service.submit(batch, step.learning_rate, (BETA1, BETA2), EPS)
        except BaseException:
            self.purse.free(held)
            raise
        return _Open(step, submitted, held, time.monotonic())

    def _finish(self, opened: _Open) -> int:
        step = opened.step
        try:
            logprobs = self.service.logprobs(opened.submitted, f"step {step.number + 1}")
        except BaseException:
            # submitted is likely to be billed, answered or not
            self.purse.finish(opened.held, step)
            raise
        self.purse.finish(opened.held, step)
        weights = [self.plan.examples[number].rendered.weights[1:] for number in step.examples]
        loss = mean_nll(logprobs, weights)
        tokens = self.plan.tokens_of(step)
        self._tokens += tokens
        total = len(self.plan.steps)
        self.folder.add(
            "metrics.jsonl",
            {
                "step": step.number,
                "epoch": step.epoch,
                "progress": round((step.number + 1) / total, 6),
                "learning_rate": step.learning_rate,
                "num_sequences": len(step.examples),
                "num_tokens": tokens,
                "num_loss_tokens": sum(sum(row) for row in weights),
                "train_mean_nll": loss,
                "tokens/trained": tokens,
                "tokens/cumulative/trained": self._tokens,
                "time/step": round(time.monotonic() - opened.at, 3),
            },
        )
        self.progress(step.number + 1, total, loss)
        return step.number + 1

    def _save(self, done: int) -> None:
        path = self.service.save_state(f"{done:06d}")
        self.folder.add("checkpoints.jsonl", self._row(f"{done:06d}", done, {"state_path": path}))
        if self._rolling is not None and self._rolling != path:
            self.service.delete(self._rolling)
        self._rolling = path

    def _row(self, name: str, done: int, paths: Record) -> Record:
        epoch, batch = divmod(done, self.plan.batches)
        row = {"name": name, "batch": batch, "epoch": epoch, **paths, "elapsed_tokens": self._tokens}
        return {**row, "steps": done}

    def _end(self, begun: float) -> Record:
        paths = {
            "state_path": self.service.save_state(FINAL, last=True),
            "sampler_path": self.service.save_sampler(FINAL),
        }
        row = self._row(FINAL, len(self.plan.steps), paths)
        self.folder.add("checkpoints.jsonl", {**row, "final": True})
        if self._rolling is not None and self._rolling != paths["state_path"]:
            self.service.delete(self._rolling)
        losses = [row["train_mean_nll"] for row in self.folder.rows("metrics.jsonl")]
        result: Record = {
            "training": self.folder.id,
            **paths,
            "steps": len(self.plan.steps),
            "tokens": self.plan.tokens(),
            "losses": losses,
            "finished_at": now(),
            "duration_s": round(time.monotonic() - begun, 1),
        }
        return result
