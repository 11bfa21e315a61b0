"""Secret randomness: a seed that nobody chose, kept in one file, and nothing public that follows from it."""

import base64
import os
import shutil
import stat
import tomllib
from pathlib import Path

import numpy as np
import pytest

from fedproof import experiment, seeds
from fedproof.certificates import verify
from fedproof.cli.training import show
from fedproof.config import load_config, parse_config
from fedproof.experiment import SharedWork, make_task, run
from fedproof.folder import UNCOVERED, RunFolder
from fedproof.integrations import server
from fedproof.mechanisms import FixedSize, LocalTraining, Poisson, UserFedAvg
from fedproof.report.run_page import write_report
from fedproof.rounds import randomness
from fedproof.rounds.local import Augment
from fedproof.seeds import Purpose, draw_cohorts
from fedproof.serving import predict
from fedproof.statements import Statement
from fedproof.sweep import compare, pilot, points, sweep
from fedproof.vault import Vault
from paper import load_studies
from paper.study import points_of
from tests.commands import fedproof
from tests.tiny import FRESH

TINY = FRESH.replace("replicas = 40", "replicas = 12")
ONCE = ("mechanism.kind=cohort-once", "mechanism.sampling=fixed", "mechanism.cohort=3")
DRAWN = ("mechanism.kind=bagging", *ONCE[1:])


def tiny(*overrides):
    return parse_config(TINY, "tiny", overrides)


# --- who holds what is public -------------------------------------------------------------------------------


def test_who_holds_what_does_not_follow_from_the_seed_of_the_training():
    one, other = (make_task(tiny(f"ensemble.seed={seed}"), "cpu").federation for seed in (0, 1))
    np.testing.assert_array_equal(one.features, other.features)
    np.testing.assert_array_equal(one.offsets, other.offsets)
    dealt = make_task(tiny("ensemble.seed=0", "data.seed=1"), "cpu").federation
    assert not np.array_equal(one.features, dealt.features)


EXPERIMENTS = Path(__file__).parents[1] / "experiments"


@pytest.mark.parametrize(
    "path", [*EXPERIMENTS.glob("*.toml"), *EXPERIMENTS.glob("compare/*/*.toml")], ids=str
)
def test_published_numbers_can_be_had_again(path):
    if not path.name.startswith("pretrain"):
        assert load_config(path).ensemble.seed is not None


# --- a fresh seed -------------------------------------------------------------------------------------------


def words(seed):
    """The seed as it might stand in a file: digits, hexadecimal digits, bytes, and halves of them."""
    if seed >= 2**128:
        return [str(seed).encode(), *words(seed >> 128), *words(seed & (2**128 - 1))]
    halves = [seed >> 64, seed & (2**64 - 1)]
    found = [str(number).encode() for number in (seed, *halves)]
    found += [f"{number:x}".encode() for number in (seed, *halves)]
    found += [f"{number:X}".encode() for number in (seed, *halves)]
    raw = [number.to_bytes(size, order) for number, size in zip((seed, *halves), (16, 8, 8), strict=True)
           for order in ("little", "big")]  # fmt: skip
    return [*found, *raw, *(base64.b64encode(one) for one in raw[:2])]


def leaks(content, seed):
    return [word for word in words(seed) if word in content]


def kept_seed(folder):
    return int((folder / "private" / "seed").read_text(), 16)


def printed_by(arguments, status=0):
    done = fedproof(*arguments, status=status)
    return (done.stdout + done.stderr).encode()


@pytest.fixture(scope="module")
def fresh(tmp_path_factory):
    """A run without a seed in its configuration, by the command line, and what was printed."""
    folder = tmp_path_factory.mktemp("fresh") / "run"
    config = folder.with_name("tiny.toml")
    config.write_text(TINY)
    return folder, printed_by(("run", config, "--out", folder))


