// The operators that make tensors, look at them differently, and move bytes. The rest is in fallback.cpp.
#include <ATen/EmptyTensor.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/view_native.h>
#include <torch/library.h>

#include "scope.h"

namespace glue {
namespace {

using sim::Machine;
constexpr c10::DispatchKeySet KEY(c10::DispatchKey::PrivateUse1);

int index_of(std::optional<at::Device> device) {
  return device && device->has_index() ? device->index() : current_device();
}

at::Tensor empty(c10::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<at::Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  DeviceScope scope(index_of(device));
  return at::detail::empty_generic(size, device_allocator(), KEY, c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>) {
  DeviceScope scope(index_of(device));
  return at::detail::empty_strided_generic(size, stride, device_allocator(), KEY, c10::dtype_or_default(dtype));
}

const at::Tensor& resize_(const at::Tensor& self, c10::SymIntArrayRef wanted, std::optional<at::MemoryFormat> format) {
  auto size = C10_AS_INTARRAYREF_SLOW(wanted);
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_sizes_contiguous(size);
  size_t bytes = (self.storage_offset() + self.numel()) * self.element_size();
  if (self.storage().nbytes() < bytes) resize_storage(self.storage(), bytes);
  if (format && *format != at::MemoryFormat::Preserve) impl->empty_tensor_restride(*format);
  return self;
}

at::Tensor& set_storage(at::Tensor& self, at::Storage source, int64_t offset, c10::IntArrayRef size,
                        c10::IntArrayRef stride) {
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(source));
  impl->set_storage_offset(offset);
  impl->set_sizes_and_strides(size, stride);
  return self;
}

at::Tensor& set_whole_storage(at::Tensor& self, at::Storage source) {
  int64_t count = int64_t(source.nbytes()) / self.element_size();
  return set_storage(self, std::move(source), 0, {count}, {1});
}

at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source) {
  return set_storage(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

at::Tensor& set_nothing(at::Tensor& self) {
  return set_storage(self, at::Storage(at::Storage::use_byte_size_t(), 0, device_allocator(), true), 0, {0}, {1});
}

at::Tensor view(const at::Tensor& self, c10::SymIntArrayRef size) {
  return at::native::view(self, C10_AS_INTARRAYREF_SLOW(size));
}

at::Tensor as_strided(const at::Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                      std::optional<c10::SymInt> offset) {
  auto at = offset ? std::optional<int64_t>(offset->expect_int()) : std::nullopt;
  return at::native::as_strided_tensorimpl(self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), at);
}

at::Tensor reshape_alias(const at::Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  return at::native::_reshape_alias(self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride));
}

// Where a copy runs, and for how long.
struct Route {
  sim::EngineKind engine;
  double bytes_per_s;
};

Route route(Machine& m, const at::Tensor& from, const at::Tensor& to) {
  if (!simulated(from)) return {sim::H2D, m.chip.pcie_bytes_per_s};
  if (!simulated(to)) return {sim::D2H, m.chip.pcie_bytes_per_s};
  if (from.device() != to.device()) return {sim::LINK, m.chip.link_bytes_per_s};
  return {sim::HBM, m.chip.bytes_per_s / 2};  // read and written
}

void check_aligned(Machine& m, const at::Tensor& tensor) {
  auto address = reinterpret_cast<uintptr_t>(tensor.const_data_ptr());
  int64_t off = int64_t(address % m.chip.copy_align_bytes);
  if (off)
    throw sim::Fault(false, "misaligned copy: an asynchronous copy begins " + std::to_string(off) +
                                " bytes past a multiple of " + std::to_string(m.chip.copy_align_bytes) +
                                ", which the copy engine cannot do: align it, or copy blocking");
}

void copy(Machine& m, const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  const at::Tensor& at_device = simulated(from) ? from : to;
  sim::Stream& stream = current_stream(m, at_device.device().index());
  const at::Tensor& other = simulated(from) ? to : from;
  bool pageable = !simulated(other) && (other.numel() == 0 || !m.memory_of(other.const_data_ptr()));
  bool blocking = !non_blocking || pageable;
  if (!blocking && !simulated(other)) {
    check_aligned(m, from);
    check_aligned(m, to);
  }
  sim::Stream& far = simulated(other) ? current_stream(m, other.device().index()) : stream;
  if (&far != &stream) m.wait(stream, m.record(far));
  Route way = route(m, from, to);
  double bytes = double(std::max(from.numel() * from.element_size(), to.numel() * to.element_size()));
  static const sim::Name name = sim::intern("copy_");
  bool host_waits = blocking && !simulated(other);
  sim::Work work{name, {use_of(m, from, false), use_of(m, to, true)}, way.engine, bytes / way.bytes_per_s, host_waits};
  m.launch(stream, std::move(work), make_run([a = alias(m, from), b = alias(m, to)] { at::Tensor(b).copy_(a); }));
  if (&far != &stream) m.wait(far, m.record(stream));
  if (host_waits) m.synchronize(stream);
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  enter([&](Machine& m) { copy(m, from, to, non_blocking); });
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  if (to.sizes() != from.sizes()) to.resize_(from.sizes());
  return copy_from(from, to, false);
}

at::Scalar item(const at::Tensor& self) {
  return enter([&](Machine& m) {
    sim::Stream& stream = current_stream(m, self.device().index());
    static const sim::Name name = sim::intern("item");
    m.admit(stream, {name, {use_of(m, self, false)}, sim::D2H, 0, true});
    m.synchronize(stream);
    return alias(m, self).item();
  });
}

void record_stream(at::Tensor& self, at::Stream stream) {
  if (self.storage().nbytes()) enter([&](Machine& m) {
    const void* p = self.storage().data();
    m.use_on(*m.memory_of(p), p, m.stream(stream.device_index(), stream.id()));
  });
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("resize_", resize_);
  m.impl("set_.source_Storage_storage_offset", set_storage);
  m.impl("set_.source_Storage", set_whole_storage);
  m.impl("set_.source_Tensor", set_tensor);
  m.impl("set_", set_nothing);
  m.impl("view", view);
  m.impl("as_strided", as_strided);
  m.impl("_reshape_alias", reshape_alias);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("_local_scalar_dense", item);
  m.impl("record_stream", record_stream);
}

}  // namespace
}  // namespace glue
