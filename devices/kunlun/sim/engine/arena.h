// The memory of one device, or the pinned memory of the host.
//
// Owns: the bytes, which block of them belongs to whom, poison. The bytes are mapped twice. Tensors carry addresses in
// the window; of a device's memory it is never accessible, so that a host that touches it dies at once. The simulated
// engines go through the alias. The first free extent that fits is taken.
//
// Freed memory is stream-ordered, as in torch's caching allocators: whoever knows that all uses of it are over (the
// stream that freed it does, in its own order) may have it at once, others only when the host has seen the end.
// Memory of a pool (of a graph) stays with the pool.
#pragma once
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <iterator>
#include <map>
#include <stdexcept>
#include <vector>

#include "clock.h"
#include "detector.h"

namespace sim {

constexpr int POISON = 0xA5;
constexpr int NO_POOL = 0;

struct Block {
  int64_t bytes;
  uint64_t id;                // never used twice
  Actor owner;                // the stream it was allocated for
  int pool;
  bool settled;               // what lay there was over, as far as the host knows
  std::vector<Actor> users;   // other streams that were named as users
};

class Arena {
 public:
  Arena(int64_t bytes, int64_t granule, bool host_may_touch) : bytes_(bytes), granule_(granule) {
    int file = memfd_create("simulated-memory", 0);
    if (file < 0 || ftruncate(file, bytes) != 0) throw std::runtime_error("the host has no memory to simulate with");
    int access = PROT_READ | PROT_WRITE;
    window_ = map(file, host_may_touch ? access : PROT_NONE);
    alias_ = map(file, access);
    close(file);
    free_[0] = Extent{bytes, NO_POOL, {}};
  }
  ~Arena() {
    munmap(window_, bytes_);
    munmap(alias_, bytes_);
  }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  bool holds(const void* p) const { return p >= window_ && p < window_ + bytes_; }
  int64_t offset(const void* p) const { return static_cast<const char*>(p) - window_; }
  char* window(int64_t offset) const { return window_ + offset; }
  char* alias(int64_t offset) const { return alias_ + offset; }
  int64_t bytes() const { return bytes_; }
  int64_t used() const { return used_; }
  int64_t peak() const { return peak_; }
  void reset_peak() { peak_ = used_; }

  int64_t largest() const {
    int64_t most = 0;
    for (const auto& [_, extent] : free_) most = std::max(most, extent.bytes);
    return most;
  }

  // Offset of a new block for `owner`, whose clock is `now`; -1 when nothing fits. The caller poisons it.
  int64_t allocate(int64_t bytes, Actor owner, const Clock& now, int pool) {
    int64_t size = std::max<int64_t>((bytes + granule_ - 1) / granule_ * granule_, granule_);
    auto it = find(size, now, pool);
    if (it == free_.end() && pool != NO_POOL) it = find(size, now, NO_POOL);
    if (it == free_.end()) return -1;
    int64_t at = it->first;
    Extent extent = it->second;
    free_.erase(it);
    if (extent.bytes > size) free_[at + size] = Extent{extent.bytes - size, extent.pool, extent.uses};
    live_[at] = Block{size, ++num_blocks_, owner, pool, extent.uses.empty(), {}};
    used_ += size;
    peak_ = std::max(peak_, used_);
    return at;
  }

  // Gives a block back; `uses` must be over before others may have it.
  void release(int64_t at, std::vector<Moment> uses) {
    auto it = live_.find(at);
    Block block = it->second;
    live_.erase(it);
    used_ -= block.bytes;
    merge(free_.emplace(at, Extent{block.bytes, block.pool, std::move(uses)}).first);
  }

  // The host has seen more ends: what is over is free for everybody.
  void settle(const Clock& host) {
    for (auto it = free_.begin(); it != free_.end();) {
      bool over = !it->second.uses.empty() && known(it->second.uses, host);
      if (over) it->second.uses.clear();
      it = std::next(over ? merge(it) : it);
    }
  }

  // The pool is given up: its memory belongs to everybody, when `uses` are over.
  void dissolve(int pool, const std::vector<Moment>& uses) {
    for (auto& [_, block] : live_) {
      if (block.pool != pool) continue;
      block.pool = NO_POOL;
      for (const Moment& use : uses)
        if (use.actor != block.owner) block.users.push_back(use.actor);
    }
    for (auto it = free_.begin(); it != free_.end();) {
      bool ours = it->second.pool == pool;
      if (ours) it->second = Extent{it->second.bytes, NO_POOL, uses};
      it = std::next(ours ? merge(it) : it);
    }
  }

  // The live block that holds the byte at `offset`, with its own offset; null when none does.
  std::pair<const int64_t, Block>* block_at(int64_t offset) {
    auto it = live_.upper_bound(offset);
    if (it == live_.begin()) return nullptr;
    --it;
    return offset < it->first + it->second.bytes ? &*it : nullptr;
  }

  void poison(Range range) { memset(alias_ + range.begin, POISON, range.end - range.begin); }

  void poison_pool(int pool) {
    for (auto& [at, block] : live_)
      if (block.pool == pool) poison({at, at + block.bytes});
  }

 private:
  struct Extent {
    int64_t bytes;
    int pool;
    std::vector<Moment> uses;  // sorted by actor
  };
  using Extents = std::map<int64_t, Extent>;

  char* map(int file, int access) {
    void* p = mmap(nullptr, bytes_, access, MAP_SHARED | MAP_NORESERVE, file, 0);
    if (p == MAP_FAILED) throw std::runtime_error("the host has no memory to simulate with");
    return static_cast<char*>(p);
  }

  static bool known(const std::vector<Moment>& uses, const Clock& clock) {
    return std::all_of(uses.begin(), uses.end(), [&](const Moment& use) { return clock.knows(use.actor, use.tick); });
  }

  Extents::iterator find(int64_t size, const Clock& now, int pool) {
    auto it = free_.begin();
    while (it != free_.end() && (it->second.bytes < size || it->second.pool != pool || !known(it->second.uses, now)))
      ++it;
    return it;
  }

  static bool alike(const Extent& a, const Extent& b) {
    auto same = [](const Moment& x, const Moment& y) { return x.actor == y.actor; };
    return a.pool == b.pool && std::equal(a.uses.begin(), a.uses.end(), b.uses.begin(), b.uses.end(), same);
  }

  // Joins an extent with its neighbours where the same actors must be waited for.
  Extents::iterator merge(Extents::iterator it) {
    auto next = std::next(it);
    if (next != free_.end() && it->first + it->second.bytes == next->first && alike(it->second, next->second))
      absorb(it, next);
    if (it == free_.begin()) return it;
    auto previous = std::prev(it);
    if (previous->first + previous->second.bytes == it->first && alike(previous->second, it->second)) {
      absorb(previous, it);
      return previous;
    }
    return it;
  }

  void absorb(Extents::iterator into, Extents::iterator other) {
    into->second.bytes += other->second.bytes;
    for (size_t i = 0; i < into->second.uses.size(); i++)
      into->second.uses[i].tick = std::max(into->second.uses[i].tick, other->second.uses[i].tick);
    free_.erase(other);
  }

  int64_t bytes_, granule_;
  char *window_ = nullptr, *alias_ = nullptr;
  int64_t used_ = 0, peak_ = 0;
  uint64_t num_blocks_ = 0;
  std::map<int64_t, Block> live_;
  Extents free_;
};

}  // namespace sim
