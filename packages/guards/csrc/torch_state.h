// Global torch settings, read without Python.
//
// What lives in libc10 comes from its headers. The few settings of `at::Context` are reached by
// their symbols, declared weak: ATen's headers would take twenty seconds to compile. A symbol that
// a torch version lacks, or a setting in a state that has no small number, is read in Python.
#pragma once

#include "common.h"

#include <exception>

#include <c10/core/DefaultDtype.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/ScalarTypeToTypeMeta.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>

#define DOVETAIL_CONTEXT_BOOL(name, symbol) \
  extern "C" bool name(const void*) __asm__(symbol) __attribute__((weak))

extern "C" void* dovetail_context() __asm__("_ZN2at13globalContextEv") __attribute__((weak));
extern "C" int dovetail_threads() __asm__("_ZN2at15get_num_threadsEv") __attribute__((weak));
extern "C" int64_t dovetail_function_modes() __asm__("_ZN2at4impl22PythonTorchFunctionTLS9stack_lenEv")
    __attribute__((weak));
extern "C" int dovetail_matmul(const void*) __asm__("_ZNK2at7Context22float32MatmulPrecisionEv")
    __attribute__((weak));
extern "C" bool dovetail_autocast_cache() __asm__("_ZN2at8autocast25is_autocast_cache_enabledEv")
    __attribute__((weak));
extern "C" c10::ScalarType dovetail_autocast_dtype(c10::DeviceType)
    __asm__("_ZN2at8autocast18get_autocast_dtypeEN3c1010DeviceTypeE") __attribute__((weak));
DOVETAIL_CONTEXT_BOOL(dovetail_det, "_ZNK2at7Context23deterministicAlgorithmsEv");
DOVETAIL_CONTEXT_BOOL(dovetail_det_warn, "_ZNK2at7Context31deterministicAlgorithmsWarnOnlyEv");
DOVETAIL_CONTEXT_BOOL(dovetail_flash, "_ZNK2at7Context19userEnabledFlashSDPEv");
DOVETAIL_CONTEXT_BOOL(dovetail_mem, "_ZNK2at7Context26userEnabledMemEfficientSDPEv");
DOVETAIL_CONTEXT_BOOL(dovetail_math, "_ZNK2at7Context18userEnabledMathSDPEv");
DOVETAIL_CONTEXT_BOOL(dovetail_cudnn_sdp, "_ZNK2at7Context19userEnabledCuDNNSDPEv");
DOVETAIL_CONTEXT_BOOL(dovetail_cudnn, "_ZNK2at7Context16userEnabledCuDNNEv");
DOVETAIL_CONTEXT_BOOL(dovetail_benchmark, "_ZNK2at7Context14benchmarkCuDNNEv");
DOVETAIL_CONTEXT_BOOL(dovetail_cudnn_det, "_ZNK2at7Context18deterministicCuDNNEv");

namespace dovetail {

// The order is that of `native.py`'s `_STATES`.
enum class State : int {
  GradMode,
  InferenceMode,
  AutocastOff,
  DefaultDtype,
  NumThreads,
  Deterministic,
  FunctionModes,
  DispatchModes,
  SdpKernels,
  Cudnn,
  MatmulPrecision,
  FunctionTransforms,
  AutocastCache,
  Count,
};

// From here on: the dtype of autocast on the device type `state - kAutocastDtype`.
constexpr int kAutocastDtype = 64;
static_assert(static_cast<int>(State::Count) <= kAutocastDtype);

constexpr int64_t kUnreadable = INT64_MIN;

// The setting as a small number, or `kUnreadable`.
inline int64_t read_state(State state) {
  using c10::DispatchKeySet;
  switch (state) {
    case State::GradMode:
      return c10::GradMode::is_enabled();
    case State::InferenceMode:
      return c10::InferenceMode::is_enabled();
    case State::AutocastOff: {
      DispatchKeySet excluded = c10::impl::tls_local_dispatch_key_set().excluded_;
      return excluded.has_all(c10::autocast_dispatch_keyset) ? 1 : kUnreadable;
    }
    case State::DefaultDtype:
      return static_cast<int64_t>(c10::get_default_dtype().toScalarType());
    case State::NumThreads:
      return dovetail_threads ? dovetail_threads() : kUnreadable;
    case State::Deterministic: {
      if (!dovetail_context || !dovetail_det || !dovetail_det_warn) return kUnreadable;
      const void* context = dovetail_context();
      return dovetail_det(context) | dovetail_det_warn(context) << 1;
    }
    case State::FunctionModes:
      return dovetail_function_modes ? dovetail_function_modes() : kUnreadable;
    case State::DispatchModes:
      return c10::impl::TorchDispatchModeTLS::stack_len();
    case State::SdpKernels: {
      if (!dovetail_context || !dovetail_flash || !dovetail_mem || !dovetail_math ||
          !dovetail_cudnn_sdp) {
        return kUnreadable;
      }
      const void* context = dovetail_context();
      return dovetail_flash(context) | dovetail_mem(context) << 1 | dovetail_math(context) << 2 |
          dovetail_cudnn_sdp(context) << 3;
    }
    case State::Cudnn: {
      if (!dovetail_context || !dovetail_cudnn || !dovetail_benchmark || !dovetail_cudnn_det) {
        return kUnreadable;
      }
      const void* context = dovetail_context();
      return dovetail_cudnn(context) | dovetail_benchmark(context) << 1 |
          dovetail_cudnn_det(context) << 2;
    }
    case State::MatmulPrecision:
      try {
        return dovetail_context && dovetail_matmul ? dovetail_matmul(dovetail_context())
                                                   : kUnreadable;
      } catch (const std::exception&) { // old and new ways to set it were mixed
        return kUnreadable;
      }
    case State::FunctionTransforms: {
      // (What `torch._C._are_functorch_transforms_active` reads.)
      DispatchKeySet included = c10::impl::tls_local_dispatch_key_set().included_;
      return included.has(c10::DispatchKey::FuncTorchDynamicLayerFrontMode) ||
          included.has(c10::DispatchKey::FuncTorchDynamicLayerBackMode) ||
          included.has(c10::DispatchKey::Tracer); // on within torch.jit.trace
    }
    case State::AutocastCache:
      return dovetail_autocast_cache ? dovetail_autocast_cache() : kUnreadable;
    case State::Count:
      break;
  }
  int device = static_cast<int>(state) - kAutocastDtype;
  if (device >= 0 && device < c10::COMPILE_TIME_MAX_DEVICE_TYPES && dovetail_autocast_dtype) {
    return static_cast<int64_t>(dovetail_autocast_dtype(static_cast<c10::DeviceType>(device)));
  }
  return kUnreadable;
}

}  // namespace dovetail
