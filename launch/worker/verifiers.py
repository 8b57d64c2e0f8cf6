"""Verifiers: functions that score an answer, and the child process in which they are called.

A call runs in a thread of a child process, as GRPO implementations call their rewards, so that a
verifier which hangs is killed with everything that it started, and one that prints, exits or needs
a signal handler can't harm the trainer. `main` is that child.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import json
import logging
import math as numbers
import multiprocessing
import re
import subprocess
import sys
import time
import types
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass, field
from functools import cache
from importlib.machinery import SourceFileLoader
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from .opened import UsedFile
from .trl_options import is_own
from .user_files import UserFiles

_LOAD_SECONDS = 300.0  # time limit of importing a verifier on a slow file system
_KEPT_TEXT = 240  # characters of a message


@dataclass(frozen=True)
class VerifierOutcome:
    """The result of one call."""

    score: float | None  # None: the verifier does not judge this answer; 0 after a failure
    seconds: float = 0.0
    # "raised ValueError: ...", "returned nan", "did not answer within 10 s", ...
    failure: str | None = None
    printed: str | None = None  # the beginning of what it printed


@dataclass(frozen=True)
class VerifierCall:
    """One answer to score."""

    verifier: str  # a built-in one, or PATH.py:FUNCTION
    prompt: Any  # messages, or a text
    completion: str
    columns: Mapping[str, Any]  # the columns of the row: ground_truth and all others
    completion_ids: Sequence[int] = ()


def _math(completion: str, truth: str) -> float:
    """Compare as mathematics (math-verify): `1+x` is `x+1`. What is boxed or called the answer,
    else the last number or expression, counts; two boxes are one answer with two values, which is
    wrong.
    """
    from math_verify import parse, verify

    boxed = truth if "\\boxed" in truth or "$" in truth else f"\\boxed{{{truth}}}"
    gold = parse(boxed, parsing_timeout=None)
    answer = parse(completion, parsing_timeout=None)
    return float(verify(gold, answer, timeout_seconds=None))


def _ifeval(completion: str, truth: str) -> float:
    """Return the share of the row's instructions that the answer follows; an empty one follows
    none.

    `truth` has `instruction_id` and `kwargs`, both lists, which lm-eval checks strictly, or as in
    the mixture of Tulu 3 `func_name` and its arguments, one of upstream's functions
    (open_instruct/ground_truth_utils.py:323-423).
    """
    content = json.loads(truth)
    content = content[0] if isinstance(content, list) else content
    name = content.pop("func_name", None)
    if name:
        answer = completion.rpartition("</think>")[2].strip()
        return _follows_instruction(name, answer, content)
    from lm_eval.tasks.ifeval.utils import InputExample, test_instruction_following_strict

    ids = content["instruction_id"]
    kwargs = [arguments or {} for arguments in content["kwargs"]]
    prompt = str(content.get("prompt", ""))
    followed = test_instruction_following_strict(InputExample(0, ids, prompt, kwargs), completion)
    return float(sum(followed.follow_instruction_list) / max(1, len(ids)))


def _follows_instruction(name: str, answer: str, arguments: Mapping[str, Any]) -> float:
    import langdetect
    from open_instruct.if_functions import IF_FUNCTIONS_MAP

    langdetect.DetectorFactory.seed = 0  # an answer then always has the same score
    given = {key: value for key, value in arguments.items() if value is not None}
    with contextlib.suppress(langdetect.LangDetectException):  # the answer has no letters
        return float(bool(answer) and IF_FUNCTIONS_MAP[name](answer, **given))
    return 0.0


def _exact(completion: str, truth: str) -> float:
    return float(completion.strip() == truth.strip())


BUILT_IN: Mapping[str, Callable[[str, str], float]] = {
    "math": _math,
    "gsm8k": _math,
    "ifeval": _ifeval,
    "exact": _exact,
}
# {built-in verifier: the modules that it may import}; a call names the one that is missing
_MODULES: Mapping[str, Sequence[str]] = {
    **dict.fromkeys(("math", "gsm8k"), ("math_verify",)),
    # Each of the two forms of its rows needs one of these.
    "ifeval": ("open_instruct.if_functions", "lm_eval.tasks.ifeval.utils"),
}


@cache
def upstream_verifiers() -> Mapping[str, Any]:
    """Return open-instruct's own verifiers by name, without settings of the services that they call
    (ground_truth_utils.py:1188).
    """
    from open_instruct.ground_truth_utils import build_all_verifiers

    class Unset:
        def __getattr__(self, name: str) -> str:
            return ""

    longest = types.SimpleNamespace(max_length_verifier_max_length=32768, remap_verifier=None)
    return build_all_verifiers(Unset(), longest)  # type: ignore[no-any-return]


def calls_service(name: str) -> bool:
    """Whether one of open-instruct's verifiers calls an LLM judge, or a server that runs code."""
    config = upstream_verifiers()[name].verifier_config
    return not {"max_length_verifier_max_length"} >= vars(config or object).keys()


