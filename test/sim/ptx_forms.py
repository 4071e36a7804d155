#!/usr/bin/env python3
"""The tests of what PTX instructions mean: writes them as a PTX module and as a C table, and finds forms without a test.

usage: ptx_forms.py --ptx ARCH              the module for that architecture (75, 80, 86, 89, 90, 100, 120), to standard output
       ptx_forms.py --table                 forms_table.h, to standard output
       ptx_forms.py --check FILE.ptx...     exits 1 and names the forms of these files that have no case

A form is an opcode with all its modifiers and types, such as cvt.rn.satfinite.e4m3x2.f32. Two kinds of operand make a form
of their own, because a translator treats them apart: special registers and names of variables (mov.u32 %tid.x, mov.u64
address), and vectors of mov (mov.b32 pack 2, mov.b32 unpack 2). The cases with their expected values are in
ptx_forms_table.py. Case N is the kernel form_N: lane i of one warp loads row i of its inputs, executes the form, and
stores its outputs. Every input and output has a slot of 64 bits; the stride of a row is even, so that rows are 16-byte
aligned. A case with fewer than 32 rows repeats them.
"""
import os
import re
import struct
import sys
from fractions import Fraction
from math import isqrt

DYNAMIC_BYTES = 1024  # dynamic shared memory of each launch
FILL = 0xA5  # every byte of the outputs before the launch
# The first version that has the architecture and all its forms.
PTX_VERSION = {75: "7.0", 80: "7.0", 86: "7.1", 89: "8.1", 90: "8.1", 100: "8.6", 120: "8.7"}
# The third parameter of the kernels that have one: 64 bytes. test_ptx_forms.c passes it to every kernel.
PARAMETER = struct.pack("<4B f f I Q 4B", 0x01, 0x7F, 0x80, 0xFF, 1.5, -2.5, 0x80000001, 0x8877665544332211,
                        0xC3, 0x3C, 0x80, 0x7F)
PARAMETER += bytes(64 - len(PARAMETER))

# Type of an operand: register class, bits, type of the load. x32, x64: floating point registers whose NaN is compared by bits.
TYPES = {
    "pred": ("%p", 1, None),
    "b16": ("%rs", 16, "u16"), "u16": ("%rs", 16, "u16"), "s16": ("%rs", 16, "u16"),
    "b32": ("%r", 32, "u32"), "u32": ("%r", 32, "u32"), "s32": ("%r", 32, "u32"),
    "b64": ("%rd", 64, "u64"), "u64": ("%rd", 64, "u64"), "s64": ("%rd", 64, "u64"),
    "f32": ("%f", 32, "f32"), "x32": ("%f", 32, "f32"), "f64": ("%fd", 64, "f64"), "x64": ("%fd", 64, "f64"),
    "mem": (None, 64, None),  # 64 bits that the body reads or writes by itself
}
FLOATS = {"f32": ("<f", "<I", 0x7FFFFFFF), "x32": ("<f", "<I", 0x7FFFFFFF), "f64": ("<d", "<Q", 0x7FF8 << 48), "x64": ("<d",
    "<Q", 0x7FF8 << 48)}
FIRST = 10  # registers of a body's operands are numbered from here; below 10 the body's own from 5


# ------------------------------------------------------------------------------------------------------------- numbers


