"""What is computed does not change unless its `revision` does: what is kept stays what it says."""

import json

import pytest

from tests.fingerprints import FILE, all_of_today, place

KEPT = json.loads(FILE.read_text())


@pytest.mark.slow
def test_what_is_computed_is_what_its_revision_computed():
    """To the last bit where the packages and the processor are those of the kept numbers.

    Elsewhere rounding differs, in the seventh digit of each operation; cells are so short, twenty steps or
    five transitions, that it is amplified at most a thousandfold. A change of mathematics shows earlier.
    """
    is_same_place, moved, unknown = place() == KEPT["place"], [], []
    for name, (revision, numbers) in all_of_today().items():
        kept = KEPT["values"].get(name, {"revision": None})
        if revision != kept["revision"]:
            unknown.append(f"{name}, revision {revision}")
        elif (is_same_place and numbers != kept["numbers"]) or numbers != pytest.approx(
            kept["numbers"], rel=1e-3, abs=1e-5, nan_ok=True
        ):
            moved.append(name)
    assert not moved, f"these compute something else than they did: raise the revision of {', '.join(moved)}"
    assert not unknown, f"run `python -m tests.fingerprints` to keep {', '.join(unknown)}"
