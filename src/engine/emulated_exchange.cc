#include "engine/emulated_exchange.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <span>

#include "schedule/pipeline/pipeline_work.h"

namespace cotune {

double EmulatedExchange::exchange(const ExchangeMessages& messages, int64_t value_bytes, double posted_s) {
  clock_.wait_until(posted_s);
  pass_on(messages.given, value_bytes, Channel::activation);
  pass_on(messages.returned, value_bytes, Channel::error);
  exchange_records(messages);
  return clock_.free_s();
}

void EmulatedExchange::send(int32_t to, int64_t bytes, Channel channel) {
  const Link& link = clock_.device().exchange_link;
  link_free_s_ = std::max(link_free_s_, clock_.free_s()) + static_cast<double>(bytes) / link.bytes_per_s;
  communicator_.send(at::full({1}, link_free_s_ + link.latency_s, at::kDouble), to, channel);
}

void EmulatedExchange::receive(int32_t from, Channel channel) {
  const at::Tensor there_s = at::empty({1}, at::kDouble);
  const std::shared_ptr<Transfer> message = communicator_.receive(there_s, from, channel);
  const bool was_there = message->done();
  message->wait();
  if (!was_there) clock_.wait_until_now();
  clock_.wait_until(there_s.item<double>());
}

void EmulatedExchange::pass_on(const ExchangeMessages::Values& values, int64_t value_bytes, Channel channel) {
  const int32_t own = communicator_.rank();
  for (const auto& [ranks, count] : values) {
    if (ranks.first != own) continue;
    send(ranks.second, count * value_bytes, channel);
    sent_bytes_ += count * value_bytes;
  }
  for (const auto& [ranks, count] : values) {
    if (ranks.second == own) receive(ranks.first, channel);
  }
}

void EmulatedExchange::exchange_records(const ExchangeMessages& messages) {
  const int32_t first = messages.ranks.front();
  const auto others = std::span(messages.ranks).subspan(1);
  if (communicator_.rank() != first) {
    send(first, norm_message_bytes, Channel::activation);
    return receive(first, Channel::error);
  }
  for (const int32_t rank : others) receive(rank, Channel::activation);
  for (const int32_t rank : others) send(rank, norm_message_bytes, Channel::error);
}

}  // namespace cotune
