"""The official tinker SDK (0.38), held to time limits of our own.

Left alone it waits five minutes on an address where nobody answers, and pauses up to an hour in
silence when the account is not paid (402). So a question is asked first, without it, and every
answer of it is waited for here, where a pause is seen and told.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from libmachine.errors import Interrupted, MachineError, ProviderError
from libmachine.sft.examples import Rendered

Result = TypeVar("Result")
DEFAULT_URL = "https://tinker.thinkingmachines.dev/services/tinker-prod"
PREFLIGHT_S = 10.0
CALL_S = 120.0
"""For a call that computes nothing."""
STEP_S = 1800.0
"""For a step or a save: hosted ones may stand in a queue."""
TELL_S = 60.0
TTL_S = 7 * 86400
"""Life of a hosted checkpoint; machine-commit lifts it."""
_POLL_S = 1.0


class Address(NamedTuple):
    """Where the trainer is, and the key for it."""

    base_url: str
    key: str


class Offer(NamedTuple):
    """What a trainer says of itself: model -> its context in tokens (None: not told)."""

    models: dict[str, int | None]


def preflight(address: Address, limit_s: float = PREFLIGHT_S) -> Offer:
    """Ask a trainer what it trains, by plain HTTP. Raises MachineError or ProviderError within limit_s."""
    import httpx

    from libmachine.prices import is_private

    url = address.base_url.rstrip("/")
    if not address.key.startswith(("tml-", "eyJ")):
        raise MachineError(
            "TINKER_API_KEY is no key of Tinker's; it begins with 'tml-' (a local server's too)"
        )
    try:
        with httpx.Client(timeout=limit_s, trust_env=not is_private(url)) as client:
            reply = client.get(f"{url}/api/v1/get_server_capabilities", headers={"X-API-Key": address.key})
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ProviderError(
            f"no trainer answers at '{url}' ({str(error) or type(error).__name__}); see TINKER_BASE_URL"
        ) from None
    if reply.status_code == 402:
        raise ProviderError(f"the account at '{url}' is not set up to pay (402): {_told(reply.text)}")
    if reply.status_code in (401, 403):
        raise ProviderError(f"'{url}' refuses the key in TINKER_API_KEY ({reply.status_code})")
    try:
        told = reply.json()["supported_models"]
        models = {entry["model_name"]: entry.get("max_context_length") for entry in told if _trains(entry)}
    except (ValueError, KeyError, TypeError):
        raise ProviderError(
            f"'{url}' is no Tinker service ({reply.status_code}: {_told(reply.text)}); see TINKER_BASE_URL"
        ) from None
    return Offer(models)


def is_there(address: Address, path: str, limit_s: float = PREFLIGHT_S) -> bool:
    """Does a trainer still have a checkpoint? Raises ProviderError if it does not say."""
    import httpx

    from libmachine.prices import is_private

    url = address.base_url.rstrip("/")
    try:
        with httpx.Client(timeout=limit_s, trust_env=not is_private(url)) as client:
            asked = {"tinker_path": path}
            headers = {"X-API-Key": address.key}
            reply = client.post(f"{url}/api/v1/weights_info", json=asked, headers=headers)
    except httpx.HTTPError as error:
        raise ProviderError(f"'{url}' does not say whether it has '{path}': {error}") from None
    if reply.status_code not in (200, 400, 404, 410):
        raise ProviderError(f"'{url}' does not say whether it has '{path}' ({reply.status_code})")
    return reply.status_code == 200


def lift_expiry(address: Address, path: str, limit_s: float = CALL_S) -> None:
    """Let a checkpoint live for ever, by the SDK. Raises MachineError, ProviderError within limit_s or so."""
    preflight(address)
    import tinker

    box: list[Exception | None] = []

    def run() -> None:
        try:
            rest = tinker.RestClient(base_url=address.base_url, api_key=address.key)
            rest.set_checkpoint_ttl_from_tinker_path(path, None).result(timeout=limit_s)
            box.append(None)
        except Exception as error:  # of the SDK, or a time-out
            box.append(error)

    thread = threading.Thread(target=run, name="tinker-call", daemon=True)
    thread.start()
    thread.join(limit_s)
    if not box:
        raise ProviderError(f"'{address.base_url}' does not answer within {limit_s:.0f} s")
    if box[0] is not None:
        raise ProviderError(f"'{address.base_url}': {type(box[0]).__name__}: {_told(str(box[0]))}")


def _trains(entry: dict[str, Any]) -> bool:
    return entry.get("trainable") is not False


def _told(text: str) -> str:
    return " ".join(text.split())[:200]


class _Watch(logging.Handler):
    """Writes what the SDK logs to train.log, and notices when it pauses for an unpaid account."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__(logging.INFO)
        self.say = say
        self.unpaid: str | None = None

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        self.say(f"tinker: {text}")
        if "paused due to billing" in text:
            self.unpaid = text


