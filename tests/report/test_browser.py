"""The pages in a real Chromium, with the network off."""

import re

import pytest

from fedproof.certificates import ApproximateDP, inefficacy, loads
from fedproof.certificates.planning import certifies
from fedproof.report.attack_page import write_attack_page, write_inefficacy_page
from fedproof.report.certificate_page import write_certificate_page
from fedproof.report.comparisons import write_compare_page, write_sweep_page
from fedproof.report.page import Markup, tag, write_page
from fedproof.report.planner import query_at, typical_confidences
from fedproof.report.run_data import read_run
from fedproof.report.run_page import body, write_report
from fedproof.report.words import headline, rounded_up
from fedproof.summary import read_summary

CURVE = "[data-figure=certified-accuracy]"


def plain(text):
    return text.replace("\u00a0", " ")


@pytest.fixture(scope="module")
def page(make_run):
    return write_report(make_run())


@pytest.fixture(scope="module")
def pages(make_run, page, attack_rows, sweep_rows, compare_rows, tmp_path_factory):
    """One page of each kind."""
    folder = tmp_path_factory.mktemp("pages")
    privacy = ApproximateDP(epsilon=0.5, delta=0.0, relation="replace")
    bounds = inefficacy([0.4] * 9, cost_bound=0.5, privacy=privacy, sizes=range(5), method="paper")
    return {
        "report": page,
        "heuristic": write_report(make_run("mechanism.clip=median")),
        "nothing": write_report(make_run("mechanism.kind=fedavg")),
        "certificate": write_certificate_page(
            loads((page.parent / "certificate.json").read_bytes()),
            folder / "certificate.html",
            command="fedproof verify certificate.json",
        ),
        "attack": write_attack_page(attack_rows(), folder / "attack.html"),
        "inefficacy": write_inefficacy_page(bounds, folder / "inefficacy.html"),
        "sweep": write_sweep_page(sweep_rows(), folder / "sweep.html"),
        "compare": write_compare_page(compare_rows(), folder / "compare.html"),
    }


KINDS = ("report", "heuristic", "nothing", "certificate", "attack", "inefficacy", "sweep", "compare")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])  # colours take no room
def test_pages_load_without_network_errors_or_overflow(browser, pages, tmp_path, kind, width, dark):
    browser.open(pages[kind], width=width, dark=dark)
    assert browser.errors == []
    asked = [url for url in browser.requests if not url.startswith("data:")]
    assert asked == [pages[kind].resolve().as_uri()]
    assert browser.value("document.documentElement.scrollWidth") <= width
    ground = browser.value("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", ground))) < 200) == dark
    browser.screenshot(tmp_path / "page.png")
    assert (tmp_path / "page.png").stat().st_size > 10_000


def test_the_numbers_shown_are_those_of_the_files(browser, page):
    browser.open(page)
    summary = read_summary(page.parent)
    assert browser.text("h1") == headline(summary)
    assert plain(browser.text("[data-key=accuracy]")) == f"{100 * summary.accuracy:.1f} %"
    assert browser.text("[data-key=median-size]") == str(summary.certified_size.median)
    assert browser.text("[data-key=epsilon]") == f"ε = {rounded_up(summary.one.epsilon, 3)}"
    rows = browser.value(
        f"[...document.querySelectorAll('{CURVE} tbody tr')].map(row => row.cells[1].textContent)"
    )
    certificate = loads((page.parent / "certificate.json").read_bytes())
    shown = [plain(text) for text in rows if text]
    assert shown == [f"{100 * share:.1f} %" for share in (*certificate.curve, 0.0)]


@pytest.mark.parametrize(("width", "svg"), [(1280, "wide"), (390, "narrow")])
def test_hovering_a_curve_shows_its_value(browser, page, width, svg):
    browser.open(page, width=width)
    certificate = loads((page.parent / "certificate.json").read_bytes())
    chart = f"{CURVE} svg.{svg}"
    read = f"document.querySelector('{chart}')"
    for size in (0, 3, len(certificate.curve) - 1):
        x = browser.value(
            f"(s => (+s.dataset.start + (s.dataset.end - s.dataset.start) * ({size} - s.dataset.low)"
            f" / (s.dataset.high - s.dataset.low)) / s.viewBox.baseVal.width)({read})"
        )
        browser.move(chart, x)
        assert browser.text(f"{CURVE} .values strong") == f"poisoned users k = {size}"
        first = plain(browser.text(f"{CURVE} .values div:nth-of-type(1) b"))
        assert first == f"{100 * certificate.curve[size]:.1f} %"
        box = f"document.querySelector('{CURVE} .values').getBoundingClientRect()"
        assert browser.value(f"(box => box.left >= 0 && box.right <= {width})({box})")


