#include "ops/call_counts.h"

namespace cotune {
namespace {
thread_local CallCounts counts;
}

CallCounts call_counts() {
  return counts;
}
void count_frozen_call() {
  ++counts.frozen;
}
void count_adapter_call() {
  ++counts.adapter;
}

}  // namespace cotune
