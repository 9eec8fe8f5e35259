/// A mistake in one record of a data file.
#pragma once

#include <exception>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

namespace cotune {

class RecordError : public std::runtime_error {
 public:
  RecordError(std::string field, const std::string& message) : std::runtime_error(message), field_(std::move(field)) {}
  const std::string& field() const { return field_; }

 private:
  std::string field_;
};

/// What to say of a record at which this was thrown: its text. Where the record is not at fault, which is a bug, it says so.
std::string complaint_of(const std::exception& error);

/// What a value is, for messages: `a string`, `the number 3`, `null`, `a list`, `an object`.
std::string type_of(const nlohmann::ordered_json& value);

/// A field of a record that must be a string. place: of the object in the record, where it is not the record itself. Throws RecordError.
const std::string& string_field(const nlohmann::ordered_json& record, const char* name, const std::string& place = "");

/// Whether the record has a field that is neither null nor an empty text, list or object.
bool holds_something(const nlohmann::ordered_json& record, const char* field);

}  // namespace cotune
