"""dev/memory_tables.py: the table in doc/memory.md is what the planner says."""
import sys

import pytest
from runs import ROOT, call

SCRIPT = ROOT / "dev" / "memory_tables.py"


@pytest.mark.slow
def test_the_table_of_the_largest_models_is_not_stale():
    call(sys.executable, SCRIPT, "--check", expect=0)


def test_a_stale_table_is_noticed(tmp_path):
    script = tmp_path / "dev" / "memory_tables.py"
    (tmp_path / "doc").mkdir()
    script.parent.mkdir()
    text = SCRIPT.read_text().replace("SCHEMES = (", 'SCHEMES = ("--optimizer adamw",)\nALL = (')
    script.write_text(text.replace("SIZES = (8, 16, 24, 40, 80, 141)", "SIZES = (8, 16)"))
    (tmp_path / "scripts").symlink_to(ROOT / "scripts")
    (tmp_path / "train_gpt2").symlink_to(ROOT / "train_gpt2")
    made = call(sys.executable, script, expect=0).stdout
    document = tmp_path / "doc" / "memory.md"
    for old, new, wrong in (("x", "x", ""), ("C=960)", "C=1024)", "but that is"), ("381M (C=960)", "-", "more than")):
        document.write_text("<!-- made by dev/memory_tables.py -->\n" + made.replace(old, new) + "<!-- end -->\n")
        assert wrong in call(sys.executable, script, "--check", expect=int(wrong != "")).stdout
