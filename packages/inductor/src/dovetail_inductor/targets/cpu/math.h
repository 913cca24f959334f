// Elementary functions. For float, from their series and from polynomials fitted to the functions
// (Chebyshev), a few units in the last place at most; some in double, rounded once. For double,
// those of double.h; where there is no fused multiply-add, the C library's, lane by lane.
namespace dovetail_simd {

// A scalar is computed in a vector of 4 lanes, so that it gives the very bits a vector would.
#ifdef __FMA__
#define DV_OF_DOUBLE(name, x)                                                                     \
  if constexpr (is_scalar<X>) return double_##name(full<V<double, 4>>(x))[0];                     \
  else return double_##name(x);
#else
#define DV_OF_DOUBLE(name, x) return library::name##_(x);
#endif
#define DV_FUNCTION(name)                                                                         \
  template <class X> DV X name##_(X x) {                                                          \
    if constexpr (sizeof(E<X>) == 8) { DV_OF_DOUBLE(name, x) }                                    \
    else if constexpr (is_scalar<X>) return vector_##name##_(full<V<float, 4>>(x))[0];            \
    else return vector_##name##_(x);                                                              \
  }

// 2^n * p for integral n in -252 .. 254, through two factors so that subnormals come out right.
template <class X> DV X scale(X p, X n) {
#ifdef __AVX512F__
  if constexpr (same<X, V<float, 16>>)
    return (X)__builtin_ia32_scalefps512_mask(p, n, p, (short)-1, 4);
#endif
  auto i = cast<int32_t>(n);
  auto half = i >> 1;
  return p * bits<X>((half + 127) << 23) * bits<X>((i - half + 127) << 23);
}
template <class X> DV X exp_series(X r) {  // |r| <= log(2)/2
  return horner(r, full<X>(1.f / 5040), 1.f / 720, 1.f / 120, 1.f / 24, 1.f / 6, 0.5f, 1.f, 1.f);
}
template <class X> DV X vector_exp_(X x) {
  X y = sel(mask(x < -104.f), full<X>(-104.f), x);
  y = sel(mask(y > 89.f), full<X>(89.f), y);
  X n = round_(y * 1.44269504f);
  // log(2) = 0.693359375 - 2.12194440e-4, the first exact in 10 bits
  X r = fma_(n, full<X>(2.12194440e-4f), fma_(n, full<X>(-0.693359375f), y));
  return scale(exp_series(r), n);
}
DV_FUNCTION(exp)
template <class X> DV X vector_exp2_(X x) {
  X y = sel(mask(x < -152.f), full<X>(-152.f), x);
  y = sel(mask(y > 129.f), full<X>(129.f), y);
  X n = round_(y);
  return scale(exp_series((y - n) * 0.693147181f), n);
}
DV_FUNCTION(exp2)
template <class X> DV X vector_expm1_(X x) {
  X s = horner(x, full<X>(1.f / 362880), 1.f / 40320, 1.f / 5040, 1.f / 720, 1.f / 120, 1.f / 24,
               1.f / 6, 0.5f);
  X near = fma_(x * x, s, x);
  near = sel(mask(x == 0), x, near);
  return sel(mask(fabs_(x) < 0.6f), near, vector_exp_(x) - 1);
}
DV_FUNCTION(expm1)

// x = m * 2^e with m in sqrt(1/2) .. sqrt(2); log(m) = 2 atanh(s), s = (m-1)/(m+1).
template <class X> DV X log_parts(X x, X& e) {
  auto tiny = mask(x < 1.17549435e-38f);
  X y = sel(tiny, x * 8388608.f, x);
  auto u = bits<like<int32_t, X>>(y);
  auto k = (u - 0x3f3504f3) >> 23;
  e = cast<float>(k) - sel(tiny, full<X>(23.f), full<X>(0.f));
  X f = bits<X>(u - (k << 23)) - 1.f;
  X s = f / (f + 2.f), z = s * s;
  X t = z * horner(z, full<X>(2.f / 11), 2.f / 9, 2.f / 7, 2.f / 5, 2.f / 3);
  // 2s + s*t == f - s*(f - t), and f is exact
  return f - s * (f - t);
}
template <class X> DV X log_ends(X x, X r) {
  const float inf = __builtin_inff();
  r = sel(mask(x == inf), x, r);
  r = sel(mask(x == 0), full<X>(-inf), r);
  return sel(mask((x < 0) | (x != x)), full<X>(__builtin_nanf("")), r);
}
template <class X> DV X vector_log_(X x) {
  X e, m = log_parts(x, e);
  return log_ends(x, fma_(e, full<X>(0.693359375f), fma_(e, full<X>(-2.12194440e-4f), m)));
}
DV_FUNCTION(log)
template <class X> DV X vector_log2_(X x) {
  X e, m = log_parts(x, e);
  // log2(e) = 1.4426950216 + 1.92596e-8
  return log_ends(x, fma_(m, full<X>(1.44269502f), fma_(m, full<X>(1.925963e-8f), e)));
}
DV_FUNCTION(log2)
template <class X> DV X vector_log1p_(X x) {
  X u = 1 + x;
  X r = vector_log_(u) + (x - (u - 1)) / u;  // the second term: what 1 + x lost
  r = sel(mask(u == __builtin_inff()), u, r);
  r = sel(mask(u == 0), full<X>(-__builtin_inff()), r);
  return sel(mask(fabs_(x) < 1e-7f), x, r);
}
DV_FUNCTION(log1p)

