#include "cli/run/rank_processes.h"

#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <exception>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/abrupt_exit.h"
#include "base/counted.h"
#include "base/diagnostics.h"
#include "base/error.h"
#include "base/process_cores.h"
#include "base/visible_text.h"
#include "cli/inputs/model_text.h"
#include "cli/run/hung_ranks.h"
#include "cli/run/memory_check.h"
#include "cli/terminal/stop_signals.h"
#include "comm/gpu_messages.h"
#include "comm/link_speed.h"
#include "console/command_line.h"
#include "engine/rank_commands.h"
#include "engine/rank_follower.h"
#include "engine/rank_watch.h"
#include "engine/rank_work_json.h"
#include "jobs/jobs_file.h"
#include "ops/backend.h"
#include "ops/memory.h"
#include "ops/threads.h"
#include "schedule/pipeline/rank_place.h"
#include "schedule/pipeline/weight_copies.h"
#include "schedule/profile.h"
#include "train/process_memory.h"

namespace cotune {
namespace {

using Json = nlohmann::json;

constexpr const char* setup_file = "the first rank's jobs file";

std::string name_of_rank(int32_t rank, const std::string& host) { return fmt::format("rank {} on {}", rank, host); }

at::ScalarType dtype_of(const std::string& name) {
  for (const at::ScalarType type : {at::kBFloat16, at::kFloat, at::kDouble}) {
    if (name == c10::toString(type)) return type;
  }
  throw_user_error("{}: a compute dtype `{}` is not known here: is this the same version of cotune?", setup_file, name);
}

ModelFiles open_model_here(const ModelSpec& spec) {
  Diagnostics mistakes;
  ModelParts parts = find_model(spec, mistakes);
  mistakes.throw_if_any();
  return std::move(parts.files);
}

std::string shape_of(const ModelConfig& config) {
  return fmt::format("{}, {}", counted(config.layer_count, "layer"), model_shape_text(config));
}

/// A rank other than the first, from its setup on. When it is made the model is open and nothing of it loaded.
class Follower {
 public:
  Follower(const LaunchedProcess& process, const Json& setup)
      : process_(process),
        jobs_file_(parse_configuration(setup.at("jobs_file").get<std::string>(), setup_file, Purpose::train)),
        layouts_(layouts_from_json(setup.at("layouts"))),
        compute_(dtype_of(setup.at("compute_dtype").get<std::string>())),
        device_(choose_device(setup.at("on_cpu").get<bool>() ? "cpu" : "cuda", "run.device", {}, process.local_rank)),
        limit_(0, device_) {
    set_thread_count(threads_of_process(jobs_file_.run, own_of(setup, "on_these_cores").get<int32_t>()));
    if (jobs_file_.run.portable_kernels) portable_ = std::make_unique<PortableKernels>();
    files_ = open_model_here(jobs_file_.model);
  }

  const ModelFiles& files() const { return files_; }

  /// Throws UserError where the model is another one than the first rank's.
  void compare(const Json& first) const {
    if (!own_of(first, "compares").get<bool>()) return;
    const auto host = first.at("host").get<std::string>(), shape = first.at("shape").get<std::string>();
    const std::string path = files_.path.string();
    if (shape_of(files_.config) != shape) {
      throw_user_error("{}: is another model than that of rank 0 on {}: it has {}; that one has {}", path, host, shape_of(files_.config), shape);
    }
    const std::string fingerprint = model_fingerprint(files_);
    files_.weights->drop_pages();
    if (fingerprint == first.at("fingerprint").get<std::string>()) return;
    throw_user_error("{}: is another model than that of rank 0 on {}: it has the same shape, and other weights or settings (fingerprint {}; that "
                     "one has {})",
                     path, host, fingerprint, first.at("fingerprint").get<std::string>());
  }

