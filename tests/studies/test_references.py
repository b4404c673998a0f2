"""References: what is built can be read, verified and trusted, and nothing is lost or replaced."""

from contextlib import nullcontext, suppress
from dataclasses import replace

import numpy as np
import pytest

import pp_testbed as pt
from pp_testbed.engine.identity import config_hash
from pp_testbed.inference.mcmc import NUTS
from pp_testbed.studies import chains
from pp_testbed.studies.reference_files import SHIPPED, file_name, load, references, save, settings_of
from pp_testbed.studies.references import build_references, reference, verify

SHORT = NUTS(num_chains=2, warmup=20, num_draws=10, max_depth=3)
PROBLEM = pt.problem(num_train=3)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    directory = tmp_path_factory.mktemp("store")
    build_references([PROBLEM], store=directory, method=SHORT, jobs=0, progress=False)
    return directory


@pytest.mark.slow
def test_what_is_built_is_what_the_method_gives(store):
    made = reference(PROBLEM, store=store, method=SHORT)
    assert made.problem == PROBLEM
    assert made.method == SHORT
    assert made.values.shape == (2, 10, 128, 1)
    posterior = SHORT.fit(PROBLEM.keys.fit, PROBLEM.draw()[0])
    scores = pt.evaluate(posterior, PROBLEM, key=PROBLEM.keys.evaluate)
    # The same chains, compiled differently: rounding errors may grow, in so short a chain not far.
    assert scores.kl_joint == pytest.approx(made.scores.kl_joint, rel=0.05)
    assert made.posterior.log_weights.shape == (20,)


def test_a_failed_gate_is_said_and_nothing_is_compared_to_it(store):
    made = reference(PROBLEM, store=store, method=SHORT)
    assert not made.converged
    posterior = pt.method("uniform").fit(PROBLEM.keys.fit, PROBLEM.task)
    with pytest.raises(pt.UsageError, match=r"has not converged \(R-hat is .*nothing is compared to it"):
        pt.compare(posterior, made)


@pytest.mark.slow
def test_verification_repeats_the_chain_and_finds_what_was_altered(store):
    made = reference(PROBLEM, store=store, method=SHORT)
    good = verify(made, 5)
    assert good.passed
    assert good.repeated > 0
    values = made.values.copy()
    values[0, 0] += 10.0
    assert not verify(replace(made, values=values), 5).passed
    terms = made.terms | {"kl_joint": 0 * made.terms["kl_joint"]}
    assert not verify(replace(made, terms=terms), 5).scores_agree
    draws = {name: leaf + 0.5 for name, leaf in made.draws.items()}
    assert not verify(replace(made, draws=draws), 5).draws_agree


def test_nothing_is_built_twice_or_replaced(store, monkeypatch):
    path = next(store.glob("*.npz"))
    before = path.read_bytes()
    monkeypatch.setattr(chains, "_run_chain", lambda *_: pytest.fail("a chain was run again"))
    build_references([PROBLEM], store=store, method=SHORT, jobs=0, progress=False)
    save(replace(load(path), seconds=0.0), path)
    assert path.read_bytes() == before


def test_a_stopped_build_goes_on_with_the_missing_chains(tmp_path, store, monkeypatch):
    ran, run_chain = [], chains._run_chain

    def interrupted(method, problem, chain, programs):
        ran.append(chain)
        if len(ran) == 2:
            raise KeyboardInterrupt
        return run_chain(method, problem, chain, programs)

    monkeypatch.setattr(chains, "_run_chain", interrupted)
    with pytest.raises(KeyboardInterrupt):
        build_references([PROBLEM], store=tmp_path, method=SHORT, jobs=0, progress=False)
    build_references([PROBLEM], store=tmp_path, method=SHORT, jobs=0, progress=False)
    assert ran == [0, 1, 1]
    whole, resumed = (reference(PROBLEM, store=place, method=SHORT) for place in (store, tmp_path))
    np.testing.assert_array_equal(whole.values, resumed.values)
    assert not list((tmp_path / "pieces").iterdir())


