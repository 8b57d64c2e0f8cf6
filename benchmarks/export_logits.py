"""OLMo-core's model against its exported form in transformers, by logits.

    python benchmarks/make_inputs.py FOLDER --shapes olmo3_7b
    python benchmarks/export_logits.py --model FOLDER/olmo3_7b --preset olmo3_7B --out FILE

The weights of the folder go to OLMo-core as olmo_core_finetune reads them. Each is then changed, as
a training would, and exported by the functions of the patch `olmo_core_export`. Both models compute
the logits of one row of random tokens in fp32; the row is longer than Olmo 3's window of 4,096
tokens. A third reading of the export sees the whole row: its logits show that the window counts.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = ("torch", "transformers", "ai2-olmo-core")
CHANGE = 0.02  # of each weight's standard deviation


def build(model: Path, preset: str, device: str) -> Any:
    """Return OLMo-core's model with the folder's weights, each changed a little, in fp32."""
    import torch
    from olmo_core.nn.attention import AttentionBackendName
    from open_instruct import olmo_core_utils
    from transformers import AutoConfig

    vocabulary = AutoConfig.from_pretrained(model).vocab_size
    shape = olmo_core_utils.get_transformer_config(
        preset, vocabulary, attn_backend=AttentionBackendName.torch
    )
    built = shape.build(init_device=device)
    state = built.state_dict()
    with tempfile.TemporaryDirectory() as folder:
        olmo_core_utils.load_hf_weights_into_olmo_core(state, str(model), work_dir=folder)
    built.load_state_dict(state)
    built.to(dtype=torch.float32)
    torch.manual_seed(1)
    with torch.no_grad():
        for weight in built.parameters():
            spread = float(weight.std()) or 1.0
            weight.add_(torch.randn_like(weight), alpha=CHANGE * spread)
    return built


def export(model: Any, start: Path, folder: Path) -> None:
    """Write the model as the patch `olmo_core_export` does on one rank."""
    from open_instruct import olmo_core_utils
    from transformers import AutoTokenizer

    from launch.worker.patches.olmo_core_export import gather_state

    tokenizer = AutoTokenizer.from_pretrained(start)
    olmo_core_utils.save_state_dict_as_hf(gather_state(model), str(folder), str(start), tokenizer)


def exported_logits(folder: Path, tokens: Any, window: int | None) -> Any:
    """Return the logits that transformers computes; `window` is another sliding window."""
    import torch
    from transformers import AutoModelForCausalLM

    changed = {} if window is None else {"sliding_window": window}
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **changed)
    with torch.no_grad():
        return model.to(tokens.device)(tokens, use_cache=False).logits


def measure(model: Path, preset: str, length: int, device: str) -> dict[str, Any]:
    """Return the differences of the logits."""
    import torch
    from transformers import AutoConfig

    torch.backends.cuda.matmul.allow_tf32 = False
    config = AutoConfig.from_pretrained(model)
    window = config.sliding_window
    draw = torch.Generator().manual_seed(0)
    tokens = torch.randint(3, config.vocab_size, (1, length), generator=draw).to(device)
    began = time.monotonic()
    ours = build(model, preset, device)
    with torch.no_grad():
        logits = ours(tokens).float()
    folder = Path(tempfile.mkdtemp(prefix="export-", dir=model.parent))
    try:
        export(ours, model, folder)
        del ours
        theirs = exported_logits(folder, tokens, None)
        facts = {
            "model": model.name,
            "tokens": length,
            "window": window,
            "export_gb": round(sum(file.stat().st_size for file in folder.iterdir()) / 1e9, 1),
            "largest_logit": float(theirs.abs().max()),
            "spread": float(theirs.std()),
            "largest_difference": float((logits - theirs).abs().max()),
            "mean_difference": float((logits - theirs).abs().mean()),
            "same_best_token": float((logits.argmax(-1) == theirs.argmax(-1)).float().mean()),
        }
        print(json.dumps(facts), flush=True)
        del theirs
        unlimited = exported_logits(folder, tokens, 2 * length)
        behind = (logits - unlimited)[:, window:]
        facts["mean_difference_without_window"] = float(behind.abs().mean())
    finally:
        shutil.rmtree(folder)
    return {**facts, "seconds": round(time.monotonic() - began)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True, help="folder of make_inputs.py")
    parser.add_argument("--preset", default="olmo3_7B", help="OLMo-core's name of the shape")
    parser.add_argument("--tokens", type=int, default=6144, help="length of the row")
    parser.add_argument("--out", type=Path, default=Path("export_logits.json"))
    options = parser.parse_args()
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    facts = {
        "schema_version": 1,
        "date": time.strftime("%Y-%m-%d"),
        "card": torch.cuda.get_device_name(0) if device == "cuda" else "CPU",
        "versions": {name: metadata.version(name) for name in PACKAGES},
        "command": "python benchmarks/export_logits.py --model FOLDER/olmo3_7b --out FILE",
        **measure(options.model.absolute(), options.preset, options.tokens, device),
    }
    print(json.dumps(facts, indent=1), flush=True)
    options.out.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
