// What the Python side of the simulator calls.
#include <torch/csrc/utils/pybind.h>

#include "scope.h"

namespace py = pybind11;

namespace glue {
namespace {

using sim::Machine;
using Declared = std::pair<at::Tensor, std::optional<std::vector<int64_t>>>;  // the tensor, and which of its rows

// Runs what is left, while Python can still run kernels, and raises what could not be raised before.
void finish() {
  Hold hold;
  if (!machine || machine->capturing()) return;
  enter([](Machine& m) {
    for (int i = 0; i < m.num_devices(); i++) m.synchronize(i);
  });
}

void start(const sim::Chip& chip) {
  Hold hold;
  finish();
  int64_t live = 0;
  if (machine)
    for (sim::Memory* memory : machine->memories()) live += memory->arena.used();
  if (live)
    raise(sim::Fault(false, "the simulator cannot start anew: tensors hold " + std::to_string(live) +
                                " bytes of it; delete them first"));
  set_machine(chip);
  register_hooks();
}

// A function of Python's that may be dropped by any thread, and after Python has ended.
std::shared_ptr<py::function> shared(py::function function) {
  return std::shared_ptr<py::function>(new py::function(std::move(function)), [](py::function* p) {
    if (!Py_IsInitialized()) return;
    py::gil_scoped_acquire gil;
    delete p;
  });
}

void launch(py::function function, const std::vector<Declared>& reads, const std::vector<Declared>& writes,
            double seconds, const std::string& name, int engine) {
  enter([&](Machine& m) {
    int device = -1;
    std::vector<sim::Use> uses;
    std::vector<at::Tensor> aliases;
    for (const auto* declared : {&reads, &writes})
      for (const auto& [tensor, rows] : *declared) {
        if (!simulated(tensor) && !m.memory_of(tensor.const_data_ptr()))
          throw sim::Fault(false, name + " is given pageable host memory: copy it to the device, or pin it");
        if (device < 0 && simulated(tensor)) device = tensor.device().index();
        uses.push_back(use_of(m, tensor, declared == &writes, rows ? &*rows : nullptr));
        aliases.push_back(alias(m, tensor));
      }
    sim::Stream& stream = current_stream(m, device < 0 ? current_device() : device);
    sim::Work work{sim::intern(name), std::move(uses), sim::EngineKind(engine), seconds};
    m.launch(stream, std::move(work), make_run([kept = shared(std::move(function)), aliases = std::move(aliases)] {
      py::gil_scoped_acquire gil;
      py::tuple arguments(aliases.size());
      for (size_t i = 0; i < aliases.size(); i++) arguments[i] = py::cast(aliases[i]);
      (*kept)(*arguments);
    }));
  });
}

// A graph of Python's. It holds memory as long as Python holds it.
struct PyGraph {
  std::shared_ptr<sim::Graph> graph;
  int of = 0;  // the start of its machine

  ~PyGraph() {
    Hold hold;
    if (graph && machine && num_starts() == of) machine->dissolve(*graph);
  }
  void begin() {
    enter([&](Machine& m) {
      if (graph) throw sim::Fault(false, "graph capture: this graph is captured already: make another one");
      graph = m.begin_capture(current_stream(m, current_device()));
      of = num_starts();
    });
  }
  void end() { enter([](Machine& m) { m.end_capture(); }); }
  void replay() {
    enter([&](Machine& m) {
      if (!graph || of != num_starts()) throw sim::Fault(false, "this graph holds nothing to replay: capture it first");
      m.replay(*graph, current_stream(m, m.streams.of(graph->origin).device));
    });
  }
};

void set_schedule(const std::string& name, uint64_t seed) {
  enter([&](Machine& m) {
    auto kind = name == "eager" ? sim::Schedule::EAGER : name == "lazy" ? sim::Schedule::LAZY : sim::Schedule::SEEDED;
    m.streams.set_schedule(kind, seed);
  });
}

}  // namespace
}  // namespace glue

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  using namespace glue;
  py::class_<sim::Chip>(module, "Chip")
      .def(py::init([](std::string name, int count, int64_t memory_bytes, int64_t pinned_bytes, int64_t align,
                       double flops, double bytes, double pcie, double link, bool strict) {
        return sim::Chip{name, count, memory_bytes, pinned_bytes, align, flops, bytes, pcie, link, strict};
      }));
  py::class_<PyGraph>(module, "Graph")
      .def(py::init<>())
      .def("begin", &PyGraph::begin)
      .def("end", &PyGraph::end)
      .def("replay", &PyGraph::replay);
  module.def("set_errors", [](py::object race, py::object misuse) {
    set_errors(race.release().ptr(), misuse.release().ptr());
  });
  module.def("start", &start);
  module.def("finish", &finish);
  module.def("set_schedule", &set_schedule);
  module.def("launch", &launch);
  module.def("races", [] { return enter([](Machine& m) { return m.take_races(); }); });
  module.def("now_s", [] { return enter([](Machine& m) { return m.host_s(); }); });
  module.def("busy_s", [](int device, int engine) {
    return enter([&](Machine& m) { return m.device(device).engines[engine].busy_s(); });
  });
}
