#include "engine/rank_messages.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "base/error.h"
#include "ops/backend.h"
#include "ops/memory.h"
#include "schedule/pipeline/pipeline_work.h"

namespace cotune {
namespace {

constexpr int64_t alignment = 64;
constexpr size_t most_under_way = 2;  // a plan is proven with sends that wait, so it has no use for more

int64_t record_bytes(int64_t records) {
  return (records * 2 * static_cast<int64_t>(sizeof(double)) + alignment - 1) / alignment * alignment;
}

Channel channel_of(ActionKind kind) { return goes_down(kind) ? Channel::error : Channel::activation; }

}  // namespace

RankMessages::RankMessages(Communicator& communicator, int64_t hidden_size, at::ScalarType compute, at::Device device,
                           RankProgress* progress, EmulatedClock* clock)
    : communicator_(communicator),
      hidden_size_(hidden_size),
      compute_(compute),
      device_(device),
      progress_(progress),
      clock_(clock) {}

at::ScalarType RankMessages::dtype_of(ActionKind kind) const { return goes_down(kind) ? compute_ : accumulation_dtype(compute_); }

int64_t RankMessages::row_bytes(ActionKind kind, int64_t tokens) const {
  return tokens * hidden_size_ * static_cast<int64_t>(c10::elementSize(dtype_of(kind)));
}

at::Tensor RankMessages::buffer_for(ActionKind kind, int64_t tokens, int64_t records) const {
  const MemoryScope scope(MemoryKind::activations);
  return at::empty({record_bytes(records) + row_bytes(kind, tokens)}, at::TensorOptions().dtype(at::kByte).device(device_));
}

Message RankMessages::views_of(ActionKind kind, const at::Tensor& buffer, int64_t tokens, int64_t records) const {
  Message message;
  const int64_t begin = record_bytes(records);
  message.records = buffer.narrow(0, 0, begin).view(at::kDouble).narrow(0, 0, 2 * records).view({records, 2});
  message.rows = buffer.narrow(0, begin, buffer.size(0) - begin).view(dtype_of(kind)).view({tokens, hidden_size_});
  return message;
}

void RankMessages::post(const Action& action, int64_t tokens, int64_t records) {
  if (clock_ != nullptr) ++records;
  const at::Tensor buffer = buffer_for(action.kind, tokens, records);
  posted_[{action.kind, action.stage, action.microbatch, action.job, action.job_step}] = {
      views_of(action.kind, buffer, tokens, records), communicator_.receive(buffer, action.peer, channel_of(action.kind)), action.peer,
      post_count_++};
}

const Message& RankMessages::wait(const Key& key) {
  const auto found = posted_.find(key);
  COTUNE_CHECK(found != posted_.end(), "a message is used whose receive is not posted: stage {}, microbatch {}",
               std::get<1>(key), std::get<2>(key));
  Posted& posted = found->second;
  if (posted.transfer != nullptr) {
    wait(*posted.transfer, posted.peer);
    if (clock_ != nullptr) waited_s_ += clock_->wait_until(posted.message.records[-1][0].item<double>());
  }
  posted.transfer.reset();
  return posted.message;
}

const Message& RankMessages::wait(ActionKind kind, int32_t stage, int32_t microbatch) {
  return wait(Key{kind, stage, microbatch, -1, -1});
}

const Message& RankMessages::wait_for_norm(int32_t stage, int32_t job, int64_t job_step) {
  return wait(Key{ActionKind::receive_activation, stage, -1, job, job_step});
}

std::optional<int64_t> RankMessages::posted_as(ActionKind kind, int32_t stage, int32_t microbatch) const {
  const auto found = posted_.find({kind, stage, microbatch, -1, -1});
  return found != posted_.end() ? std::optional(found->second.number) : std::nullopt;
}

void RankMessages::release(ActionKind kind, int32_t stage, int32_t microbatch) {
  posted_.erase({kind, stage, microbatch, -1, -1});
}

void RankMessages::send(const Action& action, size_t index, const at::Tensor& rows, const at::Tensor& own_records) {
  const int64_t tokens = rows.defined() ? rows.size(0) : 0, bytes = row_bytes(action.kind, tokens);
  at::Tensor records = own_records;
  SimulatedSpan span{.start_s = steady_seconds()};
  if (clock_ != nullptr) {
    span = on_link(action.peer, tokens > 0 ? bytes : norm_message_bytes);
    records = at::cat({records, at::full({1, 2}, span.end_s, at::kDouble)});
  }
  span.action = index;
  const at::Tensor buffer = buffer_for(action.kind, tokens, records.size(0));
  Message message = views_of(action.kind, buffer, tokens, records.size(0));
  message.records.copy_(records);
  if (tokens > 0) message.rows.copy_(rows);
  auto& leaving = leaving_[{action.peer, channel_of(action.kind)}];
  if (leaving.size() == most_under_way) {
    wait_until_left(leaving.front(), action.peer);
    leaving.pop_front();
  }
  leaving.push_back({communicator_.send(buffer, action.peer, channel_of(action.kind)), span});
  const int64_t of_emulation = record_bytes(records.size(0)) - record_bytes(own_records.size(0));
  sent_ += {1, static_cast<int64_t>(buffer.nbytes()) - of_emulation};
}

SimulatedSpan RankMessages::on_link(int32_t peer, int64_t bytes) {
  const Link& link = clock_->device().link;
  double& free_s = link_free_s_[peer];
  const double start_s = std::max(free_s, clock_->free_s());
  free_s = start_s + static_cast<double>(bytes) / link.bytes_per_s;
  return {.start_s = start_s, .end_s = free_s + link.latency_s};
}

void RankMessages::wait_until_left(Leaving& message, int32_t peer) {
  wait(*message.transfer, peer);
  if (clock_ == nullptr) message.span.end_s = message.transfer->over_s();
  sent_spans_.push_back(message.span);
}

void RankMessages::wait(Transfer& transfer, int32_t peer) {
  if (clock_ != nullptr) {
    const bool was_there = transfer.done();
    if (progress_ != nullptr) progress_->wait_for(peer);
    transfer.wait();
    if (progress_ != nullptr) progress_->go_on();
    if (!was_there) waited_s_ += clock_->wait_until_now();
    return;
  }
  const double begin_s = steady_seconds();
  if (progress_ != nullptr) progress_->wait_for(peer);
  transfer.wait();
  if (progress_ != nullptr) progress_->go_on();
  waited_s_ += steady_seconds() - begin_s;
}

void RankMessages::finish() {
  for (auto& [channel, messages] : leaving_) {
    for (Leaving& message : messages) wait_until_left(message, channel.first);
  }
  leaving_.clear();
}

}  // namespace cotune
