"""The arena in --plan json and scripts/plot_memory.py: the drawing is the plan, byte by byte, and the pictures are pictures."""
import json
import os
import re
import sys
import xml.dom.minidom

import pytest
from runs import EXIT_BAD_INPUT, ROOT, TRAINER, call

PYTHON = "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable
PLOT = [PYTHON, str(ROOT / "scripts" / "plot_memory.py")]
MODEL = ["-e", "L=3,C=128,NH=2,V=257,T=64", "-b", "4", "-t", "64"]


def trainer(*arguments, expect=0):
    return call(str(TRAINER), *map(str, arguments), expect=expect)


def plan(path, *arguments):
    """Writes the plan for a T4, or what the arguments name, to path; returns it."""
    path.write_text(trainer(*MODEL, "--gpu", "t4", "--plan", "json", *arguments).stdout)
    return json.loads(path.read_text())


def plot(*arguments, expect=0):
    return call(*PLOT, *map(str, arguments), expect=expect)


FORMS = {"all kept": ["-r", 0], "recomputed": ["-r", 3], "8-bit": ["--optimizer", "adamw8bit", "-w", 0, "--grad-dtype", "compute"],
         "muon": ["--optimizer", "muon"], "evaluation": ["-x", 0], "several": ["--gpus", 4]}


@pytest.mark.parametrize("form", FORMS)
def test_the_rectangles_are_the_plan(form, tmp_path):
    device = plan(tmp_path / "a.json", *FORMS[form])["devices"][0]
    drawn, planned = device["arena"], device["memory"]
    assert drawn["total"] == planned["total"] == max(t["offset"] + t["bytes"] for t in drawn["tensors"])
    alive = [0] * len(drawn["ticks"])
    by_kind = {}
    for t in drawn["tensors"]:
        for tick in range(t["first"], t["last"] + 1):
            alive[tick] += t["bytes"]
        if t["always"]:
            by_kind[t["kind"]] = by_kind.get(t["kind"], 0) + t["bytes"]
    assert max(alive) == drawn["peak"] == alive[drawn["peak_tick"]]
    assert by_kind == {kind: planned[kind] for kind in by_kind}
    # No two tensors that live at the same time share an address.
    for i, a in enumerate(drawn["tensors"]):
        for b in drawn["tensors"][:i]:
            assert (a["last"] < b["first"] or b["last"] < a["first"] or
                    a["offset"] + a["bytes"] <= b["offset"] or b["offset"] + b["bytes"] <= a["offset"])


def test_ticks_are_named_after_the_ops_that_write_there(tmp_path):
    drawn = plan(tmp_path / "a.json", "-r", 0, "--optimizer", "muon")["devices"][0]["arena"]
    first = {}
    for t in drawn["tensors"]:
        first.setdefault(t["name"], []).append(drawn["ticks"][t["first"]])
    assert first["qkv"][:3] == [f"block {i} qkv" for i in range(3)]
    assert first["residual2"][:3] == [f"block {i} attproj" for i in range(3)]
    assert first["residual1"][:3] == ["embedding", "block 0 fcproj", "block 1 fcproj"]
    assert first["final_residual"] == ["block 2 fcproj"]
    assert first["dpre"] == [f"block {i} gelu backward" for i in range(3)]
    assert first["dqkv"] == [f"block {i} attention backward" for i in range(3)]
    assert first["logits"] == ["logits and loss"] and first["dresidual"] == ["final layernorm backward"]
    assert first["cache"] == ["generation"] and first["optimizer_scratch"] == ["update"]
    last = {t["name"]: drawn["ticks"][t["last"]] for t in drawn["tensors"]}
    assert last["dresidual"] == "embedding backward"


def test_a_plan_of_this_machine_is_a_picture_and_a_page(tmp_path):
    (tmp_path / "a.json").write_text(trainer(*MODEL, "--plan", "json").stdout)
    plot(tmp_path / "a.json", "-o", tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    plot(tmp_path / "a.json", "-o", tmp_path / "a.html")
    page = (tmp_path / "a.html").read_text()
    assert page.count("at the peak: ") == 1  # not of the GPUs of the table
    svg = xml.dom.minidom.parseString(page[page.index("<svg"):page.index("</svg>") + 6])
    titles = [node.firstChild.data for node in svg.getElementsByTagName("title") if node.firstChild]
    assert any(re.fullmatch("qkv: .*iB, block 0 qkv to block 0 attention backward", title) for title in titles)


def test_plans_side_by_side_and_one_that_does_not_fit(tmp_path):
    plan(tmp_path / "a.json", "-r", 0)
    plan(tmp_path / "b.json", "-e", "d48", "--gpu", "24G,h100", "-b", 4, "--dtype", "fp32")
    plot(tmp_path / "a.json", tmp_path / "b.json", "-o", tmp_path / "ab.html")
    page = (tmp_path / "ab.html").read_text()
    assert page.count("DOES NOT FIT") == 1 and page.count("at the peak: ") == 3


def test_bad_input_is_one_line(tmp_path):
    def refused(*arguments):
        said = plot(*arguments, expect=EXIT_BAD_INPUT).stderr
        assert said.count("\n") == 1, said
        return said

    plan(tmp_path / "a.json")
    assert "must end in .png or .html" in refused(tmp_path / "a.json", "-o", tmp_path / "a.gif")
    assert str(tmp_path / "no" / "a.png") in refused(tmp_path / "a.json", "-o", tmp_path / "no" / "a.png")
    for other in ('{"devices": 7}', '{"devices": [{"arena": {}}]}', "[]", "7", ""):
        (tmp_path / "other.json").write_text(other)
        assert "other.json was not written by --plan json" in refused(tmp_path / "other.json", "-o", "a.png")
    (tmp_path / "other.json").write_text('{"devices": []}')
    assert "no arena to draw" in refused(tmp_path / "other.json", "-o", "a.png")
    assert "none.json" in refused(tmp_path / "none.json", "-o", "a.png")
