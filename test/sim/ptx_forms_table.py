"""The cases of ptx_forms.py: for every form of the kernels' PTX, inputs and what the PTX ISA says must come out.

Section numbers are those of the PTX ISA 8.7. Expected values are literals worked out by hand from the ISA's text, except
'=': the operation in exact rational arithmetic (Fraction), rounded once to nearest even, which is IEEE 754's definition of
the result. Lane-wise tables (shuffles, fragments) are written from the ISA's layout figures. A token is a sum of powers of
two, exact in its type, or 0x and the bits. nan as a result of f32 or f64 arithmetic: any NaN, since "single-precision
instructions return an unspecified NaN" (9.7.3).
"""
import struct
from fractions import Fraction

from ptx_forms import PARAMETER, Case, float_bits, root, rounded

CASES = []
LANES = range(32)
MAX = "(2-2^-23)*2^127"  # the largest float


def case(form, signature, rows, body=None, **options):
    CASES.append(Case(form, signature, rows, body, **options))


def each(form_pattern, types, signature, rows, **options):
    """The same rows for several types: TYPE in the pattern and the signature is replaced."""
    for type_ in types.split():
        case(form_pattern.replace("TYPE", type_), signature.replace("TYPE", type_), rows, **options)


# ------------------------------------------------------------------------------------- 9.7.1 integer arithmetic
# Results are the low bits of the exact result: two's complement wraps.

for form, t in (("add.s32", "s32"), ("add.s64", "s64"), ("add.s16", "s16"), ("add.u64", "u64")):
    bits = t[1:]
    high, low, ones = "2^%d-1" % (int(bits) - 1), "2^%d" % (int(bits) - 1), "2^%s-1" % bits
    case(form, "%s %s -> %s" % (t, t, t), """
        2 3 -> 5
        %s 1 -> %s
        %s 1 -> 0
        %s %s -> 0
        -5 3 -> -2
    """ % (high, low, ones, low, low))
for form, t in (("sub.s32", "s32"), ("sub.s64", "s64"), ("sub.s16", "s16")):
    low = int(t[1:]) - 1
    case(form, "%s %s -> %s" % (t, t, t), "2 3 -> -1\n0 2^%d -> 2^%d\n2^%d 1 -> 2^%d-1\n-5 -3 -> -2" % (low, low, low, low))
# Immediate operands, negative ones as well: they are cut to the type's bits.
case("add.s32", "s32 -> s32", "5 -> -3\n-2147483648 -> 2147483640", "add.s32 <d0>, <a0>, -8;")
case("add.s64", "s64 -> s64", "5 -> -3\n2^32 -> 2^32-8", "add.s64 <d0>, <a0>, -8;")

case("mul.lo.s32", "s32 s32 -> s32", """
    -3 7 -> -21
    0x10000 0x10000 -> 0             # 2^32
    0x7fffffff 2 -> -2
    0x80000000 -1 -> 0x80000000
    123456789 987654321 -> 0xfbff5385  # 121932631112635269 = 0x1b13114fbff5385
""")
case("mul.lo.s64", "s64 s64 -> s64", """
    -3 7 -> -21
    2^32 2^32 -> 0
    123456789 987654321 -> 121932631112635269
    0x8000000000000000 -1 -> 0x8000000000000000
""")
case("mul.lo.s16", "s16 s16 -> s16", """
    171 100 -> 17100
    300 300 -> 0x5f90                # 90000 - 65536
    -1 -1 -> 1                       # a promotion to int must not overflow
    0xffff 0x8000 -> 0x8000
    0x7fff 2 -> 0xfffe
""")
case("mul.hi.s32", "s32 s32 -> s32", """
    0x80000000 0x80000000 -> 0x40000000
    -1 1 -> -1                       # high half of -1
    715827883 7 -> 1                 # 5010795181 = 2^32 + 715827885
    715827883 -7 -> -2               # floor(-1.17)
    0x7fffffff 0x7fffffff -> 0x3fffffff
    0 -5 -> 0
""")
case("mul.hi.s32", "s32 -> s32", "7 -> 1\n-7 -> -2", "mul.hi.s32 <d0>, <a0>, 715827883;")
case("mul.hi.u32", "u32 u32 -> u32", """
    0xffffffff 0xffffffff -> 0xfffffffe
    0xaaaaaaab 6 -> 4                # 4 * 2^32 + 2
    0x80000000 2 -> 1
    1 0xffffffff -> 0
""")
case("mul.hi.u32", "u32 -> u32", "6 -> 4\n0xffffffff -> 0xaaaaaaaa", "mul.hi.u32 <d0>, <a0>, -1431655765;")  # 0xaaaaaaab
case("mul.hi.u16", "u16 u16 -> u16", """
    0xffff 0xffff -> 0xfffe          # as 32 bits 0xfffe0001
    300 43691 -> 200
    0x8000 2 -> 1
    1 0xffff -> 0
""")
case("mul.hi.u16", "u16 -> u16", "300 -> 200\n0xffff -> 0xaaaa", "mul.hi.u16 <d0>, <a0>, -21845;")  # 43691 = 0xaaab
case("mul.wide.s32", "s32 s32 -> s64", """
    -1 2 -> -2
    0x80000000 0x80000000 -> 2^62
    0x80000000 0x7fffffff -> 0xc000000080000000
    65536 65536 -> 2^32
""")
case("mul.wide.s32", "s32 -> s64", "-3 -> -12\n0x40000000 -> 2^32", "mul.wide.s32 <d0>, <a0>, 4;")
case("mul.wide.u32", "u32 u32 -> u64", "0xffffffff 0xffffffff -> 0xfffffffe00000001\n0xffffffff 2 -> 0x1fffffffe\n0 7 -> 0")
case("mul.wide.u16", "u16 u16 -> u32", "0xffff 0xffff -> 0xfffe0001\n0xffff 4 -> 0x3fffc\n0x8000 2 -> 0x10000")
case("mad.lo.s32", "s32 s32 s32 -> s32", """
    3 4 5 -> 17
    0x7fffffff 2 3 -> 1
    -3 4 5 -> -7
    0x10000 0x10000 -1 -> -1
    0x80000000 -1 0x80000000 -> 0
""")
case("mad.lo.s64", "s64 s64 s64 -> s64", "3 4 5 -> 17\n2^32 2^32 -1 -> -1\n-3 2^40 5 -> -3*2^40+5\n0x7fffffffffffffff 2 3 -> 1")

# 9.7.1.7, 9.7.1.8: div truncates; what rem does for negative numbers "depends on whether divide rounds towards zero". The
# most negative number by -1: not specified; hardware wraps, and a host that runs PTX must not trap. Division by 0: unspecified.
for bits in (32, 64):
    low = "2^%d" % (bits - 1)
    case("div.s%d" % bits, "s%d s%d -> s%d" % (bits, bits, bits), """
        7 2 -> 3
        7 -2 -> -3
        -7 2 -> -3
        -7 -2 -> 3
        0 -5 -> 0
        LOW -1 -> LOW
        LOW 1 -> LOW
        LOW LOW -> 1
        5 LOW -> 0
    """.replace("LOW", low))
    case("rem.s%d" % bits, "s%d s%d -> s%d" % (bits, bits, bits), """
        7 2 -> 1
        7 -2 -> 1
        -7 2 -> -1
        -7 -2 -> -1
        LOW -1 -> 0
        LOW 3 -> -2                  # 2^31 and 2^63 leave 2
        5 LOW -> 5
        -6 3 -> 0
    """.replace("LOW", low))
case("div.u32", "u32 u32 -> u32", """
    7 2 -> 3
    -7 2 -> 0x7ffffffc
    5 0xffffffff -> 0
    0xffffffff 0xffffffff -> 1
    0xffffffff 1 -> 0xffffffff
""")
case("div.u64", "u64 u64 -> u64", "7 2 -> 3\n-7 2 -> 0x7ffffffffffffffc\n5 -1 -> 0\n-1 2^32 -> 0xffffffff\n2^63 -1 -> 0")
case("rem.u32", "u32 u32 -> u32", "7 2 -> 1\n-7 10 -> 9\n5 0xffffffff -> 5\n0xffffffff 0xffffffff -> 0")  # 4294967289
case("rem.u16", "u16 u16 -> u16", "7 2 -> 1\n0xfff9 10 -> 9\n5 0xffff -> 5\n0xffff 0x8000 -> 0x7fff")  # 65529

case("abs.s32", "s32 -> s32", "5 -> 5\n-5 -> 5\n0 -> 0\n0x80000000 -> 0x80000000\n0x80000001 -> 0x7fffffff")
case("neg.s32", "s32 -> s32", "5 -> -5\n-5 -> 5\n0 -> 0\n0x80000000 -> 0x80000000")
case("neg.s64", "s64 -> s64", "5 -> -5\n-5 -> 5\n0 -> 0\n2^63 -> 2^63\n2^32 -> -2^32")
case("min.s32", "s32 s32 -> s32", "1 2 -> 1\n-1 1 -> -1\n0x80000000 0x7fffffff -> 0x80000000\n-1 -2 -> -2")
case("min.s64", "s64 s64 -> s64", "1 2 -> 1\n-1 1 -> -1\n2^63 2^63-1 -> 2^63\n2^32 1 -> 1")
case("max.s32", "s32 s32 -> s32", "1 2 -> 2\n-1 1 -> 1\n0x80000000 0x7fffffff -> 0x7fffffff\n-1 -2 -> -1")
case("max.s64", "s64 s64 -> s64", "1 2 -> 2\n-1 0 -> 0\n2^63 2^63-1 -> 2^63-1\n2^32 1 -> 2^32")
case("max.u32", "u32 u32 -> u32", "1 2 -> 2\n-1 1 -> 0xffffffff\n0x80000000 0x7fffffff -> 0x80000000")
case("max.u64", "u64 u64 -> u64", "1 2 -> 2\n-1 1 -> -1\n2^63 2^63-1 -> 2^63\n2^32 0xffffffff -> 2^32")

