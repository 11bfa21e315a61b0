"""A number and what it means are one value: no ε is printed, no curve drawn, that is known not to hold."""

import csv
import itertools
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedproof.accounting.spent import Covers, Spent, spent_by
from fedproof.certificates import certify, dumps, loads, verify
from fedproof.experiment import run
from fedproof.federation import EncodedBy
from fedproof.mechanisms import (
    FedAvg,
    FixedSize,
    InstanceFedAvg,
    InstanceFedSGD,
    Median,
    Poisson,
    UserFedAvg,
)
from fedproof.report.run_data import accuracy_chart, read_run
from fedproof.report.run_page import write_report
from fedproof.report.words import NOT_PROVED, amount, equation, rounded_up, why_not
from fedproof.statements import ASSUMED, UNMET, Statement, stated
from fedproof.summary import of_certificate
from fedproof.threat import Relation
from tests.commands import fedproof
from tests.tiny import TINY, tiny

TENTH = Poisson(probability=0.1)
BY_SIZE = (
    "mechanism.kind=instance-fedavg",
    "threat.unit=instance",
    "mechanism.sampling=none",
    "mechanism.local_steps=3",
    "mechanism.batch_size=2",
    "mechanism.delta=1e-3",
)
VOID = {
    "by sizes": (BY_SIZE, "chance-by-size"),
    "shuffled": ((*BY_SIZE, "mechanism.shuffled=true"), "shuffled-batches"),
    "median": (("mechanism.clip=median",), "clip-norm"),
    "another rule": (("aggregation.rule=median",), "rule"),
}


# --- an ε that does not hold --------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=VOID)
def void(request, tmp_path_factory):
    """A run whose ε is known not to hold, what its console said, and the code of the condition."""
    changes, code = VOID[request.param]
    folder = tmp_path_factory.mktemp("void")
    (folder / "tiny.toml").write_text(TINY.replace("seed = 0\n", ""))
    options = [word for change in changes for word in ("--set", change)]
    told = fedproof("run", folder / "tiny.toml", "--out", folder / "run", *options, columns=200)
    return folder / "run", told.stdout, code


def texts(folder):
    return {name: (folder / name).read_text() for name in ("PUBLISH.txt", "report.html")}


def test_an_epsilon_that_does_not_hold_is_printed_nowhere_and_cleared_nowhere(void):
    folder, said, code = void
    summary = json.loads((folder / "summary.json").read_text())
    assert all(code in {one["code"] for one in each["unmet"]} for each in summary["privacy"])
    sentence = Statement.of(code, **({"rule": "median"} if code == "rule" else {})).sentence
    cleared = code == "chance-by-size"  # of an example that is replaced the ε holds, and the data are public
    for name, text in (texts(folder) | {"console": said}).items():
        plain = re.sub(r"&#x27;", "'", text)
        assert (sentence in " ".join(plain.split())) or (cleared and name == "PUBLISH.txt"), name
        assert ("everything else here may be published" in text) <= cleared, name
        for one, digits in itertools.product(summary["privacy"], (3, 4)):
            number = re.escape(rounded_up(one["epsilon"], digits))
            assert not re.search(rf"(ε = |>|│ +){number}(<| |\n)", text), (name, number)
    assert 'data-figure="epsilon-per-round"' not in texts(folder)["report.html"]


def test_what_holds_is_still_printed_and_cleared(tmp_path):
    done = run(tiny("ensemble.secure_noise=true"), tmp_path / "run")
    assert done.summary.one.holds
    page = write_report(done.folder).read_text()
    assert "everything else here may be published" in (done.folder / "PUBLISH.txt").read_text()
    assert equation(done.summary.one) in page
    assert equation(done.summary.all) in page


# --- a curve asks the conditions of its own relation --------------------------------------------------------


def curves(folder):
    found = read_run(folder, pictures=False)
    chart = accuracy_chart(found.certificate, found.curves)
    return {line.label: line for line in chart.series}, found


