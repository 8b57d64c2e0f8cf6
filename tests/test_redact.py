"""Secrets by name, by shape and by value; and that a stream cut anywhere lets none through."""

from __future__ import annotations

import itertools
import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launch.redact import MASK, Redactor, add_secrets, process_redactor
from launch.redact_stream import StreamRedactor
from launch.secret_names import is_sensitive_name

SECRET_NAMES = [
    "HF_TOKEN", "hub_token", "--hub_token", "token", "WANDB_API_KEY", "wandb_api_key", "apikey", "OPENAI_API_KEY",
    "AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID", "client_secret", "password", "DB_PASSWORD", "passwd", "PASSPHRASE",
    "GOOGLE_CREDENTIALS", "credential", "private_key", "SSH_PRIVATE_KEY", "hubToken", "accessToken", "X-API-Key",
    "GITHUB_TOKEN_2", "OPENAI_KEY", "api_tokens", "flags.hub_token", "Authorization",
]  # fmt: skip
PLAIN_NAMES = [
    "tokenizer_name", "max_tokens", "tokens_per_second", "pad_token", "monkey", "eos_token_id",
    "TOKENIZERS_PARALLELISM",
    "total_tokens", "sft_messages_key", "ground_truths_key", "keyboard", "HF_TOKEN_PATH", "password_file",
    "token_count",
    "loss_per_token", "mean_token_accuracy", "PWD", "key", "secretary", "num_tokens", "hf_entity", "special_tokens", "",
]  # fmt: skip
SHAPES = [
    "hf_AbCdEfGhIjKlMnOpQrStUvWxYz01234567",
    "sk-proj-abcdefghijklmnop1234",
    "sk-ant-REDACTED-abcdefghijkl",
    "ghp_0123456789abcdefghijABCDEFGHIJ012345",
    "github_pat_11ABCDEFG0123456789_abcdefghij",
    "AKIAIOSFODNN7EXAMPLE",
    "xoxb-123456789012-abcdefghijkl",
    "wandb-v1-abcdef0123456789abcdef",
    "wandb_v1_abcdef0123456789abcdef",
    "glpat-abcdefghij0123456789",
    "sk_live_" + "4eC39HqLyjWDarjtT1zdp7dc",
    "rk_test_" + "4eC39HqLyjWDarjtT1zdp7dc",
    "npm_abcdefghijABCDEFGHIJ0123456789abcdef",
    "SG.abcdefghijklmnopqrstuv.ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789abcdefg",
    "ya29.a0AfH6SMBabcdefghijklmnop-qrstuvwxyz",
    "pypi-AgEIcHlwaS5vcmcCJDAwMDAwMDAwLTAwMDAtMDAwMC0",
    "r8_abcdefghijABCDEFGHIJ0123456789abcdefg",
    "gsk_abcdefghijABCDEFGHIJ0123456789abcdef",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dozjgNryP4J3jVmN",
]
SHA = "e6c3044aa6201c8bfa4573c1b03142af599e730d"
PEM = (
    "-----BEGIN RSA PRIVATE KEY-----\nMIIEowIBAAKCAQEAq7\nhunter7PEMline2\n-----END RSA PRIVATE "
    "KEY-----"
)


@pytest.fixture
def plain() -> Redactor:
    return Redactor({})


@pytest.mark.parametrize("name", SECRET_NAMES)
def test_a_secret_by_name(name: str, plain: Redactor) -> None:
    assert is_sensitive_name(name)
    assert plain.redact_value(name, "correct horse") == MASK


@pytest.mark.parametrize("name", PLAIN_NAMES)
def test_not_a_secret_by_name(name: str, plain: Redactor) -> None:
    assert not is_sensitive_name(name)
    assert plain.redact_value(name, "correct horse") == "correct horse"


@pytest.mark.parametrize("secret", SHAPES)
@pytest.mark.parametrize(
    "frame", ["{}", "got {}.", "a='{}'", "https://h/x?y={}&z=1", '{{"note": "{}"}}', "({})"]
)
def test_a_secret_by_shape(secret: str, frame: str, plain: Redactor) -> None:
    text = plain.redact_text(frame.format(secret))
    assert secret not in text
    assert secret[-8:] not in text
    assert MASK in text


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("postgres://user:hunter2@host/db", "hunter2"),
        ("git+https://x-access:p%40ss@github.com/a/b", "p%40ss"),
        ("Authorization: Bearer abcdefgh12345", "abcdefgh12345"),
        ("'authorization': 'Basic dXNlcjpwYXNz'", "dXNlcjpwYXNz"),
        ("HF_TOKEN=swordfish", "swordfish"),
        ("export HF_TOKEN='sword fish'", "sword fish"),
        ("--hub_token swordfish --lr 1", "swordfish"),
        ("--hub-token=swordfish", "swordfish"),
        ("{'wandb_api_key': 'swordfish', 'lr': 1}", "swordfish"),
        ('{"a": "{\\"password\\": \\"sword fish\\"}"}', "sword fish"),
        ('"password": "sword\\"fish"', 'fish"'),
        ("password: 123456", "123456"),
        ("aws_secret_access_key = sw/ord+fish", "ord+fish"),
        ("x-api-key: swordfish", "swordfish"),
        ("https://h/?access_token=swordfish&x=1", "swordfish"),
    ],
)
def test_a_secret_in_free_text(text: str, secret: str, plain: Redactor) -> None:
    clean = plain.redact_text(text)
    assert secret not in clean
    assert MASK in clean


