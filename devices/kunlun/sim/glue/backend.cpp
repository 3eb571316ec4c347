// What torch asks of a backend besides operators: allocators, streams, events, devices.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "state.h"

namespace glue {
namespace {

using sim::Machine;
using EventPtr = std::shared_ptr<sim::Event>;

c10::Device device_of(int index) { return c10::Device(c10::kPrivateUse1, c10::DeviceIndex(index)); }
int index_of(c10::Device device) { return device.has_index() ? device.index() : current_device(); }
c10::Stream stream_of(int index, int64_t id) { return c10::Stream(c10::Stream::UNSAFE, device_of(index), id); }
sim::Stream& stream_of(Machine& m, const c10::Stream& s) { return m.stream(s.device_index(), s.id()); }
EventPtr& event_of(void* event) { return *static_cast<EventPtr*>(event); }

void free_device(void* context) {
  Hold hold;
  if (!machine || !context) return;
  if (sim::Memory* memory = machine->memory_of(context)) machine->release(*memory, context);
}

void free_pinned(void* p) {
  Hold hold;
  if (machine && p) machine->release_pinned(p);
}

struct DeviceMemory final : c10::DeviceAllocator {
  at::DataPtr allocate(size_t bytes) override {
    return enter([&](Machine& m) { return glue::allocate(m, current_device(), bytes); });
  }
  at::DeleterFnPtr raw_deleter() const override { return &free_device; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    enter([&](Machine& m) {
      auto& arena = m.memory_of(to)->arena;
      memcpy(arena.alias(arena.offset(to)), arena.alias(arena.offset(from)), bytes);
    });
  }
  bool initialized() override { return machine != nullptr; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr& p, c10::Stream stream) override {
    enter([&](Machine& m) { m.use_on(*m.memory_of(p.get()), p.get(), stream_of(m, stream)); });
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex index) override {
    return enter([&](Machine& m) {
      c10::CachingDeviceAllocator::DeviceStats stats;
      stats.allocated_bytes[0].current = m.device(index).memory.arena.used();
      stats.allocated_bytes[0].peak = m.device(index).memory.arena.peak();
      return stats;
    });
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex index) override {
    enter([&](Machine& m) { m.device(index).memory.arena.reset_peak(); });
  }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex index) override {
    return enter([&](Machine& m) {
      auto& arena = m.device(index).memory.arena;
      return std::pair<size_t, size_t>(arena.bytes() - arena.used(), arena.bytes());
    });
  }
};

struct PinnedMemory final : at::Allocator {
  at::DataPtr allocate(size_t bytes) override {
    return enter([&](Machine& m) {
      void* p = bytes ? m.allocate_pinned(bytes) : nullptr;
      return at::DataPtr(p, p, &free_pinned, at::kCPU);
    });
  }
  at::DeleterFnPtr raw_deleter() const override { return &free_pinned; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { memcpy(to, from, bytes); }
};

DeviceMemory device_memory;
PinnedMemory pinned_memory;
REGISTER_ALLOCATOR(c10::DeviceType::PrivateUse1, &device_memory);

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::kPrivateUse1; }
  c10::Device exchangeDevice(c10::Device device) const override {
    c10::Device before = getDevice();
    setDevice(device);
    return before;
  }
  c10::Device getDevice() const override { return device_of(current_device()); }
  void setDevice(c10::Device device) const override {
    enter([&](Machine& m) { m.device(index_of(device)); });  // raises for one that is not there
    choose_device(index_of(device));
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override { choose_device(index_of(device)); }
  c10::Stream getStream(c10::Device device) const override {
    return stream_of(index_of(device), current_stream_id(index_of(device)));
  }
  c10::Stream getDefaultStream(c10::Device device) const override { return stream_of(index_of(device), 0); }
  c10::Stream getNewStream(c10::Device device, int) const override {
    return enter([&](Machine& m) { return stream_of(index_of(device), m.new_stream(index_of(device)).id); });
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override { return getNewStream(device, 0); }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    c10::Stream before = getStream(stream.device());
    choose_stream(stream.device_index(), stream.id());
    return before;
  }
  void record(void** event, const c10::Stream& stream, c10::DeviceIndex, c10::EventFlag) const override {
    enter([&](Machine& m) {
      auto recorded = m.record(stream_of(m, stream));
      if (!*event) *event = new EventPtr();
      event_of(*event) = recorded;
    });
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event) enter([&](Machine& m) { m.wait(stream_of(m, stream), event_of(event)); });
  }
  bool queryEvent(void* event) const override {
    return !event || enter([&](Machine& m) { return m.query(*event_of(event)); });
  }
  void synchronizeEvent(void* event) const override {
    if (event) enter([&](Machine& m) { m.synchronize(*event_of(event)); });
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override { delete static_cast<EventPtr*>(event); }
  double elapsedTime(void* from, void* to, c10::DeviceIndex) const override {
    return (event_of(to)->at_s - event_of(from)->at_s) * 1e3;
  }
  bool queryStream(const c10::Stream& stream) const override {
    return enter([&](Machine& m) { return m.query(stream_of(m, stream)); });
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    enter([&](Machine& m) { m.synchronize(stream_of(m, stream)); });
  }
  void synchronizeDevice(c10::DeviceIndex index) const override {
    enter([&](Machine& m) { m.synchronize(index); });
  }
  void recordDataPtrOnStream(const c10::DataPtr& p, const c10::Stream& stream) const override {
    device_memory.recordStream(p, stream);
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return machine ? c10::DeviceIndex(machine->num_devices()) : 0;
  }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

struct Hooks final : at::PrivateUse1HooksInterface {
  const Guard guard;
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return machine != nullptr; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return machine != nullptr; }
  c10::DeviceIndex deviceCount() const override { return guard.deviceCount(); }
  c10::DeviceIndex getCurrentDevice() const override { return c10::DeviceIndex(current_device()); }
  void setCurrentDevice(c10::DeviceIndex index) const override { guard.setDevice(device_of(index)); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    c10::DeviceIndex before = getCurrentDevice();
    if (index >= 0) setCurrentDevice(index);
    return before;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override { return exchangeDevice(index); }
  at::Allocator* getPinnedMemoryAllocator() const override { return &pinned_memory; }
  bool isPinnedPtr(const void* p) const override {
    return machine && machine->pinned.arena.holds(p);
  }
  at::Device getDeviceFromPtr(void* p) const override {
    return enter([&](Machine& m) {
      for (int i = 0; i < m.num_devices(); i++)
        if (m.device(i).memory.arena.holds(p)) return device_of(i);
      throw sim::Fault(false, "this address is of no simulated device");
    });
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    resize_storage(storage, bytes);
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    return at::detail::getDefaultCPUGenerator();
  }
  at::Generator getNewGenerator(c10::DeviceIndex) const override { return at::detail::createCPUGenerator(); }
};

}  // namespace

at::DataPtr allocate(Machine& m, int index, size_t bytes) {
  if (!bytes) return {nullptr, nullptr, &free_device, device_of(index)};
  char* p = m.allocate(current_stream(m, index), int64_t(bytes));
  auto& arena = m.device(index).memory.arena;
  TORCH_CHECK_WITH(OutOfMemoryError, p, "out of device memory: asked for ", bytes, " bytes, ",
                   arena.bytes() - arena.used(), " of ", arena.bytes(), " on ", device_of(index), " are free, ",
                   arena.largest(), " in one piece; free tensors, or ask for less");
  return {p, p, &free_device, device_of(index)};
}

void resize_storage(const at::Storage& storage, size_t bytes) {
  enter([&](Machine& m) {
    int index = storage.device().index();
    at::DataPtr grown = allocate(m, index, bytes);
    m.streams.drain(current_stream(m, index));  // what wrote the old one, and poisons the new one, may be queued
    size_t kept = std::min(bytes, storage.nbytes());
    if (kept) device_memory.copy_data(grown.get(), storage.data(), kept);
    storage.set_data_ptr_noswap(std::move(grown));
    storage.set_nbytes(bytes);
  });
}

at::Allocator* device_allocator() { return &device_memory; }

void register_hooks() {
  static Hooks hooks;
  if (!at::isPrivateUse1HooksRegistered()) at::RegisterPrivateUse1HooksInterface(&hooks);
}

}  // namespace glue
