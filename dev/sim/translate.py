#!/usr/bin/env python3
"""PTX to C++: what nvcc made of the kernels becomes functions that run one CUDA thread each on the CPU.

    dev/sim/translate.py OUT.cpp MODULE.compute_75.ptx MODULE.compute_90.ptx ...

One module (.cu file), one or more architectures; a kernel whose text is the same on several is translated once. PTX
registers become local variables, labels stay labels, branches become gotos, .loc becomes #line. What needs a check, other
threads or special rounding is a function of dev/sim/ptx.h. Semantics are those of the PTX ISA. A form of an instruction
that is not listed here ends the translation with its place in the PTX: nothing is guessed.
"""
import os
import re
import sys

C_TYPE = {"pred": "bool", "u8": "uint8_t", "s8": "int8_t", "b8": "uint8_t",
          "u16": "uint16_t", "s16": "int16_t", "b16": "uint16_t", "f16": "uint16_t", "bf16": "uint16_t",
          "u32": "uint32_t", "s32": "int32_t", "b32": "uint32_t", "f16x2": "uint32_t", "bf16x2": "uint32_t",
          "u64": "uint64_t", "s64": "int64_t", "b64": "uint64_t", "f32": "float", "f64": "double"}
SIZE = {"pred": 1, "f16x2": 4, "bf16x2": 4} | {t: int(re.search(r"\d+", t)[0]) // 8 for t in C_TYPE
                                              if t != "pred" and not t.endswith("x2")}
RAW = {1: "uint8_t", 2: "uint16_t", 4: "uint32_t", 8: "uint64_t"}


class Unknown(Exception):
    """Something in the PTX that the translator does not know."""


def is_float(t):
    return t in ("f32", "f64")


def unsigned(t):
    return t.replace("s", "u")


def twice(t):
    """The type of twice the width: u32 -> u64."""
    if t[1:] not in ("16", "32"):
        raise Unknown("no type is twice as wide as " + t)
    return t[0] + str(2 * int(t[1:]))


def split(text):
    """Operands, split at commas outside braces and brackets."""
    out, depth, last = [], 0, 0
    for i, c in enumerate(text):
        depth += (c in "{[(") - (c in "}])")
        if c == "," and not depth:
            out.append(text[last:i].strip())
            last = i + 1
    if text[last:].strip():
        out.append(text[last:].strip())
    return out


def variable(name):
    """The C++ name of a register, label or variable."""
    return name.replace("%", "v_").replace("$", "_")


def layout(sizes):
    """[(name, alignment, bytes)] one after the other -> ({name: offset}, end)."""
    at, offset = 0, {}
    for name, align, size in sizes:
        at = (at + align - 1) // align * align
        offset[name] = at
        at += size
    return offset, at


DECLARATION = re.compile(r"(?:\.(?:visible|weak|extern)\s+)*\.(shared|global|const|local)\s+(?:\.align\s+(\d+)\s+)?"
                         r"\.(\w+)\s+([\w$]+)(\[(\d*)\])?(?:\s*=\s*(.*))?$", re.S)


def declaration(text):
    """-> space, alignment, name, bytes (None for an array without a size), initial values (text or None)"""
    m = DECLARATION.match(text)
    if not m or m[3] not in SIZE:
        raise Unknown("declaration " + text)
    size = SIZE[m[3]]
    count = 1 if m[5] is None else int(m[6]) if m[6] else None
    return m[1], int(m[2] or size), m[4], None if count is None else size * count, m[7] and (m[3], m[7])


# ------------------------------------------------------------------------------------------------------------- modules

class Module:
    """One .ptx file: its variables and the text of its kernels."""
    ENTRY = re.compile(r"(?:\.(?:visible|weak)\s+)*\.entry\s+([\w$]+)\s*\((.*?)\)(.*?)\{", re.S)
    HEADER = re.compile(r"\.(?:version|target|address_size|file)\b[^\n]*")

    def __init__(self, path):
        self.path = path
        self.arch = int(re.search(r"compute_(\d+)", path)[1])
        self.text = open(path).read()
        here = os.path.realpath(".") + "/"
        self.files = {0: path}
        for number, file in re.findall(r'^\s*\.file\s+(\d+)\s+"([^"]*)"', self.text, re.M):
            file = os.path.normpath(file)
            self.files[int(number)] = file[len(here):] if file.startswith(here) else file
        # Comments and debug information go, line numbers stay. INTERNAL_: a hash that differs between architectures.
        text = re.sub(r"//[^\n]*|/\*.*?\*/", self.blank, self.text, flags=re.S)
        text = re.sub(r"^\s*\.section.*?\n\s*\}", self.blank, text, flags=re.M | re.S)
        self.text = re.sub(r"_INTERNAL_[0-9a-f]{8}_", "_INTERNAL_", text)
        self.shared, self.externs, self.globals, self.kernels = {}, {}, {}, []
        self.read()

    @staticmethod
    def blank(m):
        return "\n" * m[0].count("\n")

    def line(self, at):
        return self.text.count("\n", 0, at) + 1

    def fail(self, at, message):
        sys.exit(f"{self.path}:{self.line(at)}: {message}")

    def read(self):
        at, text, space = 0, self.text, re.compile(r"\s*")
        while True:
            at = space.match(text, at).end()
            if at == len(text):
                return
            if m := self.HEADER.match(text, at):
                at = m.end()
            elif m := self.ENTRY.match(text, at):
                end = self.closing_brace(m.end())
                self.kernels.append((m[1], m[2], m[3], m.end(), end))
                at = end + 1
            else:
                end = text.find(";", at)
                if end < 0:
                    self.fail(at, "unknown: " + text[at:at + 80].split("\n")[0])
                try:
                    self.declare(text[at:end])
                except Unknown as x:
                    self.fail(at, f"unknown: {x}")
                at = end + 1

    def closing_brace(self, at):
        depth = 1
        for m in re.compile(r"[{}]").finditer(self.text, at):
            depth += 1 if m[0] == "{" else -1
            if not depth:
                return m.start()
        self.fail(at, "a brace is not closed")

    def declare(self, text):
        space, align, name, size, initial = declaration(text)
        if space == "shared" and size is None:
            self.externs[name] = align
        elif space == "shared":
            self.shared[name] = (align, size)
        elif size is not None:
            self.globals[name] = (align, size, initial)
        else:
            raise Unknown("declaration " + text)


