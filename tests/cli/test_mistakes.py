"""Mistakes that people make are answered by one line that names the option, the value and what is allowed.

Nothing is computed, written or printed before, and there is never a traceback.
"""

import shlex

import numpy as np
import pytest
import typer.main
from click.testing import CliRunner

from fedproof import cli
from fedproof.cli import app
from fedproof.files import replace_file

MAIN = typer.main.get_command(app)

CERTIFY = "certify --scores scores.npy"
TENTH = "--noise-multiplier 1.8 --sampling-probability 0.1"
COST = f"inefficacy --costs costs.npy --cost-bound 0.5 {TENTH}"
RANK = "plan --size 3 --users 100 --accuracy 5=0.7"

MISTAKES = [
    # the mechanism is not described, or by half
    (CERTIFY, "user-level DP-FedAvg (--unit user) needs --noise-multiplier"),
    (f"{CERTIFY} --noise-multiplier 1.8", "how users are drawn is missing: give --sampling-probability, or"),
    (f"{CERTIFY} --noise-multiplier 1.8 --sampling fixed", "--sampling fixed needs --cohort and --users"),
    (f"{CERTIFY} --noise-multiplier 1.8 --sampling fixed --cohort 9", "--sampling fixed needs --users"),
    (f"{CERTIFY} --noise-multiplier 1.8 --users 200", "needs --cohort and --sampling poisson"),
    (
        f"{CERTIFY} --unit instance --noise-multiplier 1.8",
        "InsDP-FedAvg (--unit instance without --batch-prob",
    ),
    (
        f"{CERTIFY} --unit instance --noise-multiplier 1.8 --batch-probability 0.1",
        "InsDP-FedSGD (--unit instance with --batch-probability) needs --cohort and --users",
    ),
    (f"{CERTIFY} {TENTH} --method paper", "--method paper needs --delta"),
    (f"{CERTIFY} {TENTH} --method exact", "--method exact is for the one model that fedproof run releases"),
    # numbers out of range
    (
        f"{CERTIFY} --noise-multiplier -1 --sampling none",
        "--noise-multiplier = -1.0 must be a positive number",
    ),
    (
        f"{CERTIFY} --noise-multiplier inf --sampling none",
        "--noise-multiplier = inf must be a positive number",
    ),
    (
        f"{CERTIFY} --noise-multiplier nan --sampling none",
        "--noise-multiplier = nan must be a positive number",
    ),
    (f"{CERTIFY} --noise-multiplier 1e-300 --sampling none", "= 1e-300 must be between 0.001 and 1e+06"),
    (f"{CERTIFY} --noise-multiplier 1e300 --sampling none", "= 1e+300 must be between 0.001 and 1e+06"),
    ("account --noise-multiplier 1e-9 --sampling none", "= 1e-09 must be between 0.05 and 1e+06"),
    (
        f"{CERTIFY} --noise-multiplier 1 --sampling-probability 10",
        "--sampling-probability = 10.0 must be in (0",
    ),
    (f"{CERTIFY} {TENTH} --rounds 0", "--rounds = 0 must be a whole number of at least 1"),
    (f"{CERTIFY} {TENTH} --per-layer 0", "--per-layer = 0 must be a whole number of at least 1"),
    (f"{CERTIFY} --unit instance {TENTH} --steps 0", "--steps = 0 must be a whole number of at least 1"),
    (
        f"{CERTIFY} --noise-multiplier 1 --sampling fixed --cohort 20 --users 10",
        "--cohort = 20 must be at most the number of users = 10",
    ),
    (f"{CERTIFY} {TENTH} --failure-probability 1", "--failure-probability = 1.0 must be in (0, 1)"),
    (f"{CERTIFY} {TENTH} --max-size -1", "--max-size = -1 must be a whole number of at least 0"),
    (f"{CERTIFY} {TENTH} --served 2", "--served = 2.0 must be in (0, 1)"),
    (f"{CERTIFY} {TENTH} --method paper --delta 2", "--delta = 2.0 must be in (0, 1)"),
    (f"account {TENTH} --delta 0", "--delta = 0.0 must be in (0, 1)"),
    (f"account {TENTH} --epsilon -1", "--epsilon = -1.0 must be zero or a positive number"),
    (f"account {TENTH} --replicas 0", "--replicas = 0 must be a whole number of at least 1"),
    # ε and δ
    (
        f"{CERTIFY} --epsilon 1",
        "a guarantee known by --epsilon alone needs --delta and --epsilon-relation join (ε",
    ),
    (
        f"{CERTIFY} --epsilon 1 --delta 1e-5",
        "needs --epsilon-relation join (ε is for one unit added or removed)",
    ),
    (
        f"{CERTIFY} --epsilon -1 --delta 1e-5 --epsilon-relation join",
        "--epsilon = -1.0 must be zero or a pos",
    ),
    (f"{CERTIFY} --epsilon 1 --delta 1 --epsilon-relation join", "--delta = 1.0 must be in [0, 1)"),
    (
        f"{CERTIFY} --delta 1e-5 {TENTH}",
        "--delta 1e-05 does not belong to --method margin: it is for a guarantee",
    ),
    # theorems and bounds that do not go together
    (
        f"{CERTIFY} {TENTH} --method margin --bound hoeffding",
        "--bound = 'hoeffding' must be betting or levels",
    ),
    (f"{CERTIFY} {TENTH} --method mean --bound levels", "--bound = 'levels' belongs to method margin"),
    (
        f"{CERTIFY} --noise-multiplier 1 --sampling fixed --cohort 2 --users 10 --relation join "
        "--method renyi",
        "--relation = 'join' is not defined for cohorts of fixed size",
    ),
    (
        f"{CERTIFY} {TENTH} --rule run-off",
        "--rule run-off does not belong to --method margin: it is for --method",
    ),
    (
        f"{CERTIFY} {TENTH} --method mean --rule pairwise",
        "--rule = 'pairwise' compares votes: use method vote",
    ),
    (
        f"{CERTIFY} {TENTH} --method mean --bound none --simultaneous",
        "--simultaneous True does not belong to --bound none",
    ),
    # files
    (f"certify --scores nowhere.npy {TENTH}", "--scores = 'nowhere.npy' cannot be read"),
    (
        f"certify --scores labels.npy {TENTH}",
        "--scores labels.npy: scores have shape (4,), must be (replicas,",
    ),
    (f"certify --scores note.txt {TENTH}", "--scores = 'note.txt' must be a .npy or .npz file"),
    (
        f"{CERTIFY} --labels scores.npy {TENTH}",
        "--labels scores.npy: labels have shape (20, 4, 2), must be (4,)",
    ),
    (f"{CERTIFY} {TENTH} --out nowhere/c.json", "--out nowhere/c.json: there is no folder nowhere"),
    (f"{CERTIFY} {TENTH} --out .", "--out . is a folder, must be a file"),
    (f"{CERTIFY} {TENTH} --out scores.npy", "--out scores.npy is the file of --scores, must be another one"),
    (
        f"{CERTIFY} {TENTH} --labels labels.npy --page ./labels.npy",
        "--page labels.npy is the file of --labels",
    ),
    (f"{CERTIFY} {TENTH} --out c.json --page c.json", "--page c.json is the file of --out, must be another"),
    (f"{CERTIFY} {TENTH} --out /dev/null", "--out /dev/null is no regular file, must be one or a new name"),
    (f"{COST} --out costs.npy", "--out costs.npy is the file of --costs, must be another one"),
    (f"{COST} --page .", "--page . is a folder, must be a file"),
    (f"{CERTIFY} {TENTH} --page nowhere/p.html", "--page nowhere/p.html: there is no folder nowhere"),
    ("report note.txt", "note.txt: certificate is not a JSON document"),
    ("verify note.txt", "note.txt: certificate is not a JSON document"),
    ("verify .", "certificate.json: cannot be read: No such file or directory"),
    ("report nowhere", "nowhere: there is no such file or folder"),
    ("verify nowhere.json", "nowhere.json: cannot be read: No such file or directory"),
    # costs
    (f"{COST} --sizes 5:1", "--sizes '5:1' must count up from 0 or more"),
    (f"{COST} --sizes some", "--sizes 'some' must be a number or look like 0:10 or 1,5,20"),
    (f"{COST} --sizes 0:99999999999", "--sizes '0:99999999999' must be at most 100000 numbers"),
    (f"{COST} --tau 0.5", "--tau = 0.5 must be at least 1"),
    (
        f"inefficacy --costs scores.npy --cost-bound 1 {TENTH}",
        "--costs scores.npy: costs have shape (20, 4, 2)",
    ),
    (f"inefficacy --costs costs.npy --cost-bound 0 {TENTH}", "--cost-bound = 0.0 must be a positive number"),
    # planning
    ("plan", "give either --size (to certify) or --epsilon (to be private)"),
    ("plan --size 3", "how users are drawn is missing: give --sampling-probability"),
    ("plan --size 0 --sampling none", "--size = 0 must be a whole number of at least 1"),
    ("plan --size 999999999 --sampling-probability 0.1", "--size = 999999999 must be at most 100000"),
    ("plan --size 3 --top 0.4 --sampling none", "--top = 0.4 must be larger than rival = 0.6"),
    ("plan --size 3 --top 2 --sampling none", "--top = 2.0 must be in [0, 1]"),
    ("plan --epsilon 0 --sampling none", "--epsilon = 0.0 must be a positive number"),
    ("plan --find rounds --size 3 --sampling none", "--find rounds needs --noise-multiplier"),
    (
        "plan --find cohort --size 3 --noise-multiplier 2 --users 9",
        "--find cohort needs --sampling poisson (each",
    ),
    (
        "plan --find cohort --size 3 --noise-multiplier 2 --users 9 --sampling none",
        "--sampling none does not belong to --find cohort: it draws no cohort, give poisson or fixed",
    ),
    (
        "plan --find mechanism",
        "--find mechanism needs --size and --accuracy (as 10=0.71, several) or --pilot",
    ),
    ("plan --find mechanism --size 3", "--find mechanism needs --accuracy (as 10=0.71, several) or --pilot"),
    ("plan --size 3 --accuracy 5=0.7", "--find mechanism with --accuracy needs --users"),
    ("plan --size 3 --users 9 --accuracy 5:0.7", "--accuracy '5:0.7' must look like 10=0.71"),
    (f"{RANK} --accuracy 5=0.8", "--accuracy 5=0.8: there is another one for 5, give one for each number"),
    (f"{RANK} --accuracy 500=0.8", "--accuracy 500=0.8: 500 must be at most --users 100"),
    (f"{RANK} --accuracy 9=80", "--accuracy '9=80': the accuracy must be in (0, 1)"),
    (f"{RANK} --replicas 0", "--replicas = 0 must be a whole number of at least 1"),
    (f"{RANK} --replicas 999999999", "--replicas = 999999999 must be at most 1000000"),
    (f"{RANK} --epsilon 1 --delta 7", "--delta = 7.0 must be in (0, 1)"),
    ("plan --size 3 --pilot nowhere.toml", "nowhere.toml: there is no such file"),
]


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("files")
    np.save(path / "scores.npy", np.full((20, 4, 2), 0.5))
    np.save(path / "labels.npy", np.zeros(4, dtype=int))
    np.save(path / "costs.npy", np.full(20, 0.3))
    (path / "note.txt").write_text("neither an array nor a certificate")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        yield path


