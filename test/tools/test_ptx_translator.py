"""dev/sim/translate.py: what it does not know ends the translation with its place in the PTX; nothing is guessed."""
import re
import sys

import pytest
from runs import ROOT, call

TRANSLATOR, FORMS = ROOT / "dev" / "sim" / "translate.py", ROOT / "test" / "sim"
sys.path[:0] = [str(TRANSLATOR.parent), str(FORMS)]
import translate as translator  # noqa: E402
from ptx_forms_table import CASES  # noqa: E402

MODULE = """.version 8.0
.target sm_90
.address_size 64

.visible .entry kernel(
	.param .u64 kernel_param_0
)
{
	.reg .pred %p<9>;
	.reg .b16 %rs<9>;
	.reg .b32 %r<9>;
	.reg .f32 %f<9>;
	.reg .b64 %rd<9>;
	.reg .f64 %fd<9>;
	ld.param.u64 %rd1, [kernel_param_0];
	STATEMENT
	ret;
}
"""
LINE = 1 + MODULE[:MODULE.index("STATEMENT")].count("\n")


def translate(tmp_path, text):
    source, target = tmp_path / "module.compute_90.ptx", tmp_path / "module.cpp"
    source.write_text(text)
    result = call(sys.executable, TRANSLATOR, target, source)
    return result.returncode, result.stderr, source, target


def test_a_known_statement_is_translated(tmp_path):
    code, err, _, target = translate(tmp_path, MODULE.replace("STATEMENT", "add.s32 %r1, %r2, %r3;"))
    assert (code, err) == (0, "") and target.exists()


@pytest.mark.parametrize("statement", [
    "frobnicate.u32 %r1, %r2;",                                # opcode
    "dp4a.u32.u32 %r1, %r2, %r3, %r4;",
    "add.sat.s32 %r1, %r2, %r3;",                              # modifier
    "add.rz.f32 %f1, %f2, %f3;",
    "fma.rn.sat.f32 %f1, %f2, %f3, %f4;",
    "mul.hi.f32 %f1, %f2, %f3;",
    "cvt.rn.f16.f32.f32 %rs1, %f1;",
    "cvt.f16.f32 %rs1, %f1;",
    "cvt.satfinite.e4m3x2.f32 %rs1, %f1, %f2;",
    "setp.lt.and.s32 %p1, %r1, %r2, %p2;",
    "setp.lt.s32 %p1|%p2, %r1, %r2;",
    "shfl.bfly.b32 %r1, %r2, 1, 31;",
    "ld.global.v3.u32 {%r1, %r2, %r3}, [%rd1];",
    "ld.const.u32 %r1, [%rd1];",
    "ld.acquire.gpu.global.u32 %r1, [%rd1];",
    "atom.global.dec.u32 %r1, [%rd1], %r2;",
    "bar.arrive 0, 32;",
    "bar.sync 1;",
    "prmt.b32.f4e %r1, %r2, %r3, %r4;",
    "mma.sync.aligned.m16n8k16.col.row.f32.f16.f16.f32 {%f1,%f2,%f3,%f4}, {%r1,%r2,%r3,%r4}, {%r5,%r6}, {%f1,%f2,%f3,%f4};",
    "ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%r1, %r2}, [%r3];",
    "add.u33 %r1, %r2, %r3;",                                  # type
    "add.f16 %rs1, %rs2, %rs3;",
    "max.f16 %rs1, %rs2, %rs3;",                               # which is not the maximum of integers
    "min.f16x2 %r1, %r2, %r3;",
    "max.f64 %fd1, %fd2, %fd3;",
    "setp.lt.f16 %p1, %rs1, %rs2;",
    "setp.eq.bf16 %p1, %rs1, %rs2;",
    "popc.b16 %r1, %rs1;",
    "mov.u32 %r1, %frob;",                                     # special register
    "mov.u32 %r1, %smid;",
    "mov.u64 %rd2, %globaltimer;",
    "mov.u32 %r1, %tid.w;",
    "mov.u32 %r1, %lanemask_lt;",
    "mov.u32 %r1, nowhere;",                                   # name
    "ld.param.u32 %r1, [kernel_param_1];",
    "ld.param.u32 %r1, [kernel_param_0+8];",
    "add.s32 %r1, %r2, %q3;",
    "add.f32 %f1, %f2, 1;",                                    # class of a register, kind of a number
    "add.f32 %f1, %f2, %fd3;",
    "add.s32 %r1, %r2, %rs3;",
    "selp.b32 %r1, %r2, %r3, %r4;",
    "ld.global.v2.u32 {%r1, %r2, %r3}, [%rd1];",               # number of operands
    "ld.global.u32 %r1, [%rd1*4];",
])
def test_what_is_unknown_is_refused_with_its_line(tmp_path, statement):
    code, err, source, target = translate(tmp_path, MODULE.replace("STATEMENT", statement))
    assert code == 1 and err.startswith("%s:%d: " % (source, LINE)), err
    assert not target.exists()


