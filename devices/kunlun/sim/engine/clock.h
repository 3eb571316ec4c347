// Vector clocks: what happened before what, whatever the order in which the simulator runs things.
//
// Owns: actors, names, clocks. Actor 0 is the host (all of its threads together), each stream is an actor of its own.
// An actor ticks with every operation. An operation happened before another one exactly if the other's clock knows its
// tick: because the stream is the same, because it waited for an event recorded later, or because the host saw the end
// and launched afterwards.
#pragma once
#include <algorithm>
#include <cstdint>
#include <mutex>
#include <set>
#include <string>
#include <vector>

namespace sim {

using Actor = int;
constexpr Actor HOST = 0;

// The name of an operation. Interned, so that millions of accesses share few strings.
using Name = const char*;

inline Name intern(const std::string& text) {
  static std::mutex mutex;
  static std::set<std::string> names;
  std::lock_guard<std::mutex> lock(mutex);
  return names.insert(text).first->c_str();
}

class Clock {
 public:
  uint64_t at(Actor actor) const { return size_t(actor) < ticks_.size() ? ticks_[actor] : 0; }
  bool knows(Actor actor, uint64_t tick) const { return at(actor) >= tick; }

  uint64_t tick(Actor actor) {
    grow(actor + 1);
    return ++ticks_[actor];
  }

  void join(const Clock& other) {
    grow(other.ticks_.size());
    for (size_t i = 0; i < other.ticks_.size(); i++) ticks_[i] = std::max(ticks_[i], other.ticks_[i]);
  }

 private:
  void grow(size_t count) {
    if (ticks_.size() < count) ticks_.resize(count);
  }
  std::vector<uint64_t> ticks_;
};

// One operation of an actor.
struct Moment {
  Actor actor = -1;
  uint64_t tick = 0;
};

}  // namespace sim
