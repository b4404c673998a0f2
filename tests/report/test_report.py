"""The report in a browser: its numbers are the leaderboard's, it sorts, it escapes, it fetches nothing."""

import json
import os
import re
import shutil

import numpy as np
import pandas as pd
import pytest

import pp_testbed as pt
from pp_testbed.engine.identity import describe
from pp_testbed.evaluation.aggregate import paired_difference
from pp_testbed.report import page, parts
from pp_testbed.report.leaderboard import without_superseded
from pp_testbed.studies.calibration import Calibration
from tests.report.test_leaderboard import references_table, results

EXACT = references_table(
    [0.5],
    seconds=10.0,
    rhat=1.001,
    ess_bulk=900.0,
    divergent=0.0,
    kl_marginal=0.1,
    kl_dyadic=0.3,
    kl_joint_bias=0.01,
    num_train=1,
)
EVIL = "<img src=x onerror=alert(1)>"


def some_results():
    """Three methods on six problems, one of them with a failure, and with names that are no HTML."""
    rng = np.random.default_rng(0)
    parts = []
    for method, level in (("mlp", 1.0), ("ensemble+", 0.7), (f"{EVIL} & co", 9.0)):
        scores = level * (1.0 + rng.exponential(size=6))
        made = {"command": f"pp-testbed run --methods '{EVIL}'", "machine": "Linux", "jax": "0.10.2"}
        columns = {
            "suite": "2d",
            "config": json.dumps({"method": {"name": method}, "evaluation": describe(pt.Evaluation())}),
            "temperature": 0.1,
            "input_dim": 2,
            "num_draws": 100,
            "labels": "exact",
            "provenance": json.dumps(made),
            **dict.fromkeys(["evaluate_seconds", "kl_joint_stderr"], 0.1),
            "kl_joint_bias": 0.0,
        }
        frame = results(scores, method, num_seeds=3, **columns)
        parts.append(frame.assign(seed=frame.problem.str[-1].astype(int), input_dim=2))
    broken = parts[1].iloc[:1].assign(method="broken", config_hash="b", status="error", error=f"{EVIL} `x`")
    return pd.concat([*parts, broken.assign(kl_joint=np.nan)], ignore_index=True)


@pytest.fixture(scope="module")
def frame():
    return some_results()


@pytest.fixture(scope="module")
def report(tmp_path_factory, frame):
    path = tmp_path_factory.mktemp("report") / "report.html"
    ranks = np.linspace(0.0, 1.0, 50)[:, None] * np.ones((1, 5))
    calibrations = [(json.dumps({"name": "mlp"}), Calibration("mlp", 3, 0.1, ranks))]
    return pt.write_report(frame, path, references=EXACT, calibrations=calibrations)


@pytest.fixture(scope="module")
def browser():
    names = ("chromium", "chromium-browser", "google-chrome", "chrome")
    binary = os.environ.get("PP_TESTBED_CHROMIUM") or next(filter(None, map(shutil.which, names)), None)
    if binary is None:
        pytest.skip("there is no Chromium here; PP_TESTBED_CHROMIUM may name one")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        made = play.chromium.launch(executable_path=binary, args=["--no-sandbox"])
        yield made
        made.close()


@pytest.mark.parametrize("width", [390, 1280])
def test_it_opens_sorts_and_fetches_nothing(report, browser, frame, width):
    tab, complaints = browser.new_page(viewport={"width": width, "height": 800}), []
    tab.on("console", lambda message: complaints.append(message.text))
    tab.on("pageerror", lambda error: complaints.append(str(error)))
    tab.on("dialog", lambda dialog: complaints.append(dialog.message))
    tab.on("request", lambda request: complaints.append(request.url) if "data:" not in request.url else None)
    tab.goto(report.as_uri())
    table = tab.locator("#leaderboard table")

    def column(place):
        return table.locator("tbody tr").evaluate_all(
            f"rows => rows.map(row => row.cells[{place}].dataset.value ?? null)"
        )

    heads = table.locator("th").all_inner_texts()
    joint = next(i for i, head in enumerate(heads) if head.strip() == "d¹⁰")
    expected = pt.leaderboard(frame, references=EXACT)
    assert [float(value) for value in column(joint)[:3]] == pytest.approx(list(expected.kl_joint[:3]))
    assert column(joint)[3] is None  # broken has no score
    for clicks, order in enumerate((1, -1), start=1):
        table.locator("th button").nth(joint).press("Enter") if clicks == 1 else table.locator(
            "th button"
        ).nth(joint).click()
        values = [float(value) for value in column(joint)[:3]]
        assert values == sorted(values, reverse=order == -1)
        assert column(joint)[3] is None, "what is missing is not last"
    table.locator("th button").first.click()
    assert column(0) == sorted(expected.method, key=str.lower)
    assert tab.evaluate("document.documentElement.scrollWidth") == width, "the page is wider than its window"
    assert tab.evaluate("[...document.images].every(image => image.naturalWidth > 0)")
    assert EVIL in tab.locator("#failures").inner_text()
    assert complaints == [report.as_uri()]
    tab.close()


