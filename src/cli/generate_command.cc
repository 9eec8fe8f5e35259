#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "base/file.h"
#include "cli/commands.h"
#include "cli/model_of_adapter.h"
#include "cli/model_text.h"
#include "cli/number_checks.h"
#include "cli/run_setup.h"
#include "data/example_builder.h"
#include "data/unicode.h"
#include "engine/generation.h"
#include "jobs/emulated_file.h"
#include "jobs/option_table.h"
#include "jobs/option_value.h"
#include "ops/memory.h"
#include "train/adapter_folder.h"

namespace cotune {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr int interrupted_exit_code = 130;

struct GenerateArguments {
  std::string model, adapter;
  std::optional<std::string> prompt, system;
  std::string prompt_file;
  bool chat = false, raw = false, json = false;
  int64_t max_new_tokens = 256;
  std::optional<double> temperature, top_p;
  std::optional<int64_t> top_k;
  std::optional<uint64_t> seed;
  std::string dtype = "auto", device = "auto";
  int threads = 0;
};

std::atomic<bool> stop_requested{false};

void stop_generating(int) { stop_requested = true; }

/// The next Ctrl-C ends what is being generated, the one after it the program. Reads of the terminal are cut short.
void catch_interrupt() {
  stop_requested = false;
  struct sigaction action{};
  action.sa_handler = stop_generating;
  action.sa_flags = SA_RESETHAND;
  sigaction(SIGINT, &action, nullptr);
}

SamplingSettings sampling_of(const GenerateArguments& arguments) {
  const bool drawn = arguments.top_p || arguments.top_k || arguments.seed;
  SamplingSettings settings;
  settings.temperature = arguments.temperature.value_or(drawn ? 1.0 : 0.0);
  if (settings.temperature == 0 && drawn) {
    throw_user_error("--temperature: 0 always takes the likeliest token, so --top-p, --top-k and --seed have no effect; "
                     "leave them out or raise the temperature");
  }
  settings.top_p = arguments.top_p.value_or(1.0);
  settings.top_k = arguments.top_k.value_or(0);
  settings.seed = arguments.seed.value_or(0);
  return settings;
}

std::string without_final_newline(std::string text) {
  if (text.ends_with('\n')) text.pop_back();
  if (text.ends_with('\r')) text.pop_back();
  return text;
}

std::string one_prompt(const GenerateArguments& arguments) {
  if (arguments.prompt) return *arguments.prompt;
  if (!arguments.prompt_file.empty()) return without_final_newline(read_file(arguments.prompt_file));
  if (isatty(STDIN_FILENO) != 0) {
    throw_user_error("there is no prompt: pass --prompt, --prompt-file or --chat, or pipe a text in");
  }
  std::string text;
  char buffer[1 << 16];
  while (const size_t count = std::fread(buffer, 1, sizeof buffer, stdin)) text.append(buffer, count);
  if (text.empty()) {
    throw_user_error("there is no prompt: standard input is empty; pass --prompt, --prompt-file or --chat, or pipe a text in");
  }
  return without_final_newline(std::move(text));
}

ordered_json message(const char* role, const std::string& content) {
  return {{"role", role}, {"content", replace_invalid_utf8(content)}};
}

/// A model ready to answer.
class Answerer {
 public:
  explicit Answerer(const GenerateArguments& arguments)
      : arguments_(arguments),
        device_(choose_device(arguments.device, "--device")),
        sampling_(sampling_of(arguments)),
        adapter_folder_(arguments.adapter.empty() ? fs::path() : find_adapter_folder(arguments.adapter)),
        files_(open_model(model_of_adapter(arguments.model, adapter_folder_))),
        text_(files_) {
    if (!device_.notice.empty()) fmt::print(stderr, "{}\n", device_.notice);
    if (text_.chat_template() == nullptr && (arguments.chat || arguments.system)) {
      throw_user_error("{}: has no chat template, which {} needs", files_.path.string(),
                       arguments.chat ? "--chat" : "--system");
    }
  }

  /// Reads the weights; mistakes in arguments are found before.
  void load() {
    ModelSpec spec;
    spec.dtype = arguments_.dtype;
    const at::ScalarType compute = compute_dtype(spec, device_);
    if (!adapter_folder_.empty()) adapter_ = open_adapter(adapter_folder_, files_.config, compute, device_.device);
    generator_.emplace(Backbone::load(files_, compute, device_.device, {.training = false}));
    release_unused_memory();
    memory_ = CachedSequence(adapter_.get());
  }

  bool has_template() const { return text_.chat_template() != nullptr; }

