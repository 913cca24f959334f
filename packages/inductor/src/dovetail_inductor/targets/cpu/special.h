// Functions whose float is computed in double, where few terms will do, and rounded once; and the
// error function's inverse and the gamma function's logarithm.
namespace dovetail_simd {

#define DV_IN_DOUBLE(name, function)                                                              \
  template <class X> DV X vector_##name##_(X x) {                                                 \
    return in_double([](auto d) { return function(d); }, x);                                      \
  }                                                                                               \
  DV_FUNCTION(name)
DV_IN_DOUBLE(sinh, double_sinh) DV_IN_DOUBLE(cosh, double_cosh)
DV_IN_DOUBLE(asinh, double_asinh) DV_IN_DOUBLE(acosh, double_acosh)

// To the digits of a float: of a normal number; of a number in -200 .. 0.
template <class D> DV D short_log(D x) {
  auto u = bits<like<uint64_t, D>>(x) + 0x00095f619980c433u;  // as in `log_rest`
  D k = bits<D>(u >> 52 | 0x4330000000000000u) - (4503599627370496. + 1023);
  D f = bits<D>((u & 0x000fffffffffffffu) + 0x3fe6a09e667f3bcdu) - 1.;
  D s = f / (f + 2.), z = s * s;
  D p = horner(z, full<D>(0.2333057432907243), 0.2855081687937602, 0.40000121874506667,
               0.6666666655445466, 2.);
  return fma_(k, full<D>(0.6931471805599453), s * p);
}
template <class D> DV D short_exp(D x) {
  D n = x * 1.4426950408889634 + low_bits - low_bits;
  D r = fma_(n, full<D>(-0.6931471805599453), x);
  D p = horner(r, full<D>(0.00019890982710792465), 0.0013933642689829186, 0.008333310932790487,
               0.041666464991106766, 0.16666666681615916, 0.5000000013459222, 1., 1.);
  return scaled(p, n);
}

template <class X> DV X vector_log10_(X x) {
  auto f = [](auto d) { return short_log(d) * 0.4342944819032518; };
  return log_ends(x, in_double(f, x));
}
DV_FUNCTION(log10)

template <class D> DV D short_arcsine_rest(D z) {
  return z * horner(z, full<D>(0.03369084720283012), 0.017149238357677253, 0.03110066273549457,
                    0.04459940152851218, 0.07500094543497424, 0.16666666337430908);
}
template <class D> DV D short_asin(D x) {
  D a = fabs_(x);
  auto far = a > 0.5;
  D half = 0.5 - a * 0.5, z = far ? half : a * a, s = far ? sqrt_(half) : a;
  s = fma_(s, short_arcsine_rest(z), s);
  return copysign_(far ? 1.5707963267948966 - 2 * s : s, x);
}
template <class D> DV D short_acos(D x) {
  D a = fabs_(x);
  auto far = a > 0.5;
  D half = 0.5 - a * 0.5, z = far ? half : a * a, s = far ? sqrt_(half) : x;
  s = fma_(s, short_arcsine_rest(z), s);
  return far ? (x > 0 ? 2 * s : 3.141592653589793 - 2 * s) : 1.5707963267948966 - s;
}
DV_IN_DOUBLE(asin, short_asin) DV_IN_DOUBLE(acos, short_acos)

template <class D> DV D short_atanh(D x) {
  D a = fabs_(x), z = a * a;
  D p = horner(z, full<D>(0.11665287164536215), 0.1427540843968801, 0.20000060937253334,
               0.3333333327722733);
  D far = 0.5 * short_log((1. + a) / (1. - a));
  far = a < 1 ? far : a == 1 ? full<D>(__builtin_inf()) : full<D>(__builtin_nan(""));
  return copysign_(a < 0.1715 ? fma_(a * z, p, a) : far, x);
}
DV_IN_DOUBLE(atanh, short_atanh)

// As `far_erfc`; squares of floats are exact.
template <class D> DV D short_erfc(D x) {
  D a = up_to(fabs_(x), 10.3), over = fma_(a, full<D>(2.), full<D>(1.));
  D inverse = 1. / ((a + 3.) * over), t = (a - 3.) * over * inverse;
  D p = horner(t, full<D>(3.764594566708818e-05), -0.00017690560295646155, -0.0007384210687412379,
               0.0019473167877448, 0.0025269799382524405, -0.0237873958943157, 0.06830663871087485,
               -0.11927160306707478, 0.12964535247084086, -0.04756238717680091,
               -0.1356211111696292, 1.2530080589762511);
  D r = short_exp(0 - a * a) * p * ((a + 3.) * inverse);
  return x < 0 ? 2. - r : r;
}
template <class X> DV X vector_erfc_(X x) {
  return in_double([](auto d) { return short_erfc(d); }, x);
}
template <class X> DV X erfc_(X x) {
  if constexpr (sizeof(E<X>) == 8) return library::erfc_(x);
  else if constexpr (is_scalar<X>) return vector_erfc_(full<V<float, 4>>(x))[0];
  else return vector_erfc_(x);
}

