// The machine without torch: what is found, under every schedule.
#include "check.h"
#include "machine.h"

using namespace sim;

static Chip chip(bool strict) { return {"chip", 2, 1 << 20, 1 << 20, 4, 1e12, 1e12, 1e9, 1e9, strict}; }

static void each_schedule(const std::function<void(Machine&)>& test, bool strict = false) {
  for (int seed = -2; seed < 5; seed++) {
    Machine m(chip(strict));
    m.streams.set_schedule(seed == -2 ? Schedule::EAGER : seed == -1 ? Schedule::LAZY : Schedule::SEEDED, seed);
    test(m);
  }
}

static Run run(std::function<void()> function) {
  return std::make_shared<const std::function<void()>>(std::move(function));
}

static Work work(Name name, std::vector<Use> uses, double seconds = 0, EngineKind engine = COMPUTE) {
  return {name, std::move(uses), engine, seconds};
}

static Use block(Machine& m, void* p, int64_t bytes, bool writes) {
  Memory* memory = m.memory_of(p);
  int64_t at = memory->arena.offset(p);
  return {memory, {{at, at + bytes}}, writes};
}

static const Run NOTHING = run([] {});

static bool has(const std::vector<std::string>& list, const char* text) {
  return list.size() == 1 && list[0].find(text) != std::string::npos;
}

CASE("tasks of a stream run in order, and after what they wait for") {
  each_schedule([](Machine& m) {
    Stream &a = m.stream(0, 0), &b = m.new_stream(0);
    std::string order;
    m.launch(a, work("1", {}), run([&] { order += "1"; }));
    auto event = m.record(a);
    m.launch(a, work("2", {}), run([&] { order += "2"; }));
    m.wait(b, event);
    m.launch(b, work("3", {}), run([&] { order += "3"; }));
    m.synchronize(b);
    m.synchronize(a);
    CHECK(order.size() == 3 && order.find('1') < order.find('2') && order.find('1') < order.find('3'));
  });
}

CASE("a lazy schedule runs what is waited for, and no more") {
  Machine m(chip(false));
  m.streams.set_schedule(Schedule::LAZY, 0);
  Stream &a = m.stream(0, 0), &b = m.new_stream(0);
  int ran = 0;
  m.launch(a, work("a", {}), run([&] { ran |= 1; }));
  auto event = m.record(a);
  m.launch(a, work("late", {}), run([&] { ran |= 2; }));
  m.launch(b, work("b", {}), run([&] { ran |= 4; }));
  CHECK(ran == 0);
  m.synchronize(*event);
  CHECK(ran == 1);
}

CASE("seeds differ, and one seed always draws the same") {
  auto order = [](int seed) {
    Machine m(chip(false));
    m.streams.set_schedule(Schedule::SEEDED, seed);
    Stream &a = m.stream(0, 0), &b = m.new_stream(0);
    std::string order;
    for (char i = 0; i < 20; i++) m.launch(i % 2 ? a : b, work("k", {}), run([&order, i] { order += char('a' + i); }));
    m.synchronize(0);
    return order;
  };
  std::set<std::string> orders;
  for (int seed = 0; seed < 5; seed++) {
    CHECK(order(seed) == order(seed));
    orders.insert(order(seed));
  }
  CHECK(orders.size() > 2);
}

CASE("who polls gets there, and time passes") {
  each_schedule([](Machine& m) {
    Stream& a = m.stream(0, 0);
    for (int i = 0; i < 5; i++) m.launch(a, work("k", {}, 10e-6), NOTHING);
    auto event = m.record(a);
    int polls = 0;
    while (!m.query(*event)) CHECK(++polls < 100);
    CHECK(polls >= 9 && m.host_s() >= 50e-6);
  });
}

CASE("a missing wait is found, a wait is enough") {
  each_schedule([](Machine& m) {
    Stream &a = m.stream(0, 0), &b = m.new_stream(0);
    void* p = m.allocate(a, 1000);
    m.launch(a, work("copy", {block(m, p, 1000, true)}), NOTHING);
    m.launch(b, work("attn", {block(m, p, 1000, false)}), NOTHING);
    CHECK(has(m.take_races(), "read-after-write race: attn on stream 1 of chip:0 vs copy on stream 0 of chip:0"));
    m.synchronize(0);
    m.launch(a, work("copy", {block(m, p, 1000, true)}), NOTHING);
    m.wait(b, m.record(a));
    m.launch(b, work("attn", {block(m, p, 1000, false)}), NOTHING);
    CHECK(m.take_races().empty());
    m.launch(a, work("next", {block(m, p, 10, true)}), NOTHING);
    CHECK(has(m.take_races(), "write-after-read race: next on stream 0 of chip:0 vs attn on stream 1 of chip:0"));
  });
}