  std::vector<int32_t> raw_prompt(const std::string& prompt) const {
    std::vector<int32_t> tokens = text_.encoder().prefix();
    const std::vector<int32_t> own = text_.encoder().encode_plain(prompt);
    tokens.insert(tokens.end(), own.begin(), own.end());
    return tokens;
  }

  std::vector<int32_t> chat_prompt(const ordered_json& messages) const {
    Example example;
    encode_training_text({text_.chat_template()->render(messages, {true, {}, std::nullopt}), {}}, text_.encoder(),
                         example);
    return example.tokens;
  }

  struct Answer {
    std::string text;
    StopReason stop;
  };

  /// Writes the answer to standard output as it comes, or as one JSON object.
  Answer answer(std::vector<int32_t> prompt) {
    GenerationRequest request;
    request.prompt = std::move(prompt);
    request.adapter = adapter_.get();
    request.max_new_tokens = arguments_.max_new_tokens;
    request.sampling = sampling_;
    request.stop_ids = text_.end_of_turn_ids();
    request.memory = &memory_;
    Answer answer;
    Tokenizer::Stream stream = text_.tokenizer().stream(true);
    const auto show = [&](const std::string& piece) {
      answer.text += piece;
      if (arguments_.json) return;
      std::fwrite(piece.data(), 1, piece.size(), stdout);
      std::fflush(stdout);
    };
    GenerationCallbacks callbacks;
    callbacks.on_token = [&](size_t, int32_t token) {
      show(stream.add(token));
      return !stop_requested;
    };
    callbacks.interrupted = [] { return stop_requested.load(); };
    const auto begin = std::chrono::steady_clock::now();
    const GeneratedAnswer generated = generator_->generate(std::span(&request, 1), callbacks).front();
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
    show(stream.finish());
    answer.stop = generated.stop;
    report(request, generated, answer, elapsed.count());
    return answer;
  }

 private:
  void report(const GenerationRequest& request, const GeneratedAnswer& generated, const Answer& answer,
              double seconds) const {
    if (arguments_.json) {
      ordered_json line;
      line["text"] = answer.text;
      line["tokens"] = generated.tokens;
      line["stop"] = to_string(generated.stop);
      line["prompt_tokens"] = request.prompt.size();
      line["reused_prompt_tokens"] = generated.reused_tokens;
      line["new_tokens"] = generated.tokens.size();
      line["seconds"] = seconds;
      fmt::print("{}\n", line.dump());
    } else {
      fmt::print("\n");
    }
    std::fflush(stdout);
    if (generated.stop == StopReason::not_finite) {
      throw SystemError("the model's output is not finite: its weights or the adapter's hold NaN or infinity");
    }
    if (arguments_.json) return;
    if (generated.stop == StopReason::max_new_tokens) {
      fmt::print(stderr, "(cut off after {} tokens: --max-new-tokens)\n", generated.tokens.size());
    }
    if (generated.stop == StopReason::context_length) {
      fmt::print(stderr, "(cut off: the model's context of {} tokens is full)\n", files_.config.context_length);
    }
  }

  const GenerateArguments& arguments_;
  ComputeDevice device_;
  SamplingSettings sampling_;
  fs::path adapter_folder_;
  ModelFiles files_;
  ModelText text_;
  std::unique_ptr<Adapter> adapter_;
  std::optional<Generator> generator_;
  CachedSequence memory_;
};

ordered_json first_messages(const GenerateArguments& arguments) {
  ordered_json messages = ordered_json::array();
  if (arguments.system) messages.push_back(message("system", *arguments.system));
  return messages;
}

int answer_once(const GenerateArguments& arguments, Answerer& answerer) {
  const std::string prompt = one_prompt(arguments);
  std::vector<int32_t> tokens;
  if (arguments.raw || !answerer.has_template()) {
    tokens = answerer.raw_prompt(prompt);
  } else {
    ordered_json messages = first_messages(arguments);
    messages.push_back(message("user", prompt));
    tokens = answerer.chat_prompt(messages);
  }
  answerer.load();
  catch_interrupt();
  return answerer.answer(std::move(tokens)).stop == StopReason::interrupted ? interrupted_exit_code : 0;
}

/// One line of standard input; nothing at its end or at Ctrl-C.
std::optional<std::string> read_line(bool show_prompt) {
  if (show_prompt) {
    fmt::print("> ");
    std::fflush(stdout);
  }
  char* line = nullptr;
  size_t room = 0;
  const ssize_t length = ::getline(&line, &room, stdin);
  std::optional<std::string> text;
  if (length >= 0) text = without_final_newline(std::string(line, static_cast<size_t>(length)));
  std::free(line);
  return text;
}

int chat(const GenerateArguments& arguments, Answerer& answerer) {
  const bool terminal = isatty(STDIN_FILENO) != 0 && !arguments.json;
  answerer.load();
  if (terminal) fmt::print("Ctrl-C ends an answer; /new begins a new conversation; Ctrl-D ends the program.\n");
  ordered_json messages = first_messages(arguments);
  while (true) {
    catch_interrupt();
    const std::optional<std::string> line = read_line(terminal);
    if (!line) break;
    if (line->empty()) continue;
    if (*line == "/new") {
      messages = first_messages(arguments);
      continue;
    }
    messages.push_back(message("user", *line));
    try {
      messages.push_back(message("assistant", answerer.answer(answerer.chat_prompt(messages)).text));
    } catch (const UserError& error) {  // too long for the context, or refused by the template
      if (!terminal) throw;
      fmt::print(stderr, "{}\n", error.what());
      messages.erase(messages.size() - 1);
    }
  }
  if (terminal) fmt::print("\n");
  return stop_requested ? interrupted_exit_code : 0;
}

int generate(const GenerateArguments& arguments) {
  install_counting_allocator();
  if (arguments.threads > 0) at::set_num_threads(arguments.threads);
  Answerer answerer(arguments);
  return arguments.chat ? chat(arguments, answerer) : answer_once(arguments, answerer);
}

/// Accepts what the jobs file does, and says what that is otherwise.
CLI::Validator as_in_jobs_file(Section section, const char* key) {
  const auto read = [section, key](std::string& text) -> std::string {
    auto value = read_option_value(*find_option(section, key), YAML::Node(text), true);
    if (const auto* mistake = std::get_if<ValueMistake>(&value)) return mistake->message;
    text = std::get<std::string>(std::get<OptionValue>(value));
    return "";
  };
  return CLI::Validator(read, "");
}

}  // namespace

