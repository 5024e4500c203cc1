"""Secrets do not come through, in whatever form, and nothing else is touched."""

from __future__ import annotations

import base64
import json
import string
import threading
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libmachine.redact import PATTERN, SHORTEST, of_environment, redactor

KEY = "sk-very-secret-0123456789"
ODD = 'p/a"s+ s\\w\u00f6rd\n1'
redact = redactor({"OPENAI_API_KEY": KEY, "ODD_PASSWORD": ODD})

RANDOM = "aB3dE5gH7jK9mN1pQ3sT5vW7yZ9bC1dF3hJ5kL7n"
PEM = "-----BEGIN RSA PRIVATE KEY-----\n{}\n-----END RSA PRIVATE KEY-----"
LINES = ["MIIEpAIBAAKCAQEA7bq9z1h2k3", "l4m5n6o7p8q9r0s1t2u3v4w5x6", "y7z8=="]


# What a secret may be: long enough, no part of the mark that takes its place.
def values(characters: Any) -> st.SearchStrategy[str]:
    return st.text(characters, min_size=SHORTEST, max_size=40).filter(
        lambda value: value not in "[redacted:NAME]" and value not in PATTERN
    )


VALUES = values(st.characters(exclude_categories=["Cs"]))
PRINTABLE = values(string.ascii_letters + string.digits + string.punctuation + " ")
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize(
    "form",
    [
        ODD,
        quote(ODD),
        quote(ODD, safe=""),
        quote(ODD, safe="").lower(),
        quote_plus(ODD),
        json.dumps(ODD)[1:-1],
        json.dumps(ODD, ensure_ascii=False)[1:-1],
        json.dumps(ODD)[1:-1].replace("/", "\\/"),
        json.dumps(json.dumps(ODD)[1:-1])[1:-1],
    ],
)
@pytest.mark.parametrize("around", [("", ""), ("key=", "&x=1"), ("a", "b"), ("ö\n", "\u2028")])
def test_every_form_of_a_value(form: str, around: tuple[str, str]) -> None:
    assert redact(form.join(around)) == "[redacted:ODD_PASSWORD]".join(around)


@pytest.mark.parametrize("before", ["", "u:", "us:", "use:", "user:"])
@pytest.mark.parametrize("after", ["", "x", "xy", "xyz"])
@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
def test_a_value_inside_base64(before: str, after: str, encode: Any) -> None:
    value = "a?>~secret\u00ff\u00fe?>"
    got = redactor({"K": value})("Basic " + encode((before + value + after).encode()).decode() + ".")
    head, tail = got.split("[redacted:K]")
    assert len(head) <= len("Basic ") + len(base64.b64encode(before.encode()))
    assert len(tail) <= 8


def test_the_longest_secret_counts() -> None:
    both = redactor({"SHORT_KEY": "abcdefgh", "LONG_KEY": "abcdefgh12345678"})
    assert both("x abcdefgh12345678 abcdefgh y") == "x [redacted:LONG_KEY] [redacted:SHORT_KEY] y"


def test_overlapping_secrets_leave_no_rest() -> None:
    both = redactor({"ONE_KEY": "abcdefgh1234", "TWO_KEY": "1234ijklmnop"})
    assert both("x abcdefgh1234ijklmnop y") == "x [redacted:ONE_KEY] y"
    assert redactor({"K": "aaaaaaaa"})("a" * 12) == "[redacted:K]"


def test_one_value_under_two_names_has_one_name() -> None:
    assert redactor({"B_KEY": KEY, "A_KEY": KEY})(KEY) == "[redacted:A_KEY]"


@pytest.mark.parametrize("value", ["", "short", "1234567", "redacted"])
def test_placeholders_are_no_secrets(value: str) -> None:
    text = "a short redacted text of 1234567 words"
    assert redactor({"X_KEY": value})(text) is text


@pytest.mark.parametrize(
    "secret",
    [
        f"sk-{RANDOM}",
        f"sk-proj-{RANDOM[:16]}_{RANDOM}-{RANDOM}",
        f"sk-ant-api03-{RANDOM}",
        "sk-or-v1-" + "0123456789abcdef" * 4,
        f"tml-{RANDOM}",
        f"ghp_{RANDOM[:36]}",
        f"gho_{RANDOM[:36]}",
        f"github_pat_{RANDOM[:22]}_{RANDOM}",
        "AKIAIOSFODNN7EXAMPLE",
        "ASIAIOSFODNN7EXAMPLE",
        PEM.format("\n".join(LINES)),
        PEM.format("\r\n".join(LINES)),
        PEM.format("\n".join(LINES)).replace("\n", "\\n"),
        PEM.format("Proc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,3F17\n\n" + "\n".join(LINES)),
        PEM.format("\n".join(LINES)).replace("RSA ", ""),
        PEM.format("\n".join(LINES)).replace("RSA", "OPENSSH"),
    ],
)
@pytest.mark.parametrize(
    "around", [("", ""), ("see ", " there"), ('"', '"'), ("\n", "\n"), ("=", ","), ("é", ".")]
)
def test_known_shapes(secret: str, around: tuple[str, str]) -> None:
    assert redactor({})(secret.join(around)) == PATTERN.join(around)


