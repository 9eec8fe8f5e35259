#include <arrow/array.h>
#include <arrow/io/file.h>
#include <arrow/record_batch.h>
#include <arrow/type.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <parquet/arrow/reader.h>
#include <parquet/arrow/schema.h>
#include <parquet/exception.h>

#include <algorithm>

#include "base/error.h"
#include "data/parquet_rows.h"
#include "parquet/arrow_json.h"

namespace cotune {
namespace {

constexpr int64_t rows_at_once = 256;

/// Arrow's reasons may have several lines.
[[noreturn]] void refuse(std::string reason) {
  std::replace(reason.begin(), reason.end(), '\n', ' ');
  throw_user_error("cannot be read as Parquet: {}", reason);
}

void check(const arrow::Status& status) {
  if (!status.ok()) refuse(status.ToString());
}

template <typename T>
T value_of(arrow::Result<T> result) {
  check(result.status());
  return std::move(result).ValueUnsafe();
}

void add_leaves(const parquet::arrow::SchemaField& field, std::vector<int>& leaves) {
  if (field.is_leaf()) leaves.push_back(field.column_index);
  for (const auto& child : field.children) add_leaves(child, leaves);
}

class ParquetRows : public RecordLines {
 public:
  ParquetRows(const std::filesystem::path& path, const std::vector<std::string>& fields) {
    parquet::ArrowReaderProperties properties;
    properties.set_batch_size(rows_at_once);
    properties.set_pre_buffer(false);
    parquet::arrow::FileReaderBuilder builder;
    parquet::ReaderProperties by_pages;
    by_pages.enable_buffered_stream();
    check(builder.Open(value_of(arrow::io::ReadableFile::Open(path.string())), by_pages));
    file_ = value_of(builder.properties(properties)->Build());
    std::vector<int> leaves;
    std::vector<std::string> columns;
    for (const auto& field : file_->manifest().schema_fields) {
      const std::string& name = field.field->name();
      columns.push_back(name);
      if (std::find(fields.begin(), fields.end(), name) == fields.end()) continue;
      if (const std::string type = type_without_json(*field.field->type()); !type.empty()) {
        throw_user_error("column `{}` holds {}, which is no text, number or list of them", name, type);
      }
      add_leaves(field, leaves);
    }
    if (leaves.empty()) {
      throw_user_error("expected columns among {}; found {}", fmt::join(fields, ", "), fmt::join(columns, ", "));
    }
    std::vector<int> groups(static_cast<size_t>(file_->num_row_groups()));
    for (size_t i = 0; i < groups.size(); ++i) groups[i] = static_cast<int>(i);
    batches_ = value_of(file_->GetRecordBatchReader(groups, leaves));
  }

  bool next() override {
    while (batch_ == nullptr || row_ == batch_->num_rows()) {
      row_ = 0;
      check(batches_->ReadNext(&batch_));
      if (batch_ == nullptr) return false;
    }
    nlohmann::ordered_json record = nlohmann::ordered_json::object();
    for (int i = 0; i < batch_->num_columns(); ++i) {
      const arrow::Array& column = *batch_->column(i);
      if (!column.IsNull(row_)) record[batch_->schema()->field(i)->name()] = json_of(column, row_);
    }
    ++row_;
    ++line_;
    set_text(record);
    return true;
  }

 private:
  void set_text(const nlohmann::ordered_json& record) {
    using Handling = nlohmann::ordered_json::error_handler_t;
    try {
      text_ = record.dump();
      repaired_ = false;
    } catch (const nlohmann::json::type_error&) {
      text_ = record.dump(-1, ' ', false, Handling::replace);
      repaired_ = true;
    }
    too_long_ = text_.size() > max_line_bytes;
    if (too_long_) text_.resize(max_line_bytes);
  }

  std::unique_ptr<parquet::arrow::FileReader> file_;
  std::unique_ptr<arrow::RecordBatchReader> batches_;
  std::shared_ptr<arrow::RecordBatch> batch_;
  int64_t row_ = 0;
};

}  // namespace
}  // namespace cotune

extern "C" {

const char* cotune_parquet_interface() { return COTUNE_PARQUET_INTERFACE; }

cotune::RecordLines* cotune_parquet_rows(const std::filesystem::path& path, const std::vector<std::string>& fields) {
  try {
    return new cotune::ParquetRows(path, fields);
  } catch (const parquet::ParquetException& error) {
    cotune::refuse(error.what());
  }
}
}
