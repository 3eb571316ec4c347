// Graphs: work that is recorded once, and done again over the same memory.
//
// Owns: the steps, what they need, what a capture may not do. While a graph is captured its kernels do run, because
// only so the shapes of their results are known; at the end every byte outside of the graph's own memory is put back,
// and that memory is poisoned, so that nobody sees a capture compute, as on a real chip. A capture takes in the stream
// that it began on, and streams that wait for an event recorded within; in the end that stream must have waited for
// them.
//
// Memory allocated meanwhile belongs to the graph. Memory from before does not, and must still be there at each replay.
#pragma once
#include <map>
#include <set>
#include <string>
#include <vector>

#include "streams.h"
#include "work.h"

namespace sim {

class Graph {
 public:
  struct Step {
    enum Kind { LAUNCH, RECORD, WAIT } kind;
    Actor actor;
    int event = -1;
    Work work;
    Run run;
  };

  Graph(int pool, Actor origin) : pool(pool), origin(origin), streams_{origin} {}

  const int pool;
  const Actor origin;
  const std::vector<Step>& steps() const { return steps_; }
  int num_events() const { return int(events_.size()); }
  const std::set<Actor>& streams() const { return streams_; }

  // --- while it is captured -------------------------------------------------------------------------------------

  void check_captured(Actor actor, const std::string& what) const {
    if (!streams_.count(actor))
      throw Fault(false, "graph capture: " + what + " is not part of the capture: let its stream wait first for an "
                         "event that is recorded in the captured stream");
  }

  // Keeps what the work will overwrite, and notes what it needs from outside.
  void admit(const Work& work) {
    for (const Use& use : work.uses) {
      if (use.ranges.empty()) continue;
      auto* found = use.memory->arena.block_at(use.ranges.front().begin);
      if (found && found->second.pool == pool) continue;
      if (found) needs_.emplace(std::pair(use.memory, found->first), Need{found->second.id, work.name});
      if (use.writes)
        for (Range range : use.ranges) {
          char* bytes = use.memory->arena.alias(range.begin);
          undo_.push_back({bytes, std::string(bytes, range.end - range.begin)});
        }
    }
  }

  void add(Actor actor, Work work, Run run) {
    steps_.push_back({Step::LAUNCH, actor, -1, std::move(work), std::move(run)});
  }

  void add_record(Actor actor, const std::shared_ptr<Event>& event) {
    check_captured(actor, "an event");
    int index = num_events();
    events_[event] = index;
    steps_.push_back({Step::RECORD, actor, index, {}, nullptr});
  }

  void add_wait(Actor actor, const std::shared_ptr<Event>& event) {
    auto found = events_.find(event);
    if (found == events_.end())
      throw Fault(false, "graph capture: a captured stream waits for an event from before the capture: wait before it");
    streams_.insert(actor);
    steps_.push_back({Step::WAIT, actor, found->second, {}, nullptr});
  }

  // Undoes what the capture computed.
  void undo(const std::vector<Memory*>& memories) {
    for (auto it = undo_.rbegin(); it != undo_.rend(); ++it) memcpy(it->first, it->second.data(), it->second.size());
    undo_.clear();
    for (Memory* memory : memories) memory->arena.poison_pool(pool);
  }

  // --- when it is replayed --------------------------------------------------------------------------------------

  void check_needs() const {
    for (const auto& [where, need] : needs_) {
      auto* found = where.first->arena.block_at(where.second);
      if (!found || found->first != where.second || found->second.id != need.block)
        throw Fault(false, "stale graph buffer: " + std::string(need.name) + " of the graph uses memory at +" +
                           std::to_string(where.second) + " of " + where.first->label +
                           ", which was freed since the capture: keep its tensor as long as the graph");
    }
  }

 private:
  struct Need {
    uint64_t block;
    Name name;  // of the first step that needs it
  };

  std::vector<Step> steps_;
  std::set<Actor> streams_;
  std::map<std::shared_ptr<Event>, int> events_;
  std::map<std::pair<Memory*, int64_t>, Need> needs_;
  std::vector<std::pair<char*, std::string>> undo_;
};

}  // namespace sim
