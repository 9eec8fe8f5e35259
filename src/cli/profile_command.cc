#include <fmt/format.h>
#include <omp.h>

#include <ATen/Parallel.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <exception>
#include <functional>
#include <thread>

#include "base/counted.h"
#include "base/diagnostics.h"
#include "base/error.h"
#include "cli/commands.h"
#include "cli/inputs/compute_dtype.h"
#include "cli/inputs/model_text.h"
#include "cli/inputs/profile_fingerprint.h"
#include "cli/inputs/usable_threads.h"
#include "cli/terminal/number_checks.h"
#include "console/output_file.h"
#include "engine/collective_profiler.h"
#include "engine/operator_profiler.h"
#include "jobs/hub_cache.h"
#include "ops/backend.h"
#include "ops/memory.h"
#include "ops/threads.h"
#include "plan/cost/measured_times.h"
#include "plan/cost/roofline_profile.h"
#include "plan/shapes/cluster_file.h"
#include "schedule/profile_grid.h"
#include "train/trainer.h"

namespace cotune {
namespace {

struct ProfileArguments {
  std::string model, output = "profile.json", dtype = "auto", device = "auto", cluster;
  double seconds = 75;
  int64_t threads = 0, ranks = 1, layers = 0;
  bool portable_kernels = false;
};

constexpr int fewest_sweeps = 3;
constexpr double collectives_share = 0.1;  // of --seconds, and beside them

/// A checkpoint; or a shape alone, whose weights are then random: times do not depend on them.
ModelSpec model_spec(const ProfileArguments& arguments) {
  const std::filesystem::path named = model_path(arguments.model), path = std::filesystem::exists(named) ? std::filesystem::absolute(named) : named;
  const bool has_weights = std::filesystem::is_directory(path) || path.extension() == ".gguf";
  ModelSpec spec;
  (has_weights ? spec.path : spec.config) = path.string();
  spec.dtype = arguments.dtype;
  return spec;
}

/// Resident memory of the program itself.
int64_t bytes_beside_tensors() { return resident_bytes() - memory_usage().held_bytes; }

/// Held to the profile's own shapes: how well sums of terms describe the device.
void print_fits(const Profile& profile, const MeasuredTimes& times) {
  fmt::print("{:<28}  {:>10}  {:>7}  {:>11}  {:>6}\n", "operator", "256 tokens", "spread", "fitted to", "worst");
  for (const auto& [key, fit] : times.fits()) {
    double median = 0, spread = 0;
    for (const ProfiledTime& time : profile.operators.at(key)) {
      // The shape of one job with one row of 256 tokens stands for all.
      if (profile.shapes[static_cast<size_t>(time.shape)].jobs.front().row_lengths == std::vector<int64_t>{256} && median == 0) {
        median = time.median;
      }
      spread += time.spread / static_cast<double>(profile.operators.at(key).size());
    }
    fmt::print("{:<28}  {:>7.1f} us  {:>6.1f}%  {:>10.1f}%  {:>5.0f}%\n", key, median * 1e6, 100 * spread,
               100 * fit.mean_error, 100 * fit.worst_error);
  }
}

/// Of messages and collectives; nothing where there is one rank.
void print_fits(const MeasuredCollectives& collectives) {
  if (collectives.fits().empty()) return;
  fmt::print("{:<28}  {:>10}  {:>10}  {:>7}  {:>11}  {:>6}\n", "between ranks", "latency", "bandwidth", "spread", "fitted to", "worst");
  for (const auto& [key, fit] : collectives.fits()) {
    const auto& [kind, ranks] = key;
    const double per_byte = fit.time.seconds_per_byte;
    fmt::print("{:<28}  {:>7.1f} us  {:>10}  {:>6.1f}%  {:>10.1f}%  {:>5.0f}%\n",
               fmt::format("{}, {}", collective_names[static_cast<size_t>(kind)], counted(ranks, "rank")), fit.time.latency_s * 1e6,
               per_byte > 0 ? fmt::format("{:.2f} GB/s", 1e-9 / per_byte) : "any", 100 * fit.mean_spread, 100 * fit.mean_error,
               100 * fit.worst_error);
  }
}

/// An option that would change nothing on a GPU.
void refuse_without_effect(const ProfileArguments& arguments, const ComputeDevice& device) {
  if (device.is_cpu()) return;
  if (arguments.ranks > 1) throw_user_error("--ranks: {} computes for one rank at a time", device.name);
  if (arguments.threads > 0) throw_user_error("--threads: has no effect on {}, where no threads of the processor compute", device.name);
}

int threads_of_rank(int64_t ranks) { return static_cast<int>(std::max<int64_t>(1, omp_get_max_threads() / ranks)); }

/// Every rank's work in a thread of its own, with its part of the threads. Returns when all have ended.
void on_ranks(int64_t ranks, const std::function<void(int64_t rank)>& work) {
  const int threads = threads_of_rank(ranks);
  std::vector<std::exception_ptr> errors(static_cast<size_t>(ranks));
  {
    std::vector<std::jthread> running;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      running.emplace_back([&, rank] {
        at::get_num_threads();  // which sets the calling thread's count to that of the process, the first time
        omp_set_num_threads(threads);
        try {
          work(rank);
        } catch (...) {
          errors[static_cast<size_t>(rank)] = std::current_exception();
        }
      });
    }
  }
  for (const std::exception_ptr& error : errors) {
    if (error != nullptr) std::rethrow_exception(error);
  }
}

/// Profilers of as many ranks, which measure at the same time, each with its part of the threads.
class RanksProfiler {
 public:
  RanksProfiler(const std::shared_ptr<const Backbone>& backbone, const std::vector<ProfiledShape>& shapes, int64_t ranks) {
    for (int64_t rank = 0; rank < ranks; ++rank) profilers_.push_back(std::make_unique<OperatorProfiler>(backbone, shapes));
  }

