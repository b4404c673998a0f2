"""Problems of data: splits that leak nothing, tables of any kind, and what is said of mistakes."""

from itertools import product

import jax
import numpy as np
import pandas as pd
import pytest

import pp_testbed as pt
from pp_testbed.models.base import Task
from pp_testbed.problems.data import gal_split, moments, of_data, split_off, split_rows, standardised
from pp_testbed.problems.rows import own_set
from pp_testbed.problems.tables import of_frame
from pp_testbed.studies.active import _labelled


def frame(rows=200, seed=0):
    rng = np.random.default_rng(seed)
    age, city = rng.normal(50, 10, rows).round(1), rng.choice(list("abc"), rows)
    ill = rng.uniform(size=rows) < 1 / (1 + np.exp(-(age - 50) / 5 - (city == "a")))
    made = pd.DataFrame({"age": age, "city": city, "same": 1, "ill": np.where(ill, "yes", "no")})
    made.loc[::10, "age"] = np.nan
    made.loc[5, "city"] = None
    made.loc[7, "ill"] = None
    return made


def test_a_name_says_all_of_it():
    problem = pt.problem("iris/T100-s3")
    assert problem.name == "iris/T100-s3"
    assert problem == pt.problem(data="iris", num_train=100, seed=3)
    assert problem.task.x.shape == (100, 4)
    assert problem.facts["model"] == "iris"


