"""scripts/memory_tables.py: the table in doc/memory.md is what the planner says."""
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "memory_tables.py"


@pytest.mark.slow
def test_the_table_of_the_largest_models_is_not_stale():
    result = subprocess.run([sys.executable, SCRIPT, "--check"], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


def test_a_stale_table_is_noticed(tmp_path):
    script = tmp_path / "scripts" / "memory_tables.py"
    (tmp_path / "doc").mkdir()
    script.parent.mkdir()
    text = SCRIPT.read_text().replace("SCHEMES = (", 'SCHEMES = ("--optimizer adamw",)\nALL = (')
    script.write_text(text.replace("SIZES = (8, 16, 24, 40, 80, 141)", "SIZES = (8, 16)"))
    (tmp_path / "train_gpt2").symlink_to(ROOT / "train_gpt2")
    made = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True).stdout
    document = tmp_path / "doc" / "memory.md"
    for old, new, wrong in (("x", "x", ""), ("C=960)", "C=1024)", "but that is"), ("381M (C=960)", "-", "more than")):
        document.write_text("<!-- made by scripts/memory_tables.py -->\n" + made.replace(old, new) + "<!-- end -->\n")
        result = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True)
        assert result.returncode == (wrong != ""), result.stdout
        assert wrong in result.stdout
