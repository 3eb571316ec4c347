// Chooses a device for as long as it lives.
#pragma once
#include "state.h"

namespace glue {

class DeviceScope {
 public:
  explicit DeviceScope(int device) : before_(current_device()) { choose_device(device); }
  ~DeviceScope() { choose_device(before_); }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  int before_;
};

}  // namespace glue