case("popc.b32", "b32 -> u32", "0 -> 0\n0xffffffff -> 32\n0x80000001 -> 2\n0x12345678 -> 13")
case("brev.b32", "b32 -> b32", "1 -> 0x80000000\n0x12345678 -> 0x1e6a2c48\n0 -> 0\n0xffff0000 -> 0xffff")
# 9.7.1.16: .shiftamt, the shift that moves the bit found to the top; 0xffffffff if there is none
case("bfind.shiftamt.u32", "u32 -> u32", """
    1 -> 31
    0x80000000 -> 0
    0 -> 0xffffffff
    0x10000 -> 15
    0xffffffff -> 0
    0x00ffffff -> 8
""")
# 9.7.1.20: pos = b & 0xff, len = c & 0xff; bits from beyond the register are 0
case("bfe.u32", "u32 u32 u32 -> u32", """
    0x12345678 8 8 -> 0x56
    0x12345678 0 0 -> 0
    0xf2345678 28 8 -> 0xf
    0x12345678 32 8 -> 0
    0x12345678 255 8 -> 0
    0x12345678 4 32 -> 0x01234567
    0x12345678 0 32 -> 0x12345678
    0x12345678 0 255 -> 0x12345678
    0x12345678 256 8 -> 0x78         # 256 & 0xff = 0
    0x12345678 8 256 -> 0
    0xffffffff 31 1 -> 1
""")
case("bfe.u32", "u32 -> u32", "0x12345678 -> 0x34\n0xffffffff -> 0xff", "bfe.u32 <d0>, <a0>, 16, 8;")
# 9.7.1.21: bits 0..len-1 of a replace bits pos..pos+len-1 of b; what would lie beyond the register is dropped
case("bfi.b32", "b32 b32 u32 u32 -> b32", """
    0xff 0 8 4 -> 0xf00
    0xff 0x12345678 0 0 -> 0x12345678
    0xffffffff 0 28 8 -> 0xf0000000
    0 0xffffffff 28 8 -> 0x0fffffff
    0xffffffff 0x12345678 32 4 -> 0x12345678
    0xffffffff 0x12345678 255 255 -> 0x12345678
    0xabcdef01 0x12345678 0 32 -> 0xabcdef01
    0xabcdef01 0x12345678 0 255 -> 0xabcdef01
    0xff 0 256 4 -> 0xf              # 256 & 0xff = 0
    0xff 0x12345678 4 256 -> 0x12345678
    0x0 0xffffffff 8 8 -> 0xffff00ff
""")
case("bfi.b32", "b32 b32 -> b32", """
    0x20000001 5 -> 0xd
    0x1fffffff 0xfffffff8 -> 0xfffffff8
""", "bfi.b32 <d0>, <a0>, <a1>, 3, 29;")
case("bfi.b64", "b64 b64 u32 u32 -> b64", """
    0x1111111122222222 0x3333333344444444 32 32 -> 0x2222222244444444
    -1 0 1 32 -> 0x1fffffffe
    -1 0 60 8 -> 0xf000000000000000
    0 -1 0 64 -> 0
    -1 0x123456789abcdef0 64 8 -> 0x123456789abcdef0
    0x5 0x123456789abcdef0 0 0 -> 0x123456789abcdef0
    0xab 0 40 8 -> 0xab0000000000
""")
case("bfi.b64", "b64 b64 -> b64", "0x1111111122222222 0x3333333344444444 -> 0x2222222244444444",
    "bfi.b64 <d0>, <a0>, <a1>, 32, 32;")

# 9.7.9.7 prmt, default mode: bytes 0..3 are a, 4..7 b; bit 3 of a selector replicates the sign of the byte. Here byte 0: fe,
# 1: 01, 2: 80, 3: 7f, 4: 10, 5: 5a, 6: c3, 7: 44.
PRMT = "0x7f8001fe 0x44c35a10 "
case("prmt.b32", "b32 b32 b32 -> b32", "\n".join(PRMT + row for row in """
0x3210 -> 0x7f8001fe
0x7654 -> 0x44c35a10
0x0123 -> 0xfe01807f
0x7604 -> 0x44c3fe10
0x1054 -> 0x01fe5a10
0x2104 -> 0x8001fe10
0xba98 -> 0x00ff00ff
0xfedc -> 0x00ff0000
0x8888 -> 0xffffffff
0x3e10 -> 0x7fff01fe
0xffff3210 -> 0x7f8001fe
0x0000 -> 0xfefefefe""".strip().splitlines()))
case("prmt.b32", "b32 b32 -> b32", PRMT + "-> 0x44c3fe10", "prmt.b32 <d0>, <a0>, <a1>, 30212;")  # 0x7604

# --------------------------------------------------------------------------------------- 9.7.8 logic and shifts

for bits in (16, 32, 64):
    h = bits // 4
    x, y = ("0x" + (s * 8)[:h] for s in ("0f35", "5533"))
    sig = "b%d b%d -> b%d" % (bits, bits, bits)
    results = {"and": "0531", "or": "5f37", "xor": "5a06"}
    for name, result in results.items():
        case("%s.b%d" % (name, bits), sig, """
            %s %s -> 0x%s
            -1 0 -> %s
        """ % (x, y, (result * 8)[:h], "0" if name == "and" else "-1"))
case("not.b32", "b32 -> b32", "0 -> -1\n0x0f350f35 -> 0xf0caf0ca")
case("not.b64", "b64 -> b64", "0 -> -1\n0x0f350f350f350f35 -> 0xf0caf0caf0caf0ca")
case("and.pred", "pred pred -> pred", "0 0 -> 0\n0 1 -> 0\n1 0 -> 0\n1 1 -> 1")
case("or.pred", "pred pred -> pred", "0 0 -> 0\n0 1 -> 1\n1 0 -> 1\n1 1 -> 1")
case("xor.pred", "pred pred -> pred", "0 0 -> 0\n0 1 -> 1\n1 0 -> 1\n1 1 -> 0")
case("not.pred", "pred -> pred", "0 -> 1\n1 -> 0")
case("and.b32", "b32 -> b32", "0x12345678 -> 0x12345660", "and.b32 <d0>, <a0>, -32;")

# shl and shr: the amount is an u32 for every type; above the width it counts as the width. .s fills with the sign.
case("shl.b16", "b16 u32 -> b16", """
    1 15 -> 0x8000
    1 16 -> 0
    0xffff 8 -> 0xff00
    0xffff 0 -> 0xffff
    0xffff 0x10001 -> 0
    1 0xffffffff -> 0
""")
case("shl.b32", "b32 u32 -> b32", """
    1 31 -> 0x80000000
    1 32 -> 0
    0xffffffff 0 -> 0xffffffff
    0xffffffff 33 -> 0
    5 0xffffffff -> 0
    0xffffffff 4 -> 0xfffffff0
""")
case("shl.b64", "b64 u32 -> b64", "1 63 -> 2^63\n1 64 -> 0\n1 32 -> 2^32\n-1 65 -> 0\n5 0xffffffff -> 0\n-1 0 -> -1")
case("shr.u16", "u16 u32 -> u16", """
    0x8000 15 -> 1
    0x8000 16 -> 0
    0xffff 8 -> 0xff
    0xffff 0x10001 -> 0
    0xffff 0xffffffff -> 0
""")
case("shr.u32", "u32 u32 -> u32", """
    0x80000000 31 -> 1
    0x80000000 32 -> 0
    0xffffffff 4 -> 0x0fffffff
    0xffffffff 33 -> 0
    5 0xffffffff -> 0
    -1 0 -> -1
""")
case("shr.u64", "u64 u32 -> u64", "2^63 63 -> 1\n2^63 64 -> 0\n-1 32 -> 0xffffffff\n-1 65 -> 0\n5 0xffffffff -> 0\n-1 0 -> -1")
case("shr.s32", "s32 u32 -> s32", """
    -8 1 -> -4
    -8 31 -> -1
    -8 32 -> -1
    -8 0xffffffff -> -1
    8 32 -> 0
    0x7fffffff 30 -> 1
    -7 1 -> -4
""")
case("shr.s64", "s64 u32 -> s64", """
    -8 1 -> -4
    -8 63 -> -1
    -8 64 -> -1
    -8 0xffffffff -> -1
    8 64 -> 0
    2^62 62 -> 1
    -2^40 8 -> -2^32
""")

# ------------------------------------------------------------------- 9.7.3 floating point, rounded to nearest even

SUM = """
    1 2 -> 3
    1 2^-24 -> 1                     # tie, to even
    1+2^-23 2^-24 -> 1+2^-22         # tie, to even
    1 2^-24+2^-47 -> 1+2^-23
    2^-126 -2^-149 -> 2^-126-2^-149  # subnormal numbers are supported without .ftz
    2^-149 2^-149 -> 2^-148
    MAX MAX -> inf
    MAX 2^102 -> MAX                 # less than half a unit
    MAX 2^103 -> inf                 # a tie: to the even one, which is beyond
    inf -inf -> nan
    inf -1 -> inf
    nan 1 -> nan
    1 nan -> nan
    0 -0 -> 0
    -0 -0 -> -0
    1 -1 -> 0
""".replace("MAX", MAX)
case("add.f32", "f32 f32 -> f32", SUM)
case("add.f32", "f32 -> f32", "1 -> 1\n-0 -> 0\n2^-149 -> 2^-149", "add.f32 <d0>, <a0>, 0f00000000;")
DIFFERENCE = "\n".join(" ".join([a, {"-inf": "inf", "inf": "-inf", "nan": "nan", "-0": "0", "0": "-0"}.get(b,
    b[1:] if b[0] == "-" else
                                 "-(%s)" % b)]) + " -> " + out for a, b, _,
                                     out in (row.split("#")[0].split() for row in SUM.strip().splitlines()))
for form in ("sub.f32", "sub.rn.f32"):
    case(form, "f32 f32 -> f32", DIFFERENCE)
for form in ("mul.f32", "mul.rn.f32"):
    case(form, "f32 f32 -> f32", """
        1.5 -2 -> -3
        1+2^-23 1+2^-23 -> 1+2^-22
        1+2^-12 1+2^-12 -> 1+2^-11   # 2^-24 beyond: a tie, to even
        2^-75 2^-75 -> 0             # half of the smallest: to even
        2^-75 1.5*2^-75 -> 2^-149
        2^-149 -0.5 -> -0
        3*2^-149 0.5 -> 2^-148       # 1.5 units
        2^-126 0.5 -> 2^-127
        2^100 2^100 -> inf
        2^100 -2^100 -> -inf
        MAX 1+2^-23 -> inf
        0 inf -> nan
        -0 5 -> -0
        nan 0 -> nan
        -inf -inf -> inf
    """.replace("MAX", MAX))
case("mul.f32", "f32 -> f32", "1 -> 1.5\n-2 -> -3\n2^-149 -> 2^-148", "mul.f32 <d0>, <a0>, 0f3FC00000;")  # 1.5 units tie to 2

case("fma.rn.f32", "f32 f32 f32 -> f32", """
    1+2^-12 1+2^-12 -1-2^-11 -> 2^-24  # the product is not rounded
    1+2^-23 1-2^-23 -1 -> -2^-46
    2^-75 2^-75 2^-149 -> 2^-148     # 1.5 units, tie to even
    2^-149 2^-149 1 -> 1
    2^100 2^100 -inf -> -inf
    2^100 2^100 -MAX -> inf
    2^127 2 -2^127 -> 2^127          # no overflow between
    0 inf 1 -> nan
    inf 1 -inf -> nan
    nan 1 1 -> nan
    1 1 -1 -> 0
    -0 1 -0 -> -0
    -0 1 0 -> 0
    1 1 2^-24 -> 1
    1 1 -2^-25 -> 1                  # half of the unit below 1: to even
    1 1 -2^-25-2^-48 -> 1-2^-24
""".replace("MAX", MAX))
case("fma.rn.f32", "f32 f32 f32 -> f32", """
    TENTH TENTH TENTH -> =
    3 11184811*2^-25 -1 -> =
    1+2^-20 1+2^-19 2^-60 -> =
""".replace("TENTH", "13421773*2^-27"),
     exact=lambda a, b, c: a * b + c)
# 9.7.3.6 .rm: rounds towards minus infinity
case("fma.rm.f32", "f32 f32 f32 -> f32", """
    1 1 2^-30 -> 1
    1 1 2^-24 -> 1
    1 1 -2^-30 -> 1-2^-24
    -1 1 -2^-30 -> -1-2^-23
    -1 1 2^-30 -> -1
    -1 1 2^-24+2^-30 -> -1+2^-24
    1 1 -1 -> -0                     # an exact zero of unlike signs is -0 in this mode (IEEE 754, 6.3)
    2^127 2 0 -> MAX
    -2^127 2 0 -> -inf
    2^-149 0.5 0 -> 0
    2^-149 -0.5 0 -> -2^-149
    1.5 1.5 0 -> 2.25
    inf 1 0 -> inf
    nan 1 0 -> nan
    1.5*2^22 1 0.5 -> 1.5*2^22+0.5
    252 0.75 12582913 -> 12583102    # 12583102 exactly
    252 0.3 12582913 -> 12582988     # 75.6 of units of 1
""".replace("MAX", MAX).replace("0.3", "10066330*2^-25"))

