// Which bytes a strided tensor covers, as few ranges: rows of a view are no part of what lies between them.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "detector.h"

namespace sim {

struct Axis {
  int64_t size, stride;
};

// Sorts, and joins what touches or overlaps.
inline void tidy(std::vector<Range>& ranges) {
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
  size_t kept = 0;
  for (const Range& range : ranges) {
    if (kept && range.begin <= ranges[kept - 1].end)
      ranges[kept - 1].end = std::max(ranges[kept - 1].end, range.end);
    else
      ranges[kept++] = range;
  }
  ranges.resize(kept);
}

// Ranges of bytes from `base` on. Sizes and strides in elements of `item_bytes`. Strides are not negative.
inline std::vector<Range> runs(std::vector<Axis> axes, int64_t item_bytes, int64_t base) {
  for (const Axis& axis : axes)
    if (axis.size == 0) return {};
  std::erase_if(axes, [](const Axis& axis) { return axis.size == 1 || axis.stride == 0; });
  std::sort(axes.begin(), axes.end(), [](const Axis& a, const Axis& b) { return a.stride < b.stride; });
  int64_t length = 1;  // of one run, in elements
  size_t first = 0;    // the innermost axis that is not part of the run
  while (first < axes.size() && axes[first].stride <= length) {
    length = (axes[first].size - 1) * axes[first].stride + length;
    first++;
  }
  std::vector<Range> found{{base, base + length * item_bytes}};
  for (size_t i = first; i < axes.size(); i++) {
    size_t count = found.size();
    found.reserve(count * axes[i].size);
    for (int64_t step = 1; step < axes[i].size; step++) {
      int64_t shift = step * axes[i].stride * item_bytes;
      for (size_t j = 0; j < count; j++) found.push_back({found[j].begin + shift, found[j].end + shift});
    }
  }
  if (found.size() > 1) tidy(found);
  return found;
}

}  // namespace sim