def test_no_row_is_learnt_from_and_scored():
    """Also where rows are there twice: a memory of the data knows no test row."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(100, 3)).astype(np.float32)
    x[50:70] = x[:20]
    for seed in range(5):
        problem = pt.problem(data=(x, rng.integers(2, size=100)), seed=seed)
        learnt = {row.tobytes() for row in np.asarray(problem.task.x)}
        assert not any(row.tobytes() in learnt for row in np.asarray(problem.truth.x))
        held = {row.tobytes() for row in np.asarray(problem.truth.x)}
        assert len(learnt | held) == len({row.tobytes() for row in x}) == 80
        assert len(problem.truth.y) == problem.num_test == 20
    leak = np.concatenate([rng.normal(size=(1, 3)), x[:3]]).astype(np.float32)
    with pytest.raises(pt.UsageError, match="3 rows of the test part are among the data, first row 1"):
        pt.problem(data=(x[:50], rng.integers(2, size=50)), test=(leak, np.array([0, 1, 0, 1])))


def test_the_split_standardises_by_the_training_part_alone():
    data = own_set(np.random.default_rng(1).normal(3.0, 7.0, (500, 2)), np.arange(500.0) % 7.1)
    rows = split_rows(data, 0)
    x, x_test = data.x[rows.train], rows.x_test
    train, test = (standardised(part, *moments(x)) for part in (x, x_test))
    np.testing.assert_allclose(train.mean(axis=0), 0.0, atol=1e-5)
    np.testing.assert_allclose(train.std(axis=0), 1.0, rtol=1e-5)
    np.testing.assert_allclose(test, (x_test - x.mean(axis=0)) / x.std(axis=0), rtol=1e-4, atol=1e-5)
    problem = of_data(data)
    np.testing.assert_allclose(problem.task.y.mean(), 0.0, atol=1e-5)


def test_fewer_data_are_the_first_of_more():
    few, many = (pt.problem(data="iris", num_train=number, seed=1) for number in (10, 50))
    np.testing.assert_array_equal(few.task.x, many.task.x[:10])
    np.testing.assert_array_equal(few.truth.y, many.truth.y)


def test_a_table_is_encoded_and_all_of_it_is_said():
    made = of_frame(frame(), "ill")
    assert made.columns == ("age", "age is missing", "city = (missing)", "city = a", "city = b", "city = c")
    assert made.x.shape == (199, 6)
    assert any(note.startswith("ill has 2 classes: ") for note in made.notes)
    assert set(made.notes) >= {
        "1 rows without ill are dropped",
        "age: 20 missing values become the mean, said by a column of its own",
        "city: 4 categories, a column each",
        "same is dropped: it has one value",
    }
    assert np.isfinite(np.asarray(of_data(made).task.x)).all()


@pytest.mark.slow
@pytest.mark.parametrize("target", ["ill", "age"])
def test_a_table_is_judged(tmp_path, target):
    path = tmp_path / "patients.csv"
    frame().dropna(subset=["age"]).to_csv(path, index=False)
    problem = pt.problem(data=pt.read_table(path, target=target), num_train=60)
    results = pt.run([problem], ["mlp", "laplace", "random-forest"], tmp_path / "out", progress=False)
    assert (results.status == "ok").all(), results.error.tolist()
    assert results.nll_joint.notna().all()
    assert results.kl_joint.isna().all()
    table = pt.leaderboard(results)
    assert {"nll", "nll_joint", "nll_dyadic", "difference"} <= set(table.columns)
    assert "kl_joint" not in table
    page = pt.write_report(results, tmp_path / "report.html").read_text()
    assert "held out" in page
    assert "KL divergence" not in page


@pytest.mark.slow
def test_workers_find_the_same_data(tmp_path):
    problems = [pt.problem("iris/T10-s0"), pt.problem(data=of_frame(frame(), "ill"), num_train=10)]
    here, there = (
        pt.run(problems, ["mlp"], tmp_path / str(jobs), jobs=jobs, progress=False) for jobs in (0, 2)
    )
    np.testing.assert_allclose(here.nll_joint, there.nll_joint, rtol=1e-4)


@pytest.mark.slow
def test_known_and_held_out_truths_do_not_mix(tmp_path):
    problems = [pt.problem("iris/T10-s0"), pt.problem("2d/T10-rho0.1-s0")]
    results = pt.run(problems, ["mlp"], tmp_path, progress=False)
    with pytest.raises(pt.UsageError, match="known truths and of held-out labels"):
        pt.leaderboard(results)


def with_column(**columns):
    return frame().assign(**columns)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: of_frame(with_column(ill="no"), "ill"), "all labels are"),
        (
            lambda: of_frame(with_column(name=[f"n{i}" for i in range(200)]), "ill"),
            "name has 199 different texts",
        ),
        (lambda: of_frame(frame(), "il"), "unknown column 'il'; did you mean 'ill'"),
        (lambda: of_frame(frame()[["same", "ill"]], "ill"), "no column besides ill that says anything"),
        (
            lambda: own_set([[np.inf, 1.0], [0.0, 1.0]], [0, 1]),
            "inputs are infinite, first at row 0, column 0",
        ),
        (lambda: own_set([[0.0], [1.0]], [0.5, np.nan]), "labels are NaN or infinite, first at row 1"),
        (lambda: own_set([[0.0], [1.0]], [0, 1], [[2.0]], [2]), "labels that the data lack: 2"),
        (lambda: own_set([[0.0], [1.0]], [0]), r"labels are int64 \(1,\)"),
        (lambda: pt.problem(data=np.zeros((3, 2))), "data is ndarray; expected inputs and labels"),
        (lambda: pt.problem(data="irsi"), "unknown data set 'irsi'; did you mean 'iris'"),
        (lambda: pt.problem("iris/T1000-s0").task, "iris has 120 training data; 1000 are asked for"),
        (lambda: pt.problem("iris/T10-s0").environment, "whose environment nobody knows"),
        (lambda: pt.read_table("nowhere.csv", "y"), "there is no file nowhere.csv"),
    ],
)
def test_mistakes_are_said_in_one_line(make, words):
    with pytest.raises(pt.UsageError, match=words) as error:
        make()
    assert "\n" not in str(error.value)


def test_infinity_in_a_column_is_said():
    ages = np.full(200, 1.0)
    ages[3] = np.inf
    with pytest.raises(pt.UsageError, match="age is infinite, first at row 3"):
        of_frame(with_column(age=ages), "ill")


def test_a_set_that_is_not_here_says_how_to_place_it(monkeypatch, tmp_path):
    monkeypatch.setenv("PP_TESTBED_DATA", str(tmp_path))
    with pytest.raises(pt.UsageError, match=r"sonar is not here: sonar.npz is not in .* has arrays x and y"):
        pt.problem(data="sonar")
    with pytest.raises(pt.UsageError, match="`pp-testbed data fetch mnist` downloads it"):
        pt.problem(data="mnist")
    np.savez(tmp_path / "sonar.npz", x=np.random.default_rng(0).normal(size=(50, 60)), y=np.arange(50) % 2)
    assert pt.problem(data="sonar").task.x.shape == (40, 60)
    (tmp_path / "yacht.npz").write_bytes(b"not a file of arrays")
    with pytest.raises(pt.UsageError, match="cannot be read"):
        pt.problem(data="yacht")


def test_equal_rows_stay_together_also_where_values_are_missing():
    rng = np.random.default_rng(2)
    x = rng.normal(size=(120, 3)).astype(np.float32)
    x[::3, 1] = np.nan
    x[60:] = x[:60]
    for seed in range(3):
        data = own_set(x, rng.integers(2, size=120))
        rows = split_rows(data, seed)
        assert not {row.tobytes() for row in data.x[rows.train]} & {row.tobytes() for row in rows.x_test}


def test_a_leak_is_seen_in_any_type_and_categories_are_no_leak():
    x = np.arange(40).reshape(20, 2)
    with pytest.raises(pt.UsageError, match="rows of the test part are among the data"):
        own_set(x, np.arange(20) % 2, x[:5].astype(float), np.arange(5) % 2)
    cells = np.random.default_rng(0).integers(2, size=(60, 2))
    assert len(own_set(cells, np.arange(60) % 2, cells[:10], np.arange(10) % 2).x_test) == 10


@pytest.mark.slow
def test_test_sets_of_several_sizes_do_not_share_a_program(tmp_path):
    x = np.random.default_rng(0).normal(size=(40, 2))
    y = np.arange(40) % 2
    problems = [pt.problem(data=(x[:20], y[:20]), test=(x[20:end], y[20:end])) for end in (30, 40)]
    results = pt.run(problems, ["mlp"], tmp_path, progress=False)
    assert (results.status == "ok").all(), results.error.tolist()


def test_a_test_table_has_the_same_columns():
    with pytest.raises(pt.UsageError, match="lacks city; expected the same columns"):
        of_frame(frame(), "ill", test=frame(seed=1).drop(columns="city"))
    made = of_frame(frame(), "ill", test=frame(50, seed=1), drop=(name for name in ["same"]))
    assert made.x_test.shape == (49, 6)
    with pytest.raises(pt.UsageError, match="several columns of the name age"):
        of_frame(pd.concat([frame(), frame()[["age"]]], axis=1), "ill")
    with pytest.raises(pt.UsageError, match="age has lists in it"):
        of_frame(with_column(age=[[1, 2]] * 200), "ill")


def test_classes_are_the_values_that_there_are():
    made = of_frame(with_column(ill=np.tile([0.0, 0.5, 1.0, 1.0], 50)), "ill", kind="classes")
    assert made.num_classes == 3
    kinds = pd.Categorical(np.tile(["no", "yes"], 100), categories=["no", "perhaps", "yes"])
    assert of_frame(with_column(ill=kinds), "ill").num_classes == 2


def test_local_files_are_looked_at(monkeypatch, tmp_path):
    from pp_testbed.problems.datasets import data_set

    monkeypatch.setenv("PP_TESTBED_DATA", str(tmp_path))
    data_set.cache_clear()
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "sonar.npz", x=rng.normal(size=(50, 60)), y=np.where(np.arange(50) % 2, -1, 1))
    made = data_set("sonar")
    assert set(made.y.tolist()) == {0, 1}
    assert made.name.startswith("sonar@")  # it is not the one that is known by that name
    np.savez(tmp_path / "yacht.npz", x=rng.normal(size=(50, 4)), y=rng.normal(size=50))
    with pytest.raises(pt.UsageError, match="has 4 columns and 0 classes; expected 6 and 0"):
        data_set("yacht")
    data_set.cache_clear()


def test_outputs_of_the_wrong_shape_are_refused():
    problem = pt.problem("diabetes/T10-s0")
    with pytest.raises(pt.UsageError, match="outputs at an input are 1 numbers; expected 2: location and"):
        pt.evaluate(pt.finite(lambda x: np.zeros((1, len(x), 1))), problem, key=problem.keys.evaluate)


@pytest.mark.parametrize("name", ["knn", "random-forest"])
def test_predictors_are_not_certain_of_one_datum(name):
    problem = pt.problem("diabetes/T1-s0")
    posterior = pt.method(name).fit(problem.keys.fit, problem.task)
    assert pt.evaluate(posterior, problem, key=problem.keys.evaluate).nll < 3.0


def test_weights_decay_by_the_dimension_in_the_testbed_alone():
    synthetic, of_iris = pt.problem("2d/T10-rho0.1-s0"), pt.problem("iris/T10-s0")
    assert float(synthetic.task.decay) == pytest.approx(2.0 * 0.1**0.5)
    (tuned_on,) = of_iris.tuned_on
    own = pt.task(of_iris.model, of_iris.task.x, of_iris.task.y)
    drawn = pt.task(of_iris.model, of_iris.task.x, of_iris.task.y, is_of_data=False)
    assert [one.decay for one in (of_iris.task, tuned_on.task, own)] == [1.0] * 3
    assert float(drawn.decay) == pytest.approx(4.0 * 0.1**0.5)
    assert _labelled(of_iris.task, np.arange(10), 5, 10).decay == 1.0
    blank = Task.blank(of_iris.model, of_iris.padded_size, is_of_data=True)
    assert jax.tree.structure(blank) == jax.tree.structure(of_iris.draw()[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "option"), [("mlp", "adaptive_l2"), ("dropout", "adaptive_l2"), ("bbb", "adaptive_kl")]
)
def test_on_data_agents_are_those_that_adapt_to_nothing(name, option):
    """And the testbed's are not."""
    for problem, are_equal in [("iris/T10-s0", True), ("10d/T10-rho0.1-s0", False)]:
        problem = pt.problem(problem)
        adaptive, plain = (pt.method(name, num_steps=20, **options) for options in ({}, {option: False}))
        scores = [
            pt.evaluate(
                made.fit(problem.keys.fit, problem.task), problem, key=problem.keys.evaluate, num_draws=5
            )
            for made in (adaptive, plain)
        ]
        assert (scores[0].nll == scores[1].nll) == are_equal


