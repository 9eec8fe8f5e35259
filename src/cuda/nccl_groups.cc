#include "cuda/nccl_groups.h"

#include <ATen/ATen.h>
#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/Exception.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "cuda/nccl_library.h"

namespace cotune {
namespace {

void check(nccl::Result result, nccl::Communicator comm, const char* what) {
  if (result == nccl::Result::success) return;
  const char* const found = nccl::library()->get_last_error(comm);
  const std::string details = found != nullptr ? found : "";
  TORCH_CHECK(false, "NCCL: ", what, ": ", nccl::library()->get_error_string(result), details.empty() ? "" : ": ", details);
}

nccl::DataType data_type(at::ScalarType type) {
  switch (type) {
    case at::kFloat: return nccl::DataType::f32;
    case at::kDouble: return nccl::DataType::f64;
    case at::kBFloat16: return nccl::DataType::bf16;
    case at::kHalf: return nccl::DataType::f16;
    case at::kInt: return nccl::DataType::i32;
    case at::kLong: return nccl::DataType::i64;
    case at::kByte: return nccl::DataType::u8;
    case at::kChar: return nccl::DataType::i8;
    default: TORCH_CHECK(false, "NCCL: no sum of ", c10::toString(type));
  }
}

class CudaMark final : public DeviceMark {
 public:
  explicit CudaMark(const c10::cuda::CUDAStream& stream) : device_(stream.device_index()) {
    const c10::cuda::CUDAGuard guard(device_);
    event_.record(stream);
  }
  bool reached() override {
    const c10::cuda::CUDAGuard guard(device_);
    return event_.query();
  }
  void order_after() override {
    const c10::cuda::CUDAGuard guard(device_);
    event_.block(c10::cuda::getCurrentCUDAStream(device_));
  }

 private:
  c10::DeviceIndex device_;
  at::cuda::CUDAEvent event_;
};

/// Of a group alone: torch's own are 32 that are given out in turn.
class OwnStream {
 public:
  explicit OwnStream(c10::DeviceIndex device) {
    const c10::cuda::CUDAGuard guard(device);
    int least = 0, greatest = 0;
    C10_CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    C10_CUDA_CHECK(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, greatest));
  }
  ~OwnStream() { cudaStreamDestroy(stream_); }  // which goes on with what is under way
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;
  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

/// Calls of NCCL that do not block: who makes one asks until it has been taken, or the group has ended.
class NcclGroup final : public DeviceGroup {
 public:
  NcclGroup(const at::Tensor& id, int32_t rank, int32_t size, at::Device device, const std::function<bool()>& given_up)
      : size_(size), device_(device), own_(device.index()), stream_(c10::cuda::getStreamFromExternal(own_.get(), device.index())) {
    nccl::UniqueId unique;
    std::memcpy(unique.bytes, id.const_data_ptr<uint8_t>(), sizeof(unique.bytes));
    const c10::cuda::CUDAGuard guard(device_);
    nccl::Config config;
    try {
      finish(library_.comm_init_rank_config(&comm_, size, unique, rank, &config), "a group of GPUs cannot be made", given_up);
    } catch (...) {
      abort();
      throw;
    }
  }
  ~NcclGroup() override { abort(); }

  Mark all_reduce(at::Tensor& values) override {
    return after_this_thread("all_reduce", [&] {
      return library_.all_reduce(values.const_data_ptr(), values.mutable_data_ptr(), static_cast<size_t>(values.numel()),
                                 data_type(values.scalar_type()), nccl::Reduction::sum, comm_, stream_.stream());
    });
  }
  Mark all_gather(const at::Tensor& own, at::Tensor& all) override {
    return after_this_thread("all_gather", [&] {
      return library_.all_gather(own.const_data_ptr(), all.mutable_data_ptr(), own.nbytes(), nccl::DataType::u8, comm_, stream_.stream());
    });
  }
  Mark all_to_all(const at::Tensor& given, const std::vector<int64_t>& given_rows, at::Tensor& taken,
                  const std::vector<int64_t>& taken_rows) override {
    const auto row_bytes = [](const at::Tensor& rows) {
      return rows.size(0) > 0 ? rows.nbytes() / static_cast<size_t>(rows.size(0)) : 0;
    };
    const auto* from = static_cast<const char*>(given.const_data_ptr());
    auto* to = static_cast<char*>(taken.mutable_data_ptr());
    return after_this_thread("all_to_all", [&] {
      nccl::Result result = library_.group_start();
      for (int32_t peer = 0; peer < size_; ++peer) {
        const size_t gives = row_bytes(given) * static_cast<size_t>(given_rows[static_cast<size_t>(peer)]);
        const size_t takes = row_bytes(taken) * static_cast<size_t>(taken_rows[static_cast<size_t>(peer)]);
        const auto keep = [&](nccl::Result each) {
          if (each != nccl::Result::success && each != nccl::Result::in_progress) result = each;
        };
        if (gives > 0) keep(library_.send(from, gives, nccl::DataType::u8, peer, comm_, stream_.stream()));
        if (takes > 0) keep(library_.receive(to, takes, nccl::DataType::u8, peer, comm_, stream_.stream()));
        from += gives;
        to += takes;
      }
      const nccl::Result end = library_.group_end();
      return result == nccl::Result::success || result == nccl::Result::in_progress ? end : result;
    });
  }
  Mark broadcast(at::Tensor& values, int32_t root) override {
    return after_this_thread("broadcast", [&] {
      return library_.broadcast(values.const_data_ptr(), values.mutable_data_ptr(), values.nbytes(), nccl::DataType::u8, root, comm_,
                                stream_.stream());
    });
  }
  Mark send(const at::Tensor& buffer, int32_t peer) override {
    return at_once("send",
                   [&] { return library_.send(buffer.const_data_ptr(), buffer.nbytes(), nccl::DataType::u8, peer, comm_, stream_.stream()); });
  }
  Mark receive(const at::Tensor& buffer, int32_t peer) override {
    return at_once("receive",
                   [&] { return library_.receive(buffer.mutable_data_ptr(), buffer.nbytes(), nccl::DataType::u8, peer, comm_, stream_.stream()); });
  }