@pytest.fixture
def used(fresh, tmp_path):
    """That run after all that people do with one, right or wrong, and all that was printed."""
    folder, config, inputs = tmp_path / "run", tmp_path / "tiny.toml", tmp_path / "inputs.npy"
    shutil.copytree(fresh[0], folder)
    config.write_text(TINY)
    (tmp_path / "other.toml").write_text(TINY.replace("rounds = 2", "rounds = 3"))
    np.save(inputs, np.zeros((2, 64), dtype=np.float32))
    np.save(tmp_path / "wrong.npy", np.zeros((2, 3), dtype=np.float32))
    printed = fresh[1]
    for arguments, status in [
        (("run", config, "--out", folder), 1),
        (("run", tmp_path / "other.toml", "--out", folder, "--resume"), 1),
        (("run", config, "--out", folder, "--resume", "--engine", "nowhere"), 1),
        (("run", config, "--out", folder, "--resume", "--json"), 0),
        (("report", folder, "--figures", folder / "figures"), 0),
        (("predict", folder, "--inputs", inputs), 0),
        (("predict", folder, "--inputs", inputs, "--json"), 0),
        (("predict", folder, "--inputs", tmp_path / "wrong.npy"), 1),
        (("verify", folder / "certificate.json", "--scores", folder / "scores.npy"), 0),
    ]:
        printed += printed_by(arguments, status)
    return folder, printed


def test_the_seed_stands_in_one_file_and_nowhere_else(used):
    folder, printed = used
    seed = kept_seed(folder)
    assert leaks(b"the seed is %d" % seed, seed)  # the search finds what it looks for
    assert not leaks(printed, seed)
    looked_at = [path for path in folder.rglob("*") if path.is_file() and path != folder / "private" / "seed"]
    assert {path.suffix for path in looked_at} >= {".json", ".toml", ".npy", ".npz", ".html", ".csv", ".svg"}
    assert {str(path) for path in looked_at if leaks(path.read_bytes(), seed)} == set()


def test_only_the_owner_may_read_the_seed(tmp_path):
    mask = os.umask(0)
    try:
        folder = run(tiny(), tmp_path / "run").folder
    finally:
        os.umask(mask)
    assert stat.S_IMODE((folder / "private").stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "private" / "seed").stat().st_mode) == 0o600


def test_no_two_runs_have_the_same_fresh_seed(fresh, tmp_path):
    folder, _ = fresh
    again = run(tiny(), tmp_path / "again").folder
    assert kept_seed(folder) != kept_seed(again)
    assert min(kept_seed(folder), kept_seed(again)) >= 2**96  # 128 bits: smaller by chance of 1 in 2^31
    assert (folder / "scores.npy").read_bytes() != (again / "scores.npy").read_bytes()
    assert "seed" not in tomllib.loads((folder / "config.toml").read_text())["ensemble"]


def test_a_seed_that_is_made_known_repeats_the_run(fresh, tmp_path):
    folder, _ = fresh
    again = run(tiny(f"ensemble.seed={kept_seed(folder)}"), tmp_path / "again").folder
    assert (folder / "scores.npy").read_bytes() == (again / "scores.npy").read_bytes()
    assert not (again / "private" / "seed").exists()


