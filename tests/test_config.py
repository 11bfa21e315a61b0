"""The TOML file: what is right comes back the same, what is wrong is named in one line."""

import tomllib

import pytest
import tomli_w
from hypothesis import given, settings
from hypothesis import strategies as st

from fedproof.config import Config, load_config, parse_config
from fedproof.mechanisms import (
    Everyone,
    FedAvg,
    FixedSize,
    InstanceFedAvg,
    InstanceFedSGD,
    Median,
    PerLayer,
    Poisson,
    Quantile,
    UserFedAvg,
)
from fedproof.threat import Relation

MINIMAL = "[mechanism]\ncohort = 20\n[data]\nusers = 200\n"


def parse(text, *overrides):
    return parse_config(text, "test.toml", overrides)


def test_one_model_is_enough_where_nothing_is_estimated():
    assert parse(MINIMAL, "mechanism.kind=fedavg", "ensemble.replicas=1").ensemble.replicas == 1


def test_every_default_is_written_back():
    config = parse(MINIMAL)
    assert parse(config.to_toml()) == config
    assert "learning_rate" in config.to_toml()
    assert config.certificate.method == "margin"


@settings(derandomize=True, max_examples=50)
@given(
    cohort=st.integers(1, 50),
    noise=st.floats(0.01, 100),
    clip=st.sampled_from(["flat", "per-layer", "median", "per-layer-median", "quantile"]),
    relation=st.sampled_from(["join", "replace"]),
)
def test_configurations_survive_the_file(cohort, noise, clip, relation):
    config = parse(
        MINIMAL,
        f"mechanism.cohort={cohort}",
        f"mechanism.noise_multiplier={noise!r}",
        f"mechanism.clip={clip}",
        f"threat.relation={relation}",
    )
    assert parse(config.to_toml()) == config


def test_whole_numbers_are_welcome_where_floats_are_meant():
    assert parse(MINIMAL, "mechanism.noise_multiplier=2").mechanism.noise_multiplier == 2.0


def test_the_fingerprint_changes_with_every_key():
    config = parse(MINIMAL)
    assert config.fingerprint() == parse(MINIMAL).fingerprint()
    assert config.fingerprint() != parse(MINIMAL, "ensemble.seed=1").fingerprint()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[mechanism]\nchort = 20", "mechanism.chort is not a known key; did you mean cohort?"),
        ("[mechansm]", "mechansm is not a known key; did you mean mechanism?"),
        ("[mechanism]\nnoise = 1", "did you mean noise_multiplier?"),
        ("[mechanism]\ncohort = 'many'", "mechanism.cohort = 'many': input should be a valid integer"),
        ("[mechanism]\ncohort = true", "mechanism.cohort = True"),
        ("[mechanism]\ncohort = 0", "mechanism.cohort = 0: input should be greater than or equal to 1"),
        (
            "[mechanism]\ncohort = 20\n[data]\nusers = 10",
            "mechanism.cohort = 20 must be at most data.users = 10",
        ),
        ("[mechanism]\ncohort = 2\nnoise_multiplier = -1", "mechanism.noise_multiplier = -1.0"),
        ("[mechanism]\ncohort = 2\nnoise_multiplier = nan", "mechanism.noise_multiplier = nan"),
        ("[mechanism]\ncohort = 2\nnoise_multiplier = 0", "noise_multiplier = 0 must be positive"),
        ("[mechanism]\ncohort = 2\ndelta = 1.0", "mechanism.delta = 1.0: input should be less than 1"),
        ("[mechanism]\ncohort = 2\ndelta = 0.0", "mechanism.delta = 0.0: input should be greater than 0"),
        (
            "[mechanism]\ncohort = 2\nkind = 'sgd'",
            "mechanism.kind = 'sgd' must be one of 'user-fedavg', 'instance-fedsgd'",
        ),
        ("[mechanism]\ncohort = 2\n[threat]\nunit = 'instance'", "threat.unit = 'instance' must be 'user'"),
        ("[mechanism]\ncohort = 2\n[certificate]\nmethod = 'magic'", "certificate.method = 'magic'"),
        ("", "mechanism.cohort is missing: sampling = 'poisson' needs it"),
        ("[mechanism]\nkind = 'instance-fedavg'\nsampling = 'none'", "local_steps is missing"),
        (f"{MINIMAL}[ensemble]\nreplicas = 1", "ensemble.replicas = 1 must be at least 2: one model does"),
        ("data = 3", "data = 3"),
        ("x = [", "not valid TOML"),
    ],
)
def test_what_is_wrong_is_named_in_one_line(text, message):
    with pytest.raises(ValueError, match=r"test\.toml: ") as caught:
        parse(text)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("override", ["cohort=3", "mechanism.cohort", "=3", ".x=1"])