@pytest.mark.parametrize(("line", "answer"), MISTAKES, ids=[line for line, _ in MISTAKES])
def test_a_mistake_is_answered_by_one_line(line, answer, folder):
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    done = CliRunner().invoke(MAIN, shlex.split(line))
    assert isinstance(done.exception, ValueError), repr(done.exception)
    assert answer in str(done.exception)
    assert "\n" not in str(done.exception)
    assert done.stdout == ""
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("certify", "Missing option '--scores'"),
        (f"{CERTIFY} --noise-multiplier much", "Invalid value for '--noise-multiplier': 'much'"),
        (f"{CERTIFY} --rounds 3.5", "Invalid value for '--rounds': '3.5'"),
        (f"{CERTIFY} --unit client", "'client' is not one of 'user', 'instance'"),
        (f"{CERTIFY} --epsilon-relation add-remove", "'add-remove' is not one of 'join', 'replace'"),
        ("plan --find users", "'users' is not one of 'noise', 'rounds', 'cohort', 'mechanism'"),
        (f"account {TENTH} --relation join", "No such option: --relation"),
        ("verify", "Missing argument 'CERTIFICATE'"),
    ],
)
def test_wrong_usage_names_what_is_allowed(line, answer):
    done = CliRunner().invoke(MAIN, shlex.split(line))
    assert done.exit_code == 2
    assert answer in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["run", "x.toml"], "interrupted: finished parts are kept, continue with --resume"),
        (["sweep", "x.toml"], "interrupted: what is finished is kept, the same command goes on"),
        (["plan", "--size", "3"], "interrupted"),
        ([], "interrupted"),
    ],
    ids=["run", "sweep", "plan", "nothing"],
)
def test_who_interrupts_a_command_is_told_what_it_kept(words, answer, monkeypatch, capsys):
    def stopped():
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "app", stopped)
    monkeypatch.setattr("sys.argv", ["fedproof", *words])
    with pytest.raises(SystemExit, match="130"):
        cli.main()
    assert capsys.readouterr().err.strip() == answer


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        (
            OSError(28, "cannot be written (No space left on device)", "run/x"),
            "run/x: cannot be written (No spa",
        ),
        (PermissionError(13, "Permission denied", "x.npy"), "x.npy: Permission denied"),
        (OSError("no such device"), "no such device"),
        (OSError(28, "No space left on device"), "No space left on device"),
        (MemoryError("Unable to allocate 93 GiB"), "out of memory: Unable to allocate 93 GiB"),
    ],
    ids=["full disk", "forbidden", "other", "full pipe", "memory"],
)
def test_what_the_machine_refuses_is_one_line_without_numbers_of_errors(error, answer, monkeypatch, capsys):
    def stopped():
        raise error

    monkeypatch.setattr(cli, "app", stopped)
    with pytest.raises(SystemExit, match="1"):
        cli.main()
    told = capsys.readouterr().err
    assert told.startswith(f"error: {answer}")
    assert "Errno" not in told
    assert told.count("\n") == 1


def test_a_disk_that_takes_nothing_back_is_named_by_the_file_that_was_asked_for(tmp_path, monkeypatch):
    def refuse(*told, **how):
        raise OSError(30, "Read-only file system", "elsewhere")

    monkeypatch.setattr("fedproof.files.os.open", refuse)
    monkeypatch.setattr("pathlib.Path.unlink", refuse)
    with pytest.raises(OSError, match="cannot be written") as told:
        replace_file(tmp_path / "c.json", b"{}")
    assert (told.value.filename, told.value.strerror) == (
        str(tmp_path / "c.json"),
        "cannot be written (Read-only file system)",
    )


def test_a_folder_that_cannot_be_written_to_is_said_before_anything_is_computed(folder, monkeypatch):
    monkeypatch.setattr("fedproof.cli.common.os.access", lambda path, mode: str(path) != ".")
    done = CliRunner().invoke(MAIN, shlex.split(f"{CERTIFY} {TENTH} --out c.json"))
    assert str(done.exception) == "--out c.json: the folder . cannot be written to"
