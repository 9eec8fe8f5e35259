/// What we call of NCCL, from the library that torch's CUDA libraries bring into the process: found there at run time, so that building
/// needs none of its 200 MB. Declared here as nccl.h of NCCL 2 has it, whose names and numbers stay from release to release.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace cotune::nccl {

using Communicator = struct ncclComm*;
struct UniqueId {
  char bytes[128];
};
enum class Result : int { success = 0, in_progress = 7 };
enum class DataType : int { i8 = 0, u8 = 1, i32 = 2, i64 = 4, f16 = 6, f32 = 7, f64 = 8, bf16 = 9 };
enum class Reduction : int { sum = 0 };

/// As of NCCL 2.14, which later versions take with its version, for all else their defaults.
struct Config {
  size_t size = sizeof(Config);
  unsigned magic = 0xcafebeef, version = 21400;
  int blocking = 0;
};

struct Library {
  Result (*get_version)(int* version);
  Result (*get_unique_id)(UniqueId* id);
  Result (*comm_init_rank_config)(Communicator* comm, int ranks, UniqueId id, int rank, Config* config);
  Result (*comm_abort)(Communicator comm);
  Result (*comm_get_async_error)(Communicator comm, Result* error);
  const char* (*get_error_string)(Result result);
  const char* (*get_last_error)(Communicator comm);
  Result (*all_reduce)(const void* from, void* to, size_t count, DataType type, Reduction reduction, Communicator comm, cudaStream_t stream);
  Result (*all_gather)(const void* from, void* to, size_t count_of_each, DataType type, Communicator comm, cudaStream_t stream);
  Result (*broadcast)(const void* from, void* to, size_t count, DataType type, int root, Communicator comm, cudaStream_t stream);
  Result (*send)(const void* from, size_t count, DataType type, int peer, Communicator comm, cudaStream_t stream);
  Result (*receive)(void* to, size_t count, DataType type, int peer, Communicator comm, cudaStream_t stream);
  Result (*group_start)();
  Result (*group_end)();
};

/// nullptr where the process has no NCCL of major version 2.
const Library* library();

}  // namespace cotune::nccl