def test_overrides_must_look_like_overrides(override):
    with pytest.raises(ValueError, match=r"must look like section\.key=value"):
        parse(MINIMAL, override)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"nowhere\.toml: there is no such file"):
        load_config(tmp_path / "nowhere.toml")


def test_a_file_that_is_no_text_is_named(tmp_path):
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match=r"binary\.toml: cannot be read"):
        load_config(tmp_path / "binary.toml")


def build(*overrides) -> object:
    return parse(MINIMAL, *overrides).build_mechanism(user_sizes=[60, 50, 100], num_layers=4)


def test_mechanisms_are_what_the_file_says():
    small = "mechanism.cohort=2"
    noise = {"noise_multiplier": 1.0, "clip_norm": 1.0, "population": 200}
    poisson = Poisson(probability=2 / 200)
    assert build(small) == UserFedAvg(rounds=1, sampling=poisson, **noise)
    assert build(small, "mechanism.sampling=fixed").sampling == FixedSize(cohort=2, users=3)
    assert build("mechanism.sampling=none").sampling == Everyone()
    assert build(small, "mechanism.clip=per-layer").clipping == PerLayer(num_layers=4)
    assert build(small, "mechanism.clip=median").clipping == Median()
    assert isinstance(build(small, "mechanism.clip=quantile").clipping, Quantile)
    assert build(small, "mechanism.kind=fedavg") == FedAvg(rounds=1, sampling=poisson, population=200)


def test_a_joining_user_changes_nobodys_chance_and_no_divisor():
    rates = ("mechanism.cohort=20", "mechanism.population=400")
    config = parse(MINIMAL, *rates)
    few, many = (config.build_mechanism(user_sizes=[3] * n, num_layers=1) for n in (200, 260))
    assert few == many
    assert few.sampling == Poisson(probability=0.05)
    assert few.divisor(200) == few.divisor(260) == 20
    declared = parse("[mechanism]\nsampling_probability = 0.25\npopulation = 8")
    assert declared.build_mechanism(user_sizes=[1] * 5, num_layers=1).divisor(5) == 2


def test_a_population_smaller_than_the_data_is_refused():
    with pytest.raises(
        ValueError, match=r"mechanism\.population = 2 must be at least 3, the number of users"
    ):
        build("mechanism.cohort=1", "mechanism.population=2", "data.users=3")


def test_a_cohort_without_a_population_is_no_rate():
    config = parse("[mechanism]\ncohort = 2\n[data]\nname = 'leaf/femnist'")
    with pytest.raises(ValueError, match=r"mechanism\.cohort = 2 needs mechanism\.population, the declared"):
        config.build_mechanism(user_sizes=[1, 2, 3], num_layers=1)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["mechanism.sampling_probability=0.1"], "say the same thing twice"),
        (
            ["mechanism.batch_probability=0.1"],
            "belongs to kind = 'instance-fedsgd' or 'instance-fedavg', not 'user-fedavg'",
        ),
        (
            ["mechanism.kind=partition", "mechanism.groups=5", "mechanism.population=9"],
            "population = 9 is not used by kind = 'partition'",
        ),
    ],
)
def test_rates_that_are_not_used_are_refused(overrides, message):
    with pytest.raises(ValueError, match=message):
        parse(MINIMAL, *overrides)


