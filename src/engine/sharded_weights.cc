#include "engine/sharded_weights.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <chrono>
#include <iterator>

#include "base/error.h"
#include "base/file.h"
#include "comm/host_buffer.h"
#include "ops/memory.h"
#include "schedule/memory/weight_memory.h"

namespace cotune {
namespace {

constexpr int64_t slice_alignment = 64;  // bytes
constexpr int64_t wants_slice = -1;      // in place of a count of rows

struct Range {
  int64_t begin = 0, end = 0;
  int64_t count() const { return end - begin; }
};

Range share_of(int64_t count, int32_t index, int32_t holders) { return {count * index / holders, count * (index + 1) / holders}; }

Range slice_of(int64_t bytes, int32_t index, int32_t holders) {
  const int64_t blocks = (bytes + slice_alignment - 1) / slice_alignment;
  const Range range = share_of(blocks, index, holders);
  return {std::min(range.begin * slice_alignment, bytes), std::min(range.end * slice_alignment, bytes)};
}

at::Tensor part_of(const at::Tensor& values, const Range& range) { return values.narrow(0, range.begin, range.count()); }

at::Tensor question(int64_t form, int64_t row_count) {
  at::Tensor words = host_buffer({2}, at::kLong);
  words.mutable_data_ptr<int64_t>()[0] = form;
  words.mutable_data_ptr<int64_t>()[1] = row_count;
  return words;
}

}  // namespace

/// A weight of which this process keeps slices.
class ShardedWeights::SlicedProduct : public FrozenProduct {
 public:
  SlicedProduct(std::shared_ptr<ShardedWeights> weights, ProductOutline outline, size_t forward, std::optional<size_t> backward)
      : FrozenProduct(outline.in_features, outline.out_features),
        weights_(std::move(weights)),
        outline_(std::move(outline)),
        forward_(forward),
        backward_(backward) {}

  at::Tensor forward(const at::Tensor& x, const ProductOptions& options) const override {
    return weights_->gathered(forward_).forward(x, options);
  }
  at::Tensor backward(const at::Tensor& dy, const ProductOptions& options) const override {
    COTUNE_CHECK(backward_.has_value(), "a product without its backward form was asked for a backward");
    return weights_->gathered(*backward_).backward(dy, options);
  }
  at::Tensor weight_rows(const at::Tensor& rows) const override { return weights_->gathered(forward_).weight_rows(rows); }

  int64_t bytes() const override {
    int64_t bytes = outline_.bias.defined() ? static_cast<int64_t>(outline_.bias.nbytes()) : 0;
    bytes += weights_->forms_[forward_].slice.numel();
    if (backward_ && *backward_ != forward_) bytes += weights_->forms_[*backward_].slice.numel();
    return bytes;
  }

  ProductOutline outline() const override { return outline_; }
  at::Tensor form(WeightForm) const override { COTUNE_CHECK(false, "of a weight in slices no form is whole"); }