@pytest.mark.parametrize("damage", ["truncated", "flipped", "foreign"])
def test_damaged_files_are_named_and_left_alone(tmp_path, store, damage):
    original = next(store.glob("*.npz"))
    content = bytearray(original.read_bytes())
    if damage == "truncated":
        content = content[: len(content) // 2]
    elif damage == "flipped":
        content[len(content) // 2] ^= 0xFF
    else:
        content = bytearray(b"not a reference")
    path = tmp_path / original.name
    path.write_bytes(content)
    with pytest.raises(pt.UsageError, match=f"{path.name} is damaged"):
        reference(PROBLEM, store=tmp_path, method=SHORT)
    # A build reads the texts of what is there, not every array; a byte of an array shows when it is opened.
    expected = nullcontext() if damage == "flipped" else pytest.raises(pt.UsageError, match="is damaged")
    with expected:
        build_references([PROBLEM], store=tmp_path, method=SHORT, jobs=0, progress=False)
    assert path.read_bytes() == bytes(content)


def test_a_store_that_cannot_be_written_to_is_one_line(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(pt.UsageError, match="cannot write references to"):
        build_references([PROBLEM], store=tmp_path / "file", jobs=0, progress=False)

    def full(path, write):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pp_testbed.engine.store.write_whole", full)
    with pytest.raises(pt.UsageError, match="No space left on device"):
        build_references([PROBLEM], store=tmp_path / "s", method=SHORT, jobs=0, progress=False)


def test_bad_files_in_a_store_are_named_and_ignored_by_the_table(tmp_path, store):
    good = next(store.glob("*.npz"))
    (tmp_path / good.name).write_bytes(good.read_bytes())
    renamed = tmp_path / good.name.replace("T3", "T4")
    renamed.write_bytes(good.read_bytes())
    np.savez(tmp_path / "foreign.npz", about=np.array('{"a": 1}'))
    np.save(tmp_path / "array.npy", np.zeros(3))
    (tmp_path / "array.npy").rename(tmp_path / "array.npz")
    with pytest.warns(UserWarning, match="ignored: .*damaged or not a reference") as warned:
        table = references(tmp_path)
    assert len(warned) == 3
    assert list(table[table.origin == "store"].problem) == [PROBLEM.name]


def test_any_damaged_byte_is_one_line(tmp_path, store):
    original, rng = next(store.glob("*.npz")), np.random.default_rng(0)
    content = original.read_bytes()
    path = tmp_path / original.name
    for place in [
        *range(0, 60, 3),
        *rng.integers(0, len(content), 30),
        *range(len(content) - 60, len(content), 3),
    ]:
        damaged = bytearray(content)
        damaged[place] ^= 0xFF
        path.write_bytes(damaged)
        with suppress(pt.UsageError):  # not every byte matters; those that do are one line
            load(path)


def test_a_wrong_posterior_is_no_reference(tmp_path):
    with pytest.raises(pt.UsageError, match="likelihood_power=1: the exact posterior"):
        build_references([PROBLEM], store=tmp_path, method=replace(SHORT, likelihood_power=0.7))


def test_a_reference_is_one_line_to_print(store):
    text = repr(reference(PROBLEM, store=store, method=SHORT))
    assert text.startswith("Reference(2d/T3-rho0.1-s0, 2 chains of 10 draws, not converged: R-hat is ")
    assert len(text.splitlines()) == 1


def test_what_is_not_there_is_offered():
    with pytest.raises(pt.UsageError, match="pp-testbed reference build --problem 2d/T7"):
        reference("2d/T7-rho0.1-s0", store="/nonexistent")


def test_the_shipped_table_covers_the_testbed_and_the_gate():
    table = references("/nonexistent")
    suite = pt.suite("2d").filter(num_train=[1, 3, 10, 30, 100])
    assert set(table.problem) == {problem.name for problem in suite}
    assert table.converged.mean() >= 0.95
    assert (table.rhat[table.converged] <= 1.01).all()
    assert (table.origin == "shipped").sum() == 7
    assert table.origin.str.startswith("shipped").all()


def test_shipped_references_are_those_of_the_default_settings():
    settings = settings_of(pt.method("nuts"))
    names = {path.name for path in SHIPPED.iterdir()}
    for name in names:
        shipped = load(SHIPPED / name)
        assert shipped.settings == settings, (
            "a new field of NUTS or Evaluation orphans the shipped references"
        )
        assert name == file_name(shipped.problem, settings)
    assert set(references("/nonexistent").settings) == {config_hash(settings)}
    assert sum(path.stat().st_size for path in SHIPPED.iterdir()) < 20 * 2**20


@pytest.mark.slow
def test_a_shipped_reference_is_verified():
    shipped = pt.reference("2d/T10-rho0.1-s0", store="/nonexistent")
    assert shipped.converged
    check = verify(shipped)
    assert check.passed
    row = references("/nonexistent").set_index("problem").loc[shipped.problem.name]
    assert row.kl_joint == pytest.approx(shipped.scores.kl_joint)
    # A quarter of the draws score as all of them do, but for the noise of fewer draws.
    scores = pt.evaluate(shipped.posterior, shipped.problem, key=shipped.problem.keys.evaluate)
    assert scores.kl_joint == pytest.approx(shipped.scores.kl_joint, rel=0.3)


def test_a_chain_that_fails_is_said_and_run_again(tmp_path, monkeypatch):
    """Also where the last chain ends well, and where a piece is damaged."""
    run_chain = chains._run_chain

    def fails_first(method, problem, chain, programs):
        if chain == 0:
            raise MemoryError("no memory")
        return run_chain(method, problem, chain, programs)

    options = {"store": tmp_path, "method": SHORT, "jobs": 0, "progress": False}
    monkeypatch.setattr(chains, "_run_chain", fails_first)
    with pytest.raises(
        pt.UsageError, match=r"1 of 2 cells failed, such as nuts on .*: MemoryError: no memory"
    ):
        build_references([PROBLEM], **options)
    monkeypatch.undo()
    piece = next((tmp_path / "pieces").glob("*.npz"))
    piece.write_bytes(piece.read_bytes()[:1000])
    (path,) = build_references([PROBLEM], **options)
    assert load(path).values.shape == (2, 10, 128, 1)