def root(x):
    """The square root of a Fraction to 250 bits: enough to round, since an irrational root is never a tie."""
    scale = 1 << 250
    return Fraction(isqrt(x.numerator * scale * scale // x.denominator), scale)


def rounded(x, bits, lowest):
    """A Fraction rounded to nearest even: a significand of BITS bits, exponents from LOWEST. No overflow."""
    if not x:
        return x
    size = abs(x)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    if Fraction(2) ** exponent > size:
        exponent -= 1
    unit = Fraction(2) ** (max(exponent, lowest) - bits + 1)
    return round(x / unit) * unit


def float_bits(x, type_):
    single = TYPES[type_][1] == 32
    pack, unpack, _ = FLOATS[type_]
    number = float(x)
    code = struct.unpack(unpack, struct.pack(pack, number))[0]
    if Fraction(struct.unpack(pack, struct.pack(unpack, code))[0]) != x:
        raise ValueError("%s is no %s" % (x, "float" if single else "double"))
    return code


def value(token):
    """A sum of powers as a Fraction: 1+2^-23, (2-2^-23)*2^127, sqrt(2)."""
    text = re.sub(r"\d+(\.\d+)?", r'F("\g<0>")', token.replace("^", "**"))
    return eval(text, {"__builtins__": {}, "F": Fraction, "sqrt": root})


def slot(token, type_):
    """What a slot holds for a token: 0x bits, inf, nan, a sum of powers of two, an integer."""
    if isinstance(token, int):
        return token & (1 << 64) - 1
    bits = TYPES[type_][1]
    if token.startswith("0x"):
        return int(token, 16)
    if type_ in FLOATS:
        pack, unpack, nan = FLOATS[type_]
        if token == "nan":
            return nan
        if token in ("inf", "-inf", "-0"):
            return struct.unpack(unpack, struct.pack(pack, float(token)))[0]
        return float_bits(value(token), type_)
    number = value(token)
    if number.denominator != 1 or not -(1 << bits - 1) <= number < 1 << bits:
        raise ValueError("%s is no %s" % (token, type_))
    return int(number) & (1 << bits) - 1


# --------------------------------------------------------------------------------------------------------------- cases


class Case:
    """One form with its rows. body: PTX in which <a0>, <a1>... are the inputs, <d0>... the outputs, <in> and <out> the
    addresses of the row, <tid> the lane, <shared> <local> <global> <dynamic> <param> variables, <N> the number of the case;
    default: the form with all outputs and inputs. exact: computes the outputs '=' of a row as a Fraction, which is then
    rounded to nearest. ulps, relative: the instruction's error bound of an f32 result."""

    def __init__(self, form, signature, rows, body=None, arch=75, exact=None, ulps=0, relative=0, shared=0, local=0, variable=0,
                 module_shared=False):
        self.form, self.arch, self.ulps, self.relative = form, arch, ulps, relative
        self.shared, self.local, self.variable, self.module_shared = shared, local, variable, module_shared
        ins, outs = signature.split("->")
        self.ins, self.outs = ins.split(), outs.split()
        operands = ["<d%d>" % i for i in range(len(self.outs))] + ["<a%d>" % i for i in range(len(self.ins))]
        self.body = body or "%s %s;" % (form, ", ".join(operands))
        self.near = bool(ulps or relative)
        if isinstance(rows, str):
            lines = [line.split("#")[0] for line in rows.splitlines()]
            rows = [[side.split() for side in line.split("->")] for line in lines if line.strip()]
        self.rows = [self.row(ins, outs, exact) for ins, outs in rows]
        if not 1 <= len(self.rows) <= 32:
            raise ValueError("%s: %d rows" % (form, len(self.rows)))

    def row(self, ins, outs, exact):
        if len(ins) != len(self.ins) or len(outs) != len(self.outs):
            raise ValueError("%s: row %s -> %s" % (self.form, ins, outs))
        result = []
        for token, type_ in zip(outs, self.outs):
            if token == "=":
                x = exact(*[value(t) for t in ins])
                token = rounded(x, *((24, -126) if type_ == "f32" else (53, -1022)))
                result.append(float_bits(token, type_))
            elif self.near:  # the exact result as a double
                special = token in ("inf", "-inf", "-0", "nan")
                result.append(slot(token, "f64") if special else float_bits(rounded(value(token), 53, -1022), "f64"))
            else:
                result.append(slot(token, type_))
        return [slot(t, type_) for t, type_ in zip(ins, self.ins)], result

    def kind(self):
        if self.near:
            return "FORM_F32_ULPS" if self.ulps else "FORM_F32_RELATIVE"
        return "FORM_F32" if "f32" in self.outs else "FORM_F64" if "f64" in self.outs else "FORM_BITS"

    def stride(self, slots):
        return len(slots) + len(slots) % 2

    def ptx(self, number):
        """The module's variables and the kernel of the case."""
        name = "form_%d" % number
        count, names = {}, {"in": "%rd2", "out": "%rd3", "tid": "%r1", "shared": name + "_shared",
            "local": "__local_depot%d" % number,
                            "global": name + "_global", "dynamic": "form_dynamic", "param": name + "_param_2", "N": str(number)}
        for letter, types in (("d", self.outs), ("a", self.ins)):
            for i, type_ in enumerate(types):
                register = TYPES[type_][0]
                if register:
                    names["%s%d" % (letter, i)] = "%s%d" % (register, count.setdefault(register, FIRST))
                    count[register] += 1
        loads, stores = [], []
        for i, type_ in enumerate(self.ins):
            if type_ == "pred":
                loads += ["ld.global.u32 %%r5, [%%rd2+%d];" % (8 * i), "setp.ne.s32 %s, %%r5, 0;" % names["a%d" % i]]
            elif type_ != "mem":
                loads.append("ld.global.%s %s, [%%rd2+%d];" % (TYPES[type_][2], names["a%d" % i], 8 * i))
        for i, type_ in enumerate(self.outs):
            d = names.get("d%d" % i)
            stores += {"pred": ["selp.u64 %%rd4, 1, 0, %s;" % d], "%rs": ["cvt.u32.u16 %%r4, %s;" % d,
                "cvt.u64.u32 %rd4, %r4;"],
                       "%r": ["cvt.u64.u32 %%rd4, %s;" % d], "%rd": ["mov.u64 %%rd4, %s;" % d], "%f": ["mov.b32 %%r4, %s;" % d,
                           "cvt.u64.u32 %rd4, %r4;"],
                       "%fd": ["st.global.f64 [%%rd3+%d], %s;" % (8 * i, d)],
                           None: []}["pred" if type_ == "pred" else TYPES[type_][0]]
            if type_ != "mem" and TYPES[type_][0] != "%fd":
                stores.append("st.global.u64 [%%rd3+%d], %%rd4;" % (8 * i))
        body = re.sub(r"<(\w+)>", lambda m: names[m.group(1)], self.body)
        third = ",\n.param .align 16 .b8 %s_param_2[%d]" % (name, len(PARAMETER)) if "<param>" in self.body else ""
        lines = ["// " + self.form]
        if self.variable:
            lines.append(".global .align 16 .b8 %s_global[%d];" % (name, self.variable))
        if self.shared and self.module_shared:
            lines.append(".shared .align 16 .b8 %s_shared[%d];" % (name, self.shared))
        lines += [".visible .entry %s(\n.param .u64 %s_param_0,\n.param .u64 %s_param_1%s\n)\n{" % (name, name, name, third)]
        if self.local:
            lines += [".local .align 16 .b8 %s[%d];" % (names["local"], self.local), ".reg .b64 %SP;", ".reg .b64 %SPL;"]
        lines += [".reg .pred %p<40>;", ".reg .b16 %rs<40>;", ".reg .b32 %r<40>;", ".reg .f32 %f<40>;", ".reg .b64 %rd<40>;",
            ".reg .f64 %fd<40>;"]
        if self.shared and not self.module_shared:
            lines.append(".shared .align 16 .b8 %s_shared[%d];" % (name, self.shared))
        lines.append("mov.u32 %r1, %tid.x;")
        for i, slots in enumerate((self.ins, self.outs)):
            lines += ["ld.param.u64 %%rd5, [%s_param_%d];" % (name, i), "cvta.to.global.u64 %rd6, %rd5;",
                      "mul.wide.u32 %%rd7, %%r1, %d;" % (8 * self.stride(slots)), "add.s64 %%rd%d, %%rd6, %%rd7;" % (2 + i)]
        return "\n".join(lines + loads + [line.strip() for line in body.strip().splitlines()] + stores + ["ret;", "}"])


# -------------------------------------------------------------------------------------------------------------- writing


def write_ptx(cases, arch):
    print(".version %s\n.target sm_%d\n.address_size 64\n" % (PTX_VERSION[arch], arch))
    print(".extern .shared .align 16 .b8 form_dynamic[];\n")
    for number, case in enumerate(cases):
        if case.arch <= arch:
            print(case.ptx(number) + "\n")


def write_table(cases):
    def array(name, rows):
        return "static const uint64_t %s[] = {%s};" % (name, ", ".join("0x%xu" % v for row in rows for v in row) or "0")

    print("// Made by test/sim/ptx_forms.py: the cases of test_ptx_forms.c, where FormCase is declared.")
    print("enum { FORM_DYNAMIC_BYTES = %d, FORM_FILL = 0x%x };" % (DYNAMIC_BYTES, FILL))
    print("static const unsigned char form_parameter[%d] = {%s};" % (len(PARAMETER), ", ".join(map(str, PARAMETER))))
    for number, case in enumerate(cases):
        print(array("form_%d_in" % number, [ins for ins, _ in case.rows]))
        print(array("form_%d_out" % number, [outs for _, outs in case.rows]))
    print("static const FormCase form_cases[] = {")
    seen = {}
    for number, case in enumerate(cases):
        seen[case.form] = seen.get(case.form, 0) + 1
        title = case.form + (" (%d)" % seen[case.form] if seen[case.form] > 1 else "")
        print('    {"%s", "form_%d", %d, %d, %d, %d, %s, %r, form_%d_in, form_%d_out},' % (
            title, number, case.arch, len(case.ins), len(case.outs), len(case.rows), case.kind(),
                float(case.ulps or case.relative), number, number))
    print("};")


# ------------------------------------------------------------------------------------------------------------- checking

# What is no statement: directives of a line, debug sections, the heads of functions, declarations.
SKIPPED = re.compile(r"""\.(?:version|target|address_size|file|loc)\b[^\n]* | \.section\b[^{]*\{[^}]*\}
                       | \.(?:visible|weak|extern|entry|func)\b[^;{]*(?=[;{]) | \.\w+[^;]*; | [\w$]+: | [{};]""", re.X)
STATEMENT = re.compile(r"(?:@!?%?[\w$]+\s+)?([a-z]\w*(?:(?:\.|::)\w+)*)\s*([^;]*);")
SPECIAL = re.compile(r"%(?:n?tid|n?ctaid|laneid|n?warpid|n?smid|gridid|lanemask_\w+|clock\w*|dynamic_smem_size|total_smem_size"
                     r"|globaltimer\w*|envreg\d+|pm\d+)\b(?:\.[xyzw])?")


def form_of(opcode, operands):
    special = SPECIAL.search(operands)
    if special:
        return "%s %s" % (opcode, special.group())
    if opcode.startswith("mov."):
        vector = re.search(r"\{([^}]*)\}", operands)
        if vector:
            return "%s %s %d" % (opcode, "unpack" if operands.lstrip().startswith("{") else "pack",
                vector.group(1).count(",") + 1)
        if re.search(r",\s*[A-Za-z_$]", operands):
            return opcode + " address"
    return opcode


def forms_in(text):
    """(form, line) of each statement of a PTX module."""
    text = re.sub(r"//[^\n]*", "", text)
    text = re.sub(r"/\*.*?\*/", lambda m: "\n" * m.group().count("\n"), text, flags=re.S)
    at, line, counted = 0, 1, 0
    space = re.compile(r"\s+")
    while True:
        blank = space.match(text, at)
        at = blank.end() if blank else at
        if at == len(text):
            return
        line, counted = line + text.count("\n", counted, at), at
        skipped = SKIPPED.match(text, at)
        if skipped:
            at = skipped.end()
            continue
        statement = STATEMENT.match(text, at)
        if not statement:
            raise ValueError("line %d: %r is no statement" % (line, text[at:at + 60]))
        yield form_of(*statement.groups()), line
        at = statement.end()


def check(cases, paths):
    known = {case.form for case in cases}
    found, missing = set(), {}
    for path in paths:
        with open(path) as f:
            text = f.read()
        try:
            for form, line in forms_in(text):
                found.add(form)
                if form not in known:
                    missing.setdefault(form, "%s:%d" % (path, line))
        except ValueError as error:
            sys.exit("%s: %s" % (path, error))
    for form, where in sorted(missing.items()):
        print("%s: %s has no case in test/sim/ptx_forms_table.py" % (where, form))
    if missing or not found:
        sys.exit(1)
    print("%d forms, all have a case" % len(found))


def main():
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    from ptx_forms_table import CASES as cases  # here, since it imports this file

    option, arguments = (sys.argv[1:2] or [""])[0], sys.argv[2:]
    if option == "--ptx" and len(arguments) == 1 and arguments[0].isdigit() and int(arguments[0]) in PTX_VERSION:
        write_ptx(cases, int(arguments[0]))
    elif option == "--table" and not arguments:
        write_table(cases)
    elif option == "--check" and arguments:
        check(cases, arguments)
    else:
        sys.exit(__doc__.strip())


if __name__ == "__main__":
    main()
