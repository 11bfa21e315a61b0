"""From data to certificate: repeatable to the byte, resumable after kill -9, never in another's directory."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load, save

from fedproof.accounting import account
from fedproof.certificates import loads, verify
from fedproof.cli.training import show
from fedproof.config import parse_config
from fedproof.experiment import run
from fedproof.federation import Federation
from fedproof.report.run_data import read_run
from fedproof.report.run_page import write_report
from fedproof.report.words import headline
from fedproof.serving import predict
from fedproof.summary import read_summary
from fedproof.threat import ThreatModel
from tests.commands import fedproof
from tests.patience import until
from tests.tiny import TINY, by_accountant, outputs, tiny


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "one"
    return run(tiny(), folder)


def test_the_same_experiment_twice_is_identical_to_the_byte(finished, tmp_path):
    run(tiny(), tmp_path / "again")
    assert outputs(tmp_path / "again") == outputs(finished.folder)


def test_the_summary_has_the_documented_keys(finished):
    wanted = {"accuracy", "certified_accuracy", "certified_size", "privacy"}
    wanted |= {"sound", "unmet", "seconds"}
    assert wanted <= set(finished.summary.document())
    assert set(by_accountant(finished.summary.privacy, "model")) == {"paper", "rdp", "pld"}
    assert set(by_accountant(finished.summary.privacy, "ensemble")) == {"paper", "pld"}
    assert json.loads((finished.folder / "summary.json").read_text()) == finished.summary.document()
    assert read_summary(finished.folder) == finished.summary


def test_secure_noise_is_stated_kept_and_not_repeated(finished, tmp_path):
    secure = tiny("ensemble.secure_noise=true")
    runs = [run(secure, tmp_path / name) for name in ("one", "two")]
    assert all(one.summary.secure_noise for one in runs)
    assert not finished.summary.secure_noise
    assert outputs(tmp_path / "one")["scores.npy"] != outputs(tmp_path / "two")["scores.npy"]
    for part in (tmp_path / "one").rglob("part-00002.*"):
        part.unlink()
    (tmp_path / "one" / "ledger.json").unlink()  # as if it had been killed before all was there
    before = np.load(tmp_path / "one" / "scores.npy")
    run(secure, tmp_path / "one", resume=True)
    after = np.load(tmp_path / "one" / "scores.npy")
    kept = np.arange(40) // 4 != 2
    np.testing.assert_array_equal(after[kept], before[kept])
    assert not np.array_equal(after[~kept], before[~kept])
    text = (tmp_path / "one" / "certificate.json").read_text()
    assert verify(text, after) == ()
    assert len(predict(tmp_path / "one", np.zeros((1, 64), dtype=np.float32)).prediction) == 1


def test_secure_noise_is_said_to_people(finished, tmp_path, capsys):
    one = run(tiny("ensemble.secure_noise=true", "ensemble.replicas=4"), tmp_path / "one")
    said = []
    for summary, folder in ((one.summary, one.folder), (finished.summary, finished.folder)):
        show(summary, folder)
        said.append("the seed does not repeat this run" in "".join(capsys.readouterr()))
        said.append("came from the operating system" in write_report(folder).read_text())
    assert said == [True, True, False, False]


def test_the_certificate_on_disk_verifies(finished):
    text = (finished.folder / "certificate.json").read_text()
    assert loads(text) == finished.certificate
    assert verify(text, finished.folder / "scores.npy") == ()
    assert finished.certificate.sound


def test_the_ledger_says_what_was_spent(finished):
    ledger = json.loads((finished.folder / "ledger.json").read_text())
    assert ledger["replicas"] == 40
    assert ledger["epsilon"] == by_accountant(finished.summary.privacy, "ensemble")


def test_predictions_on_the_test_inputs_are_the_certificates(finished):
    from fedproof.experiment import make_task

    inputs = make_task(tiny(), "cpu").federation.test_features
    certificate = predict(finished.folder, inputs)
    assert certificate.prediction == finished.certificate.prediction
    assert certificate.certified_size == finished.certificate.certified_size


def test_predict_refuses_inputs_of_another_shape(finished):
    with pytest.raises(ValueError, match=r"inputs have shape \(3, 5\), must be \(inputs, 64\)"):
        predict(finished.folder, np.zeros((3, 5), dtype=np.float32))


@pytest.mark.parametrize(
    ("inputs", "answer"),
    [
        (
            np.zeros((2, 64), dtype=np.uint8),
            r"inputs are bytes \(uint8\), must be numbers on the scale of the",
        ),
        (np.zeros((2, 64), dtype="U3"), "inputs have type <U3, must be numbers"),
        (np.repeat([[0.0], [np.nan]], 64, axis=1), "inputs hold a number that is not finite, in input 1"),
    ],
)
def test_predict_refuses_what_models_were_not_trained_on(inputs, answer, finished):
    with pytest.raises(ValueError, match=answer):
        predict(finished.folder, inputs)


def test_predict_takes_whole_numbers_for_numbers(finished):
    whole = np.arange(128).reshape(2, 64) % 3
    assert predict(finished.folder, whole) == predict(finished.folder, whole.astype(np.float32))


def test_a_run_claims_no_zero_where_nobody_looked(tmp_path, capsys):
    done = run(tiny("certificate.max_size=1"), tmp_path / "run")
    assert done.summary.certified_size.max == 1
    show(done.summary, tmp_path / "run")
    said = capsys.readouterr().out
    assert "certified accuracy, k = 1" in said
    assert "certified accuracy, k = 2" not in said
    assert "no size above 1 was tried (certificate.max_size)" in said
    assert "No size above 1 was tried." in write_report(tmp_path / "run").read_text()


# --- directories --------------------------------------------------------------------------------------------


def test_a_finished_run_is_not_done_again_unless_resumed(finished, tmp_path):
    folder = shutil.copytree(finished.folder, tmp_path / "finished")
    before = outputs(folder)
    with pytest.raises(ValueError, match="continue with --resume"):
        run(tiny(), folder)
    run(tiny(), folder, resume=True)
    assert outputs(folder) == before


def test_a_directory_of_another_configuration_is_left_alone(finished):
    before = outputs(finished.folder)
    with pytest.raises(ValueError, match=r"another configuration \(mechanism.rounds = 2 there, 3 here\)"):
        run(tiny("mechanism.rounds=3"), finished.folder, resume=True)
    assert outputs(finished.folder) == before


def two_federations(monkeypatch):
    """A function of one's own whose data change between two calls, and the configuration that names it."""
    rng = np.random.default_rng(0)
    features, labels = rng.normal(size=(60, 4)).astype(np.float32), rng.integers(0, 2, 60)
    first = Federation(
        features=features,
        labels=labels,
        offsets=np.arange(0, 61, 3),
        test_features=features[:10],
        test_labels=labels[:10],
        class_names=("a", "b"),
        name="own",
        user_ids=np.arange(20),
    )
    turned = features.copy()
    turned[:3] *= -5
    held = iter([first, replace(first, features=turned)])
    module = SimpleNamespace(make=lambda: next(held))
    monkeypatch.setitem(sys.modules, "own_data", module)
    table = '[data]\nname = "own_data:make"\n[mechanism]\nsampling = "none"\npopulation = 20'
    return f"{table}\n[ensemble]\nreplicas = 4\nsecure_noise = SECURE"


