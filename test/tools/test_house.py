"""dev/house.py: the includes of the product point downwards, and what is planted is found."""
import re
import sys

from runs import ROOT, call

SCRIPT = ROOT / "dev" / "house.py"


def places(tree, kind):
    return call(sys.executable, SCRIPT, "--tree", tree, "--list", kind, expect=0).stdout.splitlines()


def plant(tree, **files):
    for name, text in files.items():
        path = tree / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tree


def test_no_include_of_the_product_runs_upwards():
    assert places(ROOT, "upwards") == []


def test_an_include_of_a_room_above_and_of_a_room_on_the_same_line_are_found(tmp_path):
    plant(tmp_path, llmc__base__file_dot_c='#include "llmc/base/file.h"\n#include "llmc/model/model.h"\n',
          llmc__train__a_dot_h='#include "llmc/store/b.h"\n#include "llmc/base/file.h"\n', llmc__base__file_dot_h="",
          llmc__ops_dot_c='#include "llmc/cuda/backend.h"\n#include "llmc/ops.h"\n')
    assert places(tmp_path, "upwards") == ["llmc/base/file.c includes llmc/model/model.h", "llmc/train/a.h includes llmc/store/b.h"]


def test_a_name_of_two_files_is_found_but_not_what_both_backends_define(tmp_path):
    plant(tmp_path, llmc__base__a_dot_c="static int fail(int x) { return x; }\n/* int seen(void) { } */\n",
          llmc__run__b_dot_c="int seen(void) {\n    return 1;\n}\n\nstatic void *fail(void) { return 0; }\n",
          llmc__cpu__c_dot_c="void backend_cast(void) {}\n", llmc__cuda__c_dot_cu="void backend_cast(void) {}\n")
    assert places(tmp_path, "duplicates") == ["fail: llmc/base/a.c:1, llmc/run/b.c:5"]


def test_what_a_page_must_not_have_is_found_and_fails_the_check(tmp_path):
    lines = "".join(f"    x += {i};\n" for i in range(61))
    plant(tmp_path, llmc__a_dot_c=f"int solid(int x) {{\n{lines}    return x;\n}}\n\nbool straight(void) {{\n"
          "    return fits() || error_set(err, text_if(x, y));\n}\n// Of this process.\nint parted(void) {\n    a();\n\n"
          f"    return 0;\n}}\n// {'x' * 98}\n// clang-format off\n// {'y' * 98}\n// clang-format on\n")
    found = {kind: places(tmp_path, kind) for kind in ("solid", "long", "failures", "disguised", "columns", "fragments")}
    assert found["solid"] == found["long"] == ["llmc/a.c:1: solid, 62 lines"]
    assert found["failures"] == found["disguised"] == ["llmc/a.c:67: return fits() || error_set(err, text_if(x, y));"]
    assert found["fragments"] == ["llmc/a.c:69: // Of this process."]
    assert [place.split(":")[1] for place in found["columns"]] == ["75"]
    said = call(sys.executable, SCRIPT, "--tree", tmp_path, "--check", expect=1).stderr
    for words in ("functions over 60 lines: 1, at most 0", "failures inside || and &&: 1", "lines over 100 columns, outside tables: 1",
                  "clothes of a function: 1", "function bodies: 1."):
        assert words in said
    plant(tmp_path, llmc__a_dot_c="int parted(void) {\n    a();\n\n    return 0;\n}\n")
    call(sys.executable, SCRIPT, "--tree", tmp_path, "--check", expect=0)


def test_files_that_call_each_other_are_a_circle(tmp_path):
    plant(tmp_path, llmc__base__a_dot_h="int a(void);\n", llmc__base__b_dot_h="int b(void);\n",
          llmc__base__a_dot_c='#include "llmc/base/b.h"\nint a(void) { return b(); }\n',
          llmc__base__b_dot_c='#include "llmc/base/a.h"\nint b(void) { return a(); }\n',
          llmc__base__c_dot_c='#include "llmc/base/a.h"\nint c(void) { return a(); }\n')
    assert places(tmp_path, "circles") == ["llmc/base/a <-> llmc/base/b"]


def test_comma_statements_are_told_from_declarations(tmp_path):
    plant(tmp_path, llmc__a_dot_c="int f(int x, int y) {\n    int a = 1, b = g(a, 2);\n    const T *p = q, *r = s;\n"
          "    if (x) return a++, b;\n    kernel<A, B><<<1, 2>>>(x, y);\n    a = 1, b = 2;\n    return g(a, b);\n}\n")
    said = call(sys.executable, SCRIPT, "--tree", tmp_path, expect=0).stdout
    assert re.search(r"^comma statements +2$", said, re.M)


def test_the_map_of_doc_architecture_names_files_and_functions_that_exist():
    page = (ROOT / "doc" / "architecture.md").read_text().partition("## Where things are")[2].partition("\n## ")[0]
    rows = re.findall(r"^\|[^|]*\| `([^`]+)` \| (?:`(\w+)` )?\|$", page, re.M)
    assert len(rows) > 15 and len(rows) == page.count("\n|") - 2  # the head of the table and the line under it
    for path, function in rows:
        text = (ROOT / path).read_text()
        assert not function or re.search(rf"^\w[\w *]*\b{function}\([^;{{]*\{{", text, re.M), f"{path}: no {function}"
