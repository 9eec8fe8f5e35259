#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/appended_file.h"
#include "base/file_lock.h"
#include "cli/generating/answer_options.h"

namespace cotune {

/// Which answer to a file of prompts; in their order.
struct AnswerKey {
  int64_t index = 0;  ///< of the prompt, from 0
  size_t adapter = 0;
  int64_t sample = 0;
  auto operator<=>(const AnswerKey&) const = default;
};

/// The fields that an answer's line has beside those of its prompt's record.
inline constexpr std::array answer_fields = {"index", "adapter", "sample", "text", "stop", "prompt_tokens", "new_tokens"};

/// Where answers to a file of prompts go, in order of their keys though they end in any order.
class AnswerFile {
 public:
  virtual ~AnswerFile() = default;
  virtual void add(AnswerKey key, const std::string& line) = 0;
  /// No more are to come.
  virtual void finish() = 0;
};

/// Where nothing can be put in order afterwards: a line waits for those before it. Those that still wait at the end are written then.
class OrderedAnswers : public AnswerFile {
 public:
  OrderedAnswers(size_t adapters, int64_t samples, std::function<void(const std::string& line)> write)
      : adapters_(adapters), samples_(samples), write_(std::move(write)) {}
  void add(AnswerKey key, const std::string& line) override;
  void finish() override;

 private:
  size_t adapters_;
  int64_t samples_;
  std::function<void(const std::string& line)> write_;
  AnswerKey next_;
  std::map<AnswerKey, std::string> waiting_;
};

/// A file: a line is written at once, so that nothing is lost however the program ends, and the whole file is put in order at the end, at
/// once (base/atomic_file.h).
class StoredAnswers : public AnswerFile {
 public:
  /// How the file is begun; it is changed by the first answer, not before.
  enum class Start { fresh, resume, overwrite };
  /// adapters: names, by index. Of a file that is resumed the last line is left out where it is not whole, and so are answers that ended
  /// because the model's output was not finite. Throws UserError: there is no such folder; it is there (fresh); it is no file of answers (overwrite);
  /// it holds what is no answer of these adapters (resume), or answers that were made with other options; another process writes it.
  StoredAnswers(std::filesystem::path path, Start start, const std::vector<std::string>& adapters, AnswerOptions options);

  /// A file with answers is resumed, and nothing says what they were made with.
  bool is_made_unknown() const { return is_made_unknown_; }

  bool holds(AnswerKey key) const { return places_.contains(key); }
  int64_t count() const { return static_cast<int64_t>(places_.size()); }
  /// Throws UserError where the file has an answer with this key to another record.
  void check(AnswerKey key, const nlohmann::ordered_json& record) const;
  /// Throws UserError where the file has an answer that is none to so many prompts and samples.
  void check_range(int64_t prompts, int64_t samples) const;
  void add(AnswerKey key, const std::string& line) override;
  void finish() override;

 private:
  struct Place {
    uint64_t begin = 0, size = 0;   ///< in the file
    uint64_t record = 0;            ///< a key of what was asked
    int line = 0;
  };
  void take_up(const std::vector<std::string>& adapters);
  /// Of what stands behind the last whole line. Throws UserError where it is not the beginning of an answer.
  static void check_torn(std::string_view line, const std::vector<std::string>& adapters);
  void open();

  std::filesystem::path path_;
  Start start_;
  AnswerOptions options_;               ///< written before the first answer
  bool is_made_unknown_ = false;
  std::unique_ptr<FileLock> lock_;      ///< of a file that was there; else from the first answer on
  std::map<AnswerKey, Place> places_;
  uint64_t size_ = 0;                   ///< of its whole lines
  bool is_torn_ = false;                ///< more stands behind them
  std::unique_ptr<AppendedFile> file_;  ///< from the first answer on
};

}  // namespace cotune
