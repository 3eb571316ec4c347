// The host's hands off pinned memory that copies in flight still use, and off device memory always.
//
// Owns: page protection of pinned memory, the handler of SIGSEGV. From launch until the host has seen the end of a
// copy, the host cannot touch pages that it writes, nor write pages that it reads. A touch faults. If its address is in
// the bytes of the copy, it is noted as a fault of the program, which the next call of the simulator raises. In every
// case the page is opened and the host goes on, so what else lies in that page does no harm. A system call that touches
// such a page does not fault: it fails with EFAULT.
//
// Device memory: one line is printed, and the process dies of SIGSEGV as it does without this handler.
#pragma once
#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "clock.h"
#include "work.h"

namespace sim {

// A copy that uses pinned memory, until the host has seen its end.
struct Flight {
  Moment moment;
  Name name = "";
  bool device_writes = false;
  std::vector<Range> ranges;
  bool host_read = false, host_wrote = false;
};

class HostGuard {
 public:
  static constexpr int MAX_FLIGHTS = 4096;

  explicit HostGuard(const Arena& pinned) : pinned_(pinned) {
    flights_.reserve(MAX_FLIGHTS);
    the_guard() = this;
  }
  ~HostGuard() { the_guard() = nullptr; }
  HostGuard(const HostGuard&) = delete;
  HostGuard& operator=(const HostGuard&) = delete;

  // Device memory that the handler names. Installs the handler with the first one.
  void watch(const Memory& memory) {
    regions_.push_back(&memory);
    if (regions_.size() == 1) install();
  }

  void begin(const Access& access, const Use& use) {
    if (flights_.size() == MAX_FLIGHTS)
      throw Fault(false, std::to_string(MAX_FLIGHTS) + " copies with pinned memory are in flight, and the host has "
                         "waited for none of them: synchronize sometimes");
    flights_.push_back(Flight{access.moment, access.name, use.writes, use.ranges});
    for (Range range : use.ranges) protect(pages(range), use.writes ? PROT_NONE : PROT_READ);
  }

  // The host has seen more ends. Gives each flight over to `hit` where the host touched its bytes too early.
  template <class Hit>
  void settle(const Clock& host, Hit hit) {
    for (size_t i = 0; i < flights_.size();) {
      if (flights_[i].host_read || flights_[i].host_wrote) hit(flights_[i]);
      flights_[i].host_read = flights_[i].host_wrote = false;
      if (!host.knows(flights_[i].moment.actor, flights_[i].moment.tick)) {
        i++;
        continue;
      }
      std::vector<Range> ranges = std::move(flights_[i].ranges);
      flights_[i] = std::move(flights_.back());
      flights_.pop_back();
      for (Range range : ranges) open(pages(range));
    }
  }

  // Who still uses these bytes.
  std::vector<Moment> users(Range range) const {
    std::vector<Moment> found;
    for (const Flight& flight : flights_)
      for (Range used : flight.ranges)
        if (overlap(used, range)) {
          found.push_back(flight.moment);
          break;
        }
    return found;
  }

 private:
  static constexpr int64_t PAGE = 4096;

  static HostGuard*& the_guard() {
    static HostGuard* guard = nullptr;
    return guard;
  }
  static struct sigaction& before() {
    static struct sigaction action;
    return action;
  }
  static bool overlap(Range a, Range b) { return a.begin < b.end && b.begin < a.end; }
  static Range pages(Range range) { return {range.begin / PAGE * PAGE, (range.end + PAGE - 1) / PAGE * PAGE}; }

  void protect(Range range, int access) const {
    mprotect(pinned_.window(range.begin), range.end - range.begin, access);
  }

  // Gives pages back to the host, except where another flight is.
  void open(Range range) const {
    bool alone = true;
    for (const Flight& flight : flights_)
      for (Range used : flight.ranges) alone = alone && !overlap(pages(used), range);
    if (alone) return protect(range, PROT_READ | PROT_WRITE);
    for (int64_t at = range.begin; at < range.end; at += PAGE) {
      int access = PROT_READ | PROT_WRITE;
      for (const Flight& flight : flights_)
        for (Range used : flight.ranges)
          if (overlap(pages(used), {at, at + PAGE})) access &= flight.device_writes ? PROT_NONE : PROT_READ;
      protect({at, at + PAGE}, access);
    }
  }

  // In the handler: was it a touch of pinned memory? Then it is noted, and the page is open.
  bool touched(char* address, bool writes) {
    if (!pinned_.holds(address)) return false;
    int64_t at = pinned_.offset(address);
    for (Flight& flight : flights_)
      for (Range used : flight.ranges)
        if (used.begin <= at && at < used.end && (writes || flight.device_writes))
          (writes ? flight.host_wrote : flight.host_read) = true;
    protect(pages({at, at + 1}), PROT_READ | PROT_WRITE);
    return true;
  }

  void name(char* address, bool writes) const {
    for (const Memory* memory : regions_) {
      if (!memory->arena.holds(address)) continue;
      char line[256];
      int length = snprintf(line, sizeof line, "host touch: the host %s device memory at +%lld of %s: copy it to the "
                            "host first\n", writes ? "writes" : "reads", (long long)memory->arena.offset(address),
                            memory->label.c_str());
      if (write(STDERR_FILENO, line, length) < 0) return;
    }
  }

  static void handle(int, siginfo_t* info, void* state) {
#if defined(__x86_64__)
    bool writes = static_cast<ucontext_t*>(state)->uc_mcontext.gregs[REG_ERR] & 2;
#else
    bool writes = true;  // not known here: a touch of what may be read is not told from a write
#endif
    char* address = static_cast<char*>(info->si_addr);
    HostGuard* guard = the_guard();
    if (guard && guard->touched(address, writes)) return;
    if (guard) guard->name(address, writes);
    sigaction(SIGSEGV, &before(), nullptr);  // the touch is tried again, and whoever was here before deals with it
  }

  static void install() {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = &handle;
    action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
    struct sigaction old;
    sigaction(SIGSEGV, &action, &old);
    if (old.sa_sigaction != &handle) before() = old;
  }

  const Arena& pinned_;
  std::vector<Flight> flights_;
  std::vector<const Memory*> regions_;
};

}  // namespace sim
