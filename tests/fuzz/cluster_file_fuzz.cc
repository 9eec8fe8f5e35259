/// Fuzz target: any bytes as a cluster file give a cluster that round-trips through to_yaml, or a UserError.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "plan/plan.h"
#include "plan/shapes/cluster_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cotune;
  try {
    const ClusterSpec cluster = parse_cluster_file({reinterpret_cast<const char*>(data), size}, "cluster.yaml");
    COTUNE_CHECK(cluster.device_count() > 0);
    const ClusterSpec again = parse_cluster_file(to_yaml(cluster), "again.yaml");
    COTUNE_CHECK(again == cluster && hash_of(again) == hash_of(cluster));
  } catch (const UserError&) {
  }
  return 0;
}
