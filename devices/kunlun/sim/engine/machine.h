// A machine with several simulated chips: what the torch side calls.
//
// Owns: the host's clock and virtual time, captures, and in which order things happen. Each piece of work is admitted
// first: it ticks its stream's clock, its accesses are compared with earlier ones. Then its time on an engine is
// reserved, and it is queued. Not thread-safe: callers hold one lock.
#pragma once
#include <algorithm>

#include "graph.h"
#include "guard.h"
#include "hardware.h"

namespace sim {

class Machine : public Hardware {
 public:
  explicit Machine(const Chip& chip) : Hardware(chip), guard_(pinned.arena) {
    for (int i = 0; i < chip.count; i++) guard_.watch(device(i).memory);
  }

  double host_s() const { return host_s_; }

  // --- work -----------------------------------------------------------------------------------------------------

  void launch(Stream& stream, Work work, Run run) {
    admit(stream, work);
    enqueue(stream, std::move(work), std::move(run));
  }

  // Lets work into a stream: clock and races. Returns the access under which it may touch more.
  Access admit(Stream& stream, const Work& work) {
    raise_pending();
    if (running_) throw Fault(false, std::string(work.name) + " is launched by a kernel: only the host may launch");
    if (capture_) {
      capture_->check_captured(stream.actor, work.name + (" on " + label(stream.actor)));
      capture_->admit(work);
    }
    stream.clock.join(host_);
    Access access{{stream.actor, stream.clock.tick(stream.actor)}, work.name};
    for (const Use& use : work.uses) touch(stream, access, use);
    if (capture_ || work.blocking) return access;
    for (const Use& use : work.uses)
      if (use.memory->pinned && !use.ranges.empty()) guard_.begin(access, use);
    return access;
  }

  void touch(Stream& stream, const Access& access, const Use& use) {
    for (Range range : use.ranges)
      if (auto conflict = use.memory->shadow.note(range, use.writes, access, stream.clock))
        report(describe(*conflict, access, *use.memory));
  }

  // Queues admitted work. While a graph is captured, runs and records it.
  void enqueue(Stream& stream, Work work, Run run) {
    if (capture_) {
      run_kernel(*run);
      return record_captured(stream, std::move(work), std::move(run));
    }
    charge(stream, work);
    streams.push(stream, Task{[this, run] { run_kernel(*run); }, nullptr, nullptr});
  }

  // The virtual time of admitted work.
  void charge(Stream& stream, const Work& work) {
    double ready = std::max(stream.now_s, host_s_);
    stream.now_s = device(stream.device).engines[work.engine].reserve(ready, work.seconds, host_s_);
  }

  void record_captured(const Stream& stream, Work work, Run run) {
    capture_->add(stream.actor, std::move(work), std::move(run));
  }

  std::shared_ptr<Event> record(Stream& stream) {
    stream.clock.join(host_);
    stream.clock.tick(stream.actor);
    stream.now_s = std::max(stream.now_s, host_s_);
    auto event = std::make_shared<Event>(Event{stream.actor, stream.clock, stream.now_s, capture_ != nullptr});
    if (capture_)
      capture_->add_record(stream.actor, event);
    else
      streams.push(stream, Task{nullptr, nullptr, event});
    return event;
  }

  void wait(Stream& stream, const std::shared_ptr<Event>& event) {
    if (capture_) capture_->add_wait(stream.actor, event);
    stream.clock.join(event->clock);
    stream.now_s = std::max(stream.now_s, event->at_s);
    if (!capture_) streams.push(stream, Task{nullptr, event, nullptr});
  }

  // --- the host waits -------------------------------------------------------------------------------------------

  void synchronize(Stream& stream) {
    refuse_in_capture("the host waits for a stream");
    streams.drain(stream);
    host_joins(stream.clock, stream.now_s);
  }

  void synchronize(int device) {
    for (Actor actor : std::vector<Actor>(this->device(device).streams)) synchronize(streams.of(actor));
  }