def test_a_fifth_is_held_out_and_not_more_than_so_many():
    x = np.random.default_rng(0).normal(size=(100, 2))
    for most, number in ((20, 20), (10_000, 20), (7, 7)):
        test, others = split_off(own_set(x, np.arange(100) % 2), np.arange(100), most)
        assert (len(test), len(others)) == (number, 100 - number)


@pytest.mark.slow
def test_active_learning_of_data(tmp_path):
    from pp_testbed.problems.suites import Suite

    pool = Suite("iris", (pt.problem("iris/T100-s0"),))
    found = pt.active(["mlp"], pool, priorities=["uniform"], budgets=[5, 10], out=tmp_path, progress=False)
    assert (found.status == "ok").all()
    numbers = Suite("numbers", (pt.problem("diabetes/T100-s0"),))
    with pytest.raises(pt.UsageError, match="are numbers; priorities are of classes"):
        pt.active(["mlp"], numbers, priorities=["uniform"], budgets=[5, 10], out=tmp_path, progress=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["iris/T10-s0", "diabetes/T10-s0"])
def test_references_of_data(name, tmp_path):
    from dataclasses import replace

    problem = pt.problem(name)
    nuts = pt.NUTS(warmup=50, num_draws=20, max_depth=5)
    exact = pt.reference(problem, store=tmp_path, method=nuts, build=True, jobs=0)
    assert "NLL¹⁰ = " in repr(exact)
    passed = replace(exact.diagnostics, rhat=1.0, ess_bulk=500.0, ess_tail=500.0, divergent=0.0)
    posterior = pt.method("prior").fit(problem.keys.fit, problem.task)
    comparison = pt.compare(posterior, replace(exact, diagnostics=passed))
    assert np.isfinite(comparison.excess_kl_joint)
    assert comparison.excess_kl_joint > 0


