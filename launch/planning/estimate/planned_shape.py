"""Finds the shape of a plan's model: on this machine, in the model's YAML or on the hub."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from launch.files import read_json_object
from launch.planning.estimate.shape import BLOCKS, ModelShape, read_shape, shape_from_hf_config
from launch.planning.hub_cache import hub_snapshot
from launch.planning.hub_config import FetchedConfig, find_hub_config
from launch.planning.model_folder import count_parameters
from launch.planning.plan import Plan
from launch.planning.stage_model import model_shape


def planned_shape(plan: Plan, environ: Mapping[str, str]) -> ModelShape | None:
    """Return the shape of a plan's model, from its local config.json, from its YAML or from the
    hub's config.json; None if none of them has it.

    An adapter and its merged model have the shape of the adapter's base.
    """
    folder = _shape_folder(plan, environ)
    if folder is None:
        shape = model_shape(plan.config, plan.inputs.model)
        config = None if shape else _fetch_config(plan, environ).config
        return shape_from_hf_config(config) if config else shape
    shape = read_shape(folder)
    if shape is not None:
        return replace(shape, parameters=count_parameters(folder) or shape.parameters)
    # A model that is still to be built has the shape in the YAML. Any other model is not the one
    # that the YAML describes; if another run makes it, the plan has its shape.
    if plan.inputs.model.build:
        return model_shape(plan.config, plan.inputs.model)
    return plan.shape


def _shape_folder(plan: Plan, environ: Mapping[str, str]) -> Path | None:
    """Return the folder on this machine that has the config.json of a plan's model."""
    model = plan.inputs.model
    if model.adapter is None:
        return model.local or hub_snapshot(model.reference, environ)
    return model.adapter.local_base or hub_snapshot(model.adapter.base, environ)


def _fetch_config(plan: Plan, environ: Mapping[str, str]) -> FetchedConfig:
    """Return the config.json of a plan's model that the hub has."""
    model = plan.inputs.model
    if model.adapter is not None:
        return find_hub_config(model.adapter.base, None, environ)
    return find_hub_config(model.reference, plan.config.model.revision, environ)


def why_shapeless(plan: Plan, environ: Mapping[str, str]) -> str:
    """Return why the shape of a plan's model is unknown."""
    folder = _shape_folder(plan, environ)
    if folder is not None:
        config: Mapping[str, Any] | None = read_json_object(folder / "config.json")
        why = f"{folder} has no readable config.json"
    else:
        fetched = _fetch_config(plan, environ)
        config = fetched.config
        why = fetched.why
    model_type = (config or {}).get("model_type")
    if model_type and model_type not in BLOCKS:
        return f"model_type {model_type} is none of {', '.join(BLOCKS)}"
    return why or "its config.json lacks a size"