case("div.rn.f32", "f32 f32 -> f32", """
    1 3 -> 0x3eaaaaab
    2 -3 -> 0xbf2aaaab
    2^-149 2 -> 0                # half of the smallest: to even
    3*2^-149 2 -> 2^-148
    2^-126 2 -> 2^-127
    2^127 0.25 -> inf
    1 2^127 -> 2^-127
    1 0 -> inf
    -1 0 -> -inf
    1 -0 -> -inf
    0 0 -> nan
    inf inf -> nan
    1 -inf -> -0
    -inf 2 -> -inf
    nan 1 -> nan
    0 5 -> 0
    1 10 -> =
    355 113 -> =
    1+2^-23 1-2^-24 -> =
    2^-140 3*2^-149 -> =
""", exact=lambda a, b: a / b)
case("rcp.rn.f32", "f32 -> f32", """
    3 -> 0x3eaaaaab
    -2 -> -0.5
    2^127 -> 2^-127
    2^-127 -> 2^127
    2^-128 -> inf                    # 2^128
    2^-149 -> inf
    0 -> inf
    -0 -> -inf
    inf -> 0
    -inf -> -0
    nan -> nan
    1.5 -> =
    1+2^-23 -> =
    MAX -> =
    7 -> =
""".replace("MAX", MAX), exact=lambda a: 1 / a)
case("sqrt.rn.f32", "f32 -> f32", """
    4 -> 2
    2 -> 0x3fb504f3
    2^-148 -> 2^-74
    -0 -> -0
    0 -> 0
    -1 -> nan
    -2^-149 -> nan
    inf -> inf
    -inf -> nan
    nan -> nan
    3 -> =
    2^-149 -> =
    1-2^-24 -> =
    MAX -> =
    10 -> =
""".replace("MAX", MAX), exact=root)

case("add.f64", "f64 f64 -> f64", """
    1 2 -> 3
    1 2^-53 -> 1
    1+2^-52 2^-53 -> 1+2^-51
    2^-1074 2^-1074 -> 2^-1073
    inf -inf -> nan
    nan 1 -> nan
    1 -1 -> 0
    -0 -0 -> -0
""")
case("sub.f64", "f64 f64 -> f64", """
    1 2 -> -1
    1 2^-54 -> 1
    1 2^-53 -> 1-2^-53
    2^-1022 2^-1074 -> 2^-1022-2^-1074
    inf inf -> nan
    0 0 -> 0
    -0 0 -> -0
""")
case("mul.f64", "f64 f64 -> f64", """
    1.5 -2 -> -3
    1+2^-52 1+2^-52 -> 1+2^-51
    2^-600 2^-500 -> 0
    2^600 2^500 -> inf
    0 inf -> nan
    -0 5 -> -0
    2^-537 2^-537 -> 2^-1074
""")
case("fma.rn.f64", "f64 f64 f64 -> f64", """
    1+2^-27 1+2^-27 -1-2^-26 -> 2^-54
    1 1 -1 -> 0
    2^1023 2 -2^1023 -> 2^1023
    0 inf 1 -> nan
    2^-537 2^-537 2^-1074 -> 2^-1073
    -0 1 -0 -> -0
""")
case("div.rn.f64", "f64 f64 -> f64", """
    1 3 -> 0x3fd5555555555555
    2 3 -> 0x3fe5555555555555
    1 0 -> inf
    0 0 -> nan
    1 -inf -> -0
    1 10 -> =
    2^-1074 2 -> 0
""",
     exact=lambda a, b: a / b)
case("sqrt.rn.f64", "f64 -> f64", """
    4 -> 2
    2 -> 0x3ff6a09e667f3bcd
    -1 -> nan
    -0 -> -0
    inf -> inf
    3 -> =
    2^-1074 -> 2^-537
""", exact=root)

# 9.7.3.9 to 9.7.3.12: the sign bit; "+0.0 > -0.0"; the operand that is a number
case("abs.f32", "f32 -> f32", "-1 -> 1\n1 -> 1\n-0 -> 0\n-inf -> inf\n-2^-149 -> 2^-149\n0xffc00000 -> nan")
case("neg.f32", "f32 -> f32", "-1 -> 1\n1 -> -1\n0 -> -0\n-0 -> 0\ninf -> -inf\n2^-149 -> -2^-149\nnan -> nan")
case("max.f32", "f32 f32 -> f32", """
    1 2 -> 2
    -1 -2 -> -1
    -0 0 -> 0
    0 -0 -> 0
    -0 -0 -> -0
    nan 1 -> 1
    1 nan -> 1
    -inf nan -> -inf
    nan nan -> nan
    inf 1 -> inf
    2^-149 0 -> 2^-149
    -2^-149 -0 -> -0
""")
case("max.f32", "f32 -> f32", "-1 -> 0\n2 -> 2\nnan -> 0\n-0 -> 0", "max.f32 <d0>, <a0>, 0f00000000;")
# 9.7.3.2 copysign d, a, b: "copies sign bit of a into value of b"
case("copysign.f32", "f32 f32 -> f32", """
    -1 3 -> -3
    1 -3 -> 3
    -0 2.5 -> -2.5
    0 -inf -> inf
    0xffc00000 1 -> -1
    -2 0 -> -0
    2^-149 -2^-149 -> 2^-149
""")

# ------------------------------------------------------------------------ 9.7.3 approximations, with their bounds

# 9.7.3.21: 2 ulp from the correctly rounded result over the full range; .ftz flushes subnormal inputs and results
EX2 = """
    -inf -> 0
    -0 -> 1
    0 -> 1
    inf -> inf
    nan -> nan
    3 -> 8
    -1 -> 0.5
    0.5 -> sqrt(2)
    -0.5 -> sqrt(0.5)
    0.25 -> sqrt(sqrt(2))
    -10.5 -> sqrt(2^-21)
    127 -> 2^127
    128 -> inf
    1000 -> inf
    -126 -> 2^-126
    -1000 -> 0
    127.75 -> 2^127*sqrt(sqrt(8))
    2^-149 -> 1
    -2^-149 -> 1
"""
case("ex2.approx.f32", "f32 -> f32", EX2 + "-127 -> 2^-127\n-126.5 -> sqrt(2^-253)\n-140 -> 2^-140", ulps=2)
case("ex2.approx.ftz.f32", "f32 -> f32", EX2 + "-127 -> 0\n-126.5 -> 0\n-140 -> 0", ulps=2)
# 9.7.3.16: relative error 2^-22.9
case("rsqrt.approx.f32", "f32 -> f32", """
    -inf -> nan
    -1 -> nan
    -0 -> -inf
    0 -> inf
    inf -> 0
    nan -> nan
    4 -> 0.5
    1 -> 1
    2 -> sqrt(0.5)
    3 -> sqrt(3)/3
    2^-126 -> 2^63
    2^-148 -> 2^74
    2^-149 -> sqrt(2^149)
    2^126 -> 2^-63
    1.5*2^127 -> sqrt(2^-126/3)
""", relative=2.0 ** -22.9)
# 9.7.3.8: d = a * (1/b): 2 ulp for |b| in [2^-126, 2^126]; above, "if a is infinity, returns NaN, otherwise it returns a
# sign-preserving zero". Of b = 0, inf, NaN follows from d = a * (1/b).
case("div.approx.f32", "f32 f32 -> f32", """
    1 3 -> 1/3
    1 -3 -> -1/3
    355 113 -> 355/113
    10 4 -> 2.5
    3 2^126 -> 3*2^-126
    3 2^-126 -> 3*2^126
    1 2^127 -> 0
    -1 2^127 -> -0
    1 -2^127 -> -0
    -1 -2^127 -> 0
    MAX MAX -> 0
    inf 2^127 -> nan
    -inf -1.5*2^127 -> nan
    1 0 -> inf
    -1 0 -> -inf
    0 0 -> nan
    1 inf -> 0
    inf inf -> nan
    inf 2 -> inf
    nan 1 -> nan
    1 nan -> nan
    0 5 -> 0
    2^127 0.25 -> inf
""".replace("MAX", MAX), ulps=2)

# ------------------------------------------------------------------------------------------ 9.7.6 comparison, selp

# Table 23 and 9.7.6.2: eq ne lt le gt ge are false if an operand is NaN, equ neu ltu leu gtu geu then true; num: both are
# numbers. A letter a case below: 1 or 0 for each pair.
PAIRS = ["1 2", "2 1", "1 1", "0 -0", "-0 0", "nan 1", "1 nan", "nan nan", "inf inf", "-inf inf", "2^-149 0", "0 2^-149",
    "-1 1", "-1 -2"]
COMPARE = {
    "eq": "00111000100000",
    "ne": "11000000011111",
    "lt": "10000000010110",
    "le": "10111000110110",
    "gt": "01000000001001",
    "ge": "01111000101001",
    "equ": "00111111100000",
    "neu": "11000111011111",
    "ltu": "10000111010110",
    "leu": "10111111110110",
    "gtu": "01000111001001",
    "geu": "01111111101001",
    "num": "11111000111111",
}


def compare(form, type_, pairs, results):
    case(form, "%s %s -> pred" % (type_, type_), "\n".join("%s -> %s" % pair for pair in zip(pairs, results)))


for how in "eq ne lt le gt equ neu ltu leu geu num".split():
    compare("setp.%s.f32" % how, "f32", PAIRS, COMPARE[how])
compare("setp.leu.f64", "f64", [p.replace("149", "1074") for p in PAIRS], COMPARE["leu"])
case("setp.geu.f32", "f32 -> pred", "inf -> 1\nnan -> 1\n-inf -> 0\n%s -> 0" % MAX, "setp.geu.f32 <d0>, <a0>, 0f7F800000;")

INTEGERS = ["5 5", "4 5", "5 4", "0 -1", "-1 0", "LOW HIGH", "HIGH LOW", "LOW LOW"]
SIGNED = {"eq": "10000001", "ne": "01111110", "lt": "01001100", "le": "11001101", "gt": "00110010", "ge": "10110011"}
UNSIGNED = {"eq": "10000001", "ne": "01111110", "lt": "01010010", "le": "11010011", "gt": "00101100", "ge": "10101101"}
for form in """eq.b16 eq.s16 ne.s16 lt.u16 gt.u16 eq.b32 eq.s32 ne.s32 lt.s32 le.s32 gt.s32 ge.s32 ne.u32 lt.u32 gt.u32 ge.u32
               eq.b64 eq.s64 ne.s64 lt.s64 le.s64 gt.s64 ge.s64 lt.u64 le.u64 gt.u64""".split():
    how, type_ = form.split(".")
    low = "2^%d" % (int(type_[1:]) - 1)
    pairs = [p.replace("LOW", low).replace("HIGH", low + "-1") for p in INTEGERS]
    compare("setp." + form, type_, pairs, (SIGNED if type_[0] == "s" else UNSIGNED)[how])
case("setp.gt.s32", "s32 -> pred", "-2 -> 0\n-1 -> 0\n0 -> 1\n0x80000000 -> 0", "setp.gt.s32 <d0>, <a0>, -1;")
case("setp.gt.u32", "u32 -> pred", "0x7f800000 -> 0\n0x7f800001 -> 1\n0x80000000 -> 1", "setp.gt.u32 <d0>, <a0>, 2139095040;")

