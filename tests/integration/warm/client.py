"""The rank as its launcher sees it: hands itself to the server, passes signals on, and ends as the
fork does.

python client.py SOCKET ARGUMENT...
"""

import array
import ctypes
import json
import os
import signal
import socket
import sys

_PDEATHSIG = 1  # linux/prctl.h
_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def main() -> None:
    ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    server = socket.socket(socket.AF_UNIX)
    server.connect(sys.argv[1])
    for number in _PASSED_ON:
        signal.signal(number, lambda number, _: server.send(bytes([number])))
    folder = os.getcwd()  # noqa: PTH109 - pathlib is slow to import
    message = json.dumps({"argv": sys.argv[2:], "env": dict(os.environ), "cwd": folder}).encode()
    server.sendmsg(
        [len(message).to_bytes(4)],
        [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1, 2]))],
    )
    server.sendall(message)
    answer = server.makefile("r").readline()
    if not answer:
        sys.exit("the server of warm interpreters has ended")
    code = int(answer)
    if code < 0:
        if -code in _PASSED_ON:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


main()
