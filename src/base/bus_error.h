/// What becomes of a read from a mapped file that fails: the file was truncated meanwhile, or its disk is broken.
#pragma once

namespace cotune {

/// From here on such a read ends the program with exit status 1 and a message that names the MappedFile, in place of a
/// crash. Other bus errors stay what they are. At the start of a program, once.
void report_bus_errors();

}  // namespace cotune
