// Every other operator: the host's kernel, on the engines' view of the device's memory. Results get device memory.
//
// The host's kernel runs when it is called, because only it knows the shape of the result; of its stream all earlier
// tasks run first. For the race detector and virtual time it is work of the stream like any other: the host has seen
// nothing of it.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <torch/library.h>

#include "scope.h"

namespace glue {
namespace {

using sim::Machine;
using torch::jit::Stack;

// One call: what was passed, as the host's kernel gets it.
class Call {
 public:
  Call(Machine& m, std::string name) : m(m), name(std::move(name)) {}

  Machine& m;
  std::string name;
  int device = -1;
  std::vector<std::pair<at::Tensor, at::Tensor>> aliases;  // alias, tensor
  std::vector<std::pair<at::Tensor, at::Tensor>> sized_by_kernel;
  std::vector<sim::Use> uses;

  at::Tensor argument(const at::Tensor& tensor, bool writes, bool is_index) {
    if (!simulated(tensor)) {
      TORCH_CHECK(is_index || !tensor.defined() || tensor.dim() == 0, name, ": a tensor of shape ", tensor.sizes(),
                  " is on the host, and others are on the device: move it there first");
      return tensor;
    }
    choose(tensor.device().index());
    if (writes && !tensor.numel()) {
      at::Tensor fresh = at::empty(tensor.sizes(), tensor.options().device(at::kCPU));
      sized_by_kernel.emplace_back(fresh, tensor);
      aliases.emplace_back(fresh, tensor);
      return fresh;
    }
    uses.push_back(use_of(m, tensor, writes));
    aliases.emplace_back(alias(m, tensor), tensor);
    return aliases.back().first;
  }

  void choose(int index) {
    TORCH_CHECK(device < 0 || device == index, name, ": tensors of devices ", device, " and ", index,
                " are mixed: copy them to one first");
    device = index;
  }

  void translate(at::IValue& value, bool writes) {
    if (value.isTensor()) {
      value = argument(value.toTensor(), writes, false);
    } else if (value.isTensorList()) {
      auto list = value.toTensorVector();
      for (auto& tensor : list) tensor = argument(tensor, writes, false);
      value = at::IValue(list);
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (std::optional<at::Tensor> tensor : value.toOptionalTensorList())
        list.push_back(tensor && tensor->defined() ? std::optional(argument(*tensor, writes, true)) : std::nullopt);
      value = at::IValue(list);
    } else if (value.isDevice()) {
      if (device < 0) device = value.toDevice().has_index() ? value.toDevice().index() : current_device();
      value = at::IValue(at::Device(at::kCPU));
    }
  }

  // The argument whose memory a result shares; null for a new one.
  const at::Tensor* source_of(const at::Tensor& made) const {
    for (auto& [aliased, tensor] : aliases)
      if (aliased.storage().is_alias_of(made.storage())) return &tensor;
    return nullptr;
  }

  // Writes what the kernel made to a tensor of the device.
  void fill(const at::Tensor& tensor, const at::Tensor& made, sim::Stream& stream, const sim::Access& access) {
    uses.push_back(use_of(m, tensor, true));
    m.touch(stream, access, uses.back());
    m.streams.drain(stream);  // it may still have to be poisoned
    if (made.numel()) alias(m, tensor).copy_(made);
  }

  // A result as a tensor of the device: the argument that it is, a view of one, or a new one.
  at::Tensor result(const at::Tensor& made, sim::Stream& stream, const sim::Access& access) {
    if (!made.defined()) return made;
    for (auto& [aliased, tensor] : aliases)
      if (aliased.is_same(made)) return tensor;
    if (const at::Tensor* source = source_of(made)) return view_of(*source, made);
    auto options = made.options().device(at::kPrivateUse1, c10::DeviceIndex(device));
    at::Tensor tensor = at::empty_strided(made.sizes(), made.strides(), options);
    fill(tensor, made, stream, access);
    return tensor;
  }

