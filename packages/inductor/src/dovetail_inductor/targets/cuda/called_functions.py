"""Functions that the text of kernels calls, in plain Triton, so that they also run in Triton's
interpreter; a kernel's source carries those that it calls and no others.
"""

from __future__ import annotations

import re

# expm1 and log1p: W. Kahan's compensation, accurate to a few ulp for every argument, from exp and
# log alone. Quotients of floats are rounded as IEEE says, and remainders exact: what rounds a
# quotient down would make much of its last digit. The others are textbook identities.
_SOURCE = """
def dv_max(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)

def dv_min(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)

# A GPU gives the largest number for what is larger.
def dv_e4m3(x):
    return tl.where(tl.abs(x) <= 464.0, x, float('nan')).to(tl.float8e4nv)

def dv_e5m2(x):
    bits = x.to(tl.float8e5).to(tl.int8, bitcast=True)
    infinite = tl.where(x < 0, -4, 124).to(tl.int8)
    whole = tl.where(tl.abs(x) < 61440.0, bits, tl.where(x == x, infinite, 127))
    return whole.to(tl.int8).to(tl.float8e5, bitcast=True)

def dv_add(a, b):
    return a + b

def dv_mul(a, b):
    return a * b

# Logarithms of sums, as the largest element and the sum of what is less by so much.
def dv_add_logs(a, s, b, t):
    top = dv_max(a, b)
    share = tl.exp(tl.where(a == b, 0.0, dv_min(a, b) - top))
    return top, tl.where(a < b, s * share + t, s + t * share)

def dv_expm1(x):
    u = tl.exp(x)
    d = u - 1.0
    l = tl.log(u)
    safe = tl.where(l == 0.0, 1.0, l)
    y = tl.where(u == 1.0, x, d * (x / safe))
    y = tl.where(d == -1.0, -1.0, y)
    return tl.where(u == float('inf'), u, y)

def dv_log1p(x):
    u = 1.0 + x
    d = u - 1.0
    safe = tl.where(d == 0.0, 1.0, d)
    y = tl.where(d == 0.0, x, tl.log(u) * (x / safe))
    return tl.where(u == float('inf'), u, y)

# float32: a polynomial fitted to tanh(x)/x near 0 (1.3 ulp), 1 - 2/(exp(2x)+1) beyond
def dv_tanh(x):
    z = x * x
    p = 2.142961640e-03
    p = p * z - 8.177398017e-03
    p = p * z + 2.170070314e-02
    p = p * z - 5.394676305e-02
    p = p * z + 1.333320601e-01
    p = p * z - 3.333333080e-01
    a = tl.abs(x)
    far = 1.0 - 2.0 / (tl.exp(2.0 * a) + 1.0)
    far = tl.where(x < 0.0, -far, far)
    return tl.where(a < 0.625, x + x * z * p, far)

# The same where an absolute error counts, as in an exponent.
def dv_tanh_rough(x):
    return 1.0 - 2.0 / (tl.exp2(2.8853900818 * x) + 1.0)

# float32 for results of 2 bytes: 1 - exp2(-|x| q(|x|)) with a polynomial q fitted to the
# logarithm of erfc (1e-7 everywhere), and two terms of the series near 0, where that cancels.
def dv_erf_narrow(x):
    a = tl.abs(x)
    q = 4.5358617428e-05
    q = q * a - 4.4550781167e-04
    q = q * a + 1.4894421920e-03
    q = q * a + 7.7462870556e-04
    q = q * a - 2.8253680219e-02
    q = q * a + 1.4848161467e-01
    q = q * a + 9.1841639335e-01
    q = q * a + 1.6279085931e+00
    far = 1.0 - tl.exp2(-a * q)
    far = tl.where(x < 0.0, -far, far)
    near = x * (1.1283791671 - 0.3761263890 * x * x)
    return tl.where(a < 0.01, near, far)

# The same for tanh: 1 - 2/(exp(2|x|) + 1), and the series near 0.
def dv_tanh_narrow(x):
    a = tl.abs(x)
    far = 1.0 - 2.0 / (tl.exp2(2.8853900818 * a) + 1.0)
    far = tl.where(x < 0.0, -far, far)
    near = x * (1.0 - 0.3333333333 * x * x)
    return tl.where(a < 0.02, near, far)

def dv_tanh64(x):
    t = dv_expm1(-2.0 * tl.abs(x))
    y = -t / (t + 2.0)
    return tl.where(x < 0.0, -y, y)

def dv_div(a, b):
    if a.dtype == tl.float32:
        return tl.div_rn(a, b)
    else:
        return a / b

# Half to even.
def dv_round(x):
    return libdevice.rint(x)

def dv_trunc(x):
    return libdevice.trunc(x)

def dv_fmod(a, b):
    return libdevice.fmod(a, b)

# Nearly always what division and rounding down give, but for quotients that round up to a
# whole number.
def dv_floordiv(a, b):
    q = dv_div(a, b)
    r = dv_fmod(a, b)
    whole = dv_div(a - r, b)
    whole = tl.where((r != 0.0) & ((r < 0.0) != (b < 0.0)), whole - 1.0, whole)
    down = tl.floor(whole)
    down = tl.where(whole - down > 0.5, down + 1.0, down)
    down = tl.where(whole == 0.0, libdevice.copysign(whole, q), down)
    return tl.where(b == 0.0, q, down)

# By fewer than none, or by all bits and more: what is shifted out is gone.
def dv_shift_left(a, b):
    gone = (b < 0) | (b >= a.dtype.primitive_bitwidth)
    return tl.where(gone, 0, a << tl.where(gone, 0, b)).to(a.dtype)

def dv_shift_right(a, b):
    gone = (b < 0) | (b >= a.dtype.primitive_bitwidth)
    return tl.where(gone, -(a < 0).to(a.dtype), a >> tl.where(gone, 0, b))

# Products of two blocks of `size` elements, added to `sums` by `count` neighbours: those of one
# thread, where layouts keep them together.
def dv_add_products(a, b, sums, size: tl.constexpr, count: tl.constexpr):
    if count == 1:
        return tl.fma(tl.reshape(a, [size]), tl.reshape(b, [size]), sums)
    else:
        half: tl.constexpr = size // 2
        a0, a1 = tl.split(tl.reshape(a, [half, 2]))
        b0, b1 = tl.split(tl.reshape(b, [half, 2]))
        sums = dv_add_products(a0, b0, sums, half, count // 2)
        return dv_add_products(a1, b1, sums, half, count // 2)

def dv_remainder(a, b):
    r = dv_fmod(a, b)
    return tl.where((r != 0.0) & ((r < 0.0) != (b < 0.0)), r + b, r)

# Of integers, in the text of symbolic sizes, too: Triton's own division truncates.
def floor_div(a, b):
    q = a // b
    return tl.where((a - q * b != 0) & ((a < 0) != (b < 0)), q - 1, q)

def floor_mod(a, b):
    return a - floor_div(a, b) * b

def least(a, b):
    return tl.minimum(a, b)

def greatest(a, b):
    return tl.maximum(a, b)
"""

