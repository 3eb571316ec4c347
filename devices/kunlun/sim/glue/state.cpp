// Owns the machine, the lock, each thread's choice of device and stream, and how tensors map to bytes.
#include "state.h"

#include <pybind11/pybind11.h>

namespace glue {

sim::Machine* machine = nullptr;
std::recursive_mutex& mutex = *new std::recursive_mutex();

namespace {
PyObject *race_error, *misuse_error;

int starts = 0;

struct Choice {
  int start = 0;  // the machine that it is about
  int device = 0;
  std::vector<int64_t> streams;
};

Choice& choice() {
  thread_local Choice mine;
  if (mine.start != starts) mine = Choice{starts, 0, {}};
  return mine;
}
}  // namespace

void set_errors(PyObject* race, PyObject* misuse) {
  race_error = race;
  misuse_error = misuse;
}

void raise(const sim::Fault& fault) {
  pybind11::gil_scoped_acquire gil;
  PyErr_SetString(fault.race ? race_error : misuse_error, fault.what());
  throw pybind11::error_already_set();
}

void not_started() {
  raise(sim::Fault(false, "the simulator is not started: call devices.kunlun.sim.start first"));
}

void set_machine(const sim::Chip& chip) {
  delete machine;
  machine = nullptr;
  machine = new sim::Machine(chip);
  starts++;
}

int num_starts() { return starts; }

int current_device() { return choice().device; }
void choose_device(int device) { choice().device = device; }

int64_t current_stream_id(int device) {
  auto& streams = choice().streams;
  return size_t(device) < streams.size() ? streams[device] : 0;
}

void choose_stream(int device, int64_t id) {
  auto& streams = choice().streams;
  if (streams.size() <= size_t(device)) streams.resize(device + 1);
  streams[device] = id;
}

sim::Stream& current_stream(sim::Machine& m, int device) { return m.stream(device, current_stream_id(device)); }

bool simulated(const at::Tensor& tensor) { return tensor.defined() && tensor.is_privateuseone(); }

at::Tensor alias(sim::Machine& m, const at::Tensor& tensor) {
  const void* begin = tensor.storage().data();
  sim::Memory* memory = begin ? m.memory_of(begin) : nullptr;
  bool ordinary = !memory && !simulated(tensor);
  if (ordinary && !tensor.is_inference()) return tensor;
  c10::InferenceMode normal(false);  // kernels run outside of it, where they may write to no tensor that was made in it
  void* bytes = memory ? memory->arena.alias(memory->arena.offset(begin)) : nullptr;
  auto storage = ordinary ? tensor.storage() : c10::Storage(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), tensor.storage().nbytes(), at::DataPtr(bytes, at::kCPU), nullptr, false));
  auto result = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
  auto* made = result.unsafeGetTensorImpl();
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) made->set_wrapped_number(true);
  made->set_storage_offset(tensor.storage_offset());
  made->set_sizes_and_strides(tensor.sizes(), tensor.strides());
  if (tensor.is_conj()) made->_set_conj(true);
  if (tensor.is_neg()) made->_set_neg(true);
  return result;
}

sim::Use use_of(sim::Machine& m, const at::Tensor& tensor, bool writes, const std::vector<int64_t>* rows) {
  const char* begin = static_cast<const char*>(tensor.const_data_ptr());
  sim::Memory* memory = begin ? m.memory_of(begin) : nullptr;
  if (!memory || !tensor.numel()) return {&m.pinned, {}, writes};
  int64_t base = memory->arena.offset(begin), item = tensor.element_size();
  if (!rows && tensor.is_contiguous()) return {memory, {{base, base + tensor.numel() * item}}, writes};
  std::vector<sim::Axis> axes;
  for (int64_t i = rows ? 1 : 0; i < tensor.dim(); i++) axes.push_back({tensor.size(i), tensor.stride(i)});
  if (!rows) return {memory, sim::runs(std::move(axes), item, base), writes};
  std::vector<sim::Range> ranges;
  std::vector<sim::Range> row = sim::runs(std::move(axes), item, base);
  for (int64_t index : *rows)
    for (sim::Range range : row) {
      int64_t shift = index * tensor.stride(0) * item;
      ranges.push_back({range.begin + shift, range.end + shift});
    }
  sim::tidy(ranges);
  return {memory, std::move(ranges), writes};
}

}  // namespace glue