@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize("lost", [(), ("private/parts",), ("parts",)])
def test_noise_that_was_used_is_never_used_for_other_data(tmp_path, monkeypatch, secure, lost):
    # Before, the two ensembles had the same noise: models less models were updates less updates, bare.
    table = two_federations(monkeypatch).replace("SECURE", str(secure).lower())
    config = parse_config(table, "test")
    run(config, tmp_path / "run")
    for name in lost:
        path = tmp_path / "run" / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(ValueError, match=r"its noise must not be used again"):
        run(config, tmp_path / "run", resume=True)


@pytest.mark.parametrize("lost", [(), ("private/parts",), ("parts",)])
def test_noise_that_was_used_is_never_used_by_another_version(finished, tmp_path, monkeypatch, lost):
    # Before, an upgrade between two runs gave two ensembles with the same noise, and a ledger of one.
    folder = shutil.copytree(finished.folder, tmp_path / "run")
    for name in lost:
        shutil.rmtree(folder / name) if (folder / name).is_dir() else (folder / name).unlink()
    monkeypatch.setattr("fedproof.ensemble.engines.engine_version", lambda: "another")
    with pytest.raises(ValueError, match=r"its noise must not be used again"):
        run(finished.config, folder, resume=True)


def test_secure_models_that_were_counted_are_not_made_again(tmp_path):
    # Their noise cannot be repeated: whoever saw both ensembles paid twice, and the ledger counted once.
    config = tiny("ensemble.secure_noise=true")
    run(config, tmp_path / "run")
    run(config, tmp_path / "run", resume=True)  # all there, nothing is trained
    folder = tmp_path / "run"
    for lost in (
        ("private/parts/part-00003.npz",),
        ("parts/part-00003.safetensors",),
        ("private/parts/part-00003.json",),
        ("private/parts/part-00003.json", "parts/part-00003.safetensors"),
    ):
        taken = {folder / name: (folder / name).read_bytes() for name in lost}
        for path in taken:
            path.unlink()
        with pytest.raises(ValueError, match=r"was made, and is missing|a part that was counted was made"):
            run(config, folder, resume=True)
        for path, content in taken.items():
            path.write_bytes(content)
    run(config, folder, resume=True)