CASE("other rows are no race") {
  each_schedule([](Machine& m) {
    Stream &a = m.stream(0, 0), &b = m.new_stream(0);
    char* p = m.allocate(a, 1000);
    m.launch(a, work("even", {{m.memory_of(p), {{0, 100}, {200, 300}}, true}}), NOTHING);
    m.launch(b, work("odd", {{m.memory_of(p), {{100, 200}, {300, 400}}, true}}), NOTHING);
    CHECK(m.take_races().empty());
    m.launch(b, work("both", {{m.memory_of(p), {{290, 310}}, true}}), NOTHING);
    CHECK(has(m.take_races(), "write-after-write race: both"));
  });
}

CASE("a strict machine raises a race where it is made, and an early free at the next call") {
  each_schedule([](Machine& m) {
    Stream &a = m.stream(0, 0), &b = m.new_stream(0);
    char* p = m.allocate(a, 1000);
    m.launch(b, work("copy", {block(m, p, 1000, false)}), NOTHING);
    m.release(*m.memory_of(p), p);
    std::string said;
    try {
      m.launch(a, work("next", {}), NOTHING);
    } catch (const Fault& fault) {
      said = fault.what();
      CHECK(fault.race);
    }
    CHECK(said.find("early free: 1024 bytes at +0 of chip:0") == 0 && said.find("copy on stream 1") < said.size());
    m.launch(a, work("next", {}), NOTHING);
  }, true);
}

CASE("memory freed in order, or with record_stream, is no early free, and its reuse no race") {
  each_schedule([](Machine& m) {
    Stream &a = m.stream(0, 0), &b = m.new_stream(0);
    char* p = m.allocate(a, 1 << 20);
    m.launch(a, work("k", {block(m, p, 1000, true)}), NOTHING);
    m.release(*m.memory_of(p), p);
    CHECK(m.allocate(a, 1 << 20) == p);
    m.wait(b, m.record(a));
    m.launch(b, work("copy", {block(m, p, 1000, false)}), NOTHING);
    m.use_on(*m.memory_of(p), p, b);
    m.release(*m.memory_of(p), p);
    CHECK(m.allocate(a, 1 << 20) == p);  // after it waited for all work
    m.launch(a, work("k", {block(m, p, 1000, true)}), NOTHING);
    CHECK(m.take_races().empty());
  });
}

CASE("new memory is poison, and what read the old one before sees nothing of it") {
  each_schedule([](Machine& m) {
    Stream& a = m.stream(0, 0);
    char* p = m.allocate(a, 256);
    volatile char* bytes = m.memory_of(p)->arena.alias(0);
    CHECK(uint8_t(bytes[0]) == POISON && uint8_t(bytes[255]) == POISON);
    char seen = 0;
    m.launch(a, work("write", {block(m, p, 256, true)}), run([=] { bytes[0] = 7; }));
    m.launch(a, work("read", {block(m, p, 256, false)}), run([&, bytes] { seen = bytes[0]; }));
    m.release(*m.memory_of(p), p);
    CHECK(m.allocate(a, 256) == p);
    m.synchronize(a);
    CHECK(seen == 7 && uint8_t(bytes[0]) == POISON);
  });
}

CASE("engines overlap, one engine does not") {
  each_schedule([](Machine& m) {
    Stream &a = m.stream(0, 0), &b = m.new_stream(0), &c = m.new_stream(0);
    m.launch(a, work("in", {}, 3e-3, H2D), NOTHING);
    m.launch(b, work("in", {}, 3e-3, H2D), NOTHING);
    m.launch(c, work("k", {}, 5e-3, COMPUTE), NOTHING);
    m.synchronize(0);
    CHECK(std::abs(m.host_s() - 6e-3) < 1e-9);
    CHECK(std::abs(m.device(0).engines[H2D].busy_s() - 6e-3) < 1e-9);
  });
}

