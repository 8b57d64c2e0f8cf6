"""Tracking and pushes: the flags that each trainer gets, what is refused, and that no plan's name
changes.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from launch.errors import UserError
from launch.planning.build import build_plan
from launch.planning.plan import Plan
from launch.planning.trackers import TRACKERS
from launch.redact import Redactor
from launch.upstream.pin.lock import locked_schema
from launch.upstream.rules.values import check_values
from tests.conftest import composed, fixed_machine

TRAINERS = {
    "finetune": "sft",
    "trl_sft": "sft",
    "olmo_core_finetune": "sft",
    "dpo_tune_cache": "dpo",
    "dpo": "dpo",
    "trl_dpo": "dpo",
    "trl_kto": "kto",
    "reward_modeling": "rm",
}


def planned(trainer: str, *overrides: str, **environ: str) -> Plan:
    stage = [f"stage={TRAINERS[trainer]}", f"trainer={trainer}", "gpus=2"]
    if trainer in ("olmo_core_finetune", "dpo"):
        stage += ["model=olmo2_1b", "recipe.per_device_batch_size=1"]
    if trainer == "olmo_core_finetune":
        stage.append("recipe.packing=bins")
    if trainer.startswith("trl"):
        stage.append("recipe.chat_template=null")
    return build_plan(composed(*stage, *overrides), replace(fixed_machine(), environ=environ))


def refusal(trainer: str, *overrides: str, **environ: str) -> str:
    with pytest.raises(UserError) as refused:
        planned(trainer, *overrides, **environ)
    return refused.value.problems[0].id


def test_tensorboard_is_an_extra_that_the_plan_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)  # as if it were not installed
    with pytest.raises(UserError) as refused:
        planned("finetune", "tracking=tensorboard")
    (problem,) = refused.value.problems
    assert problem.id == "no_tensorboard"
    assert f"{sys.executable} -m pip install -e '.[tensorboard]' -c constraints.txt" in str(
        problem.cure
    )


def values(plan: Plan) -> dict[str, object]:
    return {name: flag.value for name, flag in plan.flags.items()}


def test_finetune_is_told_everything_that_it_needs() -> None:
    flags = values(
        planned(
            "finetune", "tracking=wandb", "tracking_entity=lab", "tracking_project=tulu", "name=one"
        )
    )
    assert flags["with_tracking"] is True and flags["report_to"] == ["wandb"]
    assert (flags["wandb_project_name"], flags["wandb_entity"], flags["exp_name"]) == (
        "tulu",
        "lab",
        "sft-one",
    )


@pytest.mark.parametrize("trainer", TRAINERS)
@pytest.mark.parametrize("tracking", ["wandb", "wandb_offline", "tensorboard"])
def test_every_trainer_takes_every_tracker_in_flags_that_it_has(
    trainer: str, tracking: str
) -> None:
    if tracking == "wandb_offline" and trainer in ("dpo", "olmo_core_finetune"):
        assert refusal(trainer, "tracking=wandb_offline") == "tracking_unsupported"
        return
    plan = planned(trainer, f"tracking={tracking}", "tracking_entity=lab")
    assert not check_values(locked_schema(trainer), values(plan), complete=True)
    launcher_flags = {
        name for name, flag in plan.flags.items() if flag.provenance.origin == "launcher"
    }
    if tracking == "tensorboard":
        assert "WANDB_MODE" not in plan.env and values(plan) == values(planned(trainer))
    else:
        assert plan.env["WANDB_MODE"] == ("online" if tracking == "wandb" else "offline")
        assert plan.env["WANDB_DIR"] == str(plan.folder)
        assert {"with_tracking", "wandb_entity"} <= launcher_flags or plan.env[
            "WANDB_ENTITY"
        ] == "lab"


@pytest.mark.parametrize("trainer", TRAINERS)
def test_what_is_tracked_or_pushed_is_the_same_plan(trainer: str) -> None:
    overrides = ["tracking=wandb", "tracking_entity=lab"] + (
        [] if trainer == "olmo_core_finetune" else ["hub.push=me/model"]
    )
    assert planned(trainer, *overrides).identity == planned(trainer).identity


def test_an_entity_is_asked_for_where_upstream_would_ask_the_network() -> None:
    assert refusal("finetune", "tracking=wandb") == "no_tracking_entity"
    assert (
        values(planned("finetune", "tracking=wandb", WANDB_ENTITY="mine"))["wandb_entity"] == "mine"
    )
    assert values(planned("finetune", "tracking=wandb_offline"))["wandb_entity"] == ""
    assert "WANDB_ENTITY" not in planned("trl_sft", "tracking=wandb").env
    assert (
        refusal("olmo_core_finetune", "tracking=wandb_offline", "tracking_entity=lab")
        == "tracking_unsupported"
    )


@pytest.mark.parametrize("trainer", [name for name in TRAINERS if name != "olmo_core_finetune"])
def test_a_push_names_the_owner_once(trainer: str) -> None:
    flags = values(planned(trainer, "hub.push=lab/model"))
    assert flags["push_to_hub"] is True
    if trainer.startswith("trl"):
        assert (flags["hub_model_id"], flags["hub_strategy"], flags["hub_private_repo"]) == (
            "lab/model",
            "end",
            True,
        )
    else:
        assert (flags["hf_entity"], flags["hf_repo_id"], flags["hf_repo_revision"]) == (
            "lab",
            "model",
            "main",
        )
    assert not check_values(locked_schema(trainer), flags, complete=True)


@pytest.mark.parametrize("name", ["model", "a/b/c", "/x", "x/", "a b/c", "a/b--c", "a/" + "b" * 96])
def test_a_name_that_is_no_hub_name_is_refused(name: str) -> None:
    assert refusal("finetune", f"hub.push='{name}'") == "bad_hub_name"


def test_flags_that_the_key_owns_are_answered_with_the_key() -> None:
    assert refusal("olmo_core_finetune", "hub.push=a/b") == "push_unsupported"
    assert refusal("finetune", "flags.with_tracking=true") == "owned_flag"
    assert (
        refusal("finetune", "tracking=wandb_offline", "flags.report_to=[tensorboard]")
        == "owned_flag"
    )
    assert refusal("finetune", "flags.push_to_hub=true") == "owned_flag"
    assert refusal("finetune", "hub.push=a/b", "flags.hf_repo_id=c") == "owned_flag"
    assert refusal("finetune", "hub.push=a/b", "flags.hf_repo_id=a/b") == "refused_value"
    revision = planned("finetune", "hub.push=a/b", "flags.hf_repo_revision=v2")
    assert (
        revision.flags["hf_repo_revision"].value,
        revision.flags["hf_repo_revision"].provenance.origin,
    ) == (
        "v2",
        "override",
    )
    assert values(planned("finetune", "flags.push_to_hub=false"))["push_to_hub"] is False


def test_a_push_of_checkpoints_is_said() -> None:
    overrides = ["hub.push=a/b", "recipe.checkpoint_steps=100"]
    assert "push_takes_checkpoints" in [
        warning.id for warning in planned("dpo_tune_cache", *overrides).warnings
    ]
    assert "push_takes_checkpoints" not in [
        warning.id for warning in planned("finetune", *overrides).warnings
    ]


def test_the_cache_pass_tracks_nothing() -> None:
    flags = values(planned("finetune", "tracking=wandb_offline", "hub.push=a/b", "cache_only=true"))
    assert "with_tracking" not in flags and flags["push_to_hub"] is False


@pytest.mark.parametrize(
    ("tracker", "flags", "environ"),
    [
        (
            "trackio",
            {"report_to": "trackio", "project": "tulu", "run_name": "sft-one"},
            {"LAUNCH_TRACKER_GROUP": "sft"},
        ),
        (
            "mlflow",
            {"report_to": "mlflow", "run_name": "sft-one"},
            {"MLFLOW_EXPERIMENT_NAME": "tulu", "MLFLOW_TAGS": '{"launch.stage": "sft"}'},
        ),
        (
            "comet_ml_offline",
            {"report_to": "comet_ml"},
            {"COMET_PROJECT_NAME": "tulu", "COMET_WORKSPACE": "lab", "COMET_START_ONLINE": "0"},
        ),
        (
            "swanlab_offline",
            {"report_to": "swanlab"},
            {"SWANLAB_PROJECT": "tulu", "SWANLAB_WORKSPACE": "lab", "SWANLAB_MODE": "offline"},
        ),
        (
            "clearml_offline",
            {"report_to": "clearml"},
            {"CLEARML_PROJECT": "tulu", "CLEARML_TASK": "sft-one", "CLEARML_OFFLINE_MODE": "1"},
        ),
        ("dvclive", {"report_to": "dvclive", "run_name": "sft-one"}, {}),
        ("wandb", {"report_to": "wandb"}, {"WANDB_RUN_GROUP": "sft"}),
    ],
)
def test_a_tracker_of_transformers_gets_its_own_terms(
    tracker: str, flags: dict[str, object], environ: dict[str, str]
) -> None:
    job = (f"tracking={tracker}", "tracking_project=tulu", "tracking_entity=lab", "name=one")
    plan = planned("trl_sft", *job)
    assert flags.items() <= values(plan).items()
    assert not check_values(locked_schema("trl_sft"), values(plan), complete=True)
    assert environ.items() <= plan.env.items()
    assert plan.env["LAUNCH_TRACKER_FILE"] == str(plan.folder / "tracker.json")
    assert plan.identity == planned("trl_sft", "name=one").identity


@pytest.mark.parametrize(
    ("trainer", "tracking", "variable"),
    [
        ("trl_sft", "wandb", "WANDB_PROJECT"),
        ("trl_sft", "mlflow", "MLFLOW_EXPERIMENT_NAME"),
        ("finetune", "wandb", "WANDB_PROJECT"),
    ],
)
def test_the_project_is_the_keys_or_that_of_the_trackers_own_variable(
    trainer: str, tracking: str, variable: str
) -> None:
    def project(*key: str, **environ: str) -> object:
        plan = planned(trainer, f"tracking={tracking}", "tracking_entity=lab", *key, **environ)
        return plan.env.get(variable) or values(plan)["wandb_project_name"]

    assert project() == "launch"
    assert project(**{variable: "thesis"}) == "thesis"
    assert project("tracking_project=tulu", **{variable: "thesis"}) == "tulu"


@pytest.mark.parametrize("tracker", ["comet_ml", "swanlab", "clearml"])
def test_a_tracker_that_is_online_keeps_a_mode_of_the_users(tracker: str) -> None:
    names = {"COMET_START_ONLINE", "SWANLAB_MODE", "CLEARML_OFFLINE_MODE"}
    assert not names & planned("trl_sft", f"tracking={tracker}").env.keys()


def test_mlflow_writes_beside_the_runs_or_to_the_users_server() -> None:
    plan = planned("trl_sft", "tracking=mlflow")
    assert plan.env["MLFLOW_TRACKING_URI"] == f"sqlite:///{plan.runs / 'mlflow.db'}"
    served = planned("trl_sft", "tracking=mlflow", MLFLOW_TRACKING_URI="http://server")
    assert "MLFLOW_TRACKING_URI" not in served.env


@pytest.mark.parametrize("tracker", ["trackio", "mlflow"])
def test_offline_a_server_of_the_users_is_not_used(tracker: str) -> None:
    servers = {"TRACKIO_SPACE_ID": "me/space", "TRACKIO_SERVER_URL": "http://server"}
    servers["MLFLOW_TRACKING_URI"] = "http://server"
    online = planned("trl_sft", f"tracking={tracker}", **servers)
    assert not servers.keys() & {*online.unset, *online.env}
    offline = planned("trl_sft", f"tracking={tracker}_offline", **servers)
    assert values(offline) == values(online)
    if tracker == "mlflow":
        assert offline.env["MLFLOW_TRACKING_URI"] == f"sqlite:///{offline.runs / 'mlflow.db'}"
    else:
        assert {"TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL"} <= set(offline.unset)


def test_every_tracker_of_transformers_is_a_value_of_the_key() -> None:
    transformers = importlib.util.find_spec("transformers")
    if transformers is None or transformers.origin is None:
        pytest.skip("transformers is not installed")
    source = Path(transformers.origin).with_name("integrations") / "integration_utils.py"
    (names,) = re.findall(r"^INTEGRATION_TO_CALLBACK = {$(.*?)^}$", source.read_text(), re.M | re.S)
    known = {tracker.report_to for tracker in TRACKERS.values()} | {"tensorboard"}
    assert set(re.findall(r'"(\w+)":', names)) == known


@pytest.mark.parametrize(
    ("tracker", "variable"),
    [
        ("dagshub", "MLFLOW_TRACKING_URI"),
        ("neptune", "NEPTUNE_API_TOKEN"),
        ("kubeflow", "KUBEFLOW_TRAINER_SERVER_URL"),
    ],
)
def test_a_tracker_that_ends_a_training_without_its_variable_is_refused(
    tracker: str, variable: str
) -> None:
    assert refusal("trl_sft", f"tracking={tracker}") == "no_tracker_variable"
    plan = planned("trl_sft", f"tracking={tracker}", **{variable: "https://host/me/repo.mlflow"})
    assert values(plan)["report_to"] == tracker
    allowed = planned("trl_sft", f"tracking={tracker}", "allow=[no_tracker_variable]")
    assert "no_tracker_variable" in [warning.id for warning in allowed.warnings]


@pytest.mark.parametrize(
    ("trainer", "flag"),
    [
        ("finetune", "exp_name"),
        ("dpo_tune_cache", "exp_name"),
        ("dpo", "run_name"),
        ("olmo_core_finetune", "run_name"),
    ],
)
def test_open_instructs_trainers_pass_the_runs_name_on(trainer: str, flag: str) -> None:
    plan = planned(trainer, "tracking=wandb", "tracking_entity=lab", "name=one")
    assert values(plan)[flag] == f"{TRAINERS[trainer]}-one"


def test_open_instructs_trainers_have_a_group_and_a_place_in_wandb() -> None:
    plan = planned("finetune", "tracking=wandb_offline", "name=one")
    assert plan.env["WANDB_RUN_GROUP"] == "sft"
    assert plan.env["LAUNCH_TRACKER_FILE"] == str(plan.folder / "tracker.json")
    assert plan.identity == planned("finetune", "name=one").identity


@pytest.mark.parametrize("trainer", [name for name in TRAINERS if not name.startswith("trl")])
def test_open_instruct_passes_no_other_tracker_on(trainer: str) -> None:
    assert refusal(trainer, "tracking=mlflow", "tracking_entity=lab") == "tracking_unsupported"


@pytest.mark.parametrize(
    "name",
    [
        "COMET_API_KEY",
        "SWANLAB_API_KEY",
        "CLEARML_API_SECRET_KEY",
        "CLEARML_API_ACCESS_KEY",
        "MLFLOW_TRACKING_PASSWORD",
        "MLFLOW_TRACKING_TOKEN",
        "NEPTUNE_API_TOKEN",
        "TRACKIO_WRITE_TOKEN",
        "DAGSHUB_USER_TOKEN",
    ],
)
def test_the_secrets_of_trackers_are_masked(name: str) -> None:
    secret = "q7Xw93kd02Lm"
    masked = Redactor([(name, secret)]).redact_text(f"the server refused {secret}")
    assert "refused" in masked and secret not in masked
