// Virtual time: what a step would take on the chip, by its cost model.
//
// Owns: the engines of a device. Each does one thing at a time; different engines overlap. Times are computed when work
// is launched, so they are the same under every schedule. Work goes into the first gap after it could start.
#pragma once
#include <cstdint>
#include <map>

namespace sim {

enum EngineKind { COMPUTE, HBM, H2D, D2H, LINK, NUM_ENGINES };

class Engine {
 public:
  // Occupies the engine for `seconds` from `ready` on at the earliest. Returns the end. Nobody will ask for times
  // before `horizon` any more.
  double reserve(double ready, double seconds, double horizon) {
    while (!taken_.empty() && taken_.begin()->second <= horizon) taken_.erase(taken_.begin());
    double start = ready;
    for (const auto& [begin, end] : taken_) {
      if (start + seconds <= begin) break;
      start = std::max(start, end);
    }
    busy_s_ += seconds;
    if (seconds > 0) add(start, start + seconds);
    return start + seconds;
  }
  double busy_s() const { return busy_s_; }

 private:
  void add(double begin, double end) {
    auto next = taken_.lower_bound(begin);
    if (next != taken_.end() && next->first == end) {
      end = next->second;
      next = taken_.erase(next);
    }
    if (next != taken_.begin() && std::prev(next)->second == begin)
      std::prev(next)->second = end;
    else
      taken_[begin] = end;
  }

  std::map<double, double> taken_;  // begin -> end, apart
  double busy_s_ = 0;
};

}  // namespace sim
