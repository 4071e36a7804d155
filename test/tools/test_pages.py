"""README.md and doc/: widths, links, and the page of options. dev/check_docs.py runs the commands that they show."""
import re
import shutil
import sys

import pytest
from runs import ROOT, call

PAGES = [ROOT / "README.md", *sorted((ROOT / "doc").glob("*.md"))]
COLUMNS = 100
TABLE = re.compile("<!-- made by dev/options_page.py -->\n(.*)\n<!-- end -->", re.DOTALL)


def prose(page):
    """(number, text) of the lines that are neither in a block of code nor in a table."""
    inside = False
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if line.lstrip().startswith("```"):
            inside = not inside
        elif not inside and not line.startswith("|"):
            yield number, line


def anchors(page):
    """The names that GitHub gives to the headings of a page."""
    titles = [line.lstrip("#") for _, line in prose(page) if line.startswith("#")]
    plain = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title) for title in titles]
    return {re.sub(r"[^\w -]", "", title).strip().lower().replace(" ", "-") for title in plain}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_prose_has_at_most_100_columns(page):
    assert [f"{page.name}:{number}" for number, line in prose(page) if len(line) > COLUMNS] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files_and_headings(page):
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if re.match(r"https?:", target):
            continue
        name, _, heading = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        if not file.exists() or (heading and heading not in anchors(file)):
            broken.append(target)
    assert broken == []


def test_the_page_of_options_has_what_the_trainer_prints():
    made = call(sys.executable, ROOT / "dev" / "options_page.py", expect=0).stdout.strip()
    assert TABLE.search((ROOT / "doc" / "options.md").read_text())[1] == made
    names = re.findall(r'^OPTION\(\w+, +"([^"]+)"', (ROOT / "llmc" / "run" / "options.def").read_text(), re.MULTILINE)
    missing = [name for name in names if not re.search(rf"^\| `(-\w+, )?--{name}[ `]", made, re.MULTILINE)]
    assert len(names) > 70 and missing == []


def test_write_replaces_the_table_alone(tmp_path):
    script, page = tmp_path / "dev" / "options_page.py", tmp_path / "doc" / "options.md"
    for file in (script, page):
        file.parent.mkdir()
    shutil.copy(ROOT / "dev" / "options_page.py", script)
    (tmp_path / "scripts").symlink_to(ROOT / "scripts")
    (tmp_path / "train_gpt2").symlink_to(ROOT / "train_gpt2")
    whole = (ROOT / "doc" / "options.md").read_text()
    page.write_text(TABLE.sub("<!-- made by dev/options_page.py -->\n| old |\n<!-- end -->", whole))
    call(sys.executable, script, "--write", expect=0)
    assert page.read_text() == whole
