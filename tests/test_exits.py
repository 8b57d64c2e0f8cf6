"""Wherever text leaves the launcher, the writer masks: planted secrets through each, and a list of
the exceptions.
"""

from __future__ import annotations

import ast
import base64
import html
import io
import json
import logging
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from launch import external, files, terminal
from launch.execution.display import LiveDisplay, PlainDisplay
from launch.execution.record.folder import RunFolder, render_command_script
from launch.execution.replay import Tail
from launch.execution.tensorboard import tensorboard_writer
from launch.redact import MASK, Redactor, process_redactor
from launch.redact_stream import StreamRedactor

LAUNCH = Path(files.__file__).parent

# What opens a file for writing or prints outside of the functions that mask, by file, and why it
# may.
MASKING = {
    "files.py": "masks",
    "terminal.py": "masks",
    "external.py": "its formatter masks",
    "execution/display.py": "its lines and its bar are masked",
    "execution/supervise/streams.py": "masks as a stream",
}
EXACT = {
    "__main__.py": "opens /dev/null",
    "api/running.py": "a temporary file: the output of a launcher, which masks",
    "check/machine/all_reduce.py": "a child's measurement for its parent",
    "check/machine/disk.py": "an empty probe",
    "check/machine/gpus.py": "a temporary file: the errors of a check",
    "check/machine/limits.py": "an empty probe",
    "check/machine/reward.py": "rows of training data, for the verifiers' process",
    "data/__main__.py": "the rows of a data file, for another program",
    "data/row_file.py": "rows of training data, which are put into another order",
    "data/staging.py": "rows of training data, which must stay as they are",
    "demo/ensure.py": "rows of training data; digests and sizes, which are compared",
    "demo/make_model.py": "a child's answer to its parent",
    "evaluation/suites.py": "tasks of the harness, whose texts are ours",
    "evaluation/evaluate.py": "an empty probe",
    "execution/template_errors.py": "rows of training data, for the trial of the chat template",
    "host/interpreter.py": "a temporary file: the errors of a worker",
    "execution/detach.py": "a file that echo prints to",
    "execution/preview.py": "rows and the request of the trainer's process",
    "execution/record/lock.py": "the holder's random token, which must be compared",
    "execution/supervise/reaper.py": "a child's reports to its parent; the name of its command",
    "execution/supervise/stacks.py": "the names of functions and lines that py-spy writes",
    "planning/digest_cache.py": "paths with sizes and digests, which are compared",
    "slurm/requeue.py": "an empty mark",
    "slurm/node/ranks.py": "the exact command that the other nodes execute",
    "trials/matrix_product.py": "a child's answer to its parent",
    "upstream/capture/process.py": "a temporary file: the errors of upstream's program",
    "upstream/capture/program.py": "a child's answer to its parent",
    "upstream/capture/start.py": "upstream's flags and their help, as the parser has them",
    "maintain/bump.py": "upstream's flags and their help, compared by digest",
    "maintain/library_program.py": "a child's answer to its parent",
    "maintain/relock.py": "upstream's flags and their help, compared by digest",
    "upstream/trl_templates.py": "TRL's chat templates, compared by digest",
}


def _writes(call: ast.Call) -> bool:
    function = call.func
    name = (
        function.id
        if isinstance(function, ast.Name)
        else function.attr
        if isinstance(function, ast.Attribute)
        else ""
    )
    if name in (
        "print",
        "write_text",
        "write_bytes",
        "write_exact",
        "StreamHandler",
        "FileHandler",
        "Console",
    ):
        return True
    if name in ("TemporaryFile", "NamedTemporaryFile"):
        return True
    text = ast.unparse(call)
    if name == "dump" or text.startswith(("os.write(", "sys.stdout.write(", "sys.stderr.write(")):
        return text.startswith(("json.dump(", "yaml.dump(", "os.write(1,", "os.write(2,", "sys."))
    modes = [
        argument.value
        for argument in (*call.args, *(key.value for key in call.keywords))
        if isinstance(argument, ast.Constant)
    ]
    is_mode = any(
        isinstance(mode, str) and len(mode) < 4 and set(mode) & set("wax+") for mode in modes
    )
    return name in ("open", "fdopen") and is_mode