  /// All go through the shapes in the same order.
  void sweep() {
    if (profilers_.size() == 1) return profilers_.front()->sweep();
    on_ranks(std::ssize(profilers_), [&](int64_t rank) { profilers_[static_cast<size_t>(rank)]->sweep(); });
  }

  void forget() {
    for (const auto& profiler : profilers_) profiler->forget();
  }

  /// Of all ranks together. Once.
  std::map<std::string, std::vector<ProfiledTime>> times() {
    for (size_t rank = 1; rank < profilers_.size(); ++rank) profilers_.front()->absorb(*profilers_[rank]);
    return profilers_.front()->times();
  }

 private:
  std::vector<std::unique_ptr<OperatorProfiler>> profilers_;
};

struct SweepsDone {
  int count = 0;
  double seconds = 0;
};

/// Three at least, and more as long as another one fits by the mean of those before. after_each may be empty.
SweepsDone sweep_for(double seconds, const std::function<void()>& sweep, const std::function<void(const SweepsDone&)>& after_each = {}) {
  const auto begin = std::chrono::steady_clock::now();
  SweepsDone done;
  while (done.count < fewest_sweeps || done.seconds * (done.count + 1) / done.count < seconds) {
    sweep();
    ++done.count;
    done.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (after_each) after_each(done);
  }
  return done;
}

/// Of all group sizes, each for its part of so many seconds and three sweeps at least.
std::vector<ProfiledCollective> profile_collectives(int64_t ranks, const std::vector<int64_t>& sizes, double seconds) {
  std::vector<ProfiledCollective> collectives;
  const std::vector<int64_t> groups = measured_group_sizes(ranks);
  for (const int64_t group : groups) {
    CollectiveProfiler profiler(ranks, group, sizes);
    const auto sweep = [&] { on_ranks(ranks, [&](int64_t rank) { profiler.sweep(rank); }); };
    sweep();
    profiler.forget();
    sweep_for(seconds / static_cast<double>(groups.size()), sweep);
    std::ranges::copy(profiler.collectives(), std::back_inserter(collectives));
  }
  return collectives;
}

/// The one kind of devices of the cluster file.
DeviceSpec device_of_cluster(const std::string& file) {
  const ClusterSpec cluster = read_cluster_file(file);
  for (const NodeGroup& group : cluster.nodes) {
    if (group.device != cluster.nodes.front().device) {
      throw_user_error("{}: nodes of {} and of {}: a profile is of one device", file, cluster.nodes.front().name, group.name);
    }
  }
  return cluster.nodes.front().device;
}

/// No device: its data sheet.
void profile_by_roofline(const ProfileArguments& arguments) {
  const DeviceSpec device = device_of_cluster(arguments.cluster);
  ModelConfig model = find_model_config(arguments.model);
  if (arguments.layers > 0) model.layer_count = std::min(model.layer_count, arguments.layers);
  std::string dtype = arguments.dtype;
  if (dtype == "auto") dtype = device.flops.contains("bfloat16") ? "bfloat16" : "float32";
  const Profile result = roofline_profile(model, device, dtype);
  write_output("--output", arguments.output, profile_output, to_json(result));
  print_fits(result, MeasuredTimes(result, model, arguments.output));
  fmt::print("{}: {} on {}, by the roofline of {}; nothing was measured\n", arguments.output, dtype, result.fingerprint.device,
             arguments.cluster);
}

void profile(const ProfileArguments& arguments) {
  install_counting_allocator();
  const ModelSpec spec = model_spec(arguments);
  const ComputeDevice device = choose_device(arguments.device, "--device");
  if (!device.notice.empty()) fmt::print(stderr, "{}\n", device.notice);
  refuse_without_effect(arguments, device);
  if (arguments.threads > 0) set_thread_count(static_cast<int>(usable_threads(arguments.threads, "--threads")));
  std::unique_ptr<PortableKernels> portable;
  if (arguments.portable_kernels) portable = std::make_unique<PortableKernels>();

  Diagnostics mistakes;
  ModelFiles files = find_model(spec, mistakes).files;
  mistakes.throw_if_any();
  const ModelText text(files);  // a run has it in memory, too
  if (arguments.layers > 0) files.config.layer_count = std::min(files.config.layer_count, arguments.layers);
  const at::ScalarType compute = compute_dtype(spec, device);
  std::vector<ProfiledShape> shapes = canonical_shapes(files.config.context_length);
  int64_t longest = 0;
  for (const ProfiledShape& shape : shapes) {
    for (const ProfiledJob& job : shape.jobs) longest = std::max(longest, *std::max_element(job.row_lengths.begin(), job.row_lengths.end()));
  }
  const auto backbone = Backbone::load(files, compute, device.device, {.positions = longest});
  const int64_t loaded_bytes = bytes_beside_tensors();

  const RanksHere here{.ranks = arguments.ranks, .threads = threads_of_rank(arguments.ranks)};
  Profile result{.fingerprint = fingerprint_here(files.config, compute, device, here),
                 .layer_count = files.config.layer_count,
                 .shapes = shapes};
  RanksProfiler profiler(backbone, shapes, arguments.ranks);
  const int64_t idle_bytes = bytes_beside_tensors();  // with the heap of many more jobs than a run has
  profiler.sweep();
  profiler.forget();
  result.process_bytes = loaded_bytes + std::max<int64_t>(0, bytes_beside_tensors() - idle_bytes);
  const SweepsDone sweeps = sweep_for(arguments.seconds, [&] { profiler.sweep(); }, [&](const SweepsDone& done) {
    fmt::print(stderr, "sweep {} over {}, {:.0f} s\n", done.count, counted(std::ssize(result.shapes), "shape"), done.seconds);
  });
  result.operators = profiler.times();
  const int64_t largest = most_tokens(files.config, shapes) * files.config.hidden_size * int64_t{4};
  result.collectives = profile_collectives(arguments.ranks, measured_sizes(largest), collectives_share * arguments.seconds);
  write_output("--output", arguments.output, profile_output, to_json(result));
  const MeasuredTimes times(result, files.config, arguments.output);
  print_fits(result, times);
  print_fits(times.collectives());
  const std::string ranks = arguments.ranks > 1 ? fmt::format("{} ranks of ", arguments.ranks) : "";
  fmt::print("{}: {} on {}, {}, {}{}, {} in {:.0f} s\n", arguments.output, result.fingerprint.dtype, result.fingerprint.device,
             result.fingerprint.kernels, ranks, counted(result.fingerprint.threads, "thread"), counted(sweeps.count, "sweep"), sweeps.seconds);
}

}  // namespace

