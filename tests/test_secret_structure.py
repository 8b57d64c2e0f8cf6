"""Secrets in every form of `secret_samples`, through a text, a stream, an object and a command."""

from __future__ import annotations

import base64
import json
import time

import pytest

from launch.redact import MASK, Redactor
from launch.redact_stream import StreamRedactor
from launch.secret_names import looks_random, name_strength
from tests.secret_samples import HARMLESS, SECRETS, WORD, X

RANDOM = [
    X,
    "9f8e" * 20,
    "cm9ib3Q6c3dvcmRmaXNoLTc=",
    "aB3dE5gH7jK9",
    "wJalrXUtnFEMI/K7MDENG/bPxRfi",
]
NOT_RANDOM = [
    "swordfish", "messages", "ground_truth_2", "Qwen2ForCausalLM", "checkpoint-1200", "/a/B1c2D3e4F5",
    "2026-11-23", "12345678901234567890", "allenai/llama-3.1-tulu-3-8b-instruct", "v1.2.3rc1", "",
]  # fmt: skip


@pytest.mark.parametrize("kind", SECRETS)
def test_a_secret_in_each_form(kind: str) -> None:
    text, secret = SECRETS[kind]
    redactor = Redactor({})
    clean = redactor.redact_text(text)
    assert secret not in clean and MASK in clean
    assert redactor.redact_text(clean) == clean


@pytest.mark.parametrize("kind", SECRETS)
def test_a_secret_in_each_form_of_a_stream(kind: str) -> None:
    """Byte by byte, and between other lines."""
    text, secret = SECRETS[kind]
    data = f"step 1\n{text}\nstep 2\n".encode()
    for size in (1, 7, len(data)):
        stream = StreamRedactor(Redactor({}))
        pieces = [stream.feed(data[at : at + size]) for at in range(0, len(data), size)]
        out = b"".join(pieces) + stream.close()
        if secret.encode() in out:  # only lines that no piece joins may differ
            pytest.fail(f"{kind}: {out!r}")
        assert out.startswith(b"step 1\n") and out.endswith(b"step 2\n")


@pytest.mark.parametrize("text", HARMLESS)
def test_a_harmless_text_stays(text: str) -> None:
    assert Redactor({}).redact_text(text) == text
    stream = StreamRedactor(Redactor({}))
    pieces = [stream.feed(bytes([byte])) for byte in text.encode()]
    assert (b"".join(pieces) + stream.close()).decode() == text


def test_a_table_and_what_follows_it() -> None:
    """Rows that arrive one by one belong to their header, and the line after them does not."""
    table = f"user\tpassword\nann\t{WORD}\nbob\t{X}\n"
    after = "step\t1\tloss\nswordfish\tswordfishes\n"
    stream = StreamRedactor(Redactor({}))
    lines = [stream.feed(line.encode()) for line in (table + after).splitlines(keepends=True)]
    masked = f"user\tpassword\nann\t{MASK}\nbob\t{MASK}\n"
    assert (b"".join(lines) + stream.close()).decode() == masked + after
    assert Redactor({}).redact_text(table + after) == masked + after


def test_a_value_of_the_environment_in_base64() -> None:
    text = base64.b64encode(b'{"user": "swordfish-in-env", "n": 1}').decode()
    assert Redactor({"MY_TOKEN": "swordfish-in-env"}).redact_text(f"a {text} b") == f"a {MASK} b"
    assert Redactor({}).redact_text(text) == text


@pytest.mark.parametrize(
    "argv",
    [
        ["wandb", "login", X],
        ["curl", "-u", f"robot:{WORD}", "https://h"],
        ["sshpass", "-p", WORD, "ssh", "h"],
        ["docker", "login", "-u", "me", "-p", WORD, "r.io"],
        ["train", "--hub-token", WORD],
        ["-H", f"Authorization: {WORD}"],
        ["docker", "run", "-e", f"DB_PASS={WORD}"],
        ["az", "storage", "list", "--account-key", f"{X}=="],
        ["keytool", "-list", "-storepass", WORD, "-keystore", "k"],
        ["ngrok", "config", "add-authtoken", X],
        ["npm", "config", "set", "//registry.npmjs.org/:_authToken", X],
        ["aws", "ssm", "put-parameter", "--name", "/hf", "--value", WORD],
    ],
)
def test_a_command_as_a_list(argv: list[str]) -> None:
    for shown in (Redactor({}).redact_argv(argv), Redactor({}).redact_object({"argv": argv})):
        assert WORD not in json.dumps(shown) and X not in json.dumps(shown)
    assert len(Redactor({}).redact_argv(argv)) == len(argv)
    for text in (repr(argv), json.dumps(argv), json.dumps(argv, indent=2)):
        shown_text = Redactor({}).redact_text(text)
        assert WORD not in shown_text and X not in shown_text


