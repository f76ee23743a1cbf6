#!/usr/bin/env python3
"""The sampler contract at V = 151 936, written a second time, in plain Python.

    python3 crates/decode/tests/golden/make_rows.py          writes rows_151936.json beside itself
    python3 crates/decode/tests/golden/make_rows.py --check  compares with that file instead
    python3 crates/decode/tests/golden/make_rows.py --pins   prints the values pinned in exp.rs and noise.rs

Python 3.11, standard library only; takes some minutes. The Rust side is
crates/decode/tests/contract_rows.rs, which makes the same rows and compares everything with `==`.

The point is independence: this file follows the documented contract (DESIGN.md, section 3; the module
docs of exp.rs, noise.rs and sampler/) and shares no algorithm with the Rust code. Every filter sorts
everything, sums are Python integers, thresholds are Fractions, ChaCha20 is written from RFC 8439.
Python floats are IEEE f64, so `exp`, whose contract *is* its sequence of operations, gives the same
bits; its fused multiply-adds are the C library's, checked here against exact rationals.

Rows
----
All from the LCG of the golden vectors: x <- x*6364136223846793005 + 1442695040888963407 mod 2^64,
output u32 = x >> 32, x starts as the row's seed. Each logit is an integer times a power of two that
f32 holds exactly. `bell` stands for six u16 from three u32, high half first, summed and centred:
an integer of [-196608, 196602], near normal.

    normal    bell / 16384                                   (standard deviation 2.8)
    peaked    normal; then 40 times: id = u32 mod V, logit = 16 + (u32 >> 16) / 4096
    flat      (u32 >> 24) / 4096                             (all within 1/16)
    quarters  floor((bell + 2048) / 4096) / 4                (normal rounded to 1/4: many ties)
    grid      ((u32 >> 19) - 4096) / 1024                    (uniform on [-4, 4): about 18 ties each)
    holes     normal, drawn after a u32 that is a multiple of 3; -inf otherwise, nothing drawn
    bf16      normal rounded to bf16, ties to even
    steep     bell / 1024                                    (most of the row has weight 0)

Weights
-------
The temperature step sets T; the integer weights are computed from the logits that are left when the
first later step needs them. Top-k ranks logits and needs none, so B comes from its survivors.
"""

import ctypes
import ctypes.util
import hashlib
import json
import math
import struct
import sys
from decimal import Decimal, getcontext
from fractions import Fraction
from itertools import accumulate
from pathlib import Path

getcontext().prec = 60

V = 151936
ROWS = 64
CASES_PER_ROW = 2
OUTPUT = Path(__file__).with_name("rows_151936.json")

SHAPES = ["normal", "peaked", "flat", "quarters", "grid", "holes", "bf16", "steep"]
TEMPERATURES = ["0", "0.3", "0.7", "0.7", "1", "1", "1", "1.3", "1.3", "2"]
TOP_KS = [0, 0, 0, 0, 0, 1, 20, 50, 1000, 1000]
TOP_PS = ["0.5", "0.9", "0.95", "1"]
MIN_PS = ["0", "0", "0.05", "0.3"]

# The addresses of the 8 draws of each case; the seed is the case's own.
KEYS = [
    {"sequence": "0", "round_start": "0", "offset": 0, "lane": "draft"},
    {"sequence": "0", "round_start": "17", "offset": 0, "lane": "bonus"},
    {"sequence": "1", "round_start": "17", "offset": 1, "lane": "draft"},
    {"sequence": "3", "round_start": "4096", "offset": 7, "lane": "residual"},
    {"sequence": "4294967296", "round_start": "4294967295", "offset": 15, "lane": "accept"},
    {"sequence": "18446744073709551615", "round_start": "131071", "offset": 65536, "lane": "draft"},
    {"sequence": "12345678901234567890", "round_start": "18446744073709551615", "offset": 2, "lane": "bonus"},
    {"sequence": "7", "round_start": "9223372036854775808", "offset": 4294967295, "lane": "residual"},
]
LANES = {"draft": 0, "accept": 1, "residual": 2, "bonus": 3}


# --- rows --------------------------------------------------------------------------------------------


class Lcg:
    def __init__(self, seed):
        self.x = seed

    def u32(self):
        self.x = (self.x * 6364136223846793005 + 1442695040888963407) % 2**64
        return self.x >> 32

    def bell(self):
        total = -6 * 32768
        for _ in range(3):
            high, low = divmod(self.u32(), 65536)
            total += high + low
        return total


def bf16(value):
    """The nearest bf16, by comparing with both neighbours."""
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    below = bits >> 16
    low, high = (struct.unpack("<f", struct.pack("<I", b << 16))[0] for b in (below, below + 1))
    to_low, to_high = abs(value - low), abs(high - value)
    if to_low == to_high:
        return low if below % 2 == 0 else high
    return low if to_low < to_high else high


