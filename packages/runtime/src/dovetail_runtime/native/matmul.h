// Products of matrices through cuBLASLt, asked directly: what PyTorch's own operators do for every
// call (describe the operands, choose an algorithm) is done once for each layout, which leaves about
// a quarter of their time on the CPU. The library is the one that torch has loaded, found at run
// time, so that this builds and loads without CUDA.
//
// Only 2-byte floats are handled, accumulated in float32. Everything else stays with ATen.
#pragma once

#include <dlfcn.h>

#include <ATen/Context.h>

#include <cstring>
#include <list>
#include <atomic>
#include <map>

#include "program.h"

namespace dovetail {

// Names and numbers of cublasLt.h (CUDA 12 and 13).
struct CublasLt {
  using Status = int;
  struct Algorithm {
    uint64_t data[8];
  };
  struct Heuristic {
    Algorithm algorithm;
    size_t workspace_bytes;
    Status state;
    float waves;
    int reserved[4];
  };
  enum { kFloat32 = 0, kFloat16 = 2, kBFloat16 = 14, kComputeFloat32 = 68 };
  enum { kTransposeA = 3, kTransposeB = 4, kEpilogue = 7, kBiasPointer = 8 };  // of an operation
  enum { kEpilogueBias = 4 };
  enum { kBatchCount = 5, kBatchStride = 6 };                                  // of a layout
  enum { kMaxWorkspace = 1, kReductionSchemes = 3, kMinAlignment = 5 };        // of a preference
  enum { kReduceInComputeType = 2 };

  Status (*create)(void**) = nullptr;
  Status (*operation_create)(void**, int, int) = nullptr;
  Status (*operation_destroy)(void*) = nullptr;
  Status (*operation_set)(void*, int, const void*, size_t) = nullptr;
  Status (*layout_create)(void**, int, uint64_t, uint64_t, int64_t) = nullptr;
  Status (*layout_destroy)(void*) = nullptr;
  Status (*layout_set)(void*, int, const void*, size_t) = nullptr;
  Status (*preference_create)(void**) = nullptr;
  Status (*preference_destroy)(void*) = nullptr;
  Status (*preference_set)(void*, int, const void*, size_t) = nullptr;
  Status (*heuristics)(void*, void*, void*, void*, void*, void*, void*, int, Heuristic*,
                       int*) = nullptr;
  Status (*matmul)(void*, void*, const void*, const void*, void*, const void*, void*, const void*,
                   const void*, void*, void*, void*, const Algorithm*, void*, size_t,
                   void*) = nullptr;

  // Null where torch has not loaded the library.
  static const CublasLt* get() {
    static const CublasLt* library = load();
    return library;
  }

 private:
  static const CublasLt* load() {
    void* handle = nullptr;
    for (const char* name : {"libcublasLt.so.13", "libcublasLt.so.12"}) {
      if (handle == nullptr) handle = dlopen(name, RTLD_NOW | RTLD_NOLOAD);
    }
    if (handle == nullptr) return nullptr;
    auto* made = new CublasLt();
    bool all = true;
    auto find = [&](const char* name, auto& function) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(handle, name));
      all &= function != nullptr;
    };
    find("cublasLtCreate", made->create);
    find("cublasLtMatmulDescCreate", made->operation_create);
    find("cublasLtMatmulDescDestroy", made->operation_destroy);
    find("cublasLtMatmulDescSetAttribute", made->operation_set);
    find("cublasLtMatrixLayoutCreate", made->layout_create);
    find("cublasLtMatrixLayoutDestroy", made->layout_destroy);
    find("cublasLtMatrixLayoutSetAttribute", made->layout_set);
    find("cublasLtMatmulPreferenceCreate", made->preference_create);
    find("cublasLtMatmulPreferenceDestroy", made->preference_destroy);
    find("cublasLtMatmulPreferenceSetAttribute", made->preference_set);
    find("cublasLtMatmulAlgoGetHeuristic", made->heuristics);
    find("cublasLtMatmul", made->matmul);
    if (all) return made;
    delete made;
    return nullptr;
  }
};

// A handle for each device.
class LtDevices {
 public:
  static LtDevices& get() {
    static auto* devices = new LtDevices();
    return *devices;
  }

  // Null if the library gives none.
  void* handle(int device) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto [place, fresh] = handles_.try_emplace(device, nullptr);
    if (fresh) CublasLt::get()->create(&place->second);
    return place->second;
  }

 private:
  std::mutex mutex_;
  std::map<int, void*> handles_;
};

