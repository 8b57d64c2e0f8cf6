"""The rules of LoRA adapters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any

from launch.config.line import format_value
from launch.config.recipe_keys import LoraConfig
from launch.errors import did_you_mean
from launch.planning.estimate.shape import LINEAR_LAYERS
from launch.planning.lora import (
    ALL_LINEAR,
    find_missing_module,
    find_missing_parameter,
    requested_lora,
    settings_of_adapter,
)
from launch.planning.rules.plan_rule import SettingsCase, plan_rule
from launch.rules.code import failed
from launch.worker.finding import Finding, Fix

_TARGETS = "recipe.lora.targets"
KEYS_OF_ADAPTER = tuple(item.name for item in fields(LoraConfig) if item.name != "rank")
_SHOWN_NAMES = 20
_OUTPUT_LAYERS = ("lm_head", "embed_out")


@plan_rule("lora_without_rank")
def adapter_has_a_rank(case: SettingsCase) -> Iterator[Finding]:
    """Without recipe.lora.rank all weights are trained, and the other keys of an adapter have no effect."""
    if case.config.recipe.lora.rank is not None:
        return
    for name in KEYS_OF_ADAPTER:
        key = f"recipe.lora.{name}"
        if not (case.origins.overridden(key) or "").startswith("recipe.lora"):
            continue
        message = f"{key} has no effect without recipe.lora.rank: all weights are trained"
        cure = Fix.of("set {0}, or remove it", "recipe.lora.rank=16", f"~{key}")
        yield failed(message, cure, case.locate(key))
        return


@plan_rule("lora_targets")
def adapted_layers_exist(case: SettingsCase) -> Iterator[Finding]:
    """An adapter of a layer that the model lacks fails when the model is loaded, and one of the
    output layer is not trained.
    """
    if case.lora is None:
        return
    where = case.locate(_TARGETS)
    given = case.config.recipe.lora.targets
    is_list = isinstance(given, list) and bool(given)
    if not isinstance(given, str) and not (is_list and all(isinstance(n, str) for n in given)):
        message = f"recipe.lora.targets={given} is neither all-linear nor a list of names"
        overrides = ("recipe.lora.targets=all-linear", "recipe.lora.targets=[q_proj,v_proj]")
        yield failed(message, Fix.of("set {0}, or {1}", *overrides), where)
        return
    if case.lora.targets == ALL_LINEAR:
        return
    output = [name for name in case.lora.targets if name in _OUTPUT_LAYERS]
    if output:
        layer = output[0]
        message = (
            f"the trainers don't train an adapter of {layer}: the loss reads its weight directly"
        )
        yield failed(message, f"remove {layer}", where)
        return
    if case.shape is None:
        return
    known = case.shape.matrices
    unknown = [name for name in case.lora.targets if name.rpartition(".")[2] not in known]
    if unknown:
        message = f"a {case.shape.model_type} model has no layer '{unknown[0]}'"
        cure = did_you_mean(unknown[0], known) or f"it has {', '.join(known)}"
        yield failed(message, cure, where)


@plan_rule("lora_names")
def names_beside_the_layers_are_lists(case: SettingsCase) -> Iterator[Finding]:
    """PEFT takes a text in the place of a list for a pattern, or for its single letters, and a module
    that is trained as a whole, or a weight with an adapter, has none of its layer besides.
    """
    if case.lora is None:
        return
    keys = {"modules_to_save": "[lm_head]", "target_parameters": "[mlp.experts.gate_up_proj]"}
    for name, example in keys.items():
        value = getattr(case.config.recipe.lora, name)
        is_list = isinstance(value, list) and value and all(isinstance(n, str) for n in value)
        if value is None or is_list:
            continue
        key = f"recipe.lora.{name}"
        message = f"{key}={value} is not a list of names"
        yield failed(message, Fix.of("set {0}", f"{key}={example}"), case.locate(key))
        return
    whole = {name.rpartition(".")[2] for name in case.lora.modules_to_save or ()}
    if case.lora.targets == ALL_LINEAR:
        adapted = set(case.shape.matrices) if case.shape is not None else set(LINEAR_LAYERS)
    else:
        adapted = {name.rpartition(".")[2] for name in case.lora.targets}
    twice = [name for name in case.lora.weight_names() if name in adapted]
    if twice:
        key = "recipe.lora.target_parameters"
        message = f"PEFT refuses an adapter of {twice[0]}'s weight beside one of {twice[0]} itself"
        others = [name for name in LINEAR_LAYERS if name in adapted and name not in twice]
        cure: Fix | str = f"leave {twice[0]} out of {key} or of {_TARGETS}"
        if others:
            cure = Fix.of("set {0}", f"{_TARGETS}=[{','.join(others)}]")
        yield failed(message, cure, case.locate(key))
        return
    both = sorted(whole & adapted)
    if both:
        key = "recipe.lora.modules_to_save"
        message = f"{both[0]} would be trained as a whole and have an adapter"
        yield failed(message, f"leave it out of {key} or of {_TARGETS}", case.locate(key))


@plan_rule("lora_names_exist")
def named_modules_and_parameters_exist(case: SettingsCase) -> Iterator[Finding]:
    """PEFT passes over a name of recipe.lora.modules_to_save or recipe.lora.target_parameters that
    fits no module or parameter of the model, and the run trains without it.
    """
    if case.lora is None or case.tensors is None:
        return
    tensors = case.tensors
    heads = [f"{name}.weight" for name in (*_OUTPUT_LAYERS, "score")]  # not stored by every model
    module = find_missing_module(case.lora.modules_to_save or (), [*tensors, *heads])
    if module is not None:
        message = f"the model has no module '{module}'"
        yield _missing_name(case, "modules_to_save", message, module, _module_names(tensors))
    parameter = find_missing_parameter(case.lora.target_parameters or (), tensors)
    if parameter is not None:
        message = f"the model has no parameter '{parameter}'"
        names = _parameter_names(tensors)
        yield _missing_name(case, "target_parameters", message, parameter, names)


def _missing_name(
    case: SettingsCase, key: str, message: str, name: str, known: list[str]
) -> Finding:
    path = f"recipe.lora.{key}"
    cure = did_you_mean(name, known)
    if cure is None and len(known) <= _SHOWN_NAMES:
        cure = f"it has {', '.join(known)}"
    return failed(message, cure or f"remove it from {path}", case.locate(path))


def _module_names(tensors: Sequence[str]) -> list[str]:
    """Return the last part of each module's path, each once."""
    names = []
    for tensor in tensors:
        names += [part for part in tensor.split(".")[:-1] if not part.isdecimal()]
    return list(dict.fromkeys(names))


