// Relations over sizes: a small stack program over 64-bit integers.
#pragma once

#include "common.h"

#include <algorithm>
#include <vector>

namespace dovetail {

// The numbers are those of `native.py`.
enum class Op : int64_t { Push, Symbol, Add, Mul, FloorDiv, Mod, Min, Max, Eq, Ne, Lt, Le, And, Or, Not };

struct Instruction {
  Op op;
  int64_t argument;
};

// Wide enough for the difference of any two 64-bit numbers (the keys of floats are that far apart).
using Wide = __int128;

// Python's floor division and modulo; the caller has excluded zero and overflow.
inline Wide floor_div(Wide a, Wide b) {
  Wide q = a / b;
  return (a % b != 0 && ((a < 0) != (b < 0))) ? q - 1 : q;
}

struct Program {
  std::vector<Instruction> code;
  int64_t depth = 0;  // the deepest the stack gets

  // Pass if the relation holds. Overflow and division by zero fail: then nothing is known.
  Outcome run(const int64_t* symbols) const {
    constexpr int64_t kInline = 32;
    Wide local[kInline];
    std::vector<Wide> heap;
    Wide* stack = local;
    if (depth > kInline) {
      heap.resize(static_cast<size_t>(depth));
      stack = heap.data();
    }
    Wide* top = stack - 1;
    for (const Instruction& in : code) {
      if (in.op == Op::Push) {
        *++top = in.argument;
        continue;
      }
      if (in.op == Op::Symbol) {
        *++top = symbols[in.argument];
        continue;
      }
      if (in.op == Op::Not) {
        *top = !*top;
        continue;
      }
      Wide b = *top--;
      Wide& a = *top;
      switch (in.op) {
        case Op::Add:
          if (__builtin_add_overflow(a, b, &a)) return Fail;
          break;
        case Op::Mul:
          if (__builtin_mul_overflow(a, b, &a)) return Fail;
          break;
        case Op::FloorDiv:
        case Op::Mod:
          if (b == 0) return Fail;
          a = in.op == Op::FloorDiv ? floor_div(a, b) : a - floor_div(a, b) * b;
          break;
        case Op::Min:
          a = std::min(a, b);
          break;
        case Op::Max:
          a = std::max(a, b);
          break;
        case Op::Eq:
          a = a == b;
          break;
        case Op::Ne:
          a = a != b;
          break;
        case Op::Lt:
          a = a < b;
          break;
        case Op::Le:
          a = a <= b;
          break;
        case Op::And:
          a = a && b;
          break;
        case Op::Or:
          a = a || b;
          break;
        default:
          return Fail;
      }
    }
    return *top ? Pass : Fail;
  }
};

}  // namespace dovetail