# ------------------------------------------------------------------------------------------------------------- kernels

class Kernel:
    """The translation of one .entry."""
    LABEL = re.compile(r"([$\w]+):")
    LOC = re.compile(r"\.loc\s+(\d+)\s+(\d+)\s+\d+(?:\s*,[^\n]*?inlined_at\s+(\d+)\s+(\d+))?[^\n]*")

    def __init__(self, module, name, params, directives, begin, end):
        self.module, self.name = module, name
        self.classes, self.params, self.locals = {}, {}, {}
        self.has_copies = False
        self.place, self.lines, self.code = None, [], []
        self.sites = 0
        self.directives(directives, begin)
        self.parameters(params, begin)
        self.statements = list(self.split_statements(begin, end))
        self.shared_layout(begin, end)
        self.count_uses()
        i = 0
        while i < len(self.statements):
            at, s = self.statements[i]
            try:
                i += self.butterfly(i) or self.statement(s) or 1
            except (Unknown, KeyError, IndexError, ValueError, TypeError, AttributeError) as x:
                module.fail(at, f"unknown: {s}" + (f" ({x})" if isinstance(x, Unknown) and str(x) else ""))
        self.flush()

    def count_uses(self):
        """How often every register is named; and those that hold one number from their only assignment on."""
        self.uses, self.numbers, assigned = {}, {}, {}
        for _, s in self.statements:
            if not isinstance(s, str) or s.startswith(".reg"):
                continue
            for r in re.findall(r"%\w+", s):
                self.uses[r] = self.uses.get(r, 0) + 1
            for r in self.assigned(s):
                assigned[r] = assigned.get(r, 0) + 1
            if m := re.match(r"mov\.[ub]32 (%\w+), (-?\d+)$", s):
                self.numbers[m[1]] = int(m[2])
        self.numbers = {r: n for r, n in self.numbers.items() if assigned[r] == 1}

    @staticmethod
    def assigned(s):
        """The registers that a statement may change: those of its first operand; all of one with a guard."""
        return re.findall(r"%\w+", s if s[0] == "@" else (split(s.partition(" ")[2]) or [""])[0])

    def directives(self, text, at):
        self.max_threads = 1024
        for name, value in re.findall(r"\.(\w+)\s*([\d\s,]*)", text):
            if name in ("maxntid", "reqntid"):
                self.max_threads = 1
                for n in value.split(","):
                    self.max_threads *= int(n)
            elif name != "minnctapersm":
                self.module.fail(at, f"unknown: .{name}")

    PARAMETER = re.compile(r"\.param\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+(?:\.ptr\s*(?:\.(?:global|shared|const|local)\s*)?"
                           r"(?:\.align\s+\d+\s+)?)?([\w$]+)(?:\[(\d+)\])?$")

    def parameters(self, text, at):
        sizes = []
        for p in filter(None, (p.strip() for p in text.split(","))):
            m = self.PARAMETER.match(p)
            if not m or m[2] not in SIZE:
                self.module.fail(at, f"unknown: {p}")
            sizes.append((m[3], int(m[1] or SIZE[m[2]]), SIZE[m[2]] * int(m[4] or 1)))
        offset, self.param_bytes = layout(sizes)
        self.params = {name: (offset[name], size) for name, _, size in sizes}

    def split_statements(self, begin, end):
        """(place, text) of statements, labels ("name:"), scope braces and .loc; shared and local variables aside."""
        text, at = self.module.text, begin
        self.own_shared = []
        while at < end:
            c = text[at]
            if c.isspace():
                at += 1
            elif c in "{}":
                yield at, c
                at += 1
            elif m := self.LOC.match(text, at):
                yield at, m
                at = m.end()
            elif m := self.LABEL.match(text, at):
                yield at, m[0]
                at = m.end()
            else:
                stop = text.index(";", at)
                s = " ".join(text[at:stop].split())
                if s.startswith((".shared", ".local")):
                    space, align, name, size, initial = declaration(s)
                    if initial or size is None:
                        self.module.fail(at, f"unknown: {s}")
                    (self.own_shared.append if space == "shared" else self.keep_local)((name, align, size))
                elif not s.startswith(".pragma"):
                    yield at, s
                at = stop + 1

    def keep_local(self, entry):
        self.locals[entry[0]] = entry[1:]

    def shared_layout(self, begin, end):
        """Static shared memory: the kernel's own variables, then those of the module that it names. Dynamic behind."""
        names = set(re.findall(r"[\w$]+", self.module.text[begin:end]))
        variables = self.own_shared + [(n, *v) for n, v in self.module.shared.items() if n in names]
        self.offset, self.static_shared = layout(variables)
        externs = [n for n in self.module.externs if n in names]
        align = max([self.module.externs[n] for n in externs], default=1)
        self.dynamic_at = (self.static_shared + align - 1) // align * align
        for n in externs:
            self.offset[n] = self.dynamic_at
        self.local_offset, self.local_bytes = layout((n, *v) for n, v in self.locals.items())

    # ---------------------------------------------------------------------------------------------------------- output

    def emit(self, code):
        self.code.append(code)

    def flush(self):
        """The statements of one source line are one line of C++."""
        if self.code:
            self.lines.append('#line %d "%s"' % (self.place[1], self.place[0]) if self.place else "")
            self.lines.append(" ".join(self.code))
        self.code = []

    def locate(self, m):
        """The place in the project's sources: a function of the toolkit's headers counts as the line that calls it."""
        file, line = self.module.files[int(m[1])], int(m[2])
        if file.startswith("/") and m[3]:
            file, line = self.module.files[int(m[3])], int(m[4])
        if (file, line) != self.place:
            self.flush()
            self.place = (file, line)

    def text(self):
        out = ["static void %s(const char *params) {"]
        if self.local_bytes:
            out.append("alignas(16) char local[%d]; FRESH_LOCAL(local);" % self.local_bytes)
        if self.has_copies:
            out.append("AsyncCopies copies;")
        return "\n".join(out + self.lines) + "\n}\n"

    # -------------------------------------------------------------------------------------------------------- operands

    def kind(self, name):
        """The type of a register."""
        k = self.classes.get(name) or self.classes.get(name.rstrip("0123456789"))
        if not k:
            raise Unknown("register " + name)
        return k

    SPECIAL = {"tid": "threadIdx", "ctaid": "blockIdx", "ntid": "blockDim", "nctaid": "gridDim"}

    def special(self, a):
        if a == "%laneid":
            return "sim::lane_id()"
        m = re.match(r"%(tid|ctaid|ntid|nctaid)\.([xyz])$", a)
        return m and "%s.%s" % (self.SPECIAL[m[1]], m[2])

    def src(self, a, t):
        """Operand a as a C++ expression of PTX type t."""
        c = C_TYPE[t]
        if m := re.match(r"0[fF]([0-9a-fA-F]{8})$", a):
            return "f32_of(0x%su)" % m[1] if t == "f32" else "(%s)0x%su" % (c, m[1])
        if m := re.match(r"0[dD]([0-9a-fA-F]{16})$", a):
            return "f64_of(0x%sull)" % m[1] if t == "f64" else "(%s)0x%sull" % (c, m[1])
        if re.match(r"-?(0[xX][0-9a-fA-F]+|\d+)U?$", a):
            v = int(a.rstrip("U"), 0)
            if t == "pred":
                return "true" if v else "false"
            if is_float(t):
                raise Unknown("an integer for a float")
            return "(%s)%s" % (c, "%dull" % v if v >= 1 << 63 else "(%dll-1)" % (v + 1) if v < 0 else "%dll" % v)
        if x := self.special(a):
            return "(%s)%s" % (c, x)
        if a in self.offset:
            return "(%s)(SHARED_BASE + %d)" % (c, self.offset[a])
        if a in self.local_offset:
            return "(%s)(uintptr_t)(local + %d)" % (c, self.local_offset[a])
        if a in self.params:
            return "(%s)(uintptr_t)(params + %d)" % (c, self.params[a][0])
        if a in self.module.globals:
            return "(%s)(uintptr_t)%s_%d" % (c, variable(a), self.module.arch)
        k, v = self.kind(a), variable(a)
        if C_TYPE[k] == c:
            return v
        if "pred" in (t, k) or SIZE[k] != SIZE[t]:
            raise Unknown("a %s register for %s" % (k, t))
        if is_float(t):
            return "%s_of(%s)" % (t, v)
        return "(%s)%s" % (c, "bits(%s)" % v if is_float(k) else v)

    def dst(self, d, t, expression):
        """Assignment of an expression of PTX type t to register d."""
        if d == "_":
            return "(void)(%s);" % expression
        k, v = self.kind(d), variable(d)
        if k == t:
            return "%s = %s;" % (v, expression)
        if "pred" in (t, k) or SIZE[k] < SIZE[t] or SIZE[k] != SIZE[t] and (is_float(t) or is_float(k)):
            raise Unknown("a %s register for %s" % (k, t))
        if is_float(k):
            return "%s = %s_of((%s)(%s));" % (v, k, RAW[SIZE[k]], expression)
        if is_float(t):
            return "%s = bits(%s);" % (v, expression)
        return "%s = (%s)(%s)(%s);" % (v, C_TYPE[k], C_TYPE[t], expression)

    @staticmethod
    def address(a):
        """"[name+offset]" -> name, offset"""
        m = re.match(r"\[\s*([%\w$]+)\s*(?:\+\s*(-?\w+))?\s*\]$", a)
        if not m:
            raise Unknown("address " + a)
        return m[1], int(m[2] or "0", 0)

    # ------------------------------------------------------------------------------------------------------ statements

    def statement(self, s):
        if isinstance(s, re.Match):
            self.locate(s)
        elif s in "{}":
            self.emit(s)
        elif s.endswith(":"):
            self.flush()
            self.emit(variable(s[:-1]) + ":;")
        elif s.startswith(".reg"):
            self.registers(s)
        else:
            guard = ""
            if m := re.match(r"@(!?)(%\w+)\s+(.*)$", s):
                guard, s = "if (%s%s) " % (m[1], self.src(m[2], "pred")), m[3]
            op, _, rest = s.partition(" ")
            self.emit(guard + self.instruction(op, split(rest)))

    def registers(self, s):
        m = re.match(r"\.reg\s+\.(\w+)\s+(.*)$", s)
        for name in split(m[2]):
            names = [variable(name)]
            if g := re.match(r"(%[a-zA-Z]+)<(\d+)>$", name):
                name, names = g[1], ["%s%d" % (variable(g[1]), i) for i in range(int(g[2]))]
            self.classes[name] = m[1]
            if names:
                self.emit("%s %s;" % (C_TYPE[m[1]], ", ".join(names)))

    def instruction(self, op, operands):
        parts = op.split(".")
        f = getattr(self, "op_" + parts[0], None)
        code = f and f(parts[1:], parts[-1], operands)
        if not code:
            raise Unknown("form " + op)
        return code if code.count(";") == 1 or code[0] == "{" else "{ %s }" % code

    @staticmethod
    def need(a, n):
        if len(a) != n:
            raise Unknown("%d operands instead of %d" % (len(a), n))

    # -------------------------------------------------------------------------------------------- moves and conversions

    def op_mov(self, p, t, a):
        self.need(a, 2)
        if len(p) != 1:
            return None
        if a[0].startswith("{"):
            names = split(a[0][1:-1])
            bits = SIZE[t] // len(names) * 8
            return "{ const %s whole = %s; %s }" % (
                C_TYPE[t], self.src(a[1], t),
                " ".join(self.dst(n, "b%d" % bits, "(uint%d_t)(whole >> %d)" % (bits, i * bits)) for i, n in enumerate(names)))
        if a[1].startswith("{"):
            names = split(a[1][1:-1])
            bits = SIZE[t] // len(names) * 8
            parts = ["(%s)%s << %d" % (C_TYPE[t], self.src(n, "b%d" % bits), i * bits)
                     for i, n in enumerate(names) if n != "0"]
            return self.dst(a[0], t, " | ".join(parts) or "0")
        return self.dst(a[0], t, self.src(a[1], t))

    def op_cvta(self, p, t, a):
        self.need(a, 2)
        x = self.src(a[1], t)
        return {"global.u64": self.dst(a[0], t, x), "to.global.u64": self.dst(a[0], t, x),
                "local.u64": self.dst(a[0], t, x), "to.local.u64": self.dst(a[0], t, x),
                "param.u64": self.dst(a[0], t, x),
                "shared.u64": self.dst(a[0], t, "generic_of_shared(%s)" % x),
                "to.shared.u64": self.dst(a[0], t, "shared_of_generic(%s)" % x)}.get(".".join(p))

    CONVERT = {
        "f32.f16": "half_to_float(%s)", "f32.bf16": "f32_of((uint32_t)%s << 16)", "f64.f32": "(double)%s",
        "rn.f16.f32": "float_to_half(%s)", "rn.bf16.f32": "float_to_bfloat(%s)", "rn.f32.f64": "(float)%s",
        "sat.f32.f32": "saturate(%s)", "ftz.sat.f32.f32": "saturate(ftz(%s))",
        "rni.f32.f32": "__builtin_rintf(%s)", "rmi.f32.f32": "__builtin_floorf(%s)",
        "rpi.f32.f32": "__builtin_ceilf(%s)", "rzi.f32.f32": "__builtin_truncf(%s)"}
    CONVERT_TWO = {
        "rn.f16x2.f32": ("b32", "pack2(float_to_half(%s), float_to_half(%s))"),
        "rn.bf16x2.f32": ("b32", "pack2(float_to_bfloat(%s), float_to_bfloat(%s))"),
        "rn.satfinite.e4m3x2.f32": ("b16", "pack_fp8(float_to_e4m3(%s), float_to_e4m3(%s))"),
        "rn.satfinite.e5m2x2.f32": ("b16", "pack_fp8(float_to_e5m2(%s), float_to_e5m2(%s))")}
    ROUND = {"rni": "rint", "rmi": "floor", "rpi": "ceil", "rzi": "trunc"}

    def op_cvt(self, p, t, a):
        how = ".".join(p)
        if how in self.CONVERT_TWO:
            self.need(a, 3)
            to, form = self.CONVERT_TWO[how]
            return self.dst(a[0], to, form % (self.src(a[1], "f32"), self.src(a[2], "f32")))
        self.need(a, 2)
        to = p[-2]
        if how in self.CONVERT:
            return self.dst(a[0], to, self.CONVERT[how] % self.narrow(a[1], t))
        if len(p) == 3 and p[0] in self.ROUND and is_float(t) and to[0] in "us":
            x = "__builtin_%s%s(%s)" % (self.ROUND[p[0]], "f" if t == "f32" else "", self.src(a[1], t))
            return self.dst(a[0], to, "float_to_int<%s>(%s)" % (C_TYPE[to], x))
        if len(p) == 3 and p[0] == "rn" and is_float(to) and t[0] in "us":
            return self.dst(a[0], to, "(%s)%s" % (C_TYPE[to], self.narrow(a[1], t)))
        if len(p) == 2 and to[0] in "us" and t[0] in "us":
            return self.dst(a[0], to, "(%s)%s" % (C_TYPE[to], self.narrow(a[1], t)))
        return None

    def narrow(self, a, t):
        """A source that may stand in a register wider than its type (cvt, st)."""
        k = self.classes.get(a) or self.classes.get(a.rstrip("0123456789"))
        if k and not is_float(k) and not is_float(t) and SIZE[k] > SIZE[t]:
            return "(%s)%s" % (C_TYPE[t], variable(a))
        return self.src(a, t)

    # ---------------------------------------------------------------------------------------------------------- memory

    CACHE = {"cs", "cg", "ca", "lu", "cv", "wb", "wt", "nc", "volatile"}

    def memory(self, p):
        """Modifiers of ld, st, atom between the name and the type -> space, elements"""
        space, vector = "generic", 1
        for x in p:
            if x in ("global", "shared", "local", "param"):
                space = x
            elif x in ("v2", "v4"):
                vector = int(x[1])
            elif x not in self.CACHE:
                raise Unknown("modifier ." + x)
        return space, vector

    def pointer(self, space, a, size):
        """The host address of [a] after its check."""
        base, offset = self.address(a)
        if space == "param" and base in self.params:
            at, total = self.params[base]
            if offset < 0 or offset + size > total or (at + offset) % size:
                raise Unknown("outside of the parameter")
            return "params + %d" % (at + offset)
        if space == "shared":
            return "shared_at(%s + %du, %d)" % (self.src(base, "u32"), offset % 2**32, size)
        x = self.src(base, "u64") + (" + %dull" % (offset % 2**64) if offset else "")
        if space in ("local", "param"):
            return "window_at(%s, %d, %s)" % (x, size, "local, sizeof local" if space == "local" else
                                              "params, %d" % self.param_bytes)
        self.sites += 1
        site = self.sites % 64
        if space == "generic":
            return "generic_at(%s, %d, %d, %s)" % (x, size, site, "local, sizeof local" if self.local_bytes else "nullptr, 0")
        return "global_at(%s, %d, %d)" % (x, size, site)

    def op_ld(self, p, t, a):
        self.need(a, 2)
        space, vector = self.memory(p[:-1])
        at = self.pointer(space, a[1], SIZE[t] * vector)
        load = lambda name, x: self.dst(name, t, "load<%s>(%s)" % (C_TYPE[t], x))  # extends to a wider register
        if vector == 1:
            return load(a[0], at)
        names = split(a[0][1:-1])
        self.need(names, vector)
        return "{ const char *at = %s; %s }" % (at, " ".join(load(n, "at + %d" % (i * SIZE[t])) for i, n in enumerate(names)))

    def op_st(self, p, t, a):
        self.need(a, 2)
        space, vector = self.memory(p[:-1])
        if space == "param":
            return None
        at = self.pointer(space, a[0], SIZE[t] * vector)
        if vector == 1:
            return "store<%s>(%s, %s);" % (C_TYPE[t], at, self.narrow(a[1], t))
        names = split(a[1][1:-1])
        self.need(names, vector)
        return "{ char *at = %s; %s }" % (at, " ".join("store<%s>(at + %d, %s);" % (C_TYPE[t], i * SIZE[t], self.narrow(n, t))
                                                       for i, n in enumerate(names)))

    ATOM = {"add": "u32 s32 u64 f32 f64", "inc": "u32", "exch": "b32 b64", "max": "u32 s32 u64 s64", "min": "u32 s32 u64 s64",
            "or": "b32 b64", "and": "b32 b64", "xor": "b32 b64", "cas": "b32 b64"}

    def op_atom(self, p, t, a):
        what = p[-2]
        if what not in self.ATOM or t not in self.ATOM[what].split():
            return None
        self.need(a, 4 if what == "cas" else 3)
        at = self.pointer(self.memory(p[:-2])[0], a[1], SIZE[t])
        return self.dst(a[0], t, "atom_%s<%s>(%s, %s)" % (what, C_TYPE[t], at, ", ".join(self.src(x, t) for x in a[2:])))

    def op_red(self, p, t, a):
        return self.op_atom(p, t, ["_"] + a)

    def op_cp(self, p, t, a):
        if p[0] != "async":
            return None
        self.has_copies = True
        how = ".".join(p[1:])
        if how in ("commit_group", "wait_all"):
            self.need(a, 0)
            return "copies.commit();" if how == "commit_group" else "copies.wait(-1);"
        if how == "wait_group":
            self.need(a, 1)
            return "copies.wait(%d);" % int(a[0])
        if how not in ("cg.shared.global", "ca.shared.global") or len(a) not in (3, 4):
            return None
        size = int(a[2], 0)
        if size not in ((16,) if p[1] == "cg" else (4, 8, 16)):
            return None
        base, offset = self.address(a[1])
        self.sites += 1
        return "copies.issue(%s, %s + %dull, %d, %s, %d);" % (
            self.pointer("shared", a[0], size), self.src(base, "u64"), offset % 2**64, size,
            self.src(a[3], "u32") if len(a) > 3 else size, self.sites % 64)

    def op_membar(self, p, t, a):
        self.need(a, 0)
        return "fence();" if p in (["gl"], ["sys"], ["cta"]) else None

    def op_fence(self, p, t, a):
        self.need(a, 0)
        return "fence();" if ".".join(p) in ("acq_rel.gpu", "acq_rel.cta", "acq_rel.sys", "sc.gpu", "sc.cta", "sc.sys") else None

    # --------------------------------------------------------------------------------------------------------- control

    def op_bra(self, p, t, a):
        self.need(a, 1)
        return "goto %s;" % variable(a[0]) if p in ([], ["uni"]) else None

    def op_ret(self, p, t, a):
        return "return;" if not p and not a else None

    op_exit = op_ret

    def op_trap(self, p, t, a):
        self.need(a, 0)
        return "trap();" if not p else None

    # ----------------------------------------------------------------------------------------------- warps and blocks

    def op_bar(self, p, t, a):
        how = ".".join(p)
        if how == "warp.sync":
            self.need(a, 1)
            return "bar_warp(%s);" % self.src(a[0], "u32")
        if how == "sync" and a == ["0"]:
            return "bar_sync();"
        if how in ("red.popc.u32", "red.and.pred", "red.or.pred") and len(a) == 3 and a[1] == "0":
            vote = a[2][0] * (a[2][0] == "!") + self.src(a[2].lstrip("!"), "pred")
            return self.dst(a[0], t, "bar_%s(%s)" % (p[1], vote))
        return None

    def op_barrier(self, p, t, a):
        return self.op_bar([x for x in p if x != "cta"], t, a)

    def op_shfl(self, p, t, a):
        self.need(a, 5)
        if p[0] != "sync" or p[1] not in ("up", "down", "bfly", "idx") or p[2:] != ["b32"]:
            return None
        d, _, q = a[0].partition("|")
        return "{ const Shuffled s = shfl<SHFL_%s>(%s, %s); %s%s }" % (
            p[1].upper(), self.src(a[1], "b32"), ", ".join(self.src(x, "u32") for x in a[2:]),
            self.dst(d, "b32", "s.value"), self.dst(q, "pred", "s.in_range") if q and q != "_" else "")

    def op_vote(self, p, t, a):
        self.need(a, 3)
        vote = a[1][0] * (a[1][0] == "!") + self.src(a[1].lstrip("!"), "pred")
        ballot = "vote_ballot(%s, %s)" % (vote, self.src(a[2], "u32"))
        inverse = "vote_ballot(!%s, %s)" % (vote, self.src(a[2], "u32"))
        return {"sync.ballot.b32": self.dst(a[0], "b32", ballot) if t == "b32" else None,
                "sync.any.pred": self.dst(a[0], "pred", ballot + " != 0") if t == "pred" else None,
                "sync.all.pred": self.dst(a[0], "pred", inverse + " == 0") if t == "pred" else None}.get(".".join(p))

    def op_match(self, p, t, a):
        self.need(a, 3)
        return self.dst(a[0], "b32", "match_any(%s, %s)" % (self.src(a[1], "b32"), self.src(a[2], "u32"))) \
            if p == ["any", "sync", "b32"] else None

    def op_ldmatrix(self, p, t, a):
        if p not in (["sync", "aligned", "m8n8", "x4", "shared", "b16"], ["sync", "aligned", "m8n8", "x4", "trans", "shared", "b16"]):
            return None
        self.need(a, 2)
        names = split(a[0][1:-1])
        self.need(names, 4)
        return "{ uint32_t m[4]; memcpy(m, %s, 16); ldmatrix_x4<%s>(m); %s }" % (
            self.pointer("shared", a[1], 16), "true" if "trans" in p else "false",
            " ".join(self.dst(r, "b32", "m[%d]" % i) for i, r in enumerate(names)))

    def op_mma(self, p, t, a):
        m = re.match(r"sync\.aligned\.m16n8k(8|16)\.row\.col\.f32\.(f16|bf16)\.\2\.f32$", ".".join(p))
        if not m or m[1] == "8" and m[2] == "bf16":
            return None
        d, ra, rb, rc = [split(x[1:-1]) for x in a]
        k = int(m[1])
        for registers, n in ((d, 4), (ra, k // 4), (rb, k // 8), (rc, 4)):
            self.need(registers, n)
        return "{ MmaFragments m = {{%s}, {%s}, {%s}}; mma_m16n8<%s, %d>(m); %s }" % (
            ", ".join(self.src(x, "b32") for x in ra), ", ".join(self.src(x, "b32") for x in rb),
            ", ".join(self.src(x, "f32") for x in rc), {"f16": "Half", "bf16": "BFloat"}[m[2]], k,
            " ".join(self.dst(x, "f32", "m.c[%d]" % i) for i, x in enumerate(d)))

    BUTTERFLY = re.compile(r"shfl\.sync\.bfly\.b32 (%\w+)\|(%\w+), (%\w+), (%?\w+), (%?\w+), (%?-?\w+)$")

    def butterfly(self, first):
        """x = x + shfl_xor(x, 16); x = x + shfl_xor(x, 8); ... of a whole warp: one meeting of its lanes instead of one
        for every step, with the same operations in the same order. -> statements taken, 0 where there is none"""
        s = self.statements[first][1]
        if isinstance(s, re.Match) or not s.startswith("shfl.sync.bfly"):
            return 0
        number = lambda a: int(a) if re.match(r"-?\d+$", a) else self.numbers.get(a)
        once = lambda r: self.uses.get(r) == 2
        offsets, op, i, last, skipped = [], None, first, None, []
        while i < len(self.statements):
            s = self.statements[i][1]
            if isinstance(s, re.Match):
                i += 1
                continue
            m = self.BUTTERFLY.match(s)
            if m:
                d, q, a, off, clamp, mask = m.groups()
                if number(clamp) != 31 or number(mask) not in (-1, 2**32 - 1) or number(off) not in (1, 2, 4, 8, 16) \
                        or self.uses.get(q) != 1 or not once(d):
                    break
                rest = [(j, self.statements[j][1]) for j in range(i + 1, min(i + 8, len(self.statements)))
                        if not isinstance(self.statements[j][1], re.Match)]
                m1 = len(rest) > 1 and re.match(r"mov\.b32 (%\w+), " + re.escape(d) + "$", rest[0][1])
                m2 = m1 and once(m1[1]) and re.match(r"(add|max)\.f32 (%\w+), (%\w+), " + re.escape(m1[1]) + "$", rest[1][1])
                if not m2 or op not in (None, m2[1]):
                    break
                # The value shuffled is the bits of the value added to.
                if last is None:
                    if not self.is_copy(first, a, m2[3]):
                        return 0
                    start = m2[3]
                elif m2[3] != last or pending != a:
                    break
                if last is not None and self.uses.get(last) != 3:
                    break
                op, last, i = m2[1], m2[2], rest[1][0] + 1
                offsets.append(number(off))
                taken, pending = i, None
                continue
            if last is not None and (m := re.match(r"mov\.b32 (%\w+), " + re.escape(last) + "$", s)) and once(m[1]):
                pending = m[1]
            elif re.match(r"mov\.[ub]32 %\w+, -?\d+$", s):
                skipped.append(s)
            else:
                break
            i += 1
        if len(offsets) < 2:
            return 0
        self.emit(self.dst(last, "f32", "butterfly_%s<%s>(%s)" % (op, ", ".join(map(str, offsets)), self.src(start, "f32"))))
        for t in skipped:
            self.statement(t)
        return taken - first

    def is_copy(self, first, a, x):
        """Whether register a holds the bits of x before the statement `first`: mov.b32 a, x, and neither has changed."""
        for _, s in reversed(self.statements[:first]):
            if isinstance(s, re.Match):
                continue
            if s == "mov.b32 %s, %s" % (a, x):
                return True
            if s[-1] in ":{}" or {a, x} & set(self.assigned(s)):
                return False
        return False

    # ------------------------------------------------------------------------------------------------------ arithmetic

    def arithmetic(self, p, t, a, sign):
        self.need(a, 3)
        if is_float(t):
            form = {"": "%s %s %s", "rn": "%s %s %s", "ftz": "ftz(ftz(%s) %s ftz(%s))",
                    "rn.ftz": "ftz(ftz(%s) %s ftz(%s))"}.get(".".join(p[:-1]))
            return form and self.dst(a[0], t, form % (self.src(a[1], t), sign, self.src(a[2], t)))
        if p[:-1] not in ([], ["lo"]) or t[0] not in "us" or p[:-1] == ["lo"] and sign != "*":
            return None
        wide = "uint32_t" if SIZE[t] < 4 else C_TYPE[unsigned(t)]
        return self.dst(a[0], t, "(%s)%s %s (%s)%s" % (wide, self.src(a[1], t), sign, wide, self.src(a[2], t)))

    def op_add(self, p, t, a):
        return self.arithmetic(p, t, a, "+")

    def op_sub(self, p, t, a):
        return self.arithmetic(p, t, a, "-")

    def product(self, a, b, t):
        w = C_TYPE[twice(t)]
        return "(%s)%s * (%s)%s" % (w, self.src(a, t), w, self.src(b, t))

    def op_mul(self, p, t, a):
        if p[0] == "wide" and len(p) == 2:
            self.need(a, 3)
            return self.dst(a[0], twice(t), self.product(a[1], a[2], t))
        if p[0] == "hi" and len(p) == 2 and t[0] in "us":
            self.need(a, 3)
            if t[1:] == "64":
                return self.dst(a[0], t, "mul_hi<%s>(%s, %s)" % (C_TYPE[t], self.src(a[1], t), self.src(a[2], t)))
            return self.dst(a[0], t, "(%s) >> %s" % (self.product(a[1], a[2], t), t[1:]))
        return self.arithmetic(p, t, a, "*") if is_float(t) or p[0] == "lo" else None

    def op_mad(self, p, t, a):
        self.need(a, 4)
        if p[:-1] == ["wide"]:
            return self.dst(a[0], twice(t), "%s + %s" % (self.product(a[1], a[2], t), self.src(a[3], twice(t))))
        if p[:-1] != ["lo"] or t[1:] == "16":
            return None
        u = unsigned(t)
        return self.dst(a[0], t, "%s * %s + %s" % tuple(self.src(x, u) for x in a[1:]))

    FMA = {"rn.f64": "__builtin_fma(%s, %s, %s)", "rn.f32": "__builtin_fmaf(%s, %s, %s)", "rm.f32": "fma_rm(%s, %s, %s)",
           "rn.ftz.f32": "ftz(__builtin_fmaf(ftz(%s), ftz(%s), ftz(%s)))"}

    def op_fma(self, p, t, a):
        return self.form(p, t, a, self.FMA)

    def form(self, p, t, a, forms):
        """d = forms[modifiers and type] of the other operands, which are all of type t."""
        f = forms.get(".".join(p))
        if f:
            self.need(a, f.count("%s") + 1)
        return f and self.dst(a[0], t, f % tuple(self.src(x, t) for x in a[1:]))

    def op_div(self, p, t, a):
        if is_float(t):
            return self.form(p, t, a, {"rn.f32": "%s / %s", "rn.f64": "%s / %s", "approx.f32": "div_approx<false>(%s, %s)",
                                       "approx.ftz.f32": "div_approx<true>(%s, %s)"})
        return self.form(p, t, a, {t: "int_div<%s>(%%s, %%s)" % C_TYPE[t]}) if t[0] in "us" else None

    def op_rem(self, p, t, a):
        return self.form(p, t, a, {t: "int_rem<%s>(%%s, %%s)" % C_TYPE[t]}) if t[0] in "us" else None

    def op_min(self, p, t, a):
        return self.form(p, t, a, {t: "min_of<%s>(%%s, %%s)" % C_TYPE[t]}) if t[0] in "us" or t == "f32" else None

    def op_max(self, p, t, a):
        return self.form(p, t, a, {t: "max_of<%s>(%%s, %%s)" % C_TYPE[t]}) if t[0] in "us" or t == "f32" else None

    def op_neg(self, p, t, a):
        if t[0] == "s":
            self.need(a, 2)
            return self.dst(a[0], t, "(%s)0 - %s" % (C_TYPE[unsigned(t)], self.src(a[1], unsigned(t)))) if p == [t] else None
        return self.form(p, t, a, {"f32": "-%s", "f64": "-%s"})

    def op_abs(self, p, t, a):
        return self.form(p, t, a, {"f32": "__builtin_fabsf(%s)", "f64": "__builtin_fabs(%s)", "s16": "int_abs<int16_t>(%s)",
                                   "s32": "int_abs<int32_t>(%s)", "s64": "int_abs<int64_t>(%s)"})

    def op_copysign(self, p, t, a):  # the sign of the first operand, the rest of the second
        return self.form(p, t, a[:1] + a[:0:-1], {"f32": "__builtin_copysignf(%s, %s)", "f64": "__builtin_copysign(%s, %s)"})

    def op_sqrt(self, p, t, a):
        return self.form(p, t, a, {"rn.f32": "__builtin_sqrtf(%s)", "rn.f64": "__builtin_sqrt(%s)"})

    def op_rcp(self, p, t, a):
        return self.form(p, t, a, {"rn.f32": "1.0f / %s", "rn.f64": "1.0 / %s"})

    def op_rsqrt(self, p, t, a):
        return self.form(p, t, a, {"approx.f32": "rsqrt_approx(%s)"})

    def op_ex2(self, p, t, a):
        return self.form(p, t, a, {"approx.f32": "ex2_approx(%s)", "approx.ftz.f32": "ftz(ex2_approx(ftz(%s)))"})

    def op_lg2(self, p, t, a):
        return self.form(p, t, a, {"approx.f32": "lg2_approx(%s)", "approx.ftz.f32": "ftz(lg2_approx(ftz(%s)))"})

    def op_tanh(self, p, t, a):
        return self.form(p, t, a, {"approx.f32": "tanh_approx(%s)"})

    # ----------------------------------------------------------------------------------------------- bits and choices

    def logic(self, p, t, a, sign):
        return self.form(p, t, a, {x: "%s " + sign + " %s" for x in ("pred", "b16", "b32", "b64")})

    def op_and(self, p, t, a):
        return self.logic(p, t, a, "&")

    def op_or(self, p, t, a):
        return self.logic(p, t, a, "|")

    def op_xor(self, p, t, a):
        return self.logic(p, t, a, "^")

    def op_not(self, p, t, a):
        return self.form(p, t, a, {"pred": "!%s", "b16": "~%s", "b32": "~%s", "b64": "~%s"})

    def shift(self, p, t, a, name, types):
        self.need(a, 3)
        if p != [t] or t[0] not in types:
            return None
        return self.dst(a[0], t, "%s<%s>(%s, %s)" % (name, C_TYPE[t], self.src(a[1], t), self.src(a[2], "u32")))

    def op_shl(self, p, t, a):
        return self.shift(p, t, a, "shl", "b")

    def op_shr(self, p, t, a):
        return self.shift(p, t, a, "shr", "bus")

    def op_popc(self, p, t, a):
        self.need(a, 2)
        f = {"b32": "__builtin_popcount(%s)", "b64": "__builtin_popcountll(%s)"}.get(".".join(p))
        return f and self.dst(a[0], "u32", f % self.src(a[1], t))

    def op_brev(self, p, t, a):
        return self.form(p, t, a, {"b32": "brev(%s)"})

    def op_bfind(self, p, t, a):
        return self.form(p, t, a, {"shiftamt.u32": "bfind_shiftamt(%s)"})

    def op_bfi(self, p, t, a):
        self.need(a, 5)
        return self.dst(a[0], t, "bfi<%s>(%s, %s, %s, %s)" % (C_TYPE[t], self.src(a[1], t), self.src(a[2], t),
                                                             self.src(a[3], "u32"), self.src(a[4], "u32"))) \
            if p in (["b32"], ["b64"]) else None

    def op_bfe(self, p, t, a):
        return self.form(p, t, a, {"u32": "bfe(%s, %s, %s)"})

    def op_prmt(self, p, t, a):
        return self.form(p, t, a, {"b32": "prmt(%s, %s, %s)"})

    def op_selp(self, p, t, a):
        self.need(a, 4)
        return self.dst(a[0], t, "%s ? %s : %s" % (self.src(a[3], "pred"), self.src(a[1], t), self.src(a[2], t))) \
            if p == [t] else None

    COMPARE = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "lo": "<", "ls": "<=", "hi": ">", "hs": ">="}
    OPPOSITE = {"==": "!=", "!=": "==", "<": ">=", "<=": ">", ">": "<=", ">=": "<"}

    def op_setp(self, p, t, a):
        self.need(a, 3)
        if len(p) != 2:
            return None
        x, y, c = self.src(a[1], t), self.src(a[2], t), p[0]
        if t[0] in "us" or t in ("b16", "b32", "b64"):
            return self.dst(a[0], "pred", "%s %s %s" % (x, self.COMPARE[c], y))
        if not is_float(t):
            return None
        if c in ("num", "nan"):
            return self.dst(a[0], "pred", "%s__builtin_isunordered(%s, %s)" % ("!" * (c == "num"), x, y))
        if c == "ne":  # false for NaN
            return self.dst(a[0], "pred", "%s < %s || %s > %s" % (x, y, x, y))
        if c == "equ":  # true for NaN
            return self.dst(a[0], "pred", "!(%s < %s || %s > %s)" % (x, y, x, y))
        if c in ("neu", "ltu", "leu", "gtu", "geu"):  # true for NaN: not the opposite
            return self.dst(a[0], "pred", "!(%s %s %s)" % (x, self.OPPOSITE[self.COMPARE[c[:-1]]], y))
        return self.dst(a[0], "pred", "%s %s %s" % (x, self.COMPARE[c], y)) if c in ("eq", "lt", "le", "gt", "ge") else None


# -------------------------------------------------------------------------------------------------------------- output

def initial_bytes(size, initial):
    """{1, 2, 3} of a type -> the values as C++, or nothing for zeros."""
    if not initial:
        return ""
    t, text = initial
    values = split(text.strip().strip("{}"))
    if not all(re.match(r"-?(0[xX][0-9a-fA-F]+|\d+)U?$", v) for v in values) or is_float(t):
        raise Unknown("initial values " + text[:60])
    return " = {%s}" % ", ".join("(char)0x%02x" % b for v in values
                                 for b in (int(v.rstrip("U"), 0) % 2**(8 * SIZE[t])).to_bytes(SIZE[t], "little"))


def write(module_name, modules):
    out = ["// Made by dev/sim/translate.py of %s.cu's PTX." % module_name, '#include "dev/sim/ptx.h"', "using namespace ptx;"]
    functions, tables = {}, []  # text of a function -> its number and the architectures that have it
    for m in modules:
        rows = []
        for args in m.kernels:
            k = Kernel(m, *args)
            text = k.text()
            number, archs = functions.setdefault(text, (len(functions), []))
            archs.append(m.arch)
            rows.append((k, number))
        tables.append((m, rows))
    wanted = lambda archs: "#if " + " || ".join("PTX_WANTED(%d)" % a for a in archs)
    for m in modules:
        for name, (align, size, initial) in m.globals.items():
            out.append("%s\nalignas(%d) static char %s_%d[%d]%s;\n#endif" % (
                wanted([m.arch]), max(align, 256), variable(name), m.arch, size, initial_bytes(size, initial)))
    for text, (number, archs) in functions.items():
        out.append("%s\n%s#endif" % (wanted(archs), text % ("k%d" % number)))
    for m, rows in tables:
        a = m.arch
        out.append(wanted([a]))
        for i, (k, _) in enumerate(rows):
            out.append("static const Param params%d_%d[] = {%s};" % (a, i, ", ".join("{%d, %d}" % p for p in k.params.values()) or "{0, 0}"))
        out.append("static Kernel kernels%d[] = {%s};" % (a, ",\n".join(
            '{"%s", k%d, %d, params%d_%d, %d, %d, %d, %d}' % (k.name, number, len(k.params), a, i, k.param_bytes, k.static_shared,
                                                            k.dynamic_at, k.max_threads) for i, (k, number) in enumerate(rows)) or "{}"))
        out.append("static const Variable variables%d[] = {%s};" % (a, ", ".join(
            '{"%s", %s_%d, %d}' % (n, variable(n), a, size) for n, (_, size, _) in m.globals.items()) or "{}"))
        out.append('static Module module%d = {"%s", %d, kernels%d, %d, variables%d, %d};' % (
            a, module_name, a, a, len(rows), a, len(m.globals)))
        out.append("__attribute__((init_priority(200))) static Register register%d(&module%d);\n#endif" % (a, a))
    return "\n".join(out) + "\n"


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    target, sources = sys.argv[1], sys.argv[2:]
    for s in sources:
        if not re.search(r"\.compute_\d+\.ptx$", s):
            sys.exit(f"{s}: a file of PTX is named MODULE.compute_90.ptx")
    module_name = os.path.basename(sources[0]).split(".")[0]
    text = write(module_name, [Module(s) for s in sources])
    with open(target, "w") as f:
        f.write(text)


if __name__ == "__main__":
    main()