template <class X> DV X sigmoid_(X x) { return 1 / (1 + exp_(0 - x)); }
template <class X> DV X vector_tanh_(X x) {
  X a = fabs_(x);
  a = sel(mask(a > 9.1f), full<X>(9.1f), a);  // tanh is 1 from there; NaN passes
  X t = vector_expm1_(a + a);
  return copysign_(t / (t + 2), x);
}
DV_FUNCTION(tanh)
// x * P(x^2) / Q(x^2), fitted to erf on 0 .. 3.9242; it rounds to 1 beyond. The few beyond 2.5 are
// 1 - 2^R(x), with R fitted to the logarithm of erfc: never above 1, and 1 - erf(x) is as exact.
template <class X> DV X vector_erf_(X x) {
  X a = fabs_(x);
  a = sel(mask(a > 3.9242f), full<X>(3.9242f), a);
  X z = a * a;
  X p = horner(z, full<X>(2.046848848e-6f), 0.0002848132325f, 0.003770061815f, 0.05276176244f,
               0.1905324109f, 1.128379146f);
  X q = horner(z, full<X>(3.805466664e-5f), 0.001163300863f, 0.01497821496f, 0.1141578845f,
               0.5021876928f, 1.f);
  X r = a * p / q;
  auto far = mask(a > 2.5f);
  if (__builtin_expect(any(far), 0)) {
    X y = horner(a, full<X>(0.001646493334f), -0.03052253927f, -1.195343595f, -1.27604325f,
                 -0.1892533227f);
    X n = round_(y);
    r = sel(far, 1.f - scale(exp_series((y - n) * 0.693147181f), n), r);
  }
  return copysign_(r, x);
}
DV_FUNCTION(erf)