# The extreme one of two elements, and where it is: NaN is extreme, too.
_EXTREMES = """
def dv_next_{0}(a, i, b, j):
    better = ~(b {1} a) & (a == a)
    return tl.where(better, b, a), tl.where(better, j, i)

def dv_first_{0}(a, i, b, j):
    equal = (b == a) | ((b != b) & (a != a))
    better = (~(b {1} a) & (a == a)) | (equal & (j < i))
    return tl.where(better, b, a), tl.where(better, j, i)
"""


def _functions(source: str) -> dict[str, str]:
    """The functions of a text by name, without what is said about them."""
    found = re.findall(r"^(def (\w+).*?)\n*(?=^def |^#|\Z)", source, re.MULTILINE | re.DOTALL)
    return {name: text for text, name in found}


_ALL = _functions(_SOURCE + _EXTREMES.format("max", "<=") + _EXTREMES.format("min", ">="))
_NAMES = re.compile(rf"\b(?:{'|'.join(_ALL)})\b")


def called_source(text: str) -> str:
    """The source of the functions that a text calls, and of those that these call, callees
    first."""
    ordered: dict[str, None] = {}

    def visit(text: str, caller: str) -> None:
        for name in sorted({*_NAMES.findall(text)} - {caller, *ordered}):
            visit(_ALL[name], name)
            ordered[name] = None

    visit(text, "")
    return "".join(f"@triton.jit\n{_ALL[name]}\n\n\n" for name in ordered)
