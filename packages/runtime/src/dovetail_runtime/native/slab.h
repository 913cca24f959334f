// Memory for the slabs of CPU plans and for their large tensors. It is kept between calls and
// shared by all plans of the process, because fresh memory costs a page fault for every 4 KiB.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <vector>

namespace dovetail {

struct Block {
  void* data = nullptr;
  size_t bytes = 0;
};

// Whole pages, handed out best fit first; what is given back joins its free neighbours. The pool
// holds no more than was in use at one time (since `release_idle`), nor more idle bytes than its
// limit.
class SlabPool {
 public:
  Block take(size_t bytes) {
    if (bytes == 0) return {};
    bytes = (bytes + kPage - 1) / kPage * kPage;
    std::vector<Block> dropped;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      used_ += bytes;
      most_used_ = std::max(most_used_, used_);
      auto best = idle_.end();
      for (auto range = idle_.begin(); range != idle_.end(); ++range) {
        if (range->second >= bytes && (best == idle_.end() || range->second < best->second)) {
          best = range;
        }
      }
      if (best != idle_.end()) return cut(best, bytes);
      shrink_to(most_used_ - used_, dropped);
    }
    unmap(dropped);
    Block block = fresh(bytes);
    if (block.data == nullptr) {
      release_idle();
      block = fresh(bytes);
    }
    if (block.data == nullptr) {
      std::lock_guard<std::mutex> lock(mutex_);
      used_ -= bytes;
      throw std::bad_alloc();
    }
    return block;
  }

  void give_back(Block block) {
    if (block.data == nullptr) return;
    std::vector<Block> dropped;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      used_ -= block.bytes;
      idle_bytes_ += block.bytes;
      char* start = static_cast<char*>(block.data);
      auto next = idle_.lower_bound(start);
      if (next != idle_.end() && start + block.bytes == next->first) {
        block.bytes += next->second;
        next = idle_.erase(next);
      }
      if (next != idle_.begin()) {
        auto previous = std::prev(next);
        if (previous->first + previous->second == start) {
          previous->second += block.bytes;
          start = nullptr;
        }
      }
      if (start != nullptr) idle_.emplace_hint(next, start, block.bytes);
      shrink_to(limit_, dropped);
    }
    unmap(dropped);
  }

  void set_limit(size_t bytes) {
    std::vector<Block> dropped;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      limit_ = bytes;
      shrink_to(limit_, dropped);
    }
    unmap(dropped);
  }

  // Gives what no call is using back to the system.
  void release_idle() {
    std::vector<Block> dropped;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      most_used_ = used_;
      shrink_to(0, dropped);
    }
    unmap(dropped);
  }

  size_t idle_bytes() {
    std::lock_guard<std::mutex> lock(mutex_);
    return idle_bytes_;
  }

 private:
  using Ranges = std::map<char*, size_t>;

  static constexpr size_t kPage = 4096;
  static constexpr size_t kHugePage = size_t(2) << 20;

  // New memory (null: there is none). It begins on a huge page where one fits in: a fault then
  // brings 512 pages, not one.
  static Block fresh(size_t bytes) {
    size_t slack = bytes >= kHugePage ? kHugePage : 0;
    void* mapped = mmap(nullptr, bytes + slack, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) return {};
    char* start = static_cast<char*>(mapped);
    if (slack != 0) {
      char* aligned = start + (kHugePage - reinterpret_cast<size_t>(start) % kHugePage) % kHugePage;
      size_t before = static_cast<size_t>(aligned - start);
      if (before != 0) munmap(start, before);
      if (slack != before) munmap(aligned + bytes, slack - before);
      start = aligned;
      madvise(start, bytes / kHugePage * kHugePage, MADV_HUGEPAGE);
    }
    return {start, bytes};
  }

  static void unmap(const std::vector<Block>& blocks) {
    for (const Block& block : blocks) munmap(block.data, block.bytes);
  }

  // The end of an idle range.
  Block cut(Ranges::iterator range, size_t bytes) {
    range->second -= bytes;
    idle_bytes_ -= bytes;
    Block block{range->first + range->second, bytes};
    if (range->second == 0) idle_.erase(range);
    return block;
  }

  // Parts with the ends of the largest idle ranges.
  void shrink_to(size_t bytes, std::vector<Block>& dropped) {
    while (idle_bytes_ > bytes) {
      auto largest = std::max_element(idle_.begin(), idle_.end(), [](const auto& a, const auto& b) {
        return a.second < b.second;
      });
      size_t surplus = (idle_bytes_ - bytes + kPage - 1) / kPage * kPage;
      dropped.push_back(cut(largest, std::min(surplus, largest->second)));
    }
  }

  std::mutex mutex_;
  Ranges idle_;  // by address
  size_t idle_bytes_ = 0;
  size_t used_ = 0;       // bytes that were taken and not given back
  size_t most_used_ = 0;  // the most that `used_` has been since the last `release_idle`
  size_t limit_ = size_t(1) << 30;
};

inline SlabPool& slab_pool() {
  static SlabPool* pool = new SlabPool();  // never destroyed: plans may outlive static teardown
  return *pool;
}

// Memory of tensors that CPU plans make outside of their slabs, results included: large ones come
// from the pool, and go back to it when the last tensor over them dies.
class TensorMemory final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes < kLarge) return c10::GetCPUAllocator()->allocate(bytes);
    auto block = std::make_unique<Block>(slab_pool().take(bytes));
    void* data = block->data;
    return {data, block.release(), &give_back, c10::Device(c10::kCPU)};
  }

  void copy_data(void* target, const void* source, size_t bytes) const override {
    std::memcpy(target, source, bytes);
  }

  // Whether memory with this deleter is from here.
  static bool made(c10::DeleterFnPtr deleter) {
    return deleter == &give_back || deleter == c10::GetCPUAllocator()->raw_deleter();
  }

 private:
  // What malloc takes from its heap is warm anyway.
  static constexpr size_t kLarge = size_t(1) << 18;

  static void give_back(void* context) {
    std::unique_ptr<Block> block(static_cast<Block*>(context));
    slab_pool().give_back(*block);
  }
};

inline c10::Allocator* tensor_memory() {
  static TensorMemory* memory = new TensorMemory();  // never destroyed: tensors may outlive us
  return memory;
}

// Whether a storage's allocator made its memory, which nobody else can look at then: NumPy's arrays,
// mapped files and the like have other deleters.
inline bool is_plain_memory(const c10::Storage& storage) {
  c10::Allocator* allocator = storage.allocator();
  c10::DeleterFnPtr deleter = storage.data_ptr().get_deleter();
  if (!storage.resizable() || allocator == nullptr || deleter == nullptr) return false;
  return allocator == tensor_memory() ? TensorMemory::made(deleter)
                                      : deleter == allocator->raw_deleter();
}

}  // namespace dovetail
