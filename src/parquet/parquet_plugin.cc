#include <arrow/array.h>
#include <arrow/io/file.h>
#include <arrow/record_batch.h>
#include <arrow/type.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <parquet/arrow/reader.h>
#include <parquet/arrow/schema.h>
#include <parquet/exception.h>
#include <parquet/file_reader.h>
#include <parquet/metadata.h>

#include <algorithm>

#include "base/error.h"
#include "data/records/parquet_rows.h"
#include "data/records/unread_fields.h"
#include "parquet/arrow_json.h"

namespace cotune {
namespace {

constexpr int64_t most_rows_at_once = 256, bytes_at_once = int64_t{16} << 20;

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

/// So that a row group's rows of usual length are about bytes_at_once.
int64_t rows_at_once(const parquet::FileMetaData& file, const std::vector<int>& leaves) {
  int64_t rows = most_rows_at_once;
  for (int i = 0; i < file.num_row_groups(); ++i) {
    const auto group = file.RowGroup(i);
    double bytes = 1;
    for (const int leaf : leaves) bytes += static_cast<double>(group->ColumnChunk(leaf)->total_uncompressed_size());
    const double fitting = static_cast<double>(bytes_at_once) * static_cast<double>(group->num_rows()) / std::max(1.0, bytes);
    if (fitting < static_cast<double>(rows)) rows = std::max<int64_t>(1, static_cast<int64_t>(fitting));
  }
  return rows;
}

/// Texts that repeat stay in the dictionary in which the file has them.
void keep_dictionaries(const parquet::SchemaDescriptor& schema, parquet::ArrowReaderProperties& properties) {
  for (int i = 0; i < schema.num_columns(); ++i) {
    if (schema.Column(i)->physical_type() == parquet::Type::BYTE_ARRAY) properties.set_read_dictionary(i, true);
  }
}

class ParquetRows : public RecordLines {
 public:
  ParquetRows(const std::filesystem::path& path, const std::vector<std::string>& fields) {
    parquet::ArrowReaderProperties properties;
    properties.set_pre_buffer(false);
    parquet::arrow::FileReaderBuilder builder;
    parquet::ReaderProperties by_pages;
    by_pages.enable_buffered_stream();
    check(builder.Open(value_of(arrow::io::ReadableFile::Open(path.string())), by_pages));
    keep_dictionaries(*builder.raw_reader()->metadata()->schema(), properties);
    file_ = value_of(builder.properties(properties)->Build());
    std::vector<std::string> columns;
    for (const auto& field : file_->manifest().schema_fields) {
      const std::string& name = field.field->name();
      columns.push_back(name);
      if (std::find(fields.begin(), fields.end(), name) == fields.end()) continue;
      if (const std::string type = type_without_json(*field.field->type()); !type.empty()) {
        throw_user_error("column `{}` holds {}, which is no text, number or list of them", name, type);
      }
      add_leaves(field, leaves_);
    }
    if (leaves_.empty()) {
      throw_user_error("expected columns among {}; found {}{}", fmt::join(fields, ", "), fmt::join(columns, ", "),
                       advice_for_fields(columns));
    }
    file_->set_batch_size(rows_at_once(*file_->parquet_reader()->metadata(), leaves_));
    row_count_ = file_->parquet_reader()->metadata()->num_rows();
  }

  bool next() override {
    while (batch_ == nullptr || row_ == batch_->num_rows()) {
      if (!next_batch()) return false;
    }
    try {
      set_text(record());
    } catch (const RowTooLong&) {
      text_.clear();
      repaired_ = false;
      too_long_ = true;
    }
    ++row_;
    ++line_;
    return true;
  }

  std::string_view unit() const override { return "row"; }
  double part_read() const override { return row_count_ > 0 ? static_cast<double>(line_) / static_cast<double>(row_count_) : 1; }

 private:
  /// Each row group by itself: it has a dictionary of its own, and Arrow reads nested columns with one only.
  bool next_batch() {
    row_ = 0;
    batch_ = nullptr;
    if (batches_ != nullptr) check(batches_->ReadNext(&batch_));
    while (batch_ == nullptr && group_ < file_->num_row_groups()) {
      batches_ = value_of(file_->GetRecordBatchReader({group_++}, leaves_));
      check(batches_->ReadNext(&batch_));
    }
    return batch_ != nullptr;
  }

  nlohmann::ordered_json record() {
    size_t left_bytes = max_line_bytes;
    nulls_.clear();
    nlohmann::ordered_json record = nlohmann::ordered_json::object();
    for (int i = 0; i < batch_->num_columns(); ++i) {
      const arrow::Array& column = *batch_->column(i);
      const std::string& name = batch_->schema()->field(i)->name();
      if (column.IsNull(row_)) {
        nulls_.push_back(name);
      } else {
        record[name] = json_of(column, row_, left_bytes);
      }
    }
    return record;
  }

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
  std::vector<int> leaves_;
  int group_ = 0;  ///< the next one
  std::unique_ptr<arrow::RecordBatchReader> batches_;
  std::shared_ptr<arrow::RecordBatch> batch_;
  int64_t row_ = 0, row_count_ = 0;
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