  void load(const Json& setup) {
    limit_ = TensorLimit(memory_limit(jobs_file_.run, device_, own_of(setup, "on_this_host").get<int32_t>()), device_);
    tensor_limit_ = limit_.apply();
    backbone_ = Backbone::load(files_, compute_, device_.device, backbone_use_of(layouts_, process_.rank, setup.at("positions").get<int64_t>()));
  }

  int64_t weight_bytes() const { return std::max(backbone_->weight_bytes(), memory_usage().held_bytes); }

  int64_t tensor_limit() const { return tensor_limit_; }

  std::string weight_forms() const { return backbone_->weight_forms(); }

  const std::vector<PipelineLayout>& layouts() const { return layouts_; }

  const ComputeDevice& device() const { return device_; }

  WorkEnd serve(RankLinks links) {
    RankFollower follower(backbone_, layouts_, std::move(links));
    follower.before_work = [this] { limit_.apply(); };
    follower.change_weights = [this](const BackboneUse& use) { backbone_->use_for(files_, use); };
    return follower.serve();
  }

 private:
  /// What a message has for this rank, where it has something for each.
  const Json& own_of(const Json& message, const char* of_ranks) const { return message.at(of_ranks).at(static_cast<size_t>(process_.rank)); }

  const LaunchedProcess process_;
  JobsFile jobs_file_;
  std::vector<PipelineLayout> layouts_;
  at::ScalarType compute_;
  ComputeDevice device_;
  TensorLimit limit_;
  int64_t tensor_limit_ = 0;
  std::unique_ptr<PortableKernels> portable_;
  ModelFiles files_;
  std::shared_ptr<Backbone> backbone_;
};

void watch(RankLinks& links, const LaunchedProcess& process, std::vector<std::string> hosts, double hang_timeout_s,
           SupervisedRun* supervised) {
  tell_of_broken_links(name_of_rank(process.rank, hosts[static_cast<size_t>(process.rank)]));
  links.progress = std::make_shared<RankProgress>();
  RankWatch::Settings settings{.rank = process.rank, .hosts = std::move(hosts), .hang_timeout_s = hang_timeout_s};
  if (supervised != nullptr) {
    settings.at_look = [supervised] { supervised->lives(); };
    supervised->is_watched(hang_timeout_s);
  }
  const auto watch = std::make_shared<RankWatch>(std::move(settings), notice_board(process), links.progress, end_soon);
  links.control->watch_links([watch](int32_t peer) { watch->link_closed(peer); });
  links.at_loss = [watch] { watch->wait_for_end(std::chrono::milliseconds(1500)); };
  links.before_end = [watch, supervised] {
    watch->stand_down();
    if (supervised != nullptr) supervised->is_watched(0);
  };
  links.end_within = std::chrono::milliseconds(std::llround(1e3 * hang_timeout_s));
  links.at_late_end = [hang_timeout_s] {
    write_to_standard_error(fmt::format("the run has ended, and is left: of another rank nothing was heard for {:.0f} s\n", hang_timeout_s));
  };
}

Link slower(const Link& a, const Link& b) {
  return {std::max(a.latency_s, b.latency_s), std::min(a.bytes_per_s, b.bytes_per_s)};
}

/// With the ranks that it exchanges messages with, then with its neighbours among those that divide its layers, then with those of
/// equal place in the replicas before and after its own: the slowest.
/// communicator: of all ranks. device: where what travels in rounds is.
Link measure_links(Communicator& communicator, std::span<const PipelineLayout> layouts, at::Device device) {
  Link slowest;
  const int32_t rank = communicator.rank();
  const auto [replica, own] = place_of_rank(layouts, rank);
  const PipelineLayout& layout = layouts[replica];
  const int32_t first = rank - own, parts = layout.tensor_parallel();
  const auto measure = [&](int32_t peer) {
    const LinkSpeed speed = measure_link(communicator, peer, peer > rank, device);
    slowest = slower(slowest, {speed.latency_s, speed.bytes_per_s});
  };
  for (const int32_t peer : {own - parts, own + parts}) {
    if (peer >= 0 && peer < layout.worker_count()) measure(first + peer);
  }
  for (const int32_t peer : {own - 1, own + 1}) {
    if (peer >= 0 && peer < layout.worker_count() && layout.place_of(peer) == layout.place_of(own)) measure(first + peer);
  }
  const auto measure_replica = [&](size_t other) {
    if (own < layouts[other].worker_count()) measure(first_rank_of(layouts, other) + own);
  };
  if (replica > 0) measure_replica(replica - 1);
  if (replica + 1 < layouts.size()) measure_replica(replica + 1);
  return slowest;
}

/// What all do when they are ready. message: the first rank's, which says how.
Link reach_others(RankLinks& links, const Json& message, const ComputeDevice& device, std::span<const PipelineLayout> layouts) {
  if (!message.at("between_devices").get<bool>()) return measure_links(*links.control, layouts, at::kCPU);
  links.new_group = between_devices(std::move(links.new_group), device);
  const std::unique_ptr<Communicator> group = links.new_group(all_ranks(links.control->size()));
  const Link link = measure_links(*group, layouts, device.device);
  group->barrier();
  return link;
}

RankLinks meet(const LaunchedProcess& process) {
  const Joining joining{.tell = [](const std::string& text) { write_to_standard_error(text + "\n"); }};
  return RankLinks([process, joining](const std::vector<int32_t>& ranks) { return process_communicator(process, ranks, joining); }, process.size);
}

/// What part adds to it, or the error that it ended with, which is told here besides: the user may look at this rank's output alone.
Json answer_of(const std::string& rank, RankProgress* progress, const char* task_text, const std::function<void(Json& answer)>& part) {
  Json answer = Json::object();
  try {
    const RankTask task(progress, task_text);
    part(answer);
  } catch (...) {
    answer = {{"error", error_to_json(std::current_exception())}};
    write_to_standard_error(visible_text(fmt::format("{}: {}\n", rank, answer.at("error").at("text").get<std::string>())));
  }
  return answer;
}

int follow(const LaunchedProcess& process, RankLinks& links, SupervisedRun* supervised) {
  send_message(*links.control, {{"host", host_name()}, {"local_rank", process.local_rank}, {"cores", cores_of_this_process()}}, 0);
  const Json meeting = receive_broadcast(*links.control);
  watch(links, process, meeting.at("hosts").get<std::vector<std::string>>(), meeting.at("hang_timeout_s").get<double>(), supervised);
  const auto end = [&](const Json& message) {
    if (supervised != nullptr && message.at("for_good").get<bool>()) supervised->ends_for_good();
    links.end();
    return message.at("end").get<int>();
  };
  const Json setup = receive_broadcast(*links.control);
  if (setup.contains("end")) return end(setup);
  const std::string own_name = name_of_rank(process.rank, host_name());
  std::unique_ptr<Follower> follower;
  const Json opened = answer_of(own_name, links.progress.get(), "opening the model", [&](Json& answer) {
    follower = std::make_unique<Follower>(process, setup);
    answer["model_files"] = model_files_identity(follower->files());
  });
  send_message(*links.control, opened, 0);
  const Json first_model = receive_broadcast(*links.control);
  if (first_model.contains("end")) return end(first_model);
  const Json ready = answer_of(own_name, links.progress.get(), "loading its part of the model", [&](Json& answer) {
    follower->compare(first_model);
    if (!setup.at("loads").get<bool>()) return;
    follower->load(setup);
    answer["weight_bytes"] = follower->weight_bytes();
    answer["tensor_limit_bytes"] = follower->tensor_limit();
    answer["weight_forms"] = follower->weight_forms();
    answer["hardware"] = hardware_of(follower->device());
  });
  send_message(*links.control, ready, 0);
  const Json next = receive_broadcast(*links.control);
  if (next.contains("end")) return end(next);
  const Link link = reach_others(links, next, follower->device(), follower->layouts());
  send_message(*links.control, {link.latency_s, link.bytes_per_s}, 0);
  RankLinks taken = std::move(links);
  links.at_loss = taken.at_loss;  // for whom a loss ends
  const WorkEnd ended = follower->serve(std::move(taken));
  if (supervised != nullptr && ended.well) supervised->ends_for_good();
  return ended.exit_code;
}

}  // namespace

int threads_of_process(const RunSpec& run, int32_t processes) {
  if (run.threads == 0 && std::getenv("OMP_NUM_THREADS") != nullptr) return omp_get_max_threads();
  const int64_t threads = run.threads > 0 ? usable_thread_count(run.threads) : omp_get_num_procs();
  return static_cast<int>(std::max<int64_t>(1, threads / processes));
}

RankProcesses::RankProcesses(const LaunchedProcess& process, double hang_timeout_s, SupervisedRun* supervised)
    : process_(process), links_(meet(process)) {
  ranks_.push_back({host_name(), process.local_rank, cores_of_this_process()});
  for (int32_t rank = 1; rank < process.size; ++rank) {
    const Json hello = receive_message(*links_.control, rank);
    ranks_.push_back({hello.at("host").get<std::string>(), hello.at("local_rank").get<int32_t>(),
                      hello.at("cores").get<std::vector<int32_t>>()});
  }
  std::vector<std::string> hosts;
  for (const RankProcess& rank : ranks_) hosts.push_back(rank.host);
  broadcast_message(*links_.control, {{"hosts", hosts}, {"hang_timeout_s", hang_timeout_s}});
  watch(links_, process_, std::move(hosts), hang_timeout_s, supervised);
}

RankProcesses::~RankProcesses() {
  if (links_.control == nullptr) return;
  try {
    for (int32_t rank = 1; is_set_up_ && rank < process_.size; ++rank) receive_message(*links_.control, rank);
    broadcast_message(*links_.control, {{"end", exit_code_}, {"for_good", for_good_}});
    links_.end();
  } catch (const std::exception&) {
    links_.at_loss();  // the others see it as this one does
  }
}

int32_t RankProcesses::on_host_of(size_t rank) const {
  const auto is_there = [&](const RankProcess& other) { return other.host == ranks_[rank].host; };
  return static_cast<int32_t>(std::count_if(ranks_.begin(), ranks_.end(), is_there));
}

int32_t RankProcesses::host_count() const {
  const int32_t each = on_host_of(0);
  for (size_t rank = 1; rank < ranks_.size(); ++rank) {
    if (on_host_of(rank) != each) return 1;
  }
  return static_cast<int32_t>(ranks_.size()) / each;
}

int32_t RankProcesses::on_cores_of(size_t rank) const {
  const RankProcess& own = ranks_[rank];
  return static_cast<int32_t>(std::count_if(ranks_.begin(), ranks_.end(), [&](const RankProcess& other) {
    const bool shares_a_core = std::find_first_of(own.cores.begin(), own.cores.end(), other.cores.begin(), other.cores.end()) != own.cores.end();
    return &other == &own || (other.host == own.host && shares_a_core);
  }));
}

void RankProcesses::take_answers(const std::function<void(int32_t rank, const Json& answer)>& take) {
  std::exception_ptr failure;
  for (int32_t rank = 1; rank < process_.size; ++rank) {
    const Json answer = receive_message(*links_.control, rank);
    if (!answer.contains("error")) {
      take(rank, answer);
    } else if (failure == nullptr) {
      failure = error_from_json(answer.at("error"), name_of_rank(rank, ranks_[static_cast<size_t>(rank)].host));
    }
  }
  is_set_up_ = false;
  if (failure != nullptr) std::rethrow_exception(failure);
}

void RankProcesses::set_up(const RankSetup& setup, const ModelFiles& own) {
  layouts_ = setup.layouts;
  std::vector<int32_t> on_this_host, on_these_cores;
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    on_this_host.push_back(on_host_of(rank));
    on_these_cores.push_back(on_cores_of(rank));
  }
  broadcast_message(*links_.control, {{"jobs_file", to_yaml(setup.jobs_file)},
                                      {"compute_dtype", setup.compute_dtype},
                                      {"on_cpu", setup.on_cpu},
                                      {"positions", setup.positions},
                                      {"layouts", layouts_to_json(setup.layouts)},
                                      {"on_this_host", on_this_host},
                                      {"on_these_cores", on_these_cores},
                                      {"loads", setup.loads}});
  std::vector<std::string> known_files{model_files_identity(own)};
  std::vector<bool> compares(ranks_.size(), false);
  take_answers([&](int32_t rank, const Json& opened) {
    const auto files = opened.at("model_files").get<std::string>();
    compares[static_cast<size_t>(rank)] = files.empty() || std::ranges::count(known_files, files) == 0;
    known_files.push_back(files);
  });
  const bool any_compares = std::ranges::count(compares, true) > 0;
  broadcast_message(*links_.control, {{"compares", compares},
                                      {"host", ranks_.front().host},
                                      {"shape", shape_of(own.config)},
                                      {"fingerprint", any_compares ? setup.model_fingerprint() : ""}});
  is_set_up_ = true;
}