// The inverse of erf is x P(w) with w = -log(1 - x^2), in the tails with its root (Giles,
// "Approximating the erfinv function", 2010, whose form this is).
template <class D> DV D inverse_erf_ends(D x, D r) {
  D a = fabs_(x);
  r = a == 1 ? x * __builtin_inf() : x == 0 ? x : r;
  return (a > 1) | (x != x) ? full<D>(__builtin_nan("")) : r;
}
template <class D> DV D short_erfinv(D x) {
  D y = 1. - x * x, w = 0 - short_log(y > 0 ? y : full<D>(1.)), d = w - 3.;
  D p = horner(d, full<D>(-1.4854908961637763e-11), 2.2566185420300354e-11, 1.0762571404759864e-09,
               -5.9891513759872464e-09, -2.3487272151417536e-08, 4.5259406471851447e-07,
               -1.7485502954466425e-06, -1.2722979933734563e-05, 0.0001950619522305496,
               -0.0008361745723989565, -0.0057381354242041, 0.24163040187247808,
               1.6235420064648298);
  auto far = w > 6.;
  if (any(far)) {
    D e = sqrt_(w) - 3.25;
    D q = horner(e, full<D>(-3.970970565797682e-05), 8.249497011844749e-05, 1.8708424842835988e-05,
                 -0.00036256212410181333, 0.0009548323636572149, -0.0016863690124791642,
                 0.0024912634614371533, -0.0037514151010829178, 0.005370920231176109,
                 1.005258974165409, 3.0838856104938714);
    p = far ? q : p;
  }
  return inverse_erf_ends(x, x * p);
}
template <class D> DV D double_erfinv(D x) {
  D y = fabs_(x) < 1 ? x : full<D>(0.);
  Pair<D> z = product(y, y), u = sum_of(full<D>(1.), 0 - z.hi);
  Pair<D> l = log_pair(Pair<D>{u.hi, u.lo - z.lo});
  Pair<D> w = fast_sum(0 - l.hi, 0 - l.lo), d = sum_of(w.hi, full<D>(-3.));
  D q = horner(d.hi, full<D>(-2.990450243272688e-22), 4.22831964711441e-21, 5.9949571622188915e-21,
               -3.860192377004801e-19, 1.6568902070326583e-18, 1.2748590953505583e-17,
               -1.5731123503391285e-16, 2.7567170138166916e-16, 6.293734713664434e-15,
               -5.294269265981523e-14, 6.449389855187572e-15, 2.6990332675037463e-12,
               -1.732952481239926e-11, -3.1425785137828936e-11, 1.110799899853498e-09,
               -5.46717846812532e-09, -2.368873021118504e-08, 4.499854247615572e-07,
               -1.7480020929896479e-06, -1.2716422638199853e-05, 0.00019506132441192065,
               -0.0008361817769094964, -0.005738135221005623);
  Pair<D> first = constant<D>(1.6235420064648298, 8.832972287279309e-17);
  Pair<D> second = constant<D>(0.2416304041661583, 4.331276647324298e-18);
  d.lo += w.lo;
  auto far = w.hi > 6.;
  if (any(far)) {
    Pair<D> e = root(Pair<D>{far ? w.hi : full<D>(9.), w.lo});
    auto last = e.hi > 4.05;
    D v = e.hi - (last ? full<D>(5.05) : full<D>(3.25));
    D r = horner(v, full<D>(7.432212755760462e-09), -1.5778121893168003e-08,
                 -2.0246207146765896e-08, 1.3286791418782747e-07, -2.4625448183020635e-07,
                 -2.9077613246673755e-08, 1.4820641843789588e-06, -3.984796943566877e-06,
                 2.9324083057061134e-06, 1.2464692614074913e-05, -4.732064338010862e-05,
                 6.828719211411583e-05, 2.4031508109199275e-05, -0.00035503782353080393,
                 0.0009532893419033029, -0.0016882755347626618, 0.0024914420979472397,
                 -0.003751208508246606, 0.005370914553555109);
    D s = horner(v, full<D>(-1.2935843818782434e-11), 2.6934504678104032e-11, 6.642463119261808e-11,
                 -3.7854427978579787e-10, 1.0684963271253172e-09, -2.645402410166206e-09,
                 5.78609435351843e-09, -1.1194430829259273e-08, 2.183310375541504e-08,
                 -5.493871652892174e-08, 2.016153148417067e-07, -9.070840568842748e-07,
                 4.193854446083791e-06, -1.8374536441788357e-05, 7.124031535889663e-05,
                 -0.00020031200665951963, -0.00016985809149118445);
    q = far ? (last ? s : r) : q;
    d = {far ? v : d.hi, far ? e.lo : d.lo};
    first = chosen(far, chosen(last, constant<D>(4.90042105144364, 3.8035525200835624e-16),
                               constant<D>(3.0838856104922208, -8.709847635121956e-17)), first);
    second = chosen(far, chosen(last, constant<D>(1.0102850175977718, -8.623174589876912e-17),
                                constant<D>(1.0052589676941657, -8.621785344736159e-17)), second);
  }
  Pair<D> t = product(d.hi, q), slope = fast_sum(second.hi, t.hi);
  slope.lo += t.lo + second.lo;
  t = product(d.hi, slope.hi);
  t.lo += fma_(d.hi, slope.lo, d.lo * slope.hi);
  Pair<D> s = fast_sum(first.hi, t.hi), p = fast_sum(s.hi, s.lo + (t.lo + first.lo));
  Pair<D> r = product(x, p.hi);
  return inverse_erf_ends(x, r.hi + fma_(x, p.lo, r.lo));
}
#ifndef __FMA__
namespace library {
template <class X> DV X erfinv_(X x) { return double_erfinv(x); }
}  // namespace library
#endif
DV_IN_DOUBLE(erfinv, short_erfinv)