each("selp.TYPE", "b16 u16", "TYPE TYPE pred -> TYPE", "0x1234 0xfedc 1 -> 0x1234\n0x1234 0xfedc 0 -> 0xfedc")
each("selp.TYPE", "b32 u32 s32", "TYPE TYPE pred -> TYPE",
    "0x12345678 0xfedcba98 1 -> 0x12345678\n0x12345678 0xfedcba98 0 -> 0xfedcba98")
each("selp.TYPE", "b64 u64", "TYPE TYPE pred -> TYPE",
    "0x123456789abcdef0 -2 1 -> 0x123456789abcdef0\n0x123456789abcdef0 -2 0 -> -2")
case("selp.f32", "x32 x32 pred -> x32", "1 -2 1 -> 1\n1 -2 0 -> -2\n0x7fc12345 -0 1 -> 0x7fc12345\n1 -0 0 -> -0")
case("selp.f64", "x64 x64 pred -> x64", """
    1 -2 1 -> 1
    1 -2 0 -> -2
    0x7ff8000012345678 -0 1 -> 0x7ff8000012345678
    1 -0 0 -> -0
""")
case("selp.s32", "pred -> s32", "1 -> -1\n0 -> 0", "selp.s32 <d0>, -1, 0, <a0>;")
case("selp.b16", "pred -> b16", "1 -> 0x7fff\n0 -> 0xff80", "selp.b16 <d0>, 32767, -128, <a0>;")
case("selp.f32", "f32 pred -> f32", "2 1 -> 2\n2 0 -> 0", "selp.f32 <d0>, <a0>, 0f00000000, <a1>;")

# -------------------------------------------------------------------------------------------------- 9.7.9.2 mov

case("mov.b16", "b16 -> b16", "0xfedc -> 0xfedc")
case("mov.u16", "u16 -> u16", "0xfedc -> 0xfedc")
case("mov.u16", "u16 -> u16", "0 -> 0xff80", "mov.u16 <d0>, -128;")
case("mov.u32", "u32 -> u32", "0xfedcba98 -> 0xfedcba98")
case("mov.u32", "u32 -> u32 u32", "0 -> -1 0x80000000", "mov.u32 <d0>, -1;\nmov.u32 <d1>, -2147483648;")
case("mov.u64", "u64 -> u64", "0xfedcba9876543210 -> 0xfedcba9876543210")
case("mov.u64", "u64 -> u64", "0 -> -4", "mov.u64 <d0>, -4;")
case("mov.f32", "x32 -> x32", "-0 -> -0\n0x7fc12345 -> 0x7fc12345\n2^-149 -> 2^-149")
case("mov.f32", "f32 -> x32 x32", "0 -> 0xff800000 0x00000001", "mov.f32 <d0>, 0fFF800000;\nmov.f32 <d1>, 0f00000001;")
case("mov.f64", "x64 -> x64", "-0 -> -0\n0x7ff8000012345678 -> 0x7ff8000012345678")
case("mov.f64", "f64 -> x64", "0 -> -1.5", "mov.f64 <d0>, 0dBFF8000000000000;")
case("mov.pred", "pred -> pred", "0 -> 0\n1 -> 1")
case("mov.pred", "pred -> pred pred", "0 -> 0 1\n1 -> 0 1", "mov.pred <d0>, 0;\nmov.pred <d1>, -1;")
case("mov.b32", "x32 -> b32", "-2 -> 0xc0000000\n0x7fc12345 -> 0x7fc12345")
case("mov.b32", "b32 -> x32", "0xc0000000 -> -2\n0x00000001 -> 2^-149")
# .x, the first of a vector, is the least significant
case("mov.b32 pack 2", "b16 b16 -> b32", "0x1234 0xfedc -> 0xfedc1234", "mov.b32 <d0>, {<a0>, <a1>};")
case("mov.b32 pack 2", "b16 -> x32", "0x3fc0 -> 1.5\n0xffc1 -> 0xffc10000", "mov.b32 <d0>, {0, <a0>};")
case("mov.b32 unpack 2", "b32 -> b16 b16", "0xfedc1234 -> 0x1234 0xfedc", "mov.b32 {<d0>, <d1>}, <a0>;")
case("mov.b32 unpack 2", "x32 -> b16 b16", "-2.5 -> 0 0xc020", "mov.b32 {<d0>, <d1>}, <a0>;")
case("mov.b64", "x64 -> b64", "-1.5 -> 0xbff8000000000000\n0x7ff8000012345678 -> 0x7ff8000012345678")
case("mov.b64", "b64 -> x64", "0xbff8000000000000 -> -1.5\n1 -> 2^-1074")
case("mov.b64", "u32 -> b64 b64", "0 -> 0 -4", "mov.b64 <d0>, 0;\nmov.b64 <d1>, -4;")
case("mov.b32", "u32 -> b32 b32", "0 -> 0 -4", "mov.b32 <d0>, 0;\nmov.b32 <d1>, -4;")
case("mov.b64 pack 2", "b32 b32 -> b64", "0x11223344 0xffeeddcc -> 0xffeeddcc11223344", "mov.b64 <d0>, {<a0>, <a1>};")
case("mov.b64 pack 2", "b32 b32 -> x64", "0 0xbff80000 -> -1.5", "mov.b64 <d0>, {<a0>, <a1>};")
case("mov.b64 unpack 2", "b64 -> b32 b32", "0xffeeddcc11223344 -> 0x11223344 0xffeeddcc", "mov.b64 {<d0>, <d1>}, <a0>;")
case("mov.b64 unpack 2", "x64 -> b32 b32", "-1.5 -> 0 0xbff80000", "mov.b64 {<d0>, <d1>}, <a0>;")
case("mov.b64 unpack 2", "b64 -> b32", "0xffeeddcc11223344 -> 0xffeeddcc", "{\n.reg .b32 tmp;\nmov.b64 {tmp, <d0>}, <a0>;\n}")

# 10: special registers, of one block of 32 threads
LANE_ROWS = [(["0"], [str(lane)]) for lane in LANES]
case("mov.u32 %tid.x", "u32 -> u32", LANE_ROWS, "mov.u32 <d0>, %tid.x;")
for special, number in (("ctaid.x", 0), ("ctaid.y", 0), ("ntid.x", 32), ("nctaid.x", 1), ("nctaid.y", 1)):
    case("mov.u32 %" + special, "u32 -> u32", "7 -> %d" % number, "mov.u32 <d0>, %%%s;" % special)
# Names: addresses in the variable's own state space. The .local depot is how nvcc addresses its arrays.
SWAP = [(["%d" % (100 + lane)], ["%d" % (131 - lane)]) for lane in LANES]
EXCHANGE = """
    shl.b32 %%r6, <tid>, 2;
    mov.u32 %%r7, <%s>;
    add.s32 %%r8, %%r7, %%r6;
    st.shared.u32 [%%r8], <a0>;
    bar.sync 0;
    sub.s32 %%r9, %%r7, %%r6;
    ld.shared.u32 <d0>, [%%r9+124];
"""
case("mov.u32 address", "u32 -> u32", SWAP, EXCHANGE % "shared", shared=128)
case("mov.u32 address", "u32 -> u32", SWAP, EXCHANGE % "shared", shared=128, module_shared=True)
case("mov.u32 address", "u32 -> u32", SWAP, EXCHANGE % "dynamic")
case("mov.u64 address", "u32 -> u32", "5 -> 5\n0xfedcba98 -> 0xfedcba98", """
    mov.u64 %SPL, <local>;
    add.u64 %rd5, %SPL, 0;
    st.local.u32 [%rd5+8], <a0>;
    ld.local.f32 %f5, [%rd5+8];
    mov.b32 <d0>, %f5;
""", local=16)
case("cvta.to.global.u64", "mem -> u64 u64", "0xfedcba9876543210 -> 0xfedcba9876543210 0",
     "cvta.to.global.u64 %rd5, <in>;\nld.global.u64 <d0>, [%rd5];\nsub.s64 <d1>, %rd5, <in>;")

# ------------------------------------------------------------------------------------------------- 9.7.9.21 cvt

case("cvt.u16.u32", "u32 -> u16", "0x12345678 -> 0x5678\n0xffff8000 -> 0x8000")
case("cvt.u32.u16", "u16 -> u32", "0xfedc -> 0xfedc\n1 -> 1")
case("cvt.u64.u16", "u16 -> u64", "0xfedc -> 0xfedc\n1 -> 1")
case("cvt.u32.u64", "u64 -> u32", "0x123456789abcdef0 -> 0x9abcdef0")
case("cvt.u64.u32", "u32 -> u64", "0xfedcba98 -> 0xfedcba98\n1 -> 1")
case("cvt.s64.s32", "s32 -> s64", "-5 -> -5\n0x80000000 -> -2^31\n0x7fffffff -> 2^31-1")

# .rn; 16777217 = 2^24+1 is a tie, as is 2^40+2^16. One rounding only: 2^60+2^36+1 by way of f64 would become a tie.
case("cvt.rn.f32.s32", "s32 -> f32", """
    0 -> 0
    -1 -> -1
    16777217 -> 16777216
    16777219 -> 16777220
    -16777217 -> -16777216
    0x80000000 -> -2^31
    0x7fffffff -> 2^31
    16777218 -> 16777218
""")
case("cvt.rn.f32.u32", "u32 -> f32", """
    0 -> 0
    16777217 -> 16777216
    16777219 -> 16777220
    0x80000000 -> 2^31
    0xffffffff -> 2^32
    0xffffff7f -> 2^32-2^8
    0xffffff80 -> 2^32
""")
case("cvt.rn.f32.s64", "s64 -> f32", """
    0 -> 0
    -1 -> -1
    2^63-1 -> 2^63
    2^63 -> -2^63
    2^40+2^16 -> 2^40
    2^40+2^16+1 -> 2^40+2^17
    2^40+3*2^16 -> 2^40+2^18
    2^60+2^36+1 -> 2^60+2^37
    -2^60-2^36-1 -> -2^60-2^37
""")
case("cvt.rn.f64.s64", "s64 -> f64", """
    0 -> 0
    -1 -> -1
    2^53+1 -> 2^53
    2^53+3 -> 2^53+4
    -2^53-1 -> -2^53
    2^63-1 -> 2^63
    2^63 -> -2^63
""")
case("cvt.rn.f64.u32", "u32 -> f64", "0 -> 0\n0xffffffff -> 2^32-1\n0x80000000 -> 2^31\n1 -> 1")
case("cvt.f64.f32", "f32 -> f64", "1.5 -> 1.5\n2^-149 -> 2^-149\n-0 -> -0\n-inf -> -inf\nnan -> nan\n%s -> %s" % (MAX, MAX))
case("cvt.rn.f32.f64", "f64 -> f32", """
    1.5 -> 1.5
    1+2^-24 -> 1
    1+2^-24+2^-52 -> 1+2^-23
    1+3*2^-24 -> 1+2^-22
    2^-150 -> 0
    2^-150+2^-200 -> 2^-149
    -2^-151 -> -0
    2^-127+2^-150 -> 2^-127          # tie among subnormal numbers
    2^128-2^103 -> inf               # a tie: to the even one, which is beyond
    2^128-2^103-2^76 -> MAX
    2^200 -> inf
    -inf -> -inf
    nan -> nan
    -0 -> -0
""".replace("MAX", MAX))
# NaN: 0 for .f32 to 32 bits; the range clamps
case("cvt.rzi.s32.f32", "f32 -> s32", """
    1.9 -> 1
    -1.9 -> -1
    -0.5 -> 0
    2^31 -> 2^31-1
    -2^31 -> -2^31
    -2^40 -> -2^31
    2^31-2^7 -> 2^31-2^7
    nan -> 0
    inf -> 2^31-1
    -inf -> -2^31
    2^-149 -> 0
"""
     .replace("1.9", "15938355*2^-23"))
