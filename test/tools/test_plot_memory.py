"""--memory-timeline and scripts/plot_memory.py: the drawing is the plan, byte by byte, and the pictures are pictures."""
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


def timeline(path, *arguments):
    said = trainer(*MODEL, "--gpu", "t4", "--memory-timeline", path, *arguments).stdout
    assert said.splitlines()[-1] == f"plan        drawn: {path}"
    return json.loads(path.read_text())


FORMS = {"all kept": ["-r", 0], "recomputed": ["-r", 3], "8-bit": ["--optimizer", "adamw8bit", "-w", 0, "--grad-dtype", "compute"],
         "muon": ["--optimizer", "muon"], "evaluation": ["-x", 0], "several": ["--gpus", 4]}


@pytest.mark.parametrize("form", FORMS)
def test_the_rectangles_are_the_plan(form, tmp_path):
    drawn = timeline(tmp_path / "a.json", *FORMS[form])
    planned = json.loads(trainer(*MODEL, "--gpu", "t4", "--plan", "json", *FORMS[form]).stdout)["devices"][0]["memory"]
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
    drawn = timeline(tmp_path / "a.json", "-r", 0, "--optimizer", "muon")
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


def test_one_command_draws_a_picture_and_a_page(tmp_path):
    trainer(*MODEL, "--gpu", "t4", "--memory-timeline", tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    said = trainer(*MODEL, "--plan", "json", "--memory-timeline", tmp_path / "a.html").stdout
    json.loads(said)  # of this machine, and nothing after it
    page = (tmp_path / "a.html").read_text()
    svg = xml.dom.minidom.parseString(page[page.index("<svg"):page.index("</svg>") + 6])
    titles = [node.firstChild.data for node in svg.getElementsByTagName("title") if node.firstChild]
    assert any(re.fullmatch("qkv: .*iB, block 0 qkv to block 0 attention backward", title) for title in titles)
    assert sorted(os.listdir(tmp_path)) == ["a.html", "a.png"]  # nothing else is left


def test_two_plans_side_by_side_and_one_that_does_not_fit(tmp_path):
    timeline(tmp_path / "a.json", "-r", 0)
    trainer("-e", "d48", "--gpu", "24G", "-b", 4, "--dtype", "fp32", "--memory-timeline", tmp_path / "b.json")
    call(*PLOT, str(tmp_path / "a.json"), str(tmp_path / "b.json"), "-o", str(tmp_path / "ab.html"))
    page = (tmp_path / "ab.html").read_text()
    assert "DOES NOT FIT" in page and page.count("at the peak: ") == 2


def test_bad_input_is_one_line(tmp_path):
    def refused(said):
        assert said.stderr.count("\n") == 1, said.stderr
        return said.stderr

    assert "must end in .png, .html or .json" in refused(trainer(*MODEL, "--memory-timeline", "a.gif", expect=EXIT_BAD_INPUT))
    assert "names several" in refused(trainer(*MODEL, "--gpu", "t4,h100", "--memory-timeline", "a.png", expect=EXIT_BAD_INPUT))
    for end in ("json", "png"):
        path = tmp_path / "no" / f"a.{end}"
        assert str(path) in refused(trainer(*MODEL, "--memory-timeline", path, expect=EXIT_BAD_INPUT))
    (tmp_path / "other.json").write_text('{"memory_timeline": 7}')
    assert "other.json" in refused(call(*PLOT, str(tmp_path / "other.json"), "-o", "a.png", expect=EXIT_BAD_INPUT))
    assert "none.json" in refused(call(*PLOT, str(tmp_path / "none.json"), "-o", "a.png", expect=EXIT_BAD_INPUT))
