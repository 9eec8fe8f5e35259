#include "merge/merged_model.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <ranges>

#include "base/error.h"
#include "base/file.h"
#include "formats/safetensors_writer.h"
#include "merge/merged_folder.h"
#include "merge/merged_rows.h"
#include "model/config/families.h"
#include "model/weights/data_type_conversion.h"

namespace cotune {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr const char* index_file = "model.safetensors.index.json";

at::ScalarType written_dtype(const ModelFiles& model, const std::string& name, const MergeSettings& settings) {
  if (settings.dtype) return *settings.dtype;
  return model.weights->is_quantised(name) ? at::kBFloat16 : model.weights->stored_dtype(name);
}

/// The weights of each file, in the model's order.
std::vector<std::vector<TensorPlan>> plan_files(const ModelFiles& model, const MergeSettings& settings) {
  std::vector<std::vector<TensorPlan>> files(1);
  size_t bytes = 0;
  for (const ModelTensor& tensor : model_tensors(model.config)) {
    TensorPlan plan{tensor.name, data_type_of(written_dtype(model, tensor.name, settings)), tensor.shape};
    if (!files.back().empty() && bytes + plan.byte_count() > static_cast<size_t>(settings.max_file_bytes)) {
      files.emplace_back();
      bytes = 0;
    }
    bytes += plan.byte_count();
    files.back().push_back(std::move(plan));
  }
  return files;
}

/// One tensor, block of rows after block.
void write_tensor(SafetensorsWriter& writer, const TensorPlan& plan, const ModelFiles& model, const WeightChanges& changes) {
  const at::Tensor stored = model.load(plan.name, model.weights->stored_dtype(plan.name));
  const int64_t rows = plan.shape.front(), columns = stored.numel() / std::max<int64_t>(1, rows);
  const int64_t block = std::max<int64_t>(1, merged_block_values / std::max<int64_t>(1, columns));
  for (int64_t begin = 0; begin < rows; begin += block) {
    const at::Tensor part = merged_rows(stored, changes, plan.name, begin, std::min(block, rows - begin), scalar_type_of(plan.dtype));
    writer.append({static_cast<const std::byte*>(part.const_data_ptr()), part.nbytes()});
  }
}

/// The type that most values of the weights have.
at::ScalarType commonest_dtype(const std::vector<std::vector<TensorPlan>>& files) {
  std::map<at::ScalarType, size_t> values;
  for (const TensorPlan& plan : files | std::views::join) values[scalar_type_of(plan.dtype)] += plan.byte_count() / element_bytes(plan.dtype);
  return std::ranges::max_element(values, {}, [](const auto& each) { return each.second; })->first;
}

void prepare(const fs::path& output) {
  std::error_code error;
  fs::create_directories(output, error);
  if (error) throw_user_error("{}: cannot make the folder: {}", output.string(), error.message());
  if (!fs::is_empty(output)) throw_user_error("{}: holds files; choose another folder, or empty it", output.string());
}

/// A folder that was empty, and is so again unless keep() is called.
class FilledFolder {
 public:
  explicit FilledFolder(fs::path path) : path_(std::move(path)) {}
  ~FilledFolder() {
    if (is_kept_) return;
    std::error_code unknown;
    for (const fs::directory_entry& entry : fs::directory_iterator(path_, unknown)) fs::remove_all(entry.path(), unknown);
  }
  FilledFolder(const FilledFolder&) = delete;
  FilledFolder& operator=(const FilledFolder&) = delete;
  void keep() { is_kept_ = true; }

 private:
  fs::path path_;
  bool is_kept_ = false;
};

}  // namespace

MergeReport write_merged_model(const ModelFiles& model, const WeightChanges& changes, const fs::path& output,
                               const MergeSettings& settings, const std::function<void(int64_t, int64_t)>& progress) {
  const std::vector<std::vector<TensorPlan>> files = plan_files(model, settings);
  const bool is_stated = settings.dtype || fs::is_directory(model.path);
  const std::string config = merged_config(model, is_stated ? settings.dtype : commonest_dtype(files));
  prepare(output);
  FilledFolder filled(output);
  write_other_files(model, output);
  MergeReport report;
  report.files = std::ssize(files);
  for (const auto& file : files) {
    for (const TensorPlan& plan : file) report.bytes += static_cast<int64_t>(plan.byte_count());
  }
  ordered_json index = {{"metadata", {{"total_size", report.bytes}}}, {"weight_map", ordered_json::object()}};
  int64_t done = 0;
  for (size_t i = 0; i < files.size(); ++i) {
    const std::string name = files.size() == 1 ? "model.safetensors" : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, files.size());
    SafetensorsWriter writer(output / name, files[i], {{"format", "pt"}});
    for (const TensorPlan& plan : writer.tensors()) {
      write_tensor(writer, plan, model, changes);
      model.weights->drop_pages();
      index["weight_map"][plan.name] = name;
      report.changed += changes.changes(plan.name) ? 1 : 0;
      ++report.tensors;
      progress(done += static_cast<int64_t>(plan.byte_count()), report.bytes);
    }
    writer.commit();
  }
  COTUNE_CHECK(report.changed == static_cast<int64_t>(changes.count()), "{} of {} changes belong to the model", report.changed, changes.count());
  if (files.size() > 1) write_file_atomically(output / index_file, index.dump(2) + "\n");
  write_file_atomically(output / config_file, config);
  filled.keep();
  return report;
}

}  // namespace cotune
