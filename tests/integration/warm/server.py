"""Imports the trainers' libraries once, then forks for each rank that a client hands in.

    python server.py SOCKET CHECKOUT

The fork runs the rank below a process of its own, which kills it when the client is gone.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import random
import runpy
import select
import signal
import socket
import sys
import tempfile
import threading
import traceback
from pathlib import Path
from typing import Any

_PDEATHSIG = 1  # linux/prctl.h
_LIBRARIES = (
    *(
        "torch._dynamo",
        "torch.distributed.tensor",
        "torch.utils.tensorboard",
        "transformers.models.llama",
    ),
    *(
        "transformers.models.llama.modeling_llama",
        "transformers.models.olmo2.modeling_olmo2",
        "datasets",
        "peft",
    ),
    *(
        "accelerate",
        "trl.trainer.sft_trainer",
        "trl.trainer.dpo_trainer",
        "trl.trainer.grpo_trainer",
        "bitsandbytes",
        "deepspeed",
        "lm_eval.models.huggingface",
    ),
)
_CHECKOUT_MODULES = ("open_instruct.dpo_utils", "open_instruct.model_utils", "open_instruct.utils")


def import_libraries(checkout: str) -> None:
    """Import what trainers import; of open_instruct only what it imports stays, because the patches
    come before it.
    """
    for name in _LIBRARIES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    with contextlib.suppress(ImportError):
        import deepspeed.ops

        # Three minutes to compile, and only inference calls it (deepspeed/comm/torch.py:292).
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    sys.path.insert(0, checkout)
    for name in _CHECKOUT_MODULES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    sys.path.remove(checkout)
    for name in [name for name in sys.modules if name.partition(".")[0] == "open_instruct"]:
        del sys.modules[name]


def receive(client: socket.socket) -> dict[str, Any]:
    """Return the client's request, with its streams as this process's own."""
    size, descriptors, _, _ = socket.recv_fds(client, 4, 3)
    message = b""
    while len(message) < int.from_bytes(size):
        message += client.recv(1 << 16)
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    request: dict[str, Any] = json.loads(message)
    return request


def die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def guard(child: int, client: socket.socket) -> None:
    """Pass the client's signals to the child, kill it if the client ends, and report how it
    ended.
    """
    ended = os.pidfd_open(child)
    gone = False
    while not gone:
        ready, _, _ = select.select([ended, client.fileno()], [], [])
        if ended in ready:
            break
        numbers = client.recv(64)
        gone = not numbers
        for number in numbers or (signal.SIGKILL,):
            os.kill(child, number)
    _, status = os.waitpid(child, 0)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # processes that the rank started
    with contextlib.suppress(OSError):
        client.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))
    os._exit(0)


def become(request: dict[str, Any], path: list[str]) -> tuple[str, str]:
    """Take over the request's variables, folder and arguments; return Python's option (-m, -c,
    none) and its value.
    """
    import numpy as np
    import torch

    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    tempfile.tempdir = None
    random.seed()
    np.random.seed()
    if threads := os.environ.get("OMP_NUM_THREADS"):
        torch.set_num_threads(int(threads))
    sys.executable, *arguments = [argument for argument in request["argv"] if argument != "-u"]
    option = arguments.pop(0) if arguments[0] in ("-m", "-c") else ""
    main = arguments[0]
    sys.argv = ["-c", *arguments[1:]] if option == "-c" else arguments
    first = {"-m": str(Path.cwd()), "-c": ""}.get(option, str(Path(main).parent))
    sys.path[:] = [first, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)), *path]
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    sys.modules.pop("sitecustomize", None)
    with contextlib.suppress(ImportError):  # as Python does at its start
        importlib.import_module("sitecustomize")
    return option, main


def serve(listener: socket.socket, path: list[str]) -> tuple[str, str]:
    """Return in a fork only, what `become` returns there."""
    while True:
        client, _ = listener.accept()
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if os.fork():
            client.close()
            continue
        listener.close()
        request = receive(client)
        child = os.fork()
        if child:
            guard(child, client)
        os.setsid()
        die_with_parent()
        client.close()
        return become(request, path)


def run(option: str, main: str) -> None:
    if option == "-m":
        runpy.run_module(main, run_name="__main__", alter_sys=True)
    elif option == "-c":
        exec(main, {"__name__": "__main__"})
    else:
        runpy.run_path(main, run_name="__main__")


def end(option: str, main: str) -> None:
    """Run it and end as Python does, but for the memory of the libraries, which takes seconds to
    free.
    """
    code = 0
    try:
        run(option, main)
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        if isinstance(stop.code, str):
            print(stop.code, file=sys.stderr)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:
        traceback.print_exc()
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def listen(folder: str, path: list[str]) -> tuple[str, str]:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(folder + ".new")
    listener.listen(64)
    Path(folder + ".new").rename(folder)
    return serve(listener, path)


if __name__ == "__main__":
    die_with_parent()
    own_path = sys.path[1:]
    import_libraries(sys.argv[2])
    gc.collect()
    gc.freeze()
    end(*listen(sys.argv[1], own_path))
