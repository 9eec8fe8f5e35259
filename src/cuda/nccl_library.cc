#include "cuda/nccl_library.h"

#include <dlfcn.h>

#include <optional>

namespace cotune::nccl {
namespace {

template <typename Function>
bool find(void* handle, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(handle, name));
  return function != nullptr;
}

std::optional<Library> open() {
  void* const handle = ::dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return std::nullopt;
  Library all{};
  const bool is_whole = find(handle, "ncclGetVersion", all.get_version) && find(handle, "ncclGetUniqueId", all.get_unique_id) &&
                        find(handle, "ncclCommInitRankConfig", all.comm_init_rank_config) &&
                        find(handle, "ncclCommAbort", all.comm_abort) && find(handle, "ncclCommGetAsyncError", all.comm_get_async_error) &&
                        find(handle, "ncclGetErrorString", all.get_error_string) && find(handle, "ncclGetLastError", all.get_last_error) &&
                        find(handle, "ncclAllReduce", all.all_reduce) && find(handle, "ncclAllGather", all.all_gather) &&
                        find(handle, "ncclBroadcast", all.broadcast) && find(handle, "ncclSend", all.send) &&
                        find(handle, "ncclRecv", all.receive) && find(handle, "ncclGroupStart", all.group_start) &&
                        find(handle, "ncclGroupEnd", all.group_end);
  return is_whole ? std::optional(all) : std::nullopt;
}

}  // namespace

const Library* library() {
  static const std::optional<Library> opened = open();
  return opened ? &*opened : nullptr;
}

}  // namespace cotune::nccl