  void synchronize(const Event& event) {
    refuse_in_capture("the host waits for an event");
    streams.finish(event);
    host_joins(event.clock, event.at_s);
  }

  // Whether an event has happened. Looking takes time, and lets the chip go on: who polls gets there.
  bool query(const Event& event) {
    refuse_in_capture("the host asks for an event");
    host_s_ += POLL_S;
    bool done = event.done && event.at_s <= host_s_;
    if (!event.done) streams.run_one(streams.of(event.actor));
    if (done) host_joins(event.clock, event.at_s);
    return done;
  }

  bool query(Stream& stream) {
    refuse_in_capture("the host asks for a stream");
    host_s_ += POLL_S;
    bool done = stream.tasks.empty() && stream.now_s <= host_s_;
    if (!stream.tasks.empty()) streams.run_one(stream);
    if (done) host_joins(stream.clock, stream.now_s);
    return done;
  }

  // --- graphs ---------------------------------------------------------------------------------------------------

  bool capturing() const { return capture_ != nullptr; }

  std::shared_ptr<Graph> begin_capture(Stream& stream) {
    refuse_in_capture("another capture begins");
    for (auto& other : streams.all()) streams.drain(*other);
    capture_ = std::make_shared<Graph>(++num_pools_, stream.actor);
    swap_shadows();
    return capture_;
  }

  void end_capture() {
    std::shared_ptr<Graph> graph = std::move(capture_);
    capture_ = nullptr;
    swap_shadows();
    graph->undo(memories());
    const Clock& joined = streams.of(graph->origin).clock;
    for (Actor actor : graph->streams())
      if (!joined.knows(actor, streams.of(actor).clock.at(actor)))
        throw Fault(false, "graph capture: " + label(actor) + " took part, and " + label(graph->origin) +
                           " did not wait for it in the end: record an event there, and wait for it");
  }

  void replay(const Graph& graph, Stream& stream) {
    refuse_in_capture("another graph is replayed");
    graph.check_needs();
    std::vector<std::shared_ptr<Event>> events(graph.num_events());
    for (const Graph::Step& step : graph.steps()) {
      Stream& target = step.actor == graph.origin ? stream : streams.of(step.actor);
      if (step.kind == Graph::Step::LAUNCH) launch(target, step.work, step.run);
      if (step.kind == Graph::Step::RECORD) events[step.event] = record(target);
      if (step.kind == Graph::Step::WAIT) wait(target, events[step.event]);
    }
  }

  // The graph is gone: its memory is free once the streams have done what they were given.
  void dissolve(const Graph& graph) {
    std::vector<Moment> uses;
    for (auto& stream : streams.all()) uses.push_back({stream->actor, stream->clock.at(stream->actor)});
    for (Memory* memory : memories()) memory->arena.dissolve(graph.pool, uses);
  }

  // --- memory ---------------------------------------------------------------------------------------------------

  // The address of a new block, which is poisoned; null when there is no room even after all work is done.
  char* allocate(Stream& stream, int64_t bytes) {
    Arena& arena = device(stream.device).memory.arena;
    int pool = capture_ ? capture_->pool : NO_POOL;
    stream.clock.join(host_);
    int64_t at = arena.allocate(bytes, stream.actor, stream.clock, pool);
    if (at < 0 && !capture_) {
      synchronize(stream.device);
      at = arena.allocate(bytes, stream.actor, stream.clock, pool);
    }
    if (at < 0) return nullptr;
    const Block& block = arena.block_at(at)->second;
    Range range{at, at + block.bytes};
    if (block.settled || capture_)
      arena.poison(range);
    else  // what was launched before may still read what lay there
      streams.push(stream, Task{[&arena, range] { arena.poison(range); }, nullptr, nullptr});
    return arena.window(at);
  }