def test_it_is_one_file_without_addresses(report):
    text = report.read_text(encoding="utf-8")
    assert not re.search(r"https?://|src=\"(?!data:)|href=\"(?!data:|#)|@import|url\(", text)
    assert EVIL not in text
    assert text.count("&lt;img src=x onerror=alert(1)&gt;") >= 3  # the leaderboard, the failure, the command


def test_sections_say_what_they_are_about(report):
    text = report.read_text(encoding="utf-8")
    for words in (
        "1 of 19 cells failed",
        "on the 1 of 6 problems that have a converged reference",
        "T = 1, 2; ρ = 0.1; seeds 0-2",
        "Scores against the temperature are not drawn: the problems that all methods have are of one",
        '<td data-value="0.1">0.1</td>',
        "jax 0.10.2",
        "of which bias by finite draws",
    ):
        assert words in text, words


def test_paired_differences_are_those_of_common_problems(frame):
    good = frame[frame.status == "ok"]
    one, other = (good[good.method == name] for name in ("ensemble+", "mlp"))
    value, error, freedom = paired_difference(one.iloc[:4], other)
    assert freedom == pytest.approx(2.0)
    gaps = one.kl_joint.to_numpy()[:4] - other.kl_joint.to_numpy()[:4]
    assert value == pytest.approx(gaps.mean())
    # Three problems of one stratum, and one of another, which borrows their variance.
    assert error == pytest.approx(np.sqrt(4 * gaps[:3].var(ddof=1)) / 4)
    order = list(good.groupby("method").kl_joint.mean().sort_values().index)
    table = page._differences(good, order)
    names = [row[0].text for row in table.rows]
    assert names == order
    assert all(row[1 + i].text == "" for i, row in enumerate(table.rows))
    bold = {
        (row[0].text, head[2:])
        for row in table.rows
        for head, c in zip(table.heads, row, strict=True)
        if c.is_strong
    }
    assert bold == {(a, b) for a in names for b in names if (a.startswith("<")) != (b.startswith("<"))}


def test_gaps_are_paired_and_so_are_their_biases():
    """Two problems have a reference: gaps 1 and 2 above it, biases of 0.3 against its 0.1."""
    cells = results([2.0, 4.0, 9.0], kl_joint_bias=0.3)
    exact = references_table([1.0, 2.0], kl_joint_bias=0.1)
    row = page._gaps(cells[:2], exact).frame.iloc[0]
    assert (row.problems, row.gap) == (2, 1.5)
    assert row.bias == pytest.approx(0.2)
    assert row.gap_stderr == pytest.approx(0.5)


@pytest.mark.parametrize(("shift", "is_bold"), [(2.5, False), (2.9, True)])
def test_bold_is_for_a_t_interval_without_zero(shift, is_bold):
    """Five problems of one kind have four degrees of freedom: 2.78 standard errors, not 1.96."""
    noise = np.array([-2.0, -1.0, 0.0, 1.0, 2.0])
    error = noise.std(ddof=1) / np.sqrt(5)
    pair = [results(noise + 10.0 + shift * error, "worse"), results(np.full(5, 10.0), "better")]
    table = page._differences(pd.concat(pair), ["better", "worse"])
    assert [cell.is_strong for row in table.rows for cell in row[1:]] == [False, is_bold, is_bold, False]
    assert table.rows[0][2].text.startswith("-")  # better minus worse