@pytest.mark.parametrize(
    "text",
    [
        f"commit {SHA}",
        "  Step: 5, LR: 5e-06, Loss: 1.25, TPS: 1234.5",
        "metrics_to_log={'total_tokens': 430, 'avg_tokens_per_batch': 26.875}",
        "pad_token='<pad>', eos_token: </s>, token: None, token=5",
        "KeyError: 'foo'",
        "see https://host:8080/path and ssh://git@github.com/a",
        "perf: 12.5 per token: 0.25",
        "task-abcdefghijklmnopqrstuvwxyz disk-0123456789012345678",
        "hf_home hf_transfer sk-learn AKIA",
        "token = None",
        "setting the pad token: <|pad|>, EOS token: foo, token: </s>",
    ],
)
def test_what_is_no_secret_stays(text: str, plain: Redactor) -> None:
    assert plain.redact_text(text) == text


def test_a_url_keeps_its_host(plain: Redactor) -> None:
    assert plain.redact_text("https://me:pw123@host/x") == "https://<set>@host/x"


def test_a_pem_block_goes_as_a_whole(plain: Redactor) -> None:
    assert plain.redact_text(f"a\n{PEM}\nb") == "a\n<set>\nb"
    assert "hunter7" not in plain.redact_text(json.dumps({"k": PEM}))
    assert "hunter7" not in plain.redact_text(PEM[:60])


def test_an_unclosed_pem_block_ends_with_its_lines(plain: Redactor) -> None:
    key = PEM.rpartition("\n")[0]
    log = "\nstep 1, loss 2.5\n" + "".join(f"step {step}, loss 2.0\n" for step in range(2, 400))
    assert plain.redact_text(f"a\n{key}{log}") == f"a\n<set>{log[1:]}"
    assert plain.redact_text(key.replace("\n", "\\n") + " and more\n") == "<set> and more\n"
    for size in (7, 60, 4096):
        stream = StreamRedactor(plain)
        data = f"a\n{key}{log}".encode()
        out = (
            b"".join(stream.feed(data[at : at + size]) for at in range(0, len(data), size))
            + stream.close()
        )
        assert (
            b"hunter7" not in out
            and b"step 1, loss 2.5\nstep 2," in out
            and out.endswith(b"step 399, loss 2.0\n")
        )


INTERRUPTIONS = [
    "\x1b[0m",
    "\x1b[38;5;12m",
    "\r",
    "\r  3%|\u258e     | 10/300 [00:01<00:30,  9.5it/s]",
]


@pytest.mark.parametrize("interruption", INTERRUPTIONS)
@pytest.mark.parametrize("cut", [1, 5, 12, 30])
def test_halves_of_a_secret_are_masked(interruption: str, cut: int) -> None:
    redactor = Redactor({"MY_TOKEN": "swordfish-in-the-environment-of-it"})
    for secret in (SHAPES[0], "swordfish-in-the-environment-of-it"):
        data = f"before {secret[:cut]}{interruption}{secret[cut:]} after\n".encode()
        outs = [redactor.redact_bytes(data)]
        for size in (1, 9, 50):
            stream = StreamRedactor(redactor)
            outs.append(
                b"".join(stream.feed(data[at : at + size]) for at in range(0, len(data), size))
                + stream.close()
            )
        for out in outs:
            assert out.startswith(b"before ") and out.endswith(b" after\n") and b"<set>" in out
            assert secret[:cut].encode() not in out.removeprefix(b"before ") or cut == 1
            assert secret[cut:].encode() not in out


def test_a_progress_bar_is_passed_on_at_once(plain: Redactor) -> None:
    stream = StreamRedactor(plain)
    bar = b"\r  3%|##      | 10/300 [00:01<00:30,  9.5it/s]"
    assert stream.feed(bar) + stream.feed(bar + b"\r") == bar + bar + b"\r"
    assert plain.redact_bytes(bar * 3) == bar * 3


def test_values_of_the_environment_go_everywhere() -> None:
    redactor = Redactor(
        {
            "WANDB_API_KEY": SHA,
            "DB_PASSWORD": 'we"ird\\pass',
            "MY_SECRET": "line-one-secret\nline-two-secret",
            "SHORT_TOKEN": "abc",
            "HOME": "/home/me-myself",
            "SORT_KEY": "messages",
            "SOME_TOKEN": "disabled",
        }
    )
    escaped = json.dumps('we"ird\\pass')
    clean = redactor.redact_text(f"key {SHA} and {escaped} line-two-secret abc")
    assert clean == f'key {MASK} and "{MASK}" {MASK} abc'
    kept = "/home/me-myself messages disabled"
    assert redactor.redact_text(kept) == kept