def test_the_smallest_user_decides_the_batch_probability():
    instance = ("mechanism.cohort=2", "threat.unit=instance", "mechanism.batch_size=10")
    fedavg = build(*instance, "mechanism.kind=instance-fedavg", "mechanism.local_steps=5")
    assert isinstance(fedavg, InstanceFedAvg)
    assert fedavg.batch_probability == 10 / 50
    assert fedavg.unmet(Relation.JOIN)  # an instance that joins lowers its neighbours' chances
    assert not fedavg.unmet(Relation.REPLACE)
    declared = build(
        *instance,
        "mechanism.kind=instance-fedavg",
        "mechanism.local_steps=5",
        "mechanism.batch_probability=0.3",
    )
    assert (declared.batch_probability, declared.by_size) == (0.3, False)
    assert not declared.unmet(Relation.JOIN)
    fedsgd = build(*instance, "mechanism.kind=instance-fedsgd", "mechanism.sampling=fixed")
    assert isinstance(fedsgd, InstanceFedSGD)
    assert fedsgd.sampling == FixedSize(cohort=2, users=3)


def test_a_cohort_larger_than_the_federation_is_refused_when_users_are_known():
    with pytest.raises(ValueError, match=r"mechanism\.cohort = 20 must be at most the number of users = 3"):
        build()


def test_the_default_configuration_needs_a_cohort_only():
    assert Config.model_validate({"mechanism": {"cohort": 5}}).data.name == "digits"


def test_another_kind_leaves_behind_what_the_file_said_for_the_old_one():
    text = "[mechanism]\ncohort = 2\nnoise_multiplier = 3.0\nclip_norm = 0.5"
    config = parse(text, "mechanism.kind=partition", "mechanism.groups=3", "certificate.method=vote")
    assert config.mechanism.cohort is None
    with pytest.raises(ValueError, match=r"mechanism\.noise_multiplier = 2\.0 is not used by kind"):
        parse(
            text,
            "mechanism.noise_multiplier=2",
            "mechanism.kind=partition",
            "mechanism.groups=3",
            "certificate.method=vote",
        )


PARTITION = ("mechanism.kind=partition", "mechanism.pooled=true", "certificate.method=vote")


def test_a_partition_without_groups_is_one_user_one_vote():
    config = parse("[mechanism]", *PARTITION, "mechanism.solver=ridge", "mechanism.penalty=3")
    mechanism = config.build_mechanism(user_sizes=[4, 5, 6], num_layers=1)
    assert (mechanism.groups, mechanism.models(3)) == (None, 3)
    local = config.mechanism.local_training
    assert (local.solver, local.penalty) == ("ridge", 3.0)
    assert parse(config.to_toml()) == config


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["threat.unit=instance"], r"mechanism\.groups is missing: threat\.unit = 'instance' needs it"),
        (["mechanism.solver=newton"], "solver"),
        (["mechanism.solver=ridge", "mechanism.penalty=0"], "penalty"),
        (["mechanism.solver=ridge", "mechanism.rounds=2"], "rounds = 2 must be 1 for solver = 'ridge'"),
        (["mechanism.solver=ridge", "mechanism.pooled=false"], "pooled = false must be true for solver"),
        (
            ["mechanism.solver=ridge", "mechanism.learning_rate=0.5"],
            "learning_rate = 0.5 is not used by solver = 'ridge'",
        ),
        (["mechanism.penalty=2"], r"penalty = 2\.0 is not used by solver = 'sgd'"),
        (["certificate.method=margin"], "must be vote for a partition"),
    ],
)
def test_what_does_not_go_with_one_vote_each_or_a_solver_is_said(overrides, message):
    with pytest.raises(ValueError, match=message):
        parse("[mechanism]", *PARTITION, *overrides)