def test_a_directory_with_other_files_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("do not touch")
    with pytest.raises(ValueError, match="holds other files"):
        run(tiny(), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_file_is_no_directory(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="is a file, must be a directory"):
        run(tiny(), tmp_path / "file")


def test_scores_that_the_disk_cannot_hold_are_refused_before_training(finished, tmp_path, monkeypatch):
    full = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr("fedproof.folder.shutil.disk_usage", lambda path: full)
    with pytest.raises(
        ValueError, match=r"scores of .* need .* GB, the disk has 0\.0 GB: set data\.test_limit"
    ):
        run(tiny(), tmp_path / "run")
    folder = shutil.copytree(finished.folder, tmp_path / "finished")
    run(finished.config, folder, resume=True)  # which holds its scores already


def test_a_second_process_is_refused(tmp_path):
    import fcntl

    folder = tmp_path / "run"
    (folder / "private").mkdir(parents=True)
    with (folder / "private" / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ValueError, match="another process is working in it"):
            run(tiny(), folder)


def test_an_altered_part_is_done_again(finished, tmp_path):
    import shutil

    folder = tmp_path / "copy"
    shutil.copytree(finished.folder, folder)
    part = folder / "private" / "parts" / "part-00001.npz"
    content = bytearray(part.read_bytes())
    content[len(content) // 2] ^= 1
    part.write_bytes(bytes(content))
    run(tiny(), folder, resume=True)
    assert outputs(folder) == outputs(finished.folder)


def forged(finished, folder, ending, content):
    """A copy of the run in which one file of a part is another, and the part's record agrees with it."""
    shutil.copytree(finished.folder, folder)
    name = {"npz": "private/parts/part-00001.npz", "safetensors": "parts/part-00001.safetensors"}[ending]
    part, record = folder / name, folder / "private" / "parts" / "part-00001.json"
    part.write_bytes(content(part))
    known = json.loads(record.read_text())
    known["sha256"][name] = hashlib.sha256(part.read_bytes()).hexdigest()
    record.write_text(json.dumps(known))
    return folder


@pytest.mark.parametrize(
    "change",
    [
        lambda scores: scores[:3],
        lambda scores: np.concatenate([scores, scores]),
        lambda scores: np.concatenate([scores, scores], axis=1),
        lambda scores: (scores > 0.5).astype(int),
        lambda scores: scores.astype(complex),
        np.ravel,
        lambda scores: np.float32(1),
    ],
    ids=["fewer", "more", "inputs", "whole", "complex", "flat", "one"],
)
def test_a_part_with_other_scores_than_its_record_says_is_not_certified(finished, tmp_path, change):
    def content(part):
        with np.load(part) as file:
            arrays = dict(file)
        np.savez(part, **arrays | {"scores": change(arrays["scores"])})
        return part.read_bytes()

    folder = forged(finished, tmp_path / "copy", "npz", content)
    before = outputs(finished.folder)
    with pytest.raises(ValueError, match=r"parts: scores are .*, must be \(40, 72, 2\) over all parts"):
        run(tiny(), folder, resume=True)
    assert outputs(folder)["scores.npy"] == before["scores.npy"]


@pytest.mark.parametrize(
    "change",
    [
        lambda name, values: {name: torch.cat([values, values])},
        lambda name, values: {name: values[:3]},
        lambda name, values: {name: values[:3]} if name.endswith("bias") else {name: values},
        lambda name, values: {} if name.endswith("bias") else {name: values},
        lambda name, values: {name: values.flatten()},
        lambda name, values: {name: values.to(torch.int32)},
        lambda name, values: {name: values, f"{name}2": values.clone()},
    ],
    ids=["more", "fewer", "one fewer", "missing", "flat", "whole", "another"],
)
def test_a_part_with_other_models_than_its_record_says_predicts_nothing(finished, tmp_path, change):
    def content(part):
        return save(
            dict(item for named in load(part.read_bytes()).items() for item in change(*named).items())
        )

    folder = forged(finished, tmp_path / "copy", "safetensors", content)
    with pytest.raises(ValueError, match=r"parts: part 1 must hold 4 models of floats: fc0\.weight \(4, "):
        predict(folder, np.zeros((1, 64), dtype=np.float32))


# --- kill -9 ------------------------------------------------------------------------------------------------


def test_a_killed_run_resumes_to_the_same_bytes(tmp_path):
    many = TINY.replace("replicas = 40\npart_size = 4", "replicas = 400\npart_size = 10")
    config = tmp_path / "tiny.toml"
    config.write_text(many)
    folder = tmp_path / "killed"
    words = ["run", config, "--out", folder, "--resume", "--json"]
    command = [sys.executable, "-m", "fedproof", *map(str, words)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    until(lambda: list(folder.glob("private/parts/part-0000[2-9].json")), process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    done = len(list(folder.glob("private/parts/*.json")))
    assert process.returncode == -signal.SIGKILL
    assert 0 < done < 40
    assert not (folder / "certificate.json").exists()
    times = {path.name: os.stat(path).st_mtime_ns for path in folder.glob("private/parts/*.json")}

    fedproof(*words)
    kept = {path.name: os.stat(path).st_mtime_ns for path in folder.glob("private/parts/*.json")}
    assert all(kept[name] == moment for name, moment in times.items())  # finished parts were not done again

    straight = run(parse_config(many, "tiny"), tmp_path / "straight")
    assert outputs(folder) == outputs(straight.folder)


# --- privacy budget and mechanisms without one --------------------------------------------------------------


def test_max_epsilon_stops_before_it_is_exceeded(tmp_path):
    limited = run(tiny("ensemble.max_epsilon=2.0"), tmp_path / "run")
    assert 2 <= limited.summary.replicas < 40
    assert limited.summary.all.epsilon <= 2.0


def test_a_budget_that_pays_for_nothing_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"ensemble.max_epsilon = 0.0001 pays for 0 replicas"):
        run(tiny("ensemble.max_epsilon=0.0001"), tmp_path / "run")


def test_without_noise_there_is_accuracy_but_no_certificate(tmp_path):
    result = run(tiny("mechanism.kind=fedavg"), tmp_path / "run")
    assert result.certificate is None
    assert result.summary.accuracy > 0.9
    assert result.summary.sound is False
    assert [one.code for one in result.summary.unmet] == ["no-noise"]


def test_median_clipping_is_labelled_heuristic(tmp_path):
    result = run(tiny("mechanism.clip=median"), tmp_path / "run")
    assert not result.certificate.sound
    assert result.certificate.unmet[0].code == "clip-norm"


DP_SGD = (
    "mechanism.kind=instance-fedavg",
    "threat.unit=instance",
    "mechanism.sampling=none",
    "mechanism.local_steps=3",
    "mechanism.batch_size=4",
    "mechanism.momentum=0.5",
)


def test_shuffled_batches_are_labelled_heuristic_and_kept_momentum_is_not(tmp_path):
    kept = run(tiny(*DP_SGD, "mechanism.keep_momentum=true"), tmp_path / "kept")
    assert kept.certificate.sound
    shuffled = run(tiny(*DP_SGD, "mechanism.shuffled=true"), tmp_path / "shuffled")
    assert not shuffled.certificate.sound
    assert shuffled.certificate.unmet[0].code == "shuffled-batches"
    text = (tmp_path / "shuffled" / "certificate.json").read_text()
    assert verify(text, tmp_path / "shuffled" / "scores.npy") == ()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("mechanism.shuffled=true",), "shuffled = true belongs to kind = 'instance-fedavg'"),
        (("mechanism.keep_momentum=true",), "keep_momentum = true belongs to kind"),
        (
            (*DP_SGD, "mechanism.keep_momentum=true", "mechanism.sampling=fixed"),
            "sampling = 'fixed' must be none where keep_momentum = true",
        ),
    ],
)
def test_options_of_the_papers_code_belong_to_instances(overrides, message):
    with pytest.raises(ValueError, match=message):
        tiny(*overrides)


