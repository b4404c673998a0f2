"""Bandits against what is exactly known: conjugate arms, closed forms, one step of Adam by hand."""

import signal
import subprocess
import sys
import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from jax.tree_util import Partial
from numpyro.infer.autoguide import AutoNormal
from scipy.stats import chisquare

import pp_testbed as pt
from pp_testbed.engine.programs import Programs, filled, stack
from pp_testbed.engine.study import Workspace
from pp_testbed.evaluation import bandit as loop
from pp_testbed.evaluation.bandit import History, Thompson, World
from pp_testbed.inference.mcmc import Target
from pp_testbed.inference.online import Refreshed, Refreshment, in_dimensions, online
from pp_testbed.inference.options import problems_at_once
from pp_testbed.inference.posterior import Finite, Sampled
from pp_testbed.inference.specs import MethodSpec
from pp_testbed.models.base import Environment, observe, pytree_dataclass
from pp_testbed.studies import bandits
from pp_testbed.studies.bandits import Bandit, bandit

ARMS = 5
KEY = jax.random.key(0)


@pytree_dataclass
class Arms:
    """A model of independent arms, p ~ U(0, 1); an input is a row of the unit matrix."""

    input_dim: int = ARMS
    temperature: float = 1.0

    @property
    def num_classes(self):
        return 2

    def __call__(self, x, y=None, num_train=None):
        p = numpyro.sample("p", dist.Uniform(0.0, 1.0).expand((self.input_dim,)).to_event(1))
        return observe(arm_logits(p, x), y, num_train)

    def inputs(self, key, num):
        return jnp.eye(self.input_dim)[:num]


def arm_logits(p, x):
    odds = x @ (jnp.log(p) - jnp.log1p(-p))
    return jnp.stack([jnp.zeros_like(odds), odds], axis=-1)


@pytree_dataclass
class ConjugateArms:
    """The exact posterior of the arms, Beta(1 + successes, 1 + failures)."""

    name: str = "beta"

    def begin(self, key, task):
        return jnp.ones((2, task.input_dim))

    def learn(self, key, state, task):
        newest = (task.num_train - 1) % task.x.shape[0]
        return state.at[task.y[newest]].add(task.x[newest])

    def current(self, state, task):
        return Sampled(Partial(arm_logits), Partial(draw_arms, state))


def draw_arms(state, key):
    return jax.random.beta(key, state[1], state[0])


def textbook_thompson(rng, runs, steps):
    """Cumulative regret of Thompson sampling with Beta posteriors, [runs]."""
    p, counts = rng.uniform(size=(runs, ARMS)), np.ones((runs, 2, ARMS))
    total, every = np.zeros(runs), np.arange(runs)
    for _ in range(steps):
        arm = rng.beta(counts[:, 1], counts[:, 0]).argmax(axis=1)
        reward = (rng.uniform(size=runs) < p[every, arm]).astype(int)
        counts[every, reward, arm] += 1
        total += p.max(axis=1) - p[every, arm]
    return total


def test_exact_posterior_of_arms_has_the_regret_of_the_textbook():
    runs, steps = 400, 300

    def one(key):
        key_truth, key_begin, key_play = jax.random.split(key, 3)
        environment = Environment(Arms(), {"p": jax.random.uniform(key_truth, (ARMS,))})
        world = World.of(environment, jnp.eye(ARMS))
        state = loop.begin(key_begin, ConjugateArms(), world, capacity=50)
        return loop.play(key_play, ConjugateArms(), Thompson(), world, state, 0, steps)[1].sum()

    ours = np.asarray(jax.jit(jax.vmap(one))(jax.random.split(KEY, runs)))
    theirs = textbook_thompson(np.random.default_rng(0), 4000, steps)
    stderr = np.hypot(ours.std() / np.sqrt(runs), theirs.std() / np.sqrt(len(theirs)))
    assert abs(ours.mean() - theirs.mean()) < 3 * stderr
    assert stderr < 0.1 * theirs.mean()  # the test can tell


