#include "cli/run/run_control.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/abrupt_exit.h"
#include "base/error.h"
#include "base/path_passes_through.h"
#include "cli/inputs/run_setup.h"
#include "cli/terminal/stop_signals.h"
#include "ops/memory.h"
#include "ops/within_memory.h"
#include "train/adapter_folder.h"

namespace cotune {
namespace {

ControlReply refusal(ControlErrorCode code, const std::string& message, std::vector<Diagnostic> mistakes = {}) {
  ControlReply reply;
  reply.error = ControlError{code, message, std::move(mistakes)};
  return reply;
}

ControlReply run_has_ended() { return refusal(ControlErrorCode::ended, "the run has ended, or ends now: nothing was changed"); }

ControlReply refusal(const Diagnostics& mistakes) {
  try {
    mistakes.throw_if_any();
  } catch (const UserMistakes& error) {
    return refusal(ControlErrorCode::refused, error.what(), error.items());
  }
  throw InternalError("nothing was mistaken");
}

TrainingJob* find_job(const Trainer& trainer, const std::string& name) {
  const auto found = std::find_if(trainer.jobs().begin(), trainer.jobs().end(),
                                  [&](const auto& job) { return job->spec().name == name; });
  return found == trainer.jobs().end() ? nullptr : found->get();
}

std::string no_such_job(const Trainer& trainer, const std::string& name) {
  std::vector<std::string> names;
  for (const auto& job : trainer.jobs()) names.push_back(job->spec().name);
  const std::string near = name.size() < 100 ? nearest_name(name, names) : "";
  return fmt::format("no job of the run is called `{}`{}", name.substr(0, 100), near.empty() ? "" : fmt::format("; did you mean `{}`?", near));
}

/// The job of the run, or its sweep, that still trains and whose folder holds the adapter that another one is to start from: every save
/// replaces it. "": there is none.
std::string changing_source(const Trainer& trainer, const std::filesystem::path& run_folder, const std::string& init_from) {
  const std::filesystem::path adapter = find_adapter_folder(init_from);
  const auto lies_in = [&](const std::filesystem::path& folder) {
    std::error_code unknown;
    const std::filesystem::path place = std::filesystem::canonical(folder, unknown);
    return !unknown && path_passes_through(adapter, {place});
  };
  for (const auto& job : trainer.jobs()) {
    if (has_ended(job->state().status)) continue;
    const std::string& sweep = job->spec().sweep.of;
    if (lies_in(job->folder())) return fmt::format("job `{}`", job->spec().name);
    if (!sweep.empty() && lies_in(run_folder / "sweeps" / sweep)) return fmt::format("sweep `{}`", sweep);
  }
  return "";
}

}  // namespace

RunControl::RunControl(ControlledRun run)
    : run_(std::move(run)),
      stays_(run_.run.jobs_file.run.stay),
      board_(std::filesystem::absolute(run_.folder).lexically_normal(), stays_, run_.device, run_.memory_limit_bytes),
      event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (event_.get() < 0) throw SystemError("cannot make an event");
}

RunControl::~RunControl() {
  close();
  if (reader_.joinable()) reader_.join();
}

void RunControl::attach(TrainerOptions& options) {
  options.observers.push_back(&board_);
  options.drained = &drained_;
  options.between_rounds = [this](Trainer& trainer) { do_what_is_asked(trainer); };
  options.wait_for_work = [this] { return wait_for_work(); };
}

void RunControl::open(const Trainer& trainer) {
  const std::set<std::string>& added = run_.recorder.record().changes.added;
  for (const auto& job : trainer.jobs()) {
    board_.show(*job, added.contains(job->spec().name));
    if (const auto losses = losses_before_.find(job->spec().name); losses != losses_before_.end()) {
      board_.show_losses(*job, losses->second);
    }
  }
  try {
    server_ = std::make_unique<ControlServer>(run_.folder, [this](ControlRequest request, ControlServer::Answer answer) {
      take(std::move(request), std::move(answer));
    });
  } catch (const SystemError& error) {
    if (stays_) throw;
    write_to_standard_error(fmt::format("{}; the run goes on without `cotune job`\n", error.what()));
    return;
  }
  reader_ = std::thread([this] { read_joining_jobs_of_requests(); });
}

void RunControl::close() {
  {
    const std::lock_guard lock(mutex_);
    has_ended_ = true;
    for (std::deque<Asked>* queue : {&to_do_, &to_read_}) {
      for (const Asked& asked : *queue) asked.answer(run_has_ended());
      queue->clear();
    }
    if (reading_) (*reading_)(run_has_ended());
    to_read_changed_.notify_all();
  }
  server_.reset();
}

void RunControl::wake() const {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(event_.get(), &one, sizeof one);
}