@pytest.mark.parametrize("method", ["paper", "mean", "margin", "vote", "renyi"])
def test_every_certificate_runs_and_verifies(tmp_path, method):
    result = run(tiny(f"certificate.method={method}"), tmp_path / "run")
    text = (tmp_path / "run" / "certificate.json").read_text()
    assert verify(text, tmp_path / "run" / "scores.npy") == ()
    assert result.certificate.settings.method == method


@pytest.mark.parametrize(
    "overrides",
    [
        ("mechanism.kind=instance-fedavg", "mechanism.local_steps=3", "mechanism.sampling=none"),
        ("mechanism.kind=instance-fedsgd", "mechanism.sampling=fixed"),
    ],
)
def test_instance_level_runs_end_in_a_sound_certificate(tmp_path, overrides):
    result = run(tiny("threat.unit=instance", *overrides), tmp_path / "run")
    assert result.certificate.sound
    assert result.certificate.threat.unit == "instance"


ONCE = ("mechanism.kind=cohort-once", "mechanism.sampling=fixed", "mechanism.cohort=3")
BAGGING = ("mechanism.kind=bagging", *ONCE[1:])


@pytest.mark.parametrize("pooled", ["true", "false"])
@pytest.mark.parametrize("relation", ["replace", "join"])
def test_a_cohort_drawn_once_is_certified_without_privacy(tmp_path, pooled, relation):
    config = tiny(
        *BAGGING,
        f"mechanism.pooled={pooled}",
        f"threat.relation={relation}",
        "certificate.method=vote",
        "ensemble.replicas=100",
    )
    result = run(config, tmp_path / "run")
    assert result.summary.sound
    assert result.summary.certified_accuracy["1"] > 0.5
    assert result.summary.privacy == ()
    assert not (tmp_path / "run" / "ledger.json").exists()
    text = (tmp_path / "run" / "certificate.json").read_text()
    assert verify(text, tmp_path / "run" / "scores.npy") == ()
    assert "paper" not in (tmp_path / "run" / "metrics.csv").read_text()
    page = write_report(tmp_path / "run")
    assert "no privacy" in page.read_text()


