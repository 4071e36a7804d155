#!/usr/bin/env python3
"""PTX to C++: what nvcc made of the kernels becomes functions that run one CUDA thread each on the CPU.

    dev/sim/translate.py OUT.cpp MODULE.compute_75.ptx MODULE.compute_90.ptx ...

One module (.cu file), one or more architectures; a kernel whose text is the same on several is translated once. PTX
registers become local variables, labels stay labels, branches become gotos, .loc becomes #line. What needs a check, other
threads or special rounding is a function of dev/sim/ptx.h. Semantics are those of the PTX ISA. A form of an instruction
that FORMS does not list ends the translation with its place in the PTX: nothing is guessed.
"""
import functools
import math
import os
import re
import sys
from collections import Counter

C_TYPE = {"pred": "bool", "u8": "uint8_t", "s8": "int8_t", "b8": "uint8_t",
          "u16": "uint16_t", "s16": "int16_t", "b16": "uint16_t", "f16": "uint16_t", "bf16": "uint16_t",
          "u32": "uint32_t", "s32": "int32_t", "b32": "uint32_t", "u64": "uint64_t", "s64": "int64_t", "b64": "uint64_t",
          "f32": "float", "f64": "double"}
FLOATS = ("f32", "f64")
SIZE = {t: 1 if t == "pred" else int(t.lstrip("busf")) // 8 for t in C_TYPE}

# --------------------------------------------------------------------------------------------------------------- forms

# Every form that is known: opcode, type of the result, kinds of the other operands, C++. Columns have two blanks between
# them; "-" is no result, or no operands. In an opcode, [x] may be there or not, (x|y) is one of several, capitals are
# SETS. {x,y} makes two rows, with x and with y in all braces. T is the last part of the opcode and D the one before, U the
# unsigned type of the size of T, W a type of twice the size; $T is the C++ type of T, $U an unsigned type in which no
# operation of T overflows, $1 the first operand. Operands are of a type, or
#   ~T        of that type, in a register that may be wider    label, number
#   [T]       in memory, in the space that the opcode names    0          nothing but this number
#   !pred     a predicate, perhaps negated
# A row of two columns names the method of Kernel that translates the form.
FORMS = """
mov.(pred|ANY)                                move
selp.ANY                                      T     T T pred     $3 ? $1 : $2

# Integers. Shifts and bit fields have functions because the counts may be out of range.
{add,sub,mul.lo}.INT                          T     T T          ($U)$1 {+,-,*} ($U)$2
mul.hi.(u|s){16,32}                           T     T T          (($W)$1 * ($W)$2) >> {16,32}
mul.hi.(u64|s64)                              T     T T          mul_hi<$T>($1, $2)
mul.wide.(u|s)(16|32)                         W     T T          ($W)$1 * ($W)$2
mad.wide.(u|s)(16|32)                         W     T T W        ($W)$1 * ($W)$2 + $3
mad.lo.(u|s)(32|64)                           T     U U U        $1 * $2 + $3
{div,rem}.INT                                 T     T T          int_{div,rem}<$T>($1, $2)
{min,max}.(INT|f32)                           T     T T          {min,max}_of<$T>($1, $2)
neg.s(16|32|64)                               T     U            ($U)0 - $1
abs.s(16|32|64)                               T     T            int_abs<$T>($1)
{and,or,xor}.(pred|BITS)                      T     T T          $1 {&,|,^} $2
not.{pred,BITS}                               T     T            {!,~}$1
shl.BITS                                      T     T u32        shl<$T>($1, $2)
shr.(INT|BITS)                                T     T u32        shr<$T>($1, $2)
popc.{b32,b64}                                u32   T            __builtin_popcount{,ll}($1)
brev.b32                                      T     T            brev($1)
bfind.shiftamt.u32                            T     T            bfind_shiftamt($1)
bfe.u32                                       T     T T T        bfe($1, $2, $3)
bfi.(b32|b64)                                 T     T T u32 u32  bfi<$T>($1, $2, $3, $4)
prmt.b32                                      T     T T T        prmt($1, $2, $3)

# Floats. copysign: the sign of the first operand, the rest of the second.
{add,sub,mul}[.rn].FLOAT                      T     T T          $1 {+,-,*} $2
{add,sub,mul}[.rn].ftz.f32                    T     T T          ftz(ftz($1) {+,-,*} ftz($2))
fma.{rn.f32,rn.f64,rm.f32}                    T     T T T        {__builtin_fmaf,__builtin_fma,fma_rm}($1, $2, $3)
fma.rn.ftz.f32                                T     T T T        ftz(__builtin_fmaf(ftz($1), ftz($2), ftz($3)))
div.rn.FLOAT                                  T     T T          $1 / $2
div.approx.{f32,ftz.f32}                      T     T T          div_approx<{false,true}>($1, $2)
neg.FLOAT                                     T     T            -$1
abs.{f32,f64}                                 T     T            __builtin_fabs{f,}($1)
copysign.{f32,f64}                            T     T T          __builtin_copysign{f,}($2, $1)
sqrt.rn.{f32,f64}                             T     T            __builtin_sqrt{f,}($1)
rcp.rn.{f32,f64}                              T     T            {1.0f,1.0} / $1
{rsqrt,ex2,lg2,tanh}.approx.f32               T     T            {rsqrt,ex2,lg2,tanh}_approx($1)
{ex2,lg2}.approx.ftz.f32                      T     T            ftz({ex2,lg2}_approx(ftz($1)))

# Comparisons. With NaN all of floats are false but neu, equ, ltu, ..., which are not the opposites of ne, eq, lt, ...
setp.{eq,ne}.BITS                             pred  T T          $1 {==,!=} $2
setp.{eq,ne,lt,le,gt,ge}.INT                  pred  T T          $1 {==,!=,<,<=,>,>=} $2
setp.{lo,ls,hi,hs}.u(16|32|64)                pred  T T          $1 {<,<=,>,>=} $2
setp.{eq,lt,le,gt,ge}.FLOAT                   pred  T T          $1 {==,<,<=,>,>=} $2
setp.{neu,ltu,leu,gtu,geu}.FLOAT              pred  T T          !($1 {==,>=,>,<=,<} $2)
setp.ne.FLOAT                                 pred  T T          $1 < $2 || $1 > $2
setp.equ.FLOAT                                pred  T T          !($1 < $2 || $1 > $2)
setp.{num,nan}.FLOAT                          pred  T T          {!,}__builtin_isunordered($1, $2)

# Conversions. Of two numbers the first becomes the upper half.
cvt.(INT|u8|s8).(INT|u8|s8)                   D     ~T           ($D)$1
cvt.rn.FLOAT.(INT|u8|s8)                      D     ~T           ($D)$1
cvt.{rni,rmi,rpi,rzi}.(INT|u8|s8).f32         D     T            float_to_int<$D>(__builtin_{rint,floor,ceil,trunc}f($1))
cvt.{rni,rmi,rpi,rzi}.(INT|u8|s8).f64         D     T            float_to_int<$D>(__builtin_{rint,floor,ceil,trunc}($1))
cvt.{rni,rmi,rpi,rzi}.f32.f32                 D     T            __builtin_{rint,floor,ceil,trunc}f($1)
cvt.{f64.f32,rn.f32.f64}                      D     T            ($D)$1
cvt.{sat,ftz.sat}.f32.f32                     D     T            {saturate($1),saturate(ftz($1))}
cvt.f32.f16                                   D     ~T           half_to_float($1)
cvt.f32.bf16                                  D     ~T           f32_of((uint32_t)$1 << 16)
cvt.rn.{f16,bf16}.f32                         D     T            float_to_{half,bfloat}($1)
cvt.rn.{f16,bf16}x2.f32                       b32   T T          pack2(float_to_{half,bfloat}($1), float_to_{half,bfloat}($2))
cvt.rn.satfinite.{e4m3,e5m2}x2.f32            b16   T T          pack_fp8(float_to_{e4m3,e5m2}($1), float_to_{e4m3,e5m2}($2))

# Memory. A load extends to a wider register.
ld[.volatile][.SPACE|.param][.CACHE].MEMORY   T     [T]          load<$T>($1)
st[.volatile][.SPACE][.CACHE].MEMORY          -     [T] ~T       store<$T>($1, $2)
ld[.volatile][.SPACE|.param][.CACHE](.v2|.v4).MEMORY    load_vector
st[.volatile][.SPACE][.CACHE](.v2|.v4).MEMORY           store_vector
{atom,red}[.SPACE].(add|inc|min|max).u32      {T,-}  [T] T       atom_$D<$T>($1, $2)
{atom,red}[.SPACE].(add|min|max).(s32|u64)    {T,-}  [T] T       atom_$D<$T>($1, $2)
{atom,red}[.SPACE].(min|max).s64              {T,-}  [T] T       atom_$D<$T>($1, $2)
{atom,red}[.SPACE].add.(f32|f64)              {T,-}  [T] T       atom_$D<$T>($1, $2)
{atom,red}[.SPACE].(and|or|xor).(b32|b64)     {T,-}  [T] T       atom_$D<$T>($1, $2)
atom[.SPACE].exch.(b32|b64)                   T     [T] T        atom_exch<$T>($1, $2)
atom[.SPACE].cas.(b32|b64)                    T     [T] T T      atom_cas<$T>($1, $2, $3)
cvta.{[to.](global|local),param}.u64          T     T            $1
cvta.{shared,to.shared}.u64                   T     T            {generic_of_shared,shared_of_generic}($1)
cp.async.(cg|ca).shared.global                copy
cp.async.{commit_group,wait_all}              -     -            copies.{commit(),wait(-1)}
cp.async.wait_group                           -     number       copies.wait($1)
membar.(gl|sys|cta)                           -     -            fence()
fence.(acq_rel|sc).(gpu|cta|sys)              -     -            fence()
griddepcontrol.wait                           -     -            (void)0

# Control, warps and blocks.
bra[.uni]                                     -     label        goto $1
{ret,exit,trap}                               -     -            {return,return,trap()}
{bar,barrier}[.cta].sync                      -     0            bar_sync()
bar.warp.sync                                 -     u32          bar_warp($1)
{bar,barrier}[.cta].red.(popc.u32|(and|or).pred)  T  0 !pred  bar_$D($2)
vote.sync.ballot.b32                          T     !pred u32    vote_ballot($1, $2)
vote.sync.{any,all}.pred                      T     !pred u32    vote_ballot({,!}$1, $2) {!=,==} 0
match.any.sync.b32                            T     T u32        match_any($1, $2)
shfl.sync.(up|down|bfly|idx).b32              shuffle
ldmatrix.sync.aligned.m8n8.x4[.trans].shared.b16  ldmatrix
mma.sync.aligned.m16n8k16.row.col.f32.(f16.f16|bf16.bf16).f32  mma
mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32  mma
"""
SETS = {"INT": "[us](16|32|64)", "BITS": "b(16|32|64)", "FLOAT": "f(32|64)", "ANY": "([usb](16|32|64)|f(32|64))",
        "MEMORY": "([usb](8|16|32|64)|f(32|64))", "SPACE": "(global|shared|local)", "CACHE": "(cs|cg|ca|lu|cv|wb|wt|nc)"}


class Unknown(Exception):
    """Something in the PTX that the translator does not know."""


@functools.cache
def forms():
    """FORMS -> {first word of an opcode: [(pattern of the opcode, the other columns)]}"""
    rows, braces = {}, re.compile(r"{([^{}]*)}")
    for line in FORMS.splitlines():
        if not line or line[0] == "#":
            continue
        for i in range(max([len(x.split(",")) for x in braces.findall(line)], default=1)):
            opcode, *columns = re.split(r"\s{2,}", braces.sub(lambda m: m[1].split(",")[i], line))
            pattern = opcode.replace(".", r"\.").replace("[", "(").replace("]", ")?")
            pattern = re.sub("|".join(SETS), lambda m: SETS[m[0]], pattern)
            rows.setdefault(re.match(r"\w+", opcode)[0], []).append((pattern, columns))
    return rows


@functools.cache
def form(opcode):
    """-> type of the result (None: no result), kinds of the operands, C++ with {0}, {1}...; or the name of a method"""
    parts = opcode.split(".")
    columns = next((c for pattern, c in forms().get(parts[0], ()) if re.fullmatch(pattern, opcode)), None)
    if not columns:
        raise Unknown("form " + opcode)
    if len(columns) == 1:
        return columns[0], None, None
    result, kinds, code = columns
    t, bits = parts[-1], parts[-1].lstrip("busf")
    name = {"T": t, "D": parts[-2] if len(parts) > 1 else "", "-": None}
    if bits.isdigit():
        name |= {"U": "u" + bits, "W": t[0] + str(2 * int(bits)), "[T]": "[%s %d]" % (space_of(parts), SIZE[t])}
    kinds = [] if kinds == "-" else [re.sub(r"^\[T\]|[TDUW]$", lambda m: name[m[0]], k) for k in kinds.split()]
    code = code.replace("$U", "uint64_t" if bits == "64" else "uint32_t")
    code = re.sub(r"\$([TDW])", lambda m: C_TYPE.get(name[m[1]], name[m[1]]), code)
    return name.get(result, result), kinds, re.sub(r"\$(\d)", lambda m: "{%d}" % (int(m[1]) - 1), code)


def space_of(parts):
    return next((x for x in parts if x in ("global", "shared", "local", "param")), "generic")


def split(text):
    """Operands, split at commas outside braces and brackets."""
    return re.split(r"\s*,\s*(?![^{[(]*[]})])", text.strip()) if text.strip() else []


def need(a, n):
    if len(a) != n:
        raise Unknown("%d operands instead of %d" % (len(a), n))
    return a


def vector(a, n):
    """"{a, b}" -> its n names"""
    return need(split(a.removeprefix("{").removesuffix("}")), n)


def variable(name):
    """The C++ name of a register, label or variable."""
    return name.replace("%", "v_").replace("$", "_")


def multiple(at, align, odd=0):
    """The first multiple of an alignment from `at` on; odd: the first odd one."""
    return ((at + align - 1) // align | odd) * align


def layout(sizes, odd=0):
    """[(name, alignment, bytes)] one after the other -> ({name: offset}, end). odd: no variable is aligned to more than
    it declares, as ptxas promises no more."""
    at, offset = 0, {}
    for name, align, size in sizes:
        offset[name] = multiple(at, align, odd)
        at = offset[name] + size
    return offset, at


DECLARATION = re.compile(r"(\.extern )?(?:\.(?:visible|weak) )*\.(shared|global|local|param) (?:\.align (\d+) )?\.(\w+) "
                         r"(?:\.ptr (?:\.global )?\.align \d+ )?([\w$]+)(?:\[(\d*)\])?$")


def declaration(text):
    """A variable or parameter -> space, (name, alignment, bytes); only dynamic shared memory has 0 bytes."""
    m = DECLARATION.match(" ".join(text.split()))
    if not m or m[4] not in SIZE or bool(m[1]) != (m[6] == ""):
        raise Unknown("declaration " + text)
    return "dynamic" if m[1] else m[2], (m[5], int(m[3] or SIZE[m[4]]), SIZE[m[4]] * int(m[6] or not m[1]))


# ------------------------------------------------------------------------------------------------------------- modules

class Module:
    """One .ptx file: its variables (name, alignment, bytes) and kernels (name, parameters, directives, begin, end)."""
    BODY = functools.reduce(lambda inner, _: r"[^{}]*(?:\{%s\}[^{}]*)*" % inner, range(4), "[^{}]*")
    ITEM = re.compile(r"\s*(?:\.(?:version|target|address_size|file)\b[^\n]*|([^;{}]*);|"
                      r"(?:\.(?:visible|weak)\s+)*\.entry\s+([\w$]+)\s*\(([^()]*)\)([^{}]*)\{(%s)\})" % BODY)

    def __init__(self, path):
        self.path = path
        self.arch = int(re.search(r"compute_(\d+)", path)[1])
        with open(path) as f:
            text = f.read()
        here = os.path.realpath(".") + "/"
        self.files = {number: os.path.normpath(file).removeprefix(here)
                      for number, file in re.findall(r'^\s*\.file\s+(\d+)\s+"([^"]*)"', text, re.M)}
        # Comments and debug information go, line numbers stay. INTERNAL_: a hash that differs between architectures.
        blank = lambda m: "\n" * m[0].count("\n")
        text = re.sub(r"//[^\n]*|/\*.*?\*/", blank, text, flags=re.S)
        text = re.sub(r"^\s*\.section.*?\n\s*\}", blank, text, flags=re.M | re.S)
        self.text = re.sub(r"_INTERNAL_[0-9a-f]{8}_", "_INTERNAL_", text).rstrip()
        self.variables, self.kernels, at = {"shared": [], "dynamic": [], "global": []}, [], 0
        while m := self.ITEM.match(self.text, at):
            at = m.end()
            if m[2]:
                self.kernels.append((m[2], m[3], m[4], *m.span(5)))
            elif m[1]:
                try:
                    space, entry = declaration(m[1])
                    self.variables[space].append(entry)
                except (Unknown, KeyError):
                    self.fail(m.start(1), m[1])
        if at < len(self.text):
            self.fail(at, self.text[at:].strip().split("\n")[0])

    def fail(self, at, message):
        at += len(self.text[at:]) - len(self.text[at:].lstrip())
        sys.exit("%s:%d: unknown: %s" % (self.path, self.text.count("\n", 0, at) + 1, message))


# ------------------------------------------------------------------------------------------------------------- kernels

class Kernel:
    """The translation of one .entry. A statement is (its position in the PTX, its place in the sources, its text)."""
    TOKEN = re.compile(r"\s*(?:([{}])|(\.loc\b[^\n]*)|([$\w]+:)|([^;]+);)")
    LOC = re.compile(r"\.loc\s+(\d+)\s+(\d+)\s+\d+(?:\s*,.*?inlined_at\s+(\d+)\s+(\d+))?")
    SPECIAL = {"%%%s.%s" % (ptx, x): "%s.%s" % (name, x) for x in "xyz" for ptx, name in (
        ("tid", "threadIdx"), ("ctaid", "blockIdx"), ("ntid", "blockDim"), ("nctaid", "gridDim"))}

    def __init__(self, module, params, directives, begin, end):
        self.module, self.at = module, begin
        self.classes, self.chunks, self.sites, self.has_copies = {}, [], 0, False
        self.names = {"%laneid": "sim::lane_id()", **self.SPECIAL}  # of what is no register
        self.names |= {n: "(uintptr_t)%s_%d.at" % (variable(n), module.arch) for n, _, _ in module.variables["global"]}
        s, i = "", 0
        try:
            self.directives(directives)
            self.parameters(params)
            self.statements = list(self.split_statements(begin, end))
            while i < len(self.statements):
                self.at, self.place, s = self.statements[i]
                i += s.startswith("shfl") and self.butterfly(i) or self.statement(s)
        except (Unknown, LookupError, ValueError) as x:
            module.fail(self.at, "%s (%s)" % (s, x))

    def directives(self, text):
        self.max_threads = 1024
        for name, value in re.findall(r"\.(\w+)\s*([\d\s,]*)", text):
            if name in ("maxntid", "reqntid"):
                self.max_threads = math.prod(map(int, value.split(",")))
            elif name != "minnctapersm":
                raise Unknown("." + name)

    def parameters(self, text):
        entries = [declaration(p)[1] for p in split(text)]
        offset, self.param_bytes = layout(entries)
        self.params = {name: (offset[name], size) for name, _, size in entries}
        self.names |= {name: "(uintptr_t)(params + %d)" % at for name, at in offset.items()}

    def split_statements(self, begin, end):
        """Statements, labels ("name:") and the braces of scopes; shared and local variables get their places."""
        text, place, variables = self.module.text, None, {"shared": [], "local": []}
        while m := self.TOKEN.match(text, self.at, end):
            self.at = m.start(m.lastindex)
            s = " ".join(m[m.lastindex].split())
            if m[2]:
                place = self.locate(s)
            elif s.startswith((".shared", ".local")):
                space, entry = declaration(s)
                variables[space].append(entry)
            elif not s.startswith(".pragma"):
                yield self.at, place, s
            self.at = m.end()
        if text[self.at:end].strip():
            raise Unknown(text[self.at:end].strip())
        # Static shared memory: the kernel's own variables, then those of the module that it names. Dynamic behind.
        used = set(re.findall(r"[\w$]+", text[begin:end]))
        shared, dynamic = ([v for v in self.module.variables[x] if v[0] in used] for x in ("shared", "dynamic"))
        _, self.static_shared = layout(variables["shared"] + shared)
        static, end = layout(variables["shared"] + shared, odd=1)
        self.dynamic_at = multiple(end, max(v[1] for v in dynamic), odd=1) if dynamic else end
        local, self.local_bytes = layout(variables["local"], odd=1)
        self.names |= {n: "(SHARED_BASE + %d)" % at for n, at in static.items()}
        self.names |= {v[0]: "(SHARED_BASE + %d)" % self.dynamic_at for v in dynamic}
        self.names |= {n: "(uintptr_t)(local + %d)" % at for n, at in local.items()}

    def locate(self, s):
        """The place in the project's sources: a function of the toolkit's headers counts as the line that calls it."""
        m = self.LOC.match(s)
        if not m or m[1] not in self.module.files:
            raise Unknown(s)
        if self.module.files[m[1]].startswith("/") and m[3]:
            return self.module.files[m[3]], int(m[4])
        return self.module.files[m[1]], int(m[2])

    # ---------------------------------------------------------------------------------------------------------- output

    def emit(self, code, new_line=False):
        """The statements of one source line are one line of C++."""
        if new_line or not self.chunks or self.chunks[-1][0] != self.place:
            self.chunks.append((self.place, []))
        self.chunks[-1][1].append(code)

    def text(self):
        out = ["static void %s(const char *params) {"]
        if self.local_bytes:
            out.append("alignas(256) char local[%d]; FRESH_LOCAL(local);" % self.local_bytes)
        if self.has_copies:
            out.append("AsyncCopies copies;")
        for place, code in self.chunks:
            out += ['#line %d "%s"' % (place[1], place[0]) if place else "", " ".join(code)]
        return "\n".join(out) + "\n}\n"

    # -------------------------------------------------------------------------------------------------------- operands

    def kind(self, name):
        """The type of a register."""
        k = self.classes.get(name) or self.classes.get(name.rstrip("0123456789"))
        if not k:
            raise Unknown("register " + name)
        return k

    NUMBER = re.compile(r"(?:0[fFdD]([0-9a-fA-F]+)|(-?(?:0[xX][0-9a-fA-F]+|\d+))U?)$")

    def src(self, a, t, or_wider=False):
        """Operand a as a C++ expression of PTX type t."""
        c = C_TYPE[t]
        if m := self.NUMBER.match(a):
            if (len(m[1]) != 2 * SIZE[t]) if m[1] else t in FLOATS:
                raise Unknown("%s for %s" % (a, t))
            if m[1]:
                bits = "0x%su%s" % (m[1], "ll" * (SIZE[t] == 8))
                return "%s_of(%s)" % (t, bits) if t in FLOATS else "(%s)%s" % (c, bits)
            v = int(m[2], 0)
            if t == "pred":
                return "true" if v else "false"
            return "(%s)%s" % (c, "%dull" % v if v >= 1 << 63 else "(%dll-1)" % (v + 1) if v < 0 else "%dll" % v)
        if a in self.names:
            return "(%s)%s" % (c, self.names[a])
        k, v = self.kind(a), variable(a)
        if C_TYPE[k] == c:
            return v
        wider = or_wider and SIZE[k] > SIZE[t] and k not in FLOATS and t not in FLOATS
        if "pred" in (t, k) or SIZE[k] != SIZE[t] and not wider:
            raise Unknown("a %s register for %s" % (k, t))
        return "%s_of(%s)" % (t, v) if t in FLOATS else "(%s)%s" % (c, "bits(%s)" % v if k in FLOATS else v)

    def dst(self, d, t, expression):
        """Assignment of an expression of PTX type t to register d."""
        if d == "_":
            return "(void)(%s);" % expression
        k, v = self.kind(d), variable(d)
        if k == t:
            return "%s = %s;" % (v, expression)
        if "pred" in (t, k) or SIZE[k] < SIZE[t] or SIZE[k] != SIZE[t] and (t in FLOATS or k in FLOATS):
            raise Unknown("a %s register for %s" % (k, t))
        if k in FLOATS:
            return "%s = %s_of((uint%d_t)(%s));" % (v, k, 8 * SIZE[k], expression)
        if t in FLOATS:
            return "%s = bits(%s);" % (v, expression)
        return "%s = (%s)(%s)(%s);" % (v, C_TYPE[k], C_TYPE[t], expression)

    def parts(self, names, t, expression, step=1):
        """Registers get the parts of something: m[0], m[1]...; or those at 0, 4, ..."""
        return " ".join(self.dst(r, t, expression % (i * step)) for i, r in enumerate(names))

    @staticmethod
    def address(a):
        """"[name+offset]" -> name, offset"""
        m = re.match(r"\[\s*([%\w$]+)\s*(?:\+\s*(-?\w+))?\s*\]$", a)
        if not m:
            raise Unknown("address " + a)
        return m[1], int(m[2] or "0", 0)

    def site(self):
        """The number of an access to global memory, for its Range (ptx.h)."""
        self.sites += 1
        return self.sites % 64

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
        if space in ("param", "local"):
            window = "local, sizeof local" if space == "local" else "params, %d" % self.param_bytes
            return "window_at(%s, %d, %s)" % (x, size, window)
        if space == "global":
            return "global_at(%s, %d, %d)" % (x, size, self.site())
        local = "local, sizeof local" if self.local_bytes else "nullptr, 0"
        return "generic_at(%s, %d, %d, %s)" % (x, size, self.site(), local)

    def operand(self, kind, a):
        """An operand of one of the kinds of FORMS as C++."""
        if kind[0] == "[":
            space, size = kind[1:-1].split()
            return self.pointer(space, a, int(size))
        if kind == "!pred":
            return "!" * a.startswith("!") + self.src(a.removeprefix("!"), "pred")
        if kind.lstrip("~") in C_TYPE:
            return self.src(a, kind.lstrip("~"), or_wider=kind[0] == "~")
        if kind == "label" or kind == "number" and a.isdigit() or kind == a:
            return variable(a)
        raise Unknown("operand " + a)

    # ------------------------------------------------------------------------------------------------------ statements

    def statement(self, s):
        """Translates one statement -> how many this were: 1"""
        if s in "{}":
            self.emit(s)
        elif s[-1] == ":":
            self.emit(variable(s[:-1]) + ":;", new_line=True)
        elif s.startswith(".reg"):
            self.registers(s)
        elif m := re.match(r"@(!?)(%\w+) (.*)$", s):
            self.emit("if (%s%s) %s" % (m[1], self.src(m[2], "pred"), self.instruction(m[3])))
        else:
            self.emit(self.instruction(s))
        return 1

    def registers(self, s):
        m = re.match(r"\.reg \.(\w+) (.*)$", s)
        if not m or m[1] not in C_TYPE:
            raise Unknown(s)
        for name in split(m[2]):
            name, _, count = name.rstrip(">").partition("<")
            self.classes[name] = m[1]
            if count != "0":
                self.emit("%s %s;" % (C_TYPE[m[1]], ", ".join(variable(name) + str(i) for i in range(int(count)))
                                      if count else variable(name)))

    def instruction(self, s):
        opcode, _, rest = s.partition(" ")
        a = split(rest)
        result, kinds, code = form(opcode)
        self.has_copies |= opcode.startswith("cp.")
        if kinds is None:
            return getattr(self, result)(opcode.split("."), opcode.split(".")[-1], a)
        need(a, len(kinds) + (result is not None))
        if result:
            return self.dst(a[0], result, code.format(*map(self.operand, kinds, a[1:])))
        return code.format(*map(self.operand, kinds, a)) + ";"

    def move(self, p, t, a):
        """Also from and to the parts of a register: {%rs1, %rs2}."""
        need(a, 2)
        halves = split((a[0] + a[1]).partition("{")[2].partition("}")[0])
        if not halves:
            return self.dst(a[0], t, self.src(a[1], t))
        bits = SIZE[t] // len(halves) * 8
        if a[0][0] == "{":
            return "{ const %s whole = %s; %s }" % (
                C_TYPE[t], self.src(a[1], t), self.parts(halves, "b%d" % bits, "(uint%d_t)(whole >> %%d)" % bits, bits))
        return self.dst(a[0], t, " | ".join("(%s)%s << %d" % (C_TYPE[t], self.src(n, "b%d" % bits), i * bits)
                                            for i, n in enumerate(halves) if n != "0") or "0")

    def load_vector(self, p, t, a):
        n = int(p[-2][1])
        return "{ const char *at = %s; %s }" % (self.pointer(space_of(p), need(a, 2)[1], SIZE[t] * n), self.parts(
            vector(a[0], n), t, "load<%s>(at + %%d)" % C_TYPE[t], SIZE[t]))

    def store_vector(self, p, t, a):
        n = int(p[-2][1])
        return "{ char *at = %s; %s }" % (self.pointer(space_of(p), need(a, 2)[0], SIZE[t] * n), " ".join(
            "store<%s>(at + %d, %s);" % (C_TYPE[t], i * SIZE[t], self.src(r, t, or_wider=True))
            for i, r in enumerate(vector(a[1], n))))

    def copy(self, p, t, a):
        """cp.async [to], [from], bytes, bytes to read: the rest becomes zeros"""
        if len(a) not in (3, 4) or a[2] not in (("16",) if p[2] == "cg" else ("4", "8", "16")):
            raise Unknown("operands")
        base, offset = self.address(a[1])
        return "copies.issue(%s, %s + %dull, %s, %s, %d);" % (
            self.pointer("shared", a[0], int(a[2])), self.src(base, "u64"), offset % 2**64, a[2],
            self.src(a[3], "u32") if len(a) > 3 else a[2], self.site())

    def shuffle(self, p, t, a):
        d, _, q = need(a, 5)[0].partition("|")
        return "{ const Shuffled s = shfl<SHFL_%s>(%s, %s); %s%s }" % (
            p[2].upper(), self.src(a[1], "b32"), ", ".join(self.src(x, "u32") for x in a[2:]),
            self.dst(d, "b32", "s.value"), self.dst(q, "pred", "s.in_range") if q and q != "_" else "")

    def ldmatrix(self, p, t, a):
        return "{ uint32_t m[4]; memcpy(m, %s, 16); ldmatrix_x4<%s>(m); %s }" % (
            self.pointer("shared", need(a, 2)[1], 16), "true" if "trans" in p else "false",
            self.parts(vector(a[0], 4), "b32", "m[%d]"))

    def mma(self, p, t, a):
        k = int(p[3].removeprefix("m16n8k"))
        sources = zip(need(a, 4)[1:], (k // 4, k // 8, 4), ("b32", "b32", "f32"))
        return "{ MmaFragments m = {%s}; mma_m16n8<%s, %d>(m); %s }" % (
            ", ".join("{%s}" % ", ".join(self.src(r, type_) for r in vector(x, n)) for x, n, type_ in sources),
            {"f16": "Half", "bf16": "BFloat"}[p[-2]], k, self.parts(vector(a[0], 4), "f32", "m.c[%d]"))

    # ----------------------------------------------------------------------------------------------------- butterflies

    # z = x + shfl_xor(x, offset), and what may stand between it and the next one: numbers, and the copy of z to shuffle.
    LINK = re.compile(r"shfl\.sync\.bfly\.b32 (%\w+)\|(%\w+), (%\w+), (%\w+|\d+), (%\w+|\d+), (%\w+|-?\d+);"
                      r"mov\.b32 (%\w+), \1;(add|max)\.f32 (%\w+), (%\w+), \7;")
    BETWEEN = re.compile(r"((?:mov\.[ub]32 %\w+, -?\d+;)*)mov\.b32 (%\w+), (%\w+);((?:mov\.[ub]32 %\w+, -?\d+;)*)")

    def butterfly(self, first):
        """x = x + shfl_xor(x, 16); x = x + shfl_xor(x, 8); ... of a whole warp: one meeting of its lanes instead of one
        for every step, with the same operations in the same order. -> statements taken, 0 where there is none"""
        number = lambda a: self.numbers.get(a) if a[0] == "%" else int(a)
        text = "".join(s + ";" for _, _, s in self.statements[first:first + 64])
        offsets, between, numbers, at, end = [], None, "", 0, 0
        while m := self.LINK.match(text, at):
            d, q, a, offset, clamp, mask, y, op, z, x = m.groups()
            if number(clamp) != 31 or number(mask) not in (-1, 2**32 - 1) or number(offset) not in (1, 2, 4, 8, 16) \
                    or (self.uses[d], self.uses[q], self.uses[y]) != (2, 1, 2):
                break
            if not offsets:
                if not self.is_copy(first, a, x):
                    break
                start, kind = x, op
            elif (a, x, op) != (between[2], last, kind) or (self.uses[a], self.uses[x]) != (2, 3):
                break
            else:
                numbers += between[1] + between[4]
            offsets.append(str(number(offset)))
            last, end, between = z, m.end(), self.BETWEEN.match(text, m.end())
            if not between or between[3] != z or set(re.findall(r"%\w+", between[1] + between[4])) - set(self.numbers):
                break
            at = between.end()
        if len(offsets) < 2:
            return 0
        self.emit(self.dst(last, "f32", "butterfly_%s<%s>(%s)" % (kind, ", ".join(offsets), self.src(start, "f32"))))
        for s in numbers.split(";")[:-1]:
            self.statement(s)
        return text.count(";", 0, end)

    @functools.cached_property
    def waits(self):
        """Whether griddepcontrol.wait comes before everything that could see memory or be skipped."""
        for _, _, s in self.statements:
            if s == "griddepcontrol.wait":
                return True
            if s[0] == "@" or s[-1] == ":" or re.match(r"(?!ld\.param)(ld|st|atom|red|cp|bra|ret|exit|bar|barrier|fence|membar)\b", s):
                return False
        return False

    @functools.cached_property
    def uses(self):
        """How often every register is named."""
        return Counter(re.findall(r"%\w+", " ".join(s for _, _, s in self.statements if s[:4] != ".reg")))

    @functools.cached_property
    def numbers(self):
        """The registers that hold one number from their only assignment on."""
        assigned = Counter(r for _, _, s in self.statements if s[:4] != ".reg" for r in self.assigned(s))
        moves = (re.match(r"mov\.[ub]32 (%\w+), (-?\d+)$", s) for _, _, s in self.statements)
        return {m[1]: int(m[2]) for m in moves if m and assigned[m[1]] == 1}

    @staticmethod
    def assigned(s):
        """The registers that a statement may change: those of its first operand; all of one with a guard."""
        return re.findall(r"%\w+", s if s[0] == "@" else (split(s.partition(" ")[2]) or [""])[0])

    def is_copy(self, first, a, x):
        """Whether register a holds the bits of x before the statement `first`: mov.b32 a, x, and neither has changed."""
        for i in range(first - 1, -1, -1):
            s = self.statements[i][2]
            if s == "mov.b32 %s, %s" % (a, x):
                return True
            if s[-1] in ":{}" or {a, x} & set(self.assigned(s)):
                return False
        return False


# -------------------------------------------------------------------------------------------------------------- output

def write(module_name, modules):
    translated = {}  # PTX of a kernel, and what else it depends on -> its translation, for several architectures
    functions = {}   # text of a function -> its number
    globals_, tables = [], []
    for m in modules:
        a, rows, variables = m.arch, [], m.variables["global"]
        around = repr((m.files, m.variables, variables and a))
        for i, (name, *heads, begin, end) in enumerate(m.kernels):
            key = (name, *heads, m.text[begin:end], around)
            if key not in translated:
                translated[key] = Kernel(m, *heads, begin, end)
            k = translated[key]
            number = functions.setdefault(k.text(), len(functions))
            tables.append("static const Param params%d_%d[] = {%s};" % (
                a, i, ", ".join("{%d, %d}" % p for p in k.params.values()) or "{0, 0}"))
            rows.append('{"%s", k%d, %d, params%d_%d, %d, %d, %d, %d, %d}' % (
                name, number, len(k.params), a, i, k.param_bytes, k.static_shared, k.dynamic_at, k.max_threads, k.waits))
        globals_ += ["static struct { alignas(256) char before[%d]; char at[%d]; } %s_%d;" % (
            align, size, variable(n), a) for n, align, size in variables]
        tables += ["static Kernel kernels%d[] = {%s};" % (a, ",\n".join(rows) or "{}"),
                   "static const Variable variables%d[] = {%s};" % (
                       a, ", ".join('{"%s", %s_%d.at, %d}' % (n, variable(n), a, size) for n, _, size in variables) or "{}"),
                   'static Module module%d = {"%s", %d, kernels%d, %d, variables%d, %d};' % (
                       a, module_name, a, a, len(rows), a, len(variables)),
                   "__attribute__((init_priority(200))) static Register register%d(&module%d);" % (a, a)]
    head = ["// Made by dev/sim/translate.py of %s.cu's PTX." % module_name,
            '#include "dev/sim/ptx.h"', "using namespace ptx;"]
    kernels = [text % ("k%d" % number) for text, number in functions.items()]
    return "\n".join(head + globals_ + kernels + tables) + "\n"


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
