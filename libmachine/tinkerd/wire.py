"""Bodies of the Tinker protocol: JSON, and the protobuf messages that the `tinker` SDK brings along.

The generated module is read from the package's folder by itself: `import tinker` takes seconds, and
more where torch is installed. Layouts are those of tinker 0.38 (proto/request_conv.py,
proto/response_conv.py): token ids int32, tensors float32 or int64, little-endian bytes.
"""

from __future__ import annotations

import functools
import importlib.util
import math
import os
from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple

from libmachine.canon import RecordError, loads
from libmachine.errors import MachineError
from libmachine.tinkerd.engine import Datum, Losses, Refusal, Sampled

JSON, PROTO = "application/json", "application/x-protobuf"
INSTALL = "pip install 'libmachine[sft]'"
_LARGEST_UNPACKED = 256 << 20


class TrainBody(NamedTuple):
    """A forward_backward request. data: lazily read, as reading it may raise Refusal."""

    model_id: str
    seq_id: int
    forward_only: bool
    message: Any


@functools.cache
def messages() -> Any:
    """The SDK's generated protobuf module. Raises MachineError if the SDK is not installed."""
    found = importlib.util.find_spec("tinker")
    if found is None or not found.submodule_search_locations:
        raise MachineError(f"the local trainer needs the package 'tinker'; {INSTALL}")
    path = os.path.join(found.submodule_search_locations[0], "proto", "tinker_public_pb2.py")
    spec = importlib.util.spec_from_file_location("_machine_tinker_pb2", path)
    if spec is None or spec.loader is None or not os.path.exists(path):
        raise MachineError(f"this version of the package 'tinker' has no '{path}'; {INSTALL}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def unpacked(body: bytes, encoding: str) -> bytes:
    """The body without its Content-Encoding. Raises Refusal."""
    if encoding in ("", "identity"):
        return body
    if encoding != "zstd":
        raise Refusal(f"content encoding '{encoding}' is not served; zstd is", status=415)
    try:
        import zstandard
    except ImportError:
        raise Refusal("zstd bodies need the package 'zstandard'", "server", 415) from None
    try:
        reader = zstandard.ZstdDecompressor().stream_reader(body)
        data: bytes = reader.read(_LARGEST_UNPACKED + 1)
    except zstandard.ZstdError as error:
        raise Refusal(f"the body is no zstd: {error}") from None
    if len(data) > _LARGEST_UNPACKED:
        raise Refusal("the body is too large when unpacked", status=413)
    return data


def json_body(body: bytes) -> dict[str, Any]:
    """A request's JSON object, {} for no body. Raises Refusal."""
    try:
        value = loads(body) if body else {}
    except RecordError as error:
        raise Refusal(f"the body is {error}") from None
    if not isinstance(value, dict):
        raise Refusal("the body is no JSON object")
    return value


def train_body(body: bytes) -> TrainBody:
    """The outer fields of a forward_backward request. Raises Refusal."""
    message = messages().ForwardBackwardRequest()
    try:
        message.ParseFromString(body)
    except Exception as error:  # protobuf's DecodeError, without importing it here
        raise Refusal(f"the body is no ForwardBackwardRequest: {error}") from None
    return TrainBody(message.model_id, message.seq_id, message.forward_only, message)


def examples(message: Any) -> list[Datum]:
    """The examples of a forward_backward request. Raises Refusal for what the trainer cannot do."""
    if message.loss_fn != "cross_entropy":
        raise Refusal(f"loss function '{message.loss_fn}' is not served; cross_entropy is")
    if message.loss_fn_config or message.loss_fn_config_v2:
        raise Refusal("loss_fn_config is not served: cross_entropy has no settings")
    if not message.data:
        raise Refusal("forward_backward without data")
    return [_datum(datum, f"example {number}") for number, datum in enumerate(message.data)]


def _datum(datum: Any, what: str) -> Datum:
    tokens: list[int] = []
    for chunk in datum.model_input:
        if not chunk.HasField("encoded_text"):
            raise Refusal(f"{what} has an image or sound; only text is served")
        tokens += _numbers("i", chunk.encoded_text.tokens, what)
    unknown = set(datum.loss_fn_inputs) - {"target_tokens", "weights"}
    if unknown or "target_tokens" not in datum.loss_fn_inputs:
        names = ", ".join(sorted(unknown)) or "no target_tokens"
        raise Refusal(f"{what}: cross_entropy takes target_tokens and weights, not {names}")
    targets = [int(value) for value in _tensor(datum.loss_fn_inputs["target_tokens"], what)]
    weights = [1.0] * len(targets)
    if "weights" in datum.loss_fn_inputs:
        weights = [float(value) for value in _tensor(datum.loss_fn_inputs["weights"], what)]
    if not len(tokens) == len(targets) == len(weights):
        raise Refusal(
            f"{what}: {len(tokens)} tokens, {len(targets)} targets, {len(weights)} weights; one number each"
        )
    if not all(map(math.isfinite, weights)):
        raise Refusal(f"{what}: a weight is no finite number")
    return Datum(tokens, targets, weights)


def _tensor(tensor: Any, what: str) -> Sequence[float]:
    if tensor.HasField("sparse_csr") or len(tensor.shape) > 1:
        raise Refusal(f"{what}: sparse tensors and those of several dimensions are not served")
    types = {messages().DTYPE_FLOAT32: "f", messages().DTYPE_INT64: "q", messages().DTYPE_INT32: "i"}
    if tensor.dtype not in types:
        raise Refusal(f"{what}: tensors of dtype {tensor.dtype} are not served")
    return _numbers(types[tensor.dtype], tensor.dense, what)


def _numbers(code: str, data: bytes, what: str) -> array[Any]:
    numbers: array[Any] = array(code)
    try:
        numbers.frombytes(data)
    except ValueError:
        raise Refusal(f"{what}: a tensor is cut off") from None
    return numbers


def losses_message(losses: Losses) -> bytes:
    """ForwardBackwardOutput: one ArrayRecord with the log-probabilities of all examples."""
    module = messages()
    message = module.ForwardBackwardOutput(loss_fn_output_type="CrossEntropyLossReturn")
    message.metrics["loss:sum"] = losses.loss
    record = message.loss_fn_outputs.add()
    record.num_datums = len(losses.logprobs)
    offsets = array("q", [0])
    for row in losses.logprobs:
        offsets.append(offsets[-1] + 4 * len(row))
    field = record.fields["logprobs"]
    field.dtype = module.DTYPE_FLOAT32
    field.data = array("f", [value for row in losses.logprobs for value in row]).tobytes()
    field.offsets = offsets.tobytes()
    encoded: bytes = message.SerializeToString()
    return encoded


def sample_message(sampled: Sampled) -> bytes:
    """SampleResponse."""
    module = messages()
    reasons = {"stop": module.STOP_REASON_STOP, "length": module.STOP_REASON_LENGTH}
    message = module.SampleResponse()
    for sequence in sampled.sequences:
        message.sequences.add(
            stop_reason=reasons[sequence.stop_reason],
            tokens=array("i", sequence.tokens).tobytes(),
            logprobs=array("f", sequence.logprobs).tobytes(),
        )
    if sampled.prompt_logprobs is not None:
        message.prompt_logprobs = array("f", sampled.prompt_logprobs).tobytes()
    encoded: bytes = message.SerializeToString()
    return encoded