case("cvt.rzi.u32.f32", "f32 -> u32", """
    1.75 -> 1
    -1 -> 0
    -0.5 -> 0
    2^32 -> 2^32-1
    2^32-2^8 -> 2^32-2^8
    2^31 -> 2^31
    nan -> 0
    inf -> 2^32-1
    -inf -> 0
    0.75 -> 0
""")
case("cvt.rni.f32.f32", "f32 -> f32", """
    0.5 -> 0
    1.5 -> 2
    2.5 -> 2
    -0.5 -> -0
    -1.5 -> -2
    -0.25 -> -0
    0.5+2^-24 -> 1
    8388607.5 -> 8388608
    2^23+1 -> 2^23+1
    2^-149 -> 0
    -0 -> -0
    inf -> inf
    -inf -> -inf
    nan -> nan
""")
# .sat: "limits the result to the range [0.0, 1.0]. NaN results are flushed to positive zero"
case("cvt.sat.f32.f32", "f32 -> f32", """
    -1 -> 0
    0.5 -> 0.5
    1 -> 1
    2 -> 1
    1+2^-23 -> 1
    0 -> 0
    inf -> 1
    -inf -> 0
    0x7fc00000 -> 0
    0xffc00000 -> 0
    2^-149 -> 2^-149
    -2^-149 -> 0
""")

case("cvt.f32.f16", "b16 -> f32", """
    0x3c00 -> 1
    0x3c01 -> 1+2^-10
    0x0001 -> 2^-24
    0x83ff -> -2^-14+2^-24
    0x0400 -> 2^-14
    0x7bff -> 65504
    0x7c00 -> inf
    0xfc00 -> -inf
    0x8000 -> -0
    0x7e00 -> nan
    0xfe01 -> nan
""")
case("cvt.f32.bf16", "b16 -> f32", """
    0x3f80 -> 1
    0x3f81 -> 1+2^-7
    0x0001 -> 2^-133
    0x807f -> -2^-126+2^-133
    0x7f7f -> (2-2^-7)*2^127
    0x7f80 -> inf
    0xff80 -> -inf
    0x8000 -> -0
    0x7fc0 -> nan
""", arch=90)
# NaN becomes the canonical NaN 0x7fff. Half a unit of the last place is 2^-11 at 1, 2^-25 among subnormal numbers.
HALF = """
    1 -> 0x3c00
    1+2^-11 -> 0x3c00
    1+3*2^-11 -> 0x3c02
    1+2^-11+2^-23 -> 0x3c01
    65504 -> 0x7bff
    65520-2^-8 -> 0x7bff
    65520 -> 0x7c00
    -2^127 -> 0xfc00
    2^-24 -> 0x0001
    2^-25 -> 0x0000
    2^-25+2^-48 -> 0x0001
    3*2^-25 -> 0x0002
    2^-14-2^-25 -> 0x0400
    2^-14-2^-24 -> 0x03ff
    2^-149 -> 0
    -2^-149 -> 0x8000
    -0 -> 0x8000
    inf -> 0x7c00
    -inf -> 0xfc00
    nan -> 0x7fff
    0xffc00000 -> 0x7fff
"""
BFLOAT = """
    1 -> 0x3f80
    1+2^-8 -> 0x3f80
    1+3*2^-8 -> 0x3f82
    1+2^-8+2^-23 -> 0x3f81
    MAX -> 0x7f80
    (2-2^-7)*2^127 -> 0x7f7f
    (2-2^-8)*2^127-2^104 -> 0x7f7f
    (2-2^-8)*2^127 -> 0x7f80
    -1.5 -> 0xbfc0
    2^-133 -> 0x0001
    2^-134 -> 0x0000
    2^-134+2^-149 -> 0x0001
    3*2^-134 -> 0x0002
    2^-126-2^-134 -> 0x0080
    2^-149 -> 0
    -2^-149 -> 0x8000
    -0 -> 0x8000
    inf -> 0x7f80
    -inf -> 0xff80
    nan -> 0x7fff
    0x7f800001 -> 0x7fff
    0xffffffff -> 0x7fff
""".replace("MAX", MAX)
# "If the input value is NaN, then the result is NaN in the specified destination format": 0x7f. Beyond MAX_NORM: MAX_NORM.
E4M3 = """
    1 -> 0x38
    -1 -> 0xb8
    448 -> 0x7e
    449 -> 0x7e
    464 -> 0x7e
    500 -> 0x7e
    -10000 -> 0xfe
    inf -> 0x7e
    -inf -> 0xfe
    nan -> 0x7f
    0xffc00000 -> 0x7f
    17 -> 0x58                       # 16 or 18
    19 -> 0x5a                       # 18 or 20
    17+2^-19 -> 0x59
    2^-6 -> 0x08
    2^-6-2^-9 -> 0x07
    2^-6-2^-10 -> 0x08               # 7.5 units of 2^-9
    2^-9 -> 0x01
    2^-10 -> 0x00
    2^-10+2^-33 -> 0x01
    3*2^-10 -> 0x02
    -2^-30 -> 0x80
    0 -> 0x00
    -0 -> 0x80
    432 -> 0x7e                      # 416 (0x7d) or 448
"""
E5M2 = """
    1 -> 0x3c
    -1 -> 0xbc
    57344 -> 0x7b
    61439 -> 0x7b
    61440 -> 0x7b
    2^127 -> 0x7b
    -2^20 -> 0xfb
    inf -> 0x7b
    -inf -> 0xfb
    nan -> 0x7f
    0xffc00000 -> 0x7f
    1.125 -> 0x3c                    # 1 or 1.25
    1.375 -> 0x3e                    # 1.25 or 1.5
    1.125+2^-23 -> 0x3d
    2^-14 -> 0x04
    2^-14-2^-17 -> 0x04              # 3.5 units of 2^-16
    3*2^-16 -> 0x03
    2^-16 -> 0x01
    2^-17 -> 0x00
    2^-17+2^-40 -> 0x01
    3*2^-17 -> 0x02
    -2^-30 -> 0x80
    0 -> 0x00
    -0 -> 0x80
"""


def pairs(rows, bits):
    """Rows of a conversion of two: the first operand becomes the upper half. Each input comes as either operand."""
    table = [row.split("#")[0].split("->") for row in rows.strip().splitlines()]
    inputs, codes = [a.strip() for a, _ in table], [int(code, 16) for _, code in table]
    n = len(table)
    return [([inputs[i], inputs[(i + 5) % n]], ["0x%x" % (codes[i] << bits | codes[(i + 5) % n])]) for i in range(n)]


case("cvt.rn.f16.f32", "f32 -> b16", HALF)
case("cvt.rn.bf16.f32", "f32 -> b16", BFLOAT, arch=80)
case("cvt.rn.f16x2.f32", "f32 f32 -> b32", pairs(HALF, 16), arch=80)
case("cvt.rn.bf16x2.f32", "f32 f32 -> b32", pairs(BFLOAT, 16), arch=80)
case("cvt.rn.satfinite.e4m3x2.f32", "f32 f32 -> b16", pairs(E4M3, 8), arch=90)
case("cvt.rn.satfinite.e5m2x2.f32", "f32 f32 -> b16", pairs(E5M2, 8), arch=90)

# --------------------------------------------------------------------------------------- 9.7.9.8 ld, 9.7.9.11 st

# Table 28: a destination wider than the type is zero-extended for .u and .b, sign-extended for .s; st cuts. Memory is little
# endian. The first slot has bytes f0 de bc 9a 78 56 34 12.
M0, M1 = "0x123456789abcdef0", "0xfedcba98c0200000"
MEMORY = M0 + " " + M1
for space in ("ld.global", "ld.global.cs", "ld"):
    case(space + ".u16", "mem mem -> b16 b16", MEMORY + " -> 0xdef0 0x1234",
        "%s.u16 <d0>, [<in>];\n%s.u16 <d1>, [<in>+6];" % (space, space))
case("ld.global.u16", "mem mem -> b32", MEMORY + " -> 0xdef0", "ld.global.u16 <d0>, [<in>];")
for space in ("ld.global", "ld"):
    case(space + ".u8", "mem mem -> b16 b16", MEMORY + " -> 0xf0 0x12", "%s.u8 <d0>, [<in>];\n%s.u8 <d1>, [<in>+7];"
         % (space, space))
case("ld.global.u8", "mem mem -> b32 b32", MEMORY + " -> 0xde 0x20",
    "add.s64 %rd5, <in>, 16;\nld.global.u8 <d0>, [<in>+1];\nld.global.u8 <d1>, [%rd5+-6];")
case("ld.global.v2.u8", "mem mem -> b16 b16", MEMORY + " -> 0xbc 0x9a", "ld.global.v2.u8 {<d0>, <d1>}, [<in>+2];")
for form in ("ld.global.u32", "ld.global.cs.u32"):
    case(form, "mem mem -> u32 u32", MEMORY + " -> 0x9abcdef0 0xfedcba98", "%s <d0>, [<in>];\n%s <d1>, [<in>+12];"
         % (form, form))
case("ld.global.u64", "mem mem -> u64", MEMORY + " -> " + M1, "ld.global.u64 <d0>, [<in>+8];")
for form in ("ld.global.f32", "ld.global.cg.f32", "ld.f32"):
    case(form, "mem mem -> x32 x32", """
        %s -> 0x9abcdef0 -2.5
        0x7fc12345 0 -> 0x7fc12345 0
    """ % MEMORY, "%s <d0>, [<in>];\n%s <d1>, [<in>+8];" % (form, form))
case("ld.global.f64", "mem mem -> x64", """
    0x7ff8000012345678 0xbff8000000000000 -> -1.5
    0 0x7ff8000012345678 -> 0x7ff8000012345678
""", "ld.global.f64 <d0>, [<in>+8];")
case("ld.global.v2.u32", "mem mem -> u32 u32", MEMORY + " -> 0xc0200000 0xfedcba98", "ld.global.v2.u32 {<d0>, <d1>}, [<in>+8];")
case("ld.global.cs.v2.s32", "mem mem -> s32 s32", MEMORY + " -> 0xc0200000 0xfedcba98",
    "ld.global.cs.v2.s32 {<d0>, <d1>}, [<in>+8];")
case("ld.global.v4.u16", "mem mem -> b16 b16 b16 b16", MEMORY + " -> 0 0xc020 0xba98 0xfedc",
    "ld.global.v4.u16 {<d0>, <d1>, <d2>, <d3>}, [<in>+8];")
for form, t in (("ld.global.v4.u32", "u32"), ("ld.global.cs.v4.s32", "s32"), ("ld.v4.u32", "u32"), ("ld.global.v4.f32", "x32")):
    case(form, "mem mem -> %s" % " ".join([t] * 4), MEMORY + " -> 0x9abcdef0 0x12345678 0xc0200000 0xfedcba98",
        form + " {<d0>, <d1>, <d2>, <d3>}, [<in>];")