CASE("a graph computes at replay only, and again") {
  each_schedule([](Machine& m) {
    Stream &a = m.stream(0, 0), &b = m.new_stream(0);
    char* p = m.allocate(a, 256);
    char* bytes = m.memory_of(p)->arena.alias(0);
    m.launch(a, work("set", {block(m, p, 256, true)}), run([=] { bytes[0] = 1; }));
    auto graph = m.begin_capture(a);
    m.launch(a, work("add", {block(m, p, 256, true)}), run([=] { bytes[0] += 1; }));
    m.wait(b, m.record(a));
    m.launch(b, work("double", {block(m, p, 256, true)}), run([=] { bytes[0] *= 2; }));
    m.wait(a, m.record(b));
    char* result = m.allocate(a, 256);
    m.end_capture();
    CHECK(bytes[0] == 1);
    m.replay(*graph, a);
    m.replay(*graph, a);
    m.synchronize(0);
    CHECK(bytes[0] == 10);
    m.release(*m.memory_of(result), result);
    CHECK(m.allocate(a, 256) != result);  // it is the graph's
    m.dissolve(*graph);
    m.synchronize(0);
    CHECK(m.allocate(a, 256) == result);
    CHECK(m.take_races().empty());
  });
}

static std::string fault_of(const std::function<void()>& function) {
  try {
    function();
  } catch (const Fault& fault) {
    return fault.what();
  }
  return "";
}

CASE("what a capture refuses") {
  Machine m(chip(true));
  Stream &a = m.stream(0, 0), &b = m.new_stream(0);
  auto before = m.record(a);
  m.begin_capture(a);
  auto starts = [](const std::string& said) { return said.find("graph capture: ") == 0; };
  CHECK(starts(fault_of([&] { m.synchronize(a); })));
  CHECK(starts(fault_of([&] { m.synchronize(*before); })));
  CHECK(starts(fault_of([&] { m.query(a); })));
  CHECK(starts(fault_of([&] { m.wait(a, before); })));
  CHECK(starts(fault_of([&] { m.begin_capture(b); })));
  CHECK(starts(fault_of([&] { m.launch(b, work("k", {}), NOTHING); })));
  m.wait(b, m.record(a));
  m.launch(b, work("k", {}), NOTHING);
  CHECK(fault_of([&] { m.end_capture(); }).find("did not wait for it") != std::string::npos);
  m.synchronize(a);
}

CASE("memory freed since the capture is named") {
  each_schedule([](Machine& m) {
    Stream& a = m.stream(0, 0);
    char* p = m.allocate(a, 256);
    auto graph = m.begin_capture(a);
    m.launch(a, work("attn", {block(m, p, 256, false)}), NOTHING);
    m.end_capture();
    m.replay(*graph, a);
    m.release(*m.memory_of(p), p);
    CHECK(m.allocate(a, 256) == p);  // another block at the same place
    CHECK(fault_of([&] { m.replay(*graph, a); }).find("stale graph buffer: attn") == 0);
  });
}

CASE("the host is told of pinned memory that it touched too early") {
  each_schedule([](Machine& m) {
    Stream& a = m.stream(0, 0);
    volatile char* p = m.allocate_pinned(1000);
    void* start = const_cast<char*>(p);
    m.launch(a, work("in", {block(m, start, 500, false)}, 0, H2D), NOTHING);
    char read = p[0];  // may be read meanwhile
    p[600] = 1;        // not part of the copy, but of its page
    CHECK(m.take_races().empty());
    m.synchronize(a);
    p[0] = read;
    m.launch(a, work("in", {block(m, start, 500, false)}, 0, H2D), NOTHING);
    p[499] = 1;
    CHECK(has(m.take_races(), "host access race: the host writes pinned memory while in on stream 0 of chip:0 may"));
    m.synchronize(a);
    m.launch(a, work("out", {block(m, start, 500, true)}, 0, D2H), NOTHING);
    read = p[499];
    CHECK(has(m.take_races(), "host access race: the host reads pinned memory while out on stream 0 of chip:0 may"));
    m.synchronize(a);
    p[499] = read;
    CHECK(m.take_races().empty());
  });
}

CASE("pinned memory that is freed while a copy uses it is not used anew before its end") {
  each_schedule([](Machine& m) {
    Stream& a = m.stream(0, 0);
    char* p = m.allocate_pinned(1000);
    m.launch(a, work("in", {block(m, p, 1000, false)}, 0, H2D), NOTHING);
    m.release_pinned(p);
    CHECK(m.allocate_pinned(1000) != p);
    m.synchronize(a);
    CHECK(m.allocate_pinned(1000) == p);
  });
}

CASE("a kernel may not launch") {
  Machine m(chip(true));
  Stream& a = m.stream(0, 0);
  auto nested = run([&] { m.launch(a, work("inner", {}), NOTHING); });
  CHECK(fault_of([&] { m.launch(a, work("outer", {}), nested); }).find("inner is launched by a kernel") == 0);
  m.launch(a, work("next", {}), NOTHING);
}