 private:
  std::shared_ptr<ShardedWeights> weights_;
  ProductOutline outline_;
  size_t forward_;
  std::optional<size_t> backward_;
};

ShardedWeights::~ShardedWeights() { leave(); }

std::shared_ptr<const FrozenProduct> ShardedWeights::keep(const FrozenProduct& whole, bool need_backward) {
  const ProductOutline outline = whole.outline();
  const size_t forward = keep_form(whole, WeightForm::forward);
  std::optional<size_t> backward;
  if (need_backward || !outline.packed) backward = outline.packed ? keep_form(whole, WeightForm::backward) : forward;
  return std::make_shared<SlicedProduct>(shared_from_this(), outline, forward, backward);
}

size_t ShardedWeights::keep_form(const FrozenProduct& whole, WeightForm direction) {
  const at::Tensor bytes = whole.form(direction);
  const Range own = slice_of(bytes.numel(), holder_.index, holder_.count);
  forms_.push_back({part_of(bytes, own).clone(), bytes.numel(), whole.outline(), direction});
  return forms_.size() - 1;
}

void ShardedWeights::keep_rows(const at::Tensor& whole) {
  row_count_ = whole.size(0);
  rows_ = part_of(whole, share_of(row_count_, holder_.index, holder_.count)).clone();
}

void ShardedWeights::join(std::unique_ptr<Communicator> group, std::vector<int32_t> ranks, std::shared_ptr<RankProgress> progress) {
  COTUNE_CHECK(group_ == nullptr && group->size() == holder_.count && group->rank() == holder_.index,
               "holder {} of {} joins as rank {} of {}", holder_.index, holder_.count, group->rank(), group->size());
  group_ = std::move(group);
  ranks_ = std::move(ranks);
  ranks_.erase(ranks_.begin() + holder_.index);
  progress_ = std::move(progress);
  for (int32_t peer = 0; peer < holder_.count; ++peer) {
    if (peer != holder_.index) answering_.emplace_back([this, peer] { answer(peer); });
  }
}

void ShardedWeights::leave() noexcept {
  if (group_ == nullptr) return;
  group_->abort();
  for (std::thread& thread : answering_) thread.join();
  answering_.clear();
  used_.reset();
  next_.reset();
  group_.reset();
}

/// Takes memory that no limit counts (predict_weight_bytes does), for it must answer where memory has run out, too.
void ShardedWeights::answer(int32_t peer) noexcept {
  at::get_num_threads();  // which sets the calling thread's count to that of the process, the first time
  omp_set_num_threads(1);  // the rank's threads compute meanwhile
  try {
    const at::Tensor asked = question(0, 0);
    const int64_t* words = asked.const_data_ptr<int64_t>();
    while (true) {
      group_->receive(asked, peer, Channel::question)->wait();
      const int64_t form = words[0], row_count = words[1];
      if (row_count == wants_slice) {
        group_->send(forms_[static_cast<size_t>(form)].slice, peer, Channel::weights)->wait();
        continue;
      }
      const at::Tensor indices = host_buffer({row_count}, at::kLong);
      group_->receive(indices, peer, Channel::question)->wait();
      group_->send(answered_rows(indices), peer, Channel::weights)->wait();
    }
  } catch (...) {
    group_->abort();  // the end, or nobody will ever be answered again
  }
}

at::Tensor ShardedWeights::answered_rows(const at::Tensor& indices) const {
  at::Tensor found = host_buffer({indices.numel(), rows_.size(1)}, rows_.scalar_type());
  return at::index_select_out(found, rows_, 0, indices);
}

const FrozenProduct& ShardedWeights::gathered(size_t form) {
  COTUNE_CHECK(group_ != nullptr, "weights are multiplied by before their holders have joined");
  const std::pair used_now{activity_, form};
  if (used_ && used_in_ != used_now) followed_by_[used_in_] = form;
  used_in_ = used_now;
  if (!used_ || used_->form != form) {
    if (!next_ || next_->form != form) {
      if (next_) wait_for(*next_);  // its buffer goes with it
      next_.reset();
      used_.reset();
      next_ = ask_for(form);
    }
    used_ = std::move(next_);
    next_.reset();
  }
  wait_for(*used_);
  const auto following = followed_by_.find(used_in_);
  if (!next_ && following != followed_by_.end() && following->second != form) next_ = ask_for(following->second);
  return *used_->product;
}

ShardedWeights::Gathered ShardedWeights::ask_for(size_t index) {
  const MemoryScope scope(MemoryKind::weights);
  const Form& form = forms_[index];
  Gathered weight{.form = index, .product = make_unwritten_product(form.outline, form.direction), .arrivals = {}};
  // Until all has come the product stays, whoever drops it.
  const at::Tensor memory = weight.product->form(form.direction);
  const at::Tensor bytes = at::from_blob(memory.data_ptr(), memory.sizes(), [product = weight.product, memory](void*) {}, memory.options());
  for (int32_t peer = 0; peer < holder_.count; ++peer) {
    if (peer == holder_.index) continue;
    weight.arrivals.push_back(group_->receive(part_of(bytes, slice_of(form.bytes, peer, holder_.count)), peer, Channel::weights));
    weight.arrivals.push_back(group_->send(question(static_cast<int64_t>(index), wants_slice), peer, Channel::question));
  }
  part_of(bytes, slice_of(form.bytes, holder_.index, holder_.count)).copy_(form.slice);
  return weight;
}

void ShardedWeights::wait_for(Gathered& weight) {
  wait_for_answers(weight.arrivals);
  weight.arrivals.clear();
}

void ShardedWeights::wait_for_answers(const std::vector<std::shared_ptr<Transfer>>& arrivals) {
  if (arrivals.empty()) return;
  const auto begin = std::chrono::steady_clock::now();
  if (progress_ != nullptr) progress_->wait_for_ranks(ranks_);
  for (const std::shared_ptr<Transfer>& each : arrivals) each->wait();
  if (progress_ != nullptr) progress_->go_on();
  waited_s_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

at::Tensor ShardedWeights::rows(const at::Tensor& indices) {
  COTUNE_CHECK(group_ != nullptr, "rows are looked up before their holders have joined");
  const auto [wanted, place, counts] = at::_unique2(indices, /*sorted=*/true, /*return_inverse=*/true);
  const at::Tensor found = at::empty({wanted.numel(), rows_.size(1)}, rows_.options());
  std::vector<std::shared_ptr<Transfer>> arrivals;
  const int64_t* const first = wanted.const_data_ptr<int64_t>();
  for (int32_t peer = 0; peer < holder_.count; ++peer) {
    const Range range = share_of(row_count_, peer, holder_.count);
    const Range own = {std::lower_bound(first, first + wanted.numel(), range.begin) - first,
                       std::lower_bound(first, first + wanted.numel(), range.end) - first};
    const at::Tensor asked = part_of(wanted, own) - range.begin, answer = part_of(found, own);
    if (peer == holder_.index) {
      answer.copy_(rows_.index_select(0, asked));
      continue;
    }
    for (int64_t begin = 0; begin < own.count(); begin += embedding_rows_at_once) {
      const Range piece = {begin, std::min(begin + embedding_rows_at_once, own.count())};
      arrivals.push_back(group_->receive(part_of(answer, piece), peer, Channel::weights));
      arrivals.push_back(group_->send(question(0, piece.count()), peer, Channel::question));
      arrivals.push_back(group_->send(part_of(asked, piece), peer, Channel::question));
    }
  }
  wait_for_answers(arrivals);
  return found.index_select(0, place);
}

std::string ShardedWeights::forms() const {
  std::string text = fmt::format("{} rows\n", row_count_);
  for (const Form& form : forms_) text += fmt::format("{} bytes, {} parts, packed {}\n", form.bytes, form.outline.parts, form.outline.packed);
  return checksum(text);
}

int64_t ShardedWeights::row_bytes() const { return rows_.defined() ? static_cast<int64_t>(rows_.nbytes()) : 0; }

int64_t ShardedWeights::bytes() const {
  int64_t bytes = row_bytes();
  for (const Form& form : forms_) bytes += form.slice.numel();
  return bytes;
}

int64_t ShardedWeights::whole_bytes() const {
  int64_t bytes = rows_.defined() ? row_count_ * rows_.size(1) * static_cast<int64_t>(rows_.element_size()) : 0;
  for (const Form& form : forms_) bytes += form.bytes;
  return bytes;
}

int64_t ShardedWeights::buffer_bytes() const {
  int64_t largest = 0;
  for (const Form& form : forms_) largest = std::max(largest, form.bytes);
  return 2 * largest;
}

}  // namespace cotune