def test_the_hybrid_has_both_guarantees(tmp_path):
    result = run(tiny(*ONCE, "mechanism.noise_multiplier=1.0"), tmp_path / "run")
    assert result.summary.sound
    assert 0 < result.summary.one.epsilon < 10
    assert (tmp_path / "run" / "ledger.json").exists()


def test_a_privacy_budget_needs_privacy(tmp_path):
    config = tiny(*BAGGING, "ensemble.max_epsilon=1")
    with pytest.raises(ValueError, match="bagging has no finite epsilon"):
        run(config, tmp_path / "run")


@pytest.mark.parametrize("kind", ["user-fedavg", "cohort-once"])
def test_what_cannot_be_certified_is_said_before_training(kind):
    asked = (f"mechanism.kind={kind}", "mechanism.sampling=fixed", "mechanism.noise_multiplier=1.0")
    with pytest.raises(ValueError, match="'join' is not defined for cohorts of fixed size and method renyi"):
        tiny(*asked, "threat.relation=join", "certificate.method=renyi")
    assert tiny(*asked, "threat.relation=join", "certificate.method=paper")
    assert tiny(*asked, "threat.relation=join")


@pytest.mark.parametrize("kind", ["user-fedavg", "cohort-once"])
def test_who_joins_cohorts_of_fixed_size_is_certified_from_end_to_end(tmp_path, kind):
    asked = (f"mechanism.kind={kind}", "mechanism.sampling=fixed", "mechanism.noise_multiplier=4.0")
    result = run(tiny(*asked, "threat.relation=join", "certificate.simultaneous=true"), tmp_path / "run")
    assert "for all inputs together" in headline(result.summary)
    assert verify((tmp_path / "run" / "certificate.json").read_text(), tmp_path / "run" / "scores.npy") == ()
    assert "for all inputs together" in write_report(tmp_path / "run").read_text()
    assert tiny(*asked, "threat.relation=replace")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("mechanism.sampling=none",), "must be poisson or fixed for kind = 'cohort-once'"),
        (("mechanism.pooled=true",), "must be 0 where pooled = true"),
        (("mechanism.kind=user-fedavg", "mechanism.pooled=true"), "pooled = true is not used by kind"),
        (("mechanism.clip=median",), "clip = 'median' belongs to kind = 'user-fedavg', not 'cohort-once'"),
        (("mechanism.cohort=25",), "mechanism.cohort = 25 must be at most data.users = 24"),
        (("mechanism.shift=-1",), "mechanism.shift"),
        (("mechanism.stretch=0.5",), "mechanism.stretch"),
        (("mechanism.bend=-1",), "mechanism.bend"),
        (("mechanism.noise_multiplier=0",), "without noise use kind = 'bagging'"),
        (("mechanism.kind=bagging", "certificate.method=paper"), "'paper' asks for privacy"),
        (("certificate.collective=[1]",), "which mechanism.kind = 'cohort-once' does not have"),
    ],
)
def test_bad_configurations_of_cohorts_drawn_once_are_refused(overrides, message):
    with pytest.raises(ValueError, match=message):
        tiny(*ONCE, *overrides)


