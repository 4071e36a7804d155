"""dev/bench/ladder.py: what its report says of runs whose law is known; a small ladder from corpus to report."""
import json
import re
import sys

import pytest
from runs import ROOT, call

SCRIPT = ROOT / "dev" / "bench" / "ladder.py"
sys.path.insert(0, str(SCRIPT.parent))
import ladder  # noqa: E402

MILLIONS = {"0.7M": 0.7, "1.9M": 1.9, "6.9M": 6.9, "17M": 17}


def rows_of(recipe, factor):
    """Runs whose loss is 0.6 + 0.4 N^-0.3 + factor D^-0.5."""
    for size, (_, most) in ladder.SIZES.items():
        for length in ladder.LENGTHS:
            bits = 0.6 + 0.4 * MILLIONS[size] ** -0.3 + factor * (most * length / 1e6) ** -0.5
            yield {"recipe": recipe, "size": size, "tokens": int(most * length), "options": recipe, "parameters": 1e6 * MILLIONS[size],
                   "bits_per_byte": bits, "loss": bits}  # fmt: skip


def test_the_law_is_found_and_the_share_of_tokens():
    rows = [*rows_of("one", 2.0), *rows_of("other", 1.5)]
    assert ladder.law(rows[:12]) == pytest.approx((0.6, 0.4, 0.3, 2.0, 0.5, 0.0), abs=1e-6)
    shares = re.findall(r"For the .* of one .*: other (\d+)%", ladder.report(rows))
    assert len(shares) == 1 and 56 <= int(shares[0]) <= 58  # (1.5 / 2)^2 = 0.5625; between two runs the line is straight


def test_a_recipe_that_is_better_with_the_fewest_tokens_needs_at_most_these():
    rows = [*rows_of("one", 2.0), *rows_of("other", 0.5)]
    assert "other at most 25%" in ladder.report(rows)


def test_every_recipe_that_is_tuned_has_the_same_number_of_tries():
    tuned = [choices for choices in ladder.RATES.values() if len(choices) > 1]
    assert len(tuned) > 1 and len({len(choices) for choices in tuned}) == 1


def test_rates_that_were_not_kept_are_no_rows(tmp_path):
    rows = list(rows_of("one", 2.0))
    tried = {**rows[0], "size": ladder.SWEPT, "tokens": int(ladder.SWEPT_TOKENS), "options": "another rate", "bits_per_byte": 9.0}
    once = ladder.report(rows)
    assert ladder.report([tried, *rows]) == once.replace("| `one` | 1 |", "| `one` | 2 |")
    results = tmp_path / "results.json"
    results.write_text(json.dumps([tried, *rows]))
    printed = call(sys.executable, SCRIPT, "report", results, "--picture", tmp_path / "picture.svg", expect=0).stdout
    assert printed.strip() == ladder.report([tried, *rows]).strip()
    assert (tmp_path / "picture.svg").read_text().count("<polyline") == len(ladder.SIZES)


@pytest.mark.slow
def test_a_small_ladder_runs_once_and_is_not_run_again(tmp_path, monkeypatch, capsys):
    text = tmp_path / "text.txt"
    text.write_text("".join(path.read_text() for path in sorted((ROOT / "llmc" / "model").glob("*.c"))))
    data = tmp_path / "data"
    call(ROOT / "data" / "prepare", "-o", data, text, expect=0)
    monkeypatch.setattr(ladder, "SIZES", {"6.9M": ("L=1,C=32,NH=1", 8192)})
    monkeypatch.setattr(ladder, "TOKENS_IN_STEP", 2048)
    monkeypatch.setattr(ladder, "T", 64)
    monkeypatch.setattr(ladder, "SWEPT_TOKENS", 4096.0)
    monkeypatch.setattr(ladder, "LENGTHS", (1.0,))
    monkeypatch.setattr(ladder, "VALIDATION", 4)
    results = tmp_path / "ladder.json"
    monkeypatch.setattr(sys, "argv", ["ladder.py", "run", str(data), "--jobs", "2", "--results", str(results)])
    ladder.main()
    made = capsys.readouterr().out.splitlines()
    assert len(made) == len(json.loads(results.read_text())) == sum(len(c) for c in ladder.RATES.values() if len(c) > 1) + len(ladder.RATES)
    ladder.main()
    assert capsys.readouterr().out == ""
