// What the simulator is told: the chip, and pieces of work with the bytes that they touch.
#pragma once
#include <array>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "arena.h"
#include "detector.h"
#include "timeline.h"

namespace sim {

// What a program did wrong. `race`: it left the order of two accesses to chance.
struct Fault : std::runtime_error {
  Fault(bool race, const std::string& what) : std::runtime_error(what), race(race) {}
  bool race;
};

struct Chip {
  std::string name;
  int count;
  int64_t memory_bytes, pinned_bytes, copy_align_bytes;
  double flops_per_s, bytes_per_s, pcie_bytes_per_s, link_bytes_per_s;
  bool strict;  // a race is raised where it is made; else it is only listed
};

struct Memory {
  Memory(std::string label, int64_t bytes, int64_t granule, bool host_may_touch)
      : label(std::move(label)), arena(bytes, granule, host_may_touch), pinned(host_may_touch) {}
  std::string label;
  Arena arena;
  Shadow shadow;
  bool pinned;
};

struct Device {
  Device(const std::string& label, int64_t bytes) : memory(label, bytes, 256, false) {}
  Memory memory;
  std::array<Engine, NUM_ENGINES> engines;
  std::vector<Actor> streams;  // by id
};

// Bytes that an operation reads or writes, in order and apart. All of them belong to one tensor.
struct Use {
  Memory* memory;
  std::vector<Range> ranges;
  bool writes;
};

// One operation. `blocking`: the host waits for its end right after.
struct Work {
  Name name;
  std::vector<Use> uses;
  EngineKind engine;
  double seconds;
  bool blocking = false;
};

// What the operation does. Shared, because a graph does it again and again.
using Run = std::shared_ptr<const std::function<void()>>;

}  // namespace sim
