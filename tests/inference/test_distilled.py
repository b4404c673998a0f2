"""A student predicts what its teacher predicts: exactly where it can be the teacher."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import logsumexp

import pp_testbed as pt
from pp_testbed.inference.distilled import Distilled
from pp_testbed.inference.posterior import predictive_mean
from pp_testbed.inference.specs import MethodSpec, resolve

PROBLEM = pt.problem("2d/T30-rho0.1-s0")
KEY = PROBLEM.keys.fit
QUICK = pt.Evaluation(num_batches=20, num_draws=10)


def test_a_linear_student_of_a_linear_teacher_is_its_teacher():
    """Differences of logits are those of logistic regression, but for the decay of weights."""
    teacher = pt.method("logistic", num_steps=300)
    options = {"hidden": (), "l2": 1e-6, "learning_rate": 3e-2, "schedule": "cosine", "num_steps": 3000}
    student = Distilled(teacher=teacher, **options).fit(KEY, PROBLEM.task)
    key_teacher = jax.random.split(KEY, 3)[0]
    expected = teacher.fit(key_teacher, PROBLEM.task)
    x = jax.random.normal(jax.random.key(1), (50, 2))
    outputs = [np.diff(posterior.logits(KEY, x)[0], axis=-1) for posterior in (student, expected)]
    np.testing.assert_allclose(*outputs, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("name", ["ensemble", "knn"])
def test_loss_is_the_divergence_from_the_teacher(name):
    """What is left of the loss, but for its own entropy and the decay, is E KL(teacher ‖ student)."""
    options = {"size": 3, "num_steps": 200} if name == "ensemble" else {}
    method = Distilled(teacher=pt.method(name, **options), batch_size=1000, l2=1e-6, num_steps=2000)
    student = method.fit(KEY, PROBLEM.task)
    keys = jax.random.split(KEY, 3)
    teacher = method.teacher.fit(keys[0], PROBLEM.task)
    x = method.inputs(jax.random.split(keys[2], 3)[0], PROBLEM.task)
    assert x.shape == (1000, 2)
    np.testing.assert_array_equal(x[:30], PROBLEM.task.x)
    if name == "knn":
        outputs = np.asarray(teacher.logits(keys[1], x))[0]
        taught = np.exp(outputs - logsumexp(outputs, axis=-1, keepdims=True))
    else:
        taught = np.asarray(predictive_mean(teacher.draw(keys[1], 100), PROBLEM.task.likelihood, x))
    found = np.asarray(jax.nn.log_softmax(student.logits(KEY, x)[0]))
    entropy = -np.where(taught > 0, taught * np.log(np.maximum(taught, 1e-38)), 0.0).sum(-1).mean()
    divergence = -(taught * found).sum(-1).mean() - entropy
    sites = [leaf[0] for leaf in student.draws.values()]
    agent = method.agent(PROBLEM.task)
    log_prior = sum(
        float((-0.5 * (leaf / agent.prior_sd) ** 2 - jnp.log(agent.prior_sd)).sum()) for leaf in sites
    )
    log_prior -= 0.5 * np.log(2 * np.pi) * sum(leaf.size for leaf in sites)
    loss = float(student.losses[0, -1]) + log_prior  # a batch is all that is taught
    assert divergence >= 0.0
    assert loss / 1000 - entropy == pytest.approx(divergence, abs=2e-3)
    assert divergence < 0.03


def test_padding_is_not_taught():
    """Neither where the data are fewer than the inputs that are taught, nor where they are more."""
    for num_inputs in (10, 70):
        made = Distilled(teacher=pt.method("mlp", num_steps=50), num_inputs=num_inputs, num_steps=50)
        tasks = [PROBLEM.draw(rows)[0] for rows in (30, 100)]
        students = [made.fit(KEY, task).logits(KEY, PROBLEM.task.x) for task in tasks]
        np.testing.assert_allclose(*students, rtol=1e-4, atol=1e-4)
        x = made.inputs(KEY, tasks[1])
        np.testing.assert_array_equal(x[:30], tasks[0].x)
        assert (np.abs(x[30 : max(30, num_inputs)] - x[: max(0, num_inputs - 30)]).sum(-1) > 0).all()


@pytest.mark.slow
def test_it_is_a_method_by_name_also_of_a_file(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("import pp_testbed as pt\nMETHOD = pt.method('ensemble', size=2, num_steps=5)\n")
    specs = [
        MethodSpec(f"distilled:{file}:METHOD", (("num_steps", "5"),)),
        MethodSpec("distilled:knn", (("num_steps", "5"),)),
    ]
    frame = pt.run([PROBLEM], specs, tmp_path / "out", jobs=1, progress=False, config=QUICK)
    assert (frame.status == "ok").all()
    assert set(frame.method) == {"distilled:ensemble", "distilled:knn"}
    assert (frame.num_draws == 1).all()


def test_what_is_no_method_is_said():
    with pytest.raises(pt.UsageError, match="teacher is None; expected a method"):
        Distilled()
    with pytest.raises(pt.UsageError, match="nothing"):
        resolve("distilled:nothing")
    with pytest.raises(pt.UsageError, match="what is distilled is one network already"):
        resolve("distilled:distilled:mlp")
    numbers = pt.problem(data=(np.arange(20.0)[:, None], np.arange(20.0)))
    with pytest.raises(pt.UsageError, match="taught probabilities of classes"):
        Distilled(teacher=pt.method("mlp")).fit(KEY, numbers.task)


def test_a_preset_has_options_of_students_and_teachers(tmp_path):
    file = tmp_path / "mine.json"
    entries = {"mlp": {"options": {"l2": "7.0"}}, "distilled:mlp": {"options": {"num_steps": "11"}}}
    file.write_text(json.dumps(entries))
    made = MethodSpec("distilled:mlp", (("l2", "0.5"),), preset=str(file)).resolve()
    assert (made.num_steps, made.l2, made.teacher.l2) == (11, 0.5, 7.0)


def test_numbers_of_a_teacher_are_data():
    """Two decays of weights are one compiled program."""
    one, other = (Distilled(teacher=pt.method("mlp", l2=l2)) for l2 in (1.0, 2.0))
    assert jax.tree.structure(one) == jax.tree.structure(other)
    assert jax.tree.leaves(one) != jax.tree.leaves(other)