def test_a_solver_belongs_to_those_who_pool():
    with pytest.raises(ValueError, match=r"solver = 'ridge' is not used by kind = 'user-fedavg'"):
        parse(MINIMAL, "mechanism.solver=ridge")


# --- keys that decide nothing -------------------------------------------------------------------------------

KINDS = {
    "user-fedavg": "cohort = 4",
    "clip": "cohort = 4\nclip = 'median'",
    "everybody": "sampling = 'none'",
    "instance-fedsgd": "kind = 'instance-fedsgd'\ncohort = 4\nsampling = 'fixed'",
    "instance-fedavg": "kind = 'instance-fedavg'\nsampling = 'none'\nlocal_steps = 1",
    "cohort-once": "kind = 'cohort-once'\ncohort = 4\npooled = true",
    "bagging": "kind = 'bagging'\ncohort = 4",
    "ridge": "kind = 'bagging'\ncohort = 4\npooled = true\nsolver = 'ridge'",
    "sums": "kind = 'bagging'\ncohort = 4\npooled = true\nsolver = 'sums'",
    "partition": "kind = 'partition'\ngroups = 3",
    "noisy-partition": "kind = 'noisy-partition'\ngroups = 3",
    "one-round": "kind = 'one-round'\nsolver = 'ridge'\nupload = 'rows'",
    "silent": "kind = 'one-round'\nsolver = 'ridge'\nnoise_multiplier = 0.0",
    "local": "kind = 'local'",
    "smoothed": "kind = 'smoothed'\nsmoothing = 3.0",
    "fedavg": "kind = 'fedavg'\ncohort = 4",
}
INSTANCES = ("instance-fedsgd", "instance-fedavg", "cohort-once")
ESTIMATED = {"ensemble.replicas": 7, "certificate.bound": "hoeffding", "certificate.failure_probability": 0.2}
ONE_MODEL = ESTIMATED | {"ensemble.own_start": True, "ensemble.part_size": 3}
DATA = {"data.dirichlet_alpha": 0.1, "data.degree": 0.9, "data.minimum": 2, "data.vectors": "glove.txt"}
EVERYWHERE = DATA | {
    "data.projection": "principal",
    "model.head": "random",
    "model.hidden": [3],
    "certificate.collective_seconds": 3.0,
    "aggregation.adversaries": 1,
    "mechanism.cosine": True,
}
QUANTILE = {"mechanism.quantile": 0.2, "mechanism.quantile_noise_std": 1.0}
DELTA, PENALTY = {"mechanism.delta": 0.01}, {"mechanism.penalty": 2.0}
STEPS = {"mechanism.batch_size": 3, "mechanism.learning_rate": 0.7, "mechanism.momentum": 0.5}
ONE_STEP = {"mechanism.momentum": 0.5}
CERTIFIED = {"certificate.method": "mean", "certificate.max_size": 9, "certificate.simultaneous": True}
IDLE = {
    "user-fedavg": QUANTILE | {"mechanism.groups": 4, "mechanism.honest": 3},
    "clip": QUANTILE | {"mechanism.clip_norm": 2.0},
    "everybody": QUANTILE | {"mechanism.cohort": 3},
    "instance-fedsgd": ONE_STEP,
    "instance-fedavg": ONE_STEP | {"mechanism.keep_momentum": True, "mechanism.cohort": 3},
    "cohort-once": ONE_STEP | {"mechanism.local_epochs": 2},
    "bagging": DELTA | PENALTY,
    "ridge": DELTA | STEPS,
    "sums": DELTA | STEPS | PENALTY,
    "partition": DELTA | PENALTY | ESTIMATED,
    "noisy-partition": ESTIMATED,
    "one-round": ONE_MODEL | STEPS | {"mechanism.anchors": 9, "mechanism.sharpness": 2.0},
    "silent": ONE_MODEL | STEPS | DELTA,
    "local": ONE_MODEL | PENALTY | {"mechanism.honest": 3},
    "smoothed": {"mechanism.rounds": 2},
    "fedavg": DELTA | CERTIFIED,
}


