/// What operators took on a device, and messages and collectives between its ranks: profile.json. Written by `cotune profile`, read
/// wherever time is predicted.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "schedule/profiled_collective.h"
#include "schedule/step_operators.h"

namespace cotune {

/// What a measured time holds for, and for nothing else.
struct ProfileFingerprint {
  std::string device;     ///< the processor's or the GPU's name
  std::string kernels;    ///< instruction set of our kernels (amx_bf16, none, …); the device type where ATen computes
  std::string libraries;  ///< versions of torch and cotune
  std::string model;      ///< shape of a layer and of the head (model_shape_text)
  std::string dtype;      ///< bfloat16, float32, float64
  int64_t threads = 1;    ///< of each rank
  int64_t ranks = 1;      ///< that computed on this machine at the same time: cores slow each other down
  int64_t tensor_parallel = 1;
  bool operator==(const ProfileFingerprint&) const = default;
};

/// Sizes of a layer, of the embedding and of the head; how many layers there are does not matter.
std::string model_shape_text(const ModelConfig& config);

/// One line per field that differs: "threads: the profile has 2, here it is 4".
std::vector<std::string> differences(const ProfileFingerprint& profile, const ProfileFingerprint& here);

/// Under which an operator's times stand: its kind's name; alone_suffix behind it where it has no input gradient.
inline constexpr const char* alone_suffix = "_alone";
std::string profile_key(const Operator& op);

/// The key of what a round takes beside its operators: planning, building microbatches, optimizer steps, reading results.
inline constexpr const char* round_key = "round";

/// A job of a canonical shape: one adapter in every layer.
struct ProfiledJob {
  AdapterMethod method = AdapterMethod::lora;
  int64_t width = 0;     ///< LoRA rank, bottleneck size
  double density = 0;    ///< diff pruning
  double dropout = 0;    ///< LoRA
  std::vector<Projection> projections;
  std::vector<int64_t> row_lengths;  ///< tokens of each row of the batch
  bool operator==(const ProfiledJob&) const = default;
};

/// A canonical shape: one round of these jobs.
struct ProfiledShape {
  std::vector<ProfiledJob> jobs;
  double labelled_share = 1;    ///< of each row the last ⌈share·(tokens − 1)⌉ tokens have a label
  int64_t token_budget = 1024;  ///< a longer row becomes a chain
  bool operator==(const ProfiledShape&) const = default;
};

/// Tokens of a row that have a label: those at and after this position are targets.
int64_t first_target(int64_t row_length, double labelled_share);

/// The shape as a step of a model; jobs are numbered in their order.
PlannedStep planned_step(const ModelConfig& config, const ProfiledShape& shape);

/// Of the largest microbatch of these shapes.
int64_t most_tokens(const ModelConfig& config, const std::vector<ProfiledShape>& shapes);

struct ProfiledTime {
  int64_t shape = 0;       ///< index into Profile::shapes
  int64_t calls = 0;       ///< of the operator in one round
  double median = 0;       ///< seconds of one call: median over the rounds of the mean over the round's calls
  double spread = 0;       ///< upper quartile minus lower quartile, over the median
  int64_t count = 0;       ///< rounds measured
  bool operator==(const ProfiledTime&) const = default;
};

struct Profile {
  ProfileFingerprint fingerprint;
  int64_t layer_count = 0;          ///< of the model that was measured
  int64_t process_bytes = 0;        ///< resident memory beside counted tensors: the program, its libraries, their heaps
  std::vector<ProfiledShape> shapes;
  /// By profile_key, round_key among them.
  std::map<std::string, std::vector<ProfiledTime>> operators;
  std::vector<ProfiledCollective> collectives;  ///< empty: of one rank, or measured before there were any in profiles
  bool operator==(const Profile&) const = default;
};

std::string to_json(const Profile& profile);

/// Throws UserError naming file and field for what is not a profile: broken JSON, missing fields, numbers out of range, a
/// version that this program does not read. `collectives` alone may be missing: older profiles have none.
Profile parse_profile(const std::string& json, const std::string& file_name);
Profile read_profile(const std::filesystem::path& file);

/// Throws UserError that says what differs.
void check_fingerprint(const Profile& profile, const ProfileFingerprint& here, const std::string& file_name);

}  // namespace cotune
