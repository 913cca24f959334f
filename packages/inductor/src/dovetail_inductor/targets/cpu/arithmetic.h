// Arithmetic of vectors and scalars: rounding, quotients, reductions over the lanes.
namespace dovetail_simd {

// --- rounding, roots, fused multiply-add ---------------------------------------------------------

#define DV_ROUND(name, mode, scalar)                                                              \
  template <class X> DV X name(X x) {                                                             \
    if constexpr (is_scalar<X>) return sizeof(X) == 4 ? (X)scalar##f(x) : (X)scalar(x);           \
    else {                                                                                        \
      DV_ROUND_512(mode) DV_ROUND_256(mode)                                                       \
      return each(x, [](E<X> v) { return name(v); });                                             \
    }                                                                                             \
  }
#ifdef __AVX512F__
#define DV_ROUND_512(mode)                                                                        \
  if constexpr (same<X, V<float, 16>>)                                                            \
    return (X)__builtin_ia32_rndscaleps_mask(x, mode | 8, x, (short)-1, 4);                       \
  if constexpr (same<X, V<double, 8>>)                                                            \
    return (X)__builtin_ia32_rndscalepd_mask(x, mode | 8, x, (char)-1, 4);
#else
#define DV_ROUND_512(mode)
#endif
#ifdef __AVX__
#define DV_ROUND_256(mode)                                                                        \
  if constexpr (same<X, V<float, 8>>) return (X)__builtin_ia32_roundps256(x, mode | 8);           \
  if constexpr (same<X, V<double, 4>>) return (X)__builtin_ia32_roundpd256(x, mode | 8);
#else
#define DV_ROUND_256(mode)
#endif
DV_ROUND(floor_, 1, __builtin_floor)
DV_ROUND(ceil_, 2, __builtin_ceil)
DV_ROUND(trunc_, 3, __builtin_trunc)
DV_ROUND(round_, 0, __builtin_nearbyint)

template <class X> DV X sqrt_(X x) {
  if constexpr (is_scalar<X>) return sizeof(X) == 4 ? (X)__builtin_sqrtf(x) : (X)__builtin_sqrt(x);
  else {
#ifdef __AVX512F__
    if constexpr (same<X, V<float, 16>>) return (X)__builtin_ia32_sqrtps512_mask(x, x, (short)-1, 4);
    if constexpr (same<X, V<double, 8>>) return (X)__builtin_ia32_sqrtpd512_mask(x, x, (char)-1, 4);
#endif
#ifdef __AVX__
    if constexpr (same<X, V<float, 8>>) return (X)__builtin_ia32_sqrtps256(x);
    if constexpr (same<X, V<double, 4>>) return (X)__builtin_ia32_sqrtpd256(x);
#endif
    return each(x, [](E<X> v) { return sqrt_(v); });
  }
}
template <class X> DV X fma_(X a, X b, X c) {
#ifdef __FMA__
  if constexpr (is_scalar<X>)
    return sizeof(X) == 4 ? (X)__builtin_fmaf(a, b, c) : (X)__builtin_fma(a, b, c);
#ifdef __AVX512F__
  if constexpr (same<X, V<float, 16>>)
    return (X)__builtin_ia32_vfmaddps512_mask(a, b, c, (short)-1, 4);
  if constexpr (same<X, V<double, 8>>)
    return (X)__builtin_ia32_vfmaddpd512_mask(a, b, c, (char)-1, 4);
#endif
  if constexpr (same<X, V<float, 8>>) return (X)__builtin_ia32_vfmaddps256(a, b, c);
  if constexpr (same<X, V<double, 4>>) return (X)__builtin_ia32_vfmaddpd256(a, b, c);
#endif
  return a * b + c;
}

// --- simple arithmetic -------------------------------------------------------------------------

template <class X> DV X mul_bytes(X x, X y) {
  return converted<E<X>>(widen_bytes(x) * widen_bytes(y));
}
template <class X> DV X fabs_(X x) {
  using S = typename signed_of<sizeof(E<X>)>::type;
  constexpr S clear = (S)~((S)1 << (sizeof(S) * 8 - 1));
  return bits<X>(bits<like<S, X>>(x) & clear);
}
template <class X> DV X abs_(X x) {
  if constexpr (is_float<E<X>>) return fabs_(x);
  else if constexpr ((E<X>)-1 > 0) return x;
  else return sel(mask(x < 0), (X)(0 - x), x);
}
template <class X> DV X copysign_(X x, X y) {
  using S = typename signed_of<sizeof(E<X>)>::type;
  constexpr S clear = (S)~((S)1 << (sizeof(S) * 8 - 1));
  auto a = bits<like<S, X>>(x), b = bits<like<S, X>>(y);
  return bits<X>((a & clear) | (b & (S)~clear));
}
template <class X> DV X full(E<X> x) {
  if constexpr (is_scalar<X>) return x;
  else return x - X{};
}
// (A float scalar in a vector of its own: else there would be a jump, which random numbers mislead.)
template <class X> DV X vmax(X a, X b) {
  if constexpr (is_scalar<X> && is_float<X>)
    return vmax(V<X, 16 / sizeof(X)>{a}, V<X, 16 / sizeof(X)>{b})[0];
  else {
#ifdef __AVX512F__
  if constexpr (same<X, V<float, 16>>)  // the instruction gives b where either is a NaN
    return a != a ? a : (X)__builtin_ia32_maxps512_mask(a, b, a, (short)-1, 4);
#endif
  if constexpr (is_float<E<X>>) return (a > b) | (a != a) ? a : b;
  else return a > b ? a : b;
  }
}
template <class X> DV X vmin(X a, X b) {
  if constexpr (is_scalar<X> && is_float<X>)
    return vmin(V<X, 16 / sizeof(X)>{a}, V<X, 16 / sizeof(X)>{b})[0];
  else {
#ifdef __AVX512F__
  if constexpr (same<X, V<float, 16>>)
    return a != a ? a : (X)__builtin_ia32_minps512_mask(a, b, a, (short)-1, 4);
#endif
  if constexpr (is_float<E<X>>) return (a < b) | (a != a) ? a : b;
  else return a < b ? a : b;
  }
}
template <class X> DV X relu_(X x) { return sel(mask(x < 0), full<X>(0), x); }
template <class X> DV X sign_(X x) {
  X zero = full<X>(0), one = full<X>(1);
  X r = sel(mask(x > 0), one, zero);
  if constexpr (is_float<E<X>> || (E<X>)-1 < 0) r = sel(mask(x < 0), (X)(zero - one), r);
  return r;
}
template <class X> DV auto isnan_(X x) { return mask(x != x); }
template <class X> DV auto isinf_(X x) { return mask(fabs_(x) == (E<X>)__builtin_inf()); }
template <class X> DV X rsqrt_(X x) { return 1 / sqrt_(x); }
template <class X> DV X shl(X a, X b) {
  return each(a, b, [](E<X> x, E<X> n) -> E<X> {
    return n < 0 || n >= (E<X>)(8 * sizeof x) ? 0 : (E<X>)((uint64_t)x << n);
  });
}
template <class X> DV X shr(X a, X b) {
  return each(a, b, [](E<X> x, E<X> n) -> E<X> {
    return n < 0 || n >= (E<X>)(8 * sizeof x) ? (E<X>)(x < 0 ? -1 : 0) : (E<X>)(x >> n);
  });
}
[[noreturn]] __attribute__((cold, noinline, unused)) static void refuse_index(
    int64_t at, int64_t size, int dim, bool is_index_error) {
  char text[160];
  __builtin_snprintf(text, sizeof text,
      "index out of range: index %lld is out of bounds for dimension %d with size %lld",
      (long long)at, dim, (long long)size);
  if (is_index_error) std::__throw_out_of_range(text);
  std::__throw_runtime_error(text);
}
// The index, if it lies in 0 .. size - 1. To what was negative the size has been added if `wrapped`.
template <bool is_index_error, bool wrapped, class X> DV X check_index(X x, int64_t size, int dim) {
  if (__builtin_expect(any(mask((x < 0) | (x > (E<X>)(size - 1)))), 0)) {
    each(x, [=](E<X> at) -> E<X> {
      if (at < 0 || at >= size)
        refuse_index(wrapped && at < 0 ? at - size : at, size, dim, is_index_error);
      return at;
    });
  }
  return x;
}

// --- quotients: floats here; integers come as scalars only ------------------------------------------

template <class X> DV void nonzero(X b) {
  if (b == 0) std::__throw_runtime_error("ZeroDivisionError");
}
template <class X> DV X truncdiv(X a, X b) {
  nonzero(b);
  return b == (X)-1 && (X)-1 < 0 ? (X)(0 - (uint64_t)a) : (X)(a / b);
}
template <class X> DV X library_fmod(X a, X b) {
  return each(a, b, [](E<X> x, E<X> y) -> E<X> { return sizeof x == 4 ? (E<X>)__builtin_fmodf(x, y) : (E<X>)__builtin_fmod(x, y); });
}
template <class X> DV X fmod_(X a, X b) {
  if constexpr (is_float<E<X>>) {
#ifdef __FMA__
    // Exact: a quotient of so few digits is at most one too large, and what is left of the dividend
    // is then a number of this type.
    constexpr E<X> most = sizeof(E<X>) == 4 ? (E<X>)(1 << 22) : (E<X>)((int64_t)1 << 51);
    X x = fabs_(a), y = fabs_(b);
    if (__builtin_expect(any(mask(!((x < y * most) & (y < (E<X>)__builtin_inf())))), 0))
      return library_fmod(a, b);
    X r = fma_(0 - trunc_(x / y), y, x);
    return copysign_(sel(mask(r < 0), r + y, r), a);
#else
    return library_fmod(a, b);
#endif
  } else {
    nonzero(b);
    return b == (X)-1 && (X)-1 < 0 ? (X)0 : (X)(a % b);
  }
}
template <class X> DV X remainder_(X a, X b) {
  X r = fmod_(a, b);
  if constexpr (is_float<E<X>>) return sel(mask((r != 0) & ((r < 0) != (b < 0))), r + b, r);
  else return r != 0 && ((r < 0) != (b < 0)) ? (X)(r + b) : r;
}
template <class X> DV X floordiv(X a, X b) {
  if constexpr (is_float<E<X>>) {
    X r = fmod_(a, b), q = (a - r) / b;
    q = sel(mask((r != 0) & ((b < 0) != (r < 0))), q - 1, q);
    X f = floor_(q);
    f = sel(mask(q - f > (E<X>)0.5), f + 1, f);
    f = sel(mask(q == 0), copysign_(full<X>(0), a / b), f);
    return sel(mask(b == 0), a / b, f);
  } else {
    X q = truncdiv(a, b), r = (X)(a - q * b);
    return r != 0 && ((r < 0) != (b < 0)) ? (X)(q - 1) : q;
  }
}

// --- horizontal reductions -----------------------------------------------------------------------

template <class X, class F> DV E<X> fold(X x, F f) {
  E<X> a[lanes<X>];
  put(a, x);
  for (int half = lanes<X> / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) a[i] = f(a[i], a[i + half]);
  return a[0];
}
template <class X> DV E<X> hsum(X x) { return fold(x, [](E<X> a, E<X> b) -> E<X> { return a + b; }); }
template <class X> DV E<X> hprod(X x) { return fold(x, [](E<X> a, E<X> b) -> E<X> { return a * b; }); }
template <class X> DV E<X> hmax(X x) { return fold(x, [](E<X> a, E<X> b) -> E<X> { return vmax(a, b); }); }
template <class X> DV E<X> hmin(X x) { return fold(x, [](E<X> a, E<X> b) -> E<X> { return vmin(a, b); }); }
template <class X> DV E<X> hxor(X x) { return fold(x, [](E<X> a, E<X> b) -> E<X> { return a ^ b; }); }
template <class M> DV bool hany(M m) { return any(m); }
template <class M> DV bool hall(M m) { return !any(~m); }

// True where x beats the best so far (`biggest`: or is a NaN and the best is not).
template <bool biggest, class X> DV auto beats(X x, X best) {
  auto wins = biggest ? x > best : x < best;
  if constexpr (is_float<E<X>>) return mask(wins | ((x != x) & (best == best)));
  else return mask(wins);
}
// The same where elements come in another order than they are counted in: of equals the first wins.
template <bool biggest, class X, class I> DV auto beats(X x, X best, I place, I at) {
  auto equal = x == best;
  if constexpr (is_float<E<X>>) equal |= (x != x) & (best != best);
  return mask(beats<biggest>(x, best) | (mask(equal) & mask(place < at)));
}
// The position of the best lane, the earliest of equals.
template <bool biggest, class X, class I> DV int64_t hposition(X best, I at) {
  const E<X> b = biggest ? hmax(best) : hmin(best);
  auto equal = best == b;
  if constexpr (is_float<E<X>>)
    if (b != b) equal = best != best;
  constexpr E<I> none = sizeof(E<I>) == 4 ? (E<I>)INT32_MAX : (E<I>)INT64_MAX;
  return hmin(sel(mask(equal), at, full<I>(none)));
}

}  // namespace dovetail_simd
