#include <algorithm>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "schedule/microbatch.h"

namespace cotune {
namespace {

/// Puts pieces (segments that stay together) into atoms, next-fit.
class AtomBuilder {
 public:
  AtomBuilder(int32_t job, int64_t capacity, bool padded) : job_(job), capacity_(capacity), padded_(padded) {}

  void add(const std::vector<Segment>& piece) {
    if (atoms_.empty() || size_with(piece) > capacity_) {
      atoms_.push_back({job_, static_cast<int32_t>(atoms_.size()), {}});
      tokens_ = segments_ = longest_ = 0;
    }
    for (const Segment& segment : piece) {
      atoms_.back().segments.push_back(segment);
      tokens_ += segment.length + segment.pad;
      segments_ += 1;
      longest_ = std::max(longest_, segment.length);
    }
  }

  std::vector<Atom> take() { return std::move(atoms_); }

 private:
  int64_t size_with(const std::vector<Segment>& piece) const {
    int64_t tokens = tokens_;
    int64_t longest = longest_;
    for (const Segment& segment : piece) {
      tokens += segment.length + segment.pad;
      longest = std::max(longest, segment.length);
    }
    return padded_ ? (segments_ + static_cast<int64_t>(piece.size())) * longest : tokens;
  }

  int32_t job_;
  int64_t capacity_;
  bool padded_;
  std::vector<Atom> atoms_;
  int64_t tokens_ = 0, segments_ = 0, longest_ = 0;  // of the last atom
};

void cut_rows(const BatchShape& batch, int64_t capacity, AtomBuilder& builder) {
  for (size_t row = 0; row < batch.row_lengths.size(); ++row) {
    const int64_t row_length = batch.row_lengths[row];
    for (int64_t position = 0; position < row_length; position += capacity) {
      builder.add({{static_cast<int32_t>(row), position, std::min(capacity, row_length - position), 0, row_length}});
    }
  }
}

/// Rows of the batch that lie one after another in one packed row.
struct PackedRow {
  std::vector<int32_t> rows;
  int64_t tokens = 0;
};

/// Whether cuts of a packed row at multiples of `cut` cut a row that begins at `offset` at multiples of row_cut_tokens alone.
bool is_cut_on_grid(int64_t offset, int64_t length, int64_t cut) {
  return cut % row_cut_tokens != 0 || offset % row_cut_tokens == 0 || offset % cut + length <= cut;
}

std::vector<PackedRow> first_fit_decreasing(const std::vector<int64_t>& row_lengths, int64_t target, int64_t cut) {
  std::vector<int32_t> order(row_lengths.size());
  std::iota(order.begin(), order.end(), 0);
  const auto length_of = [&](int32_t row) { return row_lengths[static_cast<size_t>(row)]; };
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return length_of(a) > length_of(b); });
  std::vector<PackedRow> packed;
  for (int32_t row : order) {
    auto place = std::find_if(packed.begin(), packed.end(), [&](const PackedRow& candidate) {
      return candidate.tokens + length_of(row) <= target &&
             is_cut_on_grid(candidate.tokens, length_of(row), cut);
    });
    if (place == packed.end()) place = packed.insert(packed.end(), PackedRow{});
    place->rows.push_back(row);
    place->tokens += length_of(row);
  }
  return packed;
}

/// Atoms take `run_tokens` of a packed row: `capacity` rounded down to whole chunks, or one chunk that is larger.
void cut_chunks(const BatchShape& batch, int64_t chunk_size, int64_t capacity, int64_t run_tokens, AtomBuilder& builder) {
  const int64_t longest = *std::max_element(batch.row_lengths.begin(), batch.row_lengths.end());
  const int64_t target = (longest + chunk_size - 1) / chunk_size * chunk_size;
  // By the capacity where that will do, so that rows are packed alike under chunks of many sizes.
  const int64_t cut = run_tokens % capacity == 0 ? capacity : run_tokens;
  for (const PackedRow& packed : first_fit_decreasing(batch.row_lengths, target, cut)) {
    std::vector<Segment> run;
    int64_t offset = 0;  // in the packed row
    for (int32_t row : packed.rows) {
      const int64_t row_length = batch.row_lengths[static_cast<size_t>(row)];
      for (int64_t position = 0; position < row_length;) {
        const int64_t length = std::min(chunk_size - offset % chunk_size, row_length - position);
        run.push_back({row, position, length, 0, row_length});
        position += length;
        offset += length;
        if (offset % run_tokens == 0) {
          builder.add(run);
          run.clear();
        }
      }
    }
    if (run.empty()) continue;
    run.back().pad = (chunk_size - offset % chunk_size) % chunk_size;
    builder.add(run);
  }
}

}  // namespace

std::vector<Atom> cut_into_atoms(const BatchShape& batch, const AtomRule& rule) {
  COTUNE_CHECK(rule.capacity >= 1 && rule.chunk_size >= 1);
  COTUNE_CHECK(!batch.row_lengths.empty(), "job {} has a batch without rows", batch.job);
  for (int64_t length : batch.row_lengths) COTUNE_CHECK(length >= 1, "job {} has an empty row", batch.job);

  if (rule.layout == Layout::chunked) {
    const int64_t run_tokens = std::max<int64_t>(1, rule.capacity / rule.chunk_size) * rule.chunk_size;
    AtomBuilder builder(batch.job, run_tokens, false);
    cut_chunks(batch, rule.chunk_size, rule.capacity, run_tokens, builder);
    return builder.take();
  }
  AtomBuilder builder(batch.job, rule.capacity, rule.layout == Layout::padded);
  cut_rows(batch, rule.capacity, builder);
  return builder.take();
}

std::vector<RowPart> row_parts(const Microbatch& microbatch) {
  std::vector<RowPart> parts;
  int64_t token = 0;
  for (size_t a = 0; a < microbatch.atoms.size(); ++a) {
    const Atom& atom = microbatch.atoms[a];
    for (size_t s = 0; s < atom.segments.size(); ++s) {
      const Segment& segment = atom.segments[s];
      const bool continues = !parts.empty() && parts.back().job == atom.job && parts.back().row == segment.row &&
                             parts.back().position + parts.back().length == segment.position;
      if (!continues) {
        parts.push_back({.job = atom.job,
                         .row = segment.row,
                         .position = segment.position,
                         .row_length = segment.row_length,
                         .first_token = token});
      }
      RowPart& part = parts.back();
      part.length += segment.length;
      part.pad += segment.pad;
      part.last_atom = static_cast<int32_t>(a);
      part.last_segment = static_cast<int32_t>(s);
      token += segment.length + segment.pad;
    }
  }
  return parts;
}

}  // namespace cotune