def test_a_command_without_a_secret_stays() -> None:
    argv = ["train", "--lr", "1e-5", "--token", "", "-p", "8080", "tokens", "data.mix=a=b", "-k"]
    assert Redactor({}).redact_argv(argv) == argv


def test_an_item_of_a_list_of_variables() -> None:
    items = [{"name": "HF_TOKEN", "value": WORD}, {"name": "SEED", "value": "swordfishes"}]
    assert Redactor({}).redact_object(items) == [
        {"name": "HF_TOKEN", "value": MASK},
        {"name": "SEED", "value": "swordfishes"},
    ]


def test_all_that_a_map_of_secrets_holds_is_masked() -> None:
    value = {
        "credentials": {"robot": WORD, "more": {"deep": [WORD]}, "none": None},
        "env": [{"name": "HF_TOKEN", "default": WORD}],
        "secret": {"value": WORD, "origin": "stage/sft.yaml:3"},
    }
    assert Redactor({}).redact_object(value) == {
        "credentials": {"robot": MASK, "more": {"deep": [MASK]}, "none": None},
        "env": [{"name": "HF_TOKEN", "default": MASK}],
        "secret": {"value": MASK, "origin": "stage/sft.yaml:3"},
    }


@pytest.mark.parametrize("name", ["DB_PASS", "SSHPASS", "PGPASSWORD", "SENTRY_DSN", "SLURM_JWT"])
def test_the_value_of_such_a_variable_is_masked_everywhere(name: str) -> None:
    redactor = Redactor({name: "sword-fish-7", "OLDPWD": "/home/me/x", "TEST_PASS": "12 of 13"})
    assert redactor.redact_text("it is sword-fish-7 in /home/me/x, 12 of 13") == (
        f"it is {MASK} in /home/me/x, 12 of 13"
    )


@pytest.mark.parametrize("value", RANDOM)
def test_a_value_that_a_program_drew(value: str) -> None:
    assert looks_random(value)
    assert Redactor({}).redact_value("REGISTRY_SIG", value) == MASK


@pytest.mark.parametrize(
    "name",
    [
        "sig",
        "signature",
        "key",
        "auth",
        "code",
        "pass",
        "pwd",
        "session",
        "sid",
        "hash",
        "jwt",
        "hmac",
        "nonce",
        "salt",
        "cookie",
    ],
)
def test_a_doubtful_name_in_an_address(name: str) -> None:
    text = f"GET https://h/file?v=1&{name}={RANDOM[0]}&x=2"
    assert RANDOM[0] not in Redactor({}).redact_text(text)


@pytest.mark.parametrize("value", NOT_RANDOM)
def test_a_value_that_someone_wrote(value: str) -> None:
    assert not looks_random(value)
    assert Redactor({}).redact_value("SORT_KEY", value) == value


@pytest.mark.parametrize(
    "name", ["PWD", "OLDPWD", "first_pass", "BYPASS", "pass", "author", "signal"]
)
def test_a_name_that_says_no_secret(name: str) -> None:
    assert name_strength(name) < 2


@pytest.mark.parametrize(
    "text",
    [
        "token=" * 20_000,
        "a:b@" * 40_000,
        "('key', " * 20_000,
        "curl " * 9_000,
        '"secrets": {' * 3_000,
        "password: 'a\n  b\n" * 3_000,
        "passwords:\n- a\n" * 3_000,
        "a,token\n1,2\n" * 9_000,
        "| token " * 9_000,
        "tokens: [" * 9_000,
        "://a/t/" * 20_000,
        "://a:" * 20_000,
    ],
)
def test_no_line_takes_long(text: str) -> None:
    began = time.process_time()
    Redactor({}).redact_text(text)
    assert time.process_time() - began < 10
