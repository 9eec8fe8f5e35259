#include "support/guarded_device.h"

#include <ATen/ATen.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <sys/mman.h>
#include <torch/library.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "base/error.h"
#include "support/thread_device_groups.h"

namespace cotune::testing {
namespace {

const at::Device device(at::kPrivateUse1, 0);

/// Pages that nobody may touch, but for operators.
class GuardedPages final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return {nullptr, device};
    void* pages = ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED) throw std::bad_alloc();
    const std::scoped_lock lock(mutex_);
    blocks_[pages] = {.bytes = bytes};
    allocated_ += static_cast<int64_t>(bytes);
    peak_ = std::max(peak_, allocated_);
    return {pages, pages, &GuardedPages::free, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &GuardedPages::free; }
  void copy_data(void*, const void*, size_t) const override { COTUNE_CHECK(false, "a copy around the operators"); }

  /// Opens the pages of a storage, for one operator more or fewer: several threads may read one tensor.
  void use(const at::Tensor& tensor, int users) {
    void* const pages = tensor.storage().mutable_data();
    if (pages == nullptr) return;
    const std::scoped_lock lock(mutex_);
    Block& block = blocks_.at(pages);
    const bool was_open = block.users > 0;
    block.users += users;
    const bool is_open = block.users > 0;
    if (is_open != was_open) COTUNE_CHECK(::mprotect(pages, block.bytes, is_open ? PROT_READ | PROT_WRITE : PROT_NONE) == 0);
  }
  DeviceMemory memory() {
    const std::scoped_lock lock(mutex_);
    constexpr int64_t total = int64_t{1} << 36;
    return {allocated_, peak_, allocated_, peak_, total - allocated_, total};
  }
  void reset_peak() {
    const std::scoped_lock lock(mutex_);
    peak_ = allocated_;
  }

  static GuardedPages& instance() {
    static auto* const pages = new GuardedPages;  // outlives every tensor
    return *pages;
  }

 private:
  static void free(void* pages) {
    GuardedPages& all = instance();
    const std::scoped_lock lock(all.mutex_);
    const auto found = all.blocks_.find(pages);
    all.allocated_ -= static_cast<int64_t>(found->second.bytes);
    ::munmap(pages, found->second.bytes);
    all.blocks_.erase(found);
  }

  struct Block {
    size_t bytes = 0;
    int users = 0;
  };
  std::mutex mutex_;
  std::map<void*, Block> blocks_;
  int64_t allocated_ = 0, peak_ = 0;
};

/// A tensor's values, as a tensor of the CPU on the same memory, while it lives.
class OnHost {
 public:
  explicit OnHost(const at::Tensor& tensor) : tensor_(tensor) {
    if (is_guarded()) GuardedPages::instance().use(tensor_, 1);
  }
  ~OnHost() {
    if (is_guarded()) GuardedPages::instance().use(tensor_, -1);
  }
  OnHost(const OnHost&) = delete;
  OnHost& operator=(const OnHost&) = delete;
  at::Tensor get() const {
    if (!is_guarded()) return tensor_;
    return at::from_blob(tensor_.mutable_data_ptr(), tensor_.sizes(), tensor_.strides(), tensor_.options().device(at::kCPU));
  }