def test_bars_span_their_column():
    table = pd.DataFrame({"a": [1.0, 3.0, np.inf, np.nan], "a_stderr": [1.0, 1.0, np.nan, np.nan]})
    assert parts._bars(table, "a") == [(0.0, 25.0, 50.0), (50.0, 75.0, 100.0), None, None]
    assert page._ranges([5, 0, 1, 2, 2]) == "0-2, 5"


def test_other_files_are_not_replaced(frame, tmp_path):
    mine = tmp_path / "mine.html"
    mine.write_text("my notes")
    for path, words in (
        (mine, "not a report"),
        (tmp_path / "no" / "r.html", "no directory"),
        (tmp_path, "not a"),
    ):
        with pytest.raises(pt.UsageError, match=words):
            pt.write_report(frame, path)
    assert mine.read_text() == "my notes"
    with pytest.raises(pt.UsageError, match="no results"):
        pt.write_report(frame[:0], tmp_path / "empty.html")


def test_infinite_scores_are_shown_and_sorted(frame, browser, tmp_path):
    """The score of mlp is ∞: others are better by −∞, and have no ratio to it."""
    some = frame[frame.method.isin(["mlp", "ensemble+"])].copy()
    some.loc[some.index[some.method == "mlp"][0], "kl_joint"] = np.inf
    path = pt.write_report(some, tmp_path / "report.html", references=EXACT)
    tab = browser.new_page()
    tab.goto(path.as_uri())
    table = tab.locator("#paired-differences table")
    assert table.locator("td").all_inner_texts() == ["ensemble+", "", "−∞", "mlp", "∞", ""]
    for order in (["mlp", "ensemble+"], ["mlp", "ensemble+"]):  # what is missing is last, either way
        table.locator("th button").nth(1).click()
        assert table.locator("td:first-child").all_inner_texts() == order
    board = tab.locator("#leaderboard tbody tr").all_inner_texts()
    assert "∞" in board[1]
    assert "d¹⁰ / mlp" not in tab.locator("#leaderboard thead").inner_text()
    tab.close()


def test_names_and_frames_of_all_kinds(frame, tmp_path):
    """What matplotlib takes for mathematics, nullable columns, a provenance that is not ours, no error."""
    odd = frame.assign(method=frame.method.replace({"mlp": r"_a$\foo$"}), provenance="by hand")
    odd = odd.convert_dtypes().assign(error=None)
    path = pt.write_report(odd, tmp_path / "report.html", references=EXACT)
    text = path.read_text(encoding="utf-8")
    assert r"_a$\foo$" in text
    assert "by hand" in text
    assert "1 of 19 cells failed" in text


def test_variants_keep_their_failures(frame, tmp_path):
    """A configuration that failed is not excused by another one of the same method; edited code is."""
    good = frame[frame.method == "mlp"]
    config = json.loads(good.config.iloc[0])
    broken = good.iloc[:1].assign(status="error", error="no", kl_joint=np.nan)
    variant = broken.assign(
        config=json.dumps(config | {"method": {"name": "mlp", "l2": 10.0}}), config_hash="v"
    )
    codes = [
        json.dumps(config | {"method": {"class": {"code": "M", "digest": digest * 12}}}) for digest in "ab"
    ]
    edited = pd.concat([good.assign(config=codes[0]), broken.assign(config=codes[1], config_hash="e")])
    assert (without_superseded(pd.concat([good, variant])).status != "ok").sum() == 1
    assert (without_superseded(edited).status == "ok").all()
    assert len(without_superseded(pd.concat([good, good]))) == len(good)
    later = good.assign(revision=good.revision + 1)
    assert (without_superseded(pd.concat([good, later])).revision == later.revision.iloc[0]).all()
    with pytest.warns(UserWarning, match=r"results of ensemble\+ are of earlier revisions"):
        without_superseded(pd.concat([frame[frame.method == "ensemble+"], later]))


@pytest.mark.parametrize("methods", [["broken"], ["ensemble+"]])
def test_results_without_mlp_or_without_success_have_a_report_too(frame, tmp_path, methods):
    some = frame[frame.method.isin(methods)].drop(columns="provenance").assign(provenance=None)
    path = pt.write_report(some, tmp_path / "report.html", references=EXACT)
    text = path.read_text(encoding="utf-8")
    assert ("Paired differences" in text) == (methods == ["ensemble+"])
    assert "not recorded" in text
    pt.write_report(some, path, references=EXACT)  # a report may be replaced
