"""Methods in words: whose options a preset changes, and where it cannot."""

import json

import pytest

import pp_testbed as pt
from pp_testbed.inference.specs import MethodSpec, resolve, resolve_for_all
from pp_testbed.studies import bandits

FILE = "import pp_testbed as pt\n\nMETHOD = pt.method('mlp', l2=3.0)\n"


def preset_of(path, entry):
    path.write_text(json.dumps({"mlp": entry}))
    return str(path)


@pytest.mark.slow
def test_a_preset_changes_a_method_of_a_file_and_shipped_ones_do_not(tmp_path):
    (tmp_path / "mine.py").write_text(FILE)
    text = f"{tmp_path / 'mine.py'}:METHOD"
    mine = preset_of(tmp_path / "all.json", {"options": {"l2": "5.0"}})
    assert [resolve(MethodSpec(text, (), preset)).l2 for preset in ("tuned", "paper", mine)] == [
        3.0,
        3.0,
        5.0,
    ]
    assert resolve(MethodSpec(text, (("l2", "7.0"),), mine)).l2 == 7.0
    groups = [{"facts": {"num_train": 3}, "options": {"l2": "9.0"}}]
    by = preset_of(tmp_path / "by.json", {"options": {}, "where": groups})
    spec = MethodSpec(text, (), by)
    assert [resolve(spec, {"num_train": number}).l2 for number in (3, 10)] == [9.0, 3.0]
    assert spec.preset_by_facts == "by"
    frame = pt.run("smoke", [spec], tmp_path / "out", progress=False, jobs=1)
    assert [json.loads(text)["method"]["l2"] for text in frame.sort_values("num_train").config] == [9.0, 3.0]


def test_where_no_one_problem_is_meant_a_preset_for_each_kind_is_refused():
    spec = MethodSpec("ensemble+", (), "highdim")
    for refuse in (resolve_for_all, bandits.agent, lambda one: pt.sbc(one, progress=False)):
        with pytest.raises(pt.UsageError, match=r"preset highdim has options of ensemble\+ for each kind"):
            refuse(spec)
    assert resolve_for_all(MethodSpec("ensemble+")).name == "ensemble+"


def test_comparison_is_of_the_options_for_its_problem(tmp_path):
    where = [{"facts": {"num_train": 10}, "options": {"l2": "9.0", "num_steps": "7"}}]
    by = preset_of(tmp_path / "by.json", {"options": {}, "where": where})
    reference = pt.reference(pt.problem("2d/T10-rho0.1-s0"))
    from pp_testbed.studies.references import fits_beside

    _, posteriors = fits_beside(reference, [MethodSpec("mlp", (), by)])
    assert posteriors["mlp"].losses.shape[-1] == 7
