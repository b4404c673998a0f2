"""Tables of doubt, against means by hand."""

import numpy as np
import pandas as pd
import pytest

import pp_testbed as pt
from pp_testbed.report.doubt import heads_of


def frame_of(model="ursa_mnist", sets=3):
    """Two methods on three seeds."""
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        [
            {
                "status": "ok",
                "method": method,
                "kind": "one",
                "model": model,
                **{f"auroc_{name}": rng.random() for name in ("confidence", "total", "knowledge")},
                "aurc": np.nan if method == "b" and seed == 2 else rng.random(),
                "elsewhere": rng.random(2 * sets).tolist(),
            }
            for method in "ab"
            for seed in range(3)
        ]
    )


def test_means_and_errors_are_over_seeds_and_sets_have_names():
    frame = frame_of()
    table = pt.detection(frame).set_index("method")
    mine = frame[frame.method == "a"]
    assert table.loc["a", "auroc_total"] == pytest.approx(mine.auroc_total.mean())
    assert table.loc["a", "auroc_total_stderr"] == pytest.approx(mine.auroc_total.sem())
    three = mine[["auroc_confidence", "auroc_total", "auroc_knowledge"]].to_numpy().mean(axis=1)
    assert table.loc["a", "uncertainty"] == pytest.approx(three.mean())
    assert table.loc["a", "uncertainty_stderr"] == pytest.approx(three.std(ddof=1) / np.sqrt(3))
    assert "robustness" not in table  # its parts are not all there
    areas = np.stack(mine.elsewhere.to_list())
    for place, name in enumerate(["fashion_mnist", "mnist_turned", "usps_28"]):  # sets by their names
        assert table.loc["a", name + "_total"] == pytest.approx(areas[:, 2 * place].mean())
        assert table.loc["a", name + "_knowledge"] == pytest.approx(areas[:, 2 * place + 1].mean())
    assert np.isnan(table.loc["b", "aurc"])  # nothing is left out of a mean
    heads = heads_of(table)
    assert heads["auroc_total"] == "AUROC, TU"
    assert heads["usps_28_knowledge"] == "usps 28 knowledge"


def test_sets_of_ones_own_are_numbered_and_different_ones_left_out():
    assert "set 2_total" in pt.detection(frame_of("mine", 2))
    both = pd.concat([frame_of("mine", 2), frame_of()])
    assert not [name for name in pt.detection(both) if "set" in name or "usps" in name]


def test_results_without_classes_are_said():
    frame = frame_of().drop(columns=["auroc_confidence", "auroc_total", "auroc_knowledge", "aurc"])
    with pytest.raises(pt.UsageError, match="say nothing of doubt"):
        pt.detection(frame)
