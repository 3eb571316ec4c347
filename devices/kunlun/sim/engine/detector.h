// Races: two accesses to one byte, one of them a write, of which neither happened before the other.
//
// Owns: the shadow of one memory, that is the last write and the reads since, for each range of bytes. Being of bytes
// and not of tensors, it survives that memory is freed and used anew. What it finds depends on the clocks alone, never
// on when the simulator ran a task: a missing wait is found under every schedule, even where the data came out right.
#pragma once
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <vector>

#include "clock.h"

namespace sim {

struct Range {
  int64_t begin = 0, end = 0;
};

struct Access {
  Moment moment;
  Name name = "";
};

struct Conflict {
  const char* kind;
  Access earlier;
  int64_t at;
};

class Shadow {
 public:
  // Notes an access to `range` by somebody with the clock `now`. Returns the first access that it races with.
  std::optional<Conflict> note(Range range, bool writes, const Access& access, const Clock& now) {
    std::optional<Conflict> found;
    if (range.begin >= range.end) return found;
    split(range.begin);
    split(range.end);
    fill(range);
    for (auto it = cells_.lower_bound(range.begin); it != cells_.end() && it->first < range.end; ++it) {
      Cell& cell = it->second;
      if (!found) found = conflict(cell, it->first, writes, now);
      if (!writes) add_read(cell, access, now);
    }
    if (writes) {
      cells_.erase(cells_.lower_bound(range.begin), cells_.lower_bound(range.end));
      cells_[range.begin] = Cell{range.end, access, {}};
    }
    return found;
  }

  // The first access to `range` that `known` does not know to be over.
  std::optional<Access> unfinished(Range range, const Clock& known) const {
    auto it = cells_.upper_bound(range.begin);
    if (it != cells_.begin()) --it;
    for (; it != cells_.end() && it->first < range.end; ++it) {
      if (it->second.end <= range.begin) continue;
      if (raced(it->second.write, known)) return it->second.write;
      for (const Access& read : it->second.reads)
        if (raced(read, known)) return read;
    }
    return std::nullopt;
  }

  // Forgets everything: right once every actor knows all of it, as after the host waited for everybody.
  void clear() { cells_.clear(); }
  size_t size() const { return cells_.size(); }

 private:
  struct Cell {
    int64_t end;
    Access write;
    std::vector<Access> reads;
  };

  static bool raced(const Access& earlier, const Clock& now) {
    return earlier.moment.actor >= 0 && !now.knows(earlier.moment.actor, earlier.moment.tick);
  }

  static std::optional<Conflict> conflict(const Cell& cell, int64_t at, bool writes, const Clock& now) {
    if (raced(cell.write, now)) return Conflict{writes ? "write-after-write" : "read-after-write", cell.write, at};
    if (writes)
      for (const Access& read : cell.reads)
        if (raced(read, now)) return Conflict{"write-after-read", read, at};
    return std::nullopt;
  }

  // Reads that happened before this one are implied by it.
  static void add_read(Cell& cell, const Access& access, const Clock& now) {
    std::erase_if(cell.reads, [&](const Access& read) { return !raced(read, now); });
    cell.reads.push_back(access);
  }

  void split(int64_t at) {
    auto it = cells_.upper_bound(at);
    if (it == cells_.begin()) return;
    --it;
    if (it->first < at && at < it->second.end) {
      Cell right = it->second;
      it->second.end = at;
      cells_.emplace(at, std::move(right));
    }
  }

  // Empty cells where `range` has none.
  void fill(Range range) {
    auto it = cells_.lower_bound(range.begin);
    for (int64_t at = range.begin; at < range.end;) {
      if (it == cells_.end() || it->first > at) {
        int64_t end = it == cells_.end() ? range.end : std::min(it->first, range.end);
        it = cells_.emplace_hint(it, at, Cell{end, {}, {}});
      }
      at = it->second.end;
      ++it;
    }
  }

  std::map<int64_t, Cell> cells_;
};

}  // namespace sim