// A matrix, or a batch of them, in elements.
struct Matrix {
  char* data = nullptr;
  c10::ScalarType dtype = c10::kFloat;
  int64_t batch = 1, rows = 0, columns = 0;
  int64_t batch_stride = 0, row_stride = 0, column_stride = 1;
};

// Whether programs that are loaded from now on may bypass ATen for products.
inline std::atomic<bool>& direct_products() {
  static std::atomic<bool> allowed{true};
  return allowed;
}

// One step's product; keeps what was chosen for each layout of its operands.
class LtProduct {
 public:
  LtProduct() = default;
  LtProduct(const LtProduct&) = delete;
  LtProduct& operator=(const LtProduct&) = delete;
  ~LtProduct() {
    if (choices_.empty()) return;
    const CublasLt& lt = *CublasLt::get();
    for (Choice& choice : choices_) {
      if (choice.operation != nullptr) lt.operation_destroy(choice.operation);
      for (void* layout : choice.layouts) {
        if (layout != nullptr) lt.layout_destroy(layout);
      }
    }
  }

  // Whether every product of this step until now was `run`, and there was one.
  bool always_ran() const { return ran_ && !refused_; }
  void note(bool ran) { (ran ? ran_ : refused_) = true; }

  // out = a @ b (+ bias, a row), or (+ addend, a matrix). False: nothing was done, ask ATen.
  bool run(const Matrix& a, const Matrix& b, const Matrix& out, const char* bias,
           const Matrix* addend, int device, void* stream) {
    Key key;
    std::memset(&key, 0, sizeof key);
    key.dtype = out.dtype == c10::kHalf ? CublasLt::kFloat16 : CublasLt::kBFloat16;
    // The library thinks in columns: it is asked for the transposed product, whose operands are
    // the transposed ones in the other order.
    key.batch = out.batch;
    key.bias_alignment = bias != nullptr ? alignment_of(bias) : 0;
    key.has_addend = addend != nullptr;
    const Matrix& c = addend != nullptr ? *addend : out;
    if (!describe(b, key.operands[0]) || !describe(a, key.operands[1]) ||
        !describe(c, key.operands[2]) || !describe(out, key.operands[3]) ||
        key.operands[2].transposed || key.operands[3].transposed) {
      return false;
    }
    std::lock_guard<std::mutex> lock(mutex_);
    Choice* choice = find(key, device, bias);
    if (!choice->usable) return false;
    const CublasLt& lt = *CublasLt::get();
    if (bias != choice->bias) {
      lt.operation_set(choice->operation, CublasLt::kBiasPointer, &bias, sizeof bias);
      choice->bias = bias;
    }
    const float one = 1, beta = addend != nullptr ? 1 : 0;
    // To work in until this product is done: what comes after it on the stream may have it. While a
    // graph is recorded it comes from the graph's own memory, which stays as long as the graph.
    c10::DataPtr workspace;
    if (choice->workspace_bytes > 0) {
      workspace = c10::GetAllocator(c10::kCUDA)->allocate(choice->workspace_bytes);
    }
    CublasLt::Status status = lt.matmul(
        LtDevices::get().handle(device), choice->operation, &one, b.data, choice->layouts[0],
        a.data, choice->layouts[1], &beta, c.data, choice->layouts[2], out.data,
        choice->layouts[3], &choice->algorithm, workspace.get(), choice->workspace_bytes, stream);
    if (status == 0) return true;
    choice->usable = false;
    return false;
  }

 private:
  static constexpr size_t kMostChoices = 64;

  // All fields are compared as bytes: no padding, and every one is set or zero.
  struct Operand {
    int64_t transposed, rows, columns, leading, batch_stride, alignment;
  };
  struct Key {
    int64_t dtype, batch, bias_alignment, has_addend;  // of no bias: 0
    Operand operands[4];
  };
  struct Choice {
    Key key;
    int device = 0;
    bool usable = false;
    void* operation = nullptr;
    void* layouts[4] = {};
    const char* bias = nullptr;
    CublasLt::Algorithm algorithm;
    size_t workspace_bytes = 0;
  };