  // Frees a block of a device. Whoever still uses it, and is not in order with its owner, is named.
  void release(Memory& memory, void* p) {
    auto& [at, block] = *memory.arena.block_at(memory.arena.offset(p));
    std::vector<Actor> actors = block.users;
    actors.push_back(block.owner);
    std::sort(actors.begin(), actors.end());
    Clock known = host_;
    std::vector<Moment> uses;
    for (Actor actor : actors) {
      known.join(streams.of(actor).clock);
      uses.push_back({actor, streams.of(actor).clock.at(actor)});
    }
    if (auto use = memory.shadow.unfinished({at, at + block.bytes}, known))
      report_later("early free: " + std::to_string(block.bytes) + " bytes at +" + std::to_string(at) + " of " +
                   memory.label + ", allocated on " + label(block.owner) + ", are freed while " + use->name + " on " +
                   label(use->moment.actor) + " may still use them: wait for it first, or call record_stream");
    memory.arena.release(at, std::move(uses));
  }

  void use_on(Memory& memory, const void* p, const Stream& stream) {
    Block& block = memory.arena.block_at(memory.arena.offset(p))->second;
    auto& users = block.users;
    bool known = stream.actor == block.owner || std::find(users.begin(), users.end(), stream.actor) != users.end();
    if (!known) users.push_back(stream.actor);
  }

  char* allocate_pinned(int64_t bytes) {
    pinned.arena.settle(host_);
    int64_t at = pinned.arena.allocate(bytes, HOST, host_, NO_POOL);
    if (at < 0)
      throw Fault(false, "out of pinned memory: " + std::to_string(bytes) + " bytes were asked for, and " +
                         std::to_string(pinned.arena.bytes() - pinned.arena.used()) + " of " +
                         std::to_string(pinned.arena.bytes()) + " are free: give the chip more pinned_bytes");
    pinned.arena.poison({at, at + bytes});
    return pinned.arena.window(at);
  }

  // Pinned memory may be freed while copies use it: it is not used anew before they are over.
  void release_pinned(void* p) {
    auto& [at, block] = *pinned.arena.block_at(pinned.arena.offset(p));
    pinned.arena.release(at, guard_.users({at, at + block.bytes}));
  }

  // --- faults ---------------------------------------------------------------------------------------------------

  std::vector<std::string> take_races() {
    look_for_touches();
    return take_reported();
  }

 private:
  static constexpr double POLL_S = 5e-6;

  void run_kernel(const std::function<void()>& run) {
    struct Running {
      bool& flag;
      explicit Running(bool& flag) : flag(flag) { flag = true; }
      ~Running() { flag = false; }
    } running(running_);
    run();
  }

  void refuse_in_capture(const std::string& what) const {
    if (capture_) throw Fault(false, "graph capture: " + what + " while a graph is captured: do it before or after");
  }

  // A capture computes nothing that counts: what it touches is compared among itself only.
  void swap_shadows() {
    for (Memory* memory : memories()) std::swap(memory->shadow, shadows_[memory]);
  }

  void look_for_touches() {
    guard_.settle(host_, [this](const Flight& flight) {
      report_later(std::string("host access race: the host ") + (flight.host_wrote ? "writes" : "reads") +
                   " pinned memory while " + flight.name + " on " + label(flight.moment.actor) + " may still " +
                   (flight.device_writes ? "write" : "read") + " it: synchronize with its event first");
    });
  }

  void raise_pending() {
    look_for_touches();
    raise_reported();
  }

  void host_joins(const Clock& clock, double at_s) {
    host_.join(clock);
    host_s_ = std::max(host_s_, at_s);
    bool all = true;
    for (auto& stream : streams.all()) all = all && host_.knows(stream->actor, stream->clock.at(stream->actor));
    for (Memory* memory : memories()) {
      if (all) memory->shadow.clear();
      memory->arena.settle(host_);
    }
    raise_pending();
  }

  HostGuard guard_;
  Clock host_;
  double host_s_ = 0;
  int num_pools_ = NO_POOL;
  bool running_ = false;
  std::shared_ptr<Graph> capture_;
  std::map<Memory*, Shadow> shadows_;  // of before the capture
};

}  // namespace sim
