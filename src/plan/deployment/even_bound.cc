#include "plan/deployment/even_bound.h"

#include <algorithm>
#include <cmath>

namespace cotune {

EvenBound::EvenBound(std::span<const BucketCosts> costs, std::span<const int64_t> sequences, int64_t devices)
    : costs_(costs), sequences_(sequences.begin(), sequences.end()), devices_(devices), prices_(sequences.size(), 0),
      yield_(sequences.size(), 0) {
  // What a bucket costs at least: a start that any scale of the prices is as good as.
  double total = 0;
  for (size_t j = 0; j < sequences_.size(); ++j) {
    double least = 0;
    for (const BucketCosts& each : costs_) {
      if (j >= each.reach()) continue;
      const double cost = static_cast<double>(each.devices) * each.seconds[j];
      least = least > 0 ? std::min(least, cost) : cost;
    }
    prices_[j] = least * static_cast<double>(sequences_[j]);
    total += prices_[j];
  }
  for (double& each : prices_) each /= total;
  for (const BucketCosts& each : costs_) values_.emplace_back(static_cast<size_t>(devices_ / each.devices) + 1, 0);
  best_.assign(costs_.size(), std::vector<double>(static_cast<size_t>(devices_) + 1, 0));
  taken_.assign(costs_.size(), std::vector<int32_t>(static_cast<size_t>(devices_) + 1, 0));
}

void EvenBound::price(size_t configuration, int64_t replicas, double seconds) {
  const BucketCosts& costs = costs_[configuration];
  pieces_.clear();
  for (size_t j = 0; j < std::min(costs.reach(), sequences_.size()); ++j) {
    if (sequences_[j] == 0 || prices_[j] <= 0 || costs.seconds[j] + costs.fill > seconds) continue;
    const double each = prices_[j] / static_cast<double>(sequences_[j]);
    const int64_t whole = sequences_[j] / replicas, rest = sequences_[j] % replicas;
    const auto add = [&](int64_t times, int64_t yield) {
      if (times == 0 || yield == 0) return;
      const auto got = static_cast<double>(yield);
      pieces_.push_back({j, got * each / (static_cast<double>(times) * costs.seconds[j]), static_cast<double>(times) * costs.seconds[j], got, times});
    };
    add(whole, whole * replicas);
    add(1, rest);
  }
  std::sort(pieces_.begin(), pieces_.end(), [](const Piece& a, const Piece& b) { return a.rate > b.rate; });
}

/// `share` of what is taken goes to yield_.
double EvenBound::broken_worth(double seconds, double share) {
  double left = seconds, value = 0;
  for (const Piece& piece : pieces_) {
    const double spent = std::min(left, piece.seconds);
    if (spent <= 0) break;
    value += spent * piece.rate;
    left -= spent;
    if (share > 0) yield_[piece.bucket] += share * piece.yield * (spent / piece.seconds) / static_cast<double>(sequences_[piece.bucket]);
  }
  return value;
}

double EvenBound::whole_worth(double seconds, double share) {
  constexpr int64_t cells = 256, least_size = 16;
  const double cell = seconds / static_cast<double>(cells);
  constexpr size_t width = cells + 1;
  struct Item {
    const Piece* piece;
    int64_t count, size;
  };
  std::vector<Item> items;
  std::vector<const Piece*> small;  // by falling rate, as pieces_
  for (const Piece& piece : pieces_) {
    const double one = piece.seconds / static_cast<double>(piece.times);
    const auto size = static_cast<int64_t>(one / cell);
    if (size < least_size) {
      small.push_back(&piece);
      continue;
    }
    int64_t left = std::min(piece.times, cells / size);
    for (int64_t part = 1; left > 0; part *= 2) {
      const int64_t count = std::min(part, left);
      items.push_back({&piece, count, static_cast<int64_t>(static_cast<double>(count) * one / cell)});
      left -= count;
    }
  }
  table_.assign(width, 0);
  chosen_.assign(items.size() * width, 0);
  for (size_t k = 0; k < items.size(); ++k) {
    const auto size = static_cast<size_t>(items[k].size);
    const double value =
        static_cast<double>(items[k].count) / static_cast<double>(items[k].piece->times) * items[k].piece->seconds * items[k].piece->rate;
    uint8_t* chosen = chosen_.data() + k * width;
    for (size_t t = width; t-- > size;) {
      const double with = table_[t - size] + value;
      if (with > table_[t]) table_[t] = with, chosen[t] = 1;
    }
  }
  // The small ones, broken, in the time that the large ones leave: longest first, so that each piece is taken up once.
  double best = 0, filled = 0, spent = 0;
  size_t best_large = 0, next = 0;
  double used = 0;  // of small[next]
  for (size_t t = width; t-- > 0;) {
    const double room = static_cast<double>(cells - static_cast<int64_t>(t)) * cell;
    while (next < small.size() && spent < room) {
      const double take = std::min(room - spent, small[next]->seconds - used);
      filled += take * small[next]->rate;
      spent += take;
      used += take;
      if (used < small[next]->seconds * (1 - 1e-12)) break;
      ++next;
      used = 0;
    }
    if (table_[t] + filled > best) best = table_[t] + filled, best_large = t;
  }
  if (share > 0) {
    size_t t = best_large;
    for (size_t k = items.size(); k-- > 0;) {
      if (chosen_[k * width + t] == 0) continue;
      const Piece& piece = *items[k].piece;
      const double part = static_cast<double>(items[k].count) / static_cast<double>(piece.times);
      yield_[piece.bucket] += share * part * piece.yield / static_cast<double>(sequences_[piece.bucket]);
      t -= static_cast<size_t>(items[k].size);
    }
    double room = static_cast<double>(cells - static_cast<int64_t>(best_large)) * cell;
    for (const Piece* piece : small) {
      const double take = std::min(room, piece->seconds);
      if (take <= 0) break;
      yield_[piece->bucket] += share * piece->yield * (take / piece->seconds) / static_cast<double>(sequences_[piece->bucket]);
      room -= take;
    }
  }
  return best;
}

/// The dynamic program; plan_ and yield_ are what reaches it.
double EvenBound::most_worth(double seconds, bool is_whole) {
  const auto worth = [&](size_t i, int64_t p, double share) {
    const double time = seconds - costs_[i].fill;
    if (time <= 0) return 0.0;
    price(i, p, seconds);
    return is_whole ? whole_worth(time, share) : broken_worth(time, share);
  };
  for (size_t i = 0; i < costs_.size(); ++i) {
    const int64_t size = costs_[i].devices;
    for (int64_t p = 1; p * size <= devices_; ++p) values_[i][static_cast<size_t>(p)] = worth(i, p, 0);
    for (int64_t left = 0; left <= devices_; ++left) {
      double most = -1;
      for (int64_t p = 0; p * size <= left; ++p) {
        const double before = i > 0 ? best_[i - 1][static_cast<size_t>(left - p * size)] : 0;
        const double with = before + values_[i][static_cast<size_t>(p)];
        if (with > most) most = with, taken_[i][static_cast<size_t>(left)] = static_cast<int32_t>(p);
      }
      best_[i][static_cast<size_t>(left)] = most;
    }
  }
  plan_.assign(costs_.size(), 0);
  std::fill(yield_.begin(), yield_.end(), 0);
  int64_t left = devices_;
  for (size_t i = costs_.size(); i-- > 0;) {
    plan_[i] = taken_[i][static_cast<size_t>(left)];
    left -= plan_[i] * costs_[i].devices;
    if (plan_[i] > 0) worth(i, plan_[i], 1);
  }
  return best_.back().back();
}

bool EvenBound::improve_prices(double seconds, int rounds, bool is_whole) {
  double step = is_whole ? 0.1 : 0.3;
  double least = 1e300;
  int since = 0;
  for (int round = 0; round < rounds; ++round) {
    const double most = most_worth(seconds, is_whole);
    double demand = 0;
    for (const double each : prices_) demand += each;
    if (most < demand * (1 - 1e-9)) return true;
    if (most < least * (1 - 1e-4)) {
      least = most, since = 0;
    } else if (++since == (is_whole ? 4 : 8)) {
      step *= 0.6, since = 0;
    }
    // What is covered more than once gets cheaper, what is not gets dearer.
    double sum = 0;
    for (size_t j = 0; j < prices_.size(); ++j) {
      prices_[j] *= std::exp(step * std::clamp(1 - yield_[j], -1.0, 1.0));
      sum += prices_[j];
    }
    for (double& each : prices_) each /= sum;
  }
  return false;
}

bool EvenBound::rules_out(double seconds, int broken_rounds, int whole_rounds) {
  return improve_prices(seconds, broken_rounds, false) || improve_prices(seconds, whole_rounds, true);
}

}  // namespace cotune