// Quarter turns: x = n * pi/2 + r. Large arguments go to the C library.
template <class X> DV X quarter(X x, like<int32_t, X>& n) {
  X k = round_(x * 0.636619772f);
  n = cast<int32_t>(k);
  X r = fma_(k, full<X>(-1.5703125f), x);  // pi/2 in three parts
  r = fma_(k, full<X>(-4.837512969970703125e-4f), r);
  return fma_(k, full<X>(-7.54978995489188e-8f), r);
}
template <class X> DV X sin_series(X r) {
  X z = r * r;
  X s = horner(z, full<X>(1.f / 362880), -1.f / 5040, 1.f / 120, -1.f / 6);
  return fma_(r * z, s, r);
}
template <class X> DV X cos_series(X r) {
  X z = r * r;
  return horner(z, full<X>(-1.f / 3628800), 1.f / 40320, -1.f / 720, 1.f / 24, -0.5f, 1.f);
}
template <class X> DV X sine(X x, int shift) {
  like<int32_t, X> n;
  X r = quarter(x, n);
  n = n + shift;
  X y = sel(mask((n & 1) != 0), cos_series(r), sin_series(r));
  return sel(mask((n & 2) != 0), 0 - y, y);
}
template <class X> DV X vector_sin_(X x) {
  if (__builtin_expect(any(mask(fabs_(x) > 1e4f)), 0)) return library::sin_(x);
  return sel(mask(x == 0), x, sine(x, 0));
}
DV_FUNCTION(sin)
template <class X> DV X vector_cos_(X x) {
  if (__builtin_expect(any(mask(fabs_(x) > 1e4f)), 0)) return library::cos_(x);
  return sine(x, 1);
}
DV_FUNCTION(cos)
// Halves of a vector, and two halves as one. (By way of memory, a wide read would wait for two narrow
// writes.)
template <int at, class H, class X> DV H part(const X& x) {
#ifdef __AVX512F__
  if constexpr (sizeof(X) == 64)
    return bits<H>(__builtin_ia32_extractf64x4_mask(bits<V<double, 8>>(x), at, V<double, 4>{}, -1));
#endif
#ifdef __AVX__
  if constexpr (sizeof(X) == 32)
    return bits<H>(__builtin_ia32_vextractf128_ps256(bits<V<float, 8>>(x), at));
#endif
  H r;
  __builtin_memcpy(&r, (const char*)&x + at * sizeof r, sizeof r);
  return r;
}
template <class X, class H> DV X both(H low, H high) {
  X r;
#ifdef __AVX512F__
  if constexpr (sizeof(X) == 64) {
    auto wide = V<double, 8>{};
    wide = __builtin_ia32_insertf64x4_mask(wide, bits<V<double, 4>>(low), 0, wide, -1);
    return bits<X>(__builtin_ia32_insertf64x4_mask(wide, bits<V<double, 4>>(high), 1, wide, -1));
  }
#endif
#ifdef __AVX__
  if constexpr (sizeof(X) == 32) {
    auto wide = __builtin_ia32_ps256_ps(bits<V<float, 4>>(low));
    return bits<X>(__builtin_ia32_vinsertf128_ps256(wide, bits<V<float, 4>>(high), 1));
  }
#endif
  __builtin_memcpy(&r, &low, sizeof low);
  __builtin_memcpy((char*)&r + sizeof low, &high, sizeof high);
  return r;
}
// A function of doubles at floats, which is rounded once: as many at a time as fill a register.
template <class F, class X, class... Y> DV X in_double(F f, X x, Y... y) {
#ifdef __AVX512F__
  constexpr int most = 8;
#else
  constexpr int most = 4;
#endif
  if constexpr (lanes<X> > most) {
    using H = V<float, lanes<X> / 2>;
    H low = in_double(f, part<0, H>(x), part<0, H>(y)...);
    return both<X>(low, in_double(f, part<1, H>(x), part<1, H>(y)...));
  } else return cast<float>(f(cast<double>(x), cast<double>(y)...));
}
template <class D> DV D tangent(D d) {
  D n = round_(d * 0.6366197723675814);  // (the first part of pi / 2 has few digits: exact)
  D r = fma_(n, full<D>(-6.07710050650619224932e-11), d - n * 1.57079632673412561417), z = r * r;
  D s = horner(z, full<D>(-1. / 39916800), 1. / 362880, -1. / 5040, 1. / 120, -1. / 6);
  s = fma_(z * r, s, r);
  D c = horner(z, full<D>(-1. / 3628800), 1. / 40320, -1. / 720, 1. / 24, -0.5, 1.);
  D half = n * 0.5;
  auto odd = half != trunc_(half);
  return (odd ? 0 - c : s) / (odd ? s : c);
}
template <class X> DV X vector_tan_(X x) {
  if (__builtin_expect(any(mask(fabs_(x) > 512.f)), 0)) return library::tan_(x);
  return sel(mask(x == 0), x, in_double([](auto d) { return tangent(d); }, x));
}
DV_FUNCTION(tan)

// The angle of a slope y / x, of numbers that are not negative. (The polynomial was fitted at
// Chebyshev points: a relative error of 3e-9.)
template <class D> DV D angle(D y, D x) {
  auto flat = y <= 0.41421356237 * x, steep = y > 2.41421356237 * x;  // tangents of pi/8, 3 pi/8
  D up = steep ? 0 - x : flat ? y : y - x, along = steep ? y : flat ? x : y + x;
  D t = y == 0 ? y : up / along, z = t * t;
  D p = horner(z, full<D>(-0.06459164603580515), 0.10746234577112115, -0.14264226634036692,
               0.1999954990335647, -0.3333333181260843);
  D quarters = steep ? full<D>(2.) : flat ? full<D>(0.) : full<D>(1.);
  return fma_(quarters, full<D>(0.7853981633974483), fma_(z * t, p, t));
}
template <class X> DV X vector_atan_(X x) {
  auto arc = [](auto y) { return angle(y, full<decltype(y)>(1.)); };
  return copysign_(in_double(arc, fabs_(x)), x);
}
DV_FUNCTION(atan)
// The same of two arguments.
#define DV_FLOAT_FUNCTION2(name)                                                                  \
  template <class X> DV X name(X x, X y) {                                                        \
    if constexpr (sizeof(E<X>) == 8) return library::name(x, y);                                  \
    else if constexpr (is_scalar<X>)                                                              \
      return vector_##name(full<V<float, 4>>(x), full<V<float, 4>>(y))[0];                        \
    else return vector_##name(x, y);                                                              \
  }
