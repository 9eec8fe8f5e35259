#include "jobs/job_layers.h"

#include <fmt/format.h>

#include <algorithm>

#include "jobs/option_value.h"
#include "jobs/yaml_document.h"

namespace cotune {

namespace {

class DocumentReader {
 public:
  DocumentReader(const std::string& file, MistakeList& mistakes) : reader_(file, mistakes), mistakes_(mistakes) {}

  JobsFileLayers read(const YAML::Node& document) {
    JobsFileLayers layers;
    const std::vector<SectionReader::Entry> entries = reader_.entries(document, "", 1);
    if (!document.IsMap() && !document.IsNull()) mistakes_.throw_if_any();
    bool has_version = false, has_jobs = false;
    for (const SectionReader::Entry& entry : entries) {
      if (entry.key == "cotune") {
        has_version = true;
        check_version(entry);
      } else if (entry.key == "model") {
        reader_.read_section(Section::model, entry, OptionLevel::job, layers.top);
      } else if (entry.key == "run") {
        reader_.read_section(Section::run, entry, OptionLevel::job, layers.top);
      } else if (entry.key == "defaults") {
        reader_.read_section(Section::job, entry, OptionLevel::defaults, layers.defaults);
      } else if (entry.key == "jobs") {
        has_jobs = true;
        read_jobs(entry, layers.jobs);
      } else {
        read_root_option(entry, layers.top);
      }
    }
    if (!has_version) {
      mistakes_.add(reader_.file(), 0, "cotune", "`cotune: 1` is missing: the version of the file's format");
    }
    if (!has_jobs) mistakes_.add(reader_.file(), 0, "jobs", "is missing: a list of jobs");
    return layers;
  }

 private:
  void check_version(const SectionReader::Entry& entry) {
    if (entry.value.IsScalar() && entry.value.Scalar() == "1") return;
    mistakes_.add(reader_.file(), entry.line, "cotune",
                  fmt::format("the version of the file's format must be 1, got {}",
                              entry.value.IsScalar() ? shown(entry.value.Scalar()) : "no number"));
  }

  void read_jobs(const SectionReader::Entry& entry, std::vector<JobLayers>& jobs) {
    if (!entry.value.IsSequence() || entry.value.size() == 0) {
      mistakes_.add(reader_.file(), entry.line, "jobs",
                    fmt::format("must be a list with at least one job, got {}",
                                entry.value.IsSequence() ? "an empty list"
                                : entry.value.IsMap()    ? "a map"
                                : entry.value.IsNull()   ? "nothing"
                                                         : shown(entry.value.Scalar())));
      return;
    }
    if (entry.value.size() > most_jobs) {
      mistakes_.add(reader_.file(), entry.line, "jobs",
                    fmt::format("must be at most {} jobs, got {}", most_jobs, entry.value.size()));
      return;
    }
    for (const YAML::Node& node : entry.value) {
      JobLayers& job = jobs.emplace_back();
      job.place = jobs.size() - 1;
      job.line = std::max(line_of(node), entry.line);
      const std::string field = fmt::format("jobs[{}]", job.place);
      reader_.read_section(Section::job, {"", node, job.line, field}, OptionLevel::job, job.own);
    }
  }

  void read_root_option(const SectionReader::Entry& entry, OptionLayer& top) {
    for (const Option& option : option_table()) {
      if (!std::count(option.root_aliases.begin(), option.root_aliases.end(), entry.key)) continue;
      reader_.read_option(option, entry, OptionLevel::job, top);
      return;
    }
    mistakes_.add(reader_.file(), entry.line, entry.field, unknown_key_message(entry.key));
  }

  SectionReader reader_;
  MistakeList& mistakes_;
};

}  // namespace

JobsFileLayers read_layers(const YAML::Node& document, const std::string& file, MistakeList& mistakes) {
  return DocumentReader(file, mistakes).read(document);
}

}  // namespace cotune