  // A matrix as a column-major one of the transposed shape (or of its own: then it is transposed).
  static bool describe(const Matrix& matrix, Operand& operand) {
    int64_t rows = matrix.columns, columns = matrix.rows;
    int64_t along = matrix.column_stride, leading = matrix.row_stride;
    if (along != 1 && rows != 1) {
      if (leading != 1 && columns != 1) return false;
      operand.transposed = 1;
      std::swap(rows, columns);
      std::swap(along, leading);
    }
    if (columns == 1) leading = std::max(leading, rows);
    if (leading < rows || rows == 0 || columns == 0) return false;
    operand.rows = rows;
    operand.columns = columns;
    operand.leading = leading;
    operand.batch_stride = matrix.batch > 1 ? matrix.batch_stride : 0;
    operand.alignment = alignment_of(matrix.data);
    return true;
  }

  // In bytes; 256 is as much as the library asks for.
  static int64_t alignment_of(const char* data) {
    int64_t alignment = 256;
    while (reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(alignment)) alignment /= 2;
    return alignment;
  }

  Choice* find(const Key& key, int device, const char* bias) {
    for (Choice& choice : choices_) {
      if (choice.device == device && std::memcmp(&choice.key, &key, sizeof key) == 0) {
        return &choice;
      }
    }
    if (choices_.size() >= kMostChoices) {
      static Choice refused;
      return &refused;
    }
    Choice& choice = choices_.emplace_back();
    choice.key = key;
    choice.device = device;
    choice.usable = choose(choice, bias);
    return &choice;
  }

  bool choose(Choice& choice, const char* bias) {
    const CublasLt& lt = *CublasLt::get();
    void* handle = LtDevices::get().handle(choice.device);
    if (handle == nullptr) return false;
    bool fine = lt.operation_create(&choice.operation, CublasLt::kComputeFloat32,
                                    CublasLt::kFloat32) == 0;
    auto set = [&](int attribute, const auto& value) {
      fine = fine && lt.operation_set(choice.operation, attribute, &value, sizeof value) == 0;
    };
    const Key& key = choice.key;
    set(CublasLt::kTransposeA, static_cast<int32_t>(key.operands[0].transposed));
    set(CublasLt::kTransposeB, static_cast<int32_t>(key.operands[1].transposed));
    if (key.bias_alignment != 0) {
      set(CublasLt::kEpilogue, static_cast<int32_t>(CublasLt::kEpilogueBias));
      set(CublasLt::kBiasPointer, bias);
      choice.bias = bias;
    }
    void* preference = nullptr;
    fine = fine && lt.preference_create(&preference) == 0;
    auto prefer = [&](int attribute, const auto& value) {
      fine = fine && lt.preference_set(preference, attribute, &value, sizeof value) == 0;
    };
    prefer(CublasLt::kMaxWorkspace, static_cast<uint64_t>(kMostWorkspaceBytes));
    prefer(CublasLt::kReductionSchemes, static_cast<uint32_t>(CublasLt::kReduceInComputeType));
    for (int i = 0; i < 4; ++i) {
      const Operand& operand = key.operands[i];
      fine = fine && lt.layout_create(&choice.layouts[i], static_cast<int>(key.dtype),
                                      static_cast<uint64_t>(operand.rows),
                                      static_cast<uint64_t>(operand.columns), operand.leading) == 0;
      if (fine && key.batch > 1) {
        int32_t count = static_cast<int32_t>(key.batch);
        fine = lt.layout_set(choice.layouts[i], CublasLt::kBatchCount, &count, sizeof count) == 0 &&
               lt.layout_set(choice.layouts[i], CublasLt::kBatchStride, &operand.batch_stride,
                             sizeof operand.batch_stride) == 0;
      }
      prefer(CublasLt::kMinAlignment + i, static_cast<uint32_t>(operand.alignment));
    }
    CublasLt::Heuristic found;
    int count = 0;
    fine = fine && lt.heuristics(handle, choice.operation, choice.layouts[0], choice.layouts[1],
                                 choice.layouts[2], choice.layouts[3], preference, 1, &found,
                                 &count) == 0;
    if (preference != nullptr) lt.preference_destroy(preference);
    if (!fine || count < 1 || found.state != 0) return false;
    choice.algorithm = found.algorithm;
    choice.workspace_bytes = found.workspace_bytes;
    return true;
  }

  static constexpr size_t kMostWorkspaceBytes = size_t(32) << 20;

  std::mutex mutex_;
  std::list<Choice> choices_;
  std::atomic<bool> ran_{false}, refused_{false};
};

}  // namespace dovetail