template <class D> DV D arc_of_point(D y, D x) {  // y is not negative
  D a = fabs_(x);
  auto same = a == y;  // two infinities, perhaps
  D one = a == 0 ? a : full<D>(1.), r = angle(same ? one : y, same ? one : a);
  return copysign_(full<D>(1.), x) < 0 ? 3.141592653589793 - r : r;
}
template <class X> DV X vector_atan2_(X y, X x) {
  X r = in_double([](auto b, auto a) { return arc_of_point(b, a); }, fabs_(y), x);
  return sel(mask((x != x) | (y != y)), x + y, copysign_(r, y));
}
DV_FLOAT_FUNCTION2(atan2_)
template <class X> DV X vector_hypot_(X x, X y) {  // squares of floats are exact in double
  auto a = cast<double>(x), b = cast<double>(y);
  X r = cast<float>(sqrt_(a * a + b * b));
  const float inf = __builtin_inff();
  return sel(mask((fabs_(x) == inf) | (fabs_(y) == inf)), full<X>(inf), r);
}
DV_FLOAT_FUNCTION2(hypot_)
template <class X> DV X nextafter_(X x, X y) {
  using S = typename signed_of<sizeof(E<X>)>::type;
  auto at = bits<like<S, X>>(x), one = full<like<S, X>>((S)1);
  auto away = mask((x < y) == (x > 0));
  X r = bits<X>(sel(away, at + one, at - one));
  r = sel(mask(x == 0), copysign_(bits<X>(one), y), r);
  r = sel(mask(x == y), y, r);
  return sel(mask((x != x) | (y != y)), x + y, r);
}

template <class D> DV D power_of_floats(D base, D e) {  // (the series of 2^r = e^(r log(2)))
  D k;
  Pair<D> rest = log_rest(base, k);
  D t = e * fma_(rest.hi + rest.lo, full<D>(1.4426950408889634), k);
  t = t > 1000. ? full<D>(1000.) : t < -1000. ? full<D>(-1000.) : t;
  D n = t + low_bits - low_bits, r = (t - n) * 0.6931471805599453;
  D p = horner(r, full<D>(1. / 3628800), 1. / 362880, 1. / 40320, 1. / 5040, 1. / 720, 1. / 120,
               1. / 24, 1. / 6, 0.5, 1., 1.);
  return scaled(p, n);
}
template <class X> DV X vector_float_pow(X x, X y) {  // ends are left to the C library
  X a = fabs_(x), half = y * 0.5f;
  X r = in_double([](auto base, auto e) { return power_of_floats(base, e); }, a, y);
  r = sel(mask((x < 0) & (trunc_(half) != half)), copysign_(r, x), r);
  r = sel(mask((x < 0) & (trunc_(y) != y)), full<X>(__builtin_nanf("")), r);
  const float inf = __builtin_inff();
  auto usual = mask((a > 0) & (a < inf) & (fabs_(y) < inf));
  return __builtin_expect(any(~usual), 0) ? sel(usual, r, library::float_pow(x, y)) : r;
}
DV_FLOAT_FUNCTION2(float_pow)
template <class X> DV X pow_(X x, X y) {
  if constexpr (is_float<E<X>>) return float_pow(x, y);
  else return each(x, y, [](E<X> base, E<X> n) -> E<X> {
    if (n < 0) return base == 1 ? 1 : base == (E<X>)-1 ? (n % 2 == 0 ? 1 : (E<X>)-1) : 0;
    uint64_t r = 1, b = (uint64_t)base;
    for (uint64_t k = (uint64_t)n; k; k >>= 1, b *= b) if (k & 1) r *= b;
    return (E<X>)r;
  });
}
// By Euclid, of the sizes: an integer without an opposite is its own.
template <class X> DV X gcd_(X x, X y) {
  return each(x, y, [](E<X> v, E<X> w) -> E<X> {
    E<X> a = v < 0 ? (E<X>)(0 - v) : v, b = w < 0 ? (E<X>)(0 - w) : w;
    while (a != 0) {
      const E<X> rest = b % a;
      b = a;
      a = rest;
    }
    return b;
  });
}

}  // namespace dovetail_simd