  static at::Tensor view_of(const at::Tensor& source, const at::Tensor& made) {
    auto view = at::detail::make_tensor<c10::TensorImpl>(
        c10::Storage(source.storage()), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), made.dtype());
    view.unsafeGetTensorImpl()->set_storage_offset(made.storage_offset());
    view.unsafeGetTensorImpl()->set_sizes_and_strides(made.sizes(), made.strides());
    return view;
  }
};

// The tensors among the last values of a stack, one after the other.
std::vector<at::Tensor> tensors_of(const Stack& stack, size_t first) {
  std::vector<at::Tensor> found;
  for (size_t i = first; i < stack.size(); i++) {
    if (stack[i].isTensor()) found.push_back(stack[i].toTensor());
    if (stack[i].isTensorList())
      for (const at::Tensor& tensor : stack[i].toTensorVector()) found.push_back(tensor);
  }
  return found;
}

double seconds_of(Machine& m, const std::vector<sim::Use>& uses) {
  double bytes = 0;
  for (const auto& use : uses)
    for (const auto& range : use.ranges) bytes += double(range.end - range.begin);
  return bytes / m.chip.bytes_per_s;
}

// The call once more, for a graph: on the same arguments, into the same results.
sim::Run again(Machine& m, const c10::OperatorHandle& op, Stack arguments, const std::vector<at::Tensor>& made,
               const std::vector<at::Tensor>& given, const Call& call) {
  std::vector<at::Tensor> results(made.size());  // those that were new: where they lie
  for (size_t i = 0; i < made.size(); i++)
    if (given[i].defined() && !call.source_of(made[i])) results[i] = alias(m, given[i]);
  std::vector<std::pair<at::Tensor, at::Tensor>> sized;
  for (auto& [fresh, tensor] : call.sized_by_kernel) sized.emplace_back(fresh, alias(m, tensor));
  return make_run([op, arguments = std::move(arguments), results, sized] {
    Stack stack = arguments;
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
    std::vector<at::Tensor> now = tensors_of(stack, 0);
    for (size_t i = 0; i < results.size(); i++)
      if (results[i].defined()) at::Tensor(results[i]).copy_(now[i]);
    for (auto& [fresh, target] : sized) at::Tensor(target).copy_(fresh);
  });
}

void run(Machine& m, const c10::OperatorHandle& op, Stack* stack) {
  const auto& schema = op.schema();
  size_t first = stack->size() - schema.arguments().size();
  Call call(m, schema.operator_name().name);
  for (size_t i = first; i < stack->size(); i++) {
    const auto* info = schema.arguments()[i - first].alias_info();
    call.translate((*stack)[i], info && info->isWrite());
  }
  if (call.device < 0) call.device = current_device();
  DeviceScope scope(call.device);
  sim::Stream& stream = current_stream(m, call.device);
  sim::Work work{sim::intern(call.name), call.uses, sim::COMPUTE, 0};
  sim::Access access = m.admit(stream, work);
  m.streams.drain(stream);
  Stack arguments;
  if (m.capturing()) arguments.assign(stack->begin() + first, stack->end());
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  for (auto& [fresh, tensor] : call.sized_by_kernel)
    if (fresh.numel()) {
      tensor.resize_(fresh.sizes());
      call.fill(tensor, fresh, stream, access);
    }
  std::vector<at::Tensor> made = tensors_of(*stack, first);
  for (size_t i = first; i < stack->size(); i++) {
    at::IValue& value = (*stack)[i];
    if (value.isTensor()) {
      value = call.result(value.toTensor(), stream, access);
    } else if (value.isTensorList()) {
      auto list = value.toTensorVector();
      for (auto& tensor : list) tensor = call.result(tensor, stream, access);
      value = at::IValue(list);
    }
  }
  work.uses = call.uses;
  work.seconds = seconds_of(m, call.uses);
  if (!m.capturing()) return m.charge(stream, work);
  m.record_captured(stream, work, again(m, op, std::move(arguments), made, tensors_of(*stack, first), call));
}

void fallback(const c10::OperatorHandle& op, Stack* stack) {
  enter([&](Machine& m) { run(m, op, stack); });
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }
TORCH_LIBRARY_IMPL(_, AutogradPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }

}  // namespace
}  // namespace glue