void RunControl::take(ControlRequest request, ControlServer::Answer answer) {
  ControlReply reply;
  switch (request.action) {
    case ControlAction::list:
      reply.jobs = board_.jobs();
      reply.run = board_.run();
      break;
    case ControlAction::view: reply.view = board_.view(); break;
    case ControlAction::drain:
      drained_ = true;
      board_.set_stopping();
      wake();
      [[fallthrough]];
    case ControlAction::status: reply.run = board_.run(); break;
    case ControlAction::add: return enqueue(to_read_, {std::move(request), std::move(answer), {}});
    case ControlAction::cancel:
    case ControlAction::pause:
    case ControlAction::resume:
    case ControlAction::priority: return enqueue(to_do_, {std::move(request), std::move(answer), {}});
  }
  answer(reply);
}

void RunControl::enqueue(std::deque<Asked>& queue, Asked asked) {
  const std::lock_guard lock(mutex_);
  if (has_ended_) return asked.answer(run_has_ended());
  queue.push_back(std::move(asked));
  to_read_changed_.notify_all();
  wake();
}

void RunControl::read_joining_jobs_of_requests() {
  std::unique_lock lock(mutex_);
  while (true) {
    to_read_changed_.wait(lock, [this] { return has_ended_ || !to_read_.empty(); });
    if (has_ended_) return;
    Asked asked = std::move(to_read_.front());
    to_read_.pop_front();
    reading_ = asked.answer;
    lock.unlock();
    std::variant<JoiningJobs, ControlReply> result = read(asked.request.add);
    lock.lock();
    reading_.reset();
    if (has_ended_) return;
    if (const auto* reply = std::get_if<ControlReply>(&result)) {
      asked.answer(*reply);
    } else {
      asked.joining = std::move(std::get<JoiningJobs>(result));
      to_do_.push_back(std::move(asked));
    }
    wake();
  }
}

std::variant<JoiningJobs, ControlReply> RunControl::read(const ControlRequest::JobsText& add) const {
  const JobsText text{add.text, add.file, add.folder, add.working_directory.empty() ? add.folder : add.working_directory,
                      run_.run.jobs_file.run.device};
  try {
    Diagnostics mistakes;
    JoiningJobs joining = read_joining_jobs(text, add.overrides, run_.run, board_.names(), mistakes);
    if (mistakes.empty()) return joining;
    return refusal(mistakes);
  } catch (const UserError& error) {
    return refusal(ControlErrorCode::refused, error.what(), {{add.file, 0, "", error.what()}});
  } catch (const std::exception& error) {
    return refusal(ControlErrorCode::failed, error.what());
  }
}

void RunControl::do_what_is_asked(Trainer& trainer) {
  while (true) {
    std::optional<Asked> asked;
    {
      const std::lock_guard lock(mutex_);
      if (to_do_.empty()) return;
      asked = std::move(to_do_.front());
      to_do_.pop_front();
    }
    ControlReply reply;
    try {
      reply = done(trainer, *asked);
    } catch (const UserError& error) {
      reply = refusal(ControlErrorCode::conflict, error.what());
    } catch (const std::exception& error) {  // ends the run, as it does everywhere
      asked->answer(refusal(ControlErrorCode::failed, error.what()));
      throw;
    }
    asked->answer(reply);
  }
}

ControlReply RunControl::done(Trainer& trainer, Asked& asked) {
  if (asked.joining) return join(trainer, *asked.joining);
  const ControlRequest& request = asked.request;
  TrainingJob* job = find_job(trainer, request.job);
  if (job == nullptr) return refusal(ControlErrorCode::unknown_job, no_such_job(trainer, request.job));
  switch (request.action) {
    case ControlAction::cancel: trainer.cancel_job(*job); break;
    case ControlAction::pause: trainer.pause_job(*job); break;
    case ControlAction::resume: trainer.resume_job(*job); break;
    case ControlAction::priority: trainer.set_priority(*job, request.priority); break;
    default: COTUNE_CHECK(false, "{}", to_string(request.action));
  }
  run_.recorder.change([&](RunRecord& record) {
    JobChanges& changes = record.changes;
    if (request.action == ControlAction::cancel) changes.cancelled.insert(request.job);
    if (request.action == ControlAction::pause) changes.paused.insert(request.job);
    if (request.action == ControlAction::resume || request.action == ControlAction::cancel) changes.paused.erase(request.job);
    if (request.action != ControlAction::priority) return;
    changes.priorities[request.job] = request.priority;
    for (JobSpec& spec : record.configuration.jobs) {
      if (spec.name == request.job) spec.priority = request.priority;
    }
  });
  ControlReply reply;
  reply.jobs = {board_.job(*job)};
  board_.show(*job, reply.jobs->front().added);
  return reply;
}