# A vector's address may be one of its destinations.
case("ld.global.v2.u32", "mem mem -> u64", MEMORY + " -> 0x123456789abcdef0", """
    mov.u64 %rd5, <in>;
    ld.global.v2.u32 {%r6, %r7}, [%rd5];
    mov.b64 <d0>, {%r6, %r7};
""")

# st: bytes that are not written keep 0xa5
for space in ("st.global", "st.global.cs", "st"):
    case(space + ".u16", "u16 -> mem", "0xfedc -> 0xa5a5fedca5a5a5a5", space + ".u16 [<out>+4], <a0>;")
case("st.global.u8", "u32 -> mem", "0x12345678 -> 0xa5a5a5a5a5a578a5", "st.global.u8 [<out>+1], <a0>;")
case("st.global.u8", "u16 -> mem", "0xfedc -> 0xdca5a5a5a5a5a5a5", "st.global.u8 [<out>+7], <a0>;")
case("st.u8", "u16 -> mem", "0xfedc -> 0xa5a5a5a5a5a5a5dc", "st.u8 [<out>], <a0>;")
for form in ("st.global.u32", "st.global.cs.u32"):
    case(form, "u32 -> mem", "0x12345678 -> 0x12345678a5a5a5a5", form + " [<out>+4], <a0>;")
for form in ("st.global.f32", "st.f32"):
    case(form, "x32 -> mem", "-2.5 -> 0xa5a5a5a5c0200000\n0x7fc12345 -> 0xa5a5a5a57fc12345", form + " [<out>], <a0>;")
case("st.global.f64", "x64 -> mem", """
    -1.5 -> 0xbff8000000000000
    0x7ff8000012345678 -> 0x7ff8000012345678
""", "st.global.f64 [<out>], <a0>;")
case("st.global.u64", "u64 -> mem", "0x123456789abcdef0 -> 0x123456789abcdef0", "st.global.u64 [<out>], <a0>;")
for form, t in (("st.global.v2.u32", "u32"), ("st.global.cs.v2.s32", "s32")):
    case(form, "%s %s -> mem mem" % (t, t), "0x11223344 0xffeeddcc -> 0xa5a5a5a5a5a5a5a5 0xffeeddcc11223344",
        form + " [<out>+8], {<a0>, <a1>};")
case("st.global.v4.u16", "u16 u16 u16 u16 -> mem mem", "1 0xfffe 3 4 -> 0x00040003fffe0001 0xa5a5a5a5a5a5a5a5",
    "st.global.v4.u16 [<out>], {<a0>, <a1>, <a2>, <a3>};")
for form, t in (("st.global.v4.u32", "u32"), ("st.global.cs.v4.s32", "s32"), ("st.global.v4.f32", "x32")):
    case(form, "%s %s %s %s -> mem mem" % (t, t, t, t),
        "0x11223344 0xffeeddcc 0x7fc12345 0x80000000 -> 0xffeeddcc11223344 0x800000007fc12345",
         form + " [<out>], {<a0>, <a1>, <a2>, <a3>};")

# .shared, 64 bytes for each lane
MINE = "shl.b32 %r6, <tid>, 6;\nmov.u32 %r7, <shared>;\nadd.s32 %r5, %r7, %r6;\n"
FILLED = MINE + "ld.global.v4.u32 {%r6, %r7, %r8, %r9}, [<in>];\nst.shared.v4.u32 [%r5], {%r6, %r7, %r8, %r9};\n"
for form, signature, rows, body in (
    ("ld.shared.u8", "b16 b16", "0xde 0xfe", "ld.shared.u8 <d0>, [%r5+1];\nld.shared.u8 <d1>, [%r5+15];"),
    ("ld.shared.s32", "s64 s64", "-1698898192 0x12345678", "ld.shared.s32 <d0>, [%r5];\nld.shared.s32 <d1>, [%r5+4];"),
        # 0x9abcdef0
    ("ld.shared.u32", "u32 u32", "0x12345678 0xfedcba98",
        "ld.shared.u32 <d0>, [%r5+4];\nadd.s32 %r5, %r5, 64;\nld.shared.u32 <d1>, [%r5+-52];"),
    ("ld.shared.f32", "x32", "-2.5", "ld.shared.f32 <d0>, [%r5+8];"),
    ("ld.shared.f64", "x64", M0, "ld.shared.f64 <d0>, [%r5];"),
    ("ld.shared.v2.f32", "x32 x32", "-2.5 0xfedcba98", "ld.shared.v2.f32 {<d0>, <d1>}, [%r5+8];"),
    ("ld.shared.v2.u32", "u32 u32", "0xc0200000 0xfedcba98", "ld.shared.v2.u32 {<d0>, <d1>}, [%r5+8];"),
    ("ld.shared.v4.f32", "x32 x32 x32 x32", "0x9abcdef0 0x12345678 -2.5 0xfedcba98",
        "ld.shared.v4.f32 {<d0>, <d1>, <d2>, <d3>}, [%r5];"),
    ("ld.shared.v4.u32", "u32 u32 u32 u32", "0x9abcdef0 0x12345678 0xc0200000 0xfedcba98",
        "ld.shared.v4.u32 {<d0>, <d1>, <d2>, <d3>}, [%r5];"),
):
    case(form, "mem mem -> " + signature, MEMORY + " -> " + rows, FILLED + body, shared=2048)
EMPTY = MINE + "mov.u32 %r6, 0;\nst.shared.v4.u32 [%r5], {%r6, %r6, %r6, %r6};\n"
READ = "\nld.shared.v4.u32 {<d0>, <d1>, <d2>, <d3>}, [%r5];"
for form, signature, rows, body in (
    ("st.shared.u8", "u16", "0xfedc -> 0 0xdc00 0 0", "st.shared.u8 [%r5+5], <a0>;"),
    ("st.shared.u32", "u32", "0xfedcba98 -> 0 0 0xfedcba98 0", "st.shared.u32 [%r5+8], <a0>;"),
    ("st.shared.f32", "x32", "0x7fc12345 -> 0 0x7fc12345 0 0", "st.shared.f32 [%r5+4], <a0>;"),
    ("st.shared.f64", "x64", "-1.5 -> 0 0 0 0xbff80000", "st.shared.f64 [%r5+8], <a0>;"),
    ("st.shared.v2.f32", "x32 x32", "-2.5 1 -> 0 0 0xc0200000 0x3f800000", "st.shared.v2.f32 [%r5+8], {<a0>, <a1>};"),
    ("st.shared.v2.u32", "u32 u32", "7 8 -> 7 8 0 0", "st.shared.v2.u32 [%r5], {<a0>, <a1>};"),
    ("st.shared.v4.f32", "x32 x32 x32 x32", "-2.5 1 0 0x7fc12345 -> 0xc0200000 0x3f800000 0 0x7fc12345",
        "st.shared.v4.f32 [%r5], {<a0>, <a1>, <a2>, <a3>};"),
    ("st.shared.v4.u32", "u32 u32 u32 u32", "1 2 3 4 -> 1 2 3 4",
        "add.s32 %r7, %r5, 24576;\nst.shared.v4.u32 [%r7+-24576], {<a0>, <a1>, <a2>, <a3>};"),
):
    case(form, signature + " -> u32 u32 u32 u32", rows, EMPTY + body + READ, shared=2048)
# Direct addresses of shared variables: one word that lane 5 writes.
case("st.shared.u32", "u32 -> u32", [([str(lane)], ["5"]) for lane in LANES],
     "setp.eq.s32 %p5, <tid>, 5;\n@%p5 st.shared.u32 [<shared>+4], <a0>;\nbar.sync 0;\nld.shared.u32 <d0>, [<shared>+4];",
         shared=16)

# .local: memory of each thread's own
DEPOT = "mov.u64 %SPL, <local>;\nadd.u64 %rd5, %SPL, 16;\n"
LOCAL_ROWS = [([str(4 * lane + i) for i in range(4)], [str(4 * lane + i) for i in range(4)]) for lane in LANES]
FOUR = "{%f6, %f7, %f8, %f9}"
TO_FLOATS = "mov.b32 %f6, <a0>;\nmov.b32 %f7, <a1>;\nmov.b32 %f8, <a2>;\nmov.b32 %f9, <a3>;\n"
TO_WORDS = "\nmov.b32 <d0>, %f6;\nmov.b32 <d1>, %f7;\nmov.b32 <d2>, %f8;\nmov.b32 <d3>, %f9;"
CLEAR = "mov.f32 %f6, 0f00000000;\nmov.f32 %f7, %f6;\nmov.f32 %f8, %f6;\nmov.f32 %f9, %f6;\nbar.sync 0;\n"
EACH = "\n".join("ld.local.f32 %%f%d, [%%rd5+%d];" % (6 + i, 4 * i) for i in range(4))
FOUR_WORDS = "u32 u32 u32 u32 -> u32 u32 u32 u32"
case("st.local.v4.f32", FOUR_WORDS, LOCAL_ROWS,
    DEPOT + TO_FLOATS + "st.local.v4.f32 [%rd5], " + FOUR + ";\n" + CLEAR + EACH + TO_WORDS, local=64)
case("ld.local.f32", FOUR_WORDS, LOCAL_ROWS,
    DEPOT + TO_FLOATS + "st.local.v4.f32 [%rd5], " + FOUR + ";\n" + CLEAR + EACH + TO_WORDS, local=64)
case("ld.local.v4.f32", FOUR_WORDS, LOCAL_ROWS,
    DEPOT + TO_FLOATS + "st.local.v4.f32 [%rd5], " + FOUR + ";\n" + CLEAR + "ld.local.v4.f32 " + FOUR + ", [%rd5];" + TO_WORDS,
        local=64)
case("st.local.v2.f32", FOUR_WORDS, LOCAL_ROWS,
     DEPOT + TO_FLOATS + "st.local.v2.f32 [%rd5], {%f6, %f7};\nst.local.v2.f32 [%rd5+8], {%f8, %f9};\n" + CLEAR + EACH
     + TO_WORDS, local=64)
case("st.local.u32", FOUR_WORDS, LOCAL_ROWS, DEPOT + "".join("st.local.u32 [%%rd5+%d], <a%d>;\n" % (4 * i,
    i) for i in range(4)) + CLEAR + EACH + TO_WORDS, local=64)

# .param of a kernel: the 64 bytes of PARAMETER
WORD = ["0x%x" % w for w in struct.unpack("<16I", PARAMETER)]
case("ld.param.f32", "u32 -> x32 x32", "0 -> 1.5 -2.5", "ld.param.f32 <d0>, [<param>+4];\nld.param.f32 <d1>, [<param>+8];")
case("ld.param.v2.f32", "u32 -> x32 x32", "0 -> -2.5 " + WORD[3], "ld.param.v2.f32 {<d0>, <d1>}, [<param>+8];")
case("ld.param.u32", "u32 -> u32 u32", "0 -> 0xff807f01 0x80000001",
    "ld.param.u32 <d0>, [<param>];\nld.param.u32 <d1>, [<param>+12];")
case("ld.param.u64", "u32 -> u64", "0 -> 0x8877665544332211", "ld.param.u64 <d0>, [<param>+16];")
case("ld.param.s8", "u32 -> s16 s16 s16 s16", "0 -> 1 0x7f 0xff80 -1", "\n".join("ld.param.s8 <d%d>, [<param>+%d];" % (i,
    i) for i in range(4)))
