// Elementary functions of double in vectors, from their series, with polynomials fitted at
// Chebyshev points to a few 1e-17 of the functions. What decides the last bit is carried as a sum of
// two numbers (Dekker, "A floating-point technique for extending the available precision", 1971), so
// that most errors stay below 0.7 units in the last place. Reductions of arguments follow Cody and
// Waite, "Software Manual for the Elementary Functions", 1980.
namespace dovetail_simd {

#define DV_LIBRARY(name, function)                                                                \
  template <class X> DV X name(X x) {                                                             \
    return each(x, [](E<X> v) -> E<X> {                                                           \
      if constexpr (sizeof(E<X>) == 4) return __builtin_##function##f(v);                         \
      else return __builtin_##function(v);                                                        \
    });                                                                                           \
  }
#define DV_LIBRARY2(name, function)                                                               \
  template <class X> DV X name(X x, X y) {                                                        \
    return each(x, y, [](E<X> v, E<X> w) -> E<X> {                                                \
      if constexpr (sizeof(E<X>) == 4) return __builtin_##function##f(v, w);                      \
      else return __builtin_##function(v, w);                                                     \
    });                                                                                           \
  }
namespace library {
DV_LIBRARY(exp_, exp) DV_LIBRARY(exp2_, exp2) DV_LIBRARY(expm1_, expm1) DV_LIBRARY(log_, log)
DV_LIBRARY(log2_, log2) DV_LIBRARY(log10_, log10) DV_LIBRARY(log1p_, log1p) DV_LIBRARY(tanh_, tanh)
DV_LIBRARY(erf_, erf) DV_LIBRARY(sin_, sin) DV_LIBRARY(cos_, cos) DV_LIBRARY(tan_, tan)
DV_LIBRARY(asin_, asin) DV_LIBRARY(acos_, acos) DV_LIBRARY(atan_, atan) DV_LIBRARY(sinh_, sinh)
DV_LIBRARY(cosh_, cosh) DV_LIBRARY(asinh_, asinh) DV_LIBRARY(acosh_, acosh)
DV_LIBRARY(atanh_, atanh)
DV_LIBRARY(erfc_, erfc) DV_LIBRARY(lgamma_, lgamma)
DV_LIBRARY2(atan2_, atan2) DV_LIBRARY2(hypot_, hypot) DV_LIBRARY2(float_pow, pow)
}  // namespace library

// Coefficients from the highest power down.
template <class X> DV X horner(X x, X acc) { return acc; }
template <class X> DV X two_chains(X x, X, X p, X q) { return fma_(p, x, q); }
template <class X, class... C> DV X two_chains(X x, X z, X p, X q, E<X> next, C... rest) {
  return two_chains(x, z, q, fma_(p, z, full<X>(next)), rest...);
}
template <class X, class... C> DV X horner(X x, X acc, E<X> next, C... rest) {
  // of many terms every other by itself, as each waits for the one before it
  if constexpr (sizeof(E<X>) == 8 && sizeof...(rest) > 6)
    return two_chains(x, x * x, acc, full<X>(next), rest...);
  else return horner(x, fma_(acc, x, full<X>(next)), rest...);
}

// An unrounded sum.
template <class D> struct Pair { D hi, lo; };
template <class D> DV Pair<D> fast_sum(D a, D b) {  // |a| >= |b|, or a is 0
  D s = a + b;
  return {s, b - (s - a)};
}
template <class D> DV Pair<D> sum_of(D a, D b) {
  D s = a + b, t = s - a;
  return {s, (a - (s - t)) + (b - t)};
}
template <class D> DV Pair<D> product(D a, D b) {
  D p = a * b;
  return {p, fma_(a, b, 0 - p)};
}
template <class D> DV Pair<D> product(Pair<D> a, Pair<D> b) {
  Pair<D> p = product(a.hi, b.hi);
  return {p.hi, p.lo + fma_(a.hi, b.lo, a.lo * b.hi)};
}
template <class D> DV Pair<D> quotient(Pair<D> a, Pair<D> b) {
  D inverse = 1 / b.hi, q = a.hi * inverse;
  return {q, (fma_(0 - q, b.hi, a.hi) + (a.lo - q * b.lo)) * inverse};
}
template <class D> DV Pair<D> root(Pair<D> a) {
  D s = sqrt_(a.hi), rest = (fma_(0 - s, s, a.hi) + a.lo) * (0.5 / s);
  return {s, s == 0 ? s : rest};
}
template <class M, class D> DV Pair<D> chosen(M m, Pair<D> a, Pair<D> b) {
  return {m ? a.hi : b.hi, m ? a.lo : b.lo};
}
template <class D> DV D joined(Pair<D> a) { return a.hi + a.lo; }
template <class D> DV Pair<D> constant(double hi, double lo) { return {full<D>(hi), full<D>(lo)}; }

// Integers, by way of a number of which they are the low bits.
const double low_bits = 6755399441055744.;  // 1.5 * 2^52
template <class D> DV auto integer(D n) { return bits<like<int64_t, D>>(n + low_bits); }
template <class D> DV D power_of_two(D n) { return bits<D>((integer(n) + 1023) << 52); }
// 2^n * p, where that is a normal number.
template <class D> DV D scaled(D p, D n) {
  return bits<D>(bits<like<int64_t, D>>(p) + (integer(n) << 52));
}
template <class D> DV D scaled_anywhere(D p, D n) {  // in two steps: it may be subnormal
  D half = round_(n * 0.5 - 0.25);
  return p * power_of_two(half) * power_of_two(n - half);
}

// --- exponentials --------------------------------------------------------------------------------

// e^(x + low) = 2^n (1 + less_one) = 2^n whole
template <class D> struct Power { D n; Pair<D> less_one, whole; };
template <class D> DV Power<D> power_of_rest(D n, D r, D low) {  // |r| <= log(2) / 2
  D q = horner(r, full<D>(2.5100377619606372e-08), 2.7620078203806394e-07, 2.7557268476553695e-06,
               2.4801521317484083e-05, 0.00019841269863042963, 0.0013888888917199863,
               0.008333333333330063, 0.04166666666662416, 0.16666666666666669, 0.5000000000000001);
  Pair<D> s = fast_sum(r, fma_(r * r, q, fma_(low, r, low))), h = fast_sum(full<D>(1.), s.hi);
  return {n, s, {h.hi, h.lo + s.lo}};
}
template <class D> DV Power<D> power_of(D x) {
  D n = x * 1.4426950408889634 + low_bits - low_bits;
  D t = fma_(n, full<D>(-6.93147180369123816490e-1), x), c = n * 1.90821492927058770002e-10;
  D r = t - c;
  return power_of_rest(n, r, (t - r) - c);
}
// A power between the least argument of which it is not 0 and the largest of which it is finite;
// where all arguments are smaller than `usual`, all results are normal numbers.
template <class D, class F>
__attribute__((noinline, unused)) static D power_anywhere(D x, F f, double least, double largest) {
  D y = x < least ? full<D>(least) : x;
  Power<D> e = f(y > largest ? full<D>(largest) : y);
  return scaled_anywhere(joined(e.whole), e.n);
}
template <class D, class F>
DV D power_within(D x, F f, double usual, double least, double largest) {
  if (__builtin_expect(any(!(fabs_(x) < usual)), 0)) return power_anywhere(x, f, least, largest);
  Power<D> e = f(x);
  return scaled(joined(e.whole), e.n);
}
template <class D> DV D double_exp(D x) {
  return power_within(x, [](D y) { return power_of(y); }, 708., -746., 710.);
}
template <class D> DV Power<D> power_of_two_at(D x) {
  D n = x + low_bits - low_bits;
  Pair<D> r = product(x - n, full<D>(0.6931471805599453));
  return power_of_rest(n, r.hi, fma_(x - n, full<D>(2.3190468138462996e-17), r.lo));
}
template <class D> DV D double_exp2(D x) {
  return power_within(x, [](D y) { return power_of_two_at(y); }, 1021., -1080., 1025.);
}
template <class D> DV D double_expm1(D x) {
  D y = x < -40. ? full<D>(-40.) : x;
  Power<D> e = power_of(y > 710. ? full<D>(710.) : y);
  D one = e.n > 60. ? full<D>(0.) : power_of_two(0 - e.n);
  Pair<D> d = sum_of(e.whole.hi, 0 - one);
  D r = scaled_anywhere(d.hi + (d.lo + e.whole.lo), e.n);
  r = e.n == 0 ? joined(e.less_one) : r;
  return x == 0 ? x : r;
}
// Half of e^a and of e^-a, for a up to where the first overflows.
template <class D> DV void halves(D a, Pair<D>& up, Pair<D>& down) {
  Power<D> e = power_of(a);
  D scale = power_of_two(e.n - 2);  // (there is no 2^1024)
  up = {2 * e.whole.hi * scale, 2 * e.whole.lo * scale};
  down = quotient({full<D>(0.25), full<D>(0.)}, up);
}
template <class D> DV D up_to(D a, double most) { return a > most ? full<D>(most) : a; }
const double last_cosh = 710.4758600739439;
template <class D> DV D double_sinh(D x) {
  D a = fabs_(x), z = a * a;
  Pair<D> up, down;
  halves(up_to(a, last_cosh), up, down);
  Pair<D> s = fast_sum(up.hi, 0 - down.hi);
  D r = s.hi + (s.lo + (up.lo - down.lo));
  D p = horner(z, full<D>(7.6e-13), 1.6059048396350562e-10, 2.505210836405804e-08,
               2.755731922404034e-06, 0.00019841269841269773, 0.008333333333333333,
               0.16666666666666666);
  r = a < 0.5 ? fma_(a * z, p, a) : r;
  return copysign_(a > last_cosh ? a * __builtin_inf() : r, x);
}
template <class D> DV D double_cosh(D x) {
  D a = fabs_(x);
  Pair<D> up, down;
  halves(up_to(a, last_cosh), up, down);
  Pair<D> s = fast_sum(up.hi, down.hi);
  return a > last_cosh ? a * __builtin_inf() : s.hi + (s.lo + (up.lo + down.lo));
}
template <class D> DV D double_tanh(D x) {
  D a = fabs_(x), z = a * a;
  D p = horner(z, full<D>(-1.833596211003942e-05), 8.154737806525365e-05, -0.0002322510406793851,
               0.0005880541548418729, -0.001455464802800745, 0.0035920831663434575,
               -0.008863232113541474, 0.02186948838378093, -0.05396825396475762,
               0.13333333333330197, -0.3333333333333333);
  D near = fma_(a * z, p, a);
  Power<D> e = power_of(up_to(a + a, 40.));  // 1 - 2 / (e^2a + 1)
  D scale = power_of_two(e.n);
  Pair<D> d = fast_sum(e.whole.hi * scale, full<D>(1.));
  d.lo = fma_(e.whole.lo, scale, d.lo);
  Pair<D> q = quotient(Pair<D>{full<D>(2.), full<D>(0.)}, d);
  Pair<D> r = fast_sum(full<D>(1.), 0 - q.hi);
  return copysign_(a < 0.6 ? near : r.hi + (r.lo - q.lo), x);
}

// --- logarithms ----------------------------------------------------------------------------------

// log(x + low) = k log(2) + rest, of a normal x: x = m 2^k with m in sqrt(1/2) .. sqrt(2), and
// log(m) = 2 atanh(s) with s = f / (2 + f), f = m - 1.
template <class D> DV Pair<D> log_rest(D x, D& k) {
  auto u = bits<like<uint64_t, D>>(x) + 0x00095f619980c433u;  // 1 takes the place of sqrt(1/2)
  k = bits<D>(u >> 52 | 0x4330000000000000u) - (4503599627370496. + 1023);
  D f = bits<D>((u & 0x000fffffffffffffu) + 0x3fe6a09e667f3bcdu) - 1.;
  D s = f / (f + 2.), z = s * s;
  D p = horner(z, full<D>(0.14616576421644387), 0.15331711346672997, 0.18182889433757515,
               0.22222211130560726, 0.28571428626001427, 0.3999999999989945, 0.666666666666667);
  Pair<D> h = product(f * 0.5, f), a = fast_sum(f, 0 - h.hi);
  return {a.hi, a.lo + fma_(s, fma_(z, p, h.hi), 0 - h.lo)};
}
template <class D> DV Pair<D> log_pair(D x) {
  D k;
  Pair<D> rest = log_rest(x, k), s = fast_sum(k * 6.93147180369123816490e-1, rest.hi);
  return {s.hi, fma_(k, full<D>(1.90821492927058770002e-10), s.lo + rest.lo)};
}
template <class D> DV Pair<D> log_pair(Pair<D> x) {
  Pair<D> r = log_pair(x.hi);
  return {r.hi, r.lo + x.lo / x.hi};
}
// What a logarithm is at all numbers, by what it is at normal ones.
template <class D, class F> DV D log_anywhere(D x, F f, double of_tiny) {
  auto usual = (x >= 2.2250738585072014e-308) & (x < __builtin_inf());
  if (__builtin_expect(!any(!usual), 1)) return f(x);
  auto tiny = x < 2.2250738585072014e-308;
  D r = f(tiny ? x * 18014398509481984. : x);  // 2^54
  r = tiny ? r + of_tiny : r;
  r = x == __builtin_inf() ? x : r;
  r = x == 0 ? full<D>(-__builtin_inf()) : r;
  return (x < 0) | (x != x) ? full<D>(__builtin_nan("")) : r;
}
template <class D> DV D double_log(D x) {
  return log_anywhere(x, [](D y) { return joined(log_pair(y)); }, -37.42994775023705);
}
template <class D> DV D double_log2(D x) {
  auto f = [](D y) {
    D k;
    Pair<D> rest = log_rest(y, k);
    rest = product(fast_sum(rest.hi, rest.lo),
                   constant<D>(1.4426950408889634, 2.0355273740931033e-17));
    Pair<D> s = fast_sum(k, rest.hi);
    return s.hi + (s.lo + rest.lo);
  };
  return log_anywhere(x, f, -54.);
}
template <class D> DV D double_log10(D x) {
  auto f = [](D y) {
    Pair<D> r = log_pair(y);
    return joined(product(fast_sum(r.hi, r.lo),
                          constant<D>(0.4342944819032518, 1.098319650216765e-17)));
  };
  return log_anywhere(x, f, -16.255619765854984);
}
template <class D> DV D double_log1p(D x) {
  const double inf = __builtin_inf();
  D y = (x > -1) & (x < inf) ? x : full<D>(1.);
  D r = joined(log_pair(sum_of(full<D>(1.), y)));
  r = x == 0 ? x : r;
  r = x == inf ? x : x == -1. ? full<D>(-inf) : r;
  return (x < -1) | (x != x) ? full<D>(__builtin_nan("")) : r;
}
template <class D> DV D double_atanh(D x) {
  D a = fabs_(x), z = a * a, y = a < 1 ? a : full<D>(0.);
  D p = horner(z, full<D>(0.07308288210822193), 0.07665855673336498, 0.09091444716878758,
               0.11111105565280363, 0.14285714313000714, 0.19999999999949725, 0.3333333333333335);
  D near = fma_(a * z, p, a);
  D r = 0.5 * joined(log_pair(quotient(sum_of(full<D>(1.), y), sum_of(full<D>(1.), 0 - y))));
  r = a < 0.1715 ? near : r;
  r = a == 1 ? full<D>(__builtin_inf()) : r;
  return a > 1 ? full<D>(__builtin_nan("")) : copysign_(a != a ? a : r, x);
}
// log(a + sqrt(a^2 + 1)), log(x + sqrt(x^2 - 1)); of large ones log(2 a).
template <class D> DV D log_of_sum(D a, double one) {
  auto large = a > 1e150;
  D y = large ? full<D>(2.) : a;
  Pair<D> w = product(y, y), s = sum_of(w.hi, full<D>(one));
  Pair<D> h = root(Pair<D>{s.hi, s.lo + w.lo});
  Pair<D> t = sum_of(large ? a : h.hi, large ? full<D>(0.) : y);
  Pair<D> r = log_pair(Pair<D>{t.hi, large ? t.lo : t.lo + h.lo});
  return r.hi + (large ? r.lo + 0.6931471805599453 : r.lo);
}
template <class D> DV D double_asinh(D x) {
  D a = fabs_(x);
  D r = log_of_sum(a < __builtin_inf() ? a : full<D>(1.), 1.);
  return copysign_(a < __builtin_inf() ? r : a, x);
}
template <class D> DV D double_acosh(D x) {
  auto inside = (x >= 1) & (x < __builtin_inf());
  D r = log_of_sum(inside ? x : full<D>(2.), -1.);
  return inside ? r : x >= 1 ? x : full<D>(__builtin_nan(""));
}

// --- angles --------------------------------------------------------------------------------------

// x = n pi / 2 + what is given, |x| < 1e5: there each part but the last times n is exact.
template <class D> DV Pair<D> quarter_turns(D x, like<int64_t, D>& n) {
  D k = x * 0.6366197723675814 + low_bits;
  n = bits<like<int64_t, D>>(k);
  k = k - low_bits;
  D t = fma_(k, full<D>(-1.57079632673412561417), x);
  Pair<D> r = sum_of(t, k * -6.07710050630396597660e-11);
  return fast_sum(r.hi, fma_(k, full<D>(-2.02226624879595063154e-21), r.lo));
}
template <class D> DV Pair<D> sine_pair(Pair<D> r, D z) {
  D p = horner(z, full<D>(-7.595307680083148e-13), 1.6058684343084114e-10, -2.5052107236104186e-08,
               2.7557319222324556e-06, -0.00019841269841268963, 0.008333333333333333);
  Pair<D> square = product(r.hi, r.hi);
  square.hi = square.hi * -0.16666666666666666;  // (rounded: a twelfth of the result at most)
  Pair<D> cube = product(square.hi, r.hi), s = fast_sum(r.hi, cube.hi);
  D low = fma_(square.lo * -0.16666666666666666, r.hi, cube.lo) + s.lo;
  return {s.hi, fma_(z * z, p * r.hi, low) + fma_(r.lo * z, full<D>(-0.5), r.lo)};
}
template <class D> DV Pair<D> cosine_pair(Pair<D> r, D z) {
  D c = horner(z, full<D>(-1.1382625349447592e-11), 2.0876146170183976e-09, -2.7557317271258515e-07,
               2.4801587298764778e-05, -0.0013888888888887398, 0.041666666666666664);
  Pair<D> h = product(r.hi * 0.5, r.hi), s = fast_sum(full<D>(1.), 0 - h.hi);
  return {s.hi, s.lo - h.lo + fma_(z * z, c, 0 - r.hi * r.lo)};
}
template <class D> DV D double_wave(D x, int shift) {
  like<int64_t, D> n;
  Pair<D> r = quarter_turns(x, n);
  n = n + shift;
  D z = r.hi * r.hi, y = (n & 1) != 0 ? joined(cosine_pair(r, z)) : joined(sine_pair(r, z));
  return (n & 2) != 0 ? 0 - y : y;
}
template <class D> DV D double_sin(D x) {
  if (__builtin_expect(any(!(fabs_(x) < 1e5)), 0)) return library::sin_(x);
  return x == 0 ? x : double_wave(x, 0);
}
template <class D> DV D double_cos(D x) {
  if (__builtin_expect(any(!(fabs_(x) < 1e5)), 0)) return library::cos_(x);
  return double_wave(x, 1);
}
template <class D> DV D double_tan(D x) {
  if (__builtin_expect(any(!(fabs_(x) < 1e5)), 0)) return library::tan_(x);
  like<int64_t, D> n;
  Pair<D> r = quarter_turns(x, n);
  D z = r.hi * r.hi;
  Pair<D> s = sine_pair(r, z), c = cosine_pair(r, z);
  s = fast_sum(s.hi, s.lo), c = fast_sum(c.hi, c.lo);
  auto odd = (n & 1) != 0;
  Pair<D> q = quotient(chosen(odd, Pair<D>{0 - c.hi, 0 - c.lo}, s), chosen(odd, s, c));
  return x == 0 ? x : joined(q);
}
template <class D> DV D arcsine_rest(D z) {  // (asin(s) - s) / s at z = s^2 <= 1/4
  D p = horner(z, full<D>(0.028757851367421566), -0.014851887071247204, 0.01740087944269402,
               0.005457506718640358, 0.01032281435018578, 0.011479177415184906,
               0.013971212973552933, 0.017352392720869973, 0.02237217294214989,
               0.030381944138531247, 0.04464285714635543, 0.07499999999998433,
               0.16666666666666669);
  return z * p;
}
template <class D> DV D double_asin(D x) {
  D a = fabs_(x);
  auto far = a > 0.5;
  D half = 0.5 - a * 0.5, z = far ? half : a * a, rest = arcsine_rest(z);
  Pair<D> s = root(Pair<D>{half, full<D>(0.)});
  Pair<D> d = fast_sum(full<D>(1.5707963267948966), -2 * s.hi);
  D away = d.hi + (d.lo + 6.123233995736766e-17 - 2 * fma_(s.hi, rest, s.lo));
  return copysign_(far ? away : fma_(a, rest, a), x);
}
template <class D> DV D double_acos(D x) {
  D a = fabs_(x);
  auto far = a > 0.5;
  D half = 0.5 - a * 0.5, z = far ? half : a * a, rest = arcsine_rest(z);
  Pair<D> s = root(Pair<D>{half, full<D>(0.)});
  D tail = fma_(s.hi, rest, s.lo), up = 2 * (s.hi + tail);  // acos(a)
  Pair<D> d = fast_sum(full<D>(3.141592653589793), -2 * s.hi);
  D away = x > 0 ? up : d.hi + (d.lo + 1.2246467991473532e-16 - 2 * tail);
  Pair<D> m = fast_sum(full<D>(1.5707963267948966), 0 - x);
  return far ? away : m.hi + (m.lo + fma_(0 - x, rest, full<D>(6.123233995736766e-17)));
}
template <class D> DV D double_atan(D x) {
  D a = up_to(fabs_(x), 1e20);
  auto steep = a > 2.414213562373095, flat = a <= 0.4142135623730951;  // of 3 pi / 8, pi / 8
  Pair<D> up = sum_of(a, full<D>(-1.)), down = sum_of(a, full<D>(1.));
  Pair<D> whole = {a, full<D>(0.)};
  up = chosen(steep, constant<D>(-1., 0.), chosen(flat, whole, up));
  down = chosen(steep, whole, chosen(flat, constant<D>(1., 0.), down));
  Pair<D> t = quotient(up, down);
  D z = t.hi * t.hi;
  D p = horner(z, full<D>(-0.01917627151752634), 0.0392311556198723, -0.050854323376990765,
               0.05858145587628202, -0.06664511064599371, 0.07692183163650894, -0.09090904576954117,
               0.11111111015227572, -0.14285714284666184, 0.19999999999995519, -0.3333333333333333);
  D base = steep ? full<D>(1.5707963267948966) : flat ? full<D>(0.) : full<D>(0.7853981633974483);
  Pair<D> s = fast_sum(base, t.hi);
  D low = fma_(base, full<D>(3.8981718325193755e-17), s.lo + t.lo);
  return copysign_(s.hi + fma_(t.hi * z, p, low), x);
}

// --- the error function --------------------------------------------------------------------------

// 1 - erf(a), a in 1.5 .. 6: times e^(a^2) (1 + 2a) it is smooth in (a - 3) / (a + 3).
template <class D> DV D far_erfc(D a) {
  D t = (a - 3.) / (a + 3.);
  D p = horner(t, full<D>(-1.8805109592086396e-05), 4.695602317797229e-06, 0.00012490413980233172,
               -0.00010512251652921092, -0.0007798175832228392, 0.0018886875927819206,
               0.002529391247418548, -0.023770514812627624, 0.0683080273544434,
               -0.11927366341724452, 0.12964515870268964, -0.04756229435343755,
               -0.13562110612458111, 1.2530080582697296);
  Pair<D> w = product(a, a);
  Power<D> e = power_of(0 - w.hi);
  return scaled(joined(e.whole) * (1. - w.lo), e.n) * p / fma_(a, full<D>(2.), full<D>(1.));
}
// By its series at 0 below 1/2, at 1 below 3/2: there the first terms are exact products. (The
// second derivative at 1 is -2 times the first.)
template <class D> DV D double_erf(D x) {
  D a = up_to(fabs_(x), 6.), z = a * a, h = a - 1.;
  D p = horner(z, full<D>(-1.4787385599052157e-07), 1.6389446360450111e-06,
               -1.4923829613452872e-05, 0.0001205530629440674, -0.0008548326793233783,
               0.005223977624325344, -0.02686617064510409, 0.112837916709551, -0.37612638903183754);
  D q = horner(h, full<D>(7.568186602265096e-07), -1.9590786624671703e-06, -5.4414513461051064e-06,
               2.36577294022957e-05, 1.87089247163672e-05, -0.0002000447245309437,
               8.552489088824964e-05, 0.0012262863604985427, -0.0018851884271883525,
               -0.004777030646696051, 0.015154718161579643, 0.00461230552447183,
               -0.06918458290345363, 0.0691845829034613, 0.13836916580686495);
  auto near = a < 0.5;
  D y = near ? a : h, slope = near ? full<D>(1.1283791670955126) : full<D>(0.4151074974205947);
  D slope_low = near ? full<D>(1.533545961316588e-17) : full<D>(-1.4333923293314243e-17);
  Pair<D> t = product(y, slope);
  Pair<D> s = fast_sum(near ? full<D>(0.) : full<D>(0.8427007929497149), t.hi);
  Pair<D> bend = product(t.hi, near ? full<D>(0.) : 0 - h), v = fast_sum(s.hi, bend.hi);
  D low = fma_(y, slope_low, t.lo + s.lo) - (near ? full<D>(0.) : full<D>(2.4801011789118602e-17));
  D r = v.hi + (fma_(y * y * y, near ? p : q, low) + (v.lo + bend.lo));
  auto far = a > 1.5;
  if (any(far)) r = far ? 1. - far_erfc(a) : r;
  return copysign_(r, x);
}

}  // namespace dovetail_simd