def make_row(shape, seed):
    lcg = Lcg(seed)
    if shape in ("normal", "peaked"):
        row = [lcg.bell() / 16384 for _ in range(V)]
        if shape == "peaked":
            for _ in range(40):
                token = lcg.u32() % V
                row[token] = 16 + (lcg.u32() >> 16) / 4096
        return row
    if shape == "flat":
        return [(lcg.u32() >> 24) / 4096 for _ in range(V)]
    if shape == "quarters":
        return [((lcg.bell() + 2048) // 4096) / 4 for _ in range(V)]
    if shape == "grid":
        return [((lcg.u32() >> 19) - 4096) / 1024 for _ in range(V)]
    if shape == "holes":
        return [lcg.bell() / 16384 if lcg.u32() % 3 == 0 else -math.inf for _ in range(V)]
    if shape == "bf16":
        return [bf16(lcg.bell() / 16384) for _ in range(V)]
    if shape == "steep":
        return [lcg.bell() / 1024 for _ in range(V)]
    raise ValueError(shape)


# --- the contract ------------------------------------------------------------------------------------


def from_bits(bits):
    return struct.unpack("<d", struct.pack("<Q", bits))[0]


def to_bits(value):
    return struct.unpack("<Q", struct.pack("<d", value))[0]


LOG2_E = float.fromhex("0x1.71547652b82fep+0")
LN_2 = float.fromhex("0x1.62e42fefa39efp-1")
LN_2_HIGH = float.fromhex("0x1.62e42feep-1")
LN_2_LOW = float.fromhex("0x1.a39ef35793c76p-33")
assert Fraction(LN_2_HIGH).numerator.bit_length() <= 33
HALF_LN_2 = Decimal(2).ln() / 2


def chebyshev_coefficients(count):
    """(e^r - 1 - r) / r^2 at the Chebyshev nodes of [-ln 2 / 2, ln 2 / 2], as powers of r from 0."""

    def series(term, step):
        total, n = Decimal(0), 0
        while abs(term) > Decimal(10) ** -55:
            total, n = total + term, n + 1
            term *= step(n)
        return total

    def cosine(x):
        return series(Decimal(1), lambda n: -x * x / (2 * n * (2 * n - 1)))

    pi = Decimal("3.14159265358979323846264338327950288419716939937510582097494")
    nodes = [HALF_LN_2 * cosine(pi * (2 * i + 1) / (2 * count)) for i in range(count)]
    values = [series(Decimal("0.5"), lambda n, r=r: r / (n + 2)) for r in nodes]
    # Lagrange: each value times the product of (r - other node) / (node - other node).
    powers = [Decimal(0)] * count
    for node, value in zip(nodes, values):
        product = [value]
        for other in nodes:
            if other != node:
                shifted = [Decimal(0)] + product
                product = [a - other * b for a, b in zip(shifted, product + [Decimal(0)])]
                product = [a / (node - other) for a in product]
        powers = [a + b for a, b in zip(powers, product)]
    return [float(power) for power in powers]


POWERS = chebyshev_coefficients(10)


def exact_fma(a, b, c):
    """a*b + c, rounded once: exact rationals, and Python's division rounds correctly."""
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    return exact.numerator / exact.denominator


def fast_fma():
    """math.fma of Python 3.13, or the C library's; compared with `exact_fma` before it is trusted."""
    if hasattr(math, "fma"):
        fma = math.fma
    else:
        fma = ctypes.CDLL(ctypes.util.find_library("m")).fma
        fma.restype, fma.argtypes = ctypes.c_double, [ctypes.c_double] * 3
    lcg = Lcg(99)
    for _ in range(20000):
        a, b, c = ((lcg.u32() * 2**21 + lcg.u32() % 2**21 - 2**52) * 2.0 ** -(52 - lcg.u32() % 8) for _ in range(3))
        # Where a*b nearly cancels c a product rounded first would show.
        for addend in (c, -(a * b), math.nextafter(-(a * b), math.inf)):
            assert fma(a, b, addend) == exact_fma(a, b, addend), (a, b, addend)
    return fma


fma = fast_fma()


def exp(x):
    """e^x for x <= 0 by the sequence of operations that exp.rs documents."""
    if x < -708.0:
        return 0.0
    k = fma(x, LOG2_E, 1.5 * 2.0**52) - 1.5 * 2.0**52
    r = fma(k, -LN_2_LOW, fma(k, -LN_2_HIGH, x))
    square = r * r
    even, odd = POWERS[8], POWERS[9]
    for n in (6, 4, 2, 0):
        even, odd = fma(even, square, POWERS[n]), fma(odd, square, POWERS[n + 1])
    value = 1.0 + fma(square, fma(odd, r, even), r)
    return math.ldexp(value, int(k))


def weights_of(logits, temperature):
    """round_half_even(2^B exp((z - max)(1/T))), B from the sum of those rounded at scale 2^32."""
    top = max(logits)
    inverse = 1.0 / temperature
    exponentials = [exp((z - top) * inverse) for z in logits]
    total = sum(round(math.ldexp(e, 32)) for e in exponentials)
    log_2 = 0
    while total > 2 ** (32 + log_2):
        log_2 += 1
    # `round` of a float is exact and goes to even.
    return [round(math.ldexp(e, 61 - log_2)) for e in exponentials]


# How often a tie crossed the border of a filter, so that only the tie rule decides.
BORDER_TIES = {"top_k": 0, "top_p": 0}


def law(row, temperature, top_k, top_p, min_p):
    """The contract: [(id, weight)] with positive weights, by ascending id."""
    ids = [i for i in range(V) if row[i] > -math.inf]
    if float(temperature) == 0.0:
        ids = [min(ids, key=lambda i: (-row[i], i))]
        temperature = "1"
    if top_k > 0:
        ranked = sorted(ids, key=lambda i: (-row[i], i))
        BORDER_TIES["top_k"] += top_k < len(ranked) and row[ranked[top_k - 1]] == row[ranked[top_k]]
        ids = sorted(ranked[:top_k])
    weight = dict(zip(ids, weights_of([row[i] for i in ids], float(temperature))))
    top_p, min_p = Fraction(top_p), Fraction(min_p)
    if top_p < 1:
        threshold = math.ceil(top_p * sum(weight.values()))
        ranked = sorted(ids, key=lambda i: (-weight[i], i))
        before, kept = 0, 0
        for place, i in enumerate(ranked):
            if before < threshold or place == 0:
                kept += 1
            before += weight[i]
        BORDER_TIES["top_p"] += kept < len(ranked) and weight[ranked[kept - 1]] == weight[ranked[kept]]
        ids = sorted(ranked[:kept])
    if min_p > 0:
        largest = max(weight[i] for i in ids)
        ids = [i for i in ids if weight[i] * min_p.denominator >= min_p.numerator * largest]
    return [(i, weight[i]) for i in ids if weight[i] > 0]


# --- noise -------------------------------------------------------------------------------------------


def chacha20_block(key, counter, stream):
    """RFC 8439, section 2.3, with the last four words as a 64-bit counter and a 64-bit stream."""
    start = list(struct.unpack("<4I", b"expand 32-byte k"))
    start += struct.unpack("<8I", key)
    start += struct.unpack("<4I", struct.pack("<QQ", counter, stream))
    s = list(start)

    def quarter(a, b, c, d):
        for x, y, z, n in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
            s[x] = (s[x] + s[y]) % 2**32
            mixed = s[z] ^ s[x]
            s[z] = (mixed << n | mixed >> (32 - n)) % 2**32

    for _ in range(10):
        for i in range(4):
            quarter(i, 4 + i, 8 + i, 12 + i)
        for i in range(4):
            quarter(i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4)
    return [(a + b) % 2**32 for a, b in zip(s, start)]


def check_chacha20():
    """The test vector of RFC 8439, section 2.3.2: its 32-bit counter 1 and 96-bit nonce."""
    counter, stream = struct.unpack("<QQ", struct.pack("<I", 1) + bytes.fromhex("000000090000004a00000000"))
    block = chacha20_block(bytes(range(32)), counter, stream)
    assert struct.pack("<16I", *block).hex() == (
        "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"
        "d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e"
    )


def words_at(seed, sequence, round_start, offset, lane):
    key = struct.pack("<QQ", seed, sequence) + b"draftproof round"
    position = (offset * 4 + LANES[lane]) * 2**32
    while True:
        yield chacha20_block(key, position // 16, round_start)[position % 16]
        position += 1


def uniform(words, bound):
    bits = (bound - 1).bit_length()
    while True:
        value = sum(next(words) << (32 * i) for i in range(-(-bits // 32)))
        value %= 2**bits
        if value < bound:
            return value


def draw(pairs, seed, key):
    if len(pairs) == 1:
        return pairs[0][0]
    words = words_at(seed, int(key["sequence"]), int(key["round_start"]), key["offset"], key["lane"])
    u = uniform(words, sum(w for _, w in pairs))
    cumulative = accumulate(w for _, w in pairs)
    return next(i for (i, _), upto in zip(pairs, cumulative) if u < upto)


# --- output ------------------------------------------------------------------------------------------


def sha256(parts):
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def make_case(row, choose):
    settings = {
        "temperature": TEMPERATURES[choose.u32() % len(TEMPERATURES)],
        "top_k": TOP_KS[choose.u32() % len(TOP_KS)],
        "top_p": TOP_PS[choose.u32() % len(TOP_PS)],
        "min_p": MIN_PS[choose.u32() % len(MIN_PS)],
    }
    noise_seed = choose.u32() << 32 | choose.u32()
    pairs = law(row, **settings)
    return {
        **settings,
        "kept": len(pairs),
        "ids_sha256": sha256(struct.pack("<I", i) for i, _ in pairs),
        "total": str(sum(w for _, w in pairs)),
        "weights_sha256": sha256(struct.pack("<IQ", i, w) for i, w in pairs),
        "noise_seed": str(noise_seed),
        "draws": [draw(pairs, noise_seed, key) for key in KEYS],
    }


def check_coverage(rows):
    """That the cases, chosen by chance, are not idle ones."""
    cases = [(row["shape"], case) for row in rows for case in row["cases"]]
    choices = {"temperature": TEMPERATURES, "top_k": TOP_KS, "top_p": TOP_PS, "min_p": MIN_PS}
    for name, values in choices.items():
        assert {case[name] for _, case in cases} == set(values), name
    for shape in SHAPES:
        wide = [c for s, c in cases if s == shape and c["temperature"] != "0" and c["top_k"] == 0]
        assert any(c["top_p"] != "1" and c["kept"] > 1 for c in wide), shape
    many = sum(case["kept"] > 1 for _, case in cases)
    assert many > len(cases) * 2 // 3, many
    assert min(BORDER_TIES.values()) >= 5, BORDER_TIES
    figures = f"{len(rows)} rows, {len(cases)} cases, {many} of more than one token"
    print(f"{figures}; border ties {BORDER_TIES}", file=sys.stderr)


def make_rows():
    choose = Lcg(2026)
    rows = []
    for index in range(ROWS):
        shape, seed = SHAPES[index % len(SHAPES)], index + 1
        row = make_row(shape, seed)
        rows.append(
            {
                "seed": str(seed),
                "shape": shape,
                "row_sha256": sha256(struct.pack("<f", z) for z in row),
                "cases": [make_case(row, choose) for _ in range(CASES_PER_ROW)],
            }
        )
        print(f"row {index + 1}/{ROWS} {shape}", file=sys.stderr)
    check_coverage(rows)
    head = {"made_by": "make_rows.py", "vocab": V, "keys": KEYS}
    lines = ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows)
    return json.dumps(head)[:-1] + ', "rows": [\n' + lines + "\n]}\n"


# --- pins of the unit tests --------------------------------------------------------------------------


def exp_arguments():
    xs = [i * -0.1 for i in range(7081)]
    xs += [-(0.5 ** (i // 20)) * (1.0 + (i % 20) / 20.0) for i in range(1100)]
    for odd in range(1, 2043, 2):
        border = -odd * LN_2 / 2.0
        xs += [border, math.nextafter(border, math.inf), math.nextafter(border, -math.inf)]
    state = 1
    for i in range(20000):
        state = (state * 6364136223846793005 + 1) % 2**64
        xs.append(-((state >> 11) / 2.0**53) * (1.0 if i % 2 == 0 else 708.0))
    return [x for x in xs if -708.0 <= x <= 0.0]


def print_pins():
    digest = 0xCBF29CE484222325
    for x in exp_arguments() * 2:
        for byte in struct.pack("<d", exp(x)):
            digest = (digest ^ byte) * 0x100000001B3 % 2**64
    print(f"exp.rs: {len(exp_arguments())} arguments")
    print(f"exp.rs: exp(-0.5) = {to_bits(exp(-0.5)):#018x}")
    print(f"exp.rs: digest    = {digest:#018x}")
    print(f"exp.rs: EVEN      = {POWERS[8::-2]}")
    print(f"exp.rs: ODD       = {POWERS[9::-2]}")
    for bound in (10, 2**61, 2**128 - 1):
        value = uniform(words_at(7, 1, 12, 3, "draft"), bound)
        print(f"noise.rs: uniform below {bound}: {value}")


def main():
    check_chacha20()
    assert (to_bits(LN_2_HIGH), to_bits(LN_2_LOW)) == (0x3FE62E42FEE00000, 0x3DEA39EF35793C76)
    if "--pins" in sys.argv:
        print_pins()
        return
    text = make_rows()
    if "--check" in sys.argv:
        same = OUTPUT.read_text() == text
        print("equal" if same else "DIFFERENT")
        sys.exit(0 if same else 1)
    OUTPUT.write_text(text)


if __name__ == "__main__":
    main()
