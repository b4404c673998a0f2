"""Chains that are run side by side are those of one program, to the bit."""

import numpy as np
import pytest

import pp_testbed as pt
from pp_testbed.engine.local import Local
from pp_testbed.engine.programs import Programs
from pp_testbed.engine.study import Workspace
from pp_testbed.studies import chains, scoring
from pp_testbed.studies.cells import Fitted
from pp_testbed.studies.chains import Joined, sample, sampling

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


@pytest.mark.slow
def test_one_cell_of_two_workers_has_the_bits_of_one_process(tmp_path, monkeypatch):
    """Also where another run takes its chains away."""
    frames, run_here = [], chains.run
    for place, are_taken in (("workers", False), ("taken", True)):

        def run_and_take(study, out, *rest, are_taken=are_taken, **options):
            frame = run_here(study, out, *rest, **options)
            for path in out.glob("*.npz") if are_taken else ():
                path.unlink()
            return frame

        monkeypatch.setattr(chains, "run", run_and_take)
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
    """Why, once, and no chain is left behind."""

    def broken(x, y=None):
        raise RuntimeError("no luck")

    bad = nuts(model=broken)
    with pytest.warns(UserWarning, match="1 of 1 cells failed"):
        frame = pt.run([PROBLEM], [bad], tmp_path, jobs=2, progress=False, config=QUICK)
    assert "no luck" in frame.error.item()
    assert not list((tmp_path / ".chains").glob("*.npz"))


def run_chains(directory, method):
    """The files of a method's chains."""
    study = sampling(method, [PROBLEM])
    chains.run(study, directory, progress=False)
    return tuple(chains.Pieces(directory).path(cell) for cell in study.cells)


def test_chains_that_were_run_are_what_is_scored(tmp_path, monkeypatch):
    paths = run_chains(tmp_path, nuts())
    alone = pt.run([PROBLEM], [nuts()], tmp_path / "alone", progress=False, config=QUICK)
    monkeypatch.setattr(scoring, "fit_together", lambda *_: pytest.fail("it was fitted again"))
    message = Fitted(nuts(), PROBLEM, paths)
    (rows,) = scoring.score_cells(QUICK, [message], Workspace(Programs(), None))
    assert rows.rows[0]["nll"] == alone.nll.item()
    assert rows.rows[0]["fit_seconds"] > 0


@pytest.mark.slow
def test_a_damaged_chain_is_run_again_and_others_are_not(tmp_path, monkeypatch):
    first, second = run_chains(tmp_path / ".chains", nuts())
    first.write_bytes(first.read_bytes()[:1000])
    before, ran, run_here = second.stat().st_mtime_ns, [], chains._run_chain

    def counted(method, problem, chain, programs):
        ran.append(chain)
        return run_here(method, problem, chain, programs)

    monkeypatch.setattr(chains, "_run_chain", counted)
    study = scoring.scoring([nuts()], [PROBLEM], "", QUICK)
    with chains.side_by_side(study, tmp_path, InThisProcess(2), progress=False) as told:
        assert ran == [0]
        assert second.stat().st_mtime_ns == before
        assert len(told.cells[0].message.chains) == 2
    assert second.exists()  # the cell has no row yet


class InThisProcess(Local):
    """Says that it is of two processes, and is of this one."""

    def map(self, run, queue, scratch):
        yield from Local(0).map(run, queue, scratch)


def test_a_sampler_with_a_fit_of_its_own_is_not_taken_apart(tmp_path):
    @pt.pytree_dataclass
    class Mine(type(nuts())):
        def fit(self, key, task):
            return super().fit(key, task)

    for method, is_apart in ((nuts(), True), (Mine(**SHORT), False), (nuts(num_chains=1), False)):
        assert chains._has_chains(Fitted(method, PROBLEM)) is is_apart
