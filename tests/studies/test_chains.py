"""Chains that are run side by side are those of one program, to the bit."""

import numpy as np
import pytest

import pp_testbed as pt
from pp_testbed.engine.programs import Programs
from pp_testbed.studies import chains
from pp_testbed.studies.chains import Joined, sample, sampling
from pp_testbed.studies.scoring import Workspace

PROBLEM = pt.problem("2d/T3-rho0.1-s0")
SHORT = {"num_chains": 2, "warmup": 20, "num_draws": 10}
QUICK = pt.Evaluation(num_batches=10, num_draws=10)


def nuts(**options):
    return pt.method("nuts", **SHORT | options)


def without_times(frame):
    return frame.drop(columns=["fit_seconds", "evaluate_seconds"])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nuts", "hmc", "mala", "mclmc", "elliptical-slice"])
def test_all_samplers(name):
    method = pt.method(name, **SHORT)
    cells = sampling(method, [PROBLEM]).cells
    rows = sample([cell.message for cell in cells], Workspace(Programs(), None))
    joined = Joined.of([row.arrays for row in rows], method, PROBLEM.task).posterior
    x = np.linspace(-1.0, 1.0, 6).reshape(3, 2)
    whole = method.fit(PROBLEM.keys.fit, PROBLEM.task)
    np.testing.assert_array_equal(
        joined.logits(PROBLEM.keys.evaluate, x), whole.logits(PROBLEM.keys.evaluate, x)
    )


def test_one_cell_of_two_workers_has_the_bits_of_one_process(tmp_path, monkeypatch):
    """Also with the file of a chain that is damaged, and where another run takes them away."""
    frames, run_here = [], chains.run
    for place, damage in (("workers", False), ("taken", True)):

        def run_and_damage(study, out, *rest, damage=damage, **options):
            frame = run_here(study, out, *rest, **options)
            for path in out.glob("*.npz") if damage else ():
                path.unlink()
            return frame

        monkeypatch.setattr(chains, "run", run_and_damage)
        frames.append(
            pt.run([PROBLEM], [nuts(), "uniform"], tmp_path / place, jobs=2, progress=False, config=QUICK)
        )
        assert not (tmp_path / place / ".chains").exists()
    alone = pt.run([PROBLEM], [nuts(), "uniform"], tmp_path / "alone", progress=False, config=QUICK)
    for frame in frames:
        assert without_times(frame).equals(without_times(alone))


@pytest.mark.slow
def test_chains_that_are_there_are_not_run_again(tmp_path, monkeypatch):
    """What was interrupted after its chains goes on with them; many cells of a method are not taken apart."""
    ran = []

    def stopped(study, out, *_, **options):
        ran.append(len(study.cells))
        raise KeyboardInterrupt

    monkeypatch.setattr("pp_testbed.studies.scoring.run_study", stopped)
    with pytest.raises(KeyboardInterrupt):
        pt.run([PROBLEM], [nuts()], tmp_path, jobs=2, progress=False, config=QUICK)
    monkeypatch.undo()
    kept = sorted((tmp_path / ".chains").glob("*.npz"))
    assert len(kept) == SHORT["num_chains"]
    times = [path.stat().st_mtime_ns for path in kept]
    seen = []
    run_here = chains.run

    def watched(study, out, *rest, **options):
        frame = run_here(study, out, *rest, **options)
        seen.extend(path.stat().st_mtime_ns for path in kept)
        return frame

    monkeypatch.setattr(chains, "run", watched)
    frame = pt.run([PROBLEM], [nuts()], tmp_path, jobs=2, progress=False, config=QUICK)
    assert (frame.status == "ok").all()
    assert seen == times
    many = [pt.problem(f"2d/T3-rho0.1-s{seed}") for seed in range(2)]
    monkeypatch.setattr(chains, "run", lambda *_, **options: pytest.fail("chains were run apart"))
    pt.run(many, [nuts()], tmp_path / "many", jobs=2, progress=False, config=QUICK)


def test_a_chain_that_fails_is_said_by_its_cell(tmp_path):
    """A step size that cannot be: the sampler's own complaint, once."""
    bad = nuts(model=lambda x, y=None: None)
    with pytest.warns(UserWarning, match="1 of 1 cells failed"):
        frame = pt.run([PROBLEM], [bad], tmp_path, jobs=2, progress=False, config=QUICK)
    assert frame.status.item() == "error"
    assert not (tmp_path / ".chains").exists()
