// Memory for the slabs of CPU plans. Blocks are kept between calls and shared by all plans of the
// process, because fresh memory costs a page fault for every 4 KiB.
#pragma once

#include <sys/mman.h>

#include <cstdlib>
#include <mutex>
#include <new>
#include <vector>

namespace dovetail {

struct Block {
  void* data = nullptr;
  size_t bytes = 0;
};

class SlabPool {
 public:
  // A block of at least `bytes`: the smallest idle one that is not more than twice as large.
  Block take(size_t bytes) {
    if (bytes == 0) return {};
    {
      std::lock_guard<std::mutex> lock(mutex_);
      size_t best = idle_.size();
      for (size_t i = 0; i < idle_.size(); ++i) {
        if (idle_[i].bytes >= bytes && idle_[i].bytes <= 2 * bytes + kPage &&
            (best == idle_.size() || idle_[i].bytes < idle_[best].bytes)) {
          best = i;
        }
      }
      if (best != idle_.size()) {
        Block block = idle_[best];
        idle_.erase(idle_.begin() + static_cast<long>(best));
        idle_bytes_ -= block.bytes;
        return block;
      }
    }
    bool huge = bytes >= kHugePage;
    size_t alignment = huge ? kHugePage : 64;
    size_t rounded = (bytes + alignment - 1) / alignment * alignment;
    void* data = nullptr;
    if (posix_memalign(&data, alignment, rounded) != 0) throw std::bad_alloc();
    if (huge) madvise(data, rounded, MADV_HUGEPAGE);
    return {data, rounded};
  }

  // Keeps the block if the limit allows, dropping the oldest others to make room.
  void give_back(Block block) {
    if (block.data == nullptr) return;
    std::vector<void*> dropped;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (block.bytes > limit_) {
        dropped.push_back(block.data);
      } else {
        while (idle_bytes_ + block.bytes > limit_) drop_oldest(dropped);
        idle_.push_back(block);
        idle_bytes_ += block.bytes;
      }
    }
    for (void* data : dropped) std::free(data);
  }

  void set_limit(size_t bytes) {
    std::vector<void*> dropped;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      limit_ = bytes;
      while (idle_bytes_ > limit_) drop_oldest(dropped);
    }
    for (void* data : dropped) std::free(data);
  }

  // Gives what no call is using back to the system.
  void release_idle() {
    std::vector<void*> dropped;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      while (!idle_.empty()) drop_oldest(dropped);
    }
    for (void* data : dropped) std::free(data);
  }

  size_t idle_bytes() {
    std::lock_guard<std::mutex> lock(mutex_);
    return idle_bytes_;
  }

 private:
  static constexpr size_t kPage = 4096;
  static constexpr size_t kHugePage = size_t(2) << 20;

  void drop_oldest(std::vector<void*>& dropped) {
    dropped.push_back(idle_.front().data);
    idle_bytes_ -= idle_.front().bytes;
    idle_.erase(idle_.begin());
  }

  std::mutex mutex_;
  std::vector<Block> idle_;  // oldest first
  size_t idle_bytes_ = 0;
  size_t limit_ = size_t(1) << 30;
};

inline SlabPool& slab_pool() {
  static SlabPool* pool = new SlabPool();  // never destroyed: plans may outlive static teardown
  return *pool;
}

}  // namespace dovetail
