"""What a setting that is refuted or unproven means, and what to do: sentences by its name.

`{requested}` and `{value}` stand for what the plan requests and for what is in effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Wording(NamedTuple):
    """The sentences about one setting, without the full stop."""

    refuted: str
    unproven: str
    cure: str


_RANKS = "check that the ranks can reach each other: host names and cluster.interface"
_FLAGS = "look for a flag, a patched library or an accelerate file that sets another value"
_KERNELS = "run `launch check`, which names the packages that the kernels need"
_RATES = "look for a flag or a library that changes the schedule"
_UPDATES = "look at the learning rate, the frozen weights and the loss of the first steps"
_REPORT = "look at the trainer's log, and report it if nothing there explains it"
_RESTART = "start the run again with restart=true"
_DATA = "run `launch preview`, which shows the rows as the trainer sees them"


SENTENCES: Mapping[str, Wording] = {
    "train_on": Wording(
        "the labels should learn {requested}, and they learn {value}",
        "nothing shows which answers the labels learn",
        _DATA,
    ),
    "global_tokens": Wording(
        "a step should have {requested}, and the loader deals {value}",
        "nothing shows that a step has {requested}",
        "look for a flag that sets another row length, batch or accumulation",
    ),
    "context_parallel": Wording(
        "{requested} ranks should compute a row together, and in the trainer {value} do",
        "nothing shows that {requested} ranks compute a row together",
        "look for another flags.cp_degree, or run `launch check`",
    ),
    "distributed": Wording(
        "the ranks should work together as {requested}, and accelerate set up {value}",
        "nothing shows that the ranks work together as {requested}",
        _RANKS,
    ),
    "world_size": Wording(
        "the plan has {requested} ranks, and the trainer counts {value}",
        "nothing shows that the trainer counts {requested} ranks",
        _RANKS,
    ),
    "zero_stage": Wording(
        "the model should be shared by ZeRO stage {requested}, and DeepSpeed runs stage {value}",
        "nothing shows that DeepSpeed runs stage {requested}",
        _FLAGS,
    ),
    "device": Wording(
        "the plan trains on {requested}, and the trainer uses {value}",
        "nothing shows that the trainer uses {requested}",
        "run `launch check`, or set device={value}",
    ),
    "liger": Wording(
        "Liger's kernels {requested} should be in use, and these are: {value}",
        "nothing shows that Liger's kernels {requested} are in use",
        "set recipe.liger=false, or install a Liger that has kernels for this model",
    ),
    "packing": Wording(
        "the rows should be packed as {requested}, and the trainer's packing is {value}",
        "nothing shows that the rows are packed as {requested}",
        "set recipe.packing={value}, or run `launch check` for the kernel that packing needs",
    ),
    "isolation": Wording(
        "attention leaks from one packed document into the next",
        "nothing shows that packed documents do not see each other",
        "install flash-attn, or set recipe.packing=none",
    ),
    "global_batch": Wording(
        "a step should have {requested}, and the first one had {value}",
        "nothing shows that a step has {requested}",
        _FLAGS,
    ),
    "balanced": Wording(
        "the ranks' micro batches should be balanced by tokens, and they are not",
        "nothing shows that the ranks' micro batches are balanced by tokens",
        "leave recipe.balanced out, or report it",
    ),
    "loss_averaging": Wording(
        "the loss should be averaged by {requested}, and the first one was by {value}",
        "nothing shows that the loss is averaged by {requested}",
        "set recipe.loss_averaging to what the trainer does",
    ),
    "attention": Wording(
        "the layers should compute attention by {requested}, and they call {value}",
        "nothing shows that the layers compute attention by {requested}",
        _KERNELS,
    ),
    "grad_clip": Wording(
        "gradients should be clipped at a norm of {requested}, and they are clipped at {value}",
        "nothing shows that gradients are clipped at a norm of {requested}",
        _FLAGS,
    ),
    "dtype": Wording(
        "the model should compute in {requested}, and it computes in {value}",
        "nothing shows that the model computes in {requested}",
        "set recipe.precision to what the trainer does, or look for a flag that sets the type",
    ),
    "gradient_checkpointing": Wording(
        "gradient_checkpointing={requested} was set, and the layers have {value}",
        "nothing shows that gradient_checkpointing={requested} is in effect",
        _FLAGS,
    ),
    "chat_template": Wording(
        "the chats should be written by the template {requested}, and the tokenizer has {value}",
        "nothing shows that the chats are written by the template {requested}",
        "set recipe.chat_template to the template that you mean",
    ),
    "lora": Wording(
        "an adapter of rank {requested} should be trained, and the trainer has {value}",
        "nothing shows that an adapter of rank {requested} is trained",
        _FLAGS,
    ),
    "lora_alpha": Wording(
        "the adapter's alpha should be {requested}, and it is {value}",
        "nothing shows that the adapter's alpha is {requested}",
        _FLAGS,
    ),
    "lora_dropout": Wording(
        "the adapter's dropout should be {requested}, and it is {value}",
        "nothing shows that the adapter's dropout is {requested}",
        _FLAGS,
    ),
    "lora_targets": Wording(
        "the layers {requested} should have an adapter, and these have one: {value}",
        "nothing shows that the layers {requested} have an adapter",
        "set recipe.lora.targets to names that the model's layers have",
    ),
    "lora_start": Wording(
        "the adapter should start {requested}, and it started {value}",
        "nothing shows that the adapter starts {requested}",
        "look at recipe.lora.start and at the model that the run starts from",
    ),
    "lora_dora": Wording(
        "all adapted layers should have DoRA's magnitudes ({requested}), and the model has: {value}",
        "nothing shows that the adapted layers have DoRA's magnitudes",
        _FLAGS,
    ),
    "lora_rslora": Wording(
        "the adapter should be scaled as rsLoRA's ({requested}), and that is {value}",
        "nothing shows that the adapter is scaled as rsLoRA's",
        _FLAGS,
    ),
    "lora_init": Wording(
        "the adapter should start as {requested}, and it starts as {value}",
        "nothing shows that the adapter starts as {requested}",
        _FLAGS,
    ),
    "lora_modules": Wording(
        "the modules {requested} should be trained as a whole, and these are: {value}",
        "nothing shows that the modules {requested} are trained as a whole",
        "set recipe.lora.modules_to_save to names that the model's modules have",
    ),
    "lora_parameters": Wording(
        "the parameters {requested} should have an adapter, and these have one: {value}",
        "nothing shows that the parameters {requested} have an adapter",
        "set recipe.lora.target_parameters to names that the model's parameters end with",
    ),
    "base_dtype": Wording(
        "the frozen weights should be held as {requested}, and they are {value}",
        "nothing shows that the frozen weights are held as {requested}",
        "run `launch check`, which looks for bitsandbytes, or leave recipe.lora.quantize out",
    ),
    "weights": Wording(
        "the weights should be those of the {requested}, and the trainer has {value}",
        "nothing shows that the weights are those of the {requested}",
        "name a complete model of the same architecture in model.path",
    ),
    "architecture": Wording(
        "the model should compute as its {requested} says, with which it is saved, and it has "
        "{value}",
        "nothing shows that the model computes as its {requested} says",
        "set flags.config_name and flags.rope_scaling_factor to what the model's config.json has",
    ),
    "first_update": Wording(
        "the first updates should change the {requested} alone, and they changed {value}",
        "no update showed that the {requested} are trained",
        _UPDATES,
    ),
    "gradients": Wording(
        "the gradients should have a norm {requested}, and the largest is {value}",
        "no step showed gradients with a norm {requested}",
        _UPDATES,
    ),
    "last_update": Wording(
        "the last update of the weights should be {requested}, and it is {value}",
        "nothing shows that the last update of the weights is {requested}",
        "do not use this model: resume from a checkpoint before it, with a lower learning rate",
    ),
    "saved_weights": Wording(
        "the saved weights should be the {requested} ones, and they are {value}",
        "nothing shows that the saved weights are the {requested} ones",
        "do not use this model before you know why",
    ),
    "movable_weights": Wording(
        "the schedule's steps should move {requested} of the weights, and they can move {value}",
        "nothing shows that the steps of the schedule move {requested} of the weights",
        "raise recipe.learning_rate, or train in fp32",
    ),
    "schedule_peak": Wording(
        "the schedule should reach a rate of {requested}, and its highest is {value}",
        "nothing shows that the schedule reaches a rate of {requested}",
        "lower recipe.warmup_ratio, or train more steps",
    ),
    "learning_rate": Wording(
        "the learning rate should be {requested}, and the optimizer has {value}",
        "no step showed the learning rate {requested}",
        _RATES,
    ),
    "lr_scheduler": Wording(
        "the rate should follow the schedule {requested}, and the optimizer has {value}",
        "no step showed the schedule {requested}",
        _RATES,
    ),
    "warmup_ratio": Wording(
        "the rate should warm up over {requested} of the steps, and the optimizer has {value}",
        "no step showed a warm-up over {requested} of the steps",
        _RATES,
    ),
    "weight_decay": Wording(
        "the weight decay should be {requested}, and the optimizer has {value}",
        "nothing shows that the weight decay is {requested}",
        _FLAGS,
    ),
    "optimizer": Wording(
        "the optimizer should be {requested}, and it is {value}",
        "no step showed that the optimizer is {requested}",
        _FLAGS,
    ),
    "adam_betas": Wording(
        "Adam's betas should be {requested}, and the optimizer has {value}",
        "nothing shows that Adam's betas are {requested}",
        _FLAGS,
    ),
    "adam_epsilon": Wording(
        "Adam's epsilon should be {requested}, and the optimizer has {value}",
        "nothing shows that Adam's epsilon is {requested}",
        _FLAGS,
    ),
    "epochs": Wording(
        "recipe.epochs={requested} was set, and the trainer plans {value}",
        "nothing shows that the trainer plans recipe.epochs={requested}",
        "look for rows that were dropped or added, and for another batch",
    ),
    "max_steps": Wording(
        "the trainer should plan {requested} as its number of steps, and it plans {value}",
        "nothing shows that the trainer plans {requested} as its number of steps",
        _FLAGS,
    ),
    "seed": Wording(
        "the rows should come in the order of seed {requested}, and they come in that of {value}",
        "nothing shows that the rows come in the order of seed {requested}",
        _FLAGS,
    ),
    "max_seq_length": Wording(
        "a row should be truncated at {requested} tokens, and the trainer has {value}",
        "nothing shows that a row is truncated at {requested} tokens",
        _DATA,
    ),
    "mixture": Wording(
        "the data sets should be mixed as {requested}, and the trainer has {value}",
        "nothing shows that the data sets are mixed as {requested}",
        _DATA,
    ),
    "beta": Wording(
        "the loss's beta should be {requested}, and the loss uses {value}",
        "nothing shows that the loss's beta is {requested}",
        _FLAGS,
    ),
    "desirable_weight": Wording(
        "good answers should weigh {requested}, and the loss weighs them {value}",
        "nothing shows that good answers weigh {requested}",
        _FLAGS,
    ),
    "undesirable_weight": Wording(
        "bad answers should weigh {requested}, and the loss weighs them {value}",
        "nothing shows that bad answers weigh {requested}",
        _FLAGS,
    ),
    "loss": Wording(
        "the loss should be {requested}, and the trainer computes {value}",
        "nothing shows that the loss is {requested}",
        _FLAGS,
    ),
    "first_loss": Wording(
        "the first loss should be {requested}, that of a policy like its reference, and is {value}",
        "nothing shows that the policy starts as the reference",
        "remove cached reference log-probabilities, and look at model.path and at the precision",
    ),
    "temperature": Wording(
        "the answers should be sampled at a temperature of {requested}, and TRL samples at {value}",
        "nothing shows that the answers are sampled at a temperature of {requested}",
        _FLAGS,
    ),
    "kl_beta": Wording(
        "the KL penalty should weigh {requested}, and TRL's loss reads {value}",
        "nothing shows that the KL penalty weighs {requested}",
        _FLAGS,
    ),
    "clip_range": Wording(
        "the policy ratio should be clipped by {requested}, and TRL's loss reads {value}",
        "nothing shows that the policy ratio is clipped by {requested}",
        _FLAGS,
    ),
    "response_length": Wording(
        "an answer should have at most {requested} tokens, and TRL samples up to {value}",
        "nothing shows that an answer has at most {requested} tokens",
        _FLAGS,
    ),
    "resumed_step": Wording(
        "the run should go on after step {requested}, and the trainer is at step {value}",
        "nothing shows that the run goes on after step {requested}",
        _RESTART,
    ),
    "reward_variance": Wording(
        "the answers to a prompt should earn different rewards, and those of {value} do, so there is "
        "nothing to learn",
        "nothing shows that the answers to a prompt earn different rewards",
        "start from a model that SFT has taught to earn some (`new --model RUN`), give partial credit "
        "in the reward function, or take easier prompts",
    ),
    "complete_answers": Wording(
        "{requested} of the start model's answers should end by themselves, and {value} do",
        "nothing shows that the start model's answers end by themselves",
        "raise recipe.response_length, or start from a model that was trained to end its answers",
    ),
    "rewards": Wording(
        "the rewards should be the verifier's ({requested}), and the trainer used {value}",
        "nothing shows that the rewards are the verifier's",
        "look at the reward function: it should return the same reward for the same answer",
    ),
    "samples_per_prompt": Wording(
        "each prompt should get {requested} answers, and it got {value}",
        "no step showed {requested} answers to each prompt",
        _FLAGS,
    ),
    "reference": Wording(
        "the reference should be {requested}, and it is {value}",
        "no step showed that the reference is {requested}",
        "look at model.path and at the flags of the reference model",
    ),
    "sampler_weights": Wording(
        "vLLM should sample with {requested} weights, and its weights are {value}",
        "no step showed that vLLM samples with {requested} weights",
        "take recipe.generation=transformers, or the vLLM that `launch check` accepts",
    ),
}
_OTHER = Wording(
    "the run requested {requested} of this setting, and the trainer has {value}",
    "nothing shows that {requested} of this setting is in effect",
    _REPORT,
)


def wording_of(what: str) -> Wording:
    """Return the sentences about a setting; general ones for a name that has none of its own."""
    return SENTENCES.get(what, _OTHER)