@pytest.mark.parametrize("text, line", [
    (MODULE.replace(".visible .entry", ".surfref image;\n.visible .entry"), 5),
    (MODULE.replace(".visible .entry", ".func (.param .b32 r) helper() { ret; }\n.visible .entry"), 5),
    (MODULE.replace(")\n{", ")\n.frobnicate 3\n{"), None),
])
def test_unknown_directives_are_refused(tmp_path, text, line):
    code, err, source, _ = translate(tmp_path, text.replace("STATEMENT", ""))
    assert code == 1 and re.match(re.escape(str(source)) + (":%d: " % line if line else r":\d+: "), err), err


def test_the_line_counts_comments_and_debug_information(tmp_path):
    text = "// a comment\n/* and\nanother */\n" + MODULE.replace("STATEMENT", '.loc 1 7 3\n\tfrobnicate %r1;')
    code, err, source, _ = translate(tmp_path, '.file 1 "a.cu"\n' + text)
    assert code == 1 and err.startswith("%s:%d: " % (source, LINE + 5)), err


# ------------------------------------------------------------------------------- every form of the kernels, mutilated

def statement_of(case, number):
    """The kernel of a case and its first statement of that form: text, begin, end."""
    text = case.ptx(number)
    opcode = case.form.split()[0]
    match = re.search(r"(?<![\w.])%s(?=[\s;])[^;]*;" % re.escape(opcode), text[text.index("\n"):])
    return text, text.index("\n") + match.start(), text.index("\n") + match.end()


def drop_last(statement):
    """The statement without its last operand; none if it has no operand, or the last is in braces."""
    cut = re.sub(r"(?:,\s*|\s+)(?:\{[^{}]*\}|[^,{}]+);$", ";", statement)
    return None if cut == statement else cut


CHANGES = {
    "an unknown modifier": lambda s: re.sub(r"^([\w.]+)", r"\1.frob", s),
    "a modifier before the type": lambda s: re.sub(r"^(\w+)\.", r"\1.frob.", s) if "." in s.split()[0] else None,
    "one operand more": lambda s: s[:-1] + (", 0;" if re.search(r"\s", s) else " 0;"),
    "one operand less": drop_last,
}
# cp.async without its last operand, the number of bytes to read, is another form of the ISA.
ANOTHER_FORM = {("cp.async.cg.shared.global", "one operand less")}


@pytest.mark.parametrize("change", CHANGES)
def test_no_form_is_taken_with(tmp_path, monkeypatch, capsys, change):
    taken, done = [], set()
    source, target = tmp_path / "module.compute_90.ptx", tmp_path / "module.cpp"
    for number, case in enumerate(CASES):
        if case.form in done or (case.form, change) in ANOTHER_FORM:
            continue
        done.add(case.form)
        text, begin, end = statement_of(case, number)
        changed = CHANGES[change](text[begin:end])
        if changed is None:
            continue
        head = ".version 8.0\n.target sm_90\n.address_size 64\n.extern .shared .align 16 .b8 form_dynamic[];\n"
        source.write_text(head + text[:begin] + changed + text[end:])
        line = 5 + text.count("\n", 0, begin)
        monkeypatch.setattr(sys, "argv", [str(TRANSLATOR), str(target), str(source)])
        try:
            translator.main()
            taken.append("%s: %s" % (case.form, changed))
        except SystemExit as stop:
            if not str(stop.code).startswith("%s:%d: " % (source, line)):
                taken.append("%s: %s" % (changed, stop.code))
    assert not taken, "\n".join(taken)
    assert len(done) > 200


def test_a_form_without_a_case_is_found(tmp_path):
    """The check of the forms that runs over the PTX of the kernels."""
    source = tmp_path / "a.ptx"
    checker = [sys.executable, FORMS / "ptx_forms.py", "--check", source]
    source.write_text(MODULE.replace("STATEMENT", "add.s32 %r1, %r2, %r3;"))
    assert call(*checker, expect=0).stdout == "3 forms, all have a case\n"
    more = "@%p1 fma.rz.f32 %f1, %f2, %f3, %f4;\nmov.u32 %r1, %smid;"
    source.write_text(MODULE.replace("STATEMENT", "add.s32 %r1, %r2, %r3;\n" + more))
    assert [line.split(" has")[0] for line in call(*checker, expect=1).stdout.splitlines()] == [
        "%s:%d: fma.rz.f32" % (source, LINE + 1), "%s:%d: mov.u32 %%smid" % (source, LINE + 2)]