def test_secrets_that_a_plan_sets_are_masked_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launch.redact._added", set())
    monkeypatch.setenv("A_TOKEN", "first-value")
    add_secrets({"WANDB_API_KEY": SHA, "HOME_OF_IT": "kept-as-it-is"})
    assert (
        process_redactor().redact_text(f"first-value {SHA} kept-as-it-is")
        == f"{MASK} {MASK} kept-as-it-is"
    )


def test_objects_keep_their_form(plain: Redactor) -> None:
    value = {
        "env": {"HF_TOKEN": "swordfish", "PYTHONPATH": "/x"},
        "command": ["train", "--hub_token", "swordfish", "--lr", "1e-5", "API_KEY=swordfish"],
        "flags": {
            "hub_token": {"value": "swordfish", "origin": "stage"},
            "pad_token": "<pad>",
            "push": True,
        },
        "password": 123456,
        "tokens": 5,
        "nothing": None,
        "token": None,
    }
    clean = plain.redact_object(value)
    assert "swordfish" not in json.dumps(clean)
    assert clean["command"] == ["train", "--hub_token", MASK, "--lr", "1e-5", f"API_KEY={MASK}"]
    assert clean["flags"]["pad_token"] == "<pad>"
    assert (clean["password"], clean["tokens"], clean["nothing"], clean["token"]) == (
        MASK,
        5,
        None,
        None,
    )


TEXT = (
    f"before {SHAPES[0]} after\npartial \rbar 50%\rbar 100%\nexact swordfish-in-env "
    "end\n--hub_token=flagsecret1 x\n"
    f"{PEM}\ntail password: 'last secret' and no newline"
)
PLANTED = [SHAPES[0], "swordfish-in-env", "flagsecret1", "hunter7PEMline2", "MIIEow", "last secret"]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.integers(0, len(TEXT.encode())), max_size=12),
    st.sampled_from([(1 << 16, 1 << 13), (96, 64)]),
)
def test_a_stream_cut_anywhere_says_the_same(cuts: list[int], sizes: tuple[int, int]) -> None:
    redactor = Redactor({"MY_TOKEN": "swordfish-in-env"})
    data = TEXT.encode()
    stream = StreamRedactor(redactor, cap=sizes[0], overlap=sizes[1])
    places = [0, *sorted(cuts), len(data)]
    out = b"".join(stream.feed(data[a:b]) for a, b in itertools.pairwise(places)) + stream.close()
    for secret in PLANTED:
        assert secret.encode() not in out
    assert out.replace(b"\n", b"") == redactor.redact_bytes(data).replace(b"\n", b"")


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 3000), st.integers(1, 700), st.sampled_from([b"x", b" ", b"ab-", b"\xff\xfe"])
)
def test_a_line_longer_than_the_cap(before: int, step: int, filler: bytes) -> None:
    secret = SHAPES[0].encode()
    line = filler * before + b" " + secret + b" --password " + b"swordfish " + filler * 900
    stream = StreamRedactor(Redactor({}), cap=512, overlap=200)
    out = (
        b"".join(stream.feed(line[at : at + step]) for at in range(0, len(line), step))
        + stream.close()
    )
    assert secret not in out
    assert b"swordfish" not in out
    assert out == filler * before + b" <set> --password <set> " + filler * 900


def test_a_secret_longer_than_the_cap_is_dropped_to_its_end() -> None:
    stream = StreamRedactor(Redactor({}), cap=512, overlap=200)
    out = stream.feed(b"hf_" + b"A" * 5000) + stream.feed(b"B" * 5000) + stream.feed(b"C end\n")
    assert out == b"<set> end\n"


def test_a_long_line_is_not_kept_in_memory() -> None:
    stream = StreamRedactor(Redactor({}))
    written = 0
    for _ in range(160):
        written += len(stream.feed(b"y" * (1 << 16)))
    assert written > 160 * (1 << 16) - (1 << 17)
    assert written + len(stream.close()) == 160 * (1 << 16)


def test_a_million_lines_a_minute_take_a_small_part_of_it() -> None:
    line = b"2026-08-20 - INFO - Step: 5, LR: 5e-06, Loss: 1.25, TPS: 1234.5, total_tokens: 430, pad_token='<pad>'\n"
    data = line * 100_000
    stream = StreamRedactor(Redactor({"MY_TOKEN": "swordfish-in-env"}))
    began = time.process_time()
    size = sum(
        len(stream.feed(data[at : at + (1 << 18)])) for at in range(0, len(data), 1 << 18)
    ) + len(stream.close())
    assert size == len(data)
    assert time.process_time() - began < 9.0  # a tenth of a million lines; 0.5 s on two old cores
