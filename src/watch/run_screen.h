/// A run as lines of text: what `cotune train` shows on a terminal, `cotune watch` from another one, and `cotune status` prints.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "control/run_view.h"

namespace cotune {

/// What the lines are for.
struct ScreenStyle {
  size_t columns = 80;
  size_t rows = 0;      ///< 0: as many lines as there are, each job in one and its reason in full
  bool colour = false;  ///< escape sequences of colours, within a line; they take no columns
  bool unicode = true;  ///< else ASCII alone, but for names and reasons
};

/// What a live view adds to the run.
struct ScreenState {
  std::string selected;             ///< the job that keys are for
  std::vector<std::string> events;  ///< newest last; the rows that the table leaves hold the newest of them
  std::vector<std::string> footer;  ///< the last lines, in parts (footer_lines.h): keys, a question, or what became of a request
};

/// At most style.rows lines of at most style.columns columns. Columns of the table that do not fit are left out, those that matter
/// least first; of more jobs than rows, those around the selected one are shown, and how many are not.
std::vector<std::string> run_screen(const RunView& view, const ScreenStyle& style, const ScreenState& state = {});

/// What a run is at (RunReport::phase), for people. emulated: of an emulated run nothing is saved.
std::string phase_text(const std::string& phase, bool emulated);

/// Whether it stands still, and --resume goes on with it.
bool can_be_resumed(const RunReport& run);

/// The job before (-1) or after (1) the selected one; the first where it is none of the run, "" where there are none.
std::string neighbour(const RunView& view, const std::string& selected, int direction);

}  // namespace cotune
