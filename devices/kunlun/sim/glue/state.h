// The torch side's view of the simulated machine: the machine of the process, its lock, errors, tensors as bytes.
//
// Every call goes through `enter`. It holds the lock, and turns faults into Python's errors. Nobody waits for the lock
// with the GIL in hand: a kernel that runs under the lock may be waiting for the GIL.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/Stream.h>
#include <torch/csrc/python_headers.h>

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "../engine/machine.h"
#include "../engine/runs.h"

namespace glue {

extern sim::Machine* machine;  // null before start; never destroyed at exit, because tensors may be freed later
extern std::recursive_mutex& mutex;

// Raises `fault` in Python.
[[noreturn]] void raise(const sim::Fault& fault);
[[noreturn]] void not_started();
void set_errors(PyObject* race, PyObject* misuse);

class Hold {
 public:
  Hold() {
    if (mutex.try_lock()) return;
    bool gil = Py_IsInitialized() && PyGILState_Check();
    PyThreadState* state = gil ? PyEval_SaveThread() : nullptr;
    mutex.lock();
    if (gil) PyEval_RestoreThread(state);
  }
  ~Hold() { mutex.unlock(); }
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;
};

template <class Function>
auto enter(Function function) {
  Hold hold;
  if (!machine) not_started();
  try {
    return function(*machine);
  } catch (const sim::Fault& fault) {
    raise(fault);
  }
}

// Starts another machine. Every thread's choices are forgotten. `num_starts` tells machines apart.
void set_machine(const sim::Chip& chip);
int num_starts();

// The device and the stream that this thread has chosen.
int current_device();
void choose_device(int device);
int64_t current_stream_id(int device);
void choose_stream(int device, int64_t id);
sim::Stream& current_stream(sim::Machine& m, int device);

// A host tensor over the bytes of a device tensor or a pinned one, by the engines' address. Others are given back, as
// tensors that may be written to outside of inference mode.
at::Tensor alias(sim::Machine& m, const at::Tensor& tensor);

// The bytes of a tensor that lies in simulated memory: those of `rows` of axis 0, or all when that is null.
sim::Use use_of(sim::Machine& m, const at::Tensor& tensor, bool writes, const std::vector<int64_t>* rows = nullptr);

// What a kernel does on the host's side of things: no gradients, ordinary tensors, whatever the caller's mode was.
template <class Function>
sim::Run make_run(Function function) {
  return std::make_shared<const std::function<void()>>([function = std::move(function)] {
    c10::InferenceMode normal(false);
    at::NoGradGuard no_grad;
    function();
  });
}

bool simulated(const at::Tensor& tensor);
at::DataPtr allocate(sim::Machine& m, int device, size_t bytes);
void resize_storage(const at::Storage& storage, size_t bytes);
at::Allocator* device_allocator();
void register_hooks();

}  // namespace glue