def test_the_curve_of_instances_that_join_is_not_drawn_as_one_that_holds(tmp_path):
    """One that joins lowers its neighbours' chances: replaced ones are certified, joining ones are not."""
    done = run(tiny(*BY_SIZE, "certificate.method=margin"), tmp_path / "run")
    assert done.certificate.sound  # against instances that are replaced
    lines, _ = curves(done.folder)
    joined = [line for label, line in lines.items() if label.startswith("instances join")]
    replaced = [line for label, line in lines.items() if label.startswith("instances replaced, 99")]
    assert len(joined) == 1 or {line.label for line in joined} == {f"instances join, {NOT_PROVED}"}
    assert all(NOT_PROVED in line.label and line.dashed for line in joined)
    assert replaced
    assert not any(line.dashed for line in replaced)
    with (done.folder / "metrics.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["relation"] == "join"]
    assert rows
    assert all(row["unmet"] == "chance-by-size" for row in rows)
    page = write_report(done.folder).read_text()
    assert "do not hold: chance-by-size" in page


def test_a_certificate_knows_what_is_unmet_under_the_relation_that_it_is_not_for(tmp_path):
    """Users without identities, or without a declared number: nothing is known of one that joins."""
    done = run(tiny(), tmp_path / "run")
    (unnamed,) = [Statement.of("identities", unit="user")]
    settings = replace(done.certificate.settings, unmet_otherwise=(unnamed,))
    certificate = replace(done.certificate, settings=settings)
    assert certificate.sound  # against users who are replaced
    assert certificate.unmet_for_privacy(Relation.JOIN) == (unnamed,)
    found = of_certificate(certificate, (), 1e-3)
    assert not any(one.holds for one in found["privacy"])
    assert all(one.holds for one in of_certificate(done.certificate, (), 1e-3)["privacy"])


def test_curves_of_a_run_that_meets_all_are_drawn_as_they_were(tmp_path):
    lines, _ = curves(run(tiny(), tmp_path / "run").folder)
    assert not any(NOT_PROVED in label for label in lines)
    assert any(label == "users join, 99\u00a0% confidence" for label in lines)


# --- the value ----------------------------------------------------------------------------------------------


def test_each_epsilon_has_the_conditions_of_its_own_relation():
    by_size = InstanceFedAvg(
        rounds=1, local_steps=2, noise_multiplier=4.0, batch_probability=0.5, by_size=True
    )
    joins = spent_by(by_size, 1e-3, models=3)
    assert {one.relation for one in joins} == {Relation.JOIN}
    assert not any(one.holds for one in joins)
    assert {one.unmet for one in joins} == {(Statement.of("chance-by-size"),)}
    assert all(one.holds for one in spent_by(replace(by_size, by_size=False), 1e-3, models=3))

    def missing(relation):
        return (Statement.of("identities", unit="user"),) if relation is Relation.JOIN else ()

    fixed = UserFedAvg(rounds=1, noise_multiplier=4.0, sampling=FixedSize(cohort=5, users=50))
    proven = [one for one in spent_by(fixed, 1e-3, training=missing) if one.accountant == "pld"]
    assert [(one.relation, one.holds) for one in proven] == [(Relation.REPLACE, True)]
    poisson = spent_by(UserFedAvg(rounds=1, noise_multiplier=4.0, sampling=TENTH), 1e-3, training=missing)
    assert not any(one.holds for one in poisson)


def test_published_accountants_are_void_where_they_bound_nothing():
    owners = InstanceFedSGD(
        rounds=2, noise_multiplier=2.0, sampling=FixedSize(cohort=5, users=50), batch_probability=0.1
    )
    held = {one.accountant: one.holds for one in spent_by(owners, 1e-3)}
    assert held == {"paper": False, "rdp": True, "pld": True}


def test_what_concerns_estimates_alone_voids_no_epsilon():
    alone = {code for code in UNMET if not Statement.concerns_privacy.fget(_some(code))}
    assert alone == {
        *("no-confidence", "copies", "copied-models", "spending", "published-formula"),
        *("attended-together", "attended-unnoised"),
    }


def _some(code):
    entry = UNMET[code].sentence + (UNMET[code].fix or "")
    return Statement.of(code, **dict.fromkeys(re.findall(r"\{(\w+)", entry), "x"))


def test_no_number_without_its_conditions():
    one = Spent(epsilon=0.44, delta=1e-3, relation="join", unit="user", covers=Covers.MODEL)
    void = replace(one, unmet=(Statement.of("clip-norm"),))
    assert "0.44" in amount(one)
    assert "0.44" in equation(one)
    for text in (amount(void), equation(void), *why_not([void])):
        assert "0.44" not in text
    assert why_not([one]) == []
    assert "median of the cohort" in why_not([void])[0]


@pytest.mark.parametrize(
    "change",
    [{"epsilon": -1.0}, {"delta": 0.0}, {"relation": "zero-out"}, {"covers": "all"}, {"unmet": ("text",)}],
    ids=str,
)
def test_a_value_that_says_nothing_is_refused(change):
    known = {"epsilon": 0.44, "delta": 1e-3, "relation": "join", "unit": "user", "covers": "model"}
    with pytest.raises(ValueError, match=next(iter(change))):
        Spent(**known | change)


SHOWING = ("report", "cli", "integrations/flower", "folder.py", "sweep.py")
MAY = {  # what computes with an ε, the place that prints one, and totals of ledgers, which hold no void one
    "folder.py",
    "report/words.py", "report/comparisons.py", "report/run_data.py", "report/certificate_page.py",
}  # fmt: skip


def test_only_one_place_prints_an_epsilon():
    """Everything else shows the value: `words.amount` and `words.equation` never print a void one."""
    root = Path(__file__).parents[1] / "src" / "fedproof"
    for place in SHOWING:
        path = root / place
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            text = file.read_text()
            if file.relative_to(root).as_posix() not in MAY:
                assert not re.search(r"rounded_up\([^)\n]*epsilon|\{[\w.\[\]()]*\.epsilon\b", text), file


# --- the catalogue ------------------------------------------------------------------------------------------


def test_no_code_is_in_both_halves_and_every_sentence_is_one_line():
    assert not set(UNMET) & set(ASSUMED)
    for code, entry in (UNMET | ASSUMED).items():
        assert re.fullmatch(r"[a-z]+(-[a-z]+)*", code)
        assert "\n" not in entry.sentence
        assert not entry.sentence.endswith(".")


@pytest.mark.parametrize(
    ("code", "arguments", "message"),
    [
        ("no such code", {}, "is not in the catalogue"),
        ("rule", {}, "takes rule"),
        ("rule", {"rule": "krum", "more": 1}, "takes rule"),
        ("rule", {"rule": "two\nlines"}, "one line"),
        ("rule", {"rule": True}, "a text or a number"),
        ("noise-of-honest", {"honest": 10**4000}, "a text or a number"),
        ("noise-of-honest", {"honest": float("nan")}, "a text or a number"),
        ("executed", {"text": "x"}, "takes no arguments"),
        ("executed", [], "takes no arguments"),
    ],
)
def test_a_statement_that_nobody_can_read_is_refused(code, arguments, message):
    with pytest.raises(ValueError, match=message):
        Statement(code=code, arguments=arguments)


def test_nobody_may_state_what_is_derived():
    with pytest.raises(ValueError, match="'executed' is derived"):
        stated([Statement.of("executed")], "assumptions", "stated")
    assert stated(["own words"], "assumptions", "stated")[0].told


def test_files_hold_codes_and_no_sentence():
    scores = np.random.default_rng(0).dirichlet([20, 1], size=(60, 3))
    clipped = UserFedAvg(rounds=1, noise_multiplier=9.0, sampling=TENTH, clipping=Median())
    certificate = certify(scores, mechanism=clipped, assumptions=EncodedBy(public=5).assumptions)
    text = dumps(certificate)
    assert loads(text) == certificate
    assert verify(text, scores) == ()
    document = json.loads(text)
    assert document["unmet"] == [{"code": "clip-norm", "arguments": {}}]
    for statement in (*certificate.unmet, *certificate.assumptions):
        assert statement.sentence not in text
    assert hash(certificate.unmet) == hash(loads(text).unmet)


def test_without_noise_there_is_a_condition_and_no_epsilon():
    bare = FedAvg(rounds=1, sampling=TENTH)
    assert spent_by(bare, 1e-3) == ()
    assert [one.code for one in bare.unmet(Relation.JOIN)] == ["no-noise"]