def test_a_target_that_is_constant_where_it_is_learnt():
    rare = np.zeros(60)
    rare[0] = 1.5
    problems = [
        pt.problem(data=(np.random.default_rng(0).normal(size=(60, 2)), rare), seed=s) for s in range(12)
    ]
    words = []
    for problem in problems:
        try:
            assert np.isfinite(np.asarray(problem.truth.y)).all()
        except pt.UsageError as error:
            words.append(str(error))
    assert words
    assert all("all labels of the training part" in line for line in words)


def rows_of(x):
    return {row.tobytes() for row in np.asarray(x)}


def test_validation_leaves_the_test_part_alone():
    """What a method is tuned on are rows of the training part, learnt from or held out."""
    for name, how in product(("iris", "digits"), ("", "gal")):
        problem = pt.problem(data=name, seed=2, split=how)
        data, (tuned,) = problem.data, problem.tuned_on
        own, validation = split_rows(data, 2, how), split_rows(data, 2, tuned.split)
        assert tuned.tuned_on == (tuned,)
        learnt, held = rows_of(data.x[validation.train]), rows_of(validation.x_test)
        assert learnt | held == rows_of(data.x[own.train])
        assert not learnt & held
        assert not (learnt | held) & rows_of(own.x_test)
        assert tuned.num_train == len(validation.train)
        assert pt.problem(tuned.name) == tuned
    (few,) = pt.problem("iris/T10-s2").tuned_on
    assert few.name == "iris/T10-validation-s2"
    np.testing.assert_array_equal(few.task.y, pt.problem("iris/T10-s2").task.y)