PARTITION = ("mechanism.kind=partition", "mechanism.groups=8", "certificate.method=vote")


@pytest.mark.parametrize("rule", ["plurality", "pairwise", "run-off"])
def test_a_partition_is_certified_with_certainty(tmp_path, rule):
    result = run(tiny(*PARTITION, "mechanism.pooled=true", f"certificate.rule={rule}"), tmp_path / "run")
    assert result.summary.rule == rule
    own = [result.certificate.curve[size] for size in (0, 1)]
    assert [read_run(tmp_path / "run").curves[0].at(size) for size in (0, 1)] == own
    again = predict(tmp_path / "run", result.federation.test_features[:5])
    assert again.certified_size == result.certificate.certified_size[:5]
    assert result.summary.sound
    assert result.summary.replicas == 8
    assert result.summary.failure_probability == 0
    assert result.summary.certified_accuracy["1"] > 0.5
    assert verify((tmp_path / "run" / "certificate.json").read_text(), tmp_path / "run" / "scores.npy") == ()
    assert write_report(tmp_path / "run").exists()


def test_how_many_labels_change_at_once_is_in_summary_and_report(tmp_path, capsys):
    asked = ("mechanism.pooled=true", "certificate.collective=[2, 4]", "certificate.collective_seconds=5.0")
    result = run(tiny(*PARTITION, *asked), tmp_path / "run")
    alone = [sum(size < k for size in result.certificate.certified_size) for k in (2, 4)]
    found = read_summary(tmp_path / "run").collective
    assert list(found) == ["2", "4"]
    assert found["2"] <= alone[0]
    assert 0 < found["4"] <= alone[1]
    page = write_report(tmp_path / "run").read_text()
    said = f"4 poisoned users can change the labels of at most {found['4']} of these"
    assert said in page
    show(result.summary, tmp_path / "run")
    assert said in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("mechanism.groups=25",), "mechanism.groups = 25 must be at most data.users = 24"),
        (("mechanism.groups=1",), "mechanism.groups"),
        (("certificate.method=margin",), "certificate.method = 'margin' must be vote for a partition"),
        (("mechanism.kind=user-fedavg", "mechanism.cohort=3"), "groups = 8 belongs to kind = 'partition'"),
        (("mechanism.cohort=3",), "mechanism.cohort = 3 is not used"),
        (("certificate.rule=dictator",), "certificate.rule"),
        (("certificate.collective=[0]",), "certificate.collective"),
        (
            ("certificate.collective=[1]", "certificate.rule=run-off"),
            "needs certificate.rule = 'plurality' or",
        ),
    ],
)
def test_bad_partitions_are_refused(overrides, message):
    with pytest.raises(ValueError, match=message):
        tiny(*PARTITION, *overrides)


INSTANCES = ("threat.unit=instance", "mechanism.pooled=true")


