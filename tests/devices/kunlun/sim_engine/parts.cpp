// The parts of the simulator, each beside a naive twin.
#include <random>

#include "check.h"
#include "hardware.h"
#include "runs.h"

using namespace sim;

CASE("a clock knows what was before it, through others") {
  Clock a, b, c;
  uint64_t first = a.tick(1);
  b.join(a);
  b.tick(2);
  a.tick(1);
  c.join(b);
  CHECK(c.knows(1, first));
  CHECK(!c.knows(1, first + 1));
  CHECK(c.knows(2, 1));
}

static std::set<int64_t> bytes_of(const std::vector<Range>& ranges) {
  std::set<int64_t> bytes;
  for (const Range& range : ranges)
    for (int64_t at = range.begin; at < range.end; at++) CHECK(bytes.insert(at).second);
  return bytes;
}

static std::set<int64_t> bytes_of(const std::vector<Axis>& axes, size_t axis, int64_t item, int64_t base) {
  std::set<int64_t> bytes;
  if (axis == axes.size())
    for (int64_t i = 0; i < item; i++) bytes.insert(base + i);
  else
    for (int64_t i = 0; i < axes[axis].size; i++)
      bytes.merge(bytes_of(axes, axis + 1, item, base + i * axes[axis].stride * item));
  return bytes;
}

CASE("runs cover exactly the bytes of a strided tensor") {
  std::mt19937 random(0);
  for (int round = 0; round < 2000; round++) {
    std::vector<Axis> axes;
    for (int n = random() % 4; n > 0; n--) axes.push_back({int64_t(random() % 4), int64_t(random() % 9)});
    int64_t item = 1 << random() % 3, base = random() % 10;
    CHECK(bytes_of(runs(axes, item, base)) == bytes_of(axes, 0, item, base));
  }
}

CASE("runs are few") {
  CHECK(runs({{64, 1}, {64, 64}}, 4, 0).size() == 1);            // transposed
  CHECK(runs({{64, 64}, {32, 1}}, 4, 0).size() == 64);           // the left half of its columns
  CHECK(runs({{8, 0}, {4, 4}, {4, 1}}, 4, 0).size() == 1);       // expanded
  CHECK(runs({{3, 1000}, {4, 4}, {4, 1}}, 4, 0).size() == 3);    // every so many rows
}

// The detector, a byte at a time and with everything that ever happened.
struct NaiveShadow {
  struct Old {
    Range range;
    Moment moment;
    bool writes;
  };
  std::vector<Old> all;

  bool races(Range range, bool writes, const Clock& now) const {
    for (const Old& old : all)
      if (old.range.begin < range.end && range.begin < old.range.end && (writes || old.writes) &&
          !now.knows(old.moment.actor, old.moment.tick))
        return true;
    return false;
  }
};

CASE("the detector finds what the naive one finds") {
  std::mt19937 random(1);
  int found = 0;
  for (int round = 0; round < 3000; round++) {
    Shadow shadow;
    NaiveShadow naive;
    std::vector<Clock> clocks(4);
    for (int step = 0; step < 40; step++) {
      Actor actor = 1 + random() % 3;
      if (random() % 3) {  // somebody waits for somebody
        clocks[actor].join(clocks[1 + random() % 3]);
        continue;
      }
      int64_t begin = random() % 30, end = begin + 1 + random() % 12;
      bool writes = random() % 2;
      Access access{{actor, clocks[actor].tick(actor)}, "op"};
      bool race = naive.races({begin, end}, writes, clocks[actor]);
      CHECK(shadow.note({begin, end}, writes, access, clocks[actor]).has_value() == race);
      CHECK(race || !shadow.unfinished({begin, end}, clocks[actor]) || !writes);
      naive.all.push_back({{begin, end}, access.moment, writes});
      found += race;
      if (race) break;
    }
  }
  CHECK(found > 1000);
}

CASE("a write leaves one cell, whatever was there") {
  Shadow shadow;
  Clock now;
  for (int64_t at = 0; at < 100; at += 2) shadow.note({at, at + 1}, false, {{1, now.tick(1)}, "row"}, now);
  CHECK(shadow.size() == 50);
  shadow.note({0, 100}, true, {{1, now.tick(1)}, "all"}, now);
  CHECK(shadow.size() == 1);
}

CASE("blocks do not overlap, and merge again") {
  std::mt19937 random(2);
  Arena arena(1 << 20, 256, false);
  Clock now;
  std::map<int64_t, int64_t> live;
  for (int step = 0; step < 5000; step++) {
    if (random() % 2 || live.empty()) {
      int64_t bytes = 1 + random() % 40000, at = arena.allocate(bytes, 1, now, NO_POOL);
      if (at < 0) continue;
      CHECK(at % 256 == 0);
      for (auto& [begin, size] : live) CHECK(at + bytes <= begin || begin + size <= at);
      live[at] = bytes;
    } else {
      auto it = std::next(live.begin(), random() % live.size());
      arena.release(it->first, {{1, now.tick(1)}});
      live.erase(it);
    }
  }
  for (auto& [at, _] : live) arena.release(at, {{1, now.tick(1)}});
  arena.settle(now);
  CHECK(arena.used() == 0 && arena.largest() == 1 << 20);
  CHECK(arena.peak() > 1 << 19);
}

CASE("freed memory is for the stream that freed it, and for others once the host has seen the end") {
  Arena arena(4096, 256, false);
  Clock mine, other, host;
  int64_t at = arena.allocate(4096, 1, mine, NO_POOL);
  uint64_t tick = mine.tick(1);
  arena.release(at, {{1, tick}});
  CHECK(arena.allocate(4096, 2, other, NO_POOL) == -1);
  arena.settle(host);
  CHECK(arena.allocate(4096, 2, other, NO_POOL) == -1);
  at = arena.allocate(4096, 1, mine, NO_POOL);
  CHECK(at == 0);
  arena.release(at, {{1, mine.tick(1)}});
  host.join(mine);
  arena.settle(host);
  CHECK(arena.allocate(4096, 2, other, NO_POOL) == 0);
}

CASE("a pool keeps its memory until it is dissolved") {
  Arena arena(4096, 256, false);
  Clock now;
  int64_t at = arena.allocate(2048, 1, now, 7);
  arena.release(at, {{1, now.tick(1)}});
  CHECK(arena.allocate(4096, 1, now, NO_POOL) == -1);
  CHECK(arena.allocate(1024, 1, now, 7) == at);
  arena.release(at, {{1, now.tick(1)}});
  arena.dissolve(7, {{1, now.at(1)}});
  arena.settle(now);
  CHECK(arena.allocate(4096, 1, now, NO_POOL) == 0);
}

CASE("an engine does one thing at a time, in the first gap") {
  std::mt19937 random(3);
  Engine engine;
  std::vector<std::pair<double, double>> taken;
  double busy = 0;
  for (int step = 0; step < 400; step++) {
    double ready = random() % 500, seconds = 1 + random() % 5, end = engine.reserve(ready, seconds, 0);
    double first = ready;  // by trying every whole time, because all of them are
    auto free = [&](double at) {
      for (auto& [a, b] : taken)
        if (at < b && a < at + seconds) return false;
      return true;
    };
    while (!free(first)) first++;
    CHECK(end == first + seconds);
    taken.push_back({first, end});
    busy += seconds;
  }
  CHECK(engine.busy_s() == busy);
}