def test_a_run_goes_on_with_its_own_seed(fresh, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(fresh[0], folder)
    before = (folder / "scores.npy").read_bytes()
    (folder / "parts" / "part-00001.safetensors").unlink()
    (folder / "summary.json").unlink()
    run(tiny(), folder, resume=True)
    assert (folder / "scores.npy").read_bytes() == before
    assert kept_seed(folder) == kept_seed(fresh[0])


def test_without_its_seed_a_run_neither_goes_on_nor_predicts(fresh, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(fresh[0], folder)
    (folder / "private" / "seed").unlink()
    with pytest.raises(ValueError, match="private/seed is missing"):
        run(tiny(), folder, resume=True)
    with pytest.raises(ValueError, match="private/seed is missing"):
        predict(folder, np.zeros((1, 64), dtype=np.float32))
    assert not (folder / "private" / "seed").exists()


@pytest.mark.parametrize(
    "content",
    [
        "",
        "12",
        "1" * 31 + "g",
        "1" * 33,
        "1" * 48,
        "1" * 65,
        "1" * 128,
        "-" + "1" * 31,
        "\xff",
        "0x" + "1" * 30,
    ],
)
def test_what_is_no_seed_is_refused_and_not_repeated(fresh, tmp_path, content):
    folder = tmp_path / "run"
    shutil.copytree(fresh[0], folder)
    (folder / "private" / "seed").write_bytes(content.encode("latin-1"))
    with pytest.raises(ValueError, match="private/seed: is no seed of 32 or 64 hexadecimal digits") as caught:
        run(tiny(), folder, resume=True)
    said = str(caught.value).removeprefix(str(folder))  # where the run lies may well hold the same two digits
    assert not content or content not in said


def test_what_holds_a_seed_does_not_show_it(tmp_path):
    seed = 2**100 + 12345
    plan = server.Plan(
        mechanism=UserFedAvg(rounds=1, noise_multiplier=1.0, sampling=Poisson(probability=0.5)),
        num_users=4,
        seed=seed,
    )
    shared = SharedWork(seed=seed, wanted=True)
    task = shared.task(tiny(), "cpu", seed)
    assert shared.first_updates(tiny(), task) is not None
    shown = [repr(task), repr(shared), repr(plan)]
    shown.append(repr(Augment(local=LocalTraining(shift=1), seed=seed, round=0)))
    shown.append(repr(RunFolder(vault=Vault(tmp_path), seed=seed)))
    assert not any(leaks(text.encode(), seed) for text in shown)


def test_the_seed_is_on_the_disk_before_anything_is_trained(tmp_path, monkeypatch):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(experiment, "train_ensemble", stop)
    with pytest.raises(KeyboardInterrupt):
        run(tiny(), tmp_path / "run")
    monkeypatch.undo()
    seed = kept_seed(tmp_path / "run")
    run(tiny(), tmp_path / "run", resume=True)
    assert kept_seed(tmp_path / "run") == seed


# --- what follows from a seed -------------------------------------------------------------------------------


def test_short_seeds_give_what_they_always_gave():
    for seed in (0, 7, 2**63, 2**64 - 1):
        expected = np.random.SeedSequence(seed, spawn_key=(3, 5)).generate_state(8)
        np.testing.assert_array_equal(seeds.keyed(seed, 3, 5).generate_state(8), expected)


def test_one_stream_of_a_secret_seed_says_nothing_about_it():
    secret = seeds.fresh_seed()
    keys = [(0,), (1, 0, 0), (2, 0), (2, 1), (2, 11), (21, 1), (2, 1, 1), (3, 0)]
    found = [seeds.keyed(secret, *key) for key in keys]
    assert len({one.entropy for one in found}) == len(keys)
    assert all(one.spawn_key == () and not leaks(repr(one).encode(), secret) for one in found)


def test_engine_and_flower_draw_the_same_from_a_secret_seed():
    secret, sampling = seeds.fresh_seed(), Poisson(probability=0.5)
    mechanism = UserFedAvg(rounds=3, noise_multiplier=1.0, sampling=sampling)
    plan = server.Plan(mechanism=mechanism, num_users=9, seed=secret, replicas=range(2, 5))
    np.testing.assert_array_equal(
        server.draw_cohorts(plan), draw_cohorts(sampling, np.arange(9), 3, secret, range(2, 5))
    )


# --- many runs ----------------------------------------------------------------------------------------------


@pytest.fixture
def opened(monkeypatch):
    """States of all secret streams that are opened, by the name under which a test collects them."""
    found = {}
    original = randomness.sequence

    def recorded(seed, purpose, *path):
        made = original(seed, purpose, *path)
        if purpose in (Purpose.COHORT, Purpose.NOISE, Purpose.BATCH):
            found.setdefault(found["now"], set()).add(made.generate_state(8).tobytes())
        return made

    monkeypatch.setattr(randomness, "sequence", recorded)
    monkeypatch.setattr(seeds, "sequence", recorded)
    return found


def test_runs_of_a_sweep_share_their_work_and_no_noise(opened, tmp_path, first_trained):
    # With the same noise 2 W - W' would be free of it, where W has half the noise of W'.
    runs = points(tiny(), ["mechanism.noise_multiplier=2,4,8"])
    opened["now"] = "first"
    sweep(runs[:1], tmp_path)
    common, first = kept_seed(tmp_path), kept_seed(tmp_path / runs[0].name)
    opened["now"] = "later"
    first_trained.clear()
    sweep(runs, tmp_path)
    own = [kept_seed(tmp_path / point.name) for point in runs]
    assert own[0] == first
    assert {seed >> 128 for seed in own} == {common} == {kept_seed(tmp_path)}
    assert len(set(own)) == 3
    assert (
        len(first_trained) == len(set(first_trained)) > 0
    )  # nobody's first update twice, in the two missing runs
    assert len(opened["first"]) * 2 == len(opened["later"]) == 2 * 2 * 12
    assert not opened["first"] & opened["later"]
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in tmp_path.rglob("private/seed"))
    looked_at = [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "seed"]
    assert {path for path in looked_at for seed in (common, *own) if leaks(path.read_bytes(), seed)} == set()


def test_a_run_of_a_sweep_that_is_made_known_can_be_had_again(tmp_path):
    [point] = points(tiny(), ["mechanism.noise_multiplier=2"])
    sweep([point], tmp_path / "sweep")
    folder = tmp_path / "sweep" / point.name
    known = tiny("mechanism.noise_multiplier=2", f"ensemble.seed={kept_seed(folder):#x}")
    again = run(known, tmp_path / "again").folder
    assert (folder / "scores.npy").read_bytes() == (again / "scores.npy").read_bytes()


def test_a_sweep_over_seeds_that_are_named_draws_none(tmp_path):
    sweep(points(tiny("ensemble.replicas=4"), ["ensemble.seed=1,2"]), tmp_path)
    assert not list(tmp_path.rglob("private/seed"))


def test_mechanisms_that_are_compared_share_no_noise(tmp_path):
    once = (*ONCE, "certificate.max_size=10")
    compare({"dp": tiny(), "once": tiny(*once), "named": tiny("ensemble.seed=1")}, tmp_path)
    own = {kept_seed(tmp_path / name) for name in ("dp", "once")}
    assert len(own) == 2
    assert {seed >> 128 for seed in own} == {kept_seed(tmp_path)}
    assert not (tmp_path / "named" / "private" / "seed").exists()


def test_a_reproduction_is_repeatable_or_refused(tmp_path):
    (tmp_path / "paper").mkdir()
    (tmp_path / "tiny.toml").write_text(TINY)
    panel = '[[panel]]\nname = "p"\ntitle = "P"\nmeasure = "accuracy"\nexperiment = "tiny"\n'
    (tmp_path / "paper" / "s.toml").write_text(f'title = "S"\norder = 1\nshows = "x"\n{panel}')
    [study] = load_studies(tmp_path)
    with pytest.raises(ValueError, match=r"tiny\.toml: ensemble\.seed is missing"):
        points_of(study, tmp_path)


# --- what a certificate takes for granted -------------------------------------------------------------------


STEPS = ("mechanism.kind=instance-fedavg", "mechanism.local_steps=2", "mechanism.sampling=none")
SECRETIVE = {
    "user-fedavg": (),
    "everybody takes part": ("mechanism.sampling=none",),
    "cohort-once": (*DRAWN, "certificate.method=vote"),
    "hybrid": (*ONCE, "certificate.max_size=10"),
    "instance-fedavg": (*STEPS, "threat.unit=instance"),
    "instance-fedsgd": ("mechanism.kind=instance-fedsgd", "mechanism.sampling=fixed", "threat.unit=instance"),
}


SECRETS = {"seed-fresh", "seed-known", "no-seed"}


@pytest.mark.parametrize("changes", SECRETIVE.values(), ids=SECRETIVE)
@pytest.mark.parametrize(
    ("seed", "code"),
    [
        ((), "seed-fresh"),
        (("ensemble.seed=0",), "seed-known"),
        (("ensemble.seed=0", "ensemble.secure_noise=true"), "no-seed"),
    ],
    ids=["fresh", "named", "secure noise"],
)
def test_a_certificate_says_what_corrupted_units_must_not_know(tmp_path, changes, seed, code):
    done = run(tiny(*changes, *seed), tmp_path / "run")
    for certificate in (done.certificate, predict(done.folder, np.zeros((1, 64), dtype=np.float32))):
        stated = {one.code for one in certificate.settings.stated_assumptions}
        assert stated & SECRETS == {code}
        assert Statement.of(code) in certificate.assumptions
    text = (done.folder / "certificate.json").read_text()
    assert verify(text, done.folder / "scores.npy") == ()
    assert Statement.of(code).sentence in write_report(done.folder).read_text()


@pytest.mark.parametrize("seed", [(), ("ensemble.seed=0",)], ids=["fresh", "named"])
def test_a_partition_keeps_no_secret(tmp_path, seed):
    # Votes of groups are counted: whoever knows who is in which group still touches one for each unit.
    changes = ("mechanism.kind=partition", "mechanism.groups=4", "certificate.method=vote", *seed)
    done = run(tiny(*changes), tmp_path / "run")
    assert not SECRETS & {one.code for one in done.certificate.settings.stated_assumptions}
    assert verify((done.folder / "certificate.json").read_text(), done.folder / "scores.npy") == ()


# --- what is looked at beforehand ---------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [(), ("ensemble.seed=0",)], ids=["fresh", "named"])
def test_a_pilot_trains_none_of_the_replicas_that_are_certified(opened, tmp_path, seed):
    for kind, changes in {"once": ONCE, "dp": ()}.items():
        config = tiny(*changes, "certificate.max_size=10", *seed)
        opened["now"] = "pilot"
        pilot(config, cohorts=(2, 3), replicas=12)
        opened["now"] = "run"
        run(config, tmp_path / kind)
    assert len(opened["pilot"]) >= 12
    assert len(opened["run"]) >= 12
    assert not opened["pilot"] & opened["run"]


def test_a_pilot_is_repeatable_where_its_configuration_is():
    found = [pilot(tiny(f"ensemble.seed={seed}"), cohorts=(2,))[1][2] for seed in (0, 0, 1)]
    np.testing.assert_array_equal(found[0], found[1])
    assert not np.array_equal(found[0], found[2])


# --- what may be published ----------------------------------------------------------------------------------


def test_what_happened_in_each_round_is_private(fresh):
    folder, printed = fresh
    assert not (folder / "rounds.csv").exists()
    header = (folder / "private" / "rounds.csv").read_text().splitlines()[0]
    assert "mean_norm,clipped_share" in header
    page = (folder / "report.html").read_text()
    assert not any(word in page for word in ("mean norm", "clipped share<", "cohort size"))
    assert "ε so far" in page
    assert b"Keep private/ to yourself; everything else here may be published." in printed
    assert "rounds.csv" in (folder / "PUBLISH.txt").read_text()


def test_who_trained_may_look_at_every_round(fresh, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(fresh[0], folder)
    before = (folder / "report.html").read_bytes()
    page = write_report(folder, private=True)
    assert page == folder / "private" / "report.html"
    assert "mean norm" in page.read_text()
    assert UNCOVERED in page.read_text()
    assert (folder / "report.html").read_bytes() == before
    shutil.rmtree(folder / "private")
    with pytest.raises(ValueError, match=r"private/rounds\.csv is not there"):
        write_report(folder, private=True)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ((), "everything else here may be published"),
        (("ensemble.seed=0", "ensemble.secure_noise=true"), "everything else here may be published"),
        (("ensemble.seed=0",), "whoever knows the seed can remove the noise"),
        (("mechanism.clip=median",), "median"),
        ((*DRAWN, "certificate.method=vote"), "No noise was added"),
        (("mechanism.kind=fedavg",), "No noise was added"),
    ],
)
def test_a_run_says_what_may_be_published(tmp_path, capsys, changes, said):
    done = run(tiny("ensemble.replicas=4", *changes), tmp_path / "run")
    first = (done.folder / "PUBLISH.txt").read_text().splitlines()[0]
    assert said in first
    show(done.summary, done.folder)
    assert first in capsys.readouterr().out
    assert (done.folder / "private" / "rounds.csv").exists()


