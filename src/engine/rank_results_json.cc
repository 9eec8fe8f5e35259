#include "engine/rank_results_json.h"

#include <ATen/ATen.h>

#include <map>
#include <string>
#include <utility>

#include "base/error.h"
#include "comm/host_buffer.h"
#include "engine/binary_json.h"

namespace cotune {
namespace {

using Json = nlohmann::json;

Json spans_to_json(std::span<const SimulatedSpan> spans) {
  Json json = Json::array();
  for (const SimulatedSpan& span : spans) json.push_back({span.action, span.start_s, span.end_s});
  return json;
}

std::vector<SimulatedSpan> spans_from_json(const Json& json) {
  std::vector<SimulatedSpan> spans;
  for (const Json& span : json) spans.push_back({span.at(0).get<size_t>(), span.at(1).get<double>(), span.at(2).get<double>()});
  return spans;
}

}  // namespace

Json results_to_json(std::span<const JobRound> rounds) {
  Json json = Json::array();
  for (const JobRound& round : rounds) {
    json.push_back({round.loss_sum, round.labelled_tokens, round.gradient_norm, round.stepped, round.failure,
                    binary_json(round.row_predicted.data(), round.row_predicted.size()),
                    binary_json(round.row_loss_sums.data(), round.row_loss_sums.size())});
  }
  return json;
}

void take_results(const Json& results, std::span<JobRound> rounds) {
  COTUNE_CHECK(results.size() == rounds.size(), "results of {} rounds for {}", results.size(), rounds.size());
  for (size_t i = 0; i < rounds.size(); ++i) {
    const Json& result = results[i];
    rounds[i].loss_sum = result.at(0).get<double>();
    rounds[i].labelled_tokens = result.at(1).get<int64_t>();
    rounds[i].gradient_norm = result.at(2).get<double>();
    rounds[i].stepped = result.at(3).get<bool>();
    rounds[i].failure = result.at(4).get<std::string>();
    rounds[i].row_predicted = values_of_binary<uint8_t>(result.at(5));
    rounds[i].row_loss_sums = values_of_binary<double>(result.at(6));
  }
}

Json made_to_json(const MadeSteps& made) {
  Json json = Json::array();
  for (const auto& [step, record] : made) {
    const at::Tensor values = record.cpu();
    const auto* value = values.const_data_ptr<double>();
    json.push_back({step.job, step.step, value[0], value[1]});
  }
  return json;
}

MadeSteps made_from_json(const Json& json, at::Device device) {
  MadeSteps made;
  for (const Json& each : json) {
    const at::Tensor record = host_buffer({2}, at::kDouble);  // memory may have run out
    record.mutable_data_ptr<double>()[0] = each.at(2).get<double>();
    record.mutable_data_ptr<double>()[1] = each.at(3).get<double>();
    made[{each.at(0).get<int32_t>(), each.at(1).get<int64_t>()}] = record.to(device);
  }
  return made;
}

Json time_to_json(const RankTime& time) {
  return {{"seconds", time.seconds},
          {"waited", time.waited_s},
          {"messages", time.sent.count},
          {"message_bytes", time.sent.bytes},
          {"collectives", time.collectives},
          {"group_bytes", time.group_bytes},
          {"exposed", time.exposed_s},
          {"exchanged_bytes", time.exchanged_bytes},
          {"peak_bytes", time.peak_bytes},
          {"round_bytes", time.round_bytes},
          {"gathering", time.gathering_s},
          {"exchanging", time.exchanging_s},
          {"weight_bytes", time.weight_bytes},
          {"whole_weight_bytes", time.whole_weight_bytes},
          {"spans", spans_to_json(time.spans)},
          {"sent_spans", spans_to_json(time.sent_spans)},
          {"exchange_spans", spans_to_json(time.exchange_spans)},
          {"operator_seconds", time.operator_seconds}};
}

RankTime time_from_json(const Json& json) {
  return {.seconds = json.at("seconds").get<double>(),
          .waited_s = json.at("waited").get<double>(),
          .sent = {json.at("messages").get<int64_t>(), json.at("message_bytes").get<int64_t>()},
          .collectives = json.at("collectives").get<int64_t>(),
          .group_bytes = json.at("group_bytes").get<int64_t>(),
          .exposed_s = json.at("exposed").get<double>(),
          .gathering_s = json.at("gathering").get<double>(),
          .exchanging_s = json.at("exchanging").get<double>(),
          .exchanged_bytes = json.at("exchanged_bytes").get<int64_t>(),
          .peak_bytes = json.at("peak_bytes").get<int64_t>(),
          .round_bytes = json.at("round_bytes").get<int64_t>(),
          .weight_bytes = json.at("weight_bytes").get<int64_t>(),
          .whole_weight_bytes = json.at("whole_weight_bytes").get<int64_t>(),
          .spans = spans_from_json(json.at("spans")),
          .sent_spans = spans_from_json(json.at("sent_spans")),
          .exchange_spans = spans_from_json(json.at("exchange_spans")),
          .operator_seconds = json.at("operator_seconds").get<std::map<std::string, double>>()};
}

}  // namespace cotune