void add_profile_command(CLI::App& app) {
  auto arguments = std::make_shared<ProfileArguments>();
  CLI::App* command =
      app.add_subcommand("profile", "Measure the operators of a model on this device, or take them from a cluster file, for predictions of time");
  command
      ->add_option("model", arguments->model,
                   "A model folder, a .gguf file or the name of either in the Hugging Face cache; or a preset or config.json, with random weights")
      ->required();
  command->add_option("--output", arguments->output, "The file that is written (profile.json)");
  command->add_option("--dtype", arguments->dtype, "Compute dtype: auto, bfloat16 or float32")
      ->check(CLI::IsMember({"auto", "bfloat16", "float32"}));
  CLI::Option* device = command->add_option("--device", arguments->device, "auto, cpu or cuda")->check(CLI::IsMember({"auto", "cpu", "cuda"}));
  CLI::Option* threads = command->add_option("--threads", arguments->threads, "0: one per core")->check(CLI::Range(int64_t{0}, int64_t{4096}));
  CLI::Option* ranks = command
                           ->add_option("--ranks", arguments->ranks,
                                        "Measure so many ranks at the same time, each with its part of the threads, and messages and collectives "
                                        "between them: for train --ranks and for as many processes on a machine")
                           ->check(CLI::Range(int64_t{1}, int64_t{64}));
  CLI::Option* seconds =
      command
          ->add_option("--seconds", arguments->seconds,
                       "Measure for so long, and for three sweeps over the shapes at least (75); what is between ranks for a tenth of it more")
          ->check(number_in(0.0, 1e6));
  command->add_option("--layers", arguments->layers, "Of so many layers of the model; 0: all of them")
      ->check(CLI::Range(int64_t{0}, int64_t{100000}));
  CLI::Option* portable = command->add_flag("--portable-kernels", arguments->portable_kernels, "Of ATen's operators in place of our kernels");
  CLI::Option* cluster = command->add_option("--cluster", arguments->cluster,
                                             "Cluster file: the roofline of its devices, in place of measuring one; for `cotune plan --profile`");
  for (CLI::Option* measured : {device, threads, ranks, seconds, portable}) cluster->excludes(measured);
  command->callback([arguments] {
    check_output("--output", arguments->output, profile_output);
    arguments->cluster.empty() ? profile(*arguments) : profile_by_roofline(*arguments);
  });
}

}  // namespace cotune