def test_only_what_repeats_is_offered_to_be_repeated(tmp_path):
    for name, changes, offered in [
        ("fresh", (), False),
        ("secure", ("ensemble.seed=0", "ensemble.secure_noise=true"), False),
        ("named", ("ensemble.seed=0",), True),
    ]:
        folder = run(tiny("ensemble.replicas=4", *changes), tmp_path / name).folder
        assert ("fedproof run config.toml --out AGAIN" in write_report(folder).read_text()) is offered


def test_who_picks_a_run_after_looking_is_told_what_that_costs(tmp_path):
    config = tmp_path / "tiny.toml"
    config.write_text(TINY)
    vary = ("--vary", "mechanism.noise_multiplier=2,4", "--set", "ensemble.replicas=4")
    done = fedproof("sweep", config, "--out", tmp_path / "out", *vary)
    for text in (done.stdout, (tmp_path / "out" / "sweep.html").read_text()):
        assert "pick one of 2 runs after looking" in text
        assert "a failure probability divided by 2" in text
    assert "PUBLISH.txt" in done.stdout


def test_who_knows_the_seed_needs_far_fewer_units():
    # Why all this: 500 replicas on 5 of 1000 users each. Unknown, 125 users leave most replicas untouched.
    users, replicas, certified = 1000, 500, 125
    assert (1 - certified / users) ** 5 > 0.5
    drawn = draw_cohorts(FixedSize(cohort=5, users=users), np.arange(users), 1, 0, range(replicas))[:, 0]
    untouched, chosen = np.ones(replicas, dtype=bool), 0
    while untouched.sum() > replicas / 2:
        untouched &= ~drawn[:, drawn[untouched].sum(axis=0).argmax()]
        chosen += 1
    assert chosen < 60
