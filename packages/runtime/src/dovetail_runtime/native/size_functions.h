// Sizes computed at run time: integers, and floats as their bits.
#pragma once

#include <cmath>
#include <cstring>

#include "program.h"

namespace dovetail {

inline int64_t floor_div(int64_t a, int64_t b) {
  TORCH_CHECK(b != 0, "a size expression divides by zero");
  int64_t q = a / b;
  return (a % b != 0 && ((a < 0) != (b < 0))) ? q - 1 : q;
}

inline double as_float(int64_t bits) {
  double value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline int64_t as_bits(double value) {
  int64_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

// Python raises where a function of numbers has no finite result.
inline double defined(double result, double a, double b = 0) {
  TORCH_CHECK_VALUE(std::isfinite(result) || !std::isfinite(a) || !std::isfinite(b),
                    "math domain or range error in a float computed from sizes or float inputs");
  return result;
}

inline double float_mod(double a, double b) {
  TORCH_CHECK(b != 0, "float modulo by zero");
  double rest = std::fmod(a, b);
  if (rest == 0) return std::copysign(0.0, b);
  return (b < 0) != (rest < 0) ? rest + b : rest;
}

// As CPython has it: the quotient without the rest, rounded to a whole number.
inline double float_floor_div(double a, double b) {
  TORCH_CHECK(b != 0, "float floor division by zero");
  double rest = std::fmod(a, b);
  double quotient = (a - rest) / b;
  if (rest != 0 && (b < 0) != (rest < 0)) quotient -= 1;
  if (quotient == 0) return std::copysign(0.0, a / b);
  double whole = std::floor(quotient);
  return quotient - whole > 0.5 ? whole + 1 : whole;
}

inline double float_div(double a, double b) {
  TORCH_CHECK(b != 0, "float division by zero");
  return a / b;
}

// The order is that of FLOAT_OPERATIONS in sizes.py, `float` left out.
inline double apply_float(int operation, double a, double b) {
  switch (operation) {
    case 0: return a + b;
    case 1: return a - b;
    case 2: return a * b;
    case 3: return float_div(a, b);
    case 4: return float_floor_div(a, b);
    case 5: return float_mod(a, b);
    case 6: return defined(std::pow(a, b), a, b);
    case 7: return b < a ? b : a;
    case 8: return b > a ? b : a;
    case 9: return -a;
    case 10: return std::fabs(a);
    case 11: return defined(std::sqrt(a), a);
    case 12: return defined(std::cos(a), a);
    case 13: return defined(std::cosh(a), a);
    case 14: return defined(std::sin(a), a);
    case 15: return defined(std::sinh(a), a);
    case 16: return defined(std::tan(a), a);
    case 17: return std::tanh(a);
    case 18: return defined(std::asin(a), a);
    case 19: return defined(std::acos(a), a);
    case 20: return std::atan(a);
    case 21: return defined(std::exp(a), a);
    case 22: return defined(std::log(a), a);
    default: return defined(std::log2(a), a);
  }
}

inline int64_t apply_size(int operation, int64_t a, int64_t b) {
  if (operation >= 15) return as_bits(apply_float(operation - 15, as_float(a), as_float(b)));
  switch (operation) {
    case 0: return a + b;
    case 1: return a - b;
    case 2: return a * b;
    case 3: return floor_div(a, b);
    case 4: return -floor_div(-a, b);
    case 5: return a - floor_div(a, b) * b;
    case 6: return a < b ? a : b;
    case 7: return a < b ? b : a;
    case 8: return -a;
    case 9: return a == b;
    case 10: return a <= b;
    case 11: return a && b;
    case 12: return a || b;
    case 13: return !a;
    default: return as_bits(static_cast<double>(a));
  }
}

inline void run_sizes(const std::vector<SizeInstruction>& program, std::vector<int64_t>& values) {
  for (const SizeInstruction& i : program) {
    values[i.destination] = apply_size(i.operation, values[i.left], values[i.right]);
  }
}

}  // namespace dovetail