@pytest.mark.parametrize(
    ("overrides", "units"),
    [(PARTITION, 8), ((*BAGGING, "mechanism.cohort=40", "certificate.method=vote"), 40)],
    ids=["deep partition", "bagging"],
)
def test_instances_are_a_unit_of_their_own(tmp_path, overrides, units):
    result = run(tiny(*overrides, *INSTANCES), tmp_path / "run")
    assert result.summary.sound
    assert result.summary.users == 24
    assert result.summary.threat.unit == "instance"
    assert result.summary.replicas == units if units == 8 else 40
    assert result.summary.certified_accuracy["1"] > 0.3
    assert result.summary.privacy == ()
    assert verify((tmp_path / "run" / "certificate.json").read_text(), tmp_path / "run" / "scores.npy") == ()
    assert "poisoned instance" in write_report(tmp_path / "run").read_text()


DRAWN = ("mechanism.kind=cohort-once", "mechanism.pooled=true", "threat.unit=instance", "mechanism.cohort=40")
DRAWN += ("mechanism.population=288",)


@pytest.mark.parametrize(
    ("relation", "others"),
    [
        ("replace", ("mechanism.sampling=fixed",)),
        ("replace", ("ensemble.secure_noise=true", "ensemble.own_start=true")),
        ("join", ("certificate.method=vote", "mechanism.clip_norm=0.5")),
    ],
)
def test_the_hybrid_of_instances_has_both_guarantees(tmp_path, relation, others):
    config = tiny(*DRAWN, f"threat.relation={relation}", "ensemble.replicas=100", *others)
    result = run(config, tmp_path / "run")
    assert result.summary.sound
    assert result.summary.unmet == ()
    assert result.summary.threat == ThreatModel(unit="instance", relation=relation)
    assert result.summary.certified_accuracy["1"] > 0.5
    # Two rounds of noise 3 on one sample of 40: one query of noise 3/√2.
    mechanism = result.certificate.mechanism
    assert (mechanism.unit, mechanism.queries[0].noise_multiplier) == ("instance", pytest.approx(3 / 2**0.5))
    assert by_accountant(result.summary.privacy, "model") == account(mechanism, 0.01)
    assert 0 < result.summary.one.epsilon < 1
    assert (tmp_path / "run" / "ledger.json").exists()
    assert verify((tmp_path / "run" / "certificate.json").read_text(), tmp_path / "run" / "scores.npy") == ()
    assert "poisoned instance" in write_report(tmp_path / "run").read_text()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("threat.unit=user", "mechanism.cohort=8"), "noise_multiplier = 3.0 must be 0 where pooled = true"),
        (("mechanism.pooled=false",), "pooled = false must be true for kind = 'cohort-once'"),
        (("mechanism.balanced=true",), "cosine, shift, flip, stretch, bend and balanced are not used"),
        (("mechanism.bend=1",), "cosine, shift, flip, stretch, bend and balanced are not used"),
        (("mechanism.cosine=true",), "cosine = true is not used by local_epochs = 1"),
        (("mechanism.sampling=none",), "must be poisson or fixed for kind = 'cohort-once'"),
        (("mechanism.clip=quantile",), "clip = 'quantile' belongs to kind = 'user-fedavg', not"),
    ],
)
def test_bad_configurations_of_the_hybrid_of_instances_are_refused(overrides, message):
    with pytest.raises(ValueError, match=message):
        tiny(*DRAWN, *overrides)


def test_a_rule_has_no_updates_of_drawn_instances_to_work_on(tmp_path):
    with pytest.raises(ValueError, match="pooled = True has no updates for a rule"):
        run(tiny(*DRAWN, "aggregation.rule=median"), tmp_path / "run")


def test_instances_need_pooled_training_and_enough_of_them(tmp_path):
    with pytest.raises(ValueError, match="pooled = false must be true for kind = 'partition'"):
        tiny(*PARTITION, "threat.unit=instance")
    with pytest.raises(ValueError, match=r"groups = 9999 must be at most the number of instances = \d+"):
        run(tiny(*PARTITION, *INSTANCES, "mechanism.groups=9999"), tmp_path / "groups")
    for name, drawn in {"bagging": (*BAGGING, *INSTANCES), "hybrid": DRAWN}.items():
        with pytest.raises(ValueError, match=r"cohort = 9999 must be at most the number of instances = \d+"):
            run(tiny(*drawn, "mechanism.cohort=9999"), tmp_path / name)
