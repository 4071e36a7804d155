"""dev/mutation: every mistake has its place. Planting one takes minutes, so that a place which an edit of the sources
has lost would be seen late."""
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "dev/mutation"))

import place  # noqa: E402
import same_bits  # noqa: E402
from mutations import MUTATIONS  # noqa: E402


def mistakes():
    for m in MUTATIONS:
        if getattr(m, "old", None):
            yield m.name, m.path, m.old, m.new
    for name, _, file, old, new in same_bits.MISTAKES:
        yield "same_bits: " + name, file, old, new


@pytest.mark.parametrize("name, file, old, new", mistakes(), ids=lambda value: str(value)[:30])
def test_a_mistake_changes_one_place(name, file, old, new):
    text = (ROOT / file).read_text()
    assert place.replaced(old, new, text) not in (None, text)


def test_a_text_that_is_there_twice_is_no_place():
    assert place.replaced("a", "b", "a a") is None
    assert place.replaced("f(a, b);", "", "f(a,\n  b);\n") == "\n"
    assert place.replaced("  f(a, b);\n", "", "{\n    f(a,\n      b);\n}\n") == "{\n}\n"
