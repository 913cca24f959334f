// Running totals. `across(x)` takes one more element of each lane's own row; `along(x)` takes as
// many elements of one row as there are lanes, of which each gets the total up to itself: those
// within the vector first, by doubling distances (Hillis and Steele, "Data parallel algorithms",
// 1986), then with the total so far, so that from one vector to the next only one operation waits
// for another.
#define DV_METHOD inline __attribute__((always_inline, unused))

// Lane i gets lane i - by; the first lanes get those of `fill`.
template <int by, class X> DV X shifted(X x, X fill) {
  constexpr int N = lanes<X>;
  V<typename signed_of<sizeof(E<X>)>::type, N> from;
  for (int i = 0; i < N; ++i) from[i] = i < by ? N + i : i - by;
  return __builtin_shuffle(x, fill, from);
}
template <class X> DV X last_lane(X x) { return bc<lanes<X>>((E<X>)x[lanes<X> - 1]); }

// How two totals combine, the earlier one first; a NaN stays. An extreme mostly stays, too: then
// nothing needs to be combined.
struct Sum { template <class X> DV X of(X a, X b) { return a + b; } };
struct Prod { template <class X> DV X of(X a, X b) { return a * b; } };
struct Max {
  struct OfNumbers { template <class X> DV X of(X a, X b) { return b > a ? b : a; } };
  template <class X> DV X of(X a, X b) { return b != b ? b : b > a ? b : a; }
  template <class X> DV bool stays(X a, X b) { return !any(~(b <= a)); }
};
struct Min {
  struct OfNumbers { template <class X> DV X of(X a, X b) { return b < a ? b : a; } };
  template <class X> DV X of(X a, X b) { return b != b ? b : b < a ? b : a; }
  template <class X> DV bool stays(X a, X b) { return !any(~(b >= a)); }
};

template <class F, int by, class X> DV X totals_within(X x, X start) {
  if constexpr (by >= lanes<X>) return x;
  else return totals_within<F, 2 * by>(F::of(shifted<by>(x, start), x), start);
}

template <class F, class X> struct Running {
  X total;
  DV_METHOD X across(X x) { return total = F::of(total, x); }
  DV_METHOD X along(X x, X start) {
    if constexpr (same<F, Max> || same<F, Min>) {
      if (__builtin_expect(F::stays(total, x), 1)) return total;
      if (!any(x != x)) return with(totals_within<typename F::OfNumbers, 1>(x, start));
    }
    return with(totals_within<F, 1>(x, start));
  }
  DV_METHOD X with(X own) {
    X result = F::of(total, own);
    total = F::of(total, last_lane(own));
    return result;
  }
};

// --- logarithms of sums of exponentials --------------------------------------------------------

// exp(x) of x <= 0 in float64, to a few units in the last place: 2^n * exp(r), |r| <= log(2)/2.
template <class X> DV X exp_of_negative(X x) {
  X n = round_(x * 1.4426950408889634);
  X r = fma_(n, full<X>(-1.90821492927058770e-10), fma_(n, full<X>(-6.93147180369123816490e-01), x));
  X p = full<X>(1.0 / 6227020800.0);  // 1/13!, then the other coefficients of its series
  constexpr double series[] = {1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880,
                               1.0 / 40320, 1.0 / 5040, 1.0 / 720, 1.0 / 120, 1.0 / 24, 1.0 / 6,
                               0.5, 1.0, 1.0};
  for (double c : series) p = fma_(p, r, full<X>(c));
  auto power = bits<X>((cast<int64_t>(n) + 1023) << 52);
  return sel(mask(x < -708), full<X>(0), p * power);
}
// log(x) of finite x >= 1 in float64: x = 2^e * m, m from sqrt(1/2) to sqrt(2);
// log(m) = 2 * atanh((m - 1) / (m + 1)).
template <class X> DV X log_of_large(X x) {
  auto u = bits<like<int64_t, X>>(x);
  auto e = ((u - 0x3fe6a09e667f3bcd) >> 52);
  X m = bits<X>(u - (e << 52)), n = cast<double>(e);
  X t = (m - 1) / (m + 1), z = t * t;
  X p = full<X>(1.0 / 21);
  constexpr double series[] = {1.0 / 19, 1.0 / 17, 1.0 / 15, 1.0 / 13, 1.0 / 11,
                               1.0 / 9,  1.0 / 7,  1.0 / 5,  1.0 / 3};
  for (double c : series) p = fma_(p, z, full<X>(c));
  X small = 2 * fma_(t * z, p, t);
  return fma_(n, full<X>(6.93147180369123816490e-01), fma_(n, full<X>(1.90821492927058770e-10), small));
}

// The largest element so far, and the sum of exponentials of the differences from it (which is
// where the numbers lie that a float holds).
template <class X> struct RunningLogarithm {
  X top;
  X sum = full<X>(0);
  DV X gap(X x, X y) { return sel(mask(x == y), full<X>(0), 0 - fabs_(x - y)); }
  DV X result(X top, X sum) {
    return sel(mask(isnan_(top) | isinf_(top)), top, top + log_of_large(sum));
  }
  DV_METHOD X across(X x) {
    X e = exp_of_negative(gap(x, top));
    sum = sel(mask(x > top), fma_(sum, e, full<X>(1)), sum + e);
    top = vmax(top, x);
    return result(top, sum);
  }
  DV_METHOD X along(X x, X start) {
    X tops = Max::of(top, totals_within<Max, 1>(x, start)), before = shifted<1>(tops, top);
    X e = exp_of_negative(gap(x, before)), one = full<X>(1);
    auto grows = mask(x > before);
    // sums[i] = sums[i - 1] * decay[i] + share[i]
    X decay = sel(grows, e, one), share = sel(grows, one, e);
    recurrence<1>(decay, share);
    X sums = fma_(sum, decay, share);
    top = last_lane(tops);
    sum = last_lane(sums);
    return result(tops, sums);
  }
  template <int by> DV void recurrence(X& decay, X& share) {
    if constexpr (by < lanes<X>) {
      share = fma_(decay, shifted<by>(share, full<X>(0)), share);
      decay = decay * shifted<by>(decay, full<X>(1));
      recurrence<2 * by>(decay, share);
    }
  }
};
