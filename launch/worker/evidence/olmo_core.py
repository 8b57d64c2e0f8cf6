"""Checks what is in effect in OLMo-core's train module, its model and its data loader.

They shard with FSDP, so that a parameter is a shard with its mesh. Nothing is gathered or reduced.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..expectations import process_group_backend
from ..trainer import TrainerProgram
from . import Evidence, judge_all
from . import rows as rows_check
from .batches import BINS, NONE, ForwardInputs, describe_first
from .kernels import check_isolation
from .learnt import LEARNT, check_learnt, read_numpy
from .precision import dtypes_by_size, judge_clipping, short_dtype
from .rows import LIMIT, MIXTURE, RowRecord, find_limits, judge_limit, read_numpy_folder
from .saved_model import check_saved, judge_saved
from .start import check_template
from .tensors import checksum, stored
from .trainer_objects import find_frame

_BACKENDS = {
    "TorchAttentionBackend": "sdpa",
    "FlashAttention2Backend": "flash_2",
    "FlashAttention3Backend": "flash_3",
    "FlashAttention4Backend": "flash_4",
}
_DOCUMENT = 8  # tokens of each of the two test documents
_READ_BACK = 8  # tensors of a checkpoint


def collect(
    module: Any, first: ForwardInputs | None, program: TrainerProgram, requested: Mapping[str, str]
) -> list[Evidence]:
    """Collect the evidence of `module`, a TransformerTrainModule, before its first optimizer
    step.
    """
    packing = _check_packing(module, first)
    norm = float(module.max_grad_norm or 0)
    template = requested.get("chat_template")
    evidence = [
        *_check_ranks(module),
        _check_sharding(module),
        *_check_context(module, requested.get("context_parallel")),
        *_check_dtypes(module),
        packing,
        _check_attention(module, requested.get("attention")),
        _check_checkpointing(module),
        judge_clipping(norm, "TransformerTrainModule.max_grad_norm", requested.get("grad_clip")),
        check_template(_find_tokenizer(), program, template),
    ]
    if packing.value == BINS:
        evidence.append(_test_isolation(module, first))
    return judge_all(evidence, requested)


def count_rows(loader: Any) -> tuple[int, int]:
    """Return the rows of an epoch and those of an optimizer step; the steps of an epoch and 1 where
    a step has no fixed number of rows.

    OLMo-core's own data loader counts the rows of a step in tokens (olmo_core_finetune.py:284).
    open-instruct's has a part of the rows on each rank, and packs pairs ahead (data_loader.py:118).
    """
    if getattr(loader, "_precomputed_batch_sizes", None) is not None:
        return int(loader.total_batches), 1
    rows = getattr(loader, "_full_dataset", None)
    if rows is not None:
        return len(rows), int(loader._batch_size)
    return len(loader.dataset), int(loader.global_batch_size) // int(loader.dataset.sequence_length)


def check_tokens(loader: Any, requested: str | None) -> list[Evidence]:
    """Return the evidence "global_tokens": the tokens of a step over all ranks, padding included."""
    if requested is None:
        return []
    how = "global_batch_size of OLMo-core's data loader"
    return [
        Evidence("global_tokens", f"{int(loader.global_batch_size)} tokens", how).compare(requested)
    ]


def check_limit(
    loader: Any, requested: str | None, record: RowRecord | None = None
) -> list[Evidence]:
    """Return the evidence "max_seq_length": the length of OLMo-core's sequences, or the longest half
    of a pair; see rows.check_longest.
    """
    if requested is None:
        return []
    full = getattr(loader, "_full_dataset", None)
    if full is not None:
        limits = find_limits(loader._collator, ("max_seq_length",))
        names = [part.name for part in record.parts] if record is not None else []
        return [judge_limit(full, limits, requested, _find_tokenizer(), names)]
    how = "sequence_length of the data set, at which documents are cut"
    return [Evidence(LIMIT, int(loader.dataset.sequence_length), how).compare(requested)]


def check_mixture(loader: Any, record: RowRecord, requested: str | None) -> list[Evidence]:
    """Return the evidence "mixture" of either data loader; see rows.check_mixture.

    Tokenised numpy files have a record of their data sets, and of their tokens, which are those of
    the data set that is built on them.
    """
    full = getattr(loader, "_full_dataset", None)
    if requested is None or full is not None:
        rows = None if full is None else len(full)
        return rows_check.check_mixture(record, rows, requested)
    frame = find_frame("numpy_dir", "args")
    if frame is None:
        how = "the folder of the tokenised data was not found"
        return [Evidence(MIXTURE, None, how).judge(requested, None)]
    names = frame.f_locals["args"].dataset.mixer_list[::2]
    try:
        record.parts, tokens = read_numpy_folder(Path(frame.f_locals["numpy_dir"]), names)
    except (OSError, ValueError, LookupError) as error:
        how = f"the statistics of the tokenised data: {type(error).__name__}: {error}"
        return [Evidence(MIXTURE, None, how).judge(requested, None)]
    found = sum(loader.dataset.file_sizes) // loader.dataset.dtype(0).itemsize
    if found != tokens:
        how = "file_sizes of the data set"
        fault = Evidence(MIXTURE, f"{found} of {tokens} tokens", how)
        return [fault.judge(requested, False)]
    return rows_check.check_mixture(record, None, requested)


def check_step(trainer: Any, requested: str | None) -> Evidence:
    """Return the evidence "resumed_step": the optimizer steps that were done before this process.

    They are 0 for a new run. Called in the first step, which the trainer counts before it begins.
    """
    steps = int(trainer.global_step) - 1
    loaded = "; a checkpoint was loaded" if trainer.checkpoint_loaded else ""
    evidence = Evidence("resumed_step", steps, f"Trainer.global_step of OLMo-core{loaded}")
    is_requested = str(steps) == requested and (steps == 0 or trainer.checkpoint_loaded)
    return evidence.judge(requested, is_requested)


def check_learnt_answers(loader: Any, requested: Mapping[str, str]) -> list[Evidence]:
    """Return the evidence "train_on" on the tokenised numpy files; see learnt.check_learnt."""
    wanted = requested.get(LEARNT)
    frame = find_frame("numpy_dir", "dcs")
    if wanted is None:
        return []
    if frame is None:
        how = "the folder of the tokenised data was not found"
        return [Evidence(LEARNT, None, how).judge(wanted, None)]
    sources = [config.dataset for config in frame.f_locals["dcs"]]
    trained = read_numpy(Path(frame.f_locals["numpy_dir"]), loader.dataset.dtype)
    return check_learnt(sources, trained, _find_tokenizer(), wanted, requested.get(LIMIT))


def count_ranks() -> int:
    """Return the ranks of torch's process group; 1 without a group."""
    import torch.distributed as dist

    return int(dist.get_world_size()) if process_group_backend() else 1