class Client:
    """One training client of the SDK. say: takes lines for train.log; tell: lines for people.

    ttl_s: life of what it saves last, None for ever; what it saves in between lives TTL_S. Any
    failure of the SDK's is a ProviderError here; after one the client is of no more use.
    stop: set when the user wants to end; waits then raise Interrupted.
    """

    def __init__(
        self,
        address: Address,
        metadata: dict[str, str],
        say: Callable[[str], None],
        tell: Callable[[str], None],
        stop: threading.Event,
        ttl_s: int | None = TTL_S,
    ) -> None:
        self._tell, self._stop, self._ttl_s = tell, stop, ttl_s
        self._address = address
        self._watch = _Watch(say)
        self._logger = logging.getLogger("tinker")
        self._logger.addHandler(self._watch)
        self._logger.setLevel(logging.INFO)
        self._logger.propagate = False
        self._metadata = metadata
        self._trainer: Any = None
        import tinker

        self._sdk = tinker
        self._service: Any = self._call(
            lambda: tinker.ServiceClient(
                base_url=address.base_url, api_key=address.key, user_metadata=metadata, project_id=None
            ),
            CALL_S,
            "opening a session",
        )

    def create(self, base_model: str, rank: int, seed: int, train_unembed: bool) -> None:
        """A new adapter on a base model."""
        self._trainer = self._call(
            lambda: self._service.create_lora_training_client(
                base_model=base_model,
                rank=rank,
                seed=seed,
                train_unembed=train_unembed,
                user_metadata=self._metadata,
            ).result(),
            STEP_S,
            "creating the model",
        )

    def load(self, state_path: str, optimizer: bool) -> None:
        """The adapter of a saved state, with its optimiser (to resume) or without (to go on from it)."""
        name = "create_training_client_from_state" + ("_with_optimizer" if optimizer else "")
        self._trainer = self._call(
            lambda: getattr(self._service, name)(state_path, user_metadata=self._metadata).result(),
            STEP_S,
            "loading the saved state",
        )

    def submit(self, batch: Sequence[Rendered], rate: float, betas: tuple[float, float], eps: float) -> Any:
        """Start one step: forward, backward, optimiser. Answers at once with what `logprobs` takes."""
        data = [datum(self._sdk, rendered) for rendered in batch]
        adam = self._sdk.AdamParams(learning_rate=rate, beta1=betas[0], beta2=betas[1], eps=eps)
        return self._call(
            lambda: (
                self._trainer.forward_backward(data, "cross_entropy"),
                self._trainer.optim_step(adam),
            ),
            CALL_S,
            "submitting a step",
        )

    def logprobs(self, submitted: Any, what: str) -> list[list[float]]:
        """Log-probabilities of the targets of a submitted step, one row an example, when it is done."""
        forward, optimiser = submitted
        result = self._wait(forward, STEP_S, what)
        self._wait(optimiser, STEP_S, what)
        return [[float(x) for x in output["logprobs"].tolist()] for output in result.loss_fn_outputs]

    def save_state(self, name: str, last: bool = False) -> str:
        """Save weights and optimiser; the path. last: nothing comes after it."""
        ttl_s = self._ttl_s if last else TTL_S
        return self._saved("save_state", name, {"overwrite": True, "ttl_seconds": ttl_s})

    def save_sampler(self, name: str) -> str:
        """Save weights to sample from; the path."""
        return self._saved("save_weights_for_sampler", name, {"ttl_seconds": self._ttl_s})

    def _saved(self, method: str, name: str, extra: dict[str, Any]) -> str:
        what = f"saving '{name}'"
        started = self._call(lambda: getattr(self._trainer, method)(name, **extra), CALL_S, what)
        return str(self._wait(started, STEP_S, what).path)

    def delete(self, path: str) -> None:
        """Delete a saved state; nothing happens if that fails, as it ends by itself."""
        try:
            rest = self._sdk.RestClient(base_url=self._address.base_url, api_key=self._address.key)
            rest.delete_checkpoint_from_tinker_path(path).result(timeout=30)
        except Exception as error:  # of the SDK, or a time-out
            self._watch.say(f"cannot delete {path}: {type(error).__name__}: {error}")

    def close(self, succeeded: bool) -> None:
        """End the session, and take the log back."""
        try:
            self._service.close("success" if succeeded else "error").result(timeout=10)
        except Exception as error:
            self._watch.say(f"closing: {type(error).__name__}: {error}")
        self._logger.removeHandler(self._watch)

    # waiting ------------------------------------------------------------------------------

    def _call(self, work: Callable[[], Result], limit_s: float, what: str) -> Result:
        """The result of a blocking call of the SDK's, made in a thread that is left behind if it hangs."""
        box: list[Any] = []

        def run() -> None:
            try:
                box.append((work(), None))
            except BaseException as error:
                box.append((None, error))

        thread = threading.Thread(target=run, name="tinker-call", daemon=True)
        thread.start()

        def ended(pause: float) -> bool:
            thread.join(pause)
            return not thread.is_alive()

        self._until(ended, limit_s, what)
        value, error = box[0]
        if error is not None:
            raise self._failure(what, error)
        return value  # type: ignore[no-any-return]

    def _wait(self, future: Any, limit_s: float, what: str) -> Any:
        done: list[Any] = []

        def look(pause: float) -> bool:
            try:
                done.append(future.result(timeout=pause))
            except TimeoutError:
                return False
            except Exception as error:
                raise self._failure(what, error) from None
            return True

        self._until(look, limit_s, what)
        return done[0]

    def _until(self, look: Callable[[float], bool], limit_s: float, what: str) -> None:
        started = told = time.monotonic()
        while not look(_POLL_S):
            now = time.monotonic()
            if self._watch.unpaid is not None:
                raise ProviderError(f"{what}: the account is not set up to pay (402); {self._watch.unpaid}")
            if now - started > limit_s:
                raise ProviderError(f"{what}: no answer within {limit_s:.0f} s")
            if self._stop.is_set() and now - started > 30:
                raise Interrupted(f"interrupted while {what}")
            if now - told > TELL_S:
                told = now
                self._tell(f"{what}: waiting for {now - started:.0f} s")

    @staticmethod
    def _failure(what: str, error: BaseException) -> BaseException:
        if not isinstance(error, Exception):
            return error
        return ProviderError(f"{what}: {type(error).__name__}: {_told(str(error))}")


def datum(sdk: Any, rendered: Rendered) -> Any:
    """An example in the SDK's form, shifted: target i follows token i. sdk: the module tinker."""
    tokens, weights = rendered
    return sdk.Datum(
        model_input=sdk.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={
            "target_tokens": sdk.TensorData(data=tokens[1:], dtype="int64", shape=[len(tokens) - 1]),
            "weights": sdk.TensorData(data=weights[1:], dtype="float32", shape=[len(tokens) - 1]),
        },
    )