def test_a_standard_test_part_needs_one_validation_part():
    rng = np.random.default_rng(0)
    data = own_set(rng.normal(size=(50, 2)), np.arange(50) % 2, rng.normal(size=(20, 2)), np.arange(20) % 2)
    names = {of_data(data, num_train=10, seed=seed).tuned_on[0].name for seed in range(3)}
    assert len(names) == 1


@pytest.mark.parametrize(("rows", "number", "first"), [(308, 0, [121, 115, 286]), (506, 19, [426, 161, 347])])
def test_published_splits_are_drawn_again(rows, number, first):
    """Which rows the files of the benchmark hold out: the first three of yacht's first, boston's last."""
    train, test = gal_split(rows, number)
    assert test[:3].tolist() == first
    assert sorted([*train, *test]) == list(range(rows))
    assert len(test) == rows - round(0.9 * rows)


def test_all_data_are_one_kind_whatever_their_number():
    kinds = {pt.problem(data="digits", seed=seed).kind for seed in range(5)}
    assert kinds == {"digits/Tall"}
    assert pt.problem("digits/Tall-s1") == pt.problem(data="digits", seed=1)


def test_words_of_pandas_are_labels():
    x = np.arange(40.0).reshape(20, 2)
    words = pd.Series(["a", "b"] * 10).astype(object).to_numpy()
    assert own_set(x, words).y.tolist() == [0, 1] * 10
    with pytest.raises(pt.UsageError, match="are of type object"):
        own_set(x, np.array([None, "b"] * 10, dtype=object))


def test_labels_of_the_test_part_are_of_the_same_kind():
    rng = np.random.default_rng(0)
    x, x_test, y = rng.normal(size=(50, 2)), rng.normal(size=(20, 2)), rng.normal(size=50)
    with pytest.raises(pt.UsageError, match="expected one kind"):
        pt.problem(data=(x, y), test=(x_test, rng.normal(size=(20, 2))))


def test_pixels_are_standardised_together_and_other_sets_as_this_one(tmp_path, monkeypatch):
    """Of tiny sets in the form of the real ones: the training part's mean and deviation are those of all."""
    from pp_testbed.problems import datasets
    from pp_testbed.problems.rows import set_of

    rng = np.random.default_rng(0)
    sets = {"mnist": (28, 28), "fashion_mnist": (28, 28), "usps": (16, 16)}
    arrays = {}
    for name, shape in sets.items():
        labels = np.repeat(np.arange(10), 70)
        arrays[name] = {
            f"{kind}_{part}": value
            for part in ("train", "test")
            for kind, value in (("x", rng.integers(256, size=(700, *shape), dtype=np.uint8)), ("y", labels))
        }
        np.savez(tmp_path / f"{name}.npz", **arrays[name])
    monkeypatch.setenv(datasets.PLACE, str(tmp_path))
    monkeypatch.setattr(
        datasets,
        "DIGESTS",
        {name: set_of(*one.values(), name=name).name.partition("@")[2] for name, one in arrays.items()},
    )
    datasets.data_set.cache_clear()
    try:
        problem = pt.problem("ursa_mnist/Tall-s0")
        pixels = arrays["mnist"]["x_train"] / 255.0
        expected = (arrays["fashion_mnist"]["x_test"] / 255.0 - pixels.mean()) / pixels.std()
        np.testing.assert_allclose(
            problem.truth.elsewhere["fashion_mnist"], expected.reshape(700, -1), atol=1e-5
        )
        np.testing.assert_allclose(problem.task.x.std(), 1.0, rtol=1e-5)
        assert problem.task.network == pt.MLP(784, (200, 200), 10)
        assert problem.truth.costs[3].tolist() == [100.0] * 3 + [0.0] + [100.0] * 6
        assert set(problem.truth.elsewhere) == {"fashion_mnist", "usps_28", "mnist_turned"}
        few = pt.problem("ursa_mnist_imbalanced/Tall-s0")
        assert np.bincount(few.task.y).tolist() == [70, 70, 70, 61, 70, 70, 70, 62, 70, 70]
    finally:
        datasets.data_set.cache_clear()