def _writers() -> Iterator[str]:
    tools = LAUNCH.parent / "maintain"
    for path in (*sorted(LAUNCH.rglob("*.py")), *sorted(tools.rglob("*.py"))):
        root = LAUNCH if path.is_relative_to(LAUNCH) else LAUNCH.parent
        name = path.relative_to(root).as_posix()
        calls = [
            node
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.Call)
        ]
        # the supervisor reads what a worker prints
        if not name.startswith("worker/") and any(map(_writes, calls)):
            yield name


def test_nothing_else_prints_or_opens_a_file_for_writing() -> None:
    assert sorted(_writers()) == sorted({**MASKING, **EXACT})


@pytest.mark.parametrize(
    "call", ["print(x)", "p.write_text(x)", "p.open('w')", "open(p, mode='ab')", "json.dump(x, f)"]
)
def test_a_new_writer_would_be_found(call: str) -> None:
    [node] = [node for node in ast.walk(ast.parse(call)) if isinstance(node, ast.Call)]
    assert _writes(node)


PASSWORD = 'swo"rd/fi+sh & co <7>'
KEY = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7hunter7x\n"
PEM = f"-----BEGIN RSA PRIVATE KEY-----\n{KEY * 3}-----END RSA PRIVATE KEY-----"
BODY = KEY.strip()
BASIC = base64.b64encode(b"robot:hunter7-of-the-robot").decode()
URL = "hunter%37%2Fof"
PLANTED = {  # text: what must not be left of it
    "hub token": ("login with hf_AbCdEfGhIjKlMnOpQrStUv", "hf_AbCdEf"),
    "old hub token": ("login with api_org_AbCdEfGhIjKlMnOpQrStUv", "api_org_AbC"),
    "wandb key": ("wandb: wandb_v1_abcdef0123456789abcdef", "abcdef0123"),
    "wandb key by name": ("WANDB_API_KEY=0123456789abcdef0123456789abcdef01234567", "0123456789"),
    "aws id": ("use AKIAIOSFODNN7EXAMPLE here", "AKIAIO"),
    "aws key": ("aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCYKEY", "wJalrX"),
    "github": ("ghp_0123456789abcdefghijABCDEFGHIJ012345", "ghp_01"),
    "openai": ("OPENAI_API_KEY: sk-proj-abcdefghijklmnop1234", "sk-proj"),
    "slack": ("post to xoxb-123456789012-abcdefghijkl", "xoxb-12"),
    "jwt": ("cookie eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dozjgNryP4J3jVmN", "eyJhbG"),
    "bearer": ("-H 'Authorization: Bearer abcdefgh12345'", "abcdefgh12345"),
    "bearer in any case": ("sent BeAReR abcdefgh12345", "abcdefgh12345"),
    "basic header": (f"Authorization: Basic {BASIC}", BASIC),
    "basic in json": (json.dumps({"headers": f'{{"Authorization": "Basic {BASIC}"}}'}), BASIC),
    "basic alone": (f"sent Basic {BASIC} to the proxy", BASIC),
    "url": ("pip install https://me:hunter7pw@host/simple", "hunter7pw"),
    "quoted url": (f"git+https://x-access:{URL}@github.com/a/b", URL),
    "query": ("GET https://h/?access_token=hunter7-of-it&x=1", "hunter7-of-it"),
    "quoted query": ("next=https%3A%2F%2Fh%2F%3Faccess_token%3Dhunter7-of-it", "hunter7-of-it"),
    "quoted json": ("body=%7B%22password%22%3A%20%22hunter7-of-it%22%7D", "hunter7-of-it"),
    "flag": ("train --hub_token hunter7-of-it --lr 1", "hunter7-of-it"),
    "escaped json": (json.dumps({"a": json.dumps({"password": "hunter7 of it"})}), "hunter7 of it"),
    "escaped twice": (
        json.dumps(json.dumps(json.dumps({"password": "hunter7-of-it"}))),
        "hunter7-of-it",
    ),
    "html": (html.escape(json.dumps({"hub_token": "hunter7-of-it"})), "hunter7-of-it"),
    "yaml block": (
        "a: 1\n  db_password: |-\n    hunter7-of-it\n    and-more-of-it\n  lr: 2",
        "hunter7-of-it",
    ),
    "pem": (f"before\n{PEM}\nafter", BODY),
    "pem in one line": (f"key {json.dumps(PEM)} end", BODY),
    "pem escaped twice": (json.dumps({"k": json.dumps(PEM)}), BODY),
    "pem in a url": (f"key={quote(PEM, safe='')}&x=1", BODY),
    "pem in yaml": (f"key: |\n  {PEM.replace(chr(10), chr(10) + '  ')}\nlr: 2", BODY),
    "variable": (f"it is {PASSWORD}, no?", "swo"),
    "variable in json": (json.dumps({"note": f"it is {PASSWORD}"}), "rd/fi"),
    "variable in a url": (f"https://h/{quote(PASSWORD, safe='')}", "fi%2Bsh"),
    "variable in html": (f"<p>{html.escape(PASSWORD)}</p>", "rd/fi"),
}
Exit = Callable[[str, Path, pytest.MonkeyPatch], str]