case("ld.param.v4.u8", "u32 -> b16 b16 b16 b16", "0 -> 0xc3 0x3c 0x80 0x7f",
    "ld.param.v4.u8 {<d0>, <d1>, <d2>, <d3>}, [<param>+24];")

# ---------------------------------------------------------------------------------- 9.7.12 control, 9.7.13 barriers

case("bra", "pred -> u32", "0 -> 2\n1 -> 1", "mov.u32 <d0>, 1;\n@<a0> bra $L__form_<N>;\nmov.u32 <d0>, 2;\n$L__form_<N>:")
case("bra", "pred -> u32", "0 -> 1\n1 -> 2", "mov.u32 <d0>, 1;\n@!<a0> bra $L__form_<N>;\nmov.u32 <d0>, 2;\n$L__form_<N>:")
case("bra", "u32 -> u32", "1 -> 1\n5 -> 15\n100 -> 5050", """
    mov.u32 <d0>, 0;
    mov.u32 %r6, <a0>;
    $L__form_<N>:
    add.s32 <d0>, <d0>, %r6;
    add.s32 %r6, %r6, -1;
    setp.gt.s32 %p5, %r6, 0;
    @%p5 bra $L__form_<N>;
""")
case("bra.uni", "u32 -> u32", "7 -> 7", "mov.u32 <d0>, <a0>;\nbra.uni $L__form_<N>;\nmov.u32 <d0>, 2;\n$L__form_<N>:")
case("ret", "pred -> mem", "0 -> 7\n1 -> 0xa5a5a5a5a5a5a5a5", "@<a0> ret;\nmov.u64 %rd5, 7;\nst.global.u64 [<out>], %rd5;")
case("trap", "pred -> u32", "0 -> 7", "@<a0> trap;\nmov.u32 <d0>, 7;")  # not reached: a trap ends the kernel

case("bar.sync", "u32 -> u32", SWAP, EXCHANGE % "shared", shared=128)
case("bar.warp.sync", "u32 -> u32", SWAP, (EXCHANGE % "shared").replace("bar.sync 0", "bar.warp.sync -1"), shared=128)
case("membar.gl", "u32 -> u32", "0xfedcba98 -> 0xfedcba98",
    "st.global.u32 [<out>], <a0>;\nmembar.gl;\nld.global.u32 <d0>, [<out>];")
case("griddepcontrol.wait", "u32 -> u32", "0xfedcba98 -> 0xfedcba98", "griddepcontrol.wait;\nmov.u32 <d0>, <a0>;")
# .red.popc: the number of threads of the block whose predicate holds, in every thread
for which in (lambda i: i % 3 == 0, lambda i: True, lambda i: False, lambda i: i == 31):
    total = str(sum(map(which, LANES)))
    case("bar.red.popc.u32", "pred -> u32", [([str(int(which(i)))], [total]) for i in LANES], "bar.red.popc.u32 <d0>, 0, <a0>;")

# ------------------------------------------------------------------------------------------------ 9.7.13.13 atom
# The old value comes back. inc: (old >= b) ? 0 : old + 1.

ATOM = "st.global.u32 [<out>+8], <a0>;\nFORM <d0>, [<out>+8], <a1>;\nld.global.u32 <d1>, [<out>+8];"
for form, rows in (
    ("atom.global.inc.u32",
     """
        4 5 -> 4 5
        5 5 -> 5 0
        6 5 -> 6 0
        0 0 -> 0 0
        0xfffffffe 0xffffffff -> 0xfffffffe 0xffffffff
        0xffffffff 0xffffffff -> 0xffffffff 0
        0x80000000 5 -> 0x80000000 0
     """),
    ("atom.global.max.u32", "4 5 -> 4 5\n5 4 -> 5 5\n0x80000000 1 -> 0x80000000 0x80000000\n1 0xffffffff -> 1 0xffffffff"),
    ("atom.global.exch.b32", "4 5 -> 4 5\n0xfedcba98 0x12345678 -> 0xfedcba98 0x12345678"),
    ("atom.global.or.b32", "0x0f35 0x5533 -> 0x0f35 0x5f37\n0 0x80000000 -> 0 0x80000000"),
):
    case(form, "u32 u32 -> u32 u32", rows, ATOM.replace("FORM", form))
case("atom.shared.add.u32", "u32 u32 -> u32 u32", "4 5 -> 4 9\n0xffffffff 2 -> 0xffffffff 1",
     MINE + "st.shared.u32 [%r5], <a0>;\natom.shared.add.u32 <d0>, [%r5], <a1>;\nld.shared.u32 <d1>, [%r5];", shared=2048)
# All lanes on one word, by its name: nothing is lost.
SHARED_WORD = "setp.eq.s32 %p5, <tid>, 0;\nmov.u32 %r6, 0;\n@%p5 st.shared.u32 [<shared>], %r6;\nbar.sync 0;\n"
case("atom.shared.add.u32", "u32 -> u32", [([str(lane + 1)], ["528"]) for lane in LANES],
     SHARED_WORD + "atom.shared.add.u32 %r7, [<shared>], <a0>;\nbar.sync 0;\nld.shared.u32 <d0>, [<shared>];", shared=16)
GLOBAL_WORD = SHARED_WORD.replace("shared", "global")
case("atom.global.inc.u32", "u32 -> u32", "9 -> 2",
    GLOBAL_WORD + "atom.global.inc.u32 %r7, [<global>], <a0>;\nbar.sync 0;\nld.global.u32 <d0>, [<global>];",
        variable=16)  # 32 = 3 * 10 + 2
case("atom.global.max.u32", "u32 -> u32", [([str(lane * 7 % 32)], ["31"]) for lane in LANES],
     GLOBAL_WORD + "atom.global.max.u32 %r7, [<global>], <a0>;\nbar.sync 0;\nld.global.u32 <d0>, [<global>];", variable=16)
case("atom.global.exch.b32", "u32 -> u32 u32", "7 -> 7 9", "mov.u32 <d0>, <a0>;\n" + GLOBAL_WORD.replace("mov.u32 %r6, 0",
    "mov.u32 %r6, 7")
     + "@%p5 atom.global.exch.b32 <d0>, [<global>], 9;\nbar.sync 0;\nld.global.u32 <d1>, [<global>];", variable=16)

# --------------------------------------------------------------------- 9.7.9.6 shfl.sync, 9.7.13 vote and match
# c: bits 4:0 clamp, bits 12:8 the mask that splits the warp into segments. Lane i brings 1000 + i. SOURCE[i]: the lane whose
# value lane i gets, or None: out of range, its own value and a false predicate.

SHUFFLE = "shfl.sync.%s.b32 <d0>|<d1>, <a0>, <a1>, <a2>, -1;"


def shuffle(mode, b, c, source):
    rows = [([str(1000 + i), str(b[i] if isinstance(b, list) else b), str(c)],
             [str(1000 + (i if source[i] is None else source[i])), str(int(source[i] is not None))]) for i in LANES]
    case("shfl.sync.%s.b32" % mode, "b32 u32 u32 -> b32 pred", rows, SHUFFLE % mode)


shuffle("bfly", 1, 31, [1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14, 17, 16, 19, 18, 21, 20, 23, 22, 25, 24, 27, 26,
    29, 28, 31, 30])
shuffle("bfly", 16, 31, list(range(16, 32)) + list(range(16)))
shuffle("bfly", 33, 31, [1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14, 17, 16, 19, 18, 21, 20, 23, 22, 25, 24, 27, 26,
    29, 28, 31, 30])  # b is 5 bits
# Segments of 8: a lane above the segment is out of range, one below it is not.
shuffle("bfly", 8, 0x181F, [None] * 8 + list(range(8)) + [None] * 8 + list(range(16, 24)))
# Clamp 15, one segment: lanes 16 and above are out of range as a source.
shuffle("bfly", 16, 0x0F, [None] * 16 + list(range(16)))
shuffle("bfly", 1, 0x0E, [1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, None, 14] + [None] * 16)
shuffle("idx", 5, 31, [5] * 32)
shuffle("idx", 37, 31, [5] * 32)
shuffle("idx", [31 - i for i in LANES], 31, [31 - i for i in LANES])
# Segments of 8: b = 11 counts as 3, its bits within the segment.
shuffle("idx", 11, 0x181F, [3] * 8 + [11] * 8 + [19] * 8 + [27] * 8)
shuffle("idx", 9, 0x08, [None] * 32)  # 9 is above the clamp 8
shuffle("idx", 8, 0x08, [8] * 32)
shuffle("up", 1, 0, [None] + list(range(31)))
shuffle("up", 16, 0, [None] * 16 + list(range(16)))
shuffle("up", 0, 0, list(LANES))
shuffle("up", 3, 0x1800, [None] * 3 + list(range(5)) + [None] * 3 + list(range(8, 13)) + [None] * 3 + list(range(16,
    21)) + [None] * 3 + list(range(24, 29)))
# .up: the clamp is the lowest lane of the segment that may be a source, here lane 2
shuffle("up", 1, 2, [None, None, None] + list(range(2, 31)))
case("shfl.sync.bfly.b32", "b32 -> b32", [([str(1000 + i)], [str(1000 + (i ^ 4))]) for i in LANES],
    "shfl.sync.bfly.b32 <d0>|%p5, <a0>, 4, 31, -1;")
# Only lanes 8 to 15 take part.
case("shfl.sync.bfly.b32", "b32 -> b32", [([str(1000 + i)], [str(1000 + (23 - i if 8 <= i < 16 else i))]) for i in LANES],
     "mov.b32 <d0>, <a0>;\nand.b32 %r6, <tid>, 24;\nsetp.eq.s32 %p5, %r6, 8;\n"
     "@%p5 shfl.sync.bfly.b32 <d0>|%p6, <a0>, 7, 31, 65280;")

# Warp reductions as nvcc writes them: x = x + (the x of lane ^ 16), and so on. A translator that takes the steps together
# has to keep the order of the additions, and must not take together what only looks alike.


def reduce_rows(values, offsets, combine):
    """The values of all lanes after the steps; combine: what a step makes of two values."""
    now = list(values)
    for offset in offsets:
        now = [combine(now[lane], now[lane ^ offset]) for lane in LANES]
    return now


def reduction(op, offsets, between=""):
    """Registers from 20 on. between: what comes after the copy that the first step shuffles."""
    lines, x = ["mov.b32 %r20, <a0>;"] + between.splitlines(), "<a0>"
    for i, offset in enumerate(offsets):
        a, b = 20 + 2 * i, 21 + 2 * i
        lines += ["mov.b32 %%r%d, %s;" % (a, x)] if i else []
        lines += ["shfl.sync.bfly.b32 %%r%d|%%p%d, %%r%d, %d, 31, -1;" % (b, a, a, offset), "mov.b32 %%f%d, %%r%d;" % (a, b),
                  "%s.f32 %%f%d, %s, %%f%d;" % (op, b, x, a)]
        x = "%%f%d" % b
    return "\n".join(lines + ["mov.f32 <d0>, %s;" % x])


def sum_once(a, b):
    return rounded(a + b, 24, -126)


# 2^24 in lane 3 swallows a 1 that comes alone, not one that comes as a part of a sum.
SPREAD = [Fraction(2) ** 24 if lane == 3 else Fraction(2 * lane + 1, 4) for lane in LANES]
for offsets in ((16, 8, 4, 2, 1), (1, 2, 4, 8, 16), (2, 1), (4, 16)):
    rows = zip(SPREAD, reduce_rows(SPREAD, offsets, sum_once))
    case("shfl.sync.bfly.b32", "f32 -> f32", [(["0x%x" % float_bits(x, "f32")], ["0x%x" % float_bits(y, "f32")]) for x,
        y in rows], reduction("add", offsets))