# The verifiers whose ground truth is an answer; flan is one of open-instruct's only.
_ANSWERED = ("gsm8k", "math", "exact", "flan")


def reference_answer(name: str, truth: str, columns: Mapping[str, Any]) -> str | None:
    """Return an answer that earns the maximum: the column `reference`, else one made of the ground
    truth.

    None for instructions to follow (`ifeval`), which have no answer of their own, and for a row
    without a ground truth.
    """
    if columns.get("reference"):
        return str(columns["reference"])
    if not truth:
        return None
    if name not in _ANSWERED and not is_own(name):
        return None
    if name == "math":
        return truth if "\\boxed" in truth else f"The answer is \\boxed{{{truth.strip('$')}}}."
    return truth


@cache
def _load_function(name: str) -> Callable[..., Any]:
    """Load FUNCTION of PATH.py, with the file's folder on the import path."""
    path, _, function = name.rpartition(":")
    module_name = Path(path).stem
    sys.path.insert(0, str(Path(path).parent))
    loader = SourceFileLoader(module_name, path)
    spec = importlib.util.spec_from_file_location(module_name, path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    loader.exec_module(module)
    found = getattr(module, function, None)
    if not callable(found):
        raise AttributeError(f"{path} has no function {function}")
    return found  # type: ignore[no-any-return]


_CALL_FIELDS = ("prompt", "completion", "completion_ids")  # fields that are not columns of the row


def _score(call: Mapping[str, Any]) -> Any:
    """Call a verifier. A user's function gets the arguments of TRL's reward functions, in lists of
    one (trl/trainer/grpo_trainer.py:1579-1626).
    """
    name = call["verifier"]
    columns = call["columns"]
    if call["upstream"]:
        verify = upstream_verifiers()[name]
        result = verify(call["completion_ids"], call["completion"], columns["ground_truth"])
        return result.score
    if not is_own(name):
        return BUILT_IN[name](call["completion"], str(columns["ground_truth"]))
    completion = call["completion"]
    if isinstance(call["prompt"], list):  # a chat
        completion = [{"role": "assistant", "content": completion}]
    lists = {key: [value] for key, value in columns.items() if key not in _CALL_FIELDS}
    returned = _load_function(name)(
        prompts=[call["prompt"]],
        completions=[completion],
        completion_ids=[call["completion_ids"]],
        trainer_state=None,
        log_extra=lambda *_: None,
        log_metric=lambda *_: None,
        **lists,
    )
    if not isinstance(returned, (list, tuple)) or len(returned) != 1:
        given = _shorten(repr(returned))
        raise TypeError(f"it returned {given} for one answer; a list with one number is expected")
    return returned[0]


def _judge(call: Mapping[str, Any]) -> dict[str, Any]:
    try:
        value = _score(call)
    except BaseException as error:
        lines = [line.strip() for line in str(error).splitlines() if re.search(r"\w", line)]
        message = lines[0] if lines else ""
        return {"score": 0.0, "failure": _shorten(f"raised {type(error).__name__}: {message}")}
    if value is None:
        return {"score": None}
    is_number = hasattr(value, "__float__") and not isinstance(value, str)
    if not is_number or not numbers.isfinite(float(value)):
        return {"score": 0.0, "failure": _shorten(f"returned {value!r}")}
    return {"score": float(value)}


def main(arguments: Sequence[str]) -> None:
    """Serve calls until the connection, whose descriptor is the argument, or the parent ends."""
    from .process import die_with_parent

    die_with_parent()
    files = UserFiles()
    connection = Connection(int(arguments[0]))
    thread = ThreadPoolExecutor(1)
    # math_verify warns that it has no time limit here; the parent process ends a long call
    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    while True:
        try:
            call = connection.recv()
        except EOFError:
            return
        answer = _load if "load" in call else _judge
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            outcome = thread.submit(answer, call).result()
        text = _shorten(printed.getvalue().strip()) or None
        connection.send({**outcome, "printed": text, "files": list(map(astuple, files.take()))})


def _load(call: Mapping[str, Any]) -> dict[str, Any]:
    """Import what the verifiers need, so that the first call does not have to wait for it."""
    name = ""
    try:
        for name in call["load"]:
            if call["upstream"]:
                upstream_verifiers()
            elif is_own(name):
                _load_function(name)
            for module in _MODULES.get(name, ()):
                with contextlib.suppress(ImportError, LookupError):
                    importlib.import_module(module)
    except BaseException as error:
        return {"failure": _shorten(f"{name} can't be loaded: {type(error).__name__}: {error}")}
    return {}


def _shorten(text: str) -> str:
    return text if len(text) <= _KEPT_TEXT else f"{text[:_KEPT_TEXT]}..."


class VerifierError(RuntimeError):
    """A verifier can't be loaded, or is not proven."""

    def __init__(self, message: str, fault: str | None = None) -> None:
        super().__init__(message)
        self.fault = fault  # the fault of a user's function, as in `ProofReport`


@dataclass
class VerifierProcess:
    """Calls verifiers in a child process, which is killed and started again when a call exceeds the
    time limit.
    """

    names: Sequence[str]  # the verifiers that are loaded at the start
    seconds: float  # time limit of a call
    upstream: bool = False  # these are open-instruct's own
    # This function is called with the user's files that the child has used.
    on_files: Callable[[Sequence[UsedFile]], None] = lambda files: None
    _child: subprocess.Popen[bytes] | None = field(default=None, init=False)
    _connection: Any = field(default=None, init=False)

    def start(self) -> None:
        """Start the child and load the verifiers. Raises VerifierError."""
        if self._child is not None and self._child.poll() is None:
            return
        self._connection, theirs = multiprocessing.Pipe()
        with theirs:
            entry = Path(__file__).with_name("entry.py")
            descriptor = theirs.fileno()
            command = [sys.executable, str(entry), "--call", "verifiers", str(descriptor)]
            self._child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[descriptor],
                start_new_session=True,
            )
        answer = self._send_call({"load": list(self.names)}, _LOAD_SECONDS)
        failure = "it did not load in time" if answer is None else answer.get("failure")
        if failure:
            self.close()
            raise VerifierError(failure)

    def close(self) -> None:
        """Kill the child with everything that it started."""
        if self._child is None:
            return
        import psutil

        with contextlib.suppress(psutil.Error):
            for process in psutil.Process(self._child.pid).children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    process.kill()
        self._child.kill()
        self._child.wait()
        self._connection.close()
        self._child = None

    def score(self, call: VerifierCall) -> VerifierOutcome:
        """Score an answer. Raises VerifierError if a verifier can't be loaded."""
        self.start()
        began = time.monotonic()
        answer = self._send_call(vars(call), self.seconds)
        took = time.monotonic() - began
        if answer is None:
            self.close()
            failure = f"did not answer within {self.seconds:g} s"
            if took < self.seconds:
                failure = "ended its process"
            return VerifierOutcome(0.0, took, failure)
        return VerifierOutcome(**answer, seconds=took)

    def _send_call(self, content: Mapping[str, Any], seconds: float) -> dict[str, Any] | None:
        """Send a call and return the answer; None if none came in time, or the child has ended."""
        with contextlib.suppress(OSError, EOFError):
            self._connection.send({**content, "upstream": self.upstream})
            if self._connection.poll(seconds):
                answer: dict[str, Any] = self._connection.recv()
                self.on_files([UsedFile(*file) for file in answer.pop("files", ())])
                return answer
        return None
