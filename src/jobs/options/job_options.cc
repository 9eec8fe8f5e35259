#include "jobs/options/sections.h"

#include "jobs/options/option_entry.h"

namespace cotune::options {

void add_job(std::vector<Option>& table) {
  table.push_back(field(Section::job, "name", COTUNE_FIELD(job->name), of_type(OptionType::identifier),
                        "Unique in the file: the name of the job's output folder. Not `base`, which is the model without an adapter.",
                        {.required = true, .in_defaults = false}));
  table.push_back(field(Section::job, "tenant", COTUNE_FIELD(job->tenant), of_type(OptionType::identifier),
                        "Whose job it is; for schedulers, training does not look at it."));
  table.push_back(field(Section::job, "priority", COTUNE_FIELD(job->priority), whole(-1'000'000, 1'000'000),
                        "Higher goes first when not all jobs fit into memory, and takes the place of a running job of lower priority."));
  table.push_back(field(Section::job, "deadline", COTUNE_FIELD(job->deadline), of_type(OptionType::time),
                        "When it should be done; UTC where it names no zone, and the end of the day where it is a date. Of "
                        "jobs of equal priority the earliest goes first, and a miss is reported."));
}

}  // namespace cotune::options
