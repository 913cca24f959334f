// Memory for the slabs of CPU plans and for their large tensors. Blocks are kept between calls and
// shared by all plans of the process, because fresh memory costs a page fault for every 4 KiB.
#pragma once

#include <sys/mman.h>

#include <algorithm>
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
  // A block of at least `bytes`: the smallest idle one that wastes little, else a fresh one. The
  // pool holds no more memory than was in use at one time: idle blocks make room for fresh ones.
  Block take(size_t bytes) {
    if (bytes == 0) return {};
    bytes = (bytes + kPage - 1) / kPage * kPage;
    std::vector<Block> dropped;
    Block block;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      size_t best = idle_.size();
      for (size_t i = 0; i < idle_.size(); ++i) {
        if (idle_[i].bytes >= bytes && idle_[i].bytes <= bytes + bytes / 8 + kPage &&
            (best == idle_.size() || idle_[i].bytes < idle_[best].bytes)) {
          best = i;
        }
      }
      if (best != idle_.size()) {
        block = idle_[best];
        idle_.erase(idle_.begin() + static_cast<long>(best));
        idle_bytes_ -= block.bytes;
      }
      used_ += block.data != nullptr ? block.bytes : bytes;
      most_used_ = std::max(most_used_, used_);
      while (!idle_.empty() && used_ + idle_bytes_ > most_used_) drop_oldest(dropped);
    }
    for (const Block& old : dropped) unmap(old);
    if (block.data != nullptr) return block;
    block = fresh(bytes);
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

  // Keeps the block if the limit allows, dropping the oldest others to make room.
  void give_back(Block block) {
    if (block.data == nullptr) return;
    std::vector<Block> dropped;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      used_ -= block.bytes;
      if (block.bytes > limit_) {
        dropped.push_back(block);
      } else {
        while (idle_bytes_ + block.bytes > limit_) drop_oldest(dropped);
        idle_.push_back(block);
        idle_bytes_ += block.bytes;
      }
    }
    for (const Block& old : dropped) unmap(old);
  }

  void set_limit(size_t bytes) {
    std::vector<Block> dropped;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      limit_ = bytes;
      while (idle_bytes_ > limit_) drop_oldest(dropped);
    }
    for (const Block& old : dropped) unmap(old);
  }

  // Gives what no call is using back to the system.
  void release_idle() {
    std::vector<Block> dropped;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      while (!idle_.empty()) drop_oldest(dropped);
      most_used_ = used_;
    }
    for (const Block& old : dropped) unmap(old);
  }

  size_t idle_bytes() {
    std::lock_guard<std::mutex> lock(mutex_);
    return idle_bytes_;
  }

 private:
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

  static void unmap(const Block& block) { munmap(block.data, block.bytes); }

  void drop_oldest(std::vector<Block>& dropped) {
    dropped.push_back(idle_.front());
    idle_bytes_ -= idle_.front().bytes;
    idle_.erase(idle_.begin());
  }

  std::mutex mutex_;
  std::vector<Block> idle_;  // oldest first
  size_t idle_bytes_ = 0;
  size_t used_ = 0;       // bytes of the blocks that were taken and not given back
  size_t most_used_ = 0;  // the most that `used_` has been since the last `release_idle`
  size_t limit_ = size_t(1) << 30;
};

inline SlabPool& slab_pool() {
  static SlabPool* pool = new SlabPool();  // never destroyed: plans may outlive static teardown
  return *pool;
}

}  // namespace dovetail
