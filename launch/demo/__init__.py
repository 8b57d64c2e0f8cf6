"""The demo's data and model: chats about the standard library's documentation, and a tiny Llama."""

from __future__ import annotations

from launch.demo.ensure import (
    demo_key,
    ensure_chats,
    ensure_model,
    ensure_preferences,
    ensure_prompts,
    ensure_trained_model,
    prompt_rows,
)
from launch.demo.folders import BuiltFolder

__all__ = [
    "BuiltFolder",
    "demo_key",
    "ensure_chats",
    "ensure_model",
    "ensure_preferences",
    "ensure_prompts",
    "ensure_trained_model",
    "prompt_rows",
]