# -0 < +0, and NaN loses against a number: lane 7 has 0, lane 9 NaN, the others -0
case("shfl.sync.bfly.b32", "f32 -> f32", [(["0" if i == 7 else "nan" if i == 9 else "-0"], ["0"]) for i in LANES],
    reduction("max", (16, 8, 4, 2, 1)))
# The value shuffled is the input, the one added to no longer: lane i gets 1 + input of lane i ^ 16, then the sum over i ^ 8.
case("shfl.sync.bfly.b32", "f32 -> f32", [([str(10 * i)], [str(2 + 10 * ((i ^ 16) + (i ^ 24)))]) for i in LANES],
     reduction("add", (16, 8), between="mov.f32 <a0>, 0f3F800000;"))
# A partial sum is used later as well: the sum over pairs of 16, and that of all four.
PARTIAL = reduction("add", (16, 8)).replace("mov.f32 <d0>, %f23;", "mov.f32 <d0>, %f23;\nmov.f32 <d1>, %f21;")
case("shfl.sync.bfly.b32", "f32 -> f32 f32", [([str(10 * i)], [str(10 * (i + (i ^ 16) + (i ^ 8) + (i ^ 24))),
    str(10 * (i + (i ^ 16)))]) for i in LANES], PARTIAL)

for which in (lambda i: i % 3 == 0, lambda i: True, lambda i: False, lambda i: i == 31):
    ballot = "0x%x" % sum(which(i) << i for i in LANES)
    case("vote.sync.ballot.b32", "pred -> b32", [([str(int(which(i)))], [ballot]) for i in LANES],
        "vote.sync.ballot.b32 <d0>, <a0>, -1;")
# Lanes outside the member mask have a 0: here lanes 0 to 7 vote, the others keep their 5.
case("vote.sync.ballot.b32", "pred -> b32", [([str(i % 2)], ["0xaa" if i < 8 else "5"]) for i in LANES],
     "mov.u32 <d0>, 5;\nmov.u32 %r6, 255;\nsetp.lt.u32 %p5, <tid>, 8;\n@%p5 vote.sync.ballot.b32 <d0>, <a0>, %r6;")
# .any: the lanes with the same value; values 0, 1, 2 by lane modulo 3
THIRDS = ["0x49249249", "0x92492492", "0x24924924"]
case("match.any.sync.b32", "b32 -> b32", [(["0x%x" % (0x80000000 + i % 3)], [THIRDS[i % 3]]) for i in LANES],
    "match.any.sync.b32 <d0>, <a0>, -1;")
case("match.any.sync.b32", "b32 -> b32", [([str(i)], ["0x%x" % (1 << i)]) for i in LANES], "match.any.sync.b32 <d0>, <a0>, -1;")
case("match.any.sync.b32", "b32 -> b32", [(["7"], ["0xffff0000" if i >= 16 else "5"]) for i in LANES],
     "mov.u32 <d0>, 5;\nmov.u32 %r6, -65536;\nsetp.gt.u32 %p5, <tid>, 15;\n@%p5 match.any.sync.b32 <d0>, <a0>, %r6;")

# ------------------------------------------------------------------------------------------- 9.7.9.25 cp.async
# src-size below cp-size: the remaining bytes are zero.

COPY = MINE + "cp.async.cg.shared.global [%r5+16], [<in>], 16, <a2>;\n"
COPY_ROWS = """
    0x1122334455667788 0x99aabbccddeeff01 16 -> 0x55667788 0x11223344 0xddeeff01 0x99aabbcc
    0x1122334455667788 0x99aabbccddeeff01 8 -> 0x55667788 0x11223344 0 0
    0x1122334455667788 0x99aabbccddeeff01 4 -> 0x55667788 0 0 0
    0x1122334455667788 0x99aabbccddeeff01 0 -> 0 0 0 0
    0x1122334455667788 0x99aabbccddeeff01 6 -> 0x55667788 0x3344 0 0
"""
for form, body in (("cp.async.cg.shared.global", "cp.async.commit_group;\ncp.async.wait_group 0;\n"),
                   ("cp.async.wait_group", "cp.async.commit_group;\ncp.async.commit_group;\ncp.async.wait_group 1;\n")):
    # wait_group N: all but the N most recent groups are complete; the second group here is empty
    case(form, "mem mem u32 -> u32 u32 u32 u32", COPY_ROWS, COPY + body + READ.replace("%r5", "%r5+16"), arch=80, shared=2048)
# Two groups: after wait_group 1 the older one has arrived, after wait_group 0 both.
case("cp.async.commit_group", "mem mem mem mem -> u32 u32", "0x11 0 0x22 0 -> 0x11 0x22", MINE + """
    mov.u32 %r8, 16;
    cp.async.cg.shared.global [%r5], [<in>], 16, %r8;
    cp.async.commit_group;
    cp.async.cg.shared.global [%r5+16], [<in>+16], 16, %r8;
    cp.async.commit_group;
    cp.async.wait_group 1;
    ld.shared.u32 <d0>, [%r5];
    cp.async.wait_group 0;
    ld.shared.u32 <d1>, [%r5+16];
""", arch=80, shared=2048)

# ------------------------------------------------------------------------------------- 9.7.14.5 ldmatrix and mma
# ldmatrix (9.7.14.5.15): lanes 8m to 8m+7 give the addresses of the rows of matrix m. Lane l gets of each matrix row l/4,
# elements 2(l%4) and the next, the first in the lower half; with .trans the same of the transposed matrix. The element in
# row r, column c of matrix m is 0xmrc; rows lie scattered in shared memory.


def element(m, r, c):
    return 0x4000 + 0x100 * m + 0x10 * r + c


def ldmatrix_rows(transposed):
    rows = []
    for lane in LANES:
        line = [element(lane // 8, lane % 8, c) for c in range(8)]
        ins = [sum(line[4 * half + i] << 16 * i for i in range(4)) for half in range(2)]
        outs = []
        for m in range(4):
            first, second = 2 * (lane % 4), 2 * (lane % 4) + 1
            if transposed:
                outs.append(element(m, second, lane // 4) << 16 | element(m, first, lane // 4))
            else:
                outs.append(element(m, lane // 4, second) << 16 | element(m, lane // 4, first))
        rows.append((ins, outs))
    return rows


for trans in ("", ".trans"):
    form = "ldmatrix.sync.aligned.m8n8.x4%s.shared.b16" % trans
    case(form, "mem mem -> b32 b32 b32 b32", ldmatrix_rows(bool(trans)), """
        mul.lo.s32 %r5, <tid>, 5;
        add.s32 %r5, %r5, 3;
        and.b32 %r5, %r5, 31;
        shl.b32 %r5, %r5, 4;
        mov.u32 %r6, <shared>;
        add.s32 %r5, %r5, %r6;
        ld.global.v4.u32 {%r6, %r7, %r8, %r9}, [<in>];
        st.shared.v4.u32 [%r5], {%r6, %r7, %r8, %r9};
        bar.warp.sync -1;
        FORM {<d0>, <d1>, <d2>, <d3>}, [%r5];
    """.replace("FORM", form), shared=512)

# mma.m16n8k8 (9.7.14.5.7) and m16n8k16 (9.7.14.5.8), g = lane / 4, t = lane % 4. Element i of a fragment:
#   A, k16: row g for i = 0, 1, 4, 5, else g + 8; column 2t + i % 2, for i >= 4 plus 8.   k8: row g for i < 2, column 2t + i % 2
#   B: row 2t + i % 2, for i >= 2 plus 8; column g.     C, D: row g for i < 2, else g + 8; column 2t + i % 2


def a_at(lane, i, k):
    row = lane // 4 + (8 if i % 4 >= 2 else 0)
    return row, 2 * (lane % 4) + i % 2 + (8 if i >= 4 else 0)


def b_at(lane, i):
    return 2 * (lane % 4) + i % 2 + (8 if i >= 2 else 0), lane // 4


def c_at(lane, i):
    return lane // 4 + (8 if i >= 2 else 0), 2 * (lane % 4) + i % 2


def half_bits(x):
    return struct.unpack("<H", struct.pack("<e", x))[0]


def bfloat_bits(x):
    word = struct.unpack("<I", struct.pack("<f", x))[0]
    if word & 0xFFFF:
        raise ValueError("%s is no bf16" % x)
    return word >> 16


def float_word(x):
    return struct.unpack("<I", struct.pack("<f", x))[0]


def mma(form, k, bits, a, b, c, d):
    """a(row, column) and so on: the matrices, d the expected one."""
    rows = []
    for lane in LANES:
        a_part = [bits(a(*a_at(lane, i, k))) for i in range(k // 2)]
        b_part = [bits(b(*b_at(lane, i))) for i in range(k // 4)]
        words = [x[i] | x[i + 1] << 16 for x in (a_part, b_part) for i in range(0, len(x), 2)]
        rows.append((words + [float_word(c(*c_at(lane, i))) for i in range(4)], [float_word(d(*c_at(lane,
            i))) for i in range(4)]))
    registers = ["<a%d>" % i for i in range(k // 4 + k // 8)]
    case(form, " ".join(["b32"] * len(registers) + ["f32"] * 4) + " -> f32 f32 f32 f32", rows,
        "%s {<d0>, <d1>, <d2>, <d3>}, {%s}, {%s}, {%s};" % (
        form, ", ".join(registers[:k // 4]), ", ".join(registers[k // 4:]),
            ", ".join("<a%d>" % (len(registers) + i) for i in range(4))), arch=80 if k == 16 else 75)


INF, NAN = float("inf"), float("nan")
for form, k, bits in (("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32", 8, half_bits),
                      ("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", 16, half_bits),
                      ("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", 16, bfloat_bits)):
    number = lambda i, j: 8.0 * i + j + 1  # noqa: E731: names each element of an n-wide matrix
    c = lambda i, n: 4096.0 * (8 * i + n)  # noqa: E731
    # One 1 in each row of A picks a row of B, whose elements all differ; one 1 in each column of B picks a column of A.
    mma(form, k, bits, lambda i, j: float(j == (3 * i + 1) % k), number, c, lambda i, n: number((3 * i + 1) % k, n) + c(i, n))
    mma(form, k, bits, lambda i, j: float(k * i + j + 1), lambda j, n: float(j == (5 * n + 2) % k), c, lambda i,
        n: float(k * i + (5 * n + 2) % k + 1) + c(i, n))
    # All elements at once, in integers
    a, b = (lambda i, j: float((i + 2 * j) % 7 - 3)), (lambda j, n: float((3 * j + n) % 5 - 2))
    mma(form, k, bits, a, b, lambda i, n: float(i - n), lambda i, n: float(sum(int(a(i, j)) * int(b(j,
        n)) for j in range(k)) + i - n))
    # Row 0: infinity times 0, 1, 2...; row 1: the product 2^-24 * 2^10 n; the others: C alone
    small = 2.0 ** -24
    mma(form, k, bits, lambda i, j: (INF if i == 0 else small if i == 1 else 0.0) if j == 0 else 0.0, lambda j,
        n: 1024.0 * n if j == 0 else 1.0, lambda i, n: float(n - i) if i > 1 else 0.0,
        lambda i, n: (NAN if n == 0 else INF) if i == 0 else small * 1024 * n if i == 1 else float(n - i))
