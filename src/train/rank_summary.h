/// What one rank of a run did, as its summary says it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "adapter/parameter.h"
#include "engine/sent_messages.h"
#include "schedule/step_plan.h"

namespace cotune {

/// What one rank of a pipeline did in training rounds.
struct RankSummary {
  std::string host;           ///< of a rank that is a process; "" of a thread
  int64_t replica = 0, replicas = 1;        ///< of the model
  std::vector<LayerRange> layers;           ///< of its stages
  int64_t part = 0, parts = 1;              ///< of each of these layers, where ranks divide them
  double seconds = 0;         ///< of the rounds
  double waited_seconds = 0;  ///< for messages, in all-reduces, and at the end of a round for the others
  SentMessages sent;          ///< of the rounds: to other stages
  int64_t collectives = 0;    ///< of the rounds, among the ranks that divide its layers: all-reduces, reduce-scatters, all-gathers
  double exposed_seconds = 0; ///< of waited_seconds: for these collectives, with nothing to compute beside them
  int64_t exchanged_bytes = 0;  ///< of the rounds: gradients that it sent to other replicas
  double exchanging_seconds = 0; ///< of waited_seconds: for gradients of other replicas, with nothing to compute beside their exchange
  double gathering_seconds = 0; ///< of waited_seconds: for slices of frozen weights that other ranks have
  int64_t weight_bytes = 0;   ///< that frozen weights of a rank with memory of its own have taken at most, those gathered included
  int64_t whole_weight_bytes = 0;  ///< that they would take were none of them spread over other ranks
  /// At most. Of a rank with memory of its own: that its tensors have held. Of a thread: that it took in a round beside weights, adapters,
  /// gradients and optimizer, which are everybody's; 0 where that is not on the host.
  int64_t peak_bytes = 0;

  // Of the same rounds, predicted before they ran, with prices as they were refitted by then.
  double predicted_seconds = 0;
  double predicted_computing_seconds = 0;
  double predicted_exposed_seconds = 0;   ///< in all-reduces, for slices of frozen weights and for gradients of other replicas
  int64_t predicted_peak_bytes = 0;       ///< the bound from shapes of peak_bytes; 0 where these are 0

  /// What its time went into, in shares that add up to 1; all 0 where there was none.
  struct Shares {
    double busy = 0;
    double exposed = 0;  ///< communication within its stage and between replicas, with nothing to compute beside it
    double bubble = 0;   ///< waiting for other stages, and the end of the rounds
  };
  static Shares shares(double whole_s, double busy_s, double exposed_s) {
    if (whole_s <= 0) return {};
    return {busy_s / whole_s, exposed_s / whole_s, (whole_s - busy_s - exposed_s) / whole_s};
  }
  Shares measured() const { return shares(seconds, seconds - waited_seconds, exposed_seconds + gathering_seconds + exchanging_seconds); }
  Shares predicted() const { return shares(predicted_seconds, predicted_computing_seconds, predicted_exposed_seconds); }
};

}  // namespace cotune
