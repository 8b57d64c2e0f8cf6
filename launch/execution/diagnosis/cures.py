"""Known causes of failure and their cures.

The class and the message of an exception map to what to change, computed from the plan where possible; for a process
that died without one, the lines that it printed last. A cure that other causes would need too says "possibly".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from launch.execution.diagnosis import advice
from launch.execution.diagnosis.advice import Situation
from launch.execution.diagnosis.tracebacks import RaisedError

# the text of a cure, in which {name} is a group of the cause's pattern, or a function that returns the text
Advice = str | Callable[[re.Match[str], Situation], str]


@dataclass(frozen=True)
class Cure:
    """What to do against a known cause of failure."""

    id: str  # of the known cause
    text: str  # one sentence; an uncertain one begins with "possibly: "


@dataclass(frozen=True)
class KnownCause:
    """A cause of failure that is recognised by an exception or, without one, by a line printed last."""

    id: str
    errors: re.Pattern[str] | None  # fullmatch with the exception's class; None: of a process without an exception
    pattern: re.Pattern[str]  # searched in the message, or in each line
    advise: Advice
    is_certain: bool = True

    def cure(self, match: re.Match[str], situation: Situation) -> Cure:
        advise = self.advise
        text = advise.format(**match.groupdict()) if isinstance(advise, str) else advise(match, situation)
        is_marked = self.is_certain or text.startswith(advice.POSSIBLY)
        return Cure(self.id, text if is_marked else f"{advice.POSSIBLY}{text}")


def cure_for_errors(chain: Sequence[RaisedError], situation: Situation) -> tuple[RaisedError, Cure] | None:
    """Return the cure of the first known cause in a chain of exceptions, root first, and its exception.

    A certain cure goes before an uncertain one. That of a failed import which was handled is uncertain: libraries try
    imports, and what fails in the handler is the cause.
    """
    for is_certain in (True, False):
        for error in chain:
            is_doubted = error.was_handled and error.type in _IMPORT_ERRORS
            if is_doubted and is_certain:
                continue
            if cure := _find_cure(error, situation, is_certain=is_certain):
                return error, cure
            if is_doubted and (cure := _find_cure(error, situation, is_certain=True)):
                return error, replace(cure, text=f"{advice.POSSIBLY}{cure.text.removeprefix(advice.POSSIBLY)}")
    return None


def _find_cure(error: RaisedError, situation: Situation, *, is_certain: bool) -> Cure | None:
    for known in KNOWN_CAUSES:
        if known.errors is None or known.is_certain != is_certain or not known.errors.fullmatch(error.type):
            continue
        if match := known.pattern.search(error.message):
            return known.cure(match, situation)
    return None


def cure_for_lines(lines: Sequence[str], situation: Situation) -> Cure | None:
    """Return the cure of the first known cause in what a process without an exception printed last."""
    for line in lines:
        for known in KNOWN_CAUSES:
            if known.errors is None and (match := known.pattern.search(line)):
                return known.cure(match, situation)
    return None


def _error(name: str, errors: str, pattern: str, advise: Advice, *, is_certain: bool = True) -> KnownCause:
    return KnownCause(name, re.compile(errors), re.compile(pattern), advise, is_certain)


def _line(name: str, pattern: str, advise: Advice, *, is_certain: bool = False) -> KnownCause:
    return KnownCause(name, None, re.compile(pattern), advise, is_certain)


_IMPORT_ERRORS = ("ImportError", "ModuleNotFoundError")
_TORCH = r"RuntimeError|AcceleratorError|Error|DistBackendError"
_OS = r"OSError|SafetensorError|RuntimeError|Arrow\w+|FileSystemError|OperationalError"
# the texts of cudaErrorECCUncorrectable, cudaErrorNvlinkUncorrectable and cudaErrorHardwareStackError (CUDA's
# driver_types.h), of the driver in the kernel's log, and of nvidia-smi
_GPU_FAULT = (
    r"uncorrectable (?:ECC|NVLink) error|hardware stack error|NVRM: Xid|has fallen off the bus|GPU is lost"
    r"|Unable to determine the device handle for GPU"
)
_HUB = r"huggingface\.co|hf\.co"  # in an address; other services (W&B, a proxy) answer with the same errors
_BINARY = "{name} was built for another torch, CUDA or Python: install it again for this one"
_CUDA_TOOLKIT = "set CUDA_HOME to a toolkit of CUDA {torch}, which torch was built with, instead of {installed}"
_HUB_ACCESS = (
    "the hub does not give you access to this repository: check its name, accept the conditions on its page, and "
    "set HF_TOKEN (or run `hf auth login`) on this machine"
)
_NCCL_TIMEOUT = (
    "check the logs of the ranks that had not arrived: they may be tokenizing, slowed by a disk, or crashed; if "
    "they were only slow, set flags.timeout=SECONDS where the trainer has this flag"
)
_BROKEN_DATA = (
    "a row of the data file is not valid JSON, or a column changes its type: mend the row that the error names"
)
_HUB_UNREACHABLE = (
    "this machine can't reach the hub, or HF_HUB_OFFLINE is set: check network and proxy, or set model.path and "
    "data.mix to local folders"
)
_BROKEN_GPU = (
    "a GPU of this node is broken: leave the node out (cluster.exclude, CUDA_VISIBLE_DEVICES) and report it; "
    "`nvidia-smi -q` and the kernel's log (`dmesg | grep Xid`) show which"
)
_NCCL_REMOTE = (
    "the network or a process of another node failed; if no other rank reports an error of its own it was the "
    "network: NCCL_DEBUG=INFO shows the link"
)
_SHARED_MEMORY = (
    "/dev/shm is too small for the data loader's workers: start the container with --shm-size or --ipc=host"
)
_DEVICE_ASSERT = (
    "a token is beyond the model's vocabulary, or a sequence beyond its positions: check that tokenizer and model "
    "belong together; CUDA_LAUNCH_BLOCKING=1 shows the line"
)
# in order: the first one that matches wins, a certain one before an uncertain one
KNOWN_CAUSES: tuple[KnownCause, ...] = (
    _error("gpu_shared", r"OutOfMemoryError|RuntimeError", advice.OTHER_PROCESS, advice.gpu_shared),
    _error("out_of_memory", r"OutOfMemoryError|RuntimeError|AcceleratorError", r"(?:CUDA|HIP) out of memory",
           advice.out_of_memory),
    _error("gpu_shared", r"RuntimeError|AcceleratorError", r"CUDA error: out of memory",
           "another process uses the GPU's memory (`nvidia-smi` shows it): end it, or use another GPU",
           is_certain=False),  # of the driver, not of torch's allocator
    _error("out_of_memory", "RuntimeError", r"CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED",
           advice.out_of_memory, is_certain=False),
    _error("host_memory", "RuntimeError", r"DefaultCPUAllocator: ", advice.host_memory),
    _error("host_memory", "MemoryError", "", advice.host_memory),
    _error("host_memory", "OSError|BlockingIOError", r"Errno 12\]|Cannot allocate memory", advice.host_memory),
    _error("missing_package", "ModuleNotFoundError", r"No module named '(?P<name>\w+)'$", advice.missing_package),
    _error("missing_package", "ImportError|ValueError|RuntimeError",
           r"packages that were not found in your environment: (?P<name>\w+)", advice.missing_package),
    _error("missing_package", "ImportError|ValueError", r"package (?P<name>flash_attn) seems to be not installed",
           advice.missing_package),
    _error("missing_package", "RuntimeError", r"(?P<name>Ninja) is required to load C\+\+ extensions",
           advice.missing_package),
    _error("shadowed_package", "ModuleNotFoundError", r"No module named '(?P<name>\w+)[\w.]*'; '\w+' is not a package",
           "a file or folder named {name} on sys.path hides the package {name}: rename it"),
    _error("other_version", "ModuleNotFoundError", r"No module named '(?P<name>\w+\.[\w.]+)'$", advice.other_version,
           is_certain=False),
    _error("other_version", "ImportError", r"cannot import name '\w+' from '(?P<name>[\w.]+)'", advice.other_version,
           is_certain=False),
    _error("binary_mismatch", "ImportError|OSError", r"(?P<name>[\w.-]+\.so[\w.]*): undefined symbol", _BINARY,
           is_certain=False),
    _error("binary_mismatch", "ImportError|OSError", r"(?P<name>lib(?:cuda|cu)\w+\.so[\w.]*): cannot open shared ob",
           _BINARY, is_certain=False),
    _error("no_gpu", "ValueError|RuntimeError|AssertionError", r"setup doesn't support bf16|No CUDA GPUs are available|"
           r"Found no NVIDIA driver|not compiled with CUDA enabled", advice.no_gpu),
    _error("disk_full", _OS, r"No space left on device|Errno 28\]|os error 28|Disk quota exceeded|Errno 122\]",
           advice.disk_full),
    _error("disk_full", "RuntimeError", r"PytorchStreamWriter failed|inline_container\.cc.*unexpected pos",
           advice.disk_full, is_certain=False),
    _error("port_in_use", r"DistNetworkError|RuntimeError|OSError|ConnectionError|ValueError",
           r"EADDRINUSE|[Aa]ddress already in use",
           "another process on this machine listens on that port, perhaps an earlier run (`ss -ltnp`): end it, or "
           "remove MASTER_PORT and other fixed ports from the start script"),
    _error("hub_repository", "HFValidationError|OSError", r"'repo_name' or 'namespace/repo_name': '(?P<repo>[^']+)'",
           advice.repository_name),
    _error("hub_access", "GatedRepoError|RepositoryNotFoundError|LocalTokenNotFoundError", "", _HUB_ACCESS),
    _error("hub_access", "HfHubHTTPError", r"40[13] Client Error|Invalid user token", _HUB_ACCESS),
    _error("hub_access", r"HTTPError|HTTPStatusError", rf"40[13] .*{_HUB}", _HUB_ACCESS),
    _error("hub_access", "OSError", r"Invalid user token|is not a valid model identifier|trying to access a gated repo|"
           r"Cannot access gated repo", _HUB_ACCESS),
    _error("hub_access", "DatasetNotFoundError", r"doesn't exist on the Hub|is a gated dataset", _HUB_ACCESS),
    _error("hub_unreachable", "LocalEntryNotFoundError|OfflineModeIsEnabled", "", _HUB_UNREACHABLE),
    _error("hub_unreachable", "OSError|ConnectionError", r"couldn't connect to 'https://huggingface|Couldn't reach ",
           _HUB_UNREACHABLE),
    _error("hub_unreachable", r"ConnectError|ConnectTimeout|MaxRetryError|NameResolutionError", _HUB,
           _HUB_UNREACHABLE, is_certain=False),
    _error("stale_cache", "FileNotFoundError", r"Directory (?P<path>\S+) is neither a `?Dataset`? directory",
           advice.stale_cache),
    _error("stale_cache", "FileNotFoundError", r"'(?P<path>[^']*(?:dataset_info|state)\.json)'", advice.stale_cache),
    _error("broken_data", "ArrowInvalid", r"JSON parse error", _BROKEN_DATA),
    _error("broken_data", "JSONDecodeError", "", _BROKEN_DATA, is_certain=False),
    _error("broken_data", "UnicodeDecodeError", r"'utf-8' codec can't decode",
           "a data file is not UTF-8 text, or is not the kind of file that its name says", is_certain=False),
    _error("truncated_file", "ArrowInvalid", r"Tried reading schema message|Expected to (?:be able to )?read \d+",
           advice.truncated, is_certain=False),
    _error("corrupt_model", "SafetensorError", r"deserializing|MetadataIncompleteBuffer|[Hh]eader ?[Tt]oo|"
           r"InvalidHeader",
           "a file of the model's weights is truncated, damaged or a Git LFS pointer: compare the sizes with the "
           "source, and copy that file again"),
    _error("foreign_pickle", "UnpicklingError", r"Weights only load failed",
           "the file holds more than tensors, and torch refuses to execute it: use a checkpoint that this trainer "
           "wrote, or save it as safetensors where you trust it"),
    _error("lfs_pointer", "UnpicklingError", r"invalid load key, 'v'",
           "the file is a Git LFS pointer instead of its content: run `git lfs pull` in its folder", is_certain=False),
    _error("truncated_file", "RuntimeError", r"PytorchStreamReader failed|failed finding central directory",
           advice.truncated, is_certain=False),
    _error("truncated_file", "UnpicklingError|EOFError", r"pickle data was truncated|Ran out of input",
           advice.truncated, is_certain=False),
    _error("incomplete_model", "OSError|ValueError", r"does not appear to have a file named|Error no file named|"
           r"Unrecognized model in|[Cc]an't load tokenizer for",
           "a model or tokenizer folder is not complete: check the path, and which of the model's files are there",
           is_certain=False),
    _error("ungathered_weights", "RuntimeError", r"copying a param with shape torch\.Size\(\[0\]\)",
           "these weights were saved under ZeRO-3 without gathering them and are empty: use a gathered one, or "
           "rebuild it with DeepSpeed's zero_to_fp32.py"),
    _error("unknown_flag", "ValueError", r"not used by the HfArgumentParser", advice.unknown_flag),
    _error("shared_memory", "RuntimeError", r"insufficient shared memory|killed by signal: Bus error|"
           r"unable to (?:open|allocate|write) shared memory", _SHARED_MEMORY),
    _error("loader_killed", "RuntimeError", r"DataLoader worker \(pid.*\) (?:is killed by signal: Killed|exited "
           r"unexpectedly)",
           "a worker of the data loader ran out of memory or shared memory: fewer workers, or a larger /dev/shm",
           is_certain=False),
    _error("open_files", "OSError|RuntimeError", r"Errno 24\]|Too many open files|received 0 items of ancdata",
           "raise the limit on open files (`ulimit -n`) before the start, as far as `ulimit -Hn` allows"),
    _error("old_driver", _TORCH, r"NVIDIA driver on your system is too old|driver version is insufficient",
           "torch was built for a newer CUDA than the driver supports: update the driver, or install torch for this "
           "driver"),
    _error("device_assert", _TORCH, r"device-side assert triggered", _DEVICE_ASSERT, is_certain=False),
    _error("old_gpu", _TORCH, r"no kernel image is available",
           "this build of torch has no kernels for this GPU: install one that lists it (torch.cuda.get_arch_list())"),
    _error("cuda_toolkit", "CUDAMismatchException|Exception", r"Installed CUDA version (?P<installed>[\d.]+) does not "
           r"match the version torch was compiled with (?P<torch>[\d.]+\d)", _CUDA_TOOLKIT),
    _error("cuda_toolkit", "RuntimeError", r"detected CUDA version \((?P<installed>[\d.]+)\) mismatches the version "
           r"that was used to compile\s+PyTorch \((?P<torch>[\d.]+)\)", _CUDA_TOOLKIT),
    _error("cuda_toolkit", "MissingCUDAException|OSError|AssertionError", r"CUDA_HOME (?:does not exist|environment "
           r"variable is not set|is not set)",
           "DeepSpeed compiles with nvcc: install a CUDA toolkit and set CUDA_HOME to it"),
    _error("duplicate_gpu", _TORCH, r"Duplicate GPU detected",
           "two ranks use the same GPU: start no more ranks than CUDA_VISIBLE_DEVICES lists"),
    _error("gpu_fault", _TORCH, _GPU_FAULT, _BROKEN_GPU),
    _error("nccl_remote", "DistBackendError|RuntimeError", r"ncclRemoteError|remote process exited or there was a "
           r"network error", _NCCL_REMOTE, is_certain=False),
    _error("nccl_timeout", "DistBackendError", r"Watchdog caught collective operation timeout", _NCCL_TIMEOUT),
    _error("nccl_error", "DistBackendError|RuntimeError", r"NCCL [Ee]rror|nccl\w+Error: ",
           "NCCL_DEBUG=INFO in the environment makes the ranks' logs name the call that failed (network, /dev/shm, "
           "GPU)", is_certain=False),
    _error("chat_roles", "TemplateError", r"[Rr]oles must alternate|[Rr]ole .*not supported|[Oo]nly .*roles",
           "the chat template rejects a row's roles or their order: mend the row, or set another "
           "recipe.chat_template", is_certain=False),
    _error("no_chat_template", "ValueError", r"tokenizer\.chat_template is not set",
           "the tokenizer has no chat template: set recipe.chat_template, or use the tokenizer of a chat model"),
    _line("gpu_fault", _GPU_FAULT, _BROKEN_GPU, is_certain=True),
    _line("nccl_remote", r"ncclRemoteError|NET/IB ?: Got completion from peer .* with (?:error|status=)",
          _NCCL_REMOTE),
    _line("killed", r"^was killed by SIGKILL",
           "the kernel killed it because memory ran out (`dmesg | grep -i 'killed process'` shows it, or the job's "
           "or container's limit): give the run more host memory, or fewer ranks and loader workers"),
    _line("shared_memory", r"^was killed by SIGBUS", _SHARED_MEMORY),
    _line("nccl_timeout", r"^NCCL timeout: |^a collective timed out|Watchdog caught collective operation timeout",
          _NCCL_TIMEOUT, is_certain=True),
    _line("out_of_memory", r"what\(\):.*CUDA out of memory", advice.out_of_memory, is_certain=True),
    _line("host_memory", r"std::bad_alloc|DefaultCPUAllocator: ", advice.host_memory),
    _line("device_assert", r"device-side assert triggered", _DEVICE_ASSERT),
    _line("unknown_flag", r"^\S+: error: unrecognized arguments", advice.unknown_flag, is_certain=True),
)  # fmt: skip