def _check_ranks(module: Any) -> list[Evidence]:
    how = "torch's process group"
    return [
        Evidence("world_size", count_ranks(), how),
        Evidence("device", module.device.type, "TransformerTrainModule.device"),
        Evidence("backend", process_group_backend(), how),
    ]


def _check_sharding(module: Any) -> Evidence:
    """Return the evidence "sharding": over how many ranks FSDP cuts the parameters, and how many
    copies of them there are.
    """
    parameters = list(module.model.parameters())
    shards = [parameter for parameter in parameters if hasattr(parameter, "device_mesh")]
    if not shards:
        return Evidence("sharding", "none", "no parameter is a shard")
    mesh = shards[0].device_mesh
    names = mesh.mesh_dim_names or ("dp",) * mesh.ndim
    sizes = ", ".join(f"{name} {mesh.size(position)}" for position, name in enumerate(names))
    how = f"{len(shards)} of {len(parameters)} parameters are shards"
    return Evidence("sharding", f"fsdp ({sizes})", how)


def _check_context(module: Any, requested: str | None) -> list[Evidence]:
    """Return the evidence "context_parallel": how many ranks compute a row together; [] where none
    is requested and each rank has rows of its own.
    """
    import torch.distributed as dist

    shared = 1
    if process_group_backend():
        shared = count_ranks() // int(dist.get_world_size(module.dp_process_group))
    if requested is None and shared == 1:
        return []
    config = getattr(module, "_cp_config", None)
    style = getattr(config, "ring", None) or getattr(config, "uly", None)
    how = f"the ranks of a data-parallel rank; {style.load_balancer if style else 'no split'}"
    return [Evidence("context_parallel", shared, how).compare(requested)]


