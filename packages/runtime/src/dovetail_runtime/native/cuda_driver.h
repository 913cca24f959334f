// The few calls of the CUDA driver that launching needs, found at run time: this builds and loads
// on machines that have neither a GPU nor CUDA's headers.
#pragma once

#include <dlfcn.h>

#include "program.h"

namespace dovetail {

// `CUlaunchAttribute` and `CUlaunchConfig` of CUDA's driver, from version 12 on.
struct LaunchAttribute {
  static constexpr int kProgrammaticStreamSerialization = 6;
  int id;
  alignas(8) int value;
  char rest[60];  // of a union of 64 bytes
};

struct LaunchConfig {
  unsigned grid[3], block[3], shared_bytes;
  void* stream;
  LaunchAttribute* attributes;
  unsigned attribute_count;
};

struct CudaDriver {
  using Result = int;
  Result (*module_load)(void**, const void*) = nullptr;
  Result (*module_function)(void**, void*, const char*) = nullptr;
  Result (*function_attribute)(void*, int, int) = nullptr;
  Result (*launch)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                   void*, void**, void**) = nullptr;
  Result (*launch_as)(const LaunchConfig*, void*, void**, void**) = nullptr;
  Result (*copy)(uint64_t, uint64_t, size_t, void*) = nullptr;  // within the GPU, on a stream
  Result (*new_stream)(void**, unsigned) = nullptr;
  Result (*error_name)(Result, const char**) = nullptr;
  Result (*current_context)(void**) = nullptr;
  Result (*device)(int*, int) = nullptr;
  Result (*primary_context)(void**, int) = nullptr;
  Result (*set_context)(void*) = nullptr;

  static const CudaDriver& get() {
    static const CudaDriver driver;
    return driver;
  }

  void check(Result result, const char* what, const std::string& kernel) const {
    if (result == 0) return;
    const char* name = nullptr;
    error_name(result, &name);
    TORCH_CHECK(false, what, " failed for ", kernel, ": ", name == nullptr ? "unknown error" : name);
  }

 private:
  CudaDriver() {
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    TORCH_CHECK(library != nullptr,
                "this plan runs on a GPU, but NVIDIA's driver (libcuda.so.1) cannot be loaded: ",
                dlerror());
    find(library, "cuModuleLoadData", module_load);
    find(library, "cuModuleGetFunction", module_function);
    find(library, "cuFuncSetAttribute", function_attribute);
    find(library, "cuLaunchKernel", launch);
    find(library, "cuLaunchKernelEx", launch_as);
    find(library, "cuMemcpyDtoDAsync_v2", copy);
    find(library, "cuStreamCreate", new_stream);
    find(library, "cuGetErrorName", error_name);
    find(library, "cuCtxGetCurrent", current_context);
    find(library, "cuDeviceGet", device);
    find(library, "cuDevicePrimaryCtxRetain", primary_context);
    find(library, "cuCtxSetCurrent", set_context);
  }

  template <typename Function>
  static void find(void* library, const char* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(library, name));
    TORCH_CHECK(function != nullptr, "libcuda.so.1 has no ", name);
  }
};

// A thread that has not called CUDA's runtime yet (the autograd engine's, say) has no context, and
// the driver's calls need one: bind the device's own. Gives the one that is bound.
inline void* bind_context(int device_index) {
  const CudaDriver& driver = CudaDriver::get();
  void* context = nullptr;
  driver.check(driver.current_context(&context), "cuCtxGetCurrent", "this thread");
  if (context != nullptr) return context;
  int device = 0;
  driver.check(driver.device(&device, device_index), "cuDeviceGet", "this thread");
  driver.check(driver.primary_context(&context, device), "cuDevicePrimaryCtxRetain", "this thread");
  driver.check(driver.set_context(context), "cuCtxSetCurrent", "this thread");
  return context;
}

// Whether this thread is on a program's device already, as torch and the driver see it.
inline bool is_on_device(const Program& program) {
  void* context = nullptr;
  return CudaDriver::get().current_context(&context) == 0 && context != nullptr &&
         context == program.cuda_context &&
         c10::impl::getDeviceGuardImpl(c10::kCUDA)->getDevice().index() == program.cuda_device;
}

// Loads every GPU kernel of the plan. The plan's device must be current, with its context made.
inline void load_gpu_kernels(Program& program) {
  constexpr int kMaxDynamicSharedBytes = 8;
  for (Step& step : program.steps) {
    if (auto* choice = std::get_if<ChooseProgram>(&step)) {
      for (const auto& branch : choice->branches) load_gpu_kernels(*branch);
    }
    if (auto* loop = std::get_if<WhileProgram>(&step)) {
      load_gpu_kernels(*loop->condition);
      load_gpu_kernels(*loop->body);
    }
    auto* launch = std::get_if<LaunchTriton>(&step);
    if (launch == nullptr || launch->function != nullptr) continue;
    const CudaDriver& driver = CudaDriver::get();
    void* module = nullptr;
    driver.check(driver.module_load(&module, launch->cubin.data()), "cuModuleLoadData", launch->name);
    driver.check(driver.module_function(&launch->function, module, launch->entry.c_str()),
                 "cuModuleGetFunction", launch->name);
    if (launch->shared_bytes > 48 * 1024) {
      driver.check(driver.function_attribute(launch->function, kMaxDynamicSharedBytes,
                                             launch->shared_bytes),
                   "cuFuncSetAttribute", launch->name);
    }
  }
}

// `early`: while the launch before it on the stream still runs.
inline void launch_on_gpu(const LaunchTriton& step, const int64_t* grid, void** parameters,
                          void* stream, bool early) {
  const CudaDriver& driver = CudaDriver::get();
  unsigned x = static_cast<unsigned>(grid[0]), y = static_cast<unsigned>(grid[1]),
           z = static_cast<unsigned>(grid[2]), threads = static_cast<unsigned>(step.threads),
           shared_bytes = static_cast<unsigned>(step.shared_bytes);
  if (early) {
    LaunchAttribute attribute{LaunchAttribute::kProgrammaticStreamSerialization, 1, {}};
    LaunchConfig config{{x, y, z}, {threads, 1, 1}, shared_bytes, stream, &attribute, 1};
    driver.check(driver.launch_as(&config, step.function, parameters, nullptr), "cuLaunchKernelEx",
                 step.name);
    return;
  }
  driver.check(driver.launch(step.function, x, y, z, threads, 1, 1, shared_bytes, stream,
                             parameters, nullptr),
               "cuLaunchKernel", step.name);
}

}  // namespace dovetail