 private:
  bool is_guarded() const { return tensor_.device() == device && tensor_.numel() > 0; }
  at::Tensor tensor_;
};

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& target, bool) {
  if (self.numel() == 0) return target;
  const bool same_storage = self.storage().data() == target.storage().data();
  const at::Tensor source = same_storage ? self.cpu() : self;
  const OnHost from(source), to(target);
  to.get().copy_(from.get());
  return target;
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& target) {
  if (target.sizes() != self.sizes()) target.resize_(self.sizes());
  return copy_from(self, target, false);
}

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>, std::optional<at::Device>,
                 std::optional<bool>, std::optional<at::MemoryFormat>) {
  const at::ScalarType type = dtype.value_or(at::kFloat);
  const auto storage_bytes = static_cast<int64_t>(c10::multiply_integers(size)) * static_cast<int64_t>(c10::elementSize(type));
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(c10::Storage::use_byte_size_t(), storage_bytes, GuardedPages::instance().allocate(static_cast<size_t>(storage_bytes)),
                   &GuardedPages::instance(), true),
      c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::scalarTypeToTypeMeta(type));
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  return tensor;
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout> layout, std::optional<at::Device> where, std::optional<bool> pinned) {
  int64_t last = 0;
  for (size_t i = 0; i < size.size(); ++i) last += (size[i] - 1) * stride[i];
  const int64_t elements = c10::multiply_integers(size) == 0 ? 0 : last + 1;
  return at::native::as_strided_tensorimpl(empty({elements}, dtype, layout, where, pinned, std::nullopt), size, stride, 0);
}

const at::Tensor& resize_(const at::Tensor& self, at::IntArrayRef size, std::optional<at::MemoryFormat>) {
  const int64_t bytes = c10::multiply_integers(size) * static_cast<int64_t>(self.element_size());
  COTUNE_CHECK(self.storage_offset() == 0);
  if (static_cast<size_t>(bytes) > self.storage().nbytes()) {
    self.storage().set_data_ptr(GuardedPages::instance().allocate(static_cast<size_t>(bytes)));
    self.storage().set_nbytes(static_cast<size_t>(bytes));
  }
  self.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  return self;
}

/// Computed on the CPU. As on a GPU, tensors of the CPU may stand beside tensors of the device as numbers only.
void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const size_t count = op.schema().arguments().size();
  const auto check = [&](const at::Tensor& tensor) {
    TORCH_CHECK(!tensor.defined() || tensor.dim() == 0 || tensor.device() == device, op.schema().name(),
                " is given a tensor of the CPU beside tensors of the device");
  };
  for (size_t i = stack->size() - count; i < stack->size(); ++i) {
    const c10::IValue& value = (*stack)[i];
    if (value.isTensor()) check(value.toTensor());
    if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector()) check(tensor);
    }
  }
  at::native::cpu_fallback(op, stack);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", empty);
  library.impl("empty_strided", empty_strided);
  library.impl("as_strided", at::native::as_strided_tensorimpl);
  library.impl("view", [](const at::Tensor& self, at::IntArrayRef size) { return at::native::view(self, size); });
  library.impl("_reshape_alias", [](const at::Tensor& self, at::IntArrayRef size, at::IntArrayRef stride) {
    return at::native::as_strided_tensorimpl(self, size, stride, self.storage_offset());
  });
  library.impl("resize_", resize_);
  library.impl("_copy_from", copy_from);
  library.impl("_copy_from_and_resize", copy_from_and_resize);
}

struct GuardImpl final : c10::impl::NoOpDeviceGuardImpl<at::kPrivateUse1> {
  c10::Device getDevice() const override { return device; }
  c10::Device exchangeDevice(c10::Device) const override { return device; }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, GuardImpl)

class GuardedPlugin final : public DevicePlugin {
 public:
  int device_count() noexcept override { return 1; }
  std::string name(int) override { return "guarded memory"; }
  bool has_bf16(int) override { return true; }
  void activate(int) override {}
  DeviceMemory memory(int) override { return GuardedPages::instance().memory(); }
  void set_memory_limit(int, int64_t) override {}
  void reset_memory_peaks(int) override { GuardedPages::instance().reset_peak(); }
  void forbid_waiting(bool) override {}
  GpuKernels* kernels(int) override { return nullptr; }
  DeviceGroups* groups() override { return &ThreadDeviceGroups::instance(); }
  void release_unused_memory() override {}
};

}  // namespace

const ComputeDevice& guarded_device() {
  static GuardedPlugin plugin;
  static const ComputeDevice chosen{.device = device, .plugin = &plugin, .name = plugin.name(0), .notice = ""};
  return chosen;
}

}  // namespace cotune::testing