bool RunControl::has_sweep(const Trainer& trainer, const std::string& name) {
  return std::any_of(trainer.jobs().begin(), trainer.jobs().end(), [&](const auto& job) { return job->spec().sweep.of == name; });
}

ControlReply RunControl::join(Trainer& trainer, JoiningJobs& joining) {
  Diagnostics mistakes;
  std::vector<std::unique_ptr<TrainingJob>> jobs;
  std::vector<const TrainingJob*> joined;
  std::map<std::string, std::string> data_hashes;
  std::map<std::string, std::map<std::string, std::string>> hashes_of_files;
  try {
    within_memory([&] { run_.allow_rows(longest_row(joining.data)); });
  } catch (const MemoryLimitExceeded& error) {
    mistakes.add(joining.specs.front().file, 0, "", fmt::format("memory for rows of that length is not to be had now: {}", error.what()));
  }
  for (size_t i = 0; i < joining.specs.size(); ++i) {
    const JobSpec& spec = joining.specs[i];
    const OptionPlace place = spec.place_of("name");
    if (find_job(trainer, spec.name) != nullptr) {  // joined while this was read
      mistakes.add(place.file, place.line, place.field, fmt::format("`{}` is the name of a job of the run already", spec.name));
      continue;
    }
    if (const auto own = spec.sweep.of; !own.empty() && has_sweep(trainer, own)) {
      const OptionPlace sweep = spec.place_of("sweep.of");
      mistakes.add(sweep.file, sweep.line, sweep.field, fmt::format("the run has a sweep `{}` already: give the job another name", own));
      continue;
    }
    const auto initial = joining.initial_adapters.find(spec.name);
    const bool starts_from_adapter = initial != joining.initial_adapters.end();
    if (const std::string source = starts_from_adapter ? changing_source(trainer, run_.folder, spec.adapter.init_from) : ""; !source.empty()) {
      const OptionPlace from = spec.place_of("adapter.init_from");
      mistakes.add(from.file, from.line, from.field,
                   fmt::format("{} is of {} of this run, which has not ended and replaces it with every save: wait for its end, or copy it first",
                               spec.adapter.init_from, source));
      continue;
    }
    if (starts_from_adapter && adapter_checksum(find_adapter_folder(spec.adapter.init_from)) != initial->second) {
      const OptionPlace from = spec.place_of("adapter.init_from");
      mistakes.add(from.file, from.line, from.field, fmt::format("{} has changed while it was read: add the job again", spec.adapter.init_from));
      continue;
    }
    data_hashes[spec.name] = content_hash(joining.data[i]);
    hashes_of_files[spec.name] = file_hashes(joining.data[i]);
    jobs.push_back(make_job(trainer.jobs().size() + jobs.size(), spec, std::move(joining.data[i]), run_.folder, run_.run.files, run_.compute,
                            run_.device));
    if (starts_from_adapter) jobs.back()->expect_initial_adapter(initial->second);
    if (const auto reason = trainer.reason_never_to_fit(*jobs.back())) {
      mistakes.add(spec.file, spec.line, "jobs." + spec.name, "can never run within run.memory: it " + *reason);
    }
    joined.push_back(jobs.back().get());
  }
  check_rungs(jobs, mistakes);
  if (!mistakes.empty()) return refusal(mistakes);
  run_.recorder.change([&](RunRecord& record) {
    record.data_hashes.merge(data_hashes);
    record.file_hashes.merge(hashes_of_files);
    record.initial_adapters.merge(joining.initial_adapters);
    for (const JobSpec& spec : joining.specs) {
      record.configuration.jobs.push_back(spec);
      record.changes.added.insert(spec.name);
    }
  });
  for (const TrainingJob* job : joined) board_.show(*job, true);
  trainer.add_jobs(std::move(jobs));
  ControlReply reply;
  reply.jobs.emplace();
  for (const TrainingJob* job : joined) reply.jobs->push_back(board_.job(*job));
  return reply;
}

bool RunControl::wait_for_work() {
  board_.set_idle(true);
  release_unused_memory();
  bool goes_on = false;
  while (true) {
    {
      const std::lock_guard lock(mutex_);
      goes_on = drained_ || stop_requested() || !to_do_.empty();
      if (goes_on) break;
      if (!stays_ && to_read_.empty() && !reading_) {
        has_ended_ = true;
        break;
      }
    }
    std::array<pollfd, 2> events{pollfd{event_.get(), POLLIN, 0}, pollfd{stop_event(), POLLIN, 0}};
    ::poll(events.data(), events.size(), -1);
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t got = ::read(event_.get(), &count, sizeof count);
  }
  board_.set_idle(false);
  return goes_on;
}

}  // namespace cotune