  void abort() noexcept override {
    ended_ = true;
    const std::lock_guard lock(mutex_);
    if (comm_ == nullptr) return;
    try {
      const c10::cuda::CUDAGuard guard(device_);
      library_.comm_abort(std::exchange(comm_, nullptr));
    } catch (const std::exception&) {  // the device has failed, and nothing is under way
    }
  }
  std::string failure() override {
    const std::lock_guard lock(mutex_);
    nccl::Result error = nccl::Result::success;
    if (comm_ == nullptr || library_.comm_get_async_error(comm_, &error) != nccl::Result::success) return "";
    if (error == nccl::Result::success || error == nccl::Result::in_progress) return "";
    return std::string("NCCL: ") + library_.get_error_string(error);
  }

 private:
  /// Until NCCL has done what it was asked for; mutex_ is held, or nobody else knows of this.
  template <typename GivenUp>
  void finish(nccl::Result result, const char* what, const GivenUp& given_up) {
    while (result == nccl::Result::in_progress) {
      TORCH_CHECK(!given_up(), "NCCL: ", what, ": the group has ended");
      std::this_thread::sleep_for(std::chrono::microseconds(10));
      check(library_.comm_get_async_error(comm_, &result), comm_, what);
    }
    check(result, comm_, what);
  }

  template <typename Call>
  Mark at_once(const char* what, Call call) {
    const std::lock_guard lock(mutex_);
    TORCH_CHECK(comm_ != nullptr && !ended_, "NCCL: ", what, ": the group has ended");
    const c10::cuda::CUDAGuard guard(device_);
    finish(call(), what, [this] { return ended_.load(); });
    return std::make_unique<CudaMark>(stream_);
  }

  template <typename Call>
  Mark after_this_thread(const char* what, Call call) {
    {
      const c10::cuda::CUDAGuard guard(device_);
      at::cuda::CUDAEvent before;
      before.record(c10::cuda::getCurrentCUDAStream(device_.index()));
      before.block(stream_);
    }
    return at_once(what, call);
  }

  const nccl::Library& library_ = *nccl::library();
  const int32_t size_;
  const at::Device device_;
  const OwnStream own_;
  const c10::cuda::CUDAStream stream_;
  std::atomic<bool> ended_ = false;
  std::mutex mutex_;  ///< of comm_, which abort() takes away
  nccl::Communicator comm_ = nullptr;
};

class NcclGroups final : public DeviceGroups {
 public:
  std::string name() override {
    int version = 0;
    check(nccl::library()->get_version(&version), nullptr, "its version is not known");
    return c10::str("NCCL ", version / 10000, ".", version / 100 % 100, ".", version % 100);
  }
  std::string hardware_of(at::Device device) override {
    std::array<char, 64> bus_id{};
    C10_CUDA_CHECK(cudaDeviceGetPCIBusId(bus_id.data(), bus_id.size() - 1, device.index()));
    return bus_id.data();
  }
  at::Tensor new_id() override {
    nccl::UniqueId id;
    check(nccl::library()->get_unique_id(&id), nullptr, "a group of GPUs cannot be named");
    at::Tensor bytes = at::empty({id_bytes}, at::kByte);
    static_assert(sizeof(id.bytes) == id_bytes);
    std::memcpy(bytes.mutable_data_ptr<uint8_t>(), id.bytes, sizeof(id.bytes));
    return bytes;
  }
  std::unique_ptr<DeviceGroup> join(const at::Tensor& id, int32_t rank, int32_t size, at::Device device,
                                    const std::function<bool()>& given_up) override {
    return std::make_unique<NcclGroup>(id, rank, size, device, given_up);
  }
  std::unique_ptr<DeviceMark> mark(at::Device device) override {
    return std::make_unique<CudaMark>(c10::cuda::getCurrentCUDAStream(device.index()));
  }
};

}  // namespace

DeviceGroups* nccl_groups() {
  static NcclGroups groups;
  return nccl::library() != nullptr ? &groups : nullptr;
}

}  // namespace cotune