WORDS = "belongs to|is not used by|is not used without|needs"


def document(name):
    unit = "instance" if name in INSTANCES else "user"
    return tomllib.loads(f"[threat]\nunit = '{unit}'\n[mechanism]\n{KINDS[name]}")


def written(name, key, value):
    section, _, inner = key.partition(".")
    whole = document(name)
    whole.setdefault(section, {})[inner] = value
    return tomli_w.dumps(whole)


@pytest.mark.parametrize("name", KINDS)
def test_a_key_that_decides_nothing_is_refused_and_named(name):
    config = parse(tomli_w.dumps(document(name)))
    assert parse(config.to_toml()) == config
    for key, value in (EVERYWHERE | IDLE[name]).items():
        text = written(name, key, value)
        with pytest.raises(ValueError, match=rf"test\.toml: {key} = .* ({WORDS}) ") as caught:
            parse(text)
        assert "\n" not in str(caught.value)


def test_where_keys_decide_something_they_are_welcome():
    for text in (
        "[data]\npartition = 'dirichlet'\ndirichlet_alpha = 0.1\nminimum = 2\n[mechanism]\ncohort = 4",
        "[data]\npartition = 'degree'\ndegree = 0.5\n[mechanism]\ncohort = 4",
        "[data]\nname = 'leaf/x'\nminimum = 2\nvectors = 'glove.txt'\n[mechanism]\ncohort = 4",
        "[data]\nname = 'own:data'\nminimum = 2\n[mechanism]\ncohort = 4",
        "[model]\nname = 'mlp'\nhidden = [3]\nweights = 'x.npz'\nhead = 'random'\n[mechanism]\ncohort = 4",
        "[mechanism]\ncohort = 4\n[aggregation]\nrule = 'krum'\nadversaries = 1",
        "[mechanism]\ncohort = 4\n[aggregation]\nrule = 'mean'\nadversaries = 0",  # it withstands none
        "[data]\nusers = 9\n[mechanism]\ncohort = 9\nsampling = 'none'",  # which is everybody
        "[mechanism]\ncohort = 4\ncosine = true\nlocal_epochs = 2\nclip = 'quantile'\nquantile = 0.5",
        "[mechanism]\nkind = 'one-round'\nsolver = 'ridge'\npooled = true\nrounds = 1",  # what it does anyway
        "[mechanism]\nkind = 'partition'\n[certificate]\ncollective = [1]\ncollective_seconds = 60.0",
    ):
        config = parse(text)
        assert parse(config.to_toml()) == config


def test_another_choice_leaves_behind_what_goes_with_the_old_one():
    text = (
        "[data]\nusers = 200\npartition = 'dirichlet'\ndirichlet_alpha = 0.1\n"
        "[mechanism]\ncohort = 20\n[ensemble]\nreplicas = 50\n[certificate]\nbound = 'hoeffding'\n"
        "[aggregation]\nrule = 'krum'\nadversaries = 2\n"
    )
    left = {}
    config = parse_config(text, "x", ["data.partition=iid", "aggregation.rule=mean"], left=left)
    assert left == {"data.dirichlet_alpha": 0.1, "aggregation.adversaries": 2}
    assert (config.data.dirichlet_alpha, config.aggregation.adversaries) == (0.5, 0)
    votes = parse(text, "mechanism.kind=partition", "mechanism.groups=3", "aggregation.rule=mean")
    assert (votes.ensemble.replicas, votes.certificate.bound) == (1000, None)
    for said in (["data.dirichlet_alpha=0.2", "data.partition=iid"], ["data.degree=0.7"]):
        with pytest.raises(ValueError, match=r"data\.d\w+ = 0\.[27] belongs to partition = "):
            parse(text, *said)
    beneath = ["data.dirichlet_alpha=0.3"]
    assert parse_config(text, "x", ["data.partition=iid"], beneath=beneath).data.dirichlet_alpha == 0.5
