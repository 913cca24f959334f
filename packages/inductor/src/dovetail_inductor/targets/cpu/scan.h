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

// The largest element so far, and the sum of exponentials of the differences from it (which is
// where the numbers lie that a float holds).
template <class X> struct RunningLogarithm {
  X top;
  X sum = full<X>(0);
  DV X gap(X x, X y) { return sel(mask(x == y), full<X>(0), 0 - fabs_(x - y)); }
  DV X result(X top, X sum) {
    return sel(mask(isnan_(top) | isinf_(top)), top, top + double_log(sum));
  }
  DV_METHOD X across(X x) {
    X e = double_exp(gap(x, top));
    sum = sel(mask(x > top), fma_(sum, e, full<X>(1)), sum + e);
    top = vmax(top, x);
    return result(top, sum);
  }
  DV_METHOD X along(X x, X start) {
    X tops = Max::of(top, totals_within<Max, 1>(x, start)), before = shifted<1>(tops, top);
    X e = double_exp(gap(x, before)), one = full<X>(1);
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