@pytest.mark.parametrize("end", ["", "\n", " and so on", "\n..."])
def test_a_key_that_is_cut_off(end: str) -> None:
    cut = PEM.format("\n".join(LINES)).partition("-----END")[0].rstrip() + end
    got = redactor({})(f"begin {cut}")
    assert got.startswith(f"begin {PATTERN}")
    assert not any(line in got for line in LINES[:2])


@pytest.mark.parametrize(
    "text",
    [
        "task-management-system-for-everyone-2024",
        "a sk-toggleable__label-arrow-1 of scikit-learn",
        "sk-fading-circle-12 sk-circle",
        "sk-",
        "the prefix sk- or tml- and then letters",
        "disk-0123456789abcdef0123456789abcdef",
        "ghp_short",
        "AKIA and AKIAsomething",
        "BAKIAIOSFODNN7EXAMPLEB",
        "A key file begins with -----BEGIN PRIVATE KEY----- and ends with -----END PRIVATE KEY-----.",
        "-----BEGIN CERTIFICATE-----\n" + "\n".join(LINES) + "\n-----END CERTIFICATE-----",
        "-----BEGIN PUBLIC KEY-----\n" + "\n".join(LINES),
        "0123456789abcdef0123456789abcdef01234567",
    ],
)
def test_what_only_looks_like_one(text: str) -> None:
    assert redactor({})(text) is text


def test_a_record_keeps_its_shape() -> None:
    run = {
        "v": 1,
        "messages": [{"role": "tool", "content": f"env says {KEY}"}, {"content": None}],
        "case": {"metadata": {KEY: [KEY, 1.5, True, None]}},
        "messages_of": {},
    }
    before = json.dumps(run)
    mark = "[redacted:OPENAI_API_KEY]"
    assert redact(run) == {
        "v": 1,
        "messages": [{"role": "tool", "content": f"env says {mark}"}, {"content": None}],
        "case": {"metadata": {mark: [mark, 1.5, True, None]}},
        "messages_of": {},
    }
    assert json.dumps(run) == before


def test_names_of_fields_stay() -> None:
    odd = redactor({"X_KEY": "messages"})
    assert odd({"messages": ["my messages"]}) == {"messages": ["my [redacted:X_KEY]"]}


def test_nothing_found_is_the_value_itself() -> None:
    value: dict[str, Any] = {"a": ["sk-learn", {"b": "é\n"}]}
    assert redact(value) is value
    assert redact(None) is None
    assert redact(2**80) == 2**80


def test_lone_surrogates() -> None:
    assert redact(["\ud800", KEY]) == ["\ud800", "[redacted:OPENAI_API_KEY]"]
    assert redactor({"K": "secret-\udc80-bytes"})("a secret-\udc80-bytes b") == "a [redacted:K] b"


def test_long_text_is_quick() -> None:
    for text in ("sk-" * 300_000, "-----BEGIN PRIVATE KEY-----" * 20_000, "-" * 10**6, "A" * 10**6):
        redact(text)
    redact("-----BEGIN PRIVATE KEY-----\n" + "A" * 10**6 + "-" * 10**5)


def test_the_environment_as_it_is_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEW_API_KEY", "first-value-1")
    assert of_environment(["first-value-1 x"]) == ["[redacted:NEW_API_KEY] x"]
    monkeypatch.setenv("NEW_API_KEY", "second-value-2")
    assert of_environment("first-value-1 second-value-2") == "first-value-1 [redacted:NEW_API_KEY]"


def test_from_several_threads() -> None:
    got: list[str] = []
    threads = [threading.Thread(target=lambda: got.append(redact(f"x {KEY}"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == ["x [redacted:OPENAI_API_KEY]"] * 8


@settings(deadline=None)
@given(VALUES, TEXTS, TEXTS)
def test_no_value_survives(value: str, before: str, after: str) -> None:
    one = redactor({"NAME": value})
    for form in (value, json.dumps(value)[1:-1], quote(value, safe=""), json.dumps({"a": value})):
        got = one(before + form + after)
        assert value not in got.replace("[redacted:NAME]", "\0")
    got = one({"deep": [{"text": before + value + after}], f"Key {value}": 1})
    assert value not in json.dumps(got, ensure_ascii=False).replace("[redacted:NAME]", "\0")


@settings(deadline=None)
@given(PRINTABLE, st.binary(max_size=20), st.binary(max_size=20))
def test_no_base64_of_it_survives(value: str, before: bytes, after: bytes) -> None:
    one = redactor({"NAME": value})
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        data = before + value.encode() + after
        got = one(encode(data).decode())
        kept = got.split("[redacted:NAME]")
        # at most what belongs to the bytes around it, and a letter on each side
        assert sum(map(len, kept)) <= len(encode(before)) + len(encode(after)) + 8


@settings(deadline=None)
@given(JSON)
def test_what_holds_no_secret_is_untouched(value: Any) -> None:
    assert redact(value) is value


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(["A_KEY", "B_KEY", "C_TOKEN"]), VALUES, max_size=3), JSON)
def test_any_value_is_taken_and_twice_is_once(secrets: dict[str, str], value: Any) -> None:
    marks = [f"[redacted:{name}]" for name in secrets]
    if any(secret in mark or mark in secret for secret in secrets.values() for mark in marks):
        return
    one = redactor(secrets)
    mixed = [value, *secrets.values(), {"text": " ".join(secrets.values())}]
    once = one(mixed)
    assert json.loads(json.dumps(once)) == once
    assert not any(secret in str(part) for part in once[1:-1] for secret in secrets.values())
    assert one(once) == once