void RankProcesses::wait_until_compared() {
  take_answers([](int32_t, const Json&) {});
}

bool RankProcesses::end_for_good() {
  for_good_ = links_.control != nullptr;
  return for_good_;
}

void RankProcesses::wait_until_loaded(const Backbone& own, const ComputeDevice& device) {
  std::vector<RankHardware> hardware{{ranks_.front().host, hardware_of(device)}};
  std::vector<std::string> forms{own.weight_forms()};
  take_answers([&](int32_t rank, const Json& ready) {
    RankProcess& other = ranks_[static_cast<size_t>(rank)];
    other.weight_bytes = ready.at("weight_bytes").get<int64_t>();
    other.tensor_limit_bytes = ready.at("tensor_limit_bytes").get<int64_t>();
    forms.push_back(ready.at("weight_forms").get<std::string>());
    hardware.push_back({other.host, ready.at("hardware").get<std::string>()});
  });
  if (const auto unlike = ranks_of_unlike_forms(layouts_, forms)) {
    const auto [first, second] = *unlike;
    throw_user_error("run.parallel: shard: {} and {} would share weights, but have processors with different kernels, which read them in "
                     "different forms; accepted with run.portable_kernels: true, or with equal COTUNE_CPU_ISA on both",
                     name_of_rank(first, ranks_[static_cast<size_t>(first)].host), name_of_rank(second, ranks_[static_cast<size_t>(second)].host));
  }
  gpu_messages_ = choose_gpu_messages(device, hardware);
}

