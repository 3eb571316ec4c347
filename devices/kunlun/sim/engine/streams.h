// Streams: queues of tasks, and when a task is run.
//
// Owns: the queues and the schedule. Tasks of one stream run in order; a task that waits for an event runs after it.
// Nothing else is promised, and the schedules make use of that:
//   eager   a task runs when it is launched
//   lazy    a task runs when something waits for it, and no sooner
//   seeded  after each launch some tasks run, drawn from all streams; the same seed draws the same
// There are no threads, so every run can be repeated.
#pragma once
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#include "clock.h"

namespace sim {

enum class Schedule { EAGER, LAZY, SEEDED };

// The end of what a stream had been given when it was recorded.
struct Event {
  Actor actor;
  Clock clock;
  double at_s;
  bool done = false;
};

struct Task {
  std::function<void()> run;
  std::shared_ptr<Event> wait, record;
};

struct Stream {
  Actor actor;
  int device;
  int64_t id;  // within the device
  Clock clock;
  double now_s = 0;
  std::deque<Task> tasks;
};

class Streams {
 public:
  Stream& add(int device, int64_t id) {
    all_.push_back(std::make_unique<Stream>(Stream{Actor(all_.size()) + 1, device, id, {}, 0, {}}));
    return *all_.back();
  }
  Stream& of(Actor actor) { return *all_.at(actor - 1); }
  const std::vector<std::unique_ptr<Stream>>& all() const { return all_; }

  void set_schedule(Schedule schedule, uint64_t seed) {
    schedule_ = schedule;
    random_.seed(seed);
  }

  void push(Stream& stream, Task task) {
    stream.tasks.push_back(std::move(task));
    if (schedule_ == Schedule::EAGER) drain(stream);
    if (schedule_ == Schedule::SEEDED)
      for (int count = random_() % 4; count > 0; count--) step();
  }

  // Runs the first task of a stream, and before it what it waits for.
  void run_one(Stream& stream) {
    Task task = std::move(stream.tasks.front());
    stream.tasks.pop_front();
    if (task.wait) finish(*task.wait);
    if (task.run) task.run();
    if (task.record) task.record->done = true;
  }

  void drain(Stream& stream) {
    while (!stream.tasks.empty()) run_one(stream);
  }

  void finish(const Event& event) {
    while (!event.done) run_one(of(event.actor));
  }

  void drop_tasks() {
    for (auto& stream : all_) stream->tasks.clear();
  }

 private:
  // Runs a task of a stream drawn among those that need not wait.
  void step() {
    std::vector<Stream*> ready;
    for (auto& stream : all_)
      if (!stream->tasks.empty() && (!stream->tasks.front().wait || stream->tasks.front().wait->done))
        ready.push_back(stream.get());
    if (!ready.empty()) run_one(*ready[random_() % ready.size()]);
  }

  std::vector<std::unique_ptr<Stream>> all_;  // by actor, from 1 on
  Schedule schedule_ = Schedule::EAGER;
  std::mt19937_64 random_;
};

}  // namespace sim