def test_the_keyboard_reads_the_values(browser, page):
    browser.open(page)
    browser.value(f"document.querySelector('{CURVE} .plot').focus()")
    for key in ("ArrowRight", "ArrowRight", "ArrowRight", "ArrowLeft"):
        browser.press(key)
    said = plain(browser.text(f"{CURVE} [aria-live]"))
    certificate = loads((page.parent / "certificate.json").read_bytes())
    assert "poisoned users k = 1" in said
    assert f"{100 * certificate.curve[1]:.1f} %" in said
    browser.press("Escape")
    assert browser.value(f"document.querySelector('{CURVE} .values').hidden")


def test_everything_that_acts_can_be_reached_and_is_named(browser, page):
    browser.open(page)
    unnamed = browser.value(
        "[...document.querySelectorAll('input')].filter(node => !node.labels.length).length"
        " + [...document.querySelectorAll('img')].filter(node => !node.alt).length"
        " + [...document.querySelectorAll('svg')].filter(node => !node.getAttribute('aria-label')).length"
    )
    assert unnamed == 0
    tables = browser.value(
        "document.querySelectorAll('figure').length - document.querySelectorAll('figure table').length"
    )
    assert tables == 0
    identifiers = browser.value("[...document.querySelectorAll('[id]')].map(node => node.id)")
    assert len(identifiers) == len(set(identifiers))


def test_the_planner_shows_what_planning_computes(browser, page):
    browser.open(page)
    run = read_run(page.parent, pictures=False)
    top, rival = typical_confidences(run, run.certificate)
    seen = set()
    for noise, probability, rounds in ((2, 1, 1), (0, 2, 2), (4, 1, 0), (1, 0, 1), (3, 1, 2)):
        for name, place in (("noise", noise), ("probability", probability), ("rounds", rounds)):
            browser.set(f"#plan-{name}", place)
        values = [
            float(browser.text(f"output[for=plan-{name}]")) for name in ("noise", "probability", "rounds")
        ]
        size = int(browser.text("#plan-size").removesuffix(" or more"))
        query = query_at(run.certificate.mechanism, values[0], values[1], int(values[2]))
        question = {"top": top, "rival": rival}
        assert size == 0 or certifies(query, run.certificate.threat, size=size, **question)
        if "or more" not in browser.text("#plan-size"):
            assert not certifies(query, run.certificate.threat, size=size + 1, **question)
        seen.add(size)
    assert len(seen) > 2  # the sliders do change the size


def test_the_planner_answers_for_a_wanted_k(browser, page):
    browser.open(page)
    size = int(browser.text("#plan-size"))
    assert browser.text("#plan-verdict") == f"k = {size} is certified."
    browser.set("#plan-k", size + 1)
    assert f"k = {size + 1} is not certified" in browser.text("#plan-verdict")
    needed = re.search(r"noise ([\d.]+) would do", browser.text("#plan-verdict"))
    places = browser.value("+document.querySelector('#plan-noise').max")
    for place in range(places + 1):
        browser.set("#plan-noise", place)
        enough = browser.text("#plan-verdict") == f"k = {size + 1} is certified."
        if enough:
            assert needed is not None
            assert browser.text("output[for=plan-noise]") == needed[1]
            break


def test_text_of_users_runs_nothing(browser, make_run, hostile_run, tmp_path):
    path = write_page(
        tmp_path / "hostile.html",
        title="</title><script>window.hacked=1</script>",
        body=body(hostile_run(make_run())),
    )
    browser.open(path)
    assert browser.errors == []
    assert browser.value("window.hacked === undefined")
    assert browser.value("document.querySelectorAll('img').length") == 0
    executable = "[...document.scripts].filter(script => script.type !== 'application/json').length"
    assert browser.value(executable) == 1


def test_even_injected_script_would_not_run(browser, tmp_path):
    """The page's policy allows the script with our hash only, and no network."""
    hole = Markup(
        "<script>window.hacked=1</script><img src='https://example.org/x.png' onerror='window.hacked=1'>"
    )
    path = write_page(tmp_path / "hole.html", title="x", body=tag("main", hole, id="main"))
    browser.open(path)
    assert browser.value("window.hacked === undefined")
    assert browser.errors  # Chromium reports what it refused


def test_ten_thousand_inputs_open_quickly(browser, large_run):
    folder, ended = large_run
    path = write_report(folder, **ended)
    assert browser.open(path) <= 1.0  # of processor time; a fifth of that is usual
    assert browser.errors == []


def test_it_prints(browser, page):
    browser.open(page, dark=True)
    printed = browser.call("Page.printToPDF", printBackground=True)
    assert len(printed["data"]) > 20_000
