// A test program in one header: CASE("name") { CHECK(condition); }. Called with a name, it runs that case.
#pragma once
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <string>

inline std::map<std::string, std::function<void()>>& cases() {
  static std::map<std::string, std::function<void()>> all;
  return all;
}

struct Registered {
  Registered(const char* name, std::function<void()> body) { cases()[name] = std::move(body); }
};

#define JOIN2(a, b) a##b
#define JOIN(a, b) JOIN2(a, b)
#define CASE(name)                                                        \
  static void JOIN(body, __LINE__)();                                     \
  static Registered JOIN(registered, __LINE__)(name, &JOIN(body, __LINE__)); \
  static void JOIN(body, __LINE__)()

#define CHECK(condition)                                                       \
  do {                                                                         \
    if (!(condition)) {                                                        \
      fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition); \
      exit(1);                                                                 \
    }                                                                          \
  } while (0)

int main(int count, char** arguments) {
  if (count != 2 || !cases().count(arguments[1])) return 2;
  cases()[arguments[1]]();
}