def test_the_bounds_are_what_they_must_be(tmp_path):
    """The oracle's regret is 0; that of uniform choices has a known mean and variance for each world."""
    steps, seeds = 400, 12
    frame = bandit(["oracle", "uniform"], steps=steps, seeds=seeds, out=tmp_path, progress=False)
    last = frame[frame.step == steps]
    assert (last[last.method == "oracle"].regret == 0.0).all()
    gaps = [1.0 * (w.rewards.max() - w.rewards) for w in (Bandit(model(), s).world for s in range(seeds))]
    mean = sum(float(gap.mean()) for gap in gaps) * steps
    variance = sum(float(gap.var()) for gap in gaps) * steps
    assert abs(last[last.method == "uniform"].regret.sum() - mean) < 3 * np.sqrt(variance)


def model(**options):
    return pt.GenerativeMLP(temperature=0.1, **options)


def history_of(made, num, capacity=200, num_actions=20):
    """A history of random actions and labels."""
    actions = jax.random.normal(KEY, (num_actions, made.input_dim))
    history = History.empty(made, actions, capacity)
    for time_ in range(num):
        action, label = jax.random.randint(
            jax.random.fold_in(KEY, time_), (2,), 0, jnp.array([num_actions, 2])
        )
        history = history.add(action, label, jnp.asarray(time_))
    return history


@pytest.mark.slow
def test_learning_is_adam_on_the_published_loss():
    """Mean cross-entropy + λ 2 √rho / t ‖θ‖², whatever the dimension; all data, as they fit into a batch."""
    made, num = model(input_dim=10), 30
    history = history_of(made, num)
    method_ = bandits.agent(MethodSpec("mlp", (("l2", "10.0"),), "paper"))

    def learnt(agent):
        state = agent.begin(KEY, history)
        start = agent.current(state, history).draws
        state = jax.lax.fori_loop(0, 15, lambda _, state: agent.learn(KEY, state, history), state)
        return start, agent.current(state, history).draws

    start, found = jax.jit(learnt)(in_dimensions(method_, 10))

    def loss(params):
        logits = in_dimensions(method_, 10).agent(history).network(params, history.x[:num])
        nll = optax.softmax_cross_entropy_with_integer_labels(logits, history.y[:num]).mean()
        decay = sum((leaf**2).sum() for leaf in jax.tree.leaves(params))
        return nll + 10.0 * 2.0 * jnp.sqrt(0.1) / num * decay

    params, adam = jax.tree.map(lambda leaf: leaf[0], start), optax.adam(1e-3)
    state = adam.init(params)
    for _ in range(15):
        updates, state = adam.update(jax.grad(loss)(params), state)
        params = optax.apply_updates(params, updates)

    def furthest(draws):
        return max(float(jnp.abs(draws[name][0] - leaf).max()) for name, leaf in params.items())

    assert furthest(found) < 2e-5
    assert furthest(jax.jit(learnt)(method_)[1]) > 2e-3  # λ d √rho / t, five times as much, is another loss


@pytest.mark.slow
def test_learning_online_from_data_that_stay_is_training():
    """The same start and as many steps on the same data, whose gradients have no noise: what `fit` does."""
    history = history_of(model(), 40)
    agent = pt.method("ensemble+", preset="paper", num_steps=25, size=2)
    task = pt.Task(history.model, history.x[:40], history.y[:40], 40)
    state = agent.begin(KEY, history)
    for index in range(25):
        state = agent.learn(jax.random.fold_in(KEY, index), state, history)
    x = jax.random.normal(KEY, (50, 2))
    learnt, fitted = (
        posterior.values(x) for posterior in (agent.current(state, history), agent.fit(KEY, task))
    )
    np.testing.assert_allclose(learnt, fitted, atol=1e-4)