def two_classes(num=60):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(num, 2)).astype(np.float32)
    return x, (x[:, 0] > 0).astype(int)


def test_own_data_have_inputs_from_elsewhere_and_costs():
    far = np.full((20, 2), 30.0) + np.random.default_rng(1).normal(size=(20, 2))
    costs = [[0.0, 1.0], [100.0, 0.0]]
    problem = pt.problem(data=two_classes(), elsewhere={"far": far}, costs=costs)
    assert problem.name != pt.problem(data=two_classes(), elsewhere={"far": far}).name
    assert problem.name != pt.problem(data=two_classes(), elsewhere={"far": far + 1}, costs=costs).name
    posterior = pt.method("knn").fit(problem.keys.fit, problem.task)
    scores = pt.evaluate(posterior, problem, key=problem.keys.evaluate)
    assert scores.cost >= 0.0
    assert len(scores.curves["elsewhere"]) == 2
    assert scores.elsewhere_total == pytest.approx(scores.curves["elsewhere"][0])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"costs": [[0, 1], [-2, 0]]},
            "the cost of decision 0 where class 1 is true is -2; expected a finite",
        ),
        ({"costs": [[0, np.nan], [1, 0]]}, "the cost of decision 1 where class 0 is true is nan"),
        ({"costs": np.zeros((3, 3))}, r"costs are float64 \(3, 3\); expected numbers \(2, 2\)"),
        ({"elsewhere": {"far": np.zeros((5, 3))}}, "inputs of far have 3 columns; the data have 2"),
        ({"elsewhere": {"far": np.full((5, 2), np.inf)}}, "inputs of far are infinite, first at row 0"),
    ],
)
def test_what_data_are_judged_by_is_checked(options, words):
    with pytest.raises(pt.UsageError, match=words):
        pt.problem(data=two_classes(), **options)


@pytest.mark.slow
def test_what_judges_a_set_is_part_of_its_program(tmp_path):
    """Sets of one shape, with other truths, are scored in one run."""
    far = np.full((20, 2), 30.0)
    options = ({}, {"costs": [[0, 1], [1, 0]]}, {"elsewhere": {"far": far}}, {"elsewhere": {"far": far[:5]}})
    problems = [pt.problem(data=two_classes(), **one) for one in options]
    config = pt.Evaluation(num_batches=10)
    frame = pt.run(problems, [pt.method("mlp", num_steps=5)], tmp_path, progress=False, config=config)
    assert (frame.status == "ok").all(), frame.error
    assert frame.cost.notna().sum() == 1
    assert frame.elsewhere_total.notna().sum() == 2


def test_only_classes_are_judged_by_costs_and_only_ones_own():
    x, y = two_classes()
    with pytest.raises(pt.UsageError, match="labels are numbers; expected classes"):
        pt.problem(data=(x, y.astype(float) + x[:, 1]), costs=np.zeros((2, 2)))
    with pytest.raises(pt.UsageError, match="a data set has the parts that it has; expected no costs"):
        pt.problem(data="iris", costs=np.zeros((3, 3)))
    with pytest.raises(pt.UsageError, match="'iris/T10-s0' says all of a problem; expected no elsewhere"):
        pt.problem("iris/T10-s0", elsewhere={"far": x})