def _check_dtypes(module: Any) -> list[Evidence]:
    policy = _find_policy(module.model)
    computed = getattr(policy, "param_dtype", None)
    stored_as = ",".join(dtypes_by_size(module.model.parameters()))
    if computed is None:
        value = stored_as
        how = "parameters() of the model"
    else:
        value = short_dtype(computed)
        how = "FSDP's mixed precision"
    masters = (p for group in module.optim.param_groups for p in group["params"])
    return [
        Evidence("dtype", value, how),
        Evidence("parameter_dtype", stored_as, "the shards"),
        Evidence(
            "master_dtype", ",".join(dtypes_by_size(masters)), "param_groups of the optimizer"
        ),
    ]


def _find_policy(model: Any) -> Any:
    """Return the mixed precision policy of FSDP's innermost groups; None without FSDP."""
    for part in model.modules():
        state = part._get_fsdp_state() if hasattr(part, "_get_fsdp_state") else None
        policy = getattr(state, "_mp_policy", None)
        if policy is not None:
            return policy
    return None


def _check_packing(module: Any, first: ForwardInputs | None) -> Evidence:
    loader = module.trainer.data_loader
    collator = getattr(loader, "_collator", None)
    dataset = getattr(loader, "dataset", None)
    if "Flattening" in type(collator).__name__ and getattr(collator, "max_seq_length", None):
        value = BINS
        how = f"collator {type(collator).__name__}"
    elif "Packed" in type(dataset).__name__:
        value = BINS
        how = f"data set {type(dataset).__name__}"
    elif collator is not None:
        value = NONE
        how = f"collator {type(collator).__name__}"
    else:
        value = NONE
        how = type(dataset).__name__
    if value == BINS and first is not None and first.documents is None:
        value = NONE
        how += ", but the model does not get document borders"
    return Evidence("packing", value, how, note=describe_first(first))


def _find_backends(module: Any) -> Iterator[Any]:
    for part in module.model.modules():
        backend = getattr(part, "backend", None)
        if backend is not None and type(backend).__name__.endswith("Backend"):
            yield backend


def _check_attention(module: Any, requested: str | None) -> Evidence:
    classes = {type(backend).__name__ for backend in _find_backends(module)}
    names = sorted({_BACKENDS.get(name, name) for name in classes})
    api = sys.modules.get("olmo_core.nn.attention.flash_attn_api")
    uses_torch_kernel = type(getattr(api, "flash_attn_2", None)).__name__ == "TorchFlashAttention"
    how = "the backends of the attention layers"
    note = None
    if uses_torch_kernel and "flash_2" in names:
        note = "flash_2 is torch's own build of the kernel"
    evidence = Evidence("attention", ",".join(names) or None, how, note=note)
    wanted = "sdpa" if requested == "torch" else requested
    return evidence.judge(requested, names == [wanted] if names else None)


def _check_checkpointing(module: Any) -> Evidence:
    """Return the evidence "gradient_checkpointing": wrapped modules, or torch.compile's activation
    budget (olmo_core/train/train_module/transformer/common.py).
    """
    import torch._functorch.config as functorch

    wrapped = sum("CheckpointWrapper" in type(part).__name__ for part in module.model.modules())
    budget = float(functorch.activation_memory_budget)
    compiled = any(part._compiled_call_impl is not None for part in module.model.modules())
    if wrapped:
        value = "true"
        how = f"{wrapped} modules are wrapped"
    elif compiled and budget < 1:
        value = "true"
        how = f"torch.compile's activation memory budget is {budget}"
    else:
        value = "false"
        how = f"no module is wrapped; activation memory budget {budget}, compiled: {compiled}"
    return Evidence("gradient_checkpointing", value, how)


