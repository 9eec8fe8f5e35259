/// A simulated pipeline to look at.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "schedule/pipeline/simulate.h"

namespace cotune {

struct TextChart {
  int64_t width = 100;  ///< columns of the whole; at least 30
  bool unicode = true;  ///< false: ASCII alone
  bool memory = true;   ///< a line of memory below each rank's
};

/// One line per rank, time from left to right: a hybrid task is a letter, its forwards upper case, its
/// backwards lower case (from the 27th task on the letters begin anew), optimizer steps `*`, idle time a dot.
/// A column shows what takes most of it. Memory stands below in nine heights of the highest peak of any rank.
/// No escape sequences.
std::string render_text(const PipelineSchedule& schedule, const PipelineSimulation& simulation,
                        const TextChart& chart = {});

struct SvgChart {
  int64_t width = 1200;  ///< pixels; at least 400
  bool memory = true;    ///< a curve of memory below each rank
  std::string title;     ///< empty: none
};

/// A bar per forward (lighter) and backward (darker) in its hybrid task's colour, numbered by microbatch
/// where there is room, optimizer steps black, messages as thin lines between ranks; a legend and a time
/// axis. Hovering names an entry with its times. Self-contained, well-formed XML.
std::string render_svg(const PipelineSchedule& schedule, const PipelineSimulation& simulation,
                       const SvgChart& chart = {});

/// Trace events (the JSON that ui.perfetto.dev and chrome://tracing open): a track per rank and per link, one per rank of the gradients that
/// it exchanges with other replicas, flows from send to use, a counter of bytes in flight per rank. Times in microseconds.
std::string render_trace(const PipelineSchedule& schedule, const PipelineSimulation& simulation);

/// A pipeline among several.
struct TracedRun {
  const PipelineSchedule* schedule = nullptr;      ///< both must outlive the call
  const PipelineSimulation* simulation = nullptr;
  std::string name;        ///< before `ranks` and `links` of its process; "": nothing
  int64_t process = 0;     ///< runs of one process share tracks
  int64_t first_rank = 0;  ///< how its rank 0 is called
  double start_s = 0;
};
/// What takes a stretch of time beside pipelines.
struct TracedSlice {
  std::string name;
  std::string category;
  double start_s = 0, end_s = 0;
  std::string jobs;    ///< that it is of
  int64_t tokens = 0;  ///< 0: not said
};

/// Slices in the order of their starts; one that begins before another's end has a further track.
struct TracedTrack {
  std::string name;
  std::vector<TracedSlice> slices;
};

/// Several in one file. tracks: belong to process 0, of this name, and then no run may.
std::string render_trace(std::span<const TracedRun> runs, std::span<const TracedTrack> tracks = {}, const std::string& tracks_name = "");

}  // namespace cotune
