/// Kinds of files that people have data in and that are not read here.
#pragma once

#include <istream>
#include <string>

namespace cotune {

/// What a file is by its bytes and how to make one of it that is accepted: "is compressed by xz; accepted are …". "" where it is none of
/// the kinds that are known. The stream's position stays.
std::string foreign_file_complaint(std::istream& stream);

}  // namespace cotune