// log|gamma(a)| for positive a: by (a - 1) (a - 2) P(a) up to 3, after one step of the recurrence
// below 1, and by Stirling's series with a fitted tail from there (DLMF 5.11.1).
template <class D> DV D positive_lgamma(D a) {
  D log_a = joined(log_pair(a));
  auto small = a < 1.;
  D y = small ? a : a - 1.;
  D p = horner(y - 1., full<D>(-2.8541007959705006e-09), 5.89638616423332e-09,
               6.3565524302872395e-09, -1.3074081880171198e-08, -2.64252707231207e-08,
               5.4754361972630815e-08, -2.4332114658098466e-08, 5.165015376455897e-08,
               -2.0635178288309344e-07, 4.3404410108070576e-07, -8.453442762427366e-07,
               1.7923920411786242e-06, -3.849997161230253e-06, 8.227705232611113e-06,
               -1.766105183616701e-05, 3.8167601000364536e-05, -8.309521946458717e-05,
               0.00018255283120135137, -0.0004057073892742056, 0.00091537690527288,
               -0.002108130834332547, 0.004998641165474131, -0.012384192193364526,
               0.0329650006211419, -0.10031730167435395, 0.4227843350984672);
  D near = fma_(y * (y - 1.), p, small ? 0 - log_a : full<D>(0.));
  D t = 1. / a, z = t * t;
  D q = horner(z, full<D>(0.01596051995193434), -0.0120206427879705, 0.004999519655415664,
               -0.0018406569287789613, 0.0008390991658055115, -0.0005951845099124811,
               0.0007936502365842114, -0.002777777775504559, 0.08333333333333177);
  D far = fma_(a - 0.5, log_a, fma_(t, q, 0.9189385332046727 - a));
  return a > 3. ? far : near;
}
template <class D> DV D short_lgamma(D x) {
  const double inf = __builtin_inf();
  D a = fabs_(x), usual = (a > 0) & (a < inf) ? a : full<D>(1.), r = positive_lgamma(usual);
  auto below = x < 0;
  if (__builtin_expect(any(below), 0)) {  // by reflection (DLMF 5.5.3)
    D f = fabs_(usual - round_(usual));
    D s = f == 0 ? full<D>(1.) : double_sin(f * 3.141592653589793);
    D mirrored = joined(log_pair(3.141592653589793 / (usual * s))) - r;
    r = below ? (f == 0 ? full<D>(inf) : mirrored) : r;
  }
  r = (a == 0) | (a == inf) ? full<D>(inf) : r;
  return x != x ? x : r;
}
template <class X> DV X lgamma_(X x) {
  if constexpr (sizeof(E<X>) == 8) return library::lgamma_(x);
  else if constexpr (is_scalar<X>) return lgamma_(full<V<float, 4>>(x))[0];
  else return in_double([](auto d) { return short_lgamma(d); }, x);
}

}  // namespace dovetail_simd
using namespace dovetail_simd;