def _parameter_names(tensors: Sequence[str]) -> list[str]:
    """Return the last two parts of each tensor's name, each once."""
    return list(dict.fromkeys(".".join(tensor.split(".")[-2:]) for tensor in tensors))


@plan_rule("lora_rank")
def rank_fits(case: SettingsCase) -> Iterator[Finding]:
    """A rank above that of a layer makes the adapter larger than the layer, and an adapter that is
    trained further keeps its rank.
    """
    requested = requested_lora(case.config)
    if requested is None:
        return
    where = case.locate("recipe.lora.rank")
    if case.shape is not None and requested.rank >= 1:
        matrices = case.shape.matrices
        sizes = {name: min(matrices[name]) for name in requested.layer_names(matrices)}
        name = min(sizes, key=sizes.__getitem__, default=None)
        if name is not None and requested.rank > sizes[name]:
            inputs, outputs = matrices[name]
            message = (
                f"rank {requested.rank} is above the rank of {name} ({inputs} x {outputs}): the "
                "adapter would be larger than it"
            )
            cure = f"set it to {sizes[name]} or less; 8 to 256 is usual"
            yield failed(message, cure, where)
    continued = case.continued
    if continued is not None and continued.rank != requested.rank:
        message = (
            f"the adapter in {continued.folder} has rank {continued.rank}, got {requested.rank}"
        )
        yield failed(message, Fix.of("set {0}", f"recipe.lora.rank={continued.rank}"), where)


@plan_rule("adapter_settings")
def continued_adapter_keeps_its_settings(case: SettingsCase) -> Iterator[Finding]:
    """An adapter that is trained further keeps its own settings, whatever the recipe has."""
    requested = requested_lora(case.config)
    continued = case.continued
    if requested is None or continued is None or continued.rank != requested.rank:
        return
    settings = settings_of_adapter(continued)
    differing = []
    for name, value in settings.items():
        is_set = case.origins.of(f"recipe.lora.{name}").where is not None
        if is_set and _comparable(getattr(requested, name)) != _comparable(value):
            differing.append(name)
    if not differing:
        return
    kept = " and ".join(f"{name} {_describe(settings[name])}" for name in differing)
    got = " and ".join(_describe(getattr(requested, name)) for name in differing)
    message = f"the adapter in {continued.folder} keeps its own {kept}, got {got}"
    keys = [f"recipe.lora.{name}" for name in differing]
    cure = Fix.of(f"remove {' and '.join(keys)}, or set {{0}}", "recipe.lora.start=merged")
    yield failed(message, cure, case.locate(keys[0]))


def _comparable(value: Any) -> Any:
    """Return the value of a setting; of targets, the set of their layers."""
    if value == ALL_LINEAR:
        return set(LINEAR_LAYERS)
    if isinstance(value, tuple):
        return {name.rpartition(".")[2] for name in value}
    return value


def _describe(value: Any) -> str:
    return f"[{','.join(value)}]" if isinstance(value, tuple) else format_value(value)