int RankProcesses::ending_all_with_code_of(const std::function<int()>& part) {
  try {
    exit_code_ = part();
  } catch (...) {
    exit_code_ = exit_code_of(std::current_exception());
    throw;
  }
  return exit_code_;
}

RankLinks RankProcesses::take_links(const ComputeDevice& device) {
  const Json message = {{"between_devices", gpu_messages_.between_devices}};
  broadcast_message(*links_.control, message);
  link_ = reach_others(links_, message, device, layouts_);
  for (int32_t rank = 1; rank < process_.size; ++rank) {
    const Json speed = receive_message(*links_.control, rank);
    link_ = slower(link_, {speed.at(0).get<double>(), speed.at(1).get<double>()});
  }
  return std::move(links_);
}

int follow_first_rank(const LaunchedProcess& process, SupervisedRun* supervised) {
  RankLinks links = meet(process);
  leave_stopping_to_the_first_rank();
  int exit_code = 0;
  try {
    exit_code = follow(process, links, supervised);
  } catch (const CommunicationEnded&) {
    if (links.at_loss) links.at_loss();
    throw;
  }
  // A launcher that sees a process end so ends the others at once, and the first one may still have to say why.
  if (exit_code != 0) std::this_thread::sleep_for(std::chrono::seconds(1));
  return exit_code;
}

}  // namespace cotune