void add_generate_command(CLI::App& app) {
  auto arguments = std::make_shared<GenerateArguments>();
  GenerateArguments& to = *arguments;
  CLI::App* command = app.add_subcommand(
      "generate", "Complete a text or chat, with the base model or an adapter. The answer goes to standard output as it "
                  "comes");
  command->add_option("--model", to.model, "Hugging Face folder, GGUF file, or the name of a model in the Hugging Face cache; default: the one that the adapter names");
  command->add_option("--adapter", to.adapter, "Adapter folder, or the name of an adapter in the Hugging Face cache; a job's folder or a run's folder with one job will do");
  CLI::Option* prompt = command->add_option("--prompt", to.prompt, "The prompt");
  CLI::Option* file =
      command->add_option("--prompt-file", to.prompt_file,
                          "File with the prompt, less one final newline. Without any prompt, standard input is read so");
  CLI::Option* chat = command->add_flag("--chat", to.chat, "A conversation: every line of standard input gets an answer");
  CLI::Option* system = command->add_option("--system", to.system, "System message of the chat template");
  CLI::Option* raw = command->add_flag(
      "--raw", to.raw,
      "Continue the prompt as it is, without the chat template: for adapters trained on prompt and completion. Models "
      "without a template always do");
  prompt->excludes(file)->excludes(chat);
  file->excludes(chat);
  raw->excludes(chat)->excludes(system);
  command->add_option("--max-new-tokens", to.max_new_tokens, "Longest answer")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30))
      ->capture_default_str();
  command
      ->add_option("--temperature", to.temperature,
                   "0: always the likeliest token; above: drawn. Default 0, or 1 with --top-p, --top-k or --seed")
      ->check(number_in(0.0, 100.0));
  command->add_option("--top-p", to.top_p, "Draw from the likeliest tokens that together have this probability")
      ->check(number_in(1e-6, 1.0));
  command->add_option("--top-k", to.top_k, "Draw from the k likeliest tokens")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30));
  command->add_option("--seed", to.seed, "Equal seeds give equal answers; default 0")
      ->check(CLI::NonNegativeNumber);
  command->add_option("--dtype", to.dtype, "Compute type: float32, bfloat16, float64, or auto: bfloat16 where the processor multiplies it, else float32")
      ->transform(as_in_jobs_file(Section::model, "dtype"));
  command->add_option("--device", to.device, "auto (a GPU where one can be used), cpu or cuda")
      ->transform(as_in_jobs_file(Section::run, "device"))
      ->check([](const std::string& text) {
        return emulated_file(text).empty() ? "" : std::string("an emulated device computes no answer; accepted are auto, cpu and cuda");
      });
  command->add_option("--threads", to.threads, "Worker threads; 0: one per core")->check(CLI::Range(0, 4096));
  command->add_flag("--json", to.json, "Each answer as one JSON object on a line, with its tokens and time");
  command->callback([arguments] { exit_code() = generate(*arguments); });
}

}  // namespace cotune
