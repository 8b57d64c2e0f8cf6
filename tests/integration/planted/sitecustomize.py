"""Plants the fault that LAUNCH_TEST_FAULT names in the process of a trainer.

Python imports this file at its start where its folder is on PYTHONPATH. A fault changes what the
trainer itself does (its parsed arguments, its optimizer, its schedule, its data), never what
inspects it, and only in a process that runs launch/worker/entry.py.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import os
import sys
from collections.abc import Callable
from typing import Any


def _after_import(name: str, change: Callable[[Any], None]) -> None:
    """Call `change` with the module `name` once it is imported."""

    class Finder(importlib.abc.MetaPathFinder):
        is_searching = False

        def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
            if fullname != name or self.is_searching:
                return None
            self.is_searching = True
            try:
                spec = importlib.util.find_spec(fullname)
            finally:
                self.is_searching = False
            if spec is None or spec.loader is None:
                return None
            run = spec.loader.exec_module

            def run_and_change(module: Any) -> None:
                # not before: libraries look for a package that they do not import
                sys.meta_path.remove(self)
                run(module)
                change(module)

            spec.loader.exec_module = run_and_change  # type: ignore[method-assign]
            return spec

    sys.meta_path.insert(0, Finder())


def halve_rate(optimizer: Any) -> None:
    """Every optimizer is built with half of its learning rate."""
    build = optimizer.Optimizer.__init__

    def build_slower(self: Any, params: Any, defaults: dict[str, Any]) -> None:
        build(self, params, {**defaults, "lr": defaults["lr"] / 2})

    optimizer.Optimizer.__init__ = build_slower


def hold_schedule(schedules: Any) -> None:
    """A schedule stays at the rate that it has after three calls: its first, and two steps."""
    step = schedules.LRScheduler.step

    def step_at_first(self: Any, *arguments: Any) -> None:
        self.calls = getattr(self, "calls", 0) + 1
        if self.calls <= 3:
            step(self, *arguments)

    schedules.LRScheduler.step = step_at_first


def hold_olmo_core_schedule(schedules: Any) -> None:
    """OLMo-core's schedule sets the rates of the first steps alone."""
    set_rate = schedules.Scheduler.set_lr

    def set_at_first(self: Any, group: dict[str, Any], trainer: Any) -> Any:
        return set_rate(self, group, trainer) if trainer.global_step < 4 else group["lr"]

    schedules.Scheduler.set_lr = set_at_first


def change_flag(names: tuple[str, ...], change: Callable[[str], str]) -> None:
    """The trainer's own parser reads another value of a flag than was given."""
    import argparse

    parse = argparse.ArgumentParser.parse_known_args

    def parse_other(self: Any, args: Any = None, namespace: Any = None) -> Any:
        if any(parent.__name__ == "HfArgumentParser" for parent in type(self).__mro__):
            args = list(sys.argv[1:] if args is None else args)
            for at, word in enumerate(args[:-1]):
                if word.removeprefix("--") in names:
                    args[at + 1] = change(args[at + 1])
        return parse(self, args, namespace)

    argparse.ArgumentParser.parse_known_args = parse_other  # type: ignore[method-assign]


def drop_rows(datasets: Any) -> None:
    """Half of the rows of the second data set are not loaded, however often it is loaded: dpo.py
    loads the data sets to name its cache (dpo_utils.py:365), and once more to train on them.
    """
    load = datasets.load_dataset
    names: list[str] = []

    def load_half(*arguments: Any, **options: Any) -> Any:
        loaded = load(*arguments, **options)
        name = repr((arguments, options.get("data_files")))
        if name not in names:
            names.append(name)
        if names.index(name) != 1:
            return loaded
        if isinstance(loaded, datasets.Dataset):
            return loaded.select(range(len(loaded) // 2))
        for split, rows in loaded.items():
            loaded[split] = rows.select(range(len(rows) // 2))
        return loaded

    datasets.load_dataset = load_half


def keep_server(client: Any) -> None:
    """TRL walks through the trained tensors, and sends none of them to vLLM's server."""

    def send_none(self: Any, metadata: Any, named_params: Any) -> None:
        for _ in named_params:
            pass

    client.VLLMClient.update_named_params = send_none


def keep_handles(transfer: Any) -> None:
    """No handle of a tensor is sent to a server that shares the trainer's GPU."""

    def send_none(iterator: Any, trainer_args: Any) -> None:
        for _ in iterator:
            pass

    transfer.IPCWeightTransferEngine.trainer_send_weights = staticmethod(send_none)


def keep_engine(generation: Any) -> None:
    """TRL walks through the trained tensors, and loads none of them into vLLM beside the trainer."""
    sync = generation.VLLMGeneration.sync_weights

    def load_none(self: Any) -> None:
        if self.mode != "colocate":
            sync(self)
            return
        for _ in self._iter_named_params():
            pass

    generation.VLLMGeneration.sync_weights = load_none


def repeat_rows(loaders: Any) -> None:
    """The second half of an epoch has the rows of the first once more."""
    iterate = loaders.SeedableRandomSampler.__iter__

    def iterate_twice(self: Any) -> Any:
        order = list(iterate(self))
        middle = len(order) // 2
        return iter([*order[:middle], *order[: len(order) - middle]])

    loaders.SeedableRandomSampler.__iter__ = iterate_twice


def half(number: str) -> str:
    return f"{float(number) / 2:g}"


_EPOCHS = ("num_train_epochs", "num_epochs")
_LIMITS = ("max_length", "max_seq_length", "max_token_length")


def plant(fault: str) -> None:
    """Plant one fault, by its name."""
    if fault == "rate":
        _after_import("torch.optim.optimizer", halve_rate)
    elif fault == "schedule":
        _after_import("torch.optim.lr_scheduler", hold_schedule)
        _after_import("olmo_core.optim.scheduler", hold_olmo_core_schedule)
    elif fault == "epoch":
        change_flag(_EPOCHS, lambda epochs: str(int(epochs) - 1))
    elif fault == "beta":
        change_flag(("beta",), half)
    elif fault == "rows":
        _after_import("datasets", drop_rows)
    elif fault == "repeats":
        _after_import("accelerate.data_loader", repeat_rows)
    elif fault == "alpha":
        change_flag(("lora_alpha",), half)
    elif fault == "seed":
        change_flag(("seed",), lambda seed: str(int(seed) + 1))
    elif fault == "limit":
        change_flag(_LIMITS, half)
    elif fault == "sampler":
        _after_import("trl.generation.vllm_client", keep_server)
        _after_import("vllm.distributed.weight_transfer.ipc_engine", keep_handles)
        _after_import("trl.generation.vllm_generation", keep_engine)
    elif fault == "padding":
        change_flag(("padding_free",), lambda _: "false")


if any(word.endswith("launch/worker/entry.py") for word in sys.orig_argv):
    plant(os.environ.get("LAUNCH_TEST_FAULT", ""))
