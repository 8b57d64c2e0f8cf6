"""Finds a shape in a model's YAML whose numbers contradict each other."""

from __future__ import annotations

from launch.config.origins import Origins
from launch.config.schema import ModelConfig
from launch.planning.estimate.shape import shape_from_yaml, with_parameters
from launch.worker.finding import Finding

# Relative difference of two numbers of parameters that is tolerated. Biases and further norms, which
# are not counted, are far less.
_SHAPE_TOLERANCE = 0.05


def shape_warnings(model: ModelConfig, origins: Origins) -> tuple[Finding, ...]:
    """Return shape_mismatch if the sizes in a model's YAML result in another number of parameters
    than the YAML gives. Memory and time are predicted from both.
    """
    shape = None if model.path else shape_from_yaml(model.shape)
    if shape is None:
        return ()
    given, counted = shape.parameters, with_parameters(shape).parameters
    if abs(counted / given - 1) <= _SHAPE_TOLERANCE:
        return ()
    message = (
        f"the sizes in model.shape make {counted / 1e9:.3g}e9 parameters, but its parameters are "
        f"{given / 1e9:.3g}e9"
    )
    where = origins.of("model.shape.parameters").where
    cure = "compare head_dim, intermediate and tied_embeddings with the model's config.json"
    return (Finding.warning("shape_mismatch", message, where, cure),)