def _find_tokenizer() -> Any:
    """Return the tokenizer of open-instruct's `main(args, tc)`, which is an outer frame."""
    frame = find_frame("tc", "args")
    return None if frame is None else getattr(frame.f_locals["tc"], "tokenizer", None)


def _test_isolation(module: Any, first: ForwardInputs | None) -> Evidence:
    how = (
        "two documents through an attention layer's backend: the first one changed, the second "
        "one compared"
    )
    untested = Evidence("isolation", None, how)
    if first is None or first.documents is None:
        note = "the model does not get document borders"
        return replace(untested, note=note).compare("true")
    backends = list(_find_backends(module))
    if not backends:
        note = "no attention backend was found"
        return replace(untested, note=note).compare("true")
    how = f"{how}; {len(backends)} layers"
    return check_isolation(lambda: any(leaks(backend, module.device) for backend in backends), how)


def leaks(backend: Any, device: Any) -> bool:
    """Test on `backend` itself whether a document changes the output for the next document in its
    row.

    A backend has no parameters. The random number generators keep their state.
    """
    import torch

    generator = torch.Generator(device=device).manual_seed(0)

    def random_heads(heads: int) -> Any:
        shape = (1, 2 * _DOCUMENT, heads, backend.head_dim)
        drawn = torch.randn(shape, generator=generator, device=device, dtype=torch.float32)
        return drawn.to(torch.bfloat16)

    q = random_heads(backend.n_heads)
    k = random_heads(backend.n_kv_heads)
    v = random_heads(backend.n_kv_heads)
    borders = torch.tensor([0, _DOCUMENT, 2 * _DOCUMENT], dtype=torch.int32, device=device)

    def second_document(keys: Any, values: Any) -> Any:
        with torch.no_grad():
            out = backend((q, keys, values), cu_doc_lens=borders, max_doc_len=_DOCUMENT)
        return out.reshape(2 * _DOCUMENT, -1)[_DOCUMENT:].float()

    other_k = k.clone()
    other_k[:, :_DOCUMENT] = -k[:, :_DOCUMENT]
    other_v = v.clone()
    other_v[:, :_DOCUMENT] = 1 - v[:, :_DOCUMENT]
    return not torch.equal(second_document(k, v), second_document(other_k, other_v))


def check_checkpoint(folder: Path, model: Any) -> Evidence:
    """Return the evidence "saved_weights" of a checkpoint of OLMo-core.

    The first rank reads some tensors of it. Its part of a sharded tensor begins where the tensor
    does.
    """
    import torch
    import torch.distributed.checkpoint as dcp
    from olmo_core.distributed.checkpoint.filesystem import RemoteFileSystemReader

    live = dict(model.named_parameters())
    names = list(live)[:: -(-len(live) // _READ_BACK)]
    others = []
    for name in names:
        saved = torch.empty(live[name].shape, dtype=live[name].dtype)
        here = stored(live[name]).cpu()
        reader = RemoteFileSystemReader(folder / "model_and_optim")
        dcp.load({"model": {name: saved}}, storage_reader=reader, no_dist=True)
        if not torch.equal(saved[tuple(slice(size) for size in here.shape)], here):
            others.append(name)
    how = f"{len(names)} tensors of {folder.name}/, and every weight of the first rank"
    return judge_saved(live, len(names), others, how)


def check_export(folder: Path, model: Any) -> Evidence:
    """Return the evidence "saved_weights" of a model of transformers that open-instruct made of
    OLMo-core's weights.

    It renames, splits and joins tensors, which keeps the sum of all bits: that is compared with the
    weights that were gathered from the ranks (olmo_core_utils.py, `save_state_dict_as_hf`).
    """
    evidence = check_saved(folder, model, None)
    frame = find_frame("converted", "state_dict")
    gathered = {} if frame is None else frame.f_locals["state_dict"]
    if evidence.value != "trained" or _sum_bits(gathered) == _sum_bits(model.state_dict()):
        return evidence
    changed = replace(evidence, value="not those in memory", note="the export changed them")
    return changed.judge("trained", False)


def _sum_bits(weights: Mapping[str, Any]) -> int:
    return sum(int(checksum(weight, 0.0)) for weight in weights.values())
