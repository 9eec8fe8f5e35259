#include "merge/merged_gguf.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>

#include "base/error.h"
#include "formats/gguf_writer.h"
#include "merge/merged_rows.h"
#include "model/config/families.h"
#include "model/weights/gguf_weights.h"

namespace cotune {
namespace {

constexpr const char* file_type_key = "general.file_type";

at::ScalarType scalar_type(GgufType type) {
  return type == GgufType::F32 ? at::kFloat : type == GgufType::BF16 ? at::kBFloat16 : at::kHalf;
}

GgufType gguf_type(at::ScalarType dtype) {
  COTUNE_CHECK(dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf, "{}", c10::toString(dtype));
  return dtype == at::kFloat ? GgufType::F32 : dtype == at::kBFloat16 ? GgufType::BF16 : GgufType::F16;
}

/// A tensor of the file and what becomes of it.
struct MergedTensor {
  const GgufTensor* stored;
  const ModelTensor* weight;  ///< nullptr: it does not change
  GgufTensorPlan plan;
};

/// In the order of the file's bytes, or of its parts'.
std::vector<MergedTensor> plan_tensors(const GgufFile& file, const std::map<std::string, ModelTensor>& weights, const WeightChanges& changes,
                                       std::optional<at::ScalarType> dtype) {
  std::vector<MergedTensor> tensors;
  for (const GgufTensor* tensor : file.tensors_as_stored()) {
    const GgufTensor& stored = *tensor;
    const auto found = weights.find(stored.name);
    const bool is_changed = found != weights.end() && changes.changes(found->second.name);
    const bool is_dense = stored.type == GgufType::F32 || stored.type == GgufType::BF16;
    const GgufType type = !is_changed ? stored.type : dtype ? gguf_type(*dtype) : is_dense ? stored.type : GgufType::F16;
    tensors.push_back({&stored, is_changed ? &found->second : nullptr, {stored.name, type, stored.shape}});
  }
  return tensors;
}

std::vector<std::string> merged_pairs(const GgufFile& file, GgufType type) {
  const std::string file_type = gguf_pair_bytes({file_type_key, gguf_file_type(type)});
  std::vector<std::string> pairs;
  for (const GgufStoredPair& pair : file.pairs()) {
    pairs.push_back(pair.key == file_type_key ? file_type
                                              : std::string(reinterpret_cast<const char*>(pair.bytes.data()), pair.bytes.size()));
  }
  return pairs;
}

void write_changed(GgufWriter& writer, const MergedTensor& tensor, const ModelFiles& model, const WeightChanges& changes) {
  const ModelTensor& weight = *tensor.weight;
  const at::Tensor stored = model.load(weight.name, at::kFloat);
  const int64_t rows = stored.size(0), step = weight.gguf_rows == GgufRows::same ? 1 : model.config.head_dim;
  const int64_t block = std::max<int64_t>(1, merged_block_values / stored.size(1) / step) * step;
  for (int64_t begin = 0; begin < rows; begin += block) {
    const at::Tensor part = merged_rows(stored, changes, weight.name, begin, std::min(block, rows - begin), scalar_type(tensor.plan.type));
    const at::Tensor placed = in_gguf_rows(part, weight.gguf_rows, model.config.head_dim);
    writer.append({static_cast<const std::byte*>(placed.const_data_ptr()), placed.nbytes()});
  }
}

}  // namespace

MergeReport write_merged_gguf(const ModelFiles& model, const WeightChanges& changes, const std::filesystem::path& output,
                              std::optional<at::ScalarType> dtype, const std::function<void(int64_t, int64_t)>& progress) {
  if (std::filesystem::exists(output)) throw_user_error("{}: exists; choose another file", output.string());
  const GgufFile file(model.path);
  std::map<std::string, ModelTensor> weights;
  for (const ModelTensor& tensor : model_tensors(model.config)) weights[tensor.gguf_name] = tensor;
  const std::vector<MergedTensor> tensors = plan_tensors(file, weights, changes, dtype);
  std::vector<GgufTensorPlan> plans;
  MergeReport report{.files = 1};
  GgufType changed_type = GgufType::F16;
  for (const MergedTensor& tensor : tensors) {
    plans.push_back(tensor.plan);
    report.bytes += static_cast<int64_t>(tensor.plan.byte_count());
    if (tensor.weight != nullptr) changed_type = tensor.plan.type;
  }
  GgufWriter writer(output, merged_pairs(file, changed_type), plans, file.alignment());
  int64_t done = 0;
  for (const MergedTensor& tensor : tensors) {
    if (tensor.weight == nullptr) {
      writer.append(tensor.stored->bytes);
    } else {
      write_changed(writer, tensor, model, changes);
      ++report.changed;
    }
    ++report.tensors;
    file.drop_pages();
    model.weights->drop_pages();
    progress(done += static_cast<int64_t>(tensor.plan.byte_count()), report.bytes);
  }
  COTUNE_CHECK(report.changed == static_cast<int64_t>(changes.count()), "{} of {} changes belong to the model", report.changed, changes.count());
  writer.commit();
  return report;
}

}  // namespace cotune