ACTING = ["ensemble+", "bbb", "hypermodel", "sgld"]  # one of each kind that learns online
REFRESHED = ["nuts", "swag", "prior"]
SETTINGS = {
    "nuts": (("warmup", "10"), ("num_draws", "10"), ("max_depth", "3")),
    "swag": (("num_steps", "20"),),
    "ensemble+": (("size", "2"),),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", [*ACTING, *REFRESHED, "mine"])
def test_agents_act_and_learn(name):
    """What an agent knows is not what it knew: its mean function has changed where it has seen data."""
    item = pt.SVI(AutoNormal, name="mine") if name == "mine" else MethodSpec(name, SETTINGS.get(name, ()))
    agent, world = bandits.agent(item), Bandit(model(), 0).world

    @jax.jit
    def play(key):
        start = loop.begin(key, agent, world, capacity=20)
        return start, loop.play(key, agent, Thompson(), world, start, 0, 12)[0]

    start, end = play(KEY)
    assert end.counts.sum() == 12
    history = History(world.model, end.x, end.y, jnp.asarray(12), world.actions, end.counts)
    before, after = (
        agent.current(state.agent, history).logits(KEY, world.actions, 20) for state in (start, end)
    )
    assert np.isfinite(after).all()
    assert (np.abs(after - before).max() > 1e-6) == (name != "prior")


def test_what_an_agent_is_by_default():
    assert bandits.agent("ensemble").size == 30
    assert bandits.agent(MethodSpec("ensemble", (("size", "100"),))).size == 100
    assert bandits.agent("mlp").batch_size == 128
    assert bandits.agent(pt.method("mlp")).batch_size == 100  # an object is as its user made it
    assert bandits.agent("nuts").method.num_draws == 100
    assert in_dimensions(bandits.agent(MethodSpec("bbb", (), "paper")), 50).kl_weight * 50 == pytest.approx(
        2.0
    )
    assert in_dimensions(pt.method("mlp", adaptive_l2=False), 50).l2 == 1.0
    with pytest.raises(pt.UsageError, match="knn cannot learn online"):
        bandits.agent("knn")

    class Plain:
        name, begin = "plain", print

    with pytest.raises(pt.UsageError, match="plain is no pytree"):
        bandits.agent(Plain())


def test_a_ring_forgets_and_counts_do_not():
    history = history_of(model(), 25, capacity=10)
    assert history.counts.sum() == 25
    assert float(history.data_weights.sum()) == pytest.approx(25.0)
    filled = history_of(model(), 7, capacity=10)
    assert float(filled.data_weights.sum()) == 7.0
    # The last ten observations, in any order.
    actions = [
        int(jax.random.randint(jax.random.fold_in(KEY, t), (2,), 0, jnp.array([20, 2]))[0]) for t in range(25)
    ]
    expected = np.sort(np.asarray(history.actions)[actions[-10:], 0])
    np.testing.assert_array_equal(np.sort(np.asarray(history.x[:, 0])), expected)


def test_distinct_rows_have_the_same_posterior():
    history = history_of(model(hidden=(5,)), 60)
    assert jax.tree.structure(history.distinct()) != jax.tree.structure(history)
    target, rows = Target(history.model, history), (history.x, history.y, history.data_weights)
    for seed in range(3):
        position = target.start(jax.random.key(seed))
        counted, whole = target.log_density(position), target.log_density(position, rows)
        assert float(whole) == pytest.approx(float(counted), rel=1e-5)


class Seen(NamedTuple):
    """A posterior that remembers of how many data it is."""

    num_train: jax.Array

    def without_history(self):
        return self


@pytree_dataclass
class Counting:
    """A method whose posterior is the number of data."""

    problems_at_once = 10
    name: str = "counting"

    def fit(self, key, task):
        return Seen(jnp.asarray(task.num_train))


def test_refreshed_methods_are_fitted_when_data_have_grown():
    agent, state = Refreshed(Counting()), Refreshment(Seen(jnp.asarray(0)), jnp.asarray(0))
    seen = []
    for num in range(1, 21):
        state = agent.learn(KEY, state, pt.Task(model(), jnp.zeros((1, 2)), jnp.zeros(1), jnp.asarray(num)))
        seen.append(int(state.posterior.num_train))
    assert sorted(set(seen)) == [1, 2, 3, 5, 8, 12, 18]  # each at least half as many again as the last
    assert seen[11] == seen[16] == 12
    assert isinstance(online(pt.method("nuts")), Refreshed)
    assert problems_at_once(agent) == 1  # under vmap it would be fitted at every step


def test_selections_are_what_they_say():
    generator = np.random.default_rng(0)
    odds, weights = generator.normal(size=(4, 6)), np.array([0.1, 0.2, 0.3, 0.4])
    table = jnp.asarray(np.stack([np.zeros_like(odds), odds], axis=-1), dtype=jnp.float32)
    posterior = Finite(Partial(lambda draw, x: draw), table, jnp.log(jnp.asarray(weights)))
    probs = 1 / (1 + np.exp(-odds))
    mean = weights @ probs
    spread = np.sqrt(weights @ (probs - mean) ** 2)
    ucb = loop.selection("ucb:2").values(KEY, posterior, jnp.zeros((6, 1)))
    np.testing.assert_allclose(ucb, mean + 2 * spread, rtol=1e-5)
    keys = jax.random.split(KEY, 4000)
    greedy = loop.selection("epsilon-greedy:0.25")
    explores = jax.vmap(lambda key: (greedy.values(key, posterior, jnp.zeros((6, 1))) == 0).all())(keys)
    assert abs(explores.mean() - 0.25) < 4 * np.sqrt(0.25 * 0.75 / 4000)
    drawn = jax.vmap(lambda key: Thompson().values(key, posterior, jnp.zeros((6, 1)))[0])(keys)
    counts = [(np.abs(np.asarray(drawn) - odds[m, 0]) < 1e-5).sum() for m in range(4)]
    assert chisquare(counts, weights * 4000).pvalue > 1e-3


def test_ties_are_broken_at_random():
    values = jnp.array([1.0, 0.0, 1.0, 1.0])
    chosen = jax.vmap(lambda key: loop.random_argmax(key, values))(jax.random.split(KEY, 3000))
    counts = np.bincount(np.asarray(chosen), minlength=4)
    assert counts[1] == 0
    assert chisquare(counts[[0, 2, 3]]).pvalue > 1e-3


def test_wrong_selections_are_named():
    for text, words in [
        ("thomson", "did you mean"),
        ("ucb:x", "expected"),
        ("thompson:2", "expected"),
        ("epsilon-greedy:2", "expected"),
    ]:
        with pytest.raises(pt.UsageError, match=words):
            loop.selection(text)


SMALL = {
    "bbb": (("particles", "2"),),
    "ensemble+": (("size", "2"), ("bootstrap", "exponential")),
    "nuts": (("warmup", "10"), ("num_draws", "10"), ("max_depth", "2")),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_a_stopped_run_goes_on_bit_for_bit(name, tmp_path, monkeypatch):
    monkeypatch.setattr(bandits, "CHUNK", 5)
    monkeypatch.setattr(bandits, "SECONDS_BETWEEN_CHECKPOINTS", 0.0)
    spec, quick = MethodSpec(name, SMALL[name]), {"steps": 12, "seeds": 2, "progress": False}
    calm = bandit([spec], out=tmp_path / "calm", **quick)
    study = bandits.acting([spec], [Bandit(model(), seed) for seed in range(2)], 12, "thompson")
    messages = [cell.message for cell in study.cells][: study.cells[0].size]
    scratch = tmp_path / "stopped" / ".scratch"
    scratch.mkdir(parents=True)
    started = study.run(messages, Workspace(Programs(), scratch))
    next(started), next(started)
    started.close()
    checkpoint = bandits.Checkpoint.of(scratch, messages, 12)
    assert list(scratch.iterdir()) == [checkpoint.path]
    assert checkpoint.read(bandits.Played(unplayed(messages), np.zeros((1, 0)), 0.0)).done == 10
    resumed = bandit([spec], out=tmp_path / "stopped", **quick)
    assert {path.suffix for path in (tmp_path / "stopped").iterdir()} == {".parquet"}
    columns = ["problem", "step", "regret"]
    assert calm[columns].equals(resumed[columns])


def unplayed(messages):
    """The state before the first action of as many runs as one program holds."""
    made = bandits.agent(messages[0].agent)
    runs = filled([message.bandit for message in messages], problems_at_once(made))
    keys, worlds = stack([run.keys.begin for run in runs]), stack([run.world for run in runs])
    return bandits._begin(keys, stack([made] * len(runs)), worlds)


def test_a_damaged_checkpoint_is_not_trusted(tmp_path):
    messages = [cell.message for cell in bandits.acting(["mlp"], [Bandit(model(), 0)], 10, "thompson").cells]
    checkpoint = bandits.Checkpoint.of(tmp_path, messages, 10)
    start = bandits.Played(unplayed(messages), np.zeros((10, 0)), 0.0)
    checkpoint.write(start._replace(regrets=np.ones((10, 3))))
    assert checkpoint.read(start).done == 3
    whole = checkpoint.path.read_bytes()
    for damaged in (whole[: len(whole) // 2], b"PK\x03\x04 nothing", b""):
        checkpoint.path.write_bytes(damaged)
        assert checkpoint.read(start) is start


def test_a_checkpoint_that_cannot_be_written_fails_nothing(tmp_path):
    (tmp_path / "file").write_text("no folder")
    start = bandits.Played({}, np.zeros((10, 0)), 0.0)
    bandits.Checkpoint(tmp_path / "file" / "10-a.npz").write(start)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_without_a_folder_for_checkpoints_a_run_begins_anew():
    messages = [cell.message for cell in bandits.acting(["mlp"], [Bandit(model(), 0)], 10, "thompson").cells]
    checkpoint = bandits.Checkpoint.of(None, messages, 10)
    start = bandits.Played(unplayed(messages), np.zeros((10, 0)), 0.0)
    checkpoint.write(start._replace(regrets=np.ones((10, 3))))
    assert checkpoint.read(start) is start


@pytest.mark.slow
def test_a_killed_process_goes_on(tmp_path):
    code = (
        "from pp_testbed.studies import bandits as b; b.SECONDS_BETWEEN_CHECKPOINTS = 0.0; b.CHUNK = 50;"
        f"b.bandit(['mlp'], steps=3000, seeds=3, out={str(tmp_path / 'killed')!r}, progress=False)"
    )
    killed = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("killed/.scratch/*.npz")) and time.monotonic() < deadline:
        time.sleep(0.05)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert list(tmp_path.glob("killed/.scratch/*.npz"))
    assert not list(tmp_path.glob("killed/*.parquet"))
    quick = {"steps": 3000, "seeds": 3, "progress": False}
    again, calm = (bandit(["mlp"], out=tmp_path / name, **quick) for name in ("killed", "calm"))
    assert again[["problem", "step", "regret"]].equals(calm[["problem", "step", "regret"]])


def test_horizons_do_not_share_checkpoints(tmp_path):
    messages = [cell.message for cell in bandits.acting(["mlp"], [Bandit(model(), 0)], 10, "thompson").cells]
    assert len({bandits.Checkpoint.of(tmp_path, messages, steps).path for steps in (10, 20)}) == 2


@pytest.mark.slow
def test_a_longer_run_begins_with_the_shorter_one(tmp_path):
    short = bandit(["mlp"], steps=300, seeds=[0, 2], out=tmp_path / "short", progress=False)
    long = bandit(["mlp"], steps=700, seeds=[0, 2], out=tmp_path / "long", progress=False)
    assert (short.step.max(), long.step.max()) == (300, 700)
    both = short.merge(long, on=["problem", "step"])
    assert len(both) == len(short) - 2  # 300 is logged as a horizon only
    np.testing.assert_array_equal(both.regret_x, both.regret_y)
    again = bandit(["mlp"], steps=300, seeds=[0, 2], out=tmp_path / "long", progress=False)
    assert again.step.max() == 300
    assert bandits.read_bandits(tmp_path / "long").step.max() == 700  # nothing is lost


def test_runs_are_found_in_any_file_of_the_directory(tmp_path):
    first = bandit(["uniform"], steps=50, seeds=2, out=tmp_path / "a", progress=False)
    (tmp_path / "b").mkdir()
    bandits.read_bandits(tmp_path / "a").to_parquet(tmp_path / "b" / "all.parquet", index=False)
    complaints = []
    (tmp_path / "b" / "note.txt").write_text("hello")
    assert len(bandits.read_bandits(tmp_path / "b", complaints.append)) == len(first)
    assert "note.txt: not a complete file of bandit runs" in complaints[0]
    again = bandit(["uniform"], steps=50, seeds=2, out=tmp_path / "b", progress=False)
    assert len(list((tmp_path / "b").iterdir())) == 2
    assert again[["problem", "step", "regret"]].equals(first[["problem", "step", "regret"]])


@pytree_dataclass
class Broken(ConjugateArms):
    """An agent whose functions are NaN."""

    name: str = "broken"

    def current(self, state, task):
        return Finite.equal(Partial(lambda draw, x: jnp.full((len(x), 2), jnp.nan)), jnp.zeros(1))


@pytree_dataclass
class BreaksLater(ConjugateArms):
    """An agent whose functions are NaN after 60 steps; at first it is uniform."""

    name: str = "later"

    def begin(self, key, task):
        return jnp.zeros(())

    def learn(self, key, state, task):
        return jnp.where(task.num_train > 60, jnp.nan, 0.0)

    def current(self, state, task):
        return Finite.equal(Partial(lambda draw, x: jnp.full((len(x), 2), draw)), state[None])


def test_a_broken_agent_costs_its_own_runs(tmp_path):
    frame = bandit([Broken(), "uniform"], steps=10, seeds=2, out=tmp_path, progress=False)
    broken = frame[frame.method == "broken"]
    assert list(broken.status.unique()) == ["error"]
    assert "NaN at step 1" in broken.error.iloc[0]
    assert (frame[frame.method == "uniform"].status == "ok").all()
    with pytest.raises(pt.UsageError, match="classes"):
        World.of(Environment(model(num_classes=3), {}), jnp.zeros((1, 2)))
    wrong = pt.SVI(lambda x, y=None: numpyro.sample("weights", dist.Normal(0, 1)), name="wrong")
    frame = bandit([wrong, "uniform"], steps=10, seeds=2, out=tmp_path, progress=False)
    assert "does not have" in frame[frame.method == "wrong"].error.iloc[0]


def test_a_failure_after_a_success_is_not_hidden(tmp_path):
    short = bandit([BreaksLater()], steps=50, seeds=1, out=tmp_path, progress=False)
    assert set(short.status) == {"ok"}
    for _ in range(2):  # it is tried again, and fails again
        long = bandit([BreaksLater()], steps=100, seeds=1, out=tmp_path, progress=False)
        assert list(long.status) == ["error"]
    again = bandit([BreaksLater()], steps=50, seeds=1, out=tmp_path, progress=False)
    assert again.equals(short)


def test_environments_are_drawn_from_the_prior():
    """Actions are N(0, I), and the prior does not prefer a class: within 4 standard errors."""
    worlds = [Bandit(model(input_dim=3), seed).world for seed in range(60)]
    actions = np.concatenate([np.asarray(world.actions) for world in worlds])
    assert actions.shape == (60 * 60, 3)
    assert abs(actions.mean()) < 4 / np.sqrt(actions.size)
    assert abs((actions**2).mean() - 1.0) < 4 * np.sqrt(2 / actions.size)
    # The prior is symmetric in the classes: over worlds the mean reward is 1/2.
    means = np.array([float(world.rewards.mean()) for world in worlds])
    assert abs(means.mean() - 0.5) < 4 * means.std() / np.sqrt(len(means))


def test_names_make_different_worlds():
    names = {
        Bandit(made, seed).name
        for made in (model(), model(activation="tanh"), model(input_dim=3))
        for seed in (0, 1)
    }
    assert len(names) == 6