def _echo(text: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    terminal.echo(text, file=(shown := io.StringIO()))
    return shown.getvalue()


def _stderr(write: Callable[[str], None]) -> Exit:
    def run(text: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
        monkeypatch.setattr(sys, "stderr", shown := io.StringIO())
        monkeypatch.setattr(sys, "stdout", shown)
        write(text)
        return shown.getvalue()

    return run


def _log(text: str) -> None:
    external.configure_logging({"LAUNCH_LOG": "debug"})
    logging.getLogger("launch").warning("%s", text)


def _write(write: Callable[[Path, str], None]) -> Exit:
    def run(text: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
        write(folder / "file", text)
        return (folder / "file").read_bytes().decode("utf-8", "replace")

    return run


def _display(display: type[PlainDisplay]) -> Exit:
    def run(text: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
        view = display(shown := io.StringIO())
        view.start(None)
        view.say(text)
        view.close()
        return shown.getvalue()

    return run


def _tail(text: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (folder / "log").write_text(text, encoding="utf-8")
    view = Tail(folder / "log", shown := io.BytesIO())
    view.show()
    view.close()
    return shown.getvalue().decode()


def _stream(text: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    stream = StreamRedactor(process_redactor())
    return (
        b"".join(stream.feed(bytes([byte])) for byte in text.encode()) + stream.close()
    ).decode()


def _event_file(path: Path, text: str) -> None:
    run = path.parent / "run"
    run.mkdir()
    files.write_exact(
        run / "metrics.jsonl",
        json.dumps({"schema_version": 1, "step": 1, "time": 1.0, text: 1.0}) + "\n",
    )
    with tensorboard_writer(run, print):
        pass
    [written] = run.glob("tensorboard/*.launch")
    written.rename(path)


def _script(path: Path, text: str) -> None:
    files.write_file(path, render_command_script(["train", text], {"NOTE": text}, []), 0o755)


EXITS: dict[str, Exit] = {
    "echo": _echo,
    "notify": _stderr(terminal.notify),
    "print_json": _stderr(lambda text: terminal.print_json({"a": [{"note": text}], "b": [text]})),
    "log": _stderr(_log),
    "plain display": _display(PlainDisplay),
    "live display": _display(LiveDisplay),
    "text file": _write(files.write_file),
    "new file": _write(files.create_file),
    "json": _write(lambda path, text: files.write_json(path, {"note": text, "detail": [text, 1]})),
    "yaml": _write(lambda path, text: files.write_yaml(path, {"note": text})),
    "json lines": _write(lambda path, text: files.write_json_lines(path, [{"note": text}])),
    "appended": _write(lambda path, text: files.append_json(path, {"note": text})),
    "run folder": _write(
        lambda path, text: RunFolder(path.parent).write_json("file", {"note": text})
    ),
    "script": _write(_script),
    "event file": _write(_event_file),
    "tail": _tail,
    "stream": _stream,
}


@pytest.mark.parametrize("exit", EXITS)
def test_planted_secrets_leave_through_no_exit(
    exit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROBOT_PASSWORD", PASSWORD)
    for name, (text, secret) in PLANTED.items():
        folder = tmp_path / name
        folder.mkdir()
        shown = EXITS[exit](text, folder, monkeypatch)
        assert secret not in shown, (name, shown)
        assert MASK in shown or "export it first" in shown, (name, shown)


def test_a_second_pass_changes_nothing() -> None:
    redactor = Redactor({"ROBOT_PASSWORD": PASSWORD})
    for name, (text, _) in PLANTED.items():
        once = redactor.redact_text(text)
        assert redactor.redact_text(once) == once, name


@pytest.mark.parametrize(
    "text", [PEM, json.dumps(PEM), PEM.replace("\n", "\\\\n"), f"a: |\n  {PEM}"]
)
def test_a_key_that_is_split_anywhere_is_one_secret(text: str) -> None:
    data = f"step 1\nkey {text}\nstep 2\n".encode()
    for cut in range(len(data)):
        stream = StreamRedactor(Redactor({}))
        out = stream.feed(data[:cut]) + stream.feed(data[cut:]) + stream.close()
        assert BODY.encode() not in out and b"hunter7x" not in out, cut
        assert out.startswith(b"step 1\n") and out.endswith(b"step 2\n"), (cut, out)


def test_a_key_or_block_without_an_end_swallows_no_log() -> None:
    """The lines of a key and of an indented block are dropped for `block_limit` bytes at most."""
    for begin, line in (
        (b"-----BEGIN PRIVATE KEY-----\n", BODY.encode() + b"\n"),
        (b"password: |\n", b"  hunter7\n"),
    ):
        stream = StreamRedactor(Redactor({}), block_limit=1 << 12)
        out = stream.feed(begin) + b"".join(stream.feed(line) for _ in range(4000))
        assert len(out) > 4000 * len(line) - (1 << 12) - 2 * len(line)
        stream = StreamRedactor(Redactor({}))
        out = stream.feed(begin + line) + stream.feed(b"step 1, loss 2.0\n")
        assert out.endswith(b"step 1, loss 2.0\n") and b"hunter7" not in out


def test_an_ordinary_line_is_passed_on_at_once() -> None:
    stream = StreamRedactor(Redactor({}))
    assert stream.feed(b"step 1, loss 2.0\nstep") == b"step 1, loss 2.0\n"


def test_json_stays_json(tmp_path: Path) -> None:
    value = {
        "hub_token": {"value": "hunter7", "origin": "stage"},
        "note": 'token=abc"def',
        "password": 5,
        "token": None,
    }
    files.write_json(tmp_path / "a.json", value)
    shown = json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))
    assert shown["hub_token"] == {"value": MASK, "origin": "stage"} and shown["password"] == MASK
    files.write_file(tmp_path / "b.json", (tmp_path / "a.json").read_text(encoding="utf-8"))
    assert json.loads((tmp_path / "b.json").read_text(encoding="utf-8")) == shown


def test_a_script_stays_a_script(tmp_path: Path) -> None:
    text = render_command_script(["train", "--x", "a b"], {"HF_TOKEN": "hunter7", "A": "b"}, [])
    files.write_file(tmp_path / "command.sh", text, 0o755)
    assert (tmp_path / "command.sh").read_text(
        encoding="utf-8"
    ) == text and "HF_TOKEN:?export it first" in text
    assert stat.S_IMODE((tmp_path / "command.sh").stat().st_mode) == 0o755
    mounts = "#SBATCH --container-mounts=/data/token:/run/token:ro,/a/secret:/b\n"
    assert process_redactor().redact_text(mounts) == mounts
