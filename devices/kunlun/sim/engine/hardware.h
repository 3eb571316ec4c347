// The parts of the machine, and the list of what went wrong with them.
//
// Owns: devices, pinned memory, streams, how all of them are named. Faults that cannot be raised where they are found
// (memory is freed by destructors, the host's touches are found by a signal handler) are raised by the next call.
#pragma once
#include "streams.h"
#include "work.h"

namespace sim {

class Hardware {
 public:
  explicit Hardware(const Chip& chip) : chip(chip), pinned("pinned host memory", chip.pinned_bytes, 4096, true) {
    for (int i = 0; i < chip.count; i++) {
      devices_.push_back(std::make_unique<Device>(chip.name + ":" + std::to_string(i), chip.memory_bytes));
      new_stream(i);
    }
  }

  const Chip chip;
  Memory pinned;
  Streams streams;

  int num_devices() const { return int(devices_.size()); }
  Device& device(int index) {
    if (index < 0 || index >= num_devices())
      throw Fault(false, "there is no device " + chip.name + ":" + std::to_string(index) + ": " +
                         std::to_string(num_devices()) + " are simulated, so use a lower index");
    return *devices_[index];
  }

  std::vector<Memory*> memories() {
    std::vector<Memory*> all{&pinned};
    for (auto& device : devices_) all.push_back(&device->memory);
    return all;
  }

  // The memory that an address belongs to; null for ordinary host memory.
  Memory* memory_of(const void* p) {
    if (pinned.arena.holds(p)) return &pinned;
    for (auto& device : devices_)
      if (device->memory.arena.holds(p)) return &device->memory;
    return nullptr;
  }

  Stream& new_stream(int index) {
    auto& ids = device(index).streams;
    Stream& stream = streams.add(index, int64_t(ids.size()));
    ids.push_back(stream.actor);
    return stream;
  }

  Stream& stream(int index, int64_t id) {
    auto& ids = device(index).streams;
    if (id < 0 || id >= int64_t(ids.size()))
      throw Fault(false, "stream " + std::to_string(id) + " is of an earlier start of the simulator: make a new one");
    return streams.of(ids[id]);
  }

  std::string label(Actor actor) {
    const Stream& stream = streams.of(actor);
    return "stream " + std::to_string(stream.id) + " of " + device(stream.device).memory.label;
  }

 protected:
  std::string describe(const Conflict& conflict, const Access& access, const Memory& memory) {
    return std::string(conflict.kind) + " race: " + access.name + " on " + label(access.moment.actor) + " vs " +
           conflict.earlier.name + " on " + label(conflict.earlier.moment.actor) + " at +" +
           std::to_string(conflict.at) + " of " + memory.label + ": neither waits for the other";
  }

  void report(const std::string& what) {
    if (chip.strict) throw Fault(true, what);
    races_.push_back(what);
  }

  void report_later(const std::string& what) { (chip.strict ? pending_ : races_).push_back(what); }

  void raise_reported() {
    if (pending_.empty()) return;
    std::string first = pending_.front();
    pending_.clear();
    throw Fault(true, first);
  }

  std::vector<std::string> take_reported() {
    std::vector<std::string> found = std::move(pending_);
    found.insert(found.end(), races_.begin(), races_.end());
    pending_.clear();
    races_.clear();
    return found;
  }

 private:
  std::vector<std::unique_ptr<Device>> devices_;
  std::vector<std::string> races_;    // listed, not raised
  std::vector<std::string> pending_;  // to be raised by the next call
};

}  // namespace sim
