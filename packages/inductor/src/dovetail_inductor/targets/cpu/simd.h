// Vectors of N lanes of T over GCC's vector extensions, in registers and in memory. Every
// function takes scalars and vectors alike. A mask is a bool, or a vector of int32 (0 or -1).
#include <bits/functexcept.h>
#define DV static inline __attribute__((always_inline, unused))
namespace dovetail_simd {

template <class T, int N> struct vector_of {
  typedef T type __attribute__((vector_size(sizeof(T) * N)));
};
template <class T, int N> using V = typename vector_of<T, N>::type;
template <class T> struct plain { using type = T; };
template <class T> struct plain<T&> { using type = T; };
template <class T> struct plain<const T&> { using type = T; };
template <class X> struct element { using type = typename plain<decltype(X{}[0])>::type; };
#define DV_SCALAR(T) template <> struct element<T> { using type = T; };
DV_SCALAR(float) DV_SCALAR(double) DV_SCALAR(bool) DV_SCALAR(int8_t) DV_SCALAR(uint8_t)
DV_SCALAR(int16_t) DV_SCALAR(uint16_t) DV_SCALAR(int32_t) DV_SCALAR(uint32_t)
DV_SCALAR(int64_t) DV_SCALAR(uint64_t)
template <class X> using E = typename element<X>::type;
template <class X> constexpr int lanes = sizeof(X) / sizeof(E<X>);
template <class A, class B> constexpr bool same = false;
template <class A> constexpr bool same<A, A> = true;
template <class X> constexpr bool is_scalar = same<X, E<X>>;
template <int bytes> struct signed_of { using type = int64_t; };
template <> struct signed_of<4> { using type = int32_t; };
template <> struct signed_of<2> { using type = int16_t; };
template <> struct signed_of<1> { using type = int8_t; };
template <class T> constexpr bool is_float = same<T, float> || same<T, double>;
// The vector (or scalar) of T with as many lanes as X.
template <class T, class X, bool scalar> struct like_of { using type = V<T, lanes<X>>; };
template <class T, class X> struct like_of<T, X, true> { using type = T; };
template <class T, class X> using like = typename like_of<T, X, is_scalar<X>>::type;
template <class To, class From> DV To bits(From x) {
  static_assert(sizeof(To) == sizeof(From), "bits of another size");
  if constexpr (is_scalar<To> || is_scalar<From>) {
    To y;
    __builtin_memcpy(&y, &x, sizeof y);
    return y;
  } else return (To)x;
}
template <class X> DV auto to_bits(X x) { return bits<like<int64_t, X>>(x); }
// Write a vector anywhere. (GCC 12 gets constant ones of 64 bytes wrong that memcpy writes: it
// repeats their first lanes.)
template <class X> DV void put(void* p, X x) {
  if constexpr (is_scalar<X>) __builtin_memcpy(p, &x, sizeof x);
  else {
    typedef E<X> U __attribute__((vector_size(sizeof(X)), aligned(1), may_alias));
    *(U*)p = (U)x;
  }
}

// --- masks and conversion ----------------------------------------------------------------------

DV bool mask(bool m) { return m; }
DV bool mask(int m) { return m != 0; }
// Between bytes and int32, for which GCC 12 goes lane by lane.
template <class X> DV V<int32_t, lanes<X>> widen_bytes(X x) {
  constexpr bool is_signed = (E<X>)-1 < 0;
  V<char, 16> v;  // (by way of memory, a wider read would wait for a narrow write)
  if constexpr (sizeof x == 16) v = (V<char, 16>)x;
  else if constexpr (sizeof x == 8) v = (V<char, 16>)V<int64_t, 2>{bits<int64_t>(x), 0};
  else if constexpr (sizeof x == 4) v = (V<char, 16>)V<int32_t, 4>{bits<int32_t>(x), 0, 0, 0};
#ifdef __AVX512F__
  if constexpr (lanes<X> == 16)
    return is_signed ? __builtin_ia32_pmovsxbd512_mask(v, V<int, 16>{}, (short)-1)
                     : __builtin_ia32_pmovzxbd512_mask(v, V<int, 16>{}, (short)-1);
#endif
#ifdef __AVX2__
  if constexpr (lanes<X> == 8)
    return is_signed ? __builtin_ia32_pmovsxbd256(v) : __builtin_ia32_pmovzxbd256(v);
  if constexpr (lanes<X> == 4)
    return is_signed ? __builtin_ia32_pmovsxbd128(v) : __builtin_ia32_pmovzxbd128(v);
#endif
  return __builtin_convertvector(x, V<int32_t, lanes<X>>);
}
template <class T, class X> DV V<T, lanes<X>> low_bytes(X x) {
#ifdef __AVX512F__
  if constexpr (lanes<X> == 16)
    return (V<T, 16>)__builtin_ia32_pmovdb512_mask(x, V<char, 16>{}, (short)-1);
#endif
#ifdef __AVX2__
  if constexpr (lanes<X> == 8) {
    const V<char, 32> at = {0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1,
                            0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1};
    auto found = (V<int, 8>)__builtin_ia32_pshufb256((V<char, 32>)x, at);
    return (V<T, 8>)V<int32_t, 2>{found[0], found[4]};
  }
  if constexpr (lanes<X> == 4) {
    const V<char, 16> at = {0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1};
    return bits<V<T, 4>>(((V<int32_t, 4>)__builtin_ia32_pshufb128((V<char, 16>)x, at))[0]);
  }
#endif
  return __builtin_convertvector(x, V<T, lanes<X>>);
}
template <class T, class X> DV V<T, lanes<X>> converted(X x) {
  if constexpr (same<T, E<X>>) return x;
  else if constexpr (sizeof(E<X>) == 1 && sizeof(T) >= 4) return converted<T>(widen_bytes(x));
  else if constexpr (sizeof(T) == 1 && sizeof(E<X>) == 4) return low_bytes<T>(x);
  else if constexpr (sizeof(T) == 1 && sizeof(E<X>) == 8)
    return low_bytes<T>(converted<int32_t>(x));
#ifdef __AVX2__
  else if constexpr (lanes<X> == 4 && same<E<X>, int32_t> && same<T, int64_t>)
    return (V<T, 4>)__builtin_ia32_pmovsxdq256((V<int, 4>)x);
  else if constexpr (lanes<X> == 4 && same<E<X>, int64_t> && sizeof(T) == 4 && !is_float<T>) {
    auto low = __builtin_shuffle((V<int, 8>)x, V<int, 8>{0, 2, 4, 6, 0, 2, 4, 6});
    return (V<T, 4>)V<int, 4>{low[0], low[1], low[2], low[3]};
  }
#endif
  else return __builtin_convertvector(x, V<T, lanes<X>>);
}
template <class X> DV auto mask(X m) { return converted<int32_t>(m); }
template <int N, class T> DV auto bc(T x) {
  if constexpr (same<T, bool>) return -(int32_t)x - V<int32_t, N>{};
  else return x - V<T, N>{};
}
template <class X> DV X sel(bool m, X a, X b) { return m ? a : b; }
template <class M, class X> DV X sel(M m, X a, X b) {
  return converted<typename signed_of<sizeof(E<X>)>::type>(m) ? a : b;
}
template <class T, class X> DV like<T, X> cast(X x) {
  // A float that a narrow integer does not hold gives its low bits, as eager's kernels have it.
  if constexpr (is_float<E<X>> && sizeof(T) < 4) return cast<T>(cast<int32_t>(x));
  else if constexpr (is_scalar<X>) return (T)x;
  else return converted<T>(x);
}
template <class T> DV T from_mask(bool m) { return (T)m; }
template <class T, class M> DV V<T, lanes<M>> from_mask(M m) {
  return converted<T>(-m);
}
// Lanes of a mask as bits.
template <class M> DV uint32_t mask_bits(M m) {
#ifdef __AVX512DQ__
  if constexpr (sizeof(M) == 64) return (uint16_t)__builtin_ia32_cvtd2mask512(bits<V<int, 16>>(m));
#endif
#ifdef __AVX__
  if constexpr (sizeof(M) == 32) return __builtin_ia32_movmskps256(bits<V<float, 8>>(m));
#endif
  uint32_t r = 0;
  for (int i = 0; i < lanes<M>; ++i) r |= (m[i] & 1u) << i;
  return r;
}
DV bool any(bool m) { return m; }
template <class M> DV bool any(M m) { return mask_bits(m) != 0; }
template <int N> DV V<int32_t, N> first_lanes(int n) {
  V<int32_t, N> r;
  for (int i = 0; i < N; ++i) r[i] = i;
  return r < n;
}
template <class T, int N> DV V<T, N> iota() {
  V<T, N> r;
  for (int i = 0; i < N; ++i) r[i] = (T)i;
  return r;
}
template <class X> DV X reversed(X x) {
  V<typename signed_of<sizeof(E<X>)>::type, lanes<X>> from;
  for (int i = 0; i < lanes<X>; ++i) from[i] = lanes<X> - 1 - i;
  return __builtin_shuffle(x, from);
}
// Apply a scalar function lane by lane.
template <class X, class F> DV X each(X x, F f) {
  if constexpr (is_scalar<X>) return f(x);
  else {
    X r;
    for (int i = 0; i < lanes<X>; ++i) r[i] = f(x[i]);
    return r;
  }
}
template <class X, class F> DV X each(X x, X y, F f) {
  if constexpr (is_scalar<X>) return f(x, y);
  else {
    X r;
    for (int i = 0; i < lanes<X>; ++i) r[i] = f(x[i], y[i]);
    return r;
  }
}

// --- narrow storage types ----------------------------------------------------------------------

struct bool8 { uint8_t raw; };
struct bf16 { uint16_t raw; };
struct half { uint16_t raw; };
struct e4m3 { uint8_t raw; };
struct e5m2 { uint8_t raw; };

template <class I> DV auto widen_bf16(I raw) {
  return bits<like<float, I>>(cast<uint32_t>(raw) << 16);
}
template <class X> DV auto narrow_bf16(X x) {  // to nearest even; NaN stays NaN
  auto u = bits<like<uint32_t, X>>(x);
  auto r = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  return cast<uint16_t>(sel(mask(x != x), (u >> 16) | 0x40u, r));
}
DV float widen_half(uint16_t h) {
#ifdef __F16C__
  V<int16_t, 8> v = {(int16_t)h};
  return __builtin_ia32_vcvtph2ps(v)[0];
#else
  uint32_t s = (uint32_t)(h & 0x8000) << 16, m = h & 0x7fff;
  float f = bits<float>(m << 13) * bits<float>(0x77800000u);  // * 2^112
  if (m >= 0x7c00) f = bits<float>(0x7f800000u | ((m & 0x3ff) << 13));
  return bits<float>(bits<uint32_t>(f) | s);
#endif
}
DV uint16_t narrow_half(float x) {
#ifdef __F16C__
  V<float, 4> v = {x};
  return (uint16_t)__builtin_ia32_vcvtps2ph(v, 0)[0];
#else
  uint32_t u = bits<uint32_t>(x), s = (u >> 16) & 0x8000, m = u & 0x7fffffff;
  if (m > 0x7f800000) return (uint16_t)(s | 0x7e00);
  if (m >= 0x47800000) return (uint16_t)(s | 0x7c00);
  if (m < 0x38800000) {  // subnormal: let the addition round
    float f = bits<float>(m) + 0.5f;
    return (uint16_t)(s | (bits<uint32_t>(f) - 0x3f000000u));
  }
  m += 0xc8000fff + ((m >> 13) & 1);
  return (uint16_t)(s | (m >> 13));
#endif
}
template <class I> DV auto widen_half(I raw) {
  like<float, I> r;
#ifdef __AVX512F__
  if constexpr (lanes<I> == 16) {
    return (like<float, I>)__builtin_ia32_vcvtph2ps512_mask((V<int16_t, 16>)raw, V<float, 16>{}, (short)-1, 4);
  }
#endif
#ifdef __F16C__
  if constexpr (lanes<I> == 8) return (like<float, I>)__builtin_ia32_vcvtph2ps256((V<int16_t, 8>)raw);
#endif
  for (int i = 0; i < lanes<I>; ++i) r[i] = widen_half((uint16_t)raw[i]);
  return r;
}
template <class X> DV auto narrow_half(X x) {
  V<uint16_t, lanes<X>> r;
#ifdef __AVX512F__
  if constexpr (lanes<X> == 16) {
    return (V<uint16_t, 16>)__builtin_ia32_vcvtps2ph512_mask(x, 0, V<int16_t, 16>{}, (short)-1);
  }
#endif
#ifdef __F16C__
  if constexpr (lanes<X> == 8) return (V<uint16_t, 8>)__builtin_ia32_vcvtps2ph256(x, 0);
#endif
  for (int i = 0; i < lanes<X>; ++i) r[i] = narrow_half(x[i]);
  return r;
}
template <class X> DV X round_bf16(X x) { return widen_bf16(narrow_bf16(x)); }
template <class X> DV X round_f16(X x) { return widen_half(narrow_half(x)); }
// 8-bit floats, M bits of which are the mantissa's: 3 of e4m3, which has no infinity, 2 of e5m2.
template <int M, class I> DV auto widen_f8(I raw) {
  auto u = cast<uint32_t>(raw), a = u & 0x7fu, wide = a << (23 - M);
  auto f = bits<like<float, I>>(wide) * bits<float>((M == 3 ? 247u : 239u) << 23);
  auto r = sel(mask(a > (M == 3 ? 0x7eu : 0x7bu)), wide | 0x7f800000u, bits<decltype(u)>(f));
  return bits<like<float, I>>(r | (u & 0x80u) << 24);
}
template <int M, class X> DV auto narrow_f8(X x) {  // to nearest even; of small ones by a sum
  using U = like<uint32_t, X>;
  constexpr uint32_t bias = M == 3 ? 7 : 15, most = M == 3 ? 0x7e : 0x7b;
  constexpr uint32_t large = (150 - bias - M + 1) << 23;
  U u = bits<U>(x), a = u & 0x7fffffffu;
  U r = (a + ((1u << (22 - M)) - 1) + ((a >> (23 - M)) & 1u) - ((127 - bias) << 23)) >> (23 - M);
  r = sel(mask(a < (128 - bias) << 23), bits<U>(bits<X>(a) + bits<float>(large)) - large, r);
  r = sel(mask(r > most), (M == 3 ? DV_BEYOND_E4M3 : 0x7cu) - U{}, r);
  r = sel(mask(x != x), 0x7fu - U{}, r) | ((u >> 24) & 0x80u);
  return cast<uint8_t>(cast<int32_t>(r));
}
template <class X> DV X round_e4m3(X x) { return widen_f8<3>(narrow_f8<3>(x)); }
template <class X> DV X round_e5m2(X x) { return widen_f8<2>(narrow_f8<2>(x)); }

// --- memory ------------------------------------------------------------------------------------

template <class T> DV T widen(T x) { return x; }
DV bool widen(bool8 x) { return x.raw != 0; }
DV float widen(bf16 x) { return widen_bf16(x.raw); }
DV float widen(half x) { return widen_half(x.raw); }
DV float widen(e4m3 x) { return widen_f8<3>(x.raw); }
DV float widen(e5m2 x) { return widen_f8<2>(x.raw); }
template <class T> DV auto ld1(const T* p) { return widen(*p); }

template <int N, class T> DV V<T, N> raw_load(const void* p) {
  V<T, N> v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
DV uint64_t first_bytes(const void* p, int n) {  // n <= 8
  uint64_t whole = 0;
  uint32_t low = 0, high = 0;
  if (n == 8) {
    __builtin_memcpy(&whole, p, 8);
    return whole;
  }
  if (n >= 4) {  // two that may overlap
    __builtin_memcpy(&low, p, 4);
    __builtin_memcpy(&high, (const char*)p + n - 4, 4);
    return low | (uint64_t)high << 8 * (n - 4);
  }
  for (int i = 0; i < n; ++i) low |= (uint32_t)((const uint8_t*)p)[i] << 8 * i;
  return low;
}
// What AVX-512 loads and stores under a mask: lanes, their type, and the instructions' names.
#if defined(__AVX512VL__) && defined(__AVX512BW__)
#define DV_HAS_MASKS
#define DV_MASKED(F)                                                                              \
  F(16, float, loadups512, storeups512) F(8, float, loadups256, storeups256)                      \
  F(4, float, loadups128, storeups128) F(8, double, loadupd512, storeupd512)                      \
  F(4, double, loadupd256, storeupd256) F(16, short, loaddquhi256, storedquhi256)                 \
  F(8, short, loaddquhi128, storedquhi128) F(16, char, loaddquqi128, storedquqi128)
#else
#define DV_MASKED(F)
#endif
// The elements at p whose bit is set.
template <int N, class T> DV V<T, N> raw_load_where(const void* p, uint32_t in_use) {
#define DV_LOAD(count, kind, load, store)                                                         \
  if constexpr (N == count && sizeof(T) == sizeof(kind))                                          \
    return bits<V<T, N>>(                                                                         \
        __builtin_ia32_##load##_mask((const kind*)p, V<kind, N>{}, in_use));
  DV_MASKED(DV_LOAD)
  V<T, N> v = {};
  for (int i = 0; i < N; ++i) if (in_use >> i & 1) v[i] = ((const T*)p)[i];
  return v;
}
#ifdef __AVX2__
template <int N, class T>
constexpr bool has_maskload = (N == 8 && sizeof(T) == 4) || (N == 4 && sizeof(T) >= 4);
template <int N, class T, class M> DV V<T, N> raw_load_mask(const void* p, M m) {
  if constexpr (N == 8) return (V<T, N>)__builtin_ia32_maskloadd256((const V<int, 8>*)p, m);
  else if constexpr (sizeof(T) == 4) return (V<T, N>)__builtin_ia32_maskloadd((const V<int, 4>*)p, m);
  else return (V<T, N>)__builtin_ia32_maskloadq256(
      (const V<long long, 4>*)p, (V<long long, 4>)converted<int64_t>(m));
}
#endif
template <int N, class T> DV V<T, N> raw_load_first(const void* p, int n) {
#ifdef DV_HAS_MASKS
  if constexpr (N * sizeof(T) >= 16) return raw_load_where<N, T>(p, (1u << n) - 1);
#endif
  V<T, N> v = {};
#ifdef __AVX2__
  if constexpr (has_maskload<N, T>) return raw_load_mask<N, T>(p, first_lanes<N>(n));
#endif
  // (A vector that is read where narrower writes just made it would wait for them.)
  const int bytes = n * sizeof(T);
  if constexpr (sizeof v == 16)
    return (V<T, N>)V<uint64_t, 2>{
        first_bytes(p, bytes < 8 ? bytes : 8),
        bytes > 8 ? first_bytes((const char*)p + 8, bytes - 8) : 0};
  if constexpr (sizeof v == 8) return bits<V<T, N>>(first_bytes(p, bytes));
  __builtin_memcpy(&v, p, bytes);
  return v;
}
template <class T, class Raw> DV auto widen_raw(Raw v) {
  if constexpr (same<T, bool8>) return widen_bytes(v) > 0;
  else if constexpr (same<T, bf16>) return widen_bf16(v);
  else if constexpr (same<T, half>) return widen_half(v);
  else if constexpr (same<T, e4m3>) return widen_f8<3>(v);
  else if constexpr (same<T, e5m2>) return widen_f8<2>(v);
  else return v;
}
template <class T> struct raw_of { using type = T; };
template <> struct raw_of<bool8> { using type = uint8_t; };
template <> struct raw_of<bf16> { using type = uint16_t; };
template <> struct raw_of<half> { using type = uint16_t; };
template <> struct raw_of<e4m3> { using type = uint8_t; };
template <> struct raw_of<e5m2> { using type = uint8_t; };
template <class T> using R = typename raw_of<T>::type;

// N elements from p; the first n; those where a mask holds; N at a stride; N at given places.
template <int N, class T> DV auto ld(const T* p) { return widen_raw<T>(raw_load<N, R<T>>(p)); }
template <int N, class T> DV auto ldn(const T* p, int n) {
  return widen_raw<T>(raw_load_first<N, R<T>>(p, n));
}
template <int N, class T, class M> DV auto ldm(const T* p, M m) {
#if defined(__AVX2__) && !defined(DV_HAS_MASKS)
  if constexpr (has_maskload<N, T>) return widen_raw<T>(raw_load_mask<N, R<T>>(p, m));
#endif
  return widen_raw<T>(raw_load_where<N, R<T>>(p, mask_bits(m)));
}
// f(i) in lane i. (Written into a vector one after the other, they would go by way of memory.)
template <int N, class F> DV auto lane_values(F f) {
  using U = decltype(f(0));
  if constexpr (N == 4) return V<U, 4>{f(0), f(1), f(2), f(3)};
  else if constexpr (N == 8) return V<U, 8>{f(0), f(1), f(2), f(3), f(4), f(5), f(6), f(7)};
  else {
    V<U, N> v;
    for (int i = 0; i < N; ++i) v[i] = f(i);
    return v;
  }
}
// p[i * S] in lane i < n, by way of vectors, of which none reads beyond these elements.
template <int S, int N, class U> DV V<U, N> strided(const U* p, int n) {
  auto part = [=](int start) {
    const int left = (n - 1) * S + 1 - start;
    if (left >= N) return raw_load<N, U>(p + start);
    return raw_load_first<N, U>(p + start, left > 0 ? left : 0);
  };
  V<typename signed_of<sizeof(U)>::type, N> from;
  for (int i = 0; i < N; ++i) from[i] = i * S < N ? i * S : 0;
  auto r = __builtin_shuffle(part(0), from);
  for (int j = 1; j < S; ++j) {
    const int start = j < S - 1 ? j * N : (N - 1) * (S - 1);
    for (int i = 0; i < N; ++i) from[i] = i * S / N == j ? N + i * S - start : i;
    r = __builtin_shuffle(r, part(start), from);
  }
  return r;
}
template <int N, class T> DV auto lds(const T* p, int64_t stride, int n = N) {
  V<R<T>, N> v = {};
  auto raw = (const R<T>*)p;
#ifdef __AVX2__
  if constexpr (sizeof(T) >= 4) {
    if (stride == 2) return widen_raw<T>(strided<2, N>(raw, n));
    if (stride == 3) return widen_raw<T>(strided<3, N>(raw, n));
    if (stride == 4) return widen_raw<T>(strided<4, N>(raw, n));
  }
#endif
  if (n == N) return widen_raw<T>(lane_values<N>([=](int i) { return raw[i * stride]; }));
  for (int i = 0; i < N; ++i) if (i < n) v[i] = raw[i * stride];
  return widen_raw<T>(v);
}
// Lane i gets p[-i].
template <int N, class T> DV auto ldr(const T* p, int n = N) {
  if (n != N) return lds<N>(p, -1, n);
  auto v = raw_load<N, R<T>>((const R<T>*)p - (N - 1));
  return widen_raw<T>(reversed(v));
}
#ifdef __AVX2__
DV V<float, 8> gathered(const void* p, V<int, 8> at) {
  const auto all = bits<V<float, 8>>(V<int, 8>{} - 1);
  return __builtin_ia32_gathersiv8sf(V<float, 8>{}, (const float*)p, at, all, 4);
}
DV V<float, 16> gathered(const void* p, V<int, 16> at) {  // (half at a time is faster)
  auto low = gathered(p, __builtin_shufflevector(at, at, 0, 1, 2, 3, 4, 5, 6, 7));
  auto high = gathered(p, __builtin_shufflevector(at, at, 8, 9, 10, 11, 12, 13, 14, 15));
  return __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}
#endif
// p[at[i]] in lane i < n. (What lies as near one another as the lanes do is read as one vector.)
template <int N, class T, class I> DV auto ldi(const T* p, I at, int n = N) {
  if (n != N) at = sel(first_lanes<N>(n), at, bc<N>((E<I>)at[n - 1]));
#ifdef __AVX2__
  if constexpr (sizeof(E<I>) == 4 && N >= 8) {
    const auto from = at - bc<N>((E<I>)at[0]);
    const uint32_t last = from[N - 1];
    if (last < N && !any(mask((V<uint32_t, N>)from > last))) {
      auto near = widen_raw<T>(raw_load_first<N, R<T>>((const R<T>*)p + at[0], last + 1));
      return __builtin_shuffle(near, cast<typename signed_of<sizeof near / N>::type>(from));
    }
    if constexpr (sizeof(T) == 4) return widen_raw<T>(bits<V<R<T>, N>>(gathered(p, at)));
  }
#endif
  auto raw = (const R<T>*)p;
  return widen_raw<T>(lane_values<N>([=](int i) { return raw[at[i]]; }));
}
template <int N, class T, class I, class M> DV auto ldim(const T* p, I at, M m, int n = N) {
  if (n != N) m &= first_lanes<N>(n);
  const uint32_t in_use = mask_bits(m);
  decltype(ld<N>(p)) none = {};
  if (in_use == 0) return none;
  at = sel(m, at, bc<N>((E<I>)at[__builtin_ctz(in_use)]));
  return sel(m, ldi<N>(p, at), none);
}

// Exchange, in each square of S lanes and rows, the upper right quarter and the lower left one, of
// the rows v[r] and v[r + S]; with all of them, for S = N / 2 ... 1, v is transposed.
template <int S, int N, class X> DV void exchange(X* v) {
  if constexpr (S > 0) {
    V<typename signed_of<sizeof(E<X>)>::type, N> upper, lower;
    for (int i = 0; i < N; ++i) {
      upper[i] = i & S ? i - S + N : i;
      lower[i] = i & S ? i + N : i + S;
    }
#pragma GCC unroll 64
    for (int r = 0; r < N; ++r) {
      if (r & S) continue;
      const X a = v[r], b = v[r + S];
      v[r] = __builtin_shuffle(a, b, upper);
      v[r + S] = __builtin_shuffle(a, b, lower);
    }
    exchange<S / 2, N>(v);
  }
}

// tile[c][r] = p[r * stride + c] for r < rows, c < columns; a tile's row has N elements.
template <int N, int H, class T>
DV void transpose(T* tile, const T* p, int64_t stride, int rows, int columns) {
  int done = 0;
  if (rows == N) {
    for (; done + N <= columns; done += N) {  // in registers
      V<R<T>, N> v[N];
#pragma GCC unroll 64
      for (int r = 0; r < N; ++r) v[r] = raw_load<N, R<T>>((const R<T>*)p + r * stride + done);
      exchange<N / 2, N>(v);
#pragma GCC unroll 64
      for (int r = 0; r < N; ++r) put((R<T>*)tile + (done + r) * N, v[r]);
    }
  }
  for (int r = 0; r < rows; ++r)
    for (int c = done; c < columns; ++c) tile[c * N + r] = p[r * stride + c];
}

template <class T, class X> DV X narrow(T*, X x) { return x; }
DV uint8_t narrow(bool8*, bool m) { return m; }
template <class M> DV auto narrow(bool8*, M m) { return cast<uint8_t>(m & 1); }
template <class X> DV auto narrow(bf16*, X x) { return narrow_bf16(x); }
template <class X> DV auto narrow(half*, X x) { return narrow_half(x); }
template <class X> DV auto narrow(e4m3*, X x) { return narrow_f8<3>(x); }
template <class X> DV auto narrow(e5m2*, X x) { return narrow_f8<2>(x); }
template <class T, class X> DV void st1(T* p, X x) { *(R<T>*)p = (R<T>)narrow(p, x); }
template <class T, class X> DV void st(T* p, X x) {
  auto r = narrow(p, x);
  static_assert(sizeof r == sizeof(T) * lanes<X>, "a store of another type");
  put(p, r);
}
template <class T, class X> DV void stn(T* p, X x, int n) {
  auto r = narrow(p, x);
  static_assert(sizeof r == sizeof(T) * lanes<X>, "a store of another type");
#define DV_STORE(count, kind, load, store)                                                        \
  if constexpr (lanes<X> == count && sizeof(T) == sizeof(kind)) {                                 \
    __builtin_ia32_##store##_mask((kind*)p, bits<V<kind, count>>(r), (1u << n) - 1);              \
    return;                                                                                       \
  }
  DV_MASKED(DV_STORE)
  __builtin_memcpy(p, &r, n * sizeof(T));
}
template <class T, class X> DV void str(T* p, X x, int n = lanes<X>) {  // p[-i] gets lane i
  auto r = reversed(narrow(p, x));
  constexpr int N = lanes<X>;
  const int unused = N - n;  // of the first lanes, now
  if (n == N) put((R<T>*)p - (N - 1), r);
  else __builtin_memcpy((R<T>*)p - (n - 1), (char*)&r + unused * sizeof(T), n * sizeof(T));
}
template <class T, class X> DV void sts(T* p, X x, int64_t stride, int n) {
  auto r = narrow(p, x);
  for (int i = 0; i < n; ++i) ((R<T>*)p)[i * stride] = r[i];
}
template <class T, class X, class I> DV void sti(T* p, X x, I at, int n) {
  auto r = narrow(p, x);
  for (int i = 0; i < n; ++i) ((R<T>*)p)[at[i]] = r[i];
}

// p[i] = f(p[i], x): for one element, for lanes side by side, for lanes at given places in order.
template <class T, class X, class F> DV void up1(T* p, X x, F f) { st1(p, (X)f(ld1(p), x)); }
template <class T, class X, class F> DV void up(T* p, X x, int n, F f) {
  constexpr int N = lanes<X>;
  if (n == N) st(p, f(ld<N>(p), x));
  else stn(p, f(ldn<N>(p, n), x), n);
}
template <class T, class X, class I, class F> DV void upi(T* p, X x, I at, int n, F f) {
  for (int i = 0; i < n; ++i) up1(p + at[i], (decltype(ld1(p)))x[i], f);
}

}  // namespace dovetail_simd
